//! The pack commands, as `crewkit pack …` and as the program `agentpack`.

pub mod args;
mod dispatch;
mod environment;
mod help;
mod progress;
mod render;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};
use crewkit_core::Code;
use crewkit_pack::PackError;
use crewkit_pack::envelope::{self, CommandName};

use crate::config::Config;
use crate::exit::Exit;
use crate::{home, output};
use args::{Agentpack, PackArgs};

pub use environment::{service, service_of};

/// Runs `agentpack` with the process's arguments.
pub fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    match Agentpack::try_parse_from(&arguments) {
        Ok(Agentpack { json, pack }) => {
            let home = std::env::var_os("CREWKIT_HOME").filter(|home| !home.is_empty());
            run(pack, json, "agentpack", home.map(PathBuf::from)).into()
        }
        Err(error) => usage_error(&error, &arguments).into(),
    }
}

/// Runs a parsed command; `program` is how the person started it, `home` where crewkit's limits are set.
pub fn run(pack: PackArgs, json: bool, program: &str, home: Option<PathBuf>) -> Exit {
    let limits = home::resolve(home)
        .and_then(|home| Config::load(home, |name| std::env::var(name).ok(), &[]))
        .map(|config| config.limits());
    match limits {
        Ok(limits) => dispatch::run(pack, json, program, &limits),
        Err(failure) => failure.report(json),
    }
}

/// Tells about arguments that make no sense: in JSON when that was asked for, since programs asked.
pub fn usage_error(error: &clap::Error, arguments: &[OsString]) -> Exit {
    use clap::error::ErrorKind;
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        output::data(&error.render().to_string());
        return Exit::Ok;
    }
    let json = arguments.iter().take_while(|argument| *argument != "--").any(|argument| argument == "--json");
    if json {
        let text = error.render().to_string();
        let message = text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
        let failure = PackError::new(Code::ArgumentInvalid, message).detail("usage", text.trim());
        let name = meant(arguments);
        print_envelope(&envelope::failure(&name, env!("CARGO_PKG_VERSION"), &failure));
    } else {
        output::talk(error.render().to_string().trim_end());
    }
    Exit::Usage
}

/// The command that was probably meant: as many words as lead to one.
fn meant(arguments: &[OsString]) -> CommandName {
    let words =
        arguments.iter().skip(1).filter_map(|word| word.to_str()).filter(|word| !word.starts_with('-'));
    let root = Agentpack::command();
    let mut at = &root;
    let mut path: Vec<&'static str> = Vec::new();
    for word in words {
        if let Some(next) = at.find_subcommand(word) {
            path.extend(help::KNOWN_WORDS.iter().find(|known| **known == word));
            at = next;
        }
    }
    if path.is_empty() {
        path.push("help");
    }
    CommandName { path, variant: None }
}

pub(crate) fn print_envelope(value: &serde_json::Value) {
    output::json(value);
}
