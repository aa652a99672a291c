//! The command line of crewkit: arguments, configuration, rendering and exit codes.
//!
//! The only crate that reads the environment, prints, or decides how the process ends.

pub mod agent;
pub mod ask;
pub mod cli;
pub mod client;
pub mod clients;
pub mod commands;
pub mod config;
pub mod config_show;
pub mod exit;
pub mod failure;
pub mod fleet;
pub mod home;
pub mod local;
pub mod logging;
pub mod mcp;
pub mod output;
pub mod pack;
pub mod secrets;
pub mod serve;
pub mod server;
pub mod settings;
pub mod socket;
pub mod stdio;
pub mod style;
pub mod text;
pub mod token;
