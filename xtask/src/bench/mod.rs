//! Benchmarks: crewkit beside a bare program in the same run, so that the machine's speed drops out.

pub(crate) mod agents;
mod client;
pub(crate) mod fleet;
pub(crate) mod local;
pub(crate) mod mcp;
pub(crate) mod pack;
