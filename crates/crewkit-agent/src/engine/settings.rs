//! What a run is carried out with, as its asker has configured it.

use std::ffi::OsString;

use crate::driver::ProcessDriver;
use crate::model::Endpoint;
use crate::tools::CommandPolicy;
use crate::tools::mcp::ServerConfig;

/// The settings of a run: fixed at its start and used by every attempt, whoever asks for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunSettings {
    /// Models, the default one first. Without any, runs use the rehearsal.
    pub models: Vec<Endpoint>,
    /// Command lines that can carry out contracts, besides the built-in loop.
    pub drivers: Vec<ProcessDriver>,
    /// Tool servers.
    pub tool_servers: Vec<ServerConfig>,
    /// Whether agents may run commands.
    pub commands: CommandPolicy,
    /// The environment drivers and tool servers start from.
    pub environment: Vec<(OsString, OsString)>,
}

impl Default for RunSettings {
    /// No model, no tool servers, no commands; the preset drivers.
    fn default() -> Self {
        Self {
            models: Vec::new(),
            drivers: ProcessDriver::presets(),
            tool_servers: Vec::new(),
            commands: CommandPolicy::Off,
            environment: Vec::new(),
        }
    }
}
