//! The built binaries, as a person or a client starts them.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod cli;
#[cfg(target_os = "linux")]
mod client;
mod conformance_absent;
mod doors;
mod equip_kill;
mod fleet;
#[cfg(target_os = "linux")]
mod follow;
#[cfg(target_os = "linux")]
mod grace;
mod hostile;
mod hostile_fleet;
#[cfg(target_os = "linux")]
mod in_process;
#[cfg(target_os = "linux")]
mod killed;
mod local_models;
mod pack;
mod real_clients;
mod resources;
mod runs;
#[cfg(target_os = "linux")]
mod secrets;
mod serve;
#[cfg(target_os = "linux")]
mod server;
mod stdio;
mod support;
mod walk;
