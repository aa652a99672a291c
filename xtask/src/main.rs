//! Chores of this repository: `cargo xtask <command>`.

#![expect(clippy::print_stdout, reason = "a chore talks to the person who runs it")]

mod bench;
mod conformance;
mod workspace;

use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask <command>

  conformance   run the MCP conformance suite and the inspector against crewkit
  bench mcp     measure MCP calls, start and memory against bare programs
";

/// What a chore ends with; the error is for people.
type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["conformance"] => conformance::run(),
        ["bench", "mcp"] => bench::mcp::run(),
        _ => Err(USAGE.into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}
