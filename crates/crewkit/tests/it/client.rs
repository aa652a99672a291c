//! Clients of a home's server: several at once, servers that go away under them, and signals.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::{PATIENCE, Served, crewkit, output, record, wait_until};

/// Drivers that write `ready` once they work. The stubborn one ignores the request to end, and says so.
pub(crate) const DRIVERS: &str = r#"[agents.drivers.sleeper]
command = ["sh", "-c", "touch ready; exec sleep 1000"]
[agents.drivers.stubborn]
command = ["sh", "-c", "trap 'touch asked' TERM; touch ready; while :; do sleep 0.1; done"]
[agents.drivers.patient]
command = ["sh", "-c", "echo $$ >> pids; echo begun; touch ready; while [ ! -e go ]; do sleep 0.02; done; echo finished"]
"#;

/// The process of the home's server.
pub(crate) fn server(home: &Path) -> Pid {
    let pid = record(home).unwrap()["pid"].as_i64().unwrap();
    Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

pub(crate) fn json_of(home: &Path, arguments: &[&str]) -> Value {
    let (code, out, err) = output(crewkit(home).arg("--json").args(arguments));
    assert_eq!(code, 0, "{arguments:?}: {out} {err}");
    parse(&out)
}

fn status_of(home: &Path, id: &str) -> String {
    json_of(home, &["runs", "show", id])[0]["status"].as_str().unwrap_or_default().to_owned()
}

pub(crate) fn stop(home: &Path) {
    let (code, out, err) = output(crewkit(home).args(["stop", "--yes"]));
    assert_eq!(code, 0, "{out} {err}");
}

/// An MCP client that has started `crewkit mcp`, as an editor does.
pub(crate) struct Window {
    child: Child,
    input: Option<ChildStdin>,
    answers: std::io::Lines<BufReader<ChildStdout>>,
    asked: u64,
    notifications: VecDeque<Value>,
}

impl Window {
    pub(crate) fn open(home: &Path, arguments: &[&str]) -> Self {
        let mut command = crewkit(home);
        command.arg("mcp").args(arguments);
        Self::with(command)
    }

    pub(crate) fn with(mut command: Command) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let input = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut window = Self { child, input, answers, asked: 0, notifications: VecDeque::new() };
        let client = json!({"name": "test", "version": "1"});
        let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client});
        assert!(window.ask("initialize", &hello)["serverInfo"].is_object());
        let input = window.input.as_mut().unwrap();
        writeln!(input, "{}", json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).unwrap();
        window
    }

    pub(crate) fn send(&mut self, method: &str, params: &Value) {
        self.asked += 1;
        let message = json!({"jsonrpc": "2.0", "id": self.asked, "method": method, "params": params});
        writeln!(self.input.as_mut().unwrap(), "{message}").unwrap();
    }

    /// The answer to the last request, whether it is a result or an error.
    pub(crate) fn answer(&mut self) -> Value {
        loop {
            let message = parse(&self.answers.next().unwrap().unwrap());
            if message["id"].is_null() {
                self.notifications.push_back(message);
                continue;
            }
            assert_eq!(message["id"], self.asked, "{message}");
            return message;
        }
    }

    /// The next notification of a kind; others are dropped.
    pub(crate) fn notified(&mut self, method: &str) -> Value {
        loop {
            let next = self.notifications.pop_front();
            let mut message = next.unwrap_or_else(|| parse(&self.answers.next().unwrap().unwrap()));
            assert!(message["id"].is_null(), "{message}");
            if message["method"] == method {
                return message["params"].take();
            }
        }
    }

    fn receive(&mut self) -> Value {
        self.answer()["result"].take()
    }

    pub(crate) fn ask(&mut self, method: &str, params: &Value) -> Value {
        self.send(method, params);
        self.receive()
    }

    fn begin(&mut self, tool: &str, arguments: &Value) {
        self.send("tools/call", &json!({"name": tool, "arguments": arguments}));
    }

    fn end(&mut self) -> Value {
        self.receive()["structuredContent"].take()
    }

    pub(crate) fn call(&mut self, tool: &str, arguments: &Value) -> Value {
        self.begin(tool, arguments);
        self.end()
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Sends signals, or ends the input if there are none. Returns how the process ended.
    pub(crate) fn end_by(mut self, signals: &[Signal]) -> ExitStatus {
        if signals.is_empty() {
            drop(self.input.take());
        }
        for signal in signals {
            kill_process(self.pid(), *signal).unwrap();
        }
        self.child.wait().unwrap()
    }

    fn close(self) -> Option<i32> {
        self.end_by(&[]).code()
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn several_windows_and_serve_share_one_home() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let mut first = Window::open(home, &[]);
    let mut second = Window::open(home, &[]);
    assert!(first.ask("tools/list", &json!({}))["tools"].as_array().unwrap().len() > 20);
    assert!(record(home).is_none(), "nothing so far needs a server");
    let id = first.call("agent_start", &json!({"contract": "tidy up"}))["agent_id"].clone();
    let seen = second.call("agent_wait", &json!({"agent_ids": [id]}));
    assert_eq!(seen["result"][0]["status"], "completed", "{seen}");
    assert_eq!(second.call("list_agents", &json!({}))["total_count"], 0);
    assert_eq!(first.call("list_agents", &json!({}))["total_count"], 0);
    let background = server(home);
    // A person starts a server beside them, which takes over.
    let served = Served::start(home, &[]);
    assert_ne!(server(home), background);
    for window in [&mut first, &mut second] {
        assert_eq!(
            window.call("agent_status", &json!({"agent_ids": [id]}))["result"][0]["status"],
            "completed"
        );
    }
    // It is killed, and the next call starts another.
    drop(served);
    for window in [&mut first, &mut second] {
        assert_eq!(
            window.call("agent_status", &json!({"agent_ids": [id]}))["result"][0]["status"],
            "completed"
        );
    }
    assert_eq!((first.close(), second.close()), (Some(0), Some(0)));
    assert_eq!(json_of(home, &["runs", "list"])["runs"][0]["id"], id);
    stop(home);
}

#[test]
fn a_wait_goes_on_at_the_server_that_takes_over() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    std::fs::write(home.join("crewkit.toml"), DRIVERS).unwrap();
    let mut window = Window::open(home, &[]);
    let patient = json!({"contract": "x", "driver": "patient", "workdir": home});
    let id = window.call("agent_start", &patient)["agent_id"].take();
    wait_until("the run", || home.join("ready").exists());
    window.begin("agent_wait", &json!({"agent_ids": [id], "timeout_seconds": 300}));
    let waiting = window.asked;
    window.call("agent_status", &json!({"agent_ids": [id]}));
    let first = server(home);
    let (code, out, err) = output(crewkit(home).env("CREWKIT_TEST_BUILD", "99.0.0+1").args(["runs", "list"]));
    assert_eq!(code, 0, "{out} {err}");
    assert_ne!(server(home), first);
    std::fs::write(home.join("go"), "").unwrap();
    window.asked = waiting;
    let waited = window.end();
    assert_eq!((&waited["done"], &waited["result"][0]["status"]), (&json!(true), &json!("completed")));
    stop(home);
}

/// A server that reads one operation and goes away without an answer.
struct Vanishing {
    asked: mpsc::Receiver<String>,
}

impl Vanishing {
    /// Takes the place of the server of `home`, which is killed.
    fn replace(home: &Path) -> Self {
        json_of(home, &["runs", "list"]);
        let announced = record(home).unwrap();
        let path = announced["socket"].as_str().unwrap().to_owned();
        kill_process(server(home), Signal::KILL).unwrap();
        let lock = std::fs::OpenOptions::new().write(true).open(home.join("run/server.lock")).unwrap();
        wait_until("the end of the server", || lock.try_lock().is_ok());
        std::fs::remove_file(&path).unwrap();
        let listener = UnixListener::bind(&path).unwrap();
        let (tell, asked) = mpsc::channel();
        std::thread::spawn(move || {
            // Requests may come over several connections; one after the other is enough.
            for stream in listener.incoming() {
                let mut stream = BufReader::new(stream.unwrap());
                while let Some((line, body)) = request(&mut stream) {
                    if line.contains("/api/ops/") {
                        // The next client finds nobody, as after a crash.
                        drop(listener);
                        drop(lock);
                        tell.send(format!("{line} {body}")).unwrap();
                        return;
                    }
                    let answer = json!({"asker": "somebody", "server": {}}).to_string();
                    let length = answer.len();
                    let head = format!(
                        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
                    );
                    stream.get_mut().write_all(format!("{head}{answer}").as_bytes()).unwrap();
                }
            }
        });
        Self { asked }
    }

    /// The operation it was asked for.
    fn asked(self) -> String {
        self.asked.recv_timeout(PATIENCE).unwrap()
    }
}

/// The next request on a connection: its first line and its body.
fn request(stream: &mut impl std::io::BufRead) -> Option<(String, String)> {
    let mut first = String::new();
    let mut length = 0;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if first.is_empty() {
            line.trim().clone_into(&mut first);
        }
        if let Some(text) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = text.trim().parse().unwrap();
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some((first, String::from_utf8(body).unwrap()))
}

#[test]
fn a_server_that_goes_away_under_a_call_costs_at_most_certainty() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let mut window = Window::open(home, &[]);
    let id = window.call("agent_start", &json!({"contract": "tidy up"}))["agent_id"].clone();
    assert_eq!(window.call("agent_wait", &json!({"agent_ids": [id]}))["done"], true);
    let runs = || json_of(home, &["runs", "list"])["runs"].as_array().unwrap().len();

    // A read is repeated.
    let vanishing = Vanishing::replace(home);
    let seen = window.call("agent_status", &json!({"agent_ids": [id]}));
    assert_eq!(seen["result"][0]["status"], "completed", "{seen}");
    assert!(vanishing.asked().contains("agent_status"));

    // So is a call with a key, and it starts one run.
    let vanishing = Vanishing::replace(home);
    let started = window.call("agent_start", &json!({"contract": "once", "key": "mine"}));
    assert!(started["agent_id"].is_string(), "{started}");
    assert!(vanishing.asked().contains("\"key\":\"mine\""));
    assert_eq!(runs(), 2);

    // A start gets a key of its own.
    let vanishing = Vanishing::replace(home);
    let started = window.call("agent_start", &json!({"contract": "twice"}));
    assert!(started["agent_id"].is_string(), "{started}");
    assert!(vanishing.asked().contains("\"key\":\""));
    assert_eq!(runs(), 3);

    // Nobody knows what became of any other call, and the answer says how to find out.
    let vanishing = Vanishing::replace(home);
    let stopped = window.call("agent_stop", &json!({"agent_id": id}));
    assert_eq!(stopped["code"], "E_OUTCOME_UNKNOWN", "{stopped}");
    assert!(stopped["next_step"].as_str().unwrap().contains("agent_status"), "{stopped}");
    assert!(vanishing.asked().contains("agent_stop"));
    let vanishing = Vanishing::replace(home);
    let (code, _, err) = output(crewkit(home).args(["fleet", "restart", "papi"]));
    assert!(code == 1 && err.contains("E_OUTCOME_UNKNOWN") && err.contains("next:"), "{err}");
    assert!(vanishing.asked().contains("restart_agent"));

    // The session is the same all along.
    assert_eq!(window.call("agent_status", &json!({"agent_ids": [id]}))["result"][0]["status"], "completed");
    assert_eq!(window.close(), Some(0));
    stop(home);
}

#[test]
fn a_home_that_is_owned_in_process_is_refused_with_its_owner() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let mut owner = Window::open(home, &["--in-process"]);
    let id = owner.call("agent_start", &json!({"contract": "tidy up"}))["agent_id"].clone();
    assert_eq!(owner.call("agent_wait", &json!({"agent_ids": [id]}))["done"], true);
    let pid = format!("pid {}", owner.child.id());
    for arguments in
        [&["mcp", "--in-process"][..], &["run", "x", "--in-process"], &["runs", "list"], &["stop"]]
    {
        let (code, _, err) = output(crewkit(home).args(arguments).stdin(Stdio::null()));
        assert_eq!(code, 1, "{arguments:?}: {err}");
        assert!(
            err.contains("E_HOME_IN_USE") && err.contains(&pid) && err.contains("since"),
            "{arguments:?}: {err}"
        );
    }
    let (_, status, _) = output(crewkit(home).arg("status"));
    assert!(status.contains(&pid) && status.contains("in-process"), "{status}");
    // Others keep their session and what needs no home; what does says who has it.
    let mut other = Window::open(home, &[]);
    let refused = other.call("agent_status", &json!({"agent_ids": [id]}));
    assert!(refused["error"].as_str().unwrap().contains(&pid), "{refused}");
    assert_eq!(owner.close(), Some(0));
    assert_eq!(other.call("agent_status", &json!({"agent_ids": [id]}))["result"][0]["status"], "completed");
    stop(home);
}

#[test]
fn a_job_of_a_ci_system_leaves_nothing_behind() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let (code, out, err) = output(crewkit(home).env("CI", "true").args(["run", "tidy up"]));
    assert!(code == 0 && out.starts_with("Rehearsal only"), "{out} {err}");
    assert!(record(home).is_none(), "no server is left");
    let mut command = crewkit(home);
    command.env("CI", "true").arg("mcp");
    let mut window = Window::with(command);
    assert_eq!(window.call("list_agents", &json!({}))["total_count"], 0);
    assert_eq!(server(home), window.pid(), "the window owns the home");
    assert_eq!(window.end_by(&[Signal::TERM]).code(), Some(0), "a signal ends it in good order");
    assert!(record(home).is_none());
}

/// A command that is followed, and what it says on standard error.
pub(crate) struct Followed {
    pub(crate) child: Child,
    said: mpsc::Receiver<String>,
}

impl Followed {
    fn run(home: &Path, work: &Path, driver: &str) -> Self {
        Self::with(crewkit(home), work, driver)
    }

    /// Starts `command`, which is `crewkit` as it is to be run, with a run whose driver works by the time this returns.
    pub(crate) fn with(mut command: Command, work: &Path, driver: &str) -> Self {
        command.args(["run", "sleep", "--driver", driver, "--dir"]).arg(work);
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (tell, said) = mpsc::channel();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| tell.send(line)));
        wait_until("the driver works", || work.join("ready").exists());
        Self { child, said }
    }

    pub(crate) fn says(&self, part: &str) -> String {
        loop {
            let line = self.said.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("it never says {part:?}"));
            if line.contains(part) {
                return line;
            }
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

#[test]
fn ctrl_c_leaves_a_run_working_and_a_second_one_stops_it() {
    let (home, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let home = home.path();
    std::fs::write(home.join("crewkit.toml"), DRIVERS).unwrap();
    let mut once = Followed::run(home, work.path(), "sleeper");
    once.says("run ");
    once.signal(Signal::INT);
    let said = once.says("Still working in the background. Follow: crewkit runs output ");
    let id = said.split("output ").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    assert_eq!(once.child.wait().unwrap().code(), Some(130));
    assert_eq!(status_of(home, &id), "running");
    let (code, _, err) = output(crewkit(home).args(["runs", "stop", &id]));
    assert_eq!(code, 0, "{err}");

    std::fs::remove_file(work.path().join("ready")).unwrap();
    let mut twice = Followed::run(home, work.path(), "sleeper");
    twice.says("run ");
    twice.signal(Signal::INT);
    let said = twice.says("press Ctrl-C again");
    let id = said.split("output ").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    twice.signal(Signal::INT);
    twice.says("✕ stopped");
    assert_eq!(twice.child.wait().unwrap().code(), Some(1));
    assert_eq!(status_of(home, &id), "stopped");
    stop(home);
}

#[test]
fn a_server_that_ends_leaves_the_process_of_a_run_to_the_next() {
    for signal in [Signal::TERM, Signal::HUP, Signal::KILL] {
        let (home, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (home, work) = (home.path(), work.path());
        std::fs::write(home.join("crewkit.toml"), DRIVERS).unwrap();
        let mut window = Window::open(home, &[]);
        let wish = json!({"contract": "wait", "driver": "patient", "workdir": work});
        let id = window.call("agent_start", &wish)["agent_id"].as_str().unwrap().to_owned();
        wait_until("the driver works", || work.join("ready").exists());
        let first = server(home);
        kill_process(first, signal).unwrap();
        wait_until("the server has ended", || {
            !std::path::Path::new(&format!("/proc/{}", first.as_raw_nonzero())).exists()
        });
        assert_eq!(status_of(home, &id), "running", "{signal:?}");
        assert_ne!(server(home), first, "{signal:?}");
        std::fs::write(work.join("go"), "").unwrap();
        wait_until("it completes", || status_of(home, &id) == "completed");
        let output = window.call("agent_output", &json!({"agent_id": id})).to_string();
        assert_eq!(
            (output.matches("begun").count(), output.matches("finished").count()),
            (1, 1),
            "{signal:?}: {output}"
        );
        let pids = std::fs::read_to_string(work.join("pids")).unwrap();
        assert_eq!(pids.lines().count(), 1, "{signal:?}: a second process ran");
        stop(home);
    }
}

/// Everything that this process has started and that is still there, by process, user and start time.
pub(crate) fn descendants() -> Vec<String> {
    let mut found = vec![std::process::id()];
    let mut described = Vec::new();
    let processes: Vec<(u32, u32, String)> = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            let (_, rest) = stat.rsplit_once(')')?;
            let fields: Vec<&str> = rest.split_whitespace().collect();
            let user = std::os::unix::fs::MetadataExt::uid(&entry.metadata().ok()?);
            // A process that has ended and is not yet waited for is no process any more.
            let is_alive = fields[0] != "Z";
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            is_alive.then(|| {
                (pid, fields[1].parse().unwrap(), format!("{pid} user {user} start {} {line}", fields[19]))
            })
        })
        .collect();
    while let Some(parent) = found.pop() {
        for (pid, of, line) in &processes {
            if *of == parent {
                found.push(*pid);
                described.push(line.clone());
            }
        }
    }
    described
}

const ALONE: &str = "CREWKIT_TEST_IN_A_PROCESS_OF_ITS_OWN";

/// Runs the test `name` again in a process of its own that inherits every orphan below it, so that everything the test has
/// started can be told from what other tests have. Returns whether this is that process.
pub(crate) fn is_alone(name: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
        return true;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(ALONE, "1").args(["--exact", name, "--nocapture", "--test-threads", "1"]);
    let (code, out, err) = output(&mut command);
    assert_eq!(code, 0, "{out}\n{err}");
    false
}

/// What is ended, and how far the run is by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    Working,
    BeingStopped,
    Resuming,
}

#[test]
fn nothing_is_left_after_stop_whatever_was_ended_before() {
    if !is_alone("client::nothing_is_left_after_stop_whatever_was_ended_before") {
        return;
    }
    let before = descendants();
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::KILL] {
        if crate::hostile::is_ignored(signal) {
            eprintln!(
                "NOT TRIED: whoever started the tests has {signal:?} ignored, and commands inherit that"
            );
            continue;
        }
        for moment in [Moment::Working, Moment::BeingStopped, Moment::Resuming] {
            for victim in ["mcp", "run", "server", "serve"] {
                let round = format!("{signal:?} of {victim}, {moment:?}");
                let (home, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
                end_one(home.path(), work.path(), signal, moment, victim, &round);
                stop(home.path());
                wait_until(&format!("{round}: the end of {:#?}", descendants()), || descendants() == before);
            }
        }
    }
}

fn end_one(home: &Path, work: &Path, signal: Signal, moment: Moment, victim: &str, round: &str) {
    std::fs::write(home.join("crewkit.toml"), DRIVERS).unwrap();
    let driver = if moment == Moment::BeingStopped { "stubborn" } else { "sleeper" };
    let serving = (victim == "serve").then(|| {
        let mut command = crewkit(home);
        command.args(["serve", "--listen", "127.0.0.1:0"]).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        wait_until(&format!("{round}: it serves"), || record(home).is_some());
        child
    });
    let mut window = Window::open(home, &[]);
    let followed = (victim == "run").then(|| Followed::run(home, work, driver));
    let id = if followed.is_some() {
        json_of(home, &["runs", "list"])["runs"][0]["id"].clone()
    } else {
        let wish = json!({"contract": "sleep", "driver": driver, "workdir": work});
        let id = window.call("agent_start", &wish)["agent_id"].clone();
        wait_until(&format!("{round}: the driver works"), || work.join("ready").exists());
        id
    };
    let mut stopping = None;
    match moment {
        Moment::Working => {}
        Moment::BeingStopped => {
            let mut command = crewkit(home);
            command.args(["runs", "stop", id.as_str().unwrap()]).stdout(Stdio::null()).stderr(Stdio::null());
            stopping = Some(command.spawn().unwrap());
            wait_until(&format!("{round}: the driver is asked to end"), || work.join("asked").exists());
        }
        Moment::Resuming => {
            window.call("agent_stop", &json!({"agent_id": id}));
            json_of(home, &["runs", "resume", id.as_str().unwrap()]);
        }
    }
    let mut followed = followed;
    match victim {
        "mcp" => kill_process(window.pid(), signal).unwrap(),
        "run" => {
            let followed = followed.as_mut().unwrap();
            // One that has nothing left to follow may have ended by itself.
            if followed.child.try_wait().unwrap().is_none() {
                followed.signal(signal);
            }
        }
        _ => kill_process(server(home), signal).unwrap(),
    }
    if let Some(mut followed) = followed {
        followed.child.wait().unwrap();
    }
    if let Some(mut stopping) = stopping {
        stopping.wait().unwrap();
    }
    if let Some(mut serving) = serving {
        serving.wait().unwrap();
    }
    // The end of a client or of the server ends no work.
    if moment == Moment::Working {
        assert_eq!(status_of(home, id.as_str().unwrap()), "running", "{round}");
    }
}
