//! What an engine is made of.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use crewkit_core::{Limits, Timestamp};

use crate::driver::ProcessDriver;
use crate::model::Endpoint;
use crate::store::Clock;
use crate::tools::CommandPolicy;
use crate::tools::mcp::ServerConfig;

/// Everything an engine needs to know; nothing is read from the environment.
#[derive(Clone)]
pub struct Options {
    /// Directory of the run store and of scratch files.
    pub home: PathBuf,
    /// Limits in force.
    pub limits: Arc<Limits>,
    /// Models, the default one first. With none, runs use the rehearsal.
    pub models: Vec<Endpoint>,
    /// Command lines that can carry out contracts, besides the built-in loop.
    pub drivers: Vec<ProcessDriver>,
    /// Tool servers.
    pub tool_servers: Vec<ServerConfig>,
    /// Command line of the helper that supervises processes of runs and confines commands: this program with the arguments that
    /// make it call [`crate::supervisor::run`]. Without one, processes are ended by their group and their mark, and
    /// there are no confined commands.
    pub helper: Vec<OsString>,
    /// TCP ports of the server that runs the agents; confined commands cannot connect to them.
    pub server_ports: Vec<u16>,
    /// Whether agents may run commands.
    pub commands: CommandPolicy,
    /// The environment drivers and tool servers start from.
    pub child_environment: Vec<(OsString, OsString)>,
    /// Socket of the server, for drivers that report to it.
    pub server_socket: Option<PathBuf>,
    /// Where clients reach this server, for `payload_url`; without a slash at the end.
    pub public_base: String,
    /// The clock.
    pub clock: Clock,
}

impl Options {
    /// An engine at `home` with defaults: no model, no tool servers, no commands.
    pub fn new(home: impl Into<PathBuf>) -> Self {
        Self {
            home: home.into(),
            limits: Arc::new(Limits::default()),
            models: Vec::new(),
            drivers: ProcessDriver::presets(),
            tool_servers: Vec::new(),
            helper: Vec::new(),
            server_ports: Vec::new(),
            commands: CommandPolicy::Off,
            child_environment: Vec::new(),
            server_socket: None,
            public_base: "http://localhost:8101".to_owned(),
            clock: Arc::new(|| Timestamp::from(SystemTime::now())),
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("home", &self.home)
            .field("models", &self.models)
            .finish_non_exhaustive()
    }
}
