//! Processes that outlive the server: each is held by a small process of its own, the shim.
//!
//! Server and shim share a directory and nothing else. The order is written before the shim starts; the shim writes who
//! it is, what its child prints and how it ended. So a server that was killed finds everything again, and a shim never
//! needs a server.

mod launch;
#[cfg(unix)]
mod shim;
#[cfg(not(unix))]
#[path = "no_shim.rs"]
mod shim;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

pub use crate::sys::process::ProcessId;
pub use launch::{Adoption, Held, LaunchError, Launcher, Parcel};
pub use shim::run as run_shim;

/// Names the task in the environment of everything that works on it.
pub const MARK_TASK: &str = "CREWKIT_TASK";
/// Names the fleet a process belongs to.
pub const MARK_FLEET: &str = "CREWKIT_FLEET";

/// What a shim is to hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Where it runs.
    pub directory: PathBuf,
    /// The task, as its processes are marked.
    pub task: String,
    /// Bytes of output that are kept of each stream; the rest is dropped.
    pub output_bytes: u64,
    /// Seconds it may take; 0 means as long as it likes.
    pub seconds: u64,
    /// Milliseconds between being asked to end and being killed.
    pub grace_ms: u64,
}

/// Who a shim and its child are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The shim.
    pub shim: ProcessId,
    /// The child it holds.
    pub child: u32,
}

/// How a held process came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// By itself.
    Exited,
    /// It was asked to.
    Stopped,
    /// Its time was over.
    OutOfTime,
    /// It never began.
    NotStarted,
    /// Nobody saw it: its shim was killed, or the machine went down.
    Unseen,
}

/// The end of a held process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// How it came about.
    pub ending: Ending,
    /// Its exit code, when it had one.
    pub code: Option<i32>,
    /// For people: `exit code 3`, `killed by signal 9`.
    pub how: String,
    /// Milliseconds since 1970.
    pub at_ms: u64,
    /// Processes it left behind that had to be killed.
    pub leftovers: usize,
}

/// The files of one held process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Files {
    dir: PathBuf,
}

impl Files {
    pub(crate) fn in_dir(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    pub(crate) fn order(&self) -> PathBuf {
        self.dir.join("order.json")
    }

    pub(crate) fn stdin(&self) -> PathBuf {
        self.dir.join("stdin")
    }

    pub(crate) fn stdout(&self) -> PathBuf {
        self.dir.join("stdout")
    }

    pub(crate) fn stderr(&self) -> PathBuf {
        self.dir.join("stderr")
    }

    pub(crate) fn identity(&self) -> PathBuf {
        self.dir.join("shim.json")
    }

    pub(crate) fn exit(&self) -> PathBuf {
        self.dir.join("exit.json")
    }

    /// A pipe a running shim listens at.
    pub(crate) fn control(&self) -> PathBuf {
        self.dir.join("control")
    }
}

/// Writes a file that is there whole or not at all, also after a power cut.
pub(crate) fn write_whole(path: &Path, value: &impl Serialize) -> io::Result<()> {
    use std::io::Write;
    let draft = path.with_extension("new");
    let mut file = private_file(&draft)?;
    serde_json::to_writer(&mut file, value)?;
    file.flush()?;
    file.sync_all()?;
    std::fs::rename(&draft, path)
}

/// Reads such a file; none when it is not there or not ours.
pub(crate) fn read_whole<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

/// A new, empty file only its owner can read.
pub(crate) fn private_file(path: &Path) -> io::Result<std::fs::File> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}
