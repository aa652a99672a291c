//! The doors of crewkit: one table of operations, reached through MCP, REST and the command line.
//!
//! No door contains a decision: it turns bytes into a call, runs the operation, and turns the answer into bytes.
//! This crate does not read the environment and does not print; the binary passes everything in.

#[cfg(all(feature = "conformance", not(debug_assertions)))]
compile_error!("the feature `conformance` is for testing only; a release must not have it");

pub mod asker;
mod blocking;
pub mod caller;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod http;
pub mod json;
pub mod kit;
pub mod mcp;
pub mod metrics;
pub mod ops;
pub mod services;

pub use services::Services;
