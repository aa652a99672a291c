//! The durable record of the fleet: one SQLite file, one writer thread, group commit.
//!
//! A change is visible, and its caller answered, only after the disk has it. Changes of one agent are made by whoever
//! holds that agent's lock, so the writer has only one thing to decide: whether a name is still free.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use crewkit_agent::{FileFault, StoreLock};
use rusqlite::{Connection, ErrorCode, params};
use tokio::sync::{mpsc, oneshot, watch};

use super::record::{AgentRow, ProjectRow, TaskRow};

/// Layout of the file; a newer one is refused untouched.
const LAYOUT: u32 = 1;
/// Requests written together at most.
const BATCH: usize = 256;
/// Requests that may wait.
const QUEUE: usize = 1024;

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS agents (
        id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE COLLATE NOCASE, body TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS tasks (
        id TEXT PRIMARY KEY, agent TEXT NOT NULL, number INTEGER NOT NULL, body TEXT NOT NULL,
        UNIQUE (agent, number)) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS projects (id TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID;
";

/// Why something was not written.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The file cannot be used.
    #[error(transparent)]
    File(#[from] FileFault),
    /// The name is taken, or the note made already.
    #[error("the name is taken")]
    Taken,
    /// The writer is gone.
    #[error("the store is closed")]
    Closed,
}

/// One change.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    /// A new agent; refused when the name is taken.
    NewAgent(AgentRow),
    PutAgent(AgentRow),
    PutTask(TaskRow),
    /// Forgets an agent and its tasks.
    DropAgent(String),
    DropTask(String),
    PutProject(ProjectRow),
    /// Forgets a project, and that it was trusted.
    DropProject(String),
    /// Notes that an agent was made in the project; refused when that is noted already.
    TrustProject(String),
}

struct Request {
    changes: Vec<Change>,
    reply: oneshot::Sender<Result<(), StoreError>>,
}

/// What is on disk, for reading.
#[derive(Debug, Default)]
struct Memory {
    agents: BTreeMap<String, Arc<AgentRow>>,
    names: HashMap<String, String>,
    tasks: HashMap<String, Vec<Arc<TaskRow>>>,
    projects: BTreeMap<String, ProjectRow>,
}

impl Memory {
    fn apply(&mut self, change: Change) {
        match change {
            Change::NewAgent(row) | Change::PutAgent(row) => {
                self.names.insert(row.name.to_ascii_lowercase(), row.id.clone());
                self.agents.insert(row.id.clone(), Arc::new(row));
            }
            Change::PutTask(row) => {
                let tasks = self.tasks.entry(row.agent.clone()).or_default();
                match tasks.iter_mut().find(|task| task.id == row.id) {
                    Some(task) => *task = Arc::new(row),
                    None => tasks.push(Arc::new(row)),
                }
            }
            Change::DropAgent(id) => {
                if let Some(row) = self.agents.remove(&id) {
                    self.names.remove(&row.name.to_ascii_lowercase());
                }
                self.tasks.remove(&id);
            }
            Change::DropTask(id) => {
                self.tasks.values_mut().for_each(|tasks| tasks.retain(|task| task.id != id));
            }
            Change::PutProject(row) => drop(self.projects.insert(row.id.clone(), row)),
            Change::DropProject(id) => drop(self.projects.remove(&id)),
            Change::TrustProject(_) => {}
        }
    }
}

/// Sends changes to the writer and reads what is on disk.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    requests: mpsc::Sender<Request>,
    memory: Arc<RwLock<Memory>>,
    version: watch::Receiver<u64>,
    /// Marks everything that belongs to this store.
    fleet: Arc<str>,
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Request").field("changes", &self.changes).finish_non_exhaustive()
    }
}

impl Store {
    /// Opens the file at `path` and starts the writer. Blocks.
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        let lock_path = path.with_extension("lock");
        let lock = StoreLock::take(&lock_path)
            .map_err(|source| FileFault::io(&lock_path, source))?
            .ok_or_else(|| FileFault::Locked { path: path.to_owned() })?;
        let failed = |source| FileFault::sqlite(path, source);
        let connection = Connection::open(path).map_err(failed)?;
        let layout: u32 =
            connection.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(failed)?;
        if layout > LAYOUT {
            return Err(FileFault::TooNew { path: path.to_owned(), found: layout, known: LAYOUT }.into());
        }
        connection.pragma_update(None, "journal_mode", "WAL").map_err(failed)?;
        connection.pragma_update(None, "synchronous", "FULL").map_err(failed)?;
        connection.execute_batch(SCHEMA).map_err(failed)?;
        connection.pragma_update(None, "user_version", LAYOUT).map_err(failed)?;
        let fresh = uuid::Uuid::now_v7().simple().to_string();
        connection
            .execute("INSERT OR IGNORE INTO meta VALUES ('fleet', ?1)", params![fresh])
            .map_err(failed)?;
        let fleet: String = connection
            .query_row("SELECT value FROM meta WHERE key = 'fleet'", [], |row| row.get(0))
            .map_err(failed)?;
        let memory = Arc::new(RwLock::new(load(&connection, path)?));
        let (requests, inbox) = mpsc::channel(QUEUE);
        let (pulse, version) = watch::channel(0);
        let writer = Writer {
            connection,
            path: path.to_owned(),
            memory: Arc::clone(&memory),
            inbox,
            pulse,
            _lock: lock,
        };
        std::thread::Builder::new()
            .name("crewkit-fleet".to_owned())
            .spawn(move || writer.run())
            .map_err(|source| FileFault::io(path, source))?;
        Ok(Self { requests, memory, version, fleet: fleet.into() })
    }

    /// Makes changes, all or none; returns when they are on disk.
    pub(crate) async fn write(&self, changes: Vec<Change>) -> Result<(), StoreError> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(Request { changes, reply }).await.map_err(|_| StoreError::Closed)?;
        answer.await.map_err(|_| StoreError::Closed)?
    }

    fn read<T>(&self, look: impl FnOnce(&Memory) -> T) -> T {
        look(&self.memory.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn fleet(&self) -> &str {
        &self.fleet
    }

    pub(crate) fn agents(&self) -> Vec<Arc<AgentRow>> {
        self.read(|memory| memory.agents.values().cloned().collect())
    }

    pub(crate) fn agent(&self, id: &str) -> Option<Arc<AgentRow>> {
        self.read(|memory| memory.agents.get(id).cloned())
    }

    pub(crate) fn named(&self, name: &str) -> Option<Arc<AgentRow>> {
        self.read(|memory| {
            let id = memory.names.get(&name.to_ascii_lowercase())?;
            memory.agents.get(id).cloned()
        })
    }

    /// The tasks of an agent, oldest first.
    pub(crate) fn tasks(&self, agent: &str) -> Vec<Arc<TaskRow>> {
        self.read(|memory| memory.tasks.get(agent).cloned().unwrap_or_default())
    }

    /// The newest task of an agent.
    pub(crate) fn newest_task(&self, agent: &str) -> Option<Arc<TaskRow>> {
        self.read(|memory| memory.tasks.get(agent)?.last().cloned())
    }

    pub(crate) fn projects(&self) -> Vec<ProjectRow> {
        self.read(|memory| memory.projects.values().cloned().collect())
    }

    /// Hears of every change.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.version.clone()
    }
}

fn load(connection: &Connection, path: &Path) -> Result<Memory, StoreError> {
    let mut memory = Memory::default();
    for row in rows::<AgentRow>(connection, path, "SELECT id, body FROM agents")? {
        memory.apply(Change::PutAgent(row));
    }
    for row in rows::<TaskRow>(connection, path, "SELECT id, body FROM tasks ORDER BY agent, number")? {
        memory.apply(Change::PutTask(row));
    }
    for row in rows::<ProjectRow>(connection, path, "SELECT id, body FROM projects")? {
        memory.apply(Change::PutProject(row));
    }
    Ok(memory)
}

fn rows<T: serde::de::DeserializeOwned>(
    connection: &Connection,
    path: &Path,
    query: &str,
) -> Result<Vec<T>, StoreError> {
    let failed = |source| FileFault::sqlite(path, source);
    let mut statement = connection.prepare(query).map_err(failed)?;
    let pairs = statement
        .query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)))
        .map_err(failed)?;
    pairs
        .map(|pair| {
            let (id, body) = pair.map_err(failed)?;
            serde_json::from_str(&body).map_err(|error| {
                FileFault::Damaged { path: path.to_owned(), what: id, why: error.to_string() }.into()
            })
        })
        .collect()
}

struct Writer {
    connection: Connection,
    path: PathBuf,
    memory: Arc<RwLock<Memory>>,
    inbox: mpsc::Receiver<Request>,
    pulse: watch::Sender<u64>,
    _lock: StoreLock,
}

impl Writer {
    fn run(mut self) {
        while let Some(first) = self.inbox.blocking_recv() {
            let mut requests = vec![first];
            while requests.len() < BATCH
                && let Ok(request) = self.inbox.try_recv()
            {
                requests.push(request);
            }
            self.process(requests);
        }
        let _ = self.connection.pragma(None, "wal_checkpoint", "TRUNCATE", |_| Ok(()));
    }

    fn process(&mut self, requests: Vec<Request>) {
        let written = self.write(&requests);
        match written {
            Ok(outcomes) => {
                let mut memory = self.memory.write().unwrap_or_else(PoisonError::into_inner);
                let mut answers = Vec::with_capacity(requests.len());
                for (request, outcome) in requests.into_iter().zip(outcomes) {
                    if outcome.is_ok() {
                        request.changes.into_iter().for_each(|change| memory.apply(change));
                    }
                    answers.push((request.reply, outcome));
                }
                drop(memory);
                self.pulse.send_modify(|version| *version += 1);
                for (reply, outcome) in answers {
                    let _ = reply.send(outcome);
                }
            }
            Err(source) => {
                let error = StoreError::from(FileFault::sqlite(&self.path, source));
                tracing::error!(%error, "a change of the fleet could not be written");
                for request in requests {
                    let _ = request.reply.send(Err(error.clone()));
                }
            }
        }
    }

    /// One transaction for all; a request that is refused takes only itself back.
    fn write(&mut self, requests: &[Request]) -> rusqlite::Result<Vec<Result<(), StoreError>>> {
        let mut transaction = self.connection.transaction()?;
        let mut outcomes = Vec::with_capacity(requests.len());
        for request in requests {
            let point = transaction.savepoint()?;
            let made = request.changes.iter().try_for_each(|change| make(&point, change));
            match made {
                Ok(()) => {
                    point.commit()?;
                    outcomes.push(Ok(()));
                }
                Err(error) if error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) => {
                    drop(point);
                    outcomes.push(Err(StoreError::Taken));
                }
                Err(error) => return Err(error),
            }
        }
        transaction.commit()?;
        Ok(outcomes)
    }
}

/// The key under which is noted that a project is trusted.
fn trusted(project: &str) -> String {
    format!("trusted {project}")
}

fn make(connection: &Connection, change: &Change) -> rusqlite::Result<()> {
    let json = |value: &dyn erased::Json| value.json();
    match change {
        Change::NewAgent(row) => connection
            .prepare_cached("INSERT INTO agents VALUES (?1, ?2, ?3)")?
            .execute(params![row.id, row.name, json(row)?]),
        Change::PutAgent(row) => connection
            .prepare_cached("UPDATE agents SET body = ?2 WHERE id = ?1")?
            .execute(params![row.id, json(row)?]),
        Change::PutTask(row) => connection
            .prepare_cached(
                "INSERT INTO tasks VALUES (?1, ?2, ?3, ?4) ON CONFLICT (id) DO UPDATE SET body = excluded.body",
            )?
            .execute(params![row.id, row.agent, i64::try_from(row.number).unwrap_or(i64::MAX), json(row)?]),
        Change::DropAgent(id) => {
            connection.prepare_cached("DELETE FROM tasks WHERE agent = ?1")?.execute(params![id])?;
            connection.prepare_cached("DELETE FROM agents WHERE id = ?1")?.execute(params![id])
        }
        Change::DropTask(id) => connection.prepare_cached("DELETE FROM tasks WHERE id = ?1")?.execute(params![id]),
        Change::PutProject(row) => connection
            .prepare_cached("INSERT OR REPLACE INTO projects VALUES (?1, ?2)")?
            .execute(params![row.id, json(row)?]),
        Change::DropProject(id) => {
            connection.prepare_cached("DELETE FROM meta WHERE key = ?1")?.execute(params![trusted(id)])?;
            connection.prepare_cached("DELETE FROM projects WHERE id = ?1")?.execute(params![id])
        }
        Change::TrustProject(id) => {
            connection.prepare_cached("INSERT INTO meta VALUES (?1, '')")?.execute(params![trusted(id)])
        }
    }
    .map(drop)
}

mod erased {
    /// Anything that can be stored as a body.
    pub(super) trait Json {
        fn json(&self) -> rusqlite::Result<String>;
    }

    impl<T: serde::Serialize> Json for T {
        fn json(&self) -> rusqlite::Result<String> {
            serde_json::to_string(self).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::Phase;
    use super::*;

    fn agent(id: &str, name: &str) -> AgentRow {
        AgentRow {
            id: id.to_owned(),
            name: name.to_owned(),
            project: "p".to_owned(),
            role: "coder".to_owned(),
            spec: "s".to_owned(),
            phase: Phase::Preparing,
            path: "/w".into(),
            workspace: None,
            failure: None,
            kit: None,
            created_ms: 1,
            updated_ms: 1,
        }
    }

    #[tokio::test]
    async fn names_are_unique_without_regard_to_case_and_all_or_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fleet.db");
        let store = Store::open(&path).unwrap();
        store.write(vec![Change::NewAgent(agent("1", "Papi"))]).await.unwrap();
        let both = vec![Change::NewAgent(agent("3", "sony")), Change::NewAgent(agent("2", "PAPI"))];
        assert!(matches!(store.write(both).await, Err(StoreError::Taken)));
        assert_eq!(store.agents().len(), 1);
        assert_eq!(store.named("pApI").unwrap().id, "1");
        assert!(matches!(Store::open(&path), Err(StoreError::File(FileFault::Locked { .. }))));
        let fleet = store.fleet().to_owned();
        drop(store);
        let again = loop {
            match Store::open(&path) {
                Err(StoreError::File(FileFault::Locked { .. })) => tokio::task::yield_now().await,
                opened => break opened.unwrap(),
            }
        };
        assert_eq!((again.fleet(), again.agents().len()), (fleet.as_str(), 1));
        again.write(vec![Change::DropAgent("1".to_owned())]).await.unwrap();
        again.write(vec![Change::NewAgent(agent("2", "PAPI"))]).await.unwrap();
    }

    #[tokio::test]
    async fn many_at_once_are_all_written_and_one_name_is_given_once() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("fleet.db")).unwrap();
        let wishes = (0..200)
            .map(|n| store.write(vec![Change::NewAgent(agent(&n.to_string(), &format!("a{}", n / 2)))]));
        let outcomes = futures_util::future::join_all(wishes).await;
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 100);
        assert_eq!(store.agents().len(), 100);
    }

    #[test]
    fn a_newer_layout_is_refused_untouched() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fleet.db");
        Connection::open(&path).unwrap().pragma_update(None, "user_version", 99).unwrap();
        let before = std::fs::read(&path).unwrap();
        assert!(matches!(Store::open(&path), Err(StoreError::File(FileFault::TooNew { found: 99, .. }))));
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }
}
