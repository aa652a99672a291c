//! What is under way on Coder and must be finished, also after the server was killed: recorded in the home, one row per
//! workspace. Everything else about an agent on Coder stays with Coder.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crewkit_agent::{DocumentChange, Documents};
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::journal::{self, Note};
use super::owner::Answer;
use crate::error::FleetError;
use crate::time::Moment;

/// The kind of the documents.
const KIND: &str = "coder_intent";

/// Something that was begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Intent {
    /// Address and owner of the workspaces, so that each Coder finds its own.
    pub(super) place: String,
    /// Name of the agent.
    pub(super) name: String,
    /// Id of the workspace; none before Coder has confirmed a new one.
    pub(super) workspace: Option<Uuid>,
    /// When it was asked for, in milliseconds since 1970.
    pub(super) since_ms: i64,
    pub(super) work: Work,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum Work {
    /// Equip a new workspace once its start script is done, then give it its spec.
    Create {
        role: String,
        /// The spec, if the agent has to be told.
        spec: Option<String>,
        /// Whether the kit is still missing.
        kit: bool,
    },
    /// Stop the workspace and start it again.
    Restart { stage: Stage },
    /// Delete the workspace as soon as no other build is in the way.
    Delete,
}

/// How far a restart has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Stage {
    Stop,
    Stopping,
    Starting,
}

impl Intent {
    fn id(place: &str, name: &str) -> String {
        format!("{place} {}", name.to_ascii_lowercase())
    }
}

type Open = Box<dyn Fn() -> BoxFuture<'static, Result<Documents, FleetError>> + Send + Sync>;

/// The record of everything that is under way on any Coder; one per server.
#[derive(Default)]
pub struct Intents {
    open: OnceLock<Open>,
    documents: tokio::sync::OnceCell<Documents>,
    rows: Mutex<BTreeMap<String, Intent>>,
    /// What was done to workspaces, by their ids.
    notes: Mutex<BTreeMap<String, Vec<Note>>>,
    /// Rows that a task of this server works on.
    claimed: Mutex<BTreeSet<String>>,
    /// Requests that wait for what was ordered, each with its order. Whoever carries the order out answers.
    waiting: Mutex<BTreeMap<String, (Intent, oneshot::Sender<Answer>)>>,
    pub(super) tasks: TaskTracker,
}

impl std::fmt::Debug for Intents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Intents").field("rows", &self.rows()).finish_non_exhaustive()
    }
}

impl Intents {
    /// Keeps the record in the documents that `open` gives; without it, it is lost with the process.
    pub fn keep_in(
        &self,
        open: impl Fn() -> BoxFuture<'static, Result<Documents, FleetError>> + Send + Sync + 'static,
    ) {
        // The first home is the only one.
        let _ = self.open.set(Box::new(open));
    }

    /// Whether something is under way.
    pub fn is_busy(&self) -> bool {
        !lock(&self.claimed).is_empty()
    }

    fn rows(&self) -> MutexGuard<'_, BTreeMap<String, Intent>> {
        lock(&self.rows)
    }

    pub(super) fn notes(&self) -> MutexGuard<'_, BTreeMap<String, Vec<Note>>> {
        lock(&self.notes)
    }

    /// The documents, if this record is kept; reads what an earlier server left when it is first used.
    pub(super) async fn documents(&self) -> Result<Option<&Documents>, FleetError> {
        let Some(open) = self.open.get() else { return Ok(None) };
        let documents = self.documents.get_or_try_init(|| async {
            let documents = open().await?;
            let reader = documents.clone();
            let read = move || Ok((reader.all(KIND)?, reader.all(journal::KIND)?));
            let read: Result<Result<_, crewkit_agent::StoreError>, _> =
                tokio::task::spawn_blocking(read).await;
            let (rows, notes) = read.map_err(|error| broken(&error))?.map_err(|error| broken(&error))?;
            for (id, body) in notes {
                match serde_json::from_str(&body) {
                    Ok(notes) => drop(self.notes().entry(id).or_insert(notes)),
                    Err(error) => tracing::warn!(id, %error, "a row about tasks on Coder cannot be read"),
                }
            }
            for (id, body) in rows {
                match serde_json::from_str(&body) {
                    Ok(intent) => drop(self.rows().entry(id).or_insert(intent)),
                    Err(error) => tracing::warn!(id, %error, "a row about work on Coder cannot be read"),
                }
            }
            Ok::<_, FleetError>(documents)
        });
        documents.await.map(Some)
    }

    /// What is recorded for the agent.
    pub(super) fn get(&self, place: &str, name: &str) -> Option<Intent> {
        self.rows().get(&Intent::id(place, name)).cloned()
    }

    /// Everything that is recorded for one Coder.
    pub(super) async fn of(&self, place: &str) -> Result<Vec<Intent>, FleetError> {
        self.documents().await?;
        Ok(self.rows().values().filter(|intent| intent.place == place).cloned().collect())
    }

    /// Records an intent, in place of an earlier one for the agent; returns once the disk has it.
    pub(super) async fn put(&self, intent: Intent) -> Result<(), FleetError> {
        let id = Intent::id(&intent.place, &intent.name);
        if let Some(documents) = self.documents().await? {
            let body = serde_json::to_string(&intent).map_err(|error| broken(&error))?;
            let put = DocumentChange::Put { kind: KIND, id: id.clone(), body };
            documents.write(vec![put], Vec::new()).await.map_err(|error| broken(&error))?;
        }
        self.rows().insert(id, intent);
        Ok(())
    }

    /// Notes that a request waits for the outcome of `intent`.
    pub(super) fn await_answer(&self, intent: &Intent) -> oneshot::Receiver<Answer> {
        let (reply, answer) = oneshot::channel();
        let id = Intent::id(&intent.place, &intent.name);
        lock(&self.waiting).insert(id, (intent.clone(), reply));
        answer
    }

    /// The request that waits for the outcome of `intent`, if there is one.
    pub(super) fn take_waiting(&self, intent: &Intent) -> Option<oneshot::Sender<Answer>> {
        let id = Intent::id(&intent.place, &intent.name);
        let mut waiting = lock(&self.waiting);
        waiting.get(&id).filter(|(ordered, _)| ordered == intent)?;
        waiting.remove(&id).map(|(_, reply)| reply)
    }

    /// Forgets an intent that is done, unless another took its place meanwhile.
    pub(super) async fn done(&self, intent: &Intent) {
        let id = Intent::id(&intent.place, &intent.name);
        if self.rows().get(&id) != Some(intent) {
            return;
        }
        self.rows().remove(&id);
        let Ok(Some(documents)) = self.documents().await else { return };
        let gone = DocumentChange::Delete { kind: KIND, id };
        if let Err(error) = documents.write(vec![gone], Vec::new()).await {
            // The next server finds it done already.
            tracing::warn!(agent = intent.name, %error, "work on Coder that is done stays on record");
        }
    }

    /// Whether the caller is the one who carries this agent's work out.
    pub(super) fn claim(self: &Arc<Self>, place: &str, name: &str) -> Option<Claim> {
        let id = Intent::id(place, name);
        lock(&self.claimed).insert(id.clone()).then(|| Claim { intents: Arc::clone(self), id })
    }
}

/// The right to carry out the work on one agent.
pub(super) struct Claim {
    intents: Arc<Intents>,
    id: String,
}

impl Drop for Claim {
    fn drop(&mut self) {
        lock(&self.intents.claimed).remove(&self.id);
    }
}

/// Milliseconds since 1970.
pub(super) fn millis(at: Moment) -> i64 {
    at.unix_ms()
}

pub(super) fn broken(error: &impl std::fmt::Display) -> FleetError {
    FleetError::unavailable(format!("the home's database cannot be used: {error}")).with("reason", "store")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
