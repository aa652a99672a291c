//! The fleet over a simulated Coder: time and memory against the bounds we promise.
//!
//! The measuring itself is an example of `crewkit-fleet`, so that chores do not pull in a client for Coder.

use anyhow::Result;

use crate::shell::{self, cargo};

/// Measures, prints, and fails when a bound is missed.
pub(crate) fn run() -> Result<()> {
    shell::run(cargo().args(["run", "--release", "--package", "crewkit-fleet", "--example", "bench_fleet"]))
}
