//! The promises of the agents, one module each.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod chat;
#[cfg(target_os = "linux")]
mod confine;
mod drivers;
mod held;
mod kill;
mod life;
mod once;
mod real_clients;
mod rude_model;
mod supervisor;
mod support;
mod tool_servers;
mod workspace;
