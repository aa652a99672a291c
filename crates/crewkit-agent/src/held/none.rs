//! Where there is no shim, processes end with the server.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use crate::driver::{Format, Stdin};

/// What would be held.
#[expect(dead_code, reason = "nobody reads it where there is no shim")]
pub(crate) struct Order {
    pub(crate) command: Vec<String>,
    pub(crate) directory: PathBuf,
    pub(crate) run: String,
    pub(crate) driver: String,
    pub(crate) format: Format,
    pub(crate) stdin: Stdin,
    pub(crate) line_bytes: u64,
    pub(crate) output_bytes: u64,
    pub(crate) seconds: u64,
    pub(crate) grace_ms: u64,
    pub(crate) token: Vec<u8>,
}

/// Something a process printed.
#[expect(dead_code, reason = "nothing is missing where nothing is kept on disk")]
pub(crate) enum Frame {
    Said { text: String, cut: bool },
    Complained(String),
    Missing,
}

/// How a held process came to its end.
#[expect(dead_code, reason = "nothing is held")]
pub(crate) enum Ending {
    Exited,
    Stopped,
    OutOfTime,
    NotStarted,
    Unseen,
    Rebooted,
}

/// The end of a held process.
pub(crate) struct Exit {
    pub(crate) ending: Ending,
    pub(crate) success: bool,
    pub(crate) how: String,
}

/// Frames and the position after each of them.
pub(crate) struct Read {
    pub(crate) frames: Vec<(Frame, u64)>,
    pub(crate) from: u64,
}

/// A process that is held; there is none.
pub(crate) struct Held {
    pub(crate) order: Order,
    never: std::convert::Infallible,
}

impl Held {
    pub(crate) async fn launch(
        _: &[OsString],
        _: &Path,
        _: Order,
        _: String,
        _: impl IntoIterator<Item = &(OsString, OsString)>,
    ) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) async fn adopt(_: &Path) -> Option<Self> {
        None
    }

    pub(crate) async fn read(&mut self, _: u64) -> io::Result<Read> {
        match self.never {}
    }

    pub(crate) fn exit(&self) -> Exit {
        match self.never {}
    }

    pub(crate) async fn stop(&mut self) {
        match self.never {}
    }
}

pub(crate) fn ask_to_end(_: &Path) {}

pub(crate) fn end_left(_: &Path) {}

pub(crate) fn append_input(_: &Path, _: &str) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(crate) fn close_input(_: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
