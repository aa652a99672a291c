//! Documents: JSON texts that other parts of the server keep in the home's database, written with their events.

use std::path::PathBuf;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension as _, params};
use tokio::sync::{mpsc, oneshot};

use super::schema::connect;
use super::{Command, FileFault, NewEvent, StoreError};
use crate::settings::RecordedSettings;

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
    /// Keeps settings for as long as a document names them, at `settings.run`, or a run uses them.
    Settings(Arc<RecordedSettings>),
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
            Self::Settings(settings) => return put_settings(connection, settings.id(), settings.body()),
        }
        .map(drop)
    }
}

/// Keeps settings until nothing names them.
pub(super) fn put_settings(connection: &Connection, id: &str, body: &str) -> rusqlite::Result<()> {
    let insert = "INSERT OR IGNORE INTO settings (id, body) VALUES (?1, ?2)";
    connection.prepare_cached(insert)?.execute([id, body]).map(drop)
}

/// Removes settings that nothing names.
pub(super) fn forget_settings(connection: &Connection) -> rusqlite::Result<()> {
    let delete =
        "DELETE FROM settings WHERE NOT EXISTS (SELECT 1 FROM runs WHERE runs.settings = settings.id)
        AND settings.id NOT IN (SELECT json_extract(body, '$.settings.run') FROM documents
            WHERE kind = 'agent' AND json_extract(body, '$.settings.run') IS NOT NULL)";
    connection.prepare_cached(delete)?.execute([]).map(drop)
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

    /// Returns recorded settings, if they are there. Blocks.
    pub fn settings(&self, id: &str) -> Result<Option<RecordedSettings>, StoreError> {
        let of = |source| StoreError::sqlite(&self.path, source);
        let connection = connect(&self.path)?;
        let select = "SELECT body FROM settings WHERE id = ?1";
        let body: Option<String> =
            connection.query_row(select, [id], |row| row.get(0)).optional().map_err(of)?;
        let damaged = |error: serde_json::Error| FileFault::Damaged {
            path: self.path.to_path_buf(),
            what: format!("settings {id}"),
            why: error.to_string(),
        };
        Ok(body.map(RecordedSettings::parse).transpose().map_err(damaged)?)
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
