//! Sessions of streamable HTTP: bounded in number, and remembered across a restart of the server.
//!
//! When there are too many, the one that was used least recently and has no call in flight makes room for a new one.
//! rmcp keeps the living sessions. Beside it stands one small file per session with what the client said at
//! `initialize`; a request for a session that is not in memory brings it back from there, so clients never notice that the
//! server was restarted or that the session had gone to sleep.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use crewkit_core::Limits;
use futures_util::Stream;
use rmcp::model::{ClientJsonRpcMessage, ProtocolVersion, ServerJsonRpcMessage};
use rmcp::transport::WorkerTransport;
use rmcp::transport::streamable_http_server::session::local::{
    LocalSessionManager, LocalSessionManagerError, LocalSessionWorker, SessionConfig,
};
use rmcp::transport::streamable_http_server::session::{
    RestoreOutcome, ServerSseMessage, SessionId, SessionManager, SessionState, SessionStore,
    SessionStoreError,
};
use serde_json::Value;
use tokio::sync::Mutex;

use super::in_flight::InFlight;
use crate::metrics::Metrics;

/// The living sessions, at most so many.
#[derive(Debug)]
pub struct Sessions {
    living: LocalSessionManager,
    most: usize,
    /// When each session was last used by its client.
    used: std::sync::Mutex<HashMap<SessionId, Instant>>,
    in_flight: Arc<InFlight>,
    /// Held while a session is added, so that two clients cannot both take the last place.
    adding: Mutex<()>,
}

/// Why a session could not be had.
#[derive(Debug, thiserror::Error)]
pub enum SessionsError {
    /// The limit is reached.
    #[error("{0} sessions are open already")]
    Full(usize),
    /// rmcp's own reason.
    #[error(transparent)]
    Inner(#[from] LocalSessionManagerError),
}

impl Sessions {
    /// No sessions yet.
    pub(super) fn new(limits: &Limits, in_flight: Arc<InFlight>) -> Self {
        let idle = Duration::from_secs(limits.mcp_session_idle_seconds);
        let mut config = SessionConfig::default();
        config.keep_alive = Some(idle);
        let mut living = LocalSessionManager::default();
        living.session_config = config;
        Self {
            living,
            used: std::sync::Mutex::default(),
            in_flight,
            most: usize::try_from(limits.mcp_sessions).unwrap_or(usize::MAX),
            adding: Mutex::new(()),
        }
    }

    /// Notes a message of a session that is open.
    pub fn note_used(&self, id: &str) {
        if let Some(used) = self.used().get_mut(id) {
            *used = Instant::now();
        }
    }

    fn note_opened(&self, id: &SessionId) {
        self.used().insert(Arc::clone(id), Instant::now());
    }

    fn used(&self) -> MutexGuard<'_, HashMap<SessionId, Instant>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the session that was used least recently and waits for nothing, if no further one is taken. Its client does
    /// not notice: the next message brings it back from its record.
    async fn make_room(&self) -> Result<(), SessionsError> {
        if !self.full().await {
            return Ok(());
        }
        let oldest = {
            let used = self.used();
            let idle = used.iter().filter(|(id, _)| !self.in_flight.is_busy(id));
            idle.min_by_key(|(_, used)| **used).map(|(id, _)| Arc::clone(id))
        };
        match oldest {
            Some(oldest) => self.close_session(&oldest).await,
            None => Err(SessionsError::Full(self.most)),
        }
    }

    /// Whether no further session is taken.
    pub async fn full(&self) -> bool {
        self.living.sessions.read().await.len() >= self.most
    }

    async fn note_count(&self) {
        let count = self.living.sessions.read().await.len();
        Metrics::global().sessions.store(i64::try_from(count).unwrap_or(i64::MAX), Ordering::Relaxed);
    }
}

impl SessionManager for Sessions {
    type Error = SessionsError;
    type Transport = WorkerTransport<LocalSessionWorker>;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), SessionsError> {
        let _one_at_a_time = self.adding.lock().await;
        self.make_room().await?;
        let created = self.living.create_session().await?;
        self.note_count().await;
        Ok(created)
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, SessionsError> {
        let answer = self.living.initialize_session(id, message).await?;
        self.note_opened(id);
        Ok(answer)
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, SessionsError> {
        Ok(self.living.has_session(id).await?)
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), SessionsError> {
        self.used().remove(id);
        self.living.close_session(id).await?;
        self.note_count().await;
        Ok(())
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, SessionsError> {
        Ok(self.living.create_stream(id, message).await?)
    }

    async fn accept_message(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<(), SessionsError> {
        Ok(self.living.accept_message(id, message).await?)
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, SessionsError> {
        Ok(self.living.create_standalone_stream(id).await?)
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, SessionsError> {
        Ok(self.living.resume(id, last_event_id).await?)
    }

    async fn restore_session(&self, id: SessionId) -> Result<RestoreOutcome<Self::Transport>, SessionsError> {
        let _one_at_a_time = self.adding.lock().await;
        self.make_room().await?;
        let outcome = self.living.restore_session(Arc::clone(&id)).await?;
        self.note_opened(&id);
        self.note_count().await;
        Ok(outcome)
    }
}

/// The member of a record that has the resources a session is notified of.
const SUBSCRIPTIONS: &str = "subscriptions";

/// What clients said at `initialize` and what they subscribed to, on disk.
#[derive(Debug)]
pub struct SessionRecords {
    directory: PathBuf,
    most: usize,
    kept: Duration,
}

impl SessionRecords {
    /// Records in `directory`, which is made when the first session is; throws out what is too old.
    pub fn new(directory: PathBuf, limits: &Limits) -> Self {
        let records = Self {
            directory,
            most: usize::try_from(limits.mcp_session_records).unwrap_or(usize::MAX),
            kept: Duration::from_secs(limits.mcp_session_record_seconds),
        };
        records.prune();
        records
    }

    /// The revision a session agreed on, if it is known.
    pub async fn version(&self, session: &str) -> Option<ProtocolVersion> {
        let state = self.load(session).await.ok()??;
        Some(state.initialize_params.protocol_version)
    }

    /// The file of a session. A session id comes from the network: only what rmcp hands out may become a file name.
    fn file(&self, session: &str) -> Option<PathBuf> {
        let safe =
            session.len() == 36 && session.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
        safe.then(|| self.directory.join(format!("{session}.json")))
    }

    fn prune(&self) {
        let Ok(entries) = std::fs::read_dir(&self.directory) else { return };
        let mut files: Vec<(SystemTime, PathBuf)> = entries
            .filter_map(Result::ok)
            .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
            .collect();
        files.sort_by_key(|(modified, _)| std::cmp::Reverse(*modified));
        let oldest = SystemTime::now().checked_sub(self.kept);
        for (index, (modified, path)) in files.iter().enumerate() {
            if index >= self.most || oldest.is_some_and(|oldest| *modified < oldest) {
                // Another process may have been quicker; what stays is pruned next time.
                let _ = std::fs::remove_file(path);
            }
        }
    }

    fn write(&self, path: &Path, json: &[u8]) -> io::Result<()> {
        use std::io::Write as _;
        std::fs::create_dir_all(&self.directory)?;
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create(true).truncate(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        // In one step: a record that is cut off by the end of the server would cost the client its session.
        let draft = path.with_extension("new");
        options.open(&draft)?.write_all(json)?;
        std::fs::rename(&draft, path)?;
        if std::fs::read_dir(&self.directory)?.count() > self.most {
            self.prune();
        }
        Ok(())
    }
}

impl SessionRecords {
    /// The resources that a session is notified of.
    pub async fn subscriptions(&self, session: &str) -> Vec<String> {
        let record = match self.file(session) {
            Some(path) => tokio::fs::read(path).await.ok(),
            None => None,
        };
        let record = record.and_then(|json| serde_json::from_slice::<Value>(&json).ok()).unwrap_or_default();
        serde_json::from_value(record[SUBSCRIPTIONS].clone()).unwrap_or_default()
    }

    /// Remembers which resources a session is notified of. A session without a record is not remembered at all.
    pub async fn set_subscriptions(self: Arc<Self>, session: &str, uris: Vec<String>) -> io::Result<()> {
        let Some(path) = self.file(session) else { return Ok(()) };
        let written = tokio::task::spawn_blocking(move || {
            let mut record: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
            record[SUBSCRIPTIONS] = uris.into();
            self.write(&path, record.to_string().as_bytes())
        });
        written.await?
    }
}

/// Lets rmcp share the records with the front.
#[derive(Debug, Clone)]
pub struct SharedRecords(pub Arc<SessionRecords>);

#[async_trait]
impl SessionStore for SharedRecords {
    async fn load(&self, session_id: &str) -> Result<Option<SessionState>, SessionStoreError> {
        self.0.load(session_id).await
    }

    async fn store(&self, session_id: &str, state: &SessionState) -> Result<(), SessionStoreError> {
        let Some(path) = self.0.file(session_id) else { return Ok(()) };
        let json = serde_json::to_vec(state)?;
        let records = Arc::clone(&self.0);
        Ok(tokio::task::spawn_blocking(move || records.write(&path, &json)).await??)
    }

    async fn delete(&self, session_id: &str) -> Result<(), SessionStoreError> {
        let Some(path) = self.0.file(session_id) else { return Ok(()) };
        match tokio::fs::remove_file(path).await {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}

impl SessionRecords {
    async fn load(&self, session: &str) -> Result<Option<SessionState>, SessionStoreError> {
        let Some(path) = self.file(session) else { return Ok(None) };
        match tokio::fs::read(&path).await {
            // A record that cannot be read is a session that is not there: the client starts a new one.
            Ok(json) => Ok(serde_json::from_slice(&json).ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rmcp::model::RequestId;

    fn sessions(idle: u64) -> Sessions {
        let limits = Limits { mcp_session_idle_seconds: idle, mcp_sessions: 3, ..Limits::default() };
        Sessions::new(&limits, Arc::default())
    }

    #[tokio::test]
    async fn the_session_used_least_recently_makes_room_unless_it_waits() {
        let sessions = sessions(3600);
        let mut ids = Vec::new();
        for _ in 0..3 {
            let (id, _) = sessions.create_session().await.unwrap();
            sessions.note_opened(&id);
            ids.push(id);
        }
        sessions.note_used(&ids[0]);
        let call = InFlight::enter(&sessions.in_flight, ids[1].to_string(), &RequestId::Number(1), 9);
        let (fourth, _) = sessions.create_session().await.unwrap();
        let mut alive = Vec::new();
        for id in [&ids[0], &ids[1], &ids[2], &fourth] {
            alive.push(sessions.has_session(id).await.unwrap());
        }
        assert_eq!(alive, [true, true, false, true]);
        drop(call);
        sessions.note_opened(&fourth);
        sessions.create_session().await.unwrap();
        assert!(!sessions.has_session(&ids[1]).await.unwrap());
    }

    #[tokio::test]
    async fn sessions_that_all_wait_make_no_room() {
        let sessions = sessions(3600);
        let mut calls = Vec::new();
        for _ in 0..3 {
            let (id, _) = sessions.create_session().await.unwrap();
            sessions.note_opened(&id);
            calls.push(InFlight::enter(&sessions.in_flight, id.to_string(), &RequestId::Number(1), 9));
        }
        assert!(matches!(sessions.create_session().await, Err(SessionsError::Full(3))));
    }
}
