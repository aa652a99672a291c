//! The shim: holds one child, keeps what it prints, ends it with everything it started, and says how it ended.
//!
//! It is one thread that waits; hundreds of them must cost next to nothing.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::WaitOptions;

use super::{Ending, Exit, Files, Identity, MARK_TASK, Order, private_file, read_whole, write_whole};
use crate::sys::process::{ProcessId, kill_descendants, kill_marked, terminate_descendants};

/// How long output may still arrive once every process is gone.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// How often the child is looked at where the system cannot tell of its end.
const LOOK: Duration = Duration::from_millis(200);
/// How long a shim that has orders may wait for the end of processes that were killed.
const MOURNING: Duration = Duration::from_secs(5);

/// Carries out the order in `dir`. Writes a line to `ready` once the child runs or has failed to.
///
/// Everything the shim inherits (environment, limits) its child inherits too.
pub fn run(dir: &Path, ready: &mut dyn Write, now_ms: fn() -> u64) -> io::Result<()> {
    become_reaper();
    close_inherited();
    let files = Files::in_dir(dir);
    let order: Order = read_whole(&files.order())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "there is no order in the directory"))?;
    let control = open_control(&files)?;
    let child = match start(&order, &files) {
        Ok(child) => child,
        Err(error) => {
            let program = order.command.first().map_or("", String::as_str);
            let how = format!("{program}: {error}");
            let exit = Exit { ending: Ending::NotStarted, code: None, how, at_ms: now_ms(), leftovers: 0 };
            write_whole(&files.exit(), &exit)?;
            return writeln!(ready, "failed");
        }
    };
    let mut holder = Holder::new(order, &files, child)?;
    let me = ProcessId::of(std::process::id()).unwrap_or(ProcessId {
        pid: std::process::id(),
        start: 0,
        boot: String::new(),
    });
    write_whole(&files.identity(), &Identity { shim: me, child: holder.child.id() })?;
    // A server that died meanwhile does not hear it; it will find the file.
    let _ = writeln!(ready, "ready").and_then(|()| ready.flush());
    let (ending, status) = holder.hold(control.as_ref());
    let leftovers = holder.end_tree();
    let status = status.or_else(|| holder.child.wait().ok());
    holder.last_words();
    let exit = Exit {
        ending,
        code: status.and_then(|status| status.code()),
        how: status.map_or_else(|| "an unknown end".to_owned(), describe),
        at_ms: now_ms(),
        leftovers,
    };
    write_whole(&files.exit(), &exit)
}

fn describe(status: ExitStatus) -> String {
    status.to_string().replace("exit status:", "exit code").replace("signal:", "killed by signal")
}

/// Leaves the server's session, and becomes the parent of whatever loses its own below us.
fn become_reaper() {
    // A process that leads a group already cannot; it is in a session of its own then.
    let _ = rustix::process::setsid();
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
}

/// Closes what came from whoever started the server, so that the child gets its three streams and nothing else.
fn close_inherited() {
    let listed = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let open: Vec<i32> =
        listed.filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse().ok())).collect();
    for number in open.into_iter().filter(|number| *number > 2) {
        // The list itself was open while it was read, and is closed by now.
        let _ = nix::unistd::close(number);
    }
}

fn start(order: &Order, files: &Files) -> io::Result<Child> {
    let (program, arguments) = order.command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let stdin = match File::open(files.stdin()) {
        Ok(file) => Stdio::from(file),
        Err(_) => Stdio::null(),
    };
    let mut command = Command::new(program);
    command.args(arguments).current_dir(&order.directory).env(MARK_TASK, &order.task);
    command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    command.spawn()
}

/// The pipe orders arrive at. It is opened for writing too, so that it never reports an end.
#[cfg(target_os = "linux")]
fn open_control(files: &Files) -> io::Result<Option<OwnedFd>> {
    use rustix::fs::{CWD, Mode, OFlags, mkfifoat, open};
    let path = files.control();
    let mode = Mode::RUSR | Mode::WUSR;
    match mkfifoat(CWD, &path, mode) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(Some(open(&path, OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, mode)?))
}

/// Where pipes cannot be made by name, an ordinary file is looked for instead.
#[cfg(not(target_os = "linux"))]
fn open_control(_: &Files) -> io::Result<Option<OwnedFd>> {
    Ok(None)
}

/// One stream of the child and the file it goes to.
struct Stream {
    pipe: Option<OwnedFd>,
    file: File,
    room: u64,
}

impl Stream {
    /// Takes what is there; false when there will be no more.
    fn take(&mut self) -> bool {
        let Some(pipe) = &self.pipe else { return false };
        let mut buffer = [0; 16 * 1024];
        match rustix::io::read(pipe, &mut buffer) {
            Ok(0) => self.pipe = None,
            Ok(length) => self.keep(&buffer[..length]),
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
            Err(_) => self.pipe = None,
        }
        self.pipe.is_some()
    }

    fn keep(&mut self, bytes: &[u8]) {
        let fits = usize::try_from(self.room).unwrap_or(usize::MAX).min(bytes.len());
        // A disk that is full must not end the agent; what is missing is missing.
        let _ = self.file.write_all(&bytes[..fits]);
        if fits < bytes.len() && self.room > 0 {
            let _ = self.file.write_all(b"\n[crewkit: the rest of the output was dropped]\n");
        }
        self.room -= fits as u64;
        if fits < bytes.len() {
            self.room = 0;
        }
    }
}

struct Holder {
    order: Order,
    stop_file: std::path::PathBuf,
    child: Child,
    streams: [Stream; 2],
}

impl Holder {
    fn new(order: Order, files: &Files, mut child: Child) -> io::Result<Self> {
        let stream = |pipe: Option<OwnedFd>, path| {
            Ok::<_, io::Error>(Stream { pipe, file: private_file(path)?, room: order.output_bytes })
        };
        let streams = [
            stream(child.stdout.take().map(OwnedFd::from), &files.stdout())?,
            stream(child.stderr.take().map(OwnedFd::from), &files.stderr())?,
        ];
        Ok(Self { stop_file: files.control(), order, child, streams })
    }

    /// Waits until the child has ended, or has to be ended. Tells how, and with which status if it is known already.
    fn hold(&mut self, control: Option<&OwnedFd>) -> (Ending, Option<ExitStatus>) {
        let began = Instant::now();
        let time_is_over = (self.order.seconds > 0).then(|| began + Duration::from_secs(self.order.seconds));
        let mut asked: Option<(Ending, Instant)> = None;
        let end_of_child = watch(&self.child);
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return (asked.map_or(Ending::Exited, |(ending, _)| ending), Some(status));
            }
            let now = Instant::now();
            match asked {
                Some((ending, kill_at)) if now >= kill_at => return (ending, None),
                None if time_is_over.is_some_and(|over| now >= over) => {
                    asked = Some(self.ask(Ending::OutOfTime));
                }
                None if self.is_told_to_stop(control) => asked = Some(self.ask(Ending::Stopped)),
                _ => {}
            }
            let next = asked.map(|(_, kill_at)| kill_at).or(time_is_over);
            let mut pause = next.map(|at| at.saturating_duration_since(Instant::now()));
            if end_of_child.is_none() || control.is_none() {
                pause = Some(pause.map_or(LOOK, |pause| pause.min(LOOK)));
            }
            self.listen(end_of_child.as_ref().map(AsFd::as_fd), control.map(AsFd::as_fd), pause);
            self.collect();
        }
    }

    /// Asks the child, and everything below it, to end; says when it will be killed.
    fn ask(&self, ending: Ending) -> (Ending, Instant) {
        if let Some(group) = pid(self.child.id()) {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::TERM);
        }
        terminate_descendants(std::process::id());
        (ending, Instant::now() + Duration::from_millis(self.order.grace_ms))
    }

    fn is_told_to_stop(&self, control: Option<&OwnedFd>) -> bool {
        match control {
            Some(control) => rustix::io::read(control, &mut [0; 64]).is_ok_and(|length| length > 0),
            None => self.stop_file.exists(),
        }
    }

    /// Waits for output, orders or the end, and takes the output.
    fn listen(
        &mut self,
        end: Option<BorrowedFd<'_>>,
        control: Option<BorrowedFd<'_>>,
        pause: Option<Duration>,
    ) {
        let pipes = self.streams.iter().map(|stream| stream.pipe.as_ref().map(AsFd::as_fd));
        let sources: Vec<Option<BorrowedFd<'_>>> = pipes.chain([end, control]).collect();
        let mut waiting: Vec<PollFd<'_>> =
            sources.iter().flatten().map(|source| PollFd::from_borrowed_fd(*source, PollFlags::IN)).collect();
        let pause = pause.and_then(|pause| Timespec::try_from(pause).ok());
        let found = poll(&mut waiting, pause.as_ref());
        if !found.is_ok_and(|found| found > 0) {
            return;
        }
        let mut happened = waiting.iter().map(|fd| !fd.revents().is_empty());
        let spoke: Vec<bool> = sources
            .iter()
            .take(2)
            .map(|source| source.is_some() && happened.next().unwrap_or(false))
            .collect();
        for (stream, _) in self.streams.iter_mut().zip(spoke).filter(|(_, spoke)| *spoke) {
            stream.take();
        }
    }

    /// Collects processes that have ended below us; the child itself is left to be asked for.
    fn collect(&self) {
        // Waiting for anyone would take the child's status away from us, so only strangers are waited for.
        for stranger in strangers(self.child.id()) {
            if let Some(stranger) = pid(stranger) {
                let _ = rustix::process::waitpid(Some(stranger), WaitOptions::NOHANG);
            }
        }
    }

    /// Kills what is left: the child's group, everything below us, everything that carries the task's mark.
    fn end_tree(&mut self) -> usize {
        let own = std::process::id();
        let mark = format!("{MARK_TASK}={}", self.order.task);
        let mut killed = 0;
        let patience = Instant::now() + MOURNING;
        loop {
            if let Some(group) = pid(self.child.id()) {
                let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            }
            let round = kill_descendants(own) + kill_marked(&mark, Some(own));
            killed += round;
            let _ = self.child.try_wait();
            self.collect();
            if round == 0 || Instant::now() >= patience {
                return killed;
            }
        }
    }

    /// Reads what is still in the pipes.
    fn last_words(&mut self) {
        let until = Instant::now() + LAST_WORDS;
        while self.streams.iter().any(|stream| stream.pipe.is_some()) && Instant::now() < until {
            self.listen(None, None, Some(until.saturating_duration_since(Instant::now())));
        }
    }
}

/// A handle that becomes readable when the child has ended.
fn watch(child: &Child) -> Option<OwnedFd> {
    #[cfg(target_os = "linux")]
    return rustix::process::pidfd_open(pid(child.id())?, rustix::process::PidfdFlags::empty()).ok();
    #[cfg(not(target_os = "linux"))]
    {
        let _ = child;
        None
    }
}

fn pid(number: u32) -> Option<rustix::process::Pid> {
    i32::try_from(number).ok().and_then(rustix::process::Pid::from_raw)
}

/// Our children other than `child`: those we have adopted.
fn strangers(child: u32) -> Vec<u32> {
    let own = std::process::id();
    let mut text = String::new();
    let listed = File::open(format!("/proc/{own}/task/{own}/children"))
        .and_then(|mut file| file.read_to_string(&mut text));
    if listed.is_err() {
        return Vec::new();
    }
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).filter(|pid| *pid != child).collect()
}
