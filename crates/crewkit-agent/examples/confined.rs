//! The helper that locks itself in before it becomes a command; the `crewkit` binary has it as a hidden sub-command.

use std::io::Write;

fn main() {
    let error = crewkit_agent::confine::exec(std::env::args_os().skip(1));
    let _ = writeln!(std::io::stderr(), "{error}");
    std::process::abort();
}
