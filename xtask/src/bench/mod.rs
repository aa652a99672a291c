//! Benchmarks: crewkit beside a bare program in the same run, so that the machine's speed drops out.

mod client;
pub(crate) mod mcp;
