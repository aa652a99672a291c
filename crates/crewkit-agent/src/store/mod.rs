//! The database of the home: one SQLite file, one writer thread, group commit.
//!
//! A change travels as a [`Command`] to the writer, which decides it against the state it has, writes it together
//! with whatever else is waiting, and only after the disk has it makes it visible in memory and answers. So two
//! wishes about one run are always decided one after the other, and an answer is never ahead of the disk.

mod batch;
mod documents;
mod events;
mod fault;
mod load;
mod lock;
mod memory;
mod migrate;
mod reader;
mod schema;
#[cfg(test)]
mod tests;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use crewkit_core::run::{IllegalMove, Move, RunId};
use crewkit_core::{Limits, Secret, Timestamp};
use tokio::sync::{mpsc, oneshot, watch};

pub use documents::{DocumentChange, Documents};
pub use events::{EventPage, LoggedEvent, NewEvent};
pub use fault::FileFault;
pub use lock::StoreLock;
pub(crate) use memory::{Entry, Memory, Progress, Pulse};
pub use memory::{PayloadInfo, Pool, RunRecord, RunSpec};
pub(crate) use reader::Reader;

use crate::event::EventBody;
use crate::settings::RecordedSettings;

/// The database of a home.
const FILE: &str = "crewkit.db";

/// Reads the present moment; tests pass their own.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Why the store did not do something.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The file cannot be used.
    #[error(transparent)]
    File(#[from] FileFault),
    /// No run has this id.
    #[error("no agent has the id {0}")]
    Unknown(RunId),
    /// The state does not allow it.
    #[error(transparent)]
    Illegal(#[from] IllegalMove),
    /// The attempt the change belongs to is over and another has begun.
    #[error("the attempt is over")]
    Stale,
    /// As many runs are queued as may be.
    #[error("{0} agents are queued, which is the limit")]
    QueueFull(u64),
    /// The store is closed.
    #[error("the run store is closed")]
    Closed,
}

impl StoreError {
    fn sqlite(path: &Path, source: rusqlite::Error) -> Self {
        FileFault::sqlite(path, source).into()
    }
}

/// Whether a command changed anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    Done,
    /// The run had ended, or the key had been used: what holds already is the answer.
    Unchanged,
}

/// The answer to a command, given after the disk has its change.
#[derive(Debug, Clone)]
pub(crate) struct Ack {
    pub(crate) effect: Effect,
    pub(crate) record: Arc<RunRecord>,
}

type Reply = oneshot::Sender<Result<Ack, StoreError>>;

/// A move with what comes along.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) id: RunId,
    /// Only if this attempt is still the present one.
    pub(crate) attempt: Option<u32>,
    pub(crate) wanted: Move,
    pub(crate) summary: Option<String>,
    pub(crate) error: Option<String>,
    pub(crate) payload: Option<PayloadInfo>,
    /// Why a run is queued again after its server ended, which counts as a restart, or what it waits for.
    pub(crate) note: Option<String>,
    /// Other settings, which replace those of the run.
    pub(crate) settings: Option<Arc<RecordedSettings>>,
}

impl Change {
    pub(crate) fn to(id: &RunId, wanted: Move) -> Self {
        Self {
            id: id.clone(),
            attempt: None,
            wanted,
            summary: None,
            error: None,
            payload: None,
            note: None,
            settings: None,
        }
    }
}

/// A run to be created.
#[derive(Debug)]
pub(crate) struct NewRun {
    pub(crate) id: RunId,
    pub(crate) contract: Arc<str>,
    pub(crate) spec: RunSpec,
    pub(crate) idempotency: Option<Arc<str>>,
    pub(crate) settings: Option<Arc<RecordedSettings>>,
    pub(crate) begin: Begin,
}

/// Which ended runs are removed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PruneRule {
    /// Those that ended at least this long ago.
    pub(crate) older_than: Duration,
    /// But not this many of the newest.
    pub(crate) keep: usize,
    /// At most this many, the oldest first.
    pub(crate) most: usize,
}

/// Whether a new run starts at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begin {
    Now,
    Later,
}

#[derive(Debug)]
pub(crate) enum Command {
    Create(NewRun, Reply),
    SetContract(RunId, Arc<str>, Reply),
    Append {
        id: RunId,
        attempt: u32,
        bodies: Vec<EventBody>,
        progress: Option<Progress>,
        reply: Option<Reply>,
    },
    Change(Change, Reply),
    Delete(RunId, Reply),
    Prune {
        prune: PruneRule,
        reply: oneshot::Sender<Result<Vec<Arc<RunRecord>>, StoreError>>,
    },
    /// Removes the chunks of an upload that no run names.
    DropUpload(Arc<str>),
    Upload {
        upload: Arc<str>,
        n: u32,
        data: Bytes,
        reply: oneshot::Sender<Result<(), StoreError>>,
    },
    Chat {
        conversation: Arc<str>,
        at: Timestamp,
        body: String,
        keep: u64,
        reply: oneshot::Sender<Result<(), StoreError>>,
    },
    ForgetChats {
        keep: u64,
    },
    Documents {
        changes: Vec<DocumentChange>,
        events: Vec<NewEvent>,
        reply: oneshot::Sender<Result<(), StoreError>>,
    },
    /// Removes events recorded before then.
    ForgetEvents {
        before: Timestamp,
    },
}

/// Sends changes to the writer and reads what is on disk.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    commands: mpsc::Sender<Command>,
    memory: Arc<Memory>,
    reader: Reader,
    path: Arc<PathBuf>,
    last_event: watch::Receiver<u64>,
}

/// The store, and the runs that were not ended when the last process did.
pub(crate) struct Recovered {
    pub(crate) store: Store,
    pub(crate) running: Vec<RunId>,
    /// Ids of runs whose state has changed, sent after the change is on disk and visible.
    pub(crate) moved: mpsc::UnboundedReceiver<RunId>,
    pub(crate) writer: std::thread::JoinHandle<()>,
    /// The key of fingerprints.
    pub(crate) fingerprint_key: Secret,
}

impl Store {
    /// Opens the database of a home, which is locked, and starts the writer. What 0.1.0 left in the home is brought over.
    pub(crate) fn open(
        home: &Path,
        lock: Arc<StoreLock>,
        clock: &Clock,
        limits: &Limits,
    ) -> Result<Recovered, StoreError> {
        let path = home.join(FILE);
        let opened = schema::open(&path, lock)?;
        migrate::bring_over(home, &opened)?;
        Self::start(opened, &path, clock, limits)
    }

    fn start(
        opened: schema::Opened,
        path: &Path,
        clock: &Clock,
        limits: &Limits,
    ) -> Result<Recovered, StoreError> {
        let memory = Arc::new(Memory::new(limits.agent_queue));
        let running = load::load(&opened, &memory)?;
        let reader = Reader::open(path, limits.agent_payload_cache_bytes)?;
        let queue = usize::try_from(limits.agent_store_queue).unwrap_or(usize::MAX).clamp(1, 1 << 20);
        let (commands, inbox) = mpsc::channel(queue);
        let last = events::last(&opened.writer).map_err(|source| StoreError::sqlite(path, source))?;
        let (event_pulse, last_event) = watch::channel(last);
        let (tell_moved, moved) = mpsc::unbounded_channel();
        let tell = writer::Tell { last_event: event_pulse, moved: tell_moved };
        let fingerprint_key = opened.fingerprint_key.clone();
        let writer = writer::spawn(opened, Arc::clone(&memory), Arc::clone(clock), inbox, tell)?;
        let store = Self { commands, memory, reader, path: Arc::new(path.to_owned()), last_event };
        Ok(Recovered { store, running, moved, writer, fingerprint_key })
    }

    /// Opens a store whose file cannot grow beyond `pages`.
    #[cfg(test)]
    fn open_bounded(
        home: &Path,
        lock: Arc<StoreLock>,
        clock: &Clock,
        limits: &Limits,
        pages: u32,
    ) -> Result<Recovered, StoreError> {
        let path = &home.join(FILE);
        let opened = schema::open(path, lock)?;
        opened
            .writer
            .pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))
            .map_err(|source| StoreError::sqlite(path, source))?;
        Self::start(opened, path, clock, limits)
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    pub(crate) fn reader(&self) -> &Reader {
        &self.reader
    }

    pub(crate) fn documents(&self) -> Documents {
        Documents::new(self.commands.clone(), Arc::clone(&self.path))
    }

    /// The number of the newest event, as it grows.
    pub(crate) fn watch_events(&self) -> watch::Receiver<u64> {
        self.last_event.clone()
    }

    #[cfg(test)]
    pub(crate) fn get(&self, id: &RunId) -> Result<Arc<Entry>, StoreError> {
        self.memory.get(id).ok_or_else(|| StoreError::Unknown(id.clone()))
    }

    async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T, StoreError>>) -> Command + Send,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).await.map_err(|_| StoreError::Closed)?;
        answer.await.map_err(|_| StoreError::Closed)?
    }

    pub(crate) async fn create(&self, run: NewRun) -> Result<Ack, StoreError> {
        self.ask(|reply| Command::Create(run, reply)).await
    }

    pub(crate) async fn set_contract(&self, id: RunId, contract: Arc<str>) -> Result<Ack, StoreError> {
        self.ask(|reply| Command::SetContract(id, contract, reply)).await
    }

    pub(crate) async fn change(&self, change: Change) -> Result<Ack, StoreError> {
        self.ask(|reply| Command::Change(change, reply)).await
    }

    pub(crate) async fn delete(&self, id: RunId) -> Result<Ack, StoreError> {
        self.ask(|reply| Command::Delete(id, reply)).await
    }

    /// Removes ended runs as `prune` says, decided when the writer comes to it; returns them.
    pub(crate) async fn prune(&self, prune: PruneRule) -> Result<Vec<Arc<RunRecord>>, StoreError> {
        self.ask(|reply| Command::Prune { prune, reply }).await
    }

    /// Removes the chunks of an upload that no run names. Those that stay because the store is busy go at the next start.
    pub(crate) fn drop_upload(&self, upload: Arc<str>) {
        let _ = self.commands.try_send(Command::DropUpload(upload));
    }

    /// Appends entries and waits until the disk has them.
    pub(crate) async fn append(
        &self,
        id: RunId,
        attempt: u32,
        bodies: Vec<EventBody>,
    ) -> Result<Ack, StoreError> {
        self.ask(|reply| Command::Append { id, attempt, bodies, progress: None, reply: Some(reply) }).await
    }

    /// Appends entries without waiting; they stay in order with everything else. With them goes how far the output they come
    /// from was read, if they do.
    pub(crate) async fn append_later(
        &self,
        id: RunId,
        attempt: u32,
        bodies: Vec<EventBody>,
        progress: Option<Progress>,
    ) -> Result<(), StoreError> {
        let command = Command::Append { id, attempt, bodies, progress, reply: None };
        self.commands.send(command).await.map_err(|_| StoreError::Closed)
    }

    /// Writes one chunk of a payload; it belongs to nobody until a change names its upload.
    pub(crate) async fn upload(&self, upload: Arc<str>, n: u32, data: Bytes) -> Result<(), StoreError> {
        self.ask(|reply| Command::Upload { upload, n, data, reply }).await
    }

    /// Appends to a chat conversation, dropping its oldest lines beyond `keep`.
    pub(crate) async fn chat(
        &self,
        conversation: Arc<str>,
        at: Timestamp,
        body: String,
        keep: u64,
    ) -> Result<(), StoreError> {
        self.ask(|reply| Command::Chat { conversation, at, body, keep, reply }).await
    }

    /// Removes events recorded before `before`.
    pub(crate) async fn forget_events(&self, before: Timestamp) -> Result<(), StoreError> {
        self.commands.send(Command::ForgetEvents { before }).await.map_err(|_| StoreError::Closed)
    }

    /// Drops the conversations that were silent longest, beyond `keep`.
    pub(crate) async fn forget_chats(&self, keep: u64) -> Result<(), StoreError> {
        self.commands.send(Command::ForgetChats { keep }).await.map_err(|_| StoreError::Closed)
    }
}
