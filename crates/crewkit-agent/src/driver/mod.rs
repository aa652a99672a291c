//! Running a coding agent's command line as the driver of a run.
//!
//! Any command line will do; for Claude Code and Codex the structured output is understood and becomes the same
//! transcript the built-in loop writes.

mod claude;
mod codex;
mod process;
mod text;

use std::ffi::OsString;
use std::path::Path;

use crewkit_core::run::{RunId, StopReason};

pub(crate) use process::{Append, Attendance, Errand, are_held, drive, go_on};

use crate::contract::{Caps, End};
use crate::event::EventBody;

/// What a driver's standard output is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Lines for people; the exit code decides.
    #[default]
    Text,
    /// `claude --output-format stream-json`.
    Claude,
    /// `codex exec --json`.
    Codex,
}

/// What is written to a driver's standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stdin {
    /// Nothing; it is closed.
    #[default]
    Nothing,
    /// The contract.
    Contract,
    /// The contract first, and then whatever is said to the run: it stays open until it is closed. Where processes end with
    /// the server it is closed after the contract.
    Open,
}

/// A command line that can carry out contracts.
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ProcessDriver {
    /// Name in configuration.
    pub name: String,
    /// Program and arguments; `{contract}`, `{agent_id}` and `{workdir}` are replaced within each.
    pub command: Vec<String>,
    /// What it reads.
    pub stdin: Stdin,
    /// What it writes.
    pub format: Format,
    /// Added to the environment all drivers get: the variables on its list, and those of its configuration.
    #[serde(with = "crate::settings::text::environment")]
    pub environment: Vec<(OsString, OsString)>,
}

impl std::fmt::Debug for ProcessDriver {
    /// Variables and arguments can be secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProcessDriver").field("name", &self.name).finish_non_exhaustive()
    }
}

impl ProcessDriver {
    /// Drivers that are there without configuration.
    pub fn presets() -> Vec<Self> {
        let driver = |name: &str, command: &[&str], format| Self {
            name: name.to_owned(),
            command: command.iter().map(|part| (*part).to_owned()).collect(),
            stdin: Stdin::Contract,
            format,
            environment: Vec::new(),
        };
        vec![
            driver(
                "claude",
                &["claude", "-p", "--output-format", "stream-json", "--verbose"],
                Format::Claude,
            ),
            driver("codex", &["codex", "exec", "--json", "--skip-git-repo-check", "-"], Format::Codex),
        ]
    }

    /// Returns the command line for one run. Values are inserted as they are: there is no shell to quote for.
    ///
    /// Claude Code bounds its turns itself, which is gentler than ending it within one.
    fn command_line(&self, id: &RunId, contract: &str, workdir: &Path, max_turns: u64) -> Vec<String> {
        const MAX_TURNS: &str = "--max-turns";
        let directory = workdir.to_string_lossy();
        let filled = self.command.iter().map(|part| fill(part, id.as_str(), contract, &directory));
        let mut line: Vec<String> = filled.collect();
        let is_claude = line.first().is_some_and(|program| Path::new(program).ends_with("claude"));
        if is_claude && max_turns > 0 && !line.iter().any(|part| part == MAX_TURNS) {
            line.extend([MAX_TURNS.to_owned(), max_turns.to_string()]);
        }
        line
    }
}

/// Replaces the placeholders in one pass, so that a contract that mentions one is left alone.
fn fill(part: &str, id: &str, contract: &str, workdir: &str) -> String {
    let mut filled = String::new();
    let mut rest = part;
    while let Some(at) = rest.find('{') {
        filled.push_str(&rest[..at]);
        rest = &rest[at..];
        let values = [("{contract}", contract), ("{agent_id}", id), ("{workdir}", workdir)];
        if let Some((name, value)) = values.into_iter().find(|(name, _)| rest.starts_with(name)) {
            filled.push_str(value);
            rest = &rest[name.len()..];
        } else {
            filled.push('{');
            rest = &rest[1..];
        }
    }
    filled + rest
}

/// How a driver's process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Exit {
    success: bool,
    /// For people: `exit code 3`, `killed by signal 9`.
    how: String,
    /// Last lines of its standard error.
    complaints: String,
}

impl Exit {
    fn describe(&self, name: &str) -> String {
        let mut text = format!("{name} ended with {}", self.how);
        if !self.complaints.is_empty() {
            text.push_str(": ");
            text.push_str(&self.complaints);
        }
        text
    }
}

/// Understands the output of one kind of driver.
trait Interpreter: Send {
    /// What a line means for the transcript.
    fn line(&mut self, line: &str) -> Vec<EventBody>;

    /// How the run ended, once the process has.
    fn end(&mut self, name: &str, exit: &Exit) -> End;

    /// What the driver has used so far, as far as its output tells.
    fn used(&self) -> Used;
}

/// What a driver has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Used {
    /// Replies of its model.
    pub turns: u64,
    /// Tokens in both directions; estimated while the driver does not report them.
    pub tokens: u64,
}

impl Used {
    /// Returns the end of the run if the driver has used more than `caps` allow.
    pub fn over(self, caps: &Caps) -> Option<End> {
        let over = |reason, cap, unit| {
            let error = format!("the cap of {cap} {unit} is reached");
            Some(End::Stopped { reason, error })
        };
        if caps.turns > 0 && self.turns > caps.turns {
            return over(StopReason::TurnLimit, caps.turns, "turns");
        }
        if caps.tokens > 0 && self.tokens > caps.tokens {
            return over(StopReason::TokenLimit, caps.tokens, "tokens");
        }
        None
    }
}

/// What the lines that a driver has printed mean for the transcript.
pub fn understand(format: Format, lines: impl Iterator<Item = String>) -> Vec<EventBody> {
    let mut interpreter = interpreter(format);
    lines.flat_map(|line| interpreter.line(&line)).collect()
}

fn interpreter(format: Format) -> Box<dyn Interpreter> {
    match format {
        Format::Text => Box::<text::Plain>::default(),
        Format::Claude => Box::<claude::Claude>::default(),
        Format::Codex => Box::<codex::Codex>::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claude_is_told_how_many_turns_it_has() {
        let id: RunId = "agent-1".parse().unwrap();
        let line = |name: &str, max_turns| {
            let driver = ProcessDriver::presets().into_iter().find(|driver| driver.name == name).unwrap();
            driver.command_line(&id, "x", Path::new("/w"), max_turns).join(" ")
        };
        assert!(line("claude", 7).ends_with(" --max-turns 7"));
        assert!(!line("claude", 0).contains("--max-turns"));
        assert!(!line("codex", 7).contains("--max-turns"));
    }

    #[test]
    fn placeholders_are_replaced_once_and_contracts_are_left_alone() {
        let filled = |part| fill(part, "agent-1", "do {workdir} {x}", "/w");
        assert_eq!(filled("--id={agent_id}"), "--id=agent-1");
        assert_eq!(filled("{contract}"), "do {workdir} {x}");
        assert_eq!(filled("{other} {workdir}{"), "{other} /w{");
        assert_eq!(filled("plain"), "plain");
    }
}
