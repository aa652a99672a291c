//! What an engine is made of.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use crewkit_core::run::RunId;
use crewkit_core::{Limits, Secret, Timestamp};

use crate::settings::RunSettings;
use crate::store::{Clock, StoreLock};

/// What belongs to the server, and the settings of runs whose asker brings none. Nothing is read from the environment.
#[derive(Clone)]
pub struct Options {
    /// The home, with the database and the directories of runs.
    pub home: PathBuf,
    /// The lock of the home, if somebody took it already; otherwise the engine takes it.
    pub lock: Option<Arc<StoreLock>>,
    /// Limits in force.
    pub limits: Arc<Limits>,
    /// The server's own settings for runs.
    pub settings: Arc<RunSettings>,
    /// Secrets that the server has beside those of its settings.
    pub secrets: Vec<Secret>,
    /// Command line of the helper that supervises processes of runs and confines commands: this program with the arguments that
    /// make it call [`crate::supervisor::run`]. Without one, processes are ended by their group and their mark, and
    /// there are no confined commands.
    pub helper: Vec<OsString>,
    /// TCP ports of the server that runs the agents; confined commands cannot connect to them.
    pub server_ports: Vec<u16>,
    /// What processes of attempts may ask of the server beside completing their run; names of [`super::ON_OTHERS`].
    pub may: Vec<String>,
    /// Socket of the server, for drivers that report to it.
    pub server_socket: Option<PathBuf>,
    /// Where clients reach this server over HTTP, for `payload_url`; without a slash at the end. Empty if they cannot.
    pub public_base: String,
    /// The clock.
    pub clock: Clock,
}

impl Options {
    /// An engine at `home` with defaults: no model, no tool servers, no commands.
    pub fn new(home: impl Into<PathBuf>) -> Self {
        Self {
            home: home.into(),
            lock: None,
            limits: Arc::new(Limits::default()),
            settings: Arc::default(),
            secrets: Vec::new(),
            helper: Vec::new(),
            server_ports: Vec::new(),
            may: Vec::new(),
            server_socket: None,
            public_base: "http://localhost:8101".to_owned(),
            clock: Arc::new(|| Timestamp::from(SystemTime::now())),
        }
    }

    /// Where files of runs are: working directories of their own, scratch files.
    pub(super) fn directory(&self) -> PathBuf {
        self.home.join("state").join("agents")
    }

    /// Where server and shims meet, for all attempts of a run.
    pub fn processes_of(&self, run: &RunId) -> PathBuf {
        self.directory().join("processes").join(run.as_str())
    }

    /// The server's own settings, to be changed.
    pub fn settings_mut(&mut self) -> &mut RunSettings {
        Arc::make_mut(&mut self.settings)
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("home", &self.home)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
