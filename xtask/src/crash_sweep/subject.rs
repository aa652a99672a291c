//! The program under test, run with or without something going wrong.

use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command, Output};

use anyhow::{Context as _, Result, bail, ensure};

use super::scene::Scene;
use crate::shell::{self, cargo, root};

/// What goes wrong: a call, which one of its kind, and how.
#[derive(Debug, Clone)]
pub(super) struct Injection {
    call: String,
    when: String,
    what: String,
}

impl Injection {
    pub(super) fn kill(call: &str, nth: usize) -> Self {
        Self { call: call.to_owned(), when: nth.to_string(), what: "signal=KILL".to_owned() }
    }

    pub(super) fn fail(call: &str, nth: usize, error: &str) -> Self {
        Self { call: call.to_owned(), when: nth.to_string(), what: format!("error={error}") }
    }

    pub(super) fn fail_from(call: &str, nth: usize, error: &str) -> Self {
        Self { call: call.to_owned(), when: format!("{nth}+"), what: format!("error={error}") }
    }

    /// The call is interrupted, which is no error: it has to be repeated.
    pub(super) fn interrupt(call: &str, nth: usize) -> Self {
        Self::fail(call, nth, "EINTR")
    }

    pub(super) fn is_transparent(&self) -> bool {
        self.what == "error=EINTR"
    }

    /// Whether the program cannot even say what went wrong.
    pub(super) fn silences(&self) -> bool {
        self.call == "write" && self.when.ends_with('+')
    }

    pub(super) fn is_single_error(&self) -> bool {
        self.what.starts_with("error=") && !self.when.ends_with('+')
    }
}

impl fmt::Display for Injection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "inject={}:{}:when={}", self.call, self.what, self.when)
    }
}

/// How a run ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Done,
    Failed { message: String },
    Killed,
}

/// The program under test.
pub(super) struct Subject {
    program: PathBuf,
}

impl Subject {
    /// Builds `agentpack`.
    pub(super) fn build() -> Result<Self> {
        let found = Command::new("strace").arg("--version").output();
        ensure!(found.is_ok_and(|output| output.status.success()), "`strace` is needed; install its package");
        shell::run(cargo().args(["build", "--locked", "--package", "crewkit", "--bin", "agentpack"]))?;
        let target =
            std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
        let program = root().join(target).join("debug/agentpack");
        ensure!(program.is_file(), "{} was not built", program.display());
        Ok(Self { program })
    }

    pub(super) fn run(
        &self,
        scene: &Scene,
        arguments: &[String],
        injection: Option<&Injection>,
    ) -> Result<Ending> {
        let mut command = match injection {
            None => Command::new(&self.program),
            Some(injection) => {
                let mut command = Command::new("strace");
                command.args(["-f", "-qq", "-o", "/dev/null"]);
                command.args([
                    "-e",
                    &format!("trace={}", injection.call),
                    "-e",
                    &injection.to_string(),
                    "--",
                ]);
                command.arg(&self.program);
                command
            }
        };
        scene.prepare(&mut command);
        let output = command.args(arguments).output();
        let output = output.with_context(|| format!("could not start {}", self.program.display()))?;
        Ok(ending(&output))
    }

    /// Runs to the end and counts the calls named in `kinds`.
    pub(super) fn count(
        &self,
        scene: &Scene,
        arguments: &[String],
        kinds: &[&'static str],
    ) -> Result<BTreeMap<&'static str, usize>> {
        let log = scene.path().with_extension("strace");
        let mut command = Command::new("strace");
        command.args(["-f", "-qq", "-o"]).arg(&log);
        command.args(["-e", &format!("trace={}", kinds.join(",")), "--"]);
        command.arg(&self.program).args(arguments);
        scene.prepare(&mut command);
        let output = command.output().context("could not start strace")?;
        if ending(&output) != Ending::Done {
            bail!("{arguments:?} failed undisturbed: {}", String::from_utf8_lossy(&output.stderr));
        }
        let text = std::fs::read_to_string(&log).with_context(|| log.display().to_string())?;
        std::fs::remove_file(&log).with_context(|| log.display().to_string())?;
        let mut counts = BTreeMap::new();
        for line in text.lines() {
            // "1234  openat(AT_FDCWD, …"; a call that another thread interrupts is continued on a line of its own.
            let Some((before, _)) = line.split_once('(') else { continue };
            let name = before.split_whitespace().last().unwrap_or_default();
            if let Some(kind) = kinds.iter().find(|kind| **kind == name) {
                *counts.entry(*kind).or_insert(0) += 1;
            }
        }
        Ok(counts)
    }
}

fn ending(output: &Output) -> Ending {
    const KILLED: i32 = 9;
    if output.status.success() {
        Ending::Done
    } else if output.status.signal() == Some(KILLED) || output.status.code() == Some(128 + KILLED) {
        Ending::Killed
    } else {
        Ending::Failed { message: String::from_utf8_lossy(&output.stderr).into_owned() }
    }
}
