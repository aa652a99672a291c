//! The helper that supervises processes of agents and confines commands; the `crewkit` binary has it as a hidden sub-command.

use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut complain = |text: &str| drop(writeln!(std::io::stderr(), "{text}"));
    ExitCode::from(crewkit_agent::supervisor::run(&[], std::env::args_os().skip(1), &mut complain))
}
