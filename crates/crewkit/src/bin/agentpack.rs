//! The pack commands under their old name, so that an existing `agentpack` entry keeps working.

use std::process::ExitCode;

fn main() -> ExitCode {
    crewkit::pack::main()
}
