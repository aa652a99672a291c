//! Chores of this repository: `cargo xtask <chore>`.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a chore talks to the person who started it")]

mod ci;
mod crash_sweep;
mod docs;
mod shell;
mod tidy;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask <chore>

  ci              everything that has to pass before a change lands
  crash-sweep [--full]
                  kill a deploy, and fail its system calls, at every call that changes something
  tidy [--fix]    dependency edges, licences, sizes, and documents written from tables
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["ci"] => ci::run(),
        ["crash-sweep"] => crash_sweep::run(crash_sweep::Extent::Fast),
        ["crash-sweep", "--full"] => crash_sweep::run(crash_sweep::Extent::Full),
        ["tidy"] => tidy::run(tidy::Mode::Check),
        ["tidy", "--fix"] => tidy::run(tidy::Mode::Fix),
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
