//! `run/server.json`: who owns the home, and where it is reached.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crewkit_core::Timestamp;
use crewkit_server::services::ServerAbout;
use serde::{Deserialize, Serialize};

use super::identity::{self, Build, Namespaces};

/// How the owner of a home was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServerKind {
    /// By a person or a service manager, with `crewkit serve`.
    Foreground,
    /// By a client that found no server.
    Background,
    /// With `--in-process`: it owns the home, and nobody can connect to it.
    InProcess,
}

impl fmt::Display for ServerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Foreground => "`crewkit serve`",
            Self::Background => "the background server",
            Self::InProcess => "a command with `--in-process`",
        })
    }
}

/// The process that owns a home.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerRecord {
    /// Its process id, in its own process namespace.
    pub pid: u32,
    /// When the process was started, in ticks since the machine was.
    pub start_ticks: Option<u64>,
    /// Which run of the machine it belongs to.
    pub boot_id: Option<String>,
    /// Since when it owns the home.
    pub since: String,
    /// Its build.
    pub build: Build,
    /// The protocol it speaks with clients.
    pub protocol: u32,
    /// The namespaces it runs in.
    pub namespaces: Namespaces,
    /// How it was started.
    pub kind: ServerKind,
    /// Its socket. `None` if nobody can connect.
    pub socket: Option<PathBuf>,
    /// Its HTTP address, if it has one.
    pub http: Option<String>,
}

impl ServerRecord {
    /// Describes this process.
    pub fn own(kind: ServerKind) -> Self {
        let pid = std::process::id();
        Self {
            pid,
            start_ticks: identity::start_ticks(pid),
            boot_id: identity::boot_id(),
            since: Timestamp::from(SystemTime::now()).to_string(),
            build: Build::own(),
            protocol: identity::protocol(),
            namespaces: Namespaces::own(),
            kind,
            socket: None,
            http: None,
        }
    }

    /// The record of `home`. Returns `None` if there is none, or none that can be read: then nobody can be found by it.
    ///
    /// A record can be stale: only the lock tells whether its process is alive.
    pub fn read(home: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(path(home)).ok()?).ok()
    }

    /// Writes the record in one step. The caller owns the home.
    pub fn write(&self, home: &Path) -> io::Result<()> {
        let (path, draft) = (path(home), home.join("run").join("server.json.new"));
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create(true).truncate(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(&draft)?;
        io::Write::write_all(&mut file, format!("{:#}\n", serde_json::json!(self)).as_bytes())?;
        drop(file);
        std::fs::rename(&draft, &path)
    }

    /// Removes the record. The caller owns the home.
    pub fn remove(home: &Path) {
        let _ = std::fs::remove_file(path(home));
    }

    /// Whether its process is still there, as far as this process can see.
    pub fn is_alive(&self) -> bool {
        self.boot_id == identity::boot_id()
            && self.start_ticks.is_some()
            && self.start_ticks == identity::start_ticks(self.pid)
    }

    /// Who it is, for its clients.
    pub fn about(&self) -> ServerAbout {
        let Self { pid, since, build, protocol, http, .. } = self.clone();
        ServerAbout { pid, since, build: build.to_string(), protocol, http }
    }

    /// Who it is, for messages.
    pub fn describe(&self) -> String {
        format!("{} (pid {}, build {}, since {})", self.kind, self.pid, self.build, self.since)
    }
}

fn path(home: &Path) -> PathBuf {
    home.join("run").join("server.json")
}
