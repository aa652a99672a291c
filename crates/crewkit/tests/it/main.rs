//! The built binaries, as a person or a client starts them.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod agent;
mod cli;
mod conformance_absent;
mod doors;
mod equip_kill;
mod fleet;
#[cfg(target_os = "linux")]
mod hostile;
mod hostile_fleet;
mod local_models;
mod pack;
mod serve;
mod stdio;
mod support;
mod walk;
