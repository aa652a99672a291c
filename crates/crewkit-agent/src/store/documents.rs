//! Documents: JSON texts that other parts of the server keep in the home's database, written with their events.

use std::path::PathBuf;
use std::sync::Arc;

use rusqlite::{Connection, params};
use tokio::sync::{mpsc, oneshot};

use super::schema::connect;
use super::{Command, NewEvent, StoreError};

/// One change of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DocumentChange {
    /// Creates or replaces a document.
    Put {
        /// What it is: `agent`, `task`, …
        kind: &'static str,
        /// Its id, unique within the kind.
        id: String,
        /// Its text.
        body: String,
    },
    /// Removes a document, if it is there.
    Delete {
        /// What it is.
        kind: &'static str,
        /// Its id.
        id: String,
    },
}

impl DocumentChange {
    pub(super) fn write(&self, connection: &Connection) -> rusqlite::Result<()> {
        match self {
            Self::Put { kind, id, body } => connection
                .prepare_cached(
                    "INSERT INTO documents (kind, id, body) VALUES (?1, ?2, ?3)
                     ON CONFLICT (kind, id) DO UPDATE SET body = excluded.body",
                )?
                .execute(params![kind, id, body]),
            Self::Delete { kind, id } => connection
                .prepare_cached("DELETE FROM documents WHERE kind = ?1 AND id = ?2")?
                .execute(params![kind, id]),
        }
        .map(drop)
    }
}

/// A handle to the documents of the home.
#[derive(Debug, Clone)]
pub struct Documents {
    commands: mpsc::Sender<Command>,
    path: Arc<PathBuf>,
}

impl Documents {
    pub(super) fn new(commands: mpsc::Sender<Command>, path: Arc<PathBuf>) -> Self {
        Self { commands, path }
    }

    /// Returns the id and the text of every document of a kind, in the order of the ids. Blocks.
    pub fn all(&self, kind: &'static str) -> Result<Vec<(String, String)>, StoreError> {
        let of = |source| StoreError::sqlite(&self.path, source);
        let connection = connect(&self.path)?;
        let mut select =
            connection.prepare("SELECT id, body FROM documents WHERE kind = ?1 ORDER BY id").map_err(of)?;
        let rows = select.query_map([kind], |row| Ok((row.get(0)?, row.get(1)?))).map_err(of)?;
        rows.collect::<Result<_, _>>().map_err(of)
    }

    /// Makes changes and records events, all or none; returns once they are on disk.
    ///
    /// The changes are made even if the returned future is dropped after its first poll, as long as the store has room.
    pub async fn write(&self, changes: Vec<DocumentChange>, events: Vec<NewEvent>) -> Result<(), StoreError> {
        let (reply, answer) = oneshot::channel();
        let command = Command::Documents { changes, events, reply };
        self.commands.send(command).await.map_err(|_| StoreError::Closed)?;
        answer.await.map_err(|_| StoreError::Closed)?
    }
}
