//! Reading from disk what is too large for memory: transcripts, payloads, conversations.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bytes::{Bytes, BytesMut};
use crewkit_core::Timestamp;
use crewkit_core::run::RunId;
use rusqlite::{Connection, OptionalExtension as _, params};

use super::batch::sql;
use super::schema::connect;
use super::{EventPage, PayloadInfo, StoreError, events};
use crate::event::Event;
use crate::sync::lock;

/// Reads on threads of the blocking pool, one query at a time; never in the way of the writer.
#[derive(Debug, Clone)]
pub(crate) struct Reader {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    connection: Mutex<Connection>,
    payloads: Mutex<PayloadCache>,
}

/// One line of a stored conversation.
#[derive(Debug, Clone)]
pub(crate) struct ChatLine {
    pub(crate) at: Timestamp,
    pub(crate) body: String,
}

impl Reader {
    pub(super) fn open(path: &Path, cache_bytes: u64) -> Result<Self, StoreError> {
        let connection = connect(path)?;
        connection
            .pragma_update(None, "query_only", true)
            .map_err(|source| StoreError::sqlite(path, source))?;
        let payloads = Mutex::new(PayloadCache { room: cache_bytes, ..PayloadCache::default() });
        Ok(Self {
            shared: Arc::new(Shared { path: path.to_owned(), connection: Mutex::new(connection), payloads }),
        })
    }

    async fn query<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let shared = Arc::clone(&self.shared);
        let done = tokio::task::spawn_blocking(move || {
            let connection = lock(&shared.connection);
            query(&connection).map_err(|source| StoreError::sqlite(&shared.path, source))
        });
        done.await.map_err(|_| StoreError::Closed)?
    }

    /// Entries after `after`, at most `limit`.
    pub(crate) async fn events(
        &self,
        id: &RunId,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Arc<Event>>, StoreError> {
        let id = id.clone();
        self.query(move |connection| {
            let mut select = connection.prepare_cached(
                "SELECT seq, at, body FROM transcript WHERE run = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3",
            )?;
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            let rows = select.query_map(params![id.as_str(), sql(after), limit], |row| {
                let body: String = row.get(2)?;
                let body = serde_json::from_str(&body).map_err(|bad| {
                    rusqlite::Error::FromSqlConversionFailure(2, rusqlite::types::Type::Text, Box::new(bad))
                })?;
                let (seq, at) = (row.get::<_, i64>(0)?.unsigned_abs(), row.get::<_, i64>(1)?.unsigned_abs());
                Ok(Arc::new(Event { seq, at: Timestamp::from_millis(at), body }))
            })?;
            rows.collect()
        })
        .await
    }

    /// A part of the event log; `None` if some of it is no longer kept.
    pub(crate) async fn event_log(&self, after: u64, limit: usize) -> Result<Option<EventPage>, StoreError> {
        self.query(move |connection| events::page(connection, after, limit)).await
    }

    /// What a run shall do. Returns `None` if the run was deleted.
    pub(crate) async fn contract(&self, id: &RunId) -> Result<Option<String>, StoreError> {
        let id = id.clone();
        self.query(move |connection| {
            let mut select = connection.prepare_cached("SELECT contract FROM runs WHERE id = ?1")?;
            select.query_row([id.as_str()], |row| row.get(0)).optional()
        })
        .await
    }

    /// The compressed bytes of a payload.
    pub(crate) async fn payload(&self, info: &PayloadInfo) -> Result<Bytes, StoreError> {
        if let Some(bytes) = lock(&self.shared.payloads).get(&info.upload) {
            return Ok(bytes);
        }
        let (upload, size) = (Arc::clone(&info.upload), info.gzip_size);
        let bytes = self
            .query(move |connection| {
                let mut bytes = BytesMut::with_capacity(usize::try_from(size).unwrap_or(0));
                let mut select = connection
                    .prepare_cached("SELECT data FROM payload_chunks WHERE upload = ?1 ORDER BY n")?;
                let mut rows = select.query([&*upload])?;
                while let Some(row) = rows.next()? {
                    bytes.extend_from_slice(row.get_ref(0)?.as_blob().unwrap_or_default());
                }
                Ok(bytes.freeze())
            })
            .await?;
        self.keep(&info.upload, &bytes);
        Ok(bytes)
    }

    /// Remembers bytes that are likely to be asked for.
    pub(crate) fn keep(&self, upload: &Arc<str>, bytes: &Bytes) {
        lock(&self.shared.payloads).put(upload, bytes);
    }

    /// All lines of a conversation, oldest first.
    pub(crate) async fn chat(&self, conversation: &str) -> Result<Vec<ChatLine>, StoreError> {
        let conversation = conversation.to_owned();
        self.query(move |connection| {
            let mut select = connection
                .prepare_cached("SELECT at, body FROM chats WHERE conversation = ?1 ORDER BY seq")?;
            let rows = select.query_map([conversation], |row| {
                let at = Timestamp::from_millis(row.get::<_, i64>(0)?.unsigned_abs());
                Ok(ChatLine { at, body: row.get(1)? })
            })?;
            rows.collect()
        })
        .await
    }
}

/// The newest payloads, within a bound on their bytes.
#[derive(Debug, Default)]
struct PayloadCache {
    room: u64,
    used: u64,
    newest_last: VecDeque<(Arc<str>, Bytes)>,
}

impl PayloadCache {
    fn get(&self, upload: &str) -> Option<Bytes> {
        self.newest_last.iter().find(|(name, _)| &**name == upload).map(|(_, bytes)| bytes.clone())
    }

    fn put(&mut self, upload: &Arc<str>, bytes: &Bytes) {
        let size = bytes.len() as u64;
        if size > self.room || self.get(upload).is_some() {
            return;
        }
        self.used += size;
        self.newest_last.push_back((Arc::clone(upload), bytes.clone()));
        while self.used > self.room {
            let Some((_, dropped)) = self.newest_last.pop_front() else { break };
            self.used -= dropped.len() as u64;
        }
    }
}
