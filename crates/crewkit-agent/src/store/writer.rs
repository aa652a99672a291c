//! The writer thread: takes what is waiting, writes it as one transaction, answers.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};

use bytes::Bytes;
use crewkit_core::Timestamp;
use rusqlite::{Connection, params};
use tokio::sync::mpsc::{Receiver, error::TryRecvError};
use tokio::sync::oneshot;

use super::batch::{Batch, sql};
use super::schema::{Opened, connect};
use super::{Ack, Clock, Command, FileFault, Memory, Reply, StoreError};

/// Commands in one transaction at most; keeps the time to an answer bounded.
const BATCH_COMMANDS: usize = 512;
/// Log size at which it is copied back in the background (a millisecond's work), and at which the writer itself does it.
const LOG_COPY_BYTES: u64 = 1024 * 1024;
const LOG_LIMIT_BYTES: u64 = 48 * 1024 * 1024;

struct Chunk {
    upload: Arc<str>,
    n: u32,
    data: Bytes,
    reply: oneshot::Sender<Result<(), StoreError>>,
}

/// An answer that waits for the disk.
enum Pending {
    Run(Option<Reply>, Result<Ack, StoreError>),
    Plain(oneshot::Sender<Result<(), StoreError>>),
}

impl Pending {
    fn succeed(self) {
        match self {
            Self::Run(Some(reply), answer) => drop(reply.send(answer)),
            Self::Run(None, _) => {}
            Self::Plain(reply) => drop(reply.send(Ok(()))),
        }
    }

    fn fail(self, error: &StoreError) {
        match self {
            // A wish that was refused stays refused; only what would have changed something failed.
            Self::Run(Some(reply), answer) => drop(reply.send(answer.and_then(|_| Err(error.clone())))),
            Self::Run(None, _) => {}
            Self::Plain(reply) => drop(reply.send(Err(error.clone()))),
        }
    }
}

pub(super) fn spawn(
    opened: Opened,
    memory: Arc<Memory>,
    clock: Clock,
    inbox: Receiver<Command>,
) -> Result<std::thread::JoinHandle<()>, StoreError> {
    let path = opened.path.clone();
    let copier = spawn_log_copier(&path)?;
    let writer = Writer { opened, memory, clock, inbox, copier, bulk: VecDeque::new() };
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
    copier: SyncSender<()>,
    /// Payload chunks, one per transaction, so that others wait for one chunk at most.
    bulk: VecDeque<Chunk>,
}

impl Writer {
    fn run(mut self) {
        while let Some(commands) = self.gather() {
            let chunk = self.bulk.pop_front();
            self.process(commands, chunk);
            self.tend_log();
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
            other => commands.push(other),
        }
    }

    fn process(&self, commands: Vec<Command>, chunk: Option<Chunk>) {
        let mut batch = Batch::new(&self.memory, (self.clock)());
        let mut pending = Vec::with_capacity(commands.len() + 1);
        match self.write(commands, chunk, &mut batch, &mut pending) {
            Ok(()) => {
                batch.publish();
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
        &self,
        commands: Vec<Command>,
        chunk: Option<Chunk>,
        batch: &mut Batch<'_>,
        pending: &mut Vec<Pending>,
    ) -> rusqlite::Result<()> {
        let connection = &self.opened.writer;
        let mut plain: Vec<Plain> = Vec::new();
        for command in commands {
            let answer = match command {
                Command::Create(new, reply) => Pending::Run(Some(reply), batch.create(new)),
                Command::SetContract(id, contract, reply) => {
                    Pending::Run(Some(reply), batch.set_contract(&id, contract))
                }
                Command::Append { id, attempt, bodies, reply } => {
                    Pending::Run(reply, batch.append(&id, attempt, bodies))
                }
                Command::Change(change, reply) => Pending::Run(Some(reply), batch.change(change)),
                Command::Delete(id, reply) => Pending::Run(Some(reply), batch.delete(&id)),
                Command::Chat { conversation, at, body, keep, reply } => {
                    plain.push(Plain::Chat { conversation, at, body, keep });
                    Pending::Plain(reply)
                }
                Command::ForgetChats { keep } => {
                    plain.push(Plain::ForgetChats { keep });
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
        for change in plain {
            change.write(connection)?;
        }
        if let Some((upload, n, data)) = chunk {
            connection
                .prepare_cached("INSERT INTO payload_chunks (upload, n, data) VALUES (?1, ?2, ?3)")?
                .execute(params![&*upload, n, &data[..]])?;
        }
        connection.execute_batch("COMMIT")
    }

    fn tend_log(&self) {
        let log = log_path(&self.opened.path);
        let size = std::fs::metadata(&log).map_or(0, |metadata| metadata.len());
        if size > LOG_LIMIT_BYTES {
            let _ = self.opened.writer.pragma(None, "wal_checkpoint", "TRUNCATE", |_| Ok(()));
        } else if size > LOG_COPY_BYTES {
            let _ = self.copier.try_send(());
        }
    }
}

/// Changes that concern no run.
enum Plain {
    Chat { conversation: Arc<str>, at: Timestamp, body: String, keep: u64 },
    ForgetChats { keep: u64 },
}

impl Plain {
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
        }
        Ok(())
    }
}

fn log_path(store: &Path) -> PathBuf {
    let mut name = store.as_os_str().to_owned();
    name.push("-wal");
    name.into()
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
