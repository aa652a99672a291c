//! Starting the server in the background, detached from whoever starts it.
//!
//! A client runs `crewkit serve --background`. That process leaves the client's session and environment behind, starts the
//! server proper and ends at once, so that the server is nobody's child and no terminal, editor or process group takes it
//! along. The server reports on its standard output, a pipe of the client, whether it can be reached, and then closes it.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use crewkit_core::Code;
use rustix::fs::Mode;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use super::{identity, log};
use crate::config::Config;
use crate::failure::Failure;
use crate::local::installed;

/// Where a background server looks for programs of its own. Drivers are found with the `PATH` of whoever asks.
const SYSTEM_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Starts a server for the home and waits until it can be reached. The caller holds the home's start lock.
pub async fn start(config: &Config) -> Result<(), Failure> {
    let patience = Duration::from_secs(config.limits().server_start_seconds);
    let failed = |what: &str| {
        let last = log::last_line(&config.home).map(|line| format!("; its last words: {line}"));
        let path = log::path(&config.home);
        let message =
            format!("The server started for {} {what}{}", config.home.display(), last.unwrap_or_default());
        Failure::new(Code::ServerNotStarted, format!("{message} (log: {})", path.display()))
    };
    let mut command = tokio::process::Command::new(identity::executable());
    command.args(["serve", "--background", "--home"]).arg(&config.home).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| failed(&format!("could not be run: {error}")))?;
    let mut report = String::new();
    if let Some(stdout) = child.stdout.take() {
        let mut reader = BufReader::new(stdout);
        let read = tokio::time::timeout(patience, reader.read_line(&mut report)).await;
        if read.is_err() {
            return Err(failed(&format!(
                "did not answer within {} seconds (limits.server_start_seconds)",
                patience.as_secs()
            )));
        }
    }
    // The first process ends as soon as it has started the second.
    let _ = child.wait().await;
    let report: Value = serde_json::from_str(&report).unwrap_or_default();
    if report["ready"] == true {
        return Ok(());
    }
    match report["message"].as_str() {
        Some(message) => {
            let code = Code::ALL.iter().find(|code| report["error"] == code.as_str()).copied();
            Err(Failure::new(code.unwrap_or(Code::ServerNotStarted), message))
        }
        None => Err(failed("ended before it could be reached")),
    }
}

/// Starts the server proper, detached from everything this process was given. This process ends then.
pub fn detach(home: &Path) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::new(Code::ServerNotStarted, error.to_string());
    crewkit_agent::close_inherited(&[]).map_err(failed)?;
    // Fails for the leader of a process group, which has a session of its own or is given up with its group.
    let _ = rustix::process::setsid();
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let mut command = std::process::Command::new(identity::executable());
    command.arg0("crewkit").args(["serve", "--background", "--detached", "--home"]).arg(home);
    command.env_clear().env("PATH", path()).current_dir("/");
    command.envs(std::env::home_dir().map(|home| ("HOME", home)));
    #[cfg(debug_assertions)]
    for name in [identity::TEST_BUILD, identity::TEST_PROTOCOL, super::watch::TEST_MINUTE] {
        command.envs(std::env::var_os(name).map(|value| (name, value)));
    }
    command.stdin(Stdio::null()).stdout(Stdio::inherit()).stderr(Stdio::null());
    command.spawn().map(drop).map_err(failed)
}

/// The system's programs, and `git` where the caller has it.
fn path() -> String {
    let directory = installed("git").and_then(|git| Some(git.parent()?.to_str()?.to_owned()));
    match directory.filter(|directory| !SYSTEM_PATH.split(':').any(|known| known == directory)) {
        Some(directory) => format!("{SYSTEM_PATH}:{directory}"),
        None => SYSTEM_PATH.to_owned(),
    }
}

/// Tells the client that waits on standard output how the start went, and closes it.
pub fn report(outcome: Result<(), &Failure>) {
    let line = match outcome {
        Ok(()) => json!({"ready": true}),
        Err(failure) => json!({"error": failure.code, "message": failure.message}),
    };
    let told = writeln!(io::stdout(), "{line}").and_then(|()| io::stdout().flush());
    if let Err(error) = told {
        tracing::debug!(%error, "nobody waits for the start of this server");
    }
    if let Ok(null) = File::options().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(&null);
    }
}
