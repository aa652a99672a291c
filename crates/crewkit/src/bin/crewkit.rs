//! The `crewkit` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    crewkit::cli::main()
}
