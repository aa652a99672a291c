//! Chores of this repository: `cargo xtask <chore>`.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a chore talks to the person who started it")]

mod bench;
mod ci;
mod conformance;
mod crash_sweep;
mod docs;
mod lines;
mod process;
mod shell;
mod tidy;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask <chore>

  ci              everything that has to pass before a change lands
  bench agents [--binary PATH] [busy|throughput|turns|payload|waiting|peer]…
                  a thousand agents, beside what their model and a bare server allow
  bench fleet     the fleet tools over a simulated Coder, against their bounds
  bench local [--agents N] [--rounds N]
                  two hundred agents on this machine: create, list, equip, kill the server, delete
  bench mcp       MCP calls, start and memory, beside bare programs
  bench pack [--skills N] [--rounds N] [--binary PATH]
                  our agentpack beside the published 0.9.1 (AGENTPACK_BASELINE), as ratios
  conformance     the MCP conformance suite and inspector, against the product and the fixture toolset
  crash-sweep [--full] [create|update|delete|adopt|rollback|version2|migrate]…
                  kill a deploy, and fail its system calls, at every call that changes something
  lines           lines of code per crate, tests not counted
  tidy [--fix]    dependency edges, licences, sizes, and documents written from tables
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["ci"] => ci::run(),
        ["bench", "agents", rest @ ..] => bench::agents::run(rest),
        ["bench", "fleet"] => bench::fleet::run(),
        ["bench", "local", rest @ ..] => bench::local::run(rest),
        ["bench", "mcp"] => bench::mcp::run(),
        ["bench", "pack", rest @ ..] => bench::pack::run(rest),
        ["conformance"] => conformance::run(),
        ["crash-sweep", rest @ ..] => crash_sweep::run(rest),
        ["lines"] => lines::run(),
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
