//! Starts the binaries in a home of their own.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// The `crewkit` binary with nothing of the caller's environment but what it needs to run.
pub(crate) fn crewkit(home: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_crewkit"));
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", home)
        .env("CREWKIT_HOME", home);
    command
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn output(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code().unwrap_or(-1), text(&stdout), text(&stderr))
}

/// How long a test waits for something that happens for certain.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// Waits until `done`, and fails the test if that never comes.
pub(crate) fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < PATIENCE, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What the server of a home wrote down about itself.
pub(crate) fn record(home: &Path) -> Option<Value> {
    serde_json::from_slice(&std::fs::read(home.join("run/server.json")).ok()?).ok()
}

/// A running `crewkit serve`; killed when dropped, unless it was stopped.
pub(crate) struct Served {
    pub(crate) child: Child,
    pub(crate) base: String,
    pub(crate) greeting: String,
}

impl Served {
    pub(crate) fn start(home: &Path, arguments: &[&str]) -> Self {
        Self::start_in(home, home, arguments)
    }

    /// Starts it in a directory other than the home.
    pub(crate) fn start_in(home: &Path, directory: &Path, arguments: &[&str]) -> Self {
        let mut command = crewkit(home);
        command.current_dir(directory);
        Self::with(command, arguments)
    }

    /// Starts `command`, which is `crewkit` as it is to be run, with what makes it serve.
    pub(crate) fn with(mut command: Command, arguments: &[&str]) -> Self {
        command.args(["serve", "--listen", "127.0.0.1:0"]).args(arguments);
        Self::spawn(command)
    }

    /// Starts `command`, which becomes a server.
    pub(crate) fn spawn(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut greeting = String::new();
        // The greeting ends with how to stop.
        for line in lines.by_ref().map_while(Result::ok) {
            greeting.push_str(&line);
            greeting.push('\n');
            if line.starts_with("Stop with") {
                break;
            }
        }
        let base = greeting
            .lines()
            .find_map(|line| line.split_once("serves MCP at ")?.1.strip_suffix("/mcp"))
            .unwrap_or_else(|| panic!("no address in {greeting:?}"))
            .to_owned();
        Self { child, base, greeting }
    }

    /// Asks it to stop, as a service manager does, and returns its exit code.
    pub(crate) fn terminate(mut self) -> Option<i32> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
