//! The writer thread: takes what is waiting, writes it as one transaction, answers.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use bytes::Bytes;
use crewkit_core::Timestamp;
use crewkit_core::run::RunId;
use rusqlite::{Connection, params};
use tokio::sync::mpsc::{Receiver, UnboundedSender, error::TryRecvError};
use tokio::sync::{oneshot, watch};

use super::batch::{Batch, sql};
use super::schema::{Opened, connect};
use super::{
    Ack, Clock, Command, DocumentChange, FileFault, Memory, Progress, Reply, RunRecord, StoreError,
    documents, events,
};
use crate::event::EventBody;

/// Commands in one transaction at most; keeps the time to an answer bounded.
const BATCH_COMMANDS: usize = 512;
/// More commands than this in one transaction are a crowd's: the next one begins this long after it, so that more of them share
/// a sync of the disk and the pages they change.
const CROWD_COMMANDS: usize = 4;
const CROWD_PAUSE: Duration = Duration::from_millis(3);
/// Pages of four kilobytes by which the log grows before it is copied back in the background, and those in it at which
/// the writer itself does it. Each copy waits for the disk twice, so that not every commit is followed by one.
const LOG_COPY_PAGES: u32 = 256;
const LOG_LIMIT_PAGES: u32 = 12 * 1024;

struct Chunk {
    upload: Arc<str>,
    n: u32,
    data: Bytes,
    reply: oneshot::Sender<Result<(), StoreError>>,
}

/// An answer that waits for the disk.
enum Pending {
    Run(Reply, Result<Ack, StoreError>),
    Pruned(oneshot::Sender<Result<Vec<Arc<RunRecord>>, StoreError>>, Vec<Arc<RunRecord>>),
    Plain(oneshot::Sender<Result<(), StoreError>>),
}

impl Pending {
    fn succeed(self) {
        match self {
            Self::Run(reply, answer) => drop(reply.send(answer)),
            Self::Pruned(reply, runs) => drop(reply.send(Ok(runs))),
            Self::Plain(reply) => drop(reply.send(Ok(()))),
        }
    }

    fn fail(self, error: &StoreError) {
        match self {
            // A wish that was refused stays refused; only what would have changed something failed.
            Self::Run(reply, answer) => drop(reply.send(answer.and_then(|_| Err(error.clone())))),
            Self::Pruned(reply, _) => drop(reply.send(Err(error.clone()))),
            Self::Plain(reply) => drop(reply.send(Err(error.clone()))),
        }
    }
}

pub(super) fn spawn(
    mut opened: Opened,
    memory: Arc<Memory>,
    clock: Clock,
    inbox: Receiver<Command>,
    tell: Tell,
) -> Result<std::thread::JoinHandle<()>, StoreError> {
    let path = opened.path.clone();
    let log = Log::watch(&mut opened.writer, spawn_log_copier(&path)?)
        .map_err(|source| StoreError::sqlite(&path, source))?;
    let writer = Writer {
        opened,
        memory,
        clock,
        inbox,
        log,
        bulk: VecDeque::new(),
        latest: Latest::default(),
        tell,
        unwritten: Vec::new(),
    };
    std::thread::Builder::new()
        .name("crewkit-runs".to_owned())
        .spawn(move || writer.run())
        .map_err(|source| FileFault::io(&path, source).into())
}

struct Writer {
    opened: Opened,
    memory: Arc<Memory>,
    clock: Clock,
    inbox: Receiver<Command>,
    log: Log,
    /// Payload chunks, one per transaction, so that others wait for one chunk at most.
    bulk: VecDeque<Chunk>,
    latest: Latest,
    tell: Tell,
    /// Entries whose writer did not wait, of batches that failed. They go into the next batch, before everything else.
    unwritten: Vec<Unwritten>,
}

/// Who hears of what is on disk.
pub(super) struct Tell {
    /// The number of the newest event.
    pub(super) last_event: watch::Sender<u64>,
    /// Runs whose state has changed.
    pub(super) moved: UnboundedSender<RunId>,
}

/// Entries of a transcript that are not on disk yet.
#[derive(Clone)]
struct Unwritten {
    id: RunId,
    attempt: u32,
    bodies: Vec<EventBody>,
    progress: Option<Progress>,
}

/// The latest transaction.
#[derive(Default)]
struct Latest {
    commands: usize,
    ended: Option<Instant>,
}

impl Latest {
    /// How long the next one waits for company. Whoever writes alone never waits.
    fn pause(&self, now: Instant) -> Duration {
        match self.ended {
            Some(ended) if self.commands > CROWD_COMMANDS => {
                CROWD_PAUSE.saturating_sub(now.saturating_duration_since(ended))
            }
            _ => Duration::ZERO,
        }
    }
}

impl Writer {
    fn run(mut self) {
        while let Some(commands) = self.gather() {
            let chunk = self.bulk.pop_front();
            let count = commands.len();
            self.process(commands, chunk);
            self.latest = Latest { commands: count, ended: Some(Instant::now()) };
            if self.log.tend() == Room::Used {
                let _ = self.opened.writer.pragma(None, "wal_checkpoint", "TRUNCATE", |_| Ok(()));
            }
        }
        // Nobody can send any more: leave one tidy file behind.
        let _ = self.opened.writer.pragma(None, "wal_checkpoint", "TRUNCATE", |_| Ok(()));
        drop(self.opened.lock);
    }

    /// Waits for a command (or a chunk that waits already) and takes what else is there; `None` when all senders are gone.
    fn gather(&mut self) -> Option<Vec<Command>> {
        let mut commands = Vec::new();
        if self.bulk.is_empty() {
            let first = self.inbox.blocking_recv()?;
            self.sort(first, &mut commands);
            std::thread::sleep(self.latest.pause(Instant::now()));
        }
        while commands.len() < BATCH_COMMANDS {
            match self.inbox.try_recv() {
                Ok(command) => self.sort(command, &mut commands),
                Err(TryRecvError::Disconnected) if commands.is_empty() && self.bulk.is_empty() => {
                    return None;
                }
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
        }
        Some(commands)
    }

    fn sort(&mut self, command: Command, commands: &mut Vec<Command>) {
        match command {
            Command::Upload { upload, n, data, reply } => {
                self.bulk.push_back(Chunk { upload, n, data, reply });
            }
            Command::DropUpload(upload) => {
                self.bulk.retain(|chunk| chunk.upload != upload);
                commands.push(Command::DropUpload(upload));
            }
            other => commands.push(other),
        }
    }

    fn process(&mut self, commands: Vec<Command>, chunk: Option<Chunk>) {
        let memory = Arc::clone(&self.memory);
        let mut batch = Batch::new(&memory, (self.clock)());
        let mut pending = Vec::with_capacity(commands.len() + 1);
        match self.write(commands, chunk, &mut batch, &mut pending) {
            Ok(last_event) => {
                self.unwritten.clear();
                for run in batch.publish() {
                    let _ = self.tell.moved.send(run);
                }
                if let Some(last) = last_event {
                    self.tell.last_event.send_replace(last);
                }
                pending.into_iter().for_each(Pending::succeed);
            }
            Err(source) => {
                let error = StoreError::sqlite(&self.opened.path, source);
                tracing::error!(%error, "a change of runs could not be written");
                if !self.opened.writer.is_autocommit() {
                    let _ = self.opened.writer.execute_batch("ROLLBACK");
                }
                for answer in pending {
                    answer.fail(&error);
                }
            }
        }
    }

    /// One transaction. Every answer is in `pending` whatever happens, so that none is lost on an error.
    fn write(
        &mut self,
        commands: Vec<Command>,
        chunk: Option<Chunk>,
        batch: &mut Batch<'_>,
        pending: &mut Vec<Pending>,
    ) -> rusqlite::Result<Option<u64>> {
        let connection = &self.opened.writer;
        let mut plain: Vec<Plain> = Vec::new();
        for late in &self.unwritten {
            // A run that is gone or has begun another attempt needs them no longer.
            let _ = batch.append(&late.id, late.attempt, late.bodies.clone(), late.progress);
        }
        for command in commands {
            let answer = match command {
                Command::Create(new, reply) => Pending::Run(reply, batch.create(new)),
                Command::SetContract(id, contract, reply) => {
                    Pending::Run(reply, batch.set_contract(&id, contract))
                }
                Command::Append { id, attempt, bodies, progress, reply: Some(reply) } => {
                    Pending::Run(reply, batch.append(&id, attempt, bodies, progress))
                }
                Command::Append { id, attempt, bodies, progress, reply: None } => {
                    if batch.append(&id, attempt, bodies.clone(), progress).is_ok() {
                        self.unwritten.push(Unwritten { id, attempt, bodies, progress });
                    }
                    continue;
                }
                Command::Change(change, reply) => Pending::Run(reply, batch.change(change)),
                Command::Delete(id, reply) => Pending::Run(reply, batch.delete(&id)),
                Command::Prune { prune, reply } => Pending::Pruned(reply, batch.prune(prune)),
                Command::DropUpload(upload) => {
                    plain.push(Plain::DropUpload(upload));
                    continue;
                }
                Command::Chat { conversation, at, body, keep, reply } => {
                    plain.push(Plain::Chat { conversation, at, body, keep });
                    Pending::Plain(reply)
                }
                Command::ForgetChats { keep } => {
                    plain.push(Plain::ForgetChats { keep });
                    continue;
                }
                Command::Documents { changes, events, reply } => {
                    plain.extend(changes.into_iter().map(Plain::Document));
                    batch.record(events);
                    Pending::Plain(reply)
                }
                Command::ForgetEvents { before } => {
                    plain.push(Plain::ForgetEvents { before });
                    continue;
                }
                Command::Upload { reply, .. } => Pending::Plain(reply),
            };
            pending.push(answer);
        }
        let chunk = chunk.map(|chunk| {
            pending.push(Pending::Plain(chunk.reply));
            (chunk.upload, chunk.n, chunk.data)
        });
        connection.execute_batch("BEGIN IMMEDIATE")?;
        batch.write(connection)?;
        let mut frees_settings = batch.frees_settings();
        for change in plain {
            change.write(connection)?;
            frees_settings |= change.frees_settings();
        }
        if frees_settings {
            documents::forget_settings(connection)?;
        }
        if let Some((upload, n, data)) = chunk {
            connection
                .prepare_cached("INSERT INTO payload_chunks (upload, n, data) VALUES (?1, ?2, ?3)")?
                .execute(params![&*upload, n, &data[..]])?;
        }
        let last_event = events::write(connection, &batch.take_events(), batch.now())?;
        connection.execute_batch("COMMIT")?;
        Ok(last_event)
    }
}

/// Whether the log may grow on.
#[derive(Debug, PartialEq, Eq)]
enum Room {
    Left,
    /// The copier cannot keep up.
    Used,
}

/// How much is in the log that SQLite writes ahead, and who copies it back.
struct Log {
    /// Pages in it after the latest commit; few again when it begins anew.
    pages: Arc<AtomicU32>,
    /// Those of them the copier was woken for.
    copied: u32,
    copier: SyncSender<()>,
}

impl Log {
    fn watch(connection: &mut Connection, copier: SyncSender<()>) -> rusqlite::Result<Self> {
        let pages = Arc::new(AtomicU32::new(0));
        let seen = Arc::clone(&pages);
        connection.wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, pages| {
            seen.store(u32::try_from(pages).unwrap_or(0), Ordering::Relaxed);
            Ok(())
        }))?;
        Ok(Self { pages, copied: 0, copier })
    }

    /// Wakes the copier when there is something worth copying.
    fn tend(&mut self) -> Room {
        let pages = self.pages.load(Ordering::Relaxed);
        if pages < self.copied {
            self.copied = 0;
        }
        if pages - self.copied >= LOG_COPY_PAGES && self.copier.try_send(()).is_ok() {
            self.copied = pages;
        }
        if pages >= LOG_LIMIT_PAGES { Room::Used } else { Room::Left }
    }
}

/// Changes that concern no run.
enum Plain {
    Chat { conversation: Arc<str>, at: Timestamp, body: String, keep: u64 },
    ForgetChats { keep: u64 },
    Document(DocumentChange),
    ForgetEvents { before: Timestamp },
    DropUpload(Arc<str>),
}

impl Plain {
    /// Whether settings may be in use no more.
    fn frees_settings(&self) -> bool {
        let Self::Document(change) = self else { return false };
        matches!(change, DocumentChange::Delete { .. } | DocumentChange::Settings(_))
    }

    fn write(&self, connection: &Connection) -> rusqlite::Result<()> {
        match self {
            Self::Chat { conversation, at, body, keep } => {
                connection
                    .prepare_cached(
                        "INSERT INTO chats (conversation, seq, at, body) VALUES (?1,
                         (SELECT COALESCE(MAX(seq), 0) + 1 FROM chats WHERE conversation = ?1), ?2, ?3)",
                    )?
                    .execute(params![&**conversation, sql(at.millis()), body])?;
                connection
                    .prepare_cached(
                        "DELETE FROM chats WHERE conversation = ?1 AND seq <=
                         (SELECT MAX(seq) FROM chats WHERE conversation = ?1) - ?2",
                    )?
                    .execute(params![&**conversation, sql(*keep)])?;
            }
            Self::ForgetChats { keep } => {
                connection
                    .prepare_cached(
                        "DELETE FROM chats WHERE conversation IN (SELECT conversation FROM chats
                         GROUP BY conversation ORDER BY MAX(at) DESC LIMIT -1 OFFSET ?1)",
                    )?
                    .execute([sql(*keep)])?;
            }
            Self::Document(change) => change.write(connection)?,
            Self::ForgetEvents { before } => events::forget(connection, *before)?,
            Self::DropUpload(upload) => {
                connection
                    .prepare_cached(
                        "DELETE FROM payload_chunks WHERE upload = ?1 AND NOT EXISTS
                         (SELECT 1 FROM runs WHERE payload_upload = ?1)",
                    )?
                    .execute([&**upload])?;
            }
        }
        Ok(())
    }
}

/// Copies the log back into the file without holding up the writer; ends when the writer is gone.
fn spawn_log_copier(path: &Path) -> Result<SyncSender<()>, StoreError> {
    let connection = connect(path)?;
    let (wake, woken) = sync_channel::<()>(1);
    std::thread::Builder::new()
        .name("crewkit-runs-log".to_owned())
        .spawn(move || {
            // Nobody waits for it, and it has much to copy while a payload is stored.
            crate::sys::give_way();
            while woken.recv().is_ok() {
                let copied = connection.pragma(None, "wal_checkpoint", "PASSIVE", |_| Ok(()));
                if let Err(error) = copied {
                    tracing::warn!(%error, "the log of the run store could not be copied back");
                }
            }
        })
        .map_err(|source| FileFault::io(path, source))?;
    Ok(wake)
}

#[cfg(test)]
mod tests {
    use super::super::StoreLock;
    use super::*;

    #[test]
    fn only_a_crowd_waits_for_company() {
        let now = Instant::now();
        let cases = [
            (0, None, Duration::ZERO),
            (1, Some(Duration::ZERO), Duration::ZERO),
            (CROWD_COMMANDS, Some(Duration::ZERO), Duration::ZERO),
            (CROWD_COMMANDS + 1, Some(Duration::ZERO), CROWD_PAUSE),
            (CROWD_COMMANDS + 1, Some(CROWD_PAUSE / 3), CROWD_PAUSE * 2 / 3),
            (BATCH_COMMANDS, Some(2 * CROWD_PAUSE), Duration::ZERO),
        ];
        for (commands, ago, pause) in cases {
            let latest = Latest { commands, ended: ago.map(|ago| now.checked_sub(ago).unwrap()) };
            assert_eq!(latest.pause(now), pause, "{commands} commands, ended {ago:?} ago");
        }
    }

    #[test]
    fn the_log_is_copied_back_each_time_it_has_grown_enough() {
        let (copier, woken) = sync_channel(1);
        let mut log = Log { pages: Arc::default(), copied: 0, copier };
        // Pages in the log, and whether the copier is woken and the writer has to copy itself.
        let steps = [
            (10, false, false),
            (LOG_COPY_PAGES, true, false),
            (LOG_COPY_PAGES + 40, false, false),
            (2 * LOG_COPY_PAGES, true, false),
            // It began anew.
            (30, false, false),
            (LOG_COPY_PAGES + 1, true, false),
            (LOG_LIMIT_PAGES, true, true),
        ];
        for (step, (pages, wakes, is_full)) in steps.into_iter().enumerate() {
            log.pages.store(pages, Ordering::Relaxed);
            let room = if is_full { Room::Used } else { Room::Left };
            assert_eq!((log.tend(), woken.try_recv().is_ok()), (room, wakes), "step {step}");
        }
    }

    #[test]
    fn a_copier_that_is_busy_is_woken_again_later() {
        let (copier, woken) = sync_channel(1);
        let mut log = Log { pages: Arc::new(AtomicU32::new(LOG_COPY_PAGES)), copied: 0, copier };
        log.tend();
        log.pages.store(2 * LOG_COPY_PAGES, Ordering::Relaxed);
        log.tend();
        assert!(woken.try_recv().is_ok());
        log.tend();
        assert!(woken.try_recv().is_ok(), "what came meanwhile was forgotten");
    }

    #[test]
    fn sqlite_tells_how_much_is_in_its_log() {
        let dir = tempfile::tempdir().unwrap();
        let mut connection = {
            let lock = StoreLock::take(&dir.path().join("lock")).unwrap().unwrap();
            super::super::schema::open(&dir.path().join("store"), Arc::new(lock)).unwrap().writer
        };
        let log = Log::watch(&mut connection, sync_channel(1).0).unwrap();
        connection.execute_batch("CREATE TABLE t (x BLOB)").unwrap();
        let before = log.pages.load(Ordering::Relaxed);
        connection.execute("INSERT INTO t VALUES (zeroblob(?1))", [40 * 4096]).unwrap();
        assert!((before + 40..before + 60).contains(&log.pages.load(Ordering::Relaxed)));
        connection.pragma(None, "wal_checkpoint", "TRUNCATE", |_| Ok(())).unwrap();
        connection.execute("INSERT INTO t VALUES (1)", []).unwrap();
        assert!(log.pages.load(Ordering::Relaxed) < 10);
    }
}
