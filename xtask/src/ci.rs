//! Everything that has to pass before a change lands.

use anyhow::Result;

use crate::shell::{self, cargo};
use crate::{conformance, crash_sweep, tidy};

/// Cheap checks first, so that a slip is told early.
pub(crate) fn run() -> Result<()> {
    shell::run(cargo().args(["fmt", "--all", "--check"]))?;
    shell::run(cargo().args([
        "clippy",
        "--workspace",
        "--all-targets",
        "--locked",
        "--",
        "--deny",
        "warnings",
    ]))?;
    tidy::run(tidy::Mode::Check)?;
    shell::run(cargo().args(["test", "--workspace", "--locked"]))?;
    conformance::run()?;
    crash_sweep::run(&[])
}
