//! An agent that attacks: the server, its home, the files and processes of its user, and those who open its repository.
//!
//! A scripted model plays the agent in a real `crewkit serve`. What it tries is data (`hostile/attacks.rs`); what must not happen is
//! the same for all: no secret is read, nothing outside is changed, no process is left, nobody outside is spoken to, the
//! server lives.

mod attacks;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crewkit_testkit::model::{Request, ScriptedModel, Turn};
use crewkit_testkit::pty::Pty;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Served, crewkit, output};
use attacks::{ATTACKS, Attack, Call, KIT, Where};

/// Long enough for any machine; only a hang reaches it.
const PATIENCE: Duration = Duration::from_mins(2);
/// Secrets in the environment of the server.
const SECRETS: [(&str, &str); 5] = [
    ("LLM_API_KEY", "secret-llm-key"),
    ("CODER_SESSION_TOKEN", "secret-coder-token"),
    ("CREWKIT_FLEET_CODER_TOKEN_FILE", "secret-crewkit-setting"),
    ("ANTHROPIC_API_KEY", "secret-anthropic-key"),
    ("AWS_SECRET_ACCESS_KEY", "secret-aws-key"),
];
/// What is in files outside.
const CANARY: &str = "secret-in-a-file";

/// Whether commands can be confined and attacked here; says loudly when not.
#[expect(clippy::print_stderr, reason = "what was not tried must be seen")]
fn can_attack() -> bool {
    let has = |program: &str| Command::new(program).arg("--version").output().is_ok();
    for program in ["python3", "setsid", "curl", "unshare", "bash"] {
        if !has(program) {
            eprintln!("NOT TRIED: `{program}` is not on this machine, so the hostile agent cannot use it");
        }
    }
    if !crewkit_agent::confine::available() {
        eprintln!("NOT TRIED: this kernel has no Landlock, so there are no confined commands to attack from");
        return false;
    }
    has("python3") && has("setsid")
}

/// What the model is told to play, and what it saw.
#[derive(Default)]
struct Stage {
    scripts: Mutex<BTreeMap<String, Vec<(String, Value)>>>,
    results: Mutex<BTreeMap<String, Vec<String>>>,
}

impl Stage {
    fn turn(&self, request: &Request) -> Turn {
        let messages = request.body["messages"].as_array().cloned().unwrap_or_default();
        let contract = messages.iter().find(|message| message["role"] == "user");
        let text = contract.map(|message| message["content"].to_string()).unwrap_or_default();
        let scripts = self.scripts.lock().unwrap();
        let Some((name, calls)) = scripts.iter().find(|(name, _)| text.contains(name.as_str())) else {
            return Turn::complete("there is no script");
        };
        let heard = messages.iter().filter(|message| message["role"] == "tool");
        let heard = heard.map(|message| message["content"].as_str().unwrap_or_default().to_owned()).collect();
        self.results.lock().unwrap().insert(name.clone(), heard);
        match calls.get(request.turn) {
            Some((tool, arguments)) => Turn::call(tool, arguments),
            None => Turn::complete("done"),
        }
    }
}

/// A server with an agent that follows scripts, and a world around it that is not the agent's.
struct Range {
    served: Served,
    home: TempDir,
    outside: TempDir,
    work: TempDir,
    stage: Arc<Stage>,
    _model: ScriptedModel,
    terminal: Pty,
    abroad: Vec<Listener>,
}

impl Drop for Range {
    fn drop(&mut self) {
        // Drivers outlive a server that is killed; those of a test end with it.
        let _ = self.served.child.kill();
        let _ = self.served.child.wait();
        let _ = crewkit(self.home.path()).args(["stop", "--yes"]).output();
    }
}

/// Somebody who must not be spoken to.
enum Listener {
    Stream(UnixListener),
    Datagram(UnixDatagram),
}

impl Listener {
    fn pair(path: &Path) -> [Self; 2] {
        let datagram = format!("{}.datagram", path.display());
        [
            Self::Stream(UnixListener::bind(path).unwrap()),
            Self::Datagram(UnixDatagram::bind(datagram).unwrap()),
        ]
    }

    fn abstract_pair(name: &str) -> [Self; 2] {
        use std::os::linux::net::SocketAddrExt as _;
        use std::os::unix::net::SocketAddr;
        let address = |name: &str| SocketAddr::from_abstract_name(name).unwrap();
        [
            Self::Stream(UnixListener::bind_addr(&address(name)).unwrap()),
            Self::Datagram(UnixDatagram::bind_addr(&address(&format!("{name}.datagram"))).unwrap()),
        ]
    }

    fn was_spoken_to(&self) -> bool {
        match self {
            Self::Stream(listener) => {
                listener.set_nonblocking(true).unwrap();
                listener.accept().is_ok()
            }
            Self::Datagram(socket) => {
                socket.set_nonblocking(true).unwrap();
                socket.recv(&mut [0; 64]).is_ok()
            }
        }
    }
}

impl Range {
    async fn new(place: Where) -> Self {
        let stage = Arc::new(Stage::default());
        let played = Arc::clone(&stage);
        let model = ScriptedModel::start(move |request| played.turn(request)).await;
        let home = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("canary"), CANARY).unwrap();
        std::fs::create_dir_all(outside.path().join("repo/.git/worktrees/w")).unwrap();
        std::fs::write(outside.path().join("repo/.git/config"), "[core]\n\tbare = false\n").unwrap();
        let mut abroad: Vec<Listener> = Listener::pair(&outside.path().join("docker.sock")).into();
        abroad.extend(Listener::abstract_pair(&format!("{}/abstract", outside.path().display())));
        let (network, sockets) = (place != Where::Offline, place == Where::Sockets);
        let settings = format!(
            "# {CANARY}\n[limits]\nagent_identical_calls_stop = 0\ndriver_stop_grace_seconds = 1\n\
             [llm]\nendpoint = \"{}\"\nmodel = \"scripted\"\n[agents]\ncommands_network = {network}\ncommands_unix_sockets = {sockets}\n\
             [agents.drivers.shell]\ncommand = [\"sh\", \"-c\", \"{{contract}}\"]\n",
            model.url()
        );
        std::fs::write(home.path().join("crewkit.toml"), settings).unwrap();
        let (served, terminal) = serve(home.path(), &outside.path().join("canary"));
        let work = tempfile::tempdir().unwrap();
        Self { served, home, outside, work, stage, _model: model, terminal, abroad }
    }

    fn fill(&self, text: &str, work: &Path) -> String {
        let port = self.served.base.rsplit(':').next().unwrap();
        let values = [
            ("%outside%", self.outside.path().display().to_string()),
            ("%home%", self.home.path().display().to_string()),
            ("%work%", work.display().to_string()),
            ("%port%", port.to_owned()),
            ("%pid%", self.served.child.id().to_string()),
            ("%crewkit%", env!("CARGO_BIN_EXE_crewkit").to_owned()),
        ];
        values.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
    }

    async fn ask(&self, operation: &str, arguments: Value) -> Value {
        let url = format!("{}/api/ops/{operation}", self.served.base);
        let client = crewkit_agent::http_client().build().unwrap();
        client.post(url).json(&arguments).send().await.unwrap().json().await.unwrap()
    }

    async fn start(&self, contract: &str, work: &Path, driver: &str) -> String {
        let arguments = json!({"contract": contract, "workdir": work, "driver": driver});
        let started = self.ask("agent_start", arguments).await;
        started["agent_id"].as_str().unwrap_or_else(|| panic!("{started}")).to_owned()
    }

    async fn end_of(&self, id: &str) -> Value {
        let waited =
            self.ask("agent_wait", json!({"agent_ids": [id], "timeout_seconds": PATIENCE.as_secs()})).await;
        assert_eq!(waited["done"], true, "the agent did not end: {waited}");
        waited
    }

    /// Lets the agent do `calls` and returns what it heard.
    async fn play(&self, name: &str, work: &Path, calls: Vec<(String, Value)>) -> Vec<String> {
        let count = calls.len();
        self.stage.scripts.lock().unwrap().insert(name.to_owned(), calls);
        let id = self.start(name, work, "loop").await;
        let ended = self.end_of(&id).await;
        let heard = self.stage.results.lock().unwrap().remove(name).unwrap_or_default();
        assert_eq!(heard.len(), count, "{name}: the script was not played: {ended}");
        heard
    }

    /// Tries one attack and says what went wrong.
    async fn try_attack(&self, number: usize, attack: &Attack) -> Vec<String> {
        let work = self.work.path().join(number.to_string());
        std::fs::create_dir(&work).unwrap();
        std::fs::write(work.join("kit.py"), KIT).unwrap();
        let near = Listener::pair(&work.join("docker.sock"));
        let before = snapshot(self.outside.path());
        let calls = attack.calls.iter().map(|call| self.tool_call(call, &work)).collect();
        let heard = self.play(&format!("attack-{number}-"), &work, calls).await;
        let mut wrong = Vec::new();
        for (call, text) in attack.calls.iter().zip(&heard) {
            if matches!(call, Call::Sh(_) | Call::Py(_)) && !text.contains("TRIED") {
                wrong.push(format!("it was not tried: {}", cut(text)));
            }
            let secrets = SECRETS.iter().map(|(_, value)| *value).chain([CANARY]);
            for found in secrets.chain(["BREACH"]).filter(|word| text.contains(word)) {
                wrong.push(format!("{found} in the answer: {}", cut(text)));
            }
        }
        if snapshot(self.outside.path()) != before {
            wrong.push("something outside was changed".to_owned());
        }
        wrong.extend(processes_in(&work).iter().map(|process| format!("still there: {process}")));
        // A process that is too quick to be seen still holds what it locked.
        if std::fs::File::open(work.join("alive")).is_ok_and(|file| file.try_lock().is_err()) {
            wrong.push("still there: somebody holds the lock".to_owned());
        }
        let spoken = self.abroad.iter().chain(&near).filter(|listener| listener.was_spoken_to()).count();
        if spoken > 0 {
            wrong.push("somebody else's socket was spoken to".to_owned());
        }
        let health = reqwest_get(&format!("{}/api/health", self.served.base)).await;
        if health["status"] != "ok" {
            wrong.push(format!("the server does not answer: {health}"));
        }
        wrong
    }

    fn tool_call(&self, call: &Call, work: &Path) -> (String, Value) {
        let helper = "export HELPER=$PPID";
        let command = |text: String, seconds: u64| {
            ("run_command".to_owned(), json!({"command": text, "timeout_seconds": seconds}))
        };
        match call {
            Call::Sh(text) => command(format!("{helper}; {}; echo TRIED", self.fill(text, work)), 60),
            Call::Py(text) => {
                let text = self.fill(text, work);
                let program = format!("from kit import *\n{text}\nprint('TRIED')");
                command(format!("{helper}\npython3 - <<'END-OF-PROGRAM'\n{program}\nEND-OF-PROGRAM\n"), 60)
            }
            Call::Endless(text) => command(self.fill(text, work), 1),
            Call::Tool(name, arguments) => {
                ((*name).to_owned(), serde_json::from_str(&self.fill(arguments, work)).unwrap())
            }
        }
    }
}

async fn reqwest_get(url: &str) -> Value {
    let answer = crewkit_agent::http_client().build().unwrap().get(url).send().await;
    match answer {
        Ok(answer) => answer.json().await.unwrap_or_default(),
        Err(error) => json!(error.to_string()),
    }
}

/// Starts a server that leads a session with a terminal, has secrets in its environment and a file open that it does not know of.
fn serve(home: &Path, secret: &Path) -> (Served, Pty) {
    let terminal = Pty::open().unwrap();
    let server = crewkit(home);
    let mut command = Command::new("setsid");
    command.env_clear().envs(server.get_envs().filter_map(|(name, value)| Some((name, value?))));
    // Programs in a home are not in reach of commands.
    command
        .envs(SECRETS)
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .stdin(terminal.side().unwrap())
        .current_dir(home);
    let line = format!("exec 9< {} 200< /; exec \"$0\" serve --listen 127.0.0.1:0", secret.display());
    command.args(["--ctty", "bash", "-c", &line]).arg(server.get_program());
    (Served::spawn(command), terminal)
}

/// Everything below a directory: name, mode, contents.
fn snapshot(directory: &Path) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut open = vec![directory.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let (path, metadata) = (entry.path(), entry.metadata().unwrap());
            if metadata.is_dir() {
                open.push(path.clone());
            }
            let contents =
                if metadata.is_file() { std::fs::read(&path).unwrap_or_default() } else { Vec::new() };
            found.insert(path, (metadata.permissions().mode(), contents));
        }
    }
    found
}

/// Processes that work in a directory or name it.
fn processes_in(directory: &Path) -> Vec<String> {
    let own = std::process::id().to_string();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name == own || name.parse::<u32>().is_err() {
            continue;
        }
        let there =
            std::fs::read_link(entry.path().join("cwd")).is_ok_and(|path| path.starts_with(directory));
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if there || line.contains(&*directory.to_string_lossy()) {
            found.push(format!("{name} {}", cut(&line)));
        }
    }
    found
}

fn cut(text: &str) -> String {
    text.chars().take(300).collect()
}

async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("never happened: {what}"));
}

async fn no_attack_gets_through(place: Where) {
    if !can_attack() {
        return;
    }
    let range = Range::new(place).await;
    let mut wrong = Vec::new();
    for (number, attack) in ATTACKS.iter().enumerate().filter(|(_, attack)| attack.place == place) {
        let found = range.try_attack(number, attack).await;
        wrong.extend(found.into_iter().map(|what| format!("{}: {what}", attack.name)));
    }
    // What was typed into the terminal would be echoed there.
    assert!(!screen_of(&range.terminal).contains('x'), "somebody typed into the terminal of the server");
    assert!(wrong.is_empty(), "{} things went wrong:\n{}", wrong.len(), wrong.join("\n"));
}

fn screen_of(terminal: &Pty) -> String {
    use rustix::event::{PollFd, PollFlags, poll};
    let mut shown = Vec::new();
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    while poll(&mut [PollFd::new(&terminal.screen, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0) {
        let mut buffer = [0; 1024];
        match rustix::io::read(&terminal.screen, &mut buffer) {
            Ok(length) if length > 0 => shown.extend_from_slice(&buffer[..length]),
            _ => break,
        }
    }
    String::from_utf8_lossy(&shown).into_owned()
}

#[test]
fn there_are_many_attacks_and_each_has_a_name() {
    let names: std::collections::BTreeSet<&str> = ATTACKS.iter().map(|attack| attack.name).collect();
    assert_eq!(names.len(), ATTACKS.len());
    assert!(names.len() >= 30, "{}", names.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_attack_gets_out_of_the_sandbox() {
    no_attack_gets_through(Where::Default).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_attack_gets_out_without_the_network() {
    no_attack_gets_through(Where::Offline).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_attack_gets_out_with_unix_sockets() {
    no_attack_gets_through(Where::Sockets).await;
}

/// Root is let through where an ordinary user is not, and the other way round: so the attacks are tried by both.
#[test]
fn no_attack_gets_out_for_an_ordinary_user() {
    const NOBODY: &str = "65534";
    if !rustix::process::geteuid().is_root() {
        eprintln!("NOT TRIED a second time: the tests are run by an ordinary user already");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(directory.path(), Some(65534), Some(65534)).unwrap();
    let as_nobody = |program: &Path| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]).arg(program);
        command.env("HOME", directory.path()).env("TMPDIR", directory.path()).current_dir(directory.path());
        command
    };
    let reached = as_nobody(Path::new(env!("CARGO_BIN_EXE_crewkit"))).arg("--version").output();
    if !reached.is_ok_and(|output| output.status.success()) {
        eprintln!(
            "NOT TRIED by an ordinary user: one cannot run the binary where it is, or there is no setpriv"
        );
        return;
    }
    let mut tests = as_nobody(&std::env::current_exe().unwrap());
    tests.args(["--exact", "hostile::no_attack_gets_out_of_the_sandbox", "--nocapture"]);
    let output = tests.output().unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

/// Programs that leave their session, their parents and their environment behind.
const RUNAWAYS: &str = "env -i setsid sleep 97531 & (setsid sh -c 'sleep 97531 & sleep 97531' &); \
                        env -i setsid nohup sleep 97531 > /dev/null 2>&1 < /dev/null &";

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_driver_outlives_its_run() {
    let range = Range::new(Where::Default).await;
    for (number, (script, how)) in [
        (format!("{RUNAWAYS} sleep 0.2; touch ready; exit 0"), "end"),
        (format!("{RUNAWAYS} sleep 0.2; touch ready; exit 3"), "end"),
        (format!("{RUNAWAYS} sleep 0.2; touch ready; sleep 97531"), "agent_stop"),
        // A driver is not confined and can kill what stands above it; its own processes are found by their mark.
        ("setsid sleep 97531 & sleep 97531 & touch ready; kill -9 $PPID; sleep 97531".to_owned(), "end"),
        (format!("trap '' TERM; {RUNAWAYS} sleep 0.2; touch ready; while :; do sleep 1; done"), "agent_stop"),
    ]
    .into_iter()
    .enumerate()
    {
        let work = range.work.path().join(number.to_string());
        std::fs::create_dir(&work).unwrap();
        let id = range.start(&script, &work, "shell").await;
        eventually("the driver is at work", || work.join("ready").exists()).await;
        if how == "agent_stop" {
            assert!(processes_in(&work).len() >= 4, "the runaways are there: {:?}", processes_in(&work));
            range.ask("agent_stop", json!({"agent_id": id})).await;
        }
        range.end_of(&id).await;
        eventually("nothing is left", || processes_in(&work).is_empty()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_leaves_drivers_alone_and_stop_ends_them() {
    let mut range = Range::new(Where::Default).await;
    let work = range.work.path().to_owned();
    let mut ready = vec![work.join("driver/ready")];
    std::fs::create_dir(work.join("driver")).unwrap();
    let script = format!("{RUNAWAYS} sleep 0.2; touch ready; sleep 97531");
    range.start(&script, &work.join("driver"), "shell").await;
    if can_attack() {
        std::fs::create_dir(work.join("loop")).unwrap();
        let call = ("run_command".to_owned(), json!({"command": script, "timeout_seconds": 300}));
        range.stage.scripts.lock().unwrap().insert("stay".to_owned(), vec![call]);
        range.start("stay", &work.join("loop"), "loop").await;
        ready.push(work.join("loop/ready"));
    }
    eventually("all are at work", || ready.iter().all(|file| file.exists())).await;
    assert!(processes_in(&work).len() >= 4);
    range.served.child.kill().unwrap();
    range.served.child.wait().unwrap();
    eventually("nothing is left of the command", || processes_in(&work.join("loop")).is_empty()).await;
    assert!(!processes_in(&work.join("driver")).is_empty(), "the driver is held for the next server");
    let (code, _, err) = output(crewkit(range.home.path()).args(["stop", "--yes"]));
    assert_eq!(code, 0, "{err}");
    eventually("nothing is left", || processes_in(&work).is_empty()).await;
}

/// Whether this process, and with it whatever it starts, ignores a signal.
pub(crate) fn is_ignored(signal: rustix::process::Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim();
    u64::from_str_radix(mask, 16).unwrap() >> (signal.as_raw() - 1) & 1 == 1
}

/// What a command started goes on without it, whatever ends the command, and ends with the server.
#[tokio::test]
async fn nothing_of_a_command_that_is_interrupted_outlives_its_server() {
    use rustix::process::{Pid, Signal, kill_process};
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::KILL] {
        if is_ignored(signal) {
            eprintln!(
                "NOT TRIED: whoever started the tests has {signal:?} ignored, and commands inherit that"
            );
            continue;
        }
        let (home, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let driver = "[agents.drivers.shell]\ncommand = [\"sh\", \"-c\", \"{contract}\"]\n";
        std::fs::write(home.path().join("crewkit.toml"), driver).unwrap();
        let script = format!("{RUNAWAYS} sleep 0.2; touch ready; sleep 97531");
        let mut command = crewkit(home.path());
        command.args(["run", &script, "--driver", "shell", "--dir"]).arg(work.path());
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        eventually("the driver is at work", || work.path().join("ready").exists()).await;
        kill_process(Pid::from_child(&child), signal).unwrap();
        child.wait().unwrap();
        assert!(!processes_in(work.path()).is_empty(), "the run goes on");
        let (code, _, err) = output(crewkit(home.path()).args(["stop", "--yes"]));
        assert_eq!(code, 0, "{err}");
        eventually("nothing is left", || processes_in(work.path()).is_empty()).await;
    }
}

/// The token of an attempt is in the environment of its process and nowhere else.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_known_to_its_process_alone() {
    let range = Range::new(Where::Default).await;
    let script = "env > env.part; mv env.part env; echo said; sleep 97531";
    let id = range.start(script, range.work.path(), "shell").await;
    let file = range.work.path().join("env");
    eventually("the driver told its environment", || file.exists()).await;
    let environment = std::fs::read_to_string(&file).unwrap();
    let value = |name: &str| environment.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    let token = value("CREWKIT_AGENT_TOKEN").unwrap();
    assert_eq!((token.len(), value("CREWKIT_AGENT_ID")), (64, Some(&*id)));
    for (name, secret) in
        SECRETS.iter().filter(|(name, _)| !["ANTHROPIC_API_KEY", "AWS_SECRET_ACCESS_KEY"].contains(name))
    {
        assert!(!environment.contains(secret), "{name} is no driver's business");
    }
    let shown = range.ask("agent_status", json!({"agent_ids": [id]})).await.to_string();
    range.ask("agent_stop", json!({"agent_id": id})).await;
    range.end_of(&id).await;
    let said = range.ask("agent_output", json!({"agent_id": id})).await.to_string();
    assert!(said.contains("said") && !said.contains(token) && !shown.contains(token));
    let written = snapshot(range.home.path());
    let holds = |bytes: &[u8]| bytes.windows(token.len()).any(|part| part == token.as_bytes());
    assert!(!written.values().any(|(_, contents)| holds(contents)), "the token was written to the home");
}

/// An agent whose workspace holds that of another one puts a link in its place: the other one's commands do not follow it.
#[tokio::test(flavor = "multi_thread")]
async fn a_workspace_that_was_replaced_is_not_worked_in() {
    if !can_attack() {
        return;
    }
    let range = Range::new(Where::Default).await;
    let work = range.work.path().join("inner");
    std::fs::create_dir(&work).unwrap();
    let before = snapshot(range.outside.path());
    let (go, outside) = (range.work.path().join("go"), range.outside.path().to_owned());
    // The replacement happens while the agent waits for its first command.
    let first =
        json!({"command": "touch waiting; while [ ! -e go ]; do sleep 0.01; done", "timeout_seconds": 60});
    let then = json!({"command": "pwd; cat canary; touch planted; echo x > %outside%/planted"});
    let write = json!({"path": "planted", "content": "x"});
    let calls = [("run_command", first), ("run_command", then), ("write_file", write)];
    let calls = calls.map(|(name, arguments)| (name.to_owned(), arguments)).to_vec();
    range.stage.scripts.lock().unwrap().insert("replaced".to_owned(), calls);
    let id = range.start("replaced", &work, "loop").await;
    eventually("the first command runs", || work.join("waiting").exists()).await;
    let aside = range.work.path().join("aside");
    std::fs::rename(&work, &aside).unwrap();
    std::os::unix::fs::symlink(&outside, &work).unwrap();
    std::fs::write(aside.join("go"), "").unwrap();
    range.end_of(&id).await;
    let heard = range.stage.results.lock().unwrap().remove("replaced").unwrap();
    assert!(heard[1].contains("moved or replaced") && !heard[1].contains(CANARY), "{heard:?}");
    assert_eq!(snapshot(&outside), before, "nothing outside was changed");
    assert!(aside.join("planted").exists() && !go.exists(), "the tools still work where the run began");
}

/// Whoever opens a repository and asks a question has not asked for its programs to run.
#[test]
fn a_hostile_checkout_runs_nothing() {
    // By itself, and with a relative path in the settings.
    for settings in ["", "[agents]\nmcp_config = \"mcp_config.json\"\n"] {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("crewkit.toml"), settings).unwrap();
        open_hostile_checkout(home.path());
    }
}

fn open_hostile_checkout(home: &Path) {
    let checkout = tempfile::tempdir().unwrap();
    let planted = checkout.path().join("planted");
    let config = |file: &Path| json!({"evil": {"command": "touch", "args": [file]}}).to_string();
    std::fs::write(checkout.path().join("mcp_config.json"), config(&planted)).unwrap();
    std::fs::create_dir(checkout.path().join(".crewkit")).unwrap();
    std::fs::write(checkout.path().join(".crewkit/mcp_config.json"), config(&planted)).unwrap();
    std::fs::write(checkout.path().join("crewkit.toml"), "[agents]\nmcp_config = \"mcp_config.json\"\n")
        .unwrap();
    // The home's own servers are started: only so does the test know that it waited long enough.
    let wanted = home.join("wanted");
    std::fs::write(home.join("mcp_config.json"), config(&wanted)).unwrap();
    let mut command = crewkit(home);
    command.arg("mcp").current_dir(checkout.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let client = json!({"name": "test", "version": "1"});
    for message in [
        json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}}),
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {
            "name": "agent_status", "arguments": {"agent_ids": ["agent-nobody"]}}}),
    ] {
        writeln!(input, "{message}").unwrap();
    }
    let begun = std::time::Instant::now();
    while !wanted.exists() {
        assert!(!planted.exists(), "the checkout's program ran");
        assert!(begun.elapsed() < PATIENCE, "the servers of the home were never started");
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("\"id\":2"), "{output:?}");
    assert!(!planted.exists(), "the checkout's program ran");
}
