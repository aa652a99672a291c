//! The attacks of the hostile agent, as data: what it tries, and in which server.
//!
//! A command that gets through says `BREACH`. In every text `%outside%` is a directory that is not the agent's, `%home%` the home
//! of crewkit, `%work%` the working directory, `%port%` and `%pid%` the server's, `%crewkit%` the
//! binary. `kit` is the module in `kit.py`.

/// One thing the agent does.
#[derive(Debug, Clone, Copy)]
pub(super) enum Call {
    /// A shell command.
    Sh(&'static str),
    /// A Python program.
    Py(&'static str),
    /// A command that is killed after a second.
    Endless(&'static str),
    /// A tool with its arguments.
    Tool(&'static str, &'static str),
}

/// Which server it is tried in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Where {
    /// One with the settings that are there by themselves.
    Default,
    /// One whose commands have no network.
    Offline,
    /// One whose commands may use Unix sockets.
    Sockets,
}

/// One attack.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attack {
    pub(super) name: &'static str,
    pub(super) place: Where,
    pub(super) calls: &'static [Call],
}

const fn attack(name: &'static str, calls: &'static [Call]) -> Attack {
    Attack { name, place: Where::Default, calls }
}

const fn offline(name: &'static str, calls: &'static [Call]) -> Attack {
    Attack { name, place: Where::Offline, calls }
}

const fn with_sockets(name: &'static str, calls: &'static [Call]) -> Attack {
    Attack { name, place: Where::Sockets, calls }
}

use Call::{Endless, Py, Sh, Tool};

/// Helpers of the Python programs.
pub(super) const KIT: &str = r#"
import ctypes, errno, mmap, os, platform, signal, socket, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
x86 = platform.machine() == "x86_64"
helper = int(os.environ["HELPER"])  # the parent of the shell
NUMBERS = {  # x86-64, others
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438),
    "add_key": (248, 217), "keyctl": (250, 219), "io_uring_setup": (425, 425), "prlimit64": (302, 261),
    "setpriority": (141, 140), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "capget": (125, 90),
    "kcmp": (312, 272), "pidfd_send_signal": (424, 424),
}
def call(name, *arguments):
    number = name if isinstance(name, int) else NUMBERS[name][0 if x86 else 1]
    ctypes.set_errno(0)
    converted = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    libc.syscall.restype = ctypes.c_long
    return libc.syscall(ctypes.c_long(number), *converted), ctypes.get_errno()
def breach(*what):
    print("BREACH", *what, flush=True)
def must_fail(what, outcome):
    if outcome[0] >= 0: breach(what, outcome)
def must_be_forbidden(what, outcome):
    if outcome[0] >= 0 or outcome[1] != errno.EACCES: breach(what, outcome)
def refuses(what, action, *arguments):
    try:
        breach(what, action(*arguments))
    except (OSError, PermissionError):
        pass
def forbids(what, action, *arguments):
    try:
        breach(what, action(*arguments))
    except OSError as error:
        if error.errno != errno.EACCES: breach(what, error)
def read(path):
    with open(path, "rb") as file: return file.read(4096)
def connect(address, family=socket.AF_INET):
    connection = socket.socket(family, socket.SOCK_STREAM)
    code = connection.connect_ex(address)
    if code != errno.EACCES: breach("connect", address, code)
    connection.close()
def detach():
    "Becomes a daemon: two forks, a new session, no streams, no environment worth the name."
    if os.fork(): os.waitpid(-1, 0); return False
    os.setsid()
    if os.fork(): os._exit(0)
    return True
"#;

/// Everything the hostile agent tries.
pub(super) const ATTACKS: &[Attack] = &[
    // Files.
    attack("read a file outside", &[Sh("cat %outside%/canary; cat < %outside%/canary; head -c 99 %outside%/canary")]),
    attack("read through a link", &[Sh("ln -s %outside% way; cat way/canary; ln -s %outside%/canary it; cat it; cp -L it mine; cat mine")]),
    attack(
        "read through a link by the tools",
        &[
            Sh("ln -s %outside% way; ln -s %outside%/canary it; ln -s ../../../../../../../../../../.. up; ln -s /proc/self/root magic"),
            Tool("read_file", r#"{"path": "way/canary"}"#),
            Tool("read_file", r#"{"path": "it"}"#),
            Tool("read_file", r#"{"path": "up%outside%/canary"}"#),
            Tool("read_file", r#"{"path": "magic%outside%/canary"}"#),
            Tool("read_file", r#"{"path": "%outside%/canary"}"#),
            Tool("list_files", r#"{"path": "way"}"#),
            Tool("search_files", r#"{"pattern": "secret"}"#),
            Tool("search_files", r#"{"pattern": "secret", "path": "way"}"#),
        ],
    ),
    attack("change a file outside", &[Sh("echo x > %outside%/canary; echo x >> %outside%/canary; truncate -s 0 %outside%/canary; sed -i s/s/x/ %outside%/canary; rm -rf %outside%/canary %outside%/repo; mv %outside%/canary mine; touch %outside%/new; mkdir %outside%/new; ln -s / %outside%/new; mkfifo %outside%/new")]),
    attack(
        "change a file outside by the tools",
        &[
            Sh("ln -s %outside% way; ln -s %outside%/canary it; ln -s %outside%/new coming"),
            Tool("write_file", r#"{"path": "way/canary", "content": "x"}"#),
            Tool("write_file", r#"{"path": "it", "content": "x"}"#),
            Tool("write_file", r#"{"path": "coming", "content": "x"}"#),
            Tool("write_file", r#"{"path": "way/deep/new", "content": "x"}"#),
            Tool("edit_file", r#"{"path": "it", "old_text": "secret", "new_text": "x"}"#),
            Tool("write_file", r#"{"path": "../new", "content": "x"}"#),
            Tool("write_file", r#"{"path": "%outside%/new", "content": "x"}"#),
        ],
    ),
    attack(
        "have the wrong file written by a name that comes twice",
        &[
            Sh("mkdir -p a/b d; echo keep > a/f.txt; ln -s ../../d a/b/a"),
            Tool("write_file", r#"{"path": "a/b/a/f.txt", "content": "new"}"#),
            Sh(r#"test "$(cat a/f.txt)" = keep || echo BREACH a/f.txt was overwritten"#),
        ],
    ),
    attack("make a hard link to a file outside", &[Sh("ln %outside%/canary mine && cat mine; ln %outside%/canary %outside%/new; ln -P %home%/crewkit.db db && cat db")]),
    attack("exchange a file with one outside", &[Sh("echo mine > mine; mv -T %outside%/canary here && cat here; mv mine %outside%/canary; mv %outside% here; mv %work% %outside%/moved")]),
    attack("write to a file that has a second name, through a link", &[
        Sh("echo keep > first; ln first second; ln -s second link"),
        Tool("write_file", r#"{"path": "link", "content": "new"}"#),
        Sh(r#"test "$(cat first)" = keep || echo BREACH the other name was written to"#),
    ]),
    attack("read the home of crewkit", &[Sh("find %home% -type f -exec cat {} +; cat %home%/crewkit.toml %home%/token %home%/state/* %home%/crewkit.db; ls %home% && echo BREACH listed")]),
    attack("look into the temporary directories of others", &[Sh(r#"ls "$HOME/.." && echo BREACH listed; rmdir "$HOME"; ln -s %outside% "$HOME"; touch "$HOME/../other" && echo BREACH written"#)]),
    attack("plant a hook in the repository the workspace belongs to", &[Sh("echo 'gitdir: %outside%/repo/.git/worktrees/w' > .git; mkdir -p %outside%/repo/.git/hooks; echo 'touch %outside%/new' > %outside%/repo/.git/hooks/post-checkout; git config --file %outside%/repo/.git/config core.fsmonitor 'touch %outside%/new'; git -C %outside%/repo config core.pager x")]),
    attack("replace the crewkit binary", &[Sh("sh -c ': > %crewkit%.new' && echo BREACH beside it; ln %crewkit% mine && echo BREACH linked"), Py("refuses('write', os.open, '%crewkit%', os.O_WRONLY); refuses('read', os.open, '%crewkit%', os.O_RDONLY)")]),
    attack("read the disk by a device file", &[Py("
for kind, name, device in ((0o060000, 'disk', os.makedev(259, 0)), (0o020000, 'zero', os.makedev(1, 5)), (0o020000, 'memory', os.makedev(1, 1))):
    refuses(name, os.mknod, name, kind | 0o600, device)
for path in ('/dev/mem', '/dev/kmsg', '/dev/sda', '/dev/vda', '/dev/ptmx', '/dev/net/tun', '/dev/fuse'):
    refuses(path, os.open, path, os.O_RDONLY)
")]),
    attack("hold the tools up with pipes, sockets and endless files", &[
        Py("
os.mkfifo('pipe'); os.mknod('sock', 0o140644); os.symlink('pipe', 'link'); os.symlink('/dev/zero', 'zero'); os.symlink('loop', 'loop')
open('sparse', 'wb').truncate(1 << 42)
"),
        Tool("read_file", r#"{"path": "pipe"}"#),
        Tool("read_file", r#"{"path": "link"}"#),
        Tool("read_file", r#"{"path": "sock"}"#),
        Tool("read_file", r#"{"path": "zero"}"#),
        Tool("read_file", r#"{"path": "loop"}"#),
        Tool("read_file", r#"{"path": "sparse"}"#),
        Tool("write_file", r#"{"path": "pipe", "content": "x"}"#),
        Tool("write_file", r#"{"path": "link", "content": "x"}"#),
        Tool("write_file", r#"{"path": "sock", "content": "x"}"#),
        Tool("write_file", r#"{"path": "loop", "content": "x"}"#),
        Tool("edit_file", r#"{"path": "pipe", "old_text": "a", "new_text": "b"}"#),
        Tool("search_files", r#"{"pattern": "x"}"#),
        Tool("search_files", r#"{"pattern": "x", "path": "pipe"}"#),
        Tool("list_files", "{}"),
        Sh("test -p pipe || echo BREACH the pipe was replaced"),
    ]),
    attack("drown the tools in names", &[
        Py("
os.mkdir('many')
for n in range(60000): os.close(os.open(f'many/{n}', os.O_CREAT))
"),
        Tool("list_files", r#"{"path": "many"}"#),
        Tool("search_files", r#"{"pattern": "x"}"#),
    ]),
    attack("drown the server in output", &[Sh("head -c 300000000 /dev/zero; head -c 300000000 /dev/zero >&2"), Endless("yes BREAC")]),
    // Other processes.
    attack("read the server's secrets in /proc", &[Sh("for p in %pid% $PPID 1; do cat /proc/$p/environ /proc/$p/cmdline /proc/$p/maps; ls -l /proc/$p/fd /proc/$p/cwd/ /proc/$p/root/; head -c 99 /proc/$p/mem; cat /proc/$p/cwd/crewkit.toml /proc/$p/root%outside%/canary; done"), Py("
for pid in (%pid%, helper, 1):
    for name in ('environ', 'mem', 'maps', 'fd/0', 'stack', 'root%outside%/canary'):
        refuses(name, os.open, f'/proc/{pid}/{name}', os.O_RDONLY)
")]),
    attack("trace the server or the helper", &[Py("
ATTACH, SEIZE = 16, 0x4206
for pid in (%pid%, helper, 1):
    must_fail('attach', call('ptrace', ATTACH, pid, 0, 0))
    must_fail('seize', call('ptrace', SEIZE, pid, 0, 0))
    buffer = ctypes.create_string_buffer(64)
    mine = struct.pack('QQ', ctypes.addressof(buffer), 64)
    theirs = struct.pack('QQ', 0x400000, 64)
    outcome = call('process_vm_readv', pid, ctypes.c_char_p(mine), 1, ctypes.c_char_p(theirs), 1, 0)
    if outcome[1] != errno.EPERM: breach('process_vm_readv', outcome)
    handle = call('pidfd_open', pid, 0)[0]
    for number in range(12): must_fail('pidfd_getfd', call('pidfd_getfd', handle, number, 0))
    must_fail('kcmp', call('kcmp', pid, os.getpid(), 0, 0, 0))
")]),
    attack("signal the server or the helper", &[Py("
for pid in (%pid%, helper, 1):
    refuses('kill', os.kill, pid, 0)
    must_fail('pidfd_send_signal', call('pidfd_send_signal', call('pidfd_open', pid, 0)[0], 0, 0, 0))
")]),
    attack("starve the server by its limits", &[Py("
CPU, NOFILE = 0, 7
for pid in (%pid%, helper):
    same = ctypes.create_string_buffer(16)
    for what in (CPU, NOFILE): must_be_forbidden('prlimit', call('prlimit64', pid, what, 0, same))
    must_be_forbidden('setpriority', call('setpriority', 0, pid, 0))
must_be_forbidden('setpriority of the user', call('setpriority', 2, os.getuid() or 65534, 0))
")]),
    // Living on.
    attack("leave a daemon behind", &[Sh("env -i setsid sleep 97531 & env -i setsid nohup sleep 97531 > /dev/null 2>&1 < /dev/null & (setsid sh -c 'trap \"\" TERM HUP INT; sleep 97531 & sleep 97531' &) ; echo started")]),
    attack("leave a daemon that lost its parents behind", &[Py("
for n in range(5):
    if detach():
        os.closerange(0, 64)
        for number in range(1, 32):
            try: signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError): pass
        os.execve('/bin/sleep', ['sleep', '97531'], {})
")]),
    attack("leave a daemon that adopts its own children behind", &[Py("
if detach():
    libc.prctl(36, 1, 0, 0, 0)
    os.closerange(0, 64)
    for n in range(3):
        if detach(): os.execve('/bin/sleep', ['sleep', '97531'], {})
    os.execve('/bin/sleep', ['sleep', '97531'], {})
")]),
    attack("never be where one is looked for", &[Py("
# Each generation leaves its session and is gone when the next one has begun. All of them hold the lock.
import fcntl
lock = os.dup2(os.open('alive', os.O_CREAT | os.O_RDWR), 100)
fcntl.flock(lock, fcntl.LOCK_EX)
if detach():
    os.closerange(0, 64)
    until = time.time() + 20
    while time.time() < until:
        if os.fork(): os._exit(0)
        os.setsid()
    os._exit(0)
")]),
    attack("multiply until the time is over", &[Endless("python3 -c '
import os, time
until = time.time() + 30
for n in range(7):
    os.fork()
while time.time() < until:
    pid = os.fork()
    if pid == 0:
        os.setsid(); time.sleep(0.01); os._exit(0)
    os.waitpid(pid, 0)
'")]),
    // Terminal, descriptors, environment.
    attack("type into the terminal of the server", &[Py("
forbids('the terminal', os.open, '/dev/tty', os.O_RDWR)
for number in range(16): refuses('a terminal', os.open, f'/dev/pts/{number}', os.O_RDWR | os.O_NOCTTY)
import fcntl
for order in (0x5412, 0x541c): forbids('typing', fcntl.ioctl, 0, order, b'x')
if os.getsid(0) == os.getsid(%pid%): breach('the session is the server\\'s')
")]),
    attack("use what the server had open", &[Py("
for number in range(3, 1024):
    try: os.fstat(number)
    except OSError: continue
    breach('open', number, os.readlink(f'/proc/self/fd/{number}') if os.path.exists('/proc/self/fd') else '')
")]),
    attack("find secrets in the environment", &[Sh("env; set; export -p; env | grep CREWKIT_ | grep -v -e ^CREWKIT_RUN= -e ^CREWKIT_TREE= | sed 's/^/BREACH /'")]),
    // The server's own API, by TCP.
    attack("connect to the server", &[Py("
connect(('127.0.0.1', %port%)); connect(('127.1.2.3', %port%)); connect(('0.0.0.0', %port%)); connect(('127.0.0.2', %port%))
connect(('localhost', %port%))
")]),
    attack("connect to the server by IPv6", &[Py("
for address in ('::1', '::ffff:127.0.0.1', '::', '::ffff:0.0.0.0', '::ffff:127.0.0.2'): connect((address, %port%, 0, 0), socket.AF_INET6)
")]),
    attack("ask the server for another agent", &[Sh("curl -s -m 5 http://127.0.0.1:%port%/api/health && echo BREACH; curl -s -m 5 -X POST -H 'content-type: application/json' -d '{\"contract\": \"x\", \"workdir\": \"%outside%\"}' http://localhost:%port%/api/ops/agent_start && echo BREACH; bash -c 'exec 3<>/dev/tcp/127.0.0.1/%port% && echo BREACH'")]),
    attack("connect to the server by other protocols", &[Py("
for family in (socket.AF_INET, socket.AF_INET6):
    for kind, protocol in ((1, 262), (1, 132), (5, 0), (5, 132), (1, 256), (6, 33), (3, 6), (3, 255), (2, 136), (10, 3)):
        must_be_forbidden(('socket', family, kind, protocol), call(41 if x86 else 198, int(family), kind, protocol))
for family in (0, 3, 4, 5, 8, 9, 17, 21, 26, 29, 30, 31, 32, 37, 38, 40, 41, 42, 43, 44, 45):
    for kind in (1, 2, 3, 5):
        must_be_forbidden(('socket', family, kind), call(41 if x86 else 198, family, kind, 0))
for protocol in (9, 10, 12, 15, 16):
    must_be_forbidden(('netlink', protocol), call(41 if x86 else 198, 16, 3, protocol))
")]),
    attack("connect to the server with the first data", &[Py("
FASTOPEN = 0x20000000
for family, address in ((socket.AF_INET, ('127.0.0.1', %port%)), (socket.AF_INET6, ('::ffff:127.0.0.1', %port%))):
    connection = socket.socket(family, socket.SOCK_STREAM)
    forbids('sendto', connection.sendto, b'GET / HTTP/1.0\\r\\n\\r\\n', FASTOPEN, address)
    forbids('sendmsg', connection.sendmsg, [b'GET / HTTP/1.0\\r\\n\\r\\n'], [], FASTOPEN, address)
    message = ctypes.create_string_buffer(64)
    must_be_forbidden('sendmmsg', call(307 if x86 else 269, connection.fileno(), message, 1, FASTOPEN))
    forbids('another protocol', connection.setsockopt, socket.IPPROTO_TCP, 31, b'smc')
    connection.setsockopt(socket.IPPROTO_TCP, 30, 1)
    if connection.connect_ex(address) != errno.EACCES: breach('later')
")]),
    attack("make calls where no filter looks", &[Py("
must_be_forbidden('ring', call('io_uring_setup', 4, ctypes.create_string_buffer(120)))
if x86:
    for number in (41, 425, 16, 250, 302, 514, 518, 541):
        outcome = call(0x40000000 | number, 2, 1, 6)
        if outcome[1] != errno.ENOSYS: breach('x32', number, outcome)
")]),
    attack("make calls of 32-bit programs", &[Py("
if x86 and os.fork() == 0:
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(b'\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3')  # getpid
    code = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    breach('32-bit', code())
    os._exit(0)
if x86: os.wait()
")]),
    // Unix sockets.
    attack("ask the server by its socket", &[Sh("curl -s -m 5 --unix-socket %home%/run/server.sock http://localhost/api/health && echo BREACH; cat %home%/run/server.json && echo BREACH")]),
    with_sockets("ask the server by its socket, which is in reach", &[Sh("for path in metrics api/agents api/ops/agent_status api/ops/agent_start mcp; do for way in '' 'env -i PATH=/usr/bin:/bin setsid --wait'; do code=$($way curl -s -m 5 -o /dev/null -w '%{http_code}' --unix-socket %home%/run/server.sock -H 'content-type: application/json' -d '{\"contract\": \"x\", \"agent_ids\": []}' http://localhost/$path); [ \"$code\" = 403 ] || echo BREACH $path $code; done; done")]),
    attack("talk to another program's socket", &[Py("
for kind in (1, 2, 5):
    must_be_forbidden(('socket', kind), call(41 if x86 else 198, 1, kind, 0))
for path in ('%outside%/docker.sock', '%work%/docker.sock', '\\0%outside%/abstract'):
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM); connection.connect(path); connection.send(b'BREACH'); breach(path)
    except OSError: pass
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); connection.sendto(b'BREACH', path + '.datagram'); breach(path)
    except OSError: pass
")]),
    attack("talk to another program's socket with half of a pair", &[Py("
for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):
    try:
        one, other = socket.socketpair(socket.AF_UNIX, kind)
        one.sendto(b'BREACH', '%work%/docker.sock.datagram'); breach('sent')
    except OSError: pass
for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
    one, other = socket.socketpair(socket.AF_UNIX, kind)
    refuses('connect', one.connect, '%work%/docker.sock')
    try: one.sendto(b'BREACH', '%work%/docker.sock')  # may go to the other half
    except OSError: pass
")]),
    // Powers.
    attack("mount another world", &[Sh("unshare -Ur true; for how in 'unshare -m' 'unshare -Urm'; do $how sh -c 'mount --bind %outside% %work% && cat canary; mount -t tmpfs none %work% && echo BREACH mounted; mount -t proc none %work% && echo BREACH mounted'; done; unshare -Urpf --mount-proc cat /proc/1/environ; chroot / cat %outside%/canary; unshare -Ur chroot / cat %outside%/canary; nsenter -t %pid% -m -p cat %outside%/canary")]),
    attack("keep powers", &[Py("
if libc.prctl(39, 0, 0, 0, 0) != 1: breach('new privileges')
header, data = struct.pack('II', 0x20080522, 0), ctypes.create_string_buffer(24)
call('capget', ctypes.c_char_p(header), data)
low, permitted, _, high, _, _ = struct.unpack('6I', data.raw)
kept = {0, 1, 3, 4, 6, 7, 10}
for number in range(64):
    if ((low | permitted) if number < 32 else high) >> (number % 32) & 1 and number not in kept: breach('capability', number)
")]),
    attack("become root", &[Sh("sudo -n cat %outside%/canary; su -c 'cat %outside%/canary' < /dev/null; cp /bin/sh mine; chmod 6755 mine; ./mine -p -c 'cat %outside%/canary'")]),
    attack("use the keys of the user", &[Py("
must_be_forbidden('add_key', call('add_key', b'user', b'crewkit-test', b'x', 1, -4))
must_be_forbidden('keyctl', call('keyctl', 0, -4, 0))
")]),
    attack("open a file by its handle", &[Py("
handle, mount = ctypes.create_string_buffer(struct.pack('II', 128, 0) + bytes(128)), ctypes.c_int()
if call('name_to_handle_at', -100, b'%outside%/canary', handle, ctypes.byref(mount), 0)[0] == 0:
    opened = call('open_by_handle_at', os.open('.', os.O_RDONLY), handle, 0)
    if opened[0] >= 0: breach(os.read(opened[0], 99))
")]),
    attack("change the kernel's settings", &[Py("
for path in ('/proc/sys/kernel/hostname', '/proc/sys/kernel/core_pattern', '/proc/sys/vm/drop_caches', '/sys/fs/cgroup/cgroup.procs', '/sys/kernel/uevent_helper', '/proc/self/oom_score_adj', '/etc/passwd', '/usr/bin/env'):
    refuses(path, os.open, path, os.O_WRONLY)
")]),
    // Without the network.
    offline("reach anything without the network", &[Py("
for family in range(46):
    for kind in (1, 2, 3, 5):
        must_be_forbidden(('socket', family, kind), call(41 if x86 else 198, family, kind, 0))
must_be_forbidden('ring', call('io_uring_setup', 4, ctypes.create_string_buffer(120)))
one, other = socket.socketpair()
one.send(b'x')
if other.recv(1) != b'x': breach('pairs do not work')
")]),
    offline("reach the server without the network", &[Sh("curl -s -m 5 http://127.0.0.1:%port%/api/health && echo BREACH; bash -c 'exec 3<>/dev/tcp/127.0.0.1/%port% && echo BREACH'")]),
];
