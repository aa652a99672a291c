//! What can be wrong with the file of a store, whatever it keeps.

use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why a store's file cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
pub enum FileFault {
    /// The system refused.
    #[error("{}: {source}", path.display())]
    Unusable {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: Arc<std::io::Error>,
    },
    /// SQLite could not do something.
    #[error("{}: {source}", path.display())]
    Sqlite {
        /// The store.
        path: PathBuf,
        /// What SQLite said.
        source: Arc<rusqlite::Error>,
    },
    /// The disk is full.
    #[error("{}: no room left on the disk", path.display())]
    Full {
        /// The store.
        path: PathBuf,
    },
    /// Another process has it.
    #[error("{} is in use by another crewkit process", path.display())]
    Locked {
        /// The home, or a file of 0.1.0.
        path: PathBuf,
    },
    /// A newer program wrote it.
    #[error("{} has layout {found}, this program knows {known}", path.display())]
    TooNew {
        /// The store.
        path: PathBuf,
        /// Layout of the file.
        found: u32,
        /// Newest layout this program knows.
        known: u32,
    },
    /// A row holds something no version ever wrote.
    #[error("{}: {what} is damaged: {why}", path.display())]
    Damaged {
        /// The store.
        path: PathBuf,
        /// The row.
        what: String,
        /// What is wrong with it.
        why: String,
    },
}

impl FileFault {
    /// What the system said about a file.
    pub fn io(path: &Path, source: std::io::Error) -> Self {
        Self::Unusable { path: path.to_owned(), source: Arc::new(source) }
    }

    /// What SQLite said about a store.
    pub fn sqlite(path: &Path, source: rusqlite::Error) -> Self {
        match source.sqlite_error_code() {
            Some(rusqlite::ErrorCode::DiskFull) => Self::Full { path: path.to_owned() },
            _ => Self::Sqlite { path: path.to_owned(), source: Arc::new(source) },
        }
    }
}
