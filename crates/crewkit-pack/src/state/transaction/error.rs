//! Why a transaction did not happen.

use std::io;
use std::path::{Path, PathBuf};

use crewkit_core::Code;

use crate::error::{PackError, code_of_io};
use crate::fs::path::RelPathError;
use crate::state::lock::Holder;

/// Why a transaction did not happen. Unless it says otherwise, every tree is as it was.
#[derive(Debug, thiserror::Error)]
pub enum TxnError {
    /// The file system refused something.
    #[error("{doing} {}: {source}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
    /// There is not enough room.
    #[error("no room for {} on its file system: {needed} bytes are needed{}", path.display(), shown_available(*.available))]
    NoSpace { path: PathBuf, needed: u64, available: Option<u64> },
    /// The file system takes no writes.
    #[error("{} is on a read-only file system; {needed} bytes would be written there", path.display())]
    ReadOnly { path: PathBuf, needed: u64 },
    /// A place no longer holds what the plan saw.
    #[error("{} was changed since the plan was made: {found}", path.display())]
    Changed { path: PathBuf, found: &'static str },
    /// Something that is not a file stands where one shall go.
    #[error("{} is {found}, not a file", path.display())]
    NotAFile { path: PathBuf, found: &'static str },
    /// A directory on the way is a link or a file.
    #[error("{} is not a directory below {}: a link or a file is in the way", path.display(), root.display())]
    Blocked { path: PathBuf, root: PathBuf },
    /// A root leads outside of the directory that all of them must lie below.
    #[error("{} leads to {}, outside of the workspace {}", path.display(), real.display(), boundary.display())]
    Escape { path: PathBuf, real: PathBuf, boundary: PathBuf },
    /// A path cannot be used.
    #[error("{} cannot be used: {reason}", path.display())]
    BadPath { path: PathBuf, reason: String },
    /// Two changes name the same place with different content.
    #[error("{} would be written twice with different content", path.display())]
    Twice { path: PathBuf },
    /// The source no longer has the content that was planned.
    #[error("the content for {} changed while it was read", path.display())]
    SourceChanged { path: PathBuf },
    /// The store does not have a content that is needed.
    #[error("the content of {} ({sha256}) is not in the store", path.display())]
    NotStored { path: PathBuf, sha256: String },
    /// Another command holds the lock.
    #[error("{} is in use by {holder}", path.display())]
    Locked { path: PathBuf, holder: Holder },
    /// A journal cannot be read, so what was cut short is not known.
    #[error("the journal {} cannot be read: {reason}", path.display())]
    JournalInvalid { path: PathBuf, reason: String },
    /// A snapshot does not exist.
    #[error("there is no snapshot `{id}`")]
    SnapshotNotFound { id: String },
    /// A snapshot exists but cannot be used.
    #[error("the snapshot {} cannot be used: {reason}", path.display())]
    SnapshotInvalid { path: PathBuf, reason: String },
    /// The change failed midway and could not be taken back either; the next command finishes it.
    #[error("{cause}; taking the change back failed too ({undo}), the next command completes it")]
    Unfinished { cause: Box<Self>, undo: Box<Self> },
    /// The change was taken back, except at places that somebody edited meanwhile.
    #[error(
        "{cause}; what had been replaced at a place that was edited meanwhile is now {}",
        shown_paths(kept)
    )]
    KeptAside { cause: Box<Self>, kept: Vec<PathBuf> },
    /// A rule of this crate is broken.
    #[error("{0}")]
    Bug(String),
}

fn shown_available(available: Option<u64>) -> String {
    available.map_or_else(String::new, |available| format!(", {available} are free"))
}

fn shown_paths(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

impl TxnError {
    /// Wraps an error of the file system.
    pub(crate) fn io(doing: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::Io { doing, path: path.into(), source }
    }

    /// For `map_err`.
    pub(crate) fn at(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::io(doing, path, source)
    }

    /// Says how much was needed when there is no room or no writing.
    pub(crate) fn with_needed(self, needed: u64) -> Self {
        match self {
            Self::Io { path, source, .. }
                if matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) =>
            {
                Self::NoSpace { path, needed, available: None }
            }
            Self::Io { path, source, .. } if source.kind() == io::ErrorKind::ReadOnlyFilesystem => {
                Self::ReadOnly { path, needed }
            }
            other => other,
        }
    }

    pub(crate) fn bad_path(path: &Path, error: &RelPathError) -> Self {
        Self::BadPath { path: path.to_owned(), reason: error.to_string() }
    }

    /// The stable code.
    pub fn code(&self) -> Code {
        match self {
            Self::Io { source, .. } => code_of_io(source),
            Self::NoSpace { .. } => Code::IoNoSpace,
            Self::ReadOnly { .. } => Code::IoReadOnly,
            Self::Changed { .. } => Code::Drifted,
            Self::NotAFile { .. } => Code::TargetNotAFile,
            Self::Blocked { .. } | Self::Escape { .. } => Code::TargetEscape,
            Self::BadPath { .. } => Code::IoInvalidPath,
            Self::Twice { .. } => Code::DesiredStateConflict,
            Self::SourceChanged { .. } => Code::SourceMismatch,
            Self::Locked { .. } => Code::Locked,
            Self::JournalInvalid { .. } => Code::RecoveryFailed,
            Self::SnapshotNotFound { .. } => Code::SnapshotNotFound,
            Self::SnapshotInvalid { .. } | Self::NotStored { .. } => Code::SnapshotInvalid,
            Self::Unfinished { cause, .. } | Self::KeptAside { cause, .. } => cause.code(),
            Self::Bug(_) => Code::Unexpected,
        }
    }

    /// The place it is about.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Io { path, .. }
            | Self::NoSpace { path, .. }
            | Self::ReadOnly { path, .. }
            | Self::Changed { path, .. }
            | Self::NotAFile { path, .. }
            | Self::Blocked { path, .. }
            | Self::Escape { path, .. }
            | Self::BadPath { path, .. }
            | Self::Twice { path }
            | Self::SourceChanged { path }
            | Self::NotStored { path, .. }
            | Self::Locked { path, .. }
            | Self::JournalInvalid { path, .. }
            | Self::SnapshotInvalid { path, .. } => Some(path),
            Self::Unfinished { cause, .. } | Self::KeptAside { cause, .. } => cause.path(),
            Self::SnapshotNotFound { .. } | Self::Bug(_) => None,
        }
    }
}

impl From<TxnError> for PackError {
    fn from(error: TxnError) -> Self {
        let mut this = Self::new(error.code(), error.to_string());
        if let Some(path) = error.path() {
            this = this.paths(path);
        }
        match &error {
            TxnError::Io { source, .. } => {
                this = this
                    .detail("io_kind", source.kind().to_string())
                    .detail("raw_os_error", source.raw_os_error());
            }
            TxnError::NoSpace { needed, available, .. } => {
                this = this.detail("bytes_needed", *needed).detail("bytes_available", *available);
            }
            TxnError::ReadOnly { needed, .. } => this = this.detail("bytes_needed", *needed),
            TxnError::Locked { holder, .. } => {
                this = this
                    .detail("pid", holder.pid)
                    .detail("command", holder.command.as_str())
                    .detail("since", holder.since.as_str());
            }
            TxnError::SnapshotNotFound { id } => this = this.detail("snapshot_id", id.as_str()),
            _ => {}
        }
        this.caused_by(error)
    }
}
