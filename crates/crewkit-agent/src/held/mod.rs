//! Processes that outlive the server: each is held by a small process of its own, the shim.
//!
//! Server and shim share a directory and nothing else. The order is written before the shim starts; the shim writes who it is,
//! what its child prints and how it ended. So a server that was killed finds everything again, and a shim never needs a
//! server. Only Linux has what it takes: elsewhere processes end with the server.

mod launch;
mod output;
mod shim;

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

pub(crate) use launch::{Held, append_input, ask_to_end, close_input, end_left};
pub(crate) use output::Frame;
pub(crate) use shim::run as run_shim;

use crate::driver::{Format, Stdin};
use crate::sys::ProcessId;

/// What a shim is to hold, and what the next server needs to know to go on with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Order {
    /// Program and arguments.
    pub(crate) command: Vec<String>,
    /// Where it runs.
    pub(crate) directory: PathBuf,
    /// The run, as its processes are marked.
    pub(crate) run: String,
    /// Name of the driver.
    pub(crate) driver: String,
    /// What it writes.
    pub(crate) format: Format,
    /// What it reads.
    pub(crate) stdin: Stdin,
    /// Longest line of output; of a longer one the beginning is kept.
    pub(crate) line_bytes: u64,
    /// Bytes of output that are kept for a server that does not read; the oldest go first.
    pub(crate) output_bytes: u64,
    /// Seconds it may take; 0 means as long as it likes.
    pub(crate) seconds: u64,
    /// Milliseconds between being asked to end and being killed.
    pub(crate) grace_ms: u64,
    /// Hash of the token of the attempt.
    pub(crate) token: Vec<u8>,
}

/// Who a shim and its child are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) shim: ProcessId,
    /// Number of the child it holds, for people.
    pub(crate) child: u32,
}

/// How a held process came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ending {
    /// By itself.
    Exited,
    /// It was asked to.
    Stopped,
    /// Its time was over.
    OutOfTime,
    /// It never began.
    NotStarted,
    /// Nobody saw it: its shim was killed.
    Unseen,
    /// Nobody saw it: the machine went down.
    Rebooted,
}

/// The end of a held process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Exit {
    pub(crate) ending: Ending,
    pub(crate) success: bool,
    /// For people: `exit code 3`, `killed by signal: 9`.
    pub(crate) how: String,
}

/// The files of one held process.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Files {
    dir: PathBuf,
}

impl Files {
    fn in_dir(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    fn order(&self) -> PathBuf {
        self.dir.join("order.json")
    }

    /// What the child reads; only grows.
    fn input(&self) -> PathBuf {
        self.dir.join("input")
    }

    /// Says that the input will not grow any more.
    fn input_end(&self) -> PathBuf {
        self.dir.join("input.end")
    }

    fn identity(&self) -> PathBuf {
        self.dir.join("shim.json")
    }

    fn exit(&self) -> PathBuf {
        self.dir.join("exit.json")
    }

    /// A pipe that a running shim listens at.
    fn control(&self) -> PathBuf {
        self.dir.join("control")
    }

    /// A pipe that a shim writes to when there is output.
    fn wake(&self) -> PathBuf {
        self.dir.join("wake")
    }
}

/// What a shim is told, each by one byte.
mod word {
    /// Ask the child to end, and kill it after the grace.
    pub(super) const STOP: u8 = b'T';
    /// Kill everything at once.
    pub(super) const KILL: u8 = b'K';
    /// The input has grown or has ended.
    pub(super) const INPUT: u8 = b'I';
}

/// Writes a file that is there whole or not at all, also after a power cut.
fn write_whole(path: &Path, value: &impl Serialize) -> io::Result<()> {
    use std::io::Write as _;
    let draft = path.with_extension("new");
    let mut file = private_file(&draft)?;
    file.write_all(&serde_json::to_vec(value)?)?;
    file.sync_all()?;
    std::fs::rename(&draft, path)
}

/// Reads such a file; none when it is not there or not ours.
fn read_whole<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

/// A new, empty file only its owner can read.
fn private_file(path: &Path) -> io::Result<std::fs::File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}

/// Opens a pipe by its name, for reading and writing, so that it never reports an end; makes it if need be.
fn open_pipe(path: &Path) -> io::Result<std::fs::File> {
    use rustix::fs::{CWD, Mode, mkfifoat};
    use std::os::unix::fs::OpenOptionsExt as _;
    match mkfifoat(CWD, path, Mode::RUSR | Mode::WUSR) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default();
    std::fs::OpenOptions::new().read(true).write(true).custom_flags(nonblocking).open(path)
}
