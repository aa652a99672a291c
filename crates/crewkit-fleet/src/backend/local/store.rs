//! The record of the fleet: documents in the home's database, and a copy of them in memory for reading.
//!
//! A change is visible, and its caller answered, only after the disk has it. The owner of an agent alone changes its rows;
//! what is decided here is whether a name is free, and which events a change is.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, PoisonError, RwLock};

use crewkit_agent::{DocumentChange, Documents, NewEvent, RecordedSettings};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use super::record::{AgentRow, ProjectRow, TaskRow, TaskState};

const AGENT: &str = "agent";
const TASK: &str = "task";
const PROJECT: &str = "project";
/// Projects in which somebody has made an agent.
const TRUSTED: &str = "trusted";

/// Why something was not written.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The database cannot be used.
    #[error(transparent)]
    Database(#[from] crewkit_agent::StoreError),
    /// A document cannot be read.
    #[error("the {kind} `{id}` in the home's database cannot be read: {why}")]
    Damaged {
        /// What it is.
        kind: &'static str,
        /// Which.
        id: String,
        /// What is wrong with it.
        why: String,
    },
    /// The name is taken.
    #[error("the name is taken")]
    Taken,
}

/// One change.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    /// A new agent; refused when the name is taken.
    NewAgent(AgentRow),
    /// Replaces an agent that is there.
    PutAgent(AgentRow),
    PutTask(TaskRow),
    /// Forgets an agent and its tasks.
    DropAgent(String),
    DropTask(String),
    PutProject(ProjectRow),
    /// Forgets a project, and that it was trusted.
    DropProject(String),
    /// Records that somebody made an agent in the project.
    TrustProject(String),
    /// Keeps the run settings of an agent.
    PutSettings(Arc<RecordedSettings>),
}

/// What is on disk, for reading.
#[derive(Debug, Default)]
struct Memory {
    agents: BTreeMap<String, Arc<AgentRow>>,
    /// Ids by name, also of agents that are about to be written.
    names: HashMap<String, String>,
    tasks: HashMap<String, Vec<Arc<TaskRow>>>,
    projects: BTreeMap<String, ProjectRow>,
    trusted: BTreeSet<String>,
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
            Change::DropProject(id) => {
                self.projects.remove(&id);
                self.trusted.remove(&id);
            }
            Change::TrustProject(id) => drop(self.trusted.insert(id)),
            Change::PutSettings(_) => {}
        }
    }

    /// Reserves the names of new agents. Refuses all of them if one is taken.
    fn reserve(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        let new = changes.iter().filter_map(|change| match change {
            Change::NewAgent(row) => Some((row.name.to_ascii_lowercase(), row.id.clone())),
            _ => None,
        });
        let new: Vec<_> = new.collect();
        if new.iter().any(|(name, _)| self.names.contains_key(name)) {
            return Err(StoreError::Taken);
        }
        self.names.extend(new);
        Ok(())
    }

    /// Frees the names of agents that could not be written.
    fn release(&mut self, changes: &[Change]) {
        for change in changes {
            if let Change::NewAgent(row) = change {
                self.names.remove(&row.name.to_ascii_lowercase());
            }
        }
    }

    fn documents(&self, change: &Change) -> Vec<DocumentChange> {
        let put = |kind, id: &str, body: &dyn erased::Json| {
            vec![DocumentChange::Put { kind, id: id.to_owned(), body: body.json() }]
        };
        let delete = |kind, id: &str| DocumentChange::Delete { kind, id: id.to_owned() };
        match change {
            Change::NewAgent(row) | Change::PutAgent(row) => put(AGENT, &row.id, row),
            Change::PutTask(row) => put(TASK, &row.id, row),
            Change::DropAgent(id) => {
                let tasks = self.tasks.get(id).into_iter().flatten();
                tasks.map(|task| delete(TASK, &task.id)).chain([delete(AGENT, id)]).collect()
            }
            Change::DropTask(id) => vec![delete(TASK, id)],
            Change::PutProject(row) => put(PROJECT, &row.id, row),
            Change::DropProject(id) => vec![delete(PROJECT, id), delete(TRUSTED, id)],
            Change::TrustProject(id) => put(TRUSTED, id, &true),
            Change::PutSettings(settings) => vec![DocumentChange::Settings(Arc::clone(settings))],
        }
    }

    /// What a change is to those who watch. The subject of an agent and its tasks is the agent's place and name, the
    /// position of a task its number.
    fn event(&self, change: &Change, together: &[Change]) -> Option<NewEvent> {
        let subject = |agent: &AgentRow| format!("local/{}", agent.name);
        let event = |kind, subject: String, position| Some(NewEvent { kind, subject, position });
        match change {
            Change::NewAgent(row) => event("agent.created", subject(row), 0),
            Change::PutAgent(row) => {
                let before = self.agents.get(&row.id)?;
                let status = |row: &AgentRow| (row.phase, row.intent, row.failure.clone());
                if status(before) == status(row) {
                    return None;
                }
                event("agent.status", subject(row), 0)
            }
            Change::DropAgent(id) => event("agent.deleted", subject(self.agents.get(id)?), 0),
            Change::PutTask(row) => {
                let before =
                    self.tasks.get(&row.agent).and_then(|tasks| tasks.iter().find(|task| task.id == row.id));
                let kind = match (before.map(|task| task.state), row.state) {
                    (None, _) => "task.queued",
                    (Some(before), now) if now.is_over() && !before.is_over() => "task.ended",
                    (Some(before), TaskState::Running) if before != TaskState::Running => "task.started",
                    _ => return None,
                };
                // The first task is written together with its agent.
                let new = together.iter().find_map(|change| match change {
                    Change::NewAgent(agent) if agent.id == row.agent => Some(agent),
                    _ => None,
                });
                event(kind, subject(self.agents.get(&row.agent).map(Arc::as_ref).or(new)?), row.number)
            }
            Change::PutProject(row) => event("project.added", row.id.clone(), 0),
            Change::DropProject(id) => event("project.removed", id.clone(), 0),
            Change::DropTask(_) | Change::TrustProject(_) | Change::PutSettings(_) => None,
        }
    }
}

/// Writes changes and reads what is on disk.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    documents: Documents,
    memory: Arc<RwLock<Memory>>,
    version: watch::Sender<u64>,
}

impl Store {
    /// Reads what is there.
    pub(crate) async fn open(documents: Documents) -> Result<Self, StoreError> {
        let reader = documents.clone();
        let read = tokio::task::spawn_blocking(move || load(&reader)).await;
        let memory = read.unwrap_or(Err(crewkit_agent::StoreError::Closed.into()))?;
        let (version, _) = watch::channel(0);
        Ok(Self { documents, memory: Arc::new(RwLock::new(memory)), version })
    }

    /// Makes changes, all or none; returns when they are on disk. They are made even if the returned future is dropped.
    pub(crate) async fn write(&self, changes: Vec<Change>) -> Result<(), StoreError> {
        let (documents, events) = {
            let mut memory = self.memory.write().unwrap_or_else(PoisonError::into_inner);
            memory.reserve(&changes)?;
            // An agent that is gone is not written again.
            let is_late = |change: &Change| matches!(change, Change::PutAgent(row) if !memory.agents.contains_key(&row.id));
            let made = || changes.iter().filter(|change| !is_late(change));
            let documents: Vec<_> = made().flat_map(|change| memory.documents(change)).collect();
            (documents, made().filter_map(|change| memory.event(change, &changes)).collect())
        };
        let store = self.clone();
        let writing = tokio::spawn(async move {
            let written = store.documents.write(documents, events).await;
            let mut memory = store.memory.write().unwrap_or_else(PoisonError::into_inner);
            match &written {
                Ok(()) => {
                    for change in changes {
                        let is_late =
                            matches!(&change, Change::PutAgent(row) if !memory.agents.contains_key(&row.id));
                        if !is_late {
                            memory.apply(change);
                        }
                    }
                }
                Err(_) => memory.release(&changes),
            }
            drop(memory);
            store.version.send_modify(|version| *version += 1);
            written
        });
        Ok(writing.await.unwrap_or(Err(crewkit_agent::StoreError::Closed))?)
    }

    /// Reads the run settings of every agent. Those of an agent of 0.1.0 were not recorded.
    pub(crate) async fn run_settings(&self) -> Result<HashMap<String, Arc<RecordedSettings>>, StoreError> {
        let (documents, agents) = (self.documents.clone(), self.agents());
        let read = tokio::task::spawn_blocking(move || {
            let mut found = HashMap::new();
            for agent in agents {
                let Some(id) = agent.settings.as_ref().and_then(|settings| settings.run.clone()) else {
                    continue;
                };
                if let Some(settings) = documents.settings(&id)? {
                    found.insert(agent.id.clone(), Arc::new(settings));
                }
            }
            Ok(found)
        });
        read.await.unwrap_or(Err(crewkit_agent::StoreError::Closed.into()))
    }

    fn read<T>(&self, look: impl FnOnce(&Memory) -> T) -> T {
        look(&self.memory.read().unwrap_or_else(PoisonError::into_inner))
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

    /// Whether nobody has made an agent in the project yet; true once.
    pub(crate) fn is_first_in(&self, project: &str) -> bool {
        let mut memory = self.memory.write().unwrap_or_else(PoisonError::into_inner);
        memory.trusted.insert(project.to_owned())
    }

    /// Takes [`Self::is_first_in`] back: the agent could not be made.
    pub(crate) fn is_still_first_in(&self, project: &str) {
        self.memory.write().unwrap_or_else(PoisonError::into_inner).trusted.remove(project);
    }

    /// Hears of every change.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }
}

fn load(documents: &Documents) -> Result<Memory, StoreError> {
    let mut memory = Memory::default();
    rows(documents, AGENT)?.into_iter().for_each(|row| memory.apply(Change::NewAgent(row)));
    let mut tasks: Vec<TaskRow> = rows(documents, TASK)?;
    tasks.sort_by_key(|task| task.number);
    for row in tasks {
        memory.apply(Change::PutTask(row));
    }
    rows(documents, PROJECT)?.into_iter().for_each(|row| memory.apply(Change::PutProject(row)));
    memory.trusted = documents.all(TRUSTED)?.into_iter().map(|(id, _)| id).collect();
    Ok(memory)
}

fn rows<T: DeserializeOwned>(documents: &Documents, kind: &'static str) -> Result<Vec<T>, StoreError> {
    let read = |(id, body): (String, String)| {
        serde_json::from_str(&body).map_err(|error| StoreError::Damaged { kind, id, why: error.to_string() })
    };
    documents.all(kind)?.into_iter().map(read).collect()
}

mod erased {
    /// Anything that can be stored.
    pub(super) trait Json {
        fn json(&self) -> String;
    }

    impl<T: super::Serialize> Json for T {
        fn json(&self) -> String {
            // Rows are plain structs with text keys, which always have a JSON form.
            serde_json::to_string(self).unwrap_or_default()
        }
    }
}

#[cfg(test)]
mod tests {
    use crewkit_agent::{Engine, Options};

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
            settings: None,
            intent: None,
            key: None,
            created_ms: 1,
            updated_ms: 1,
        }
    }

    async fn engine(dir: &std::path::Path) -> Engine {
        Engine::open(Options::new(dir)).await.unwrap()
    }

    #[tokio::test]
    async fn names_are_unique_without_regard_to_case_and_all_or_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let engine = engine(dir.path()).await;
        let store = Store::open(engine.documents()).await.unwrap();
        store.write(vec![Change::NewAgent(agent("1", "Papi"))]).await.unwrap();
        let both = vec![Change::NewAgent(agent("3", "sony")), Change::NewAgent(agent("2", "PAPI"))];
        assert!(matches!(store.write(both).await, Err(StoreError::Taken)));
        assert_eq!(store.agents().len(), 1);
        assert_eq!(store.named("pApI").unwrap().id, "1");
        store.write(vec![Change::NewAgent(agent("3", "sony"))]).await.unwrap();
        let again = Store::open(engine.documents()).await.unwrap();
        assert_eq!(again.agents().len(), 2);
        again.write(vec![Change::DropAgent("1".to_owned())]).await.unwrap();
        again.write(vec![Change::PutAgent(agent("1", "Papi"))]).await.unwrap();
        assert!(again.named("papi").is_none(), "a late change makes no agent");
        again.write(vec![Change::NewAgent(agent("2", "PAPI"))]).await.unwrap();
        let third = Store::open(engine.documents()).await.unwrap();
        assert_eq!(third.named("papi").unwrap().id, "2");
        let kinds: Vec<_> =
            engine.events(0, 100).await.unwrap().events.into_iter().map(|event| event.kind).collect();
        let of_agents: Vec<_> = kinds.iter().filter(|kind| kind.starts_with("agent.")).collect();
        assert_eq!(of_agents, ["agent.created", "agent.created", "agent.deleted", "agent.created"]);
    }

    #[tokio::test]
    async fn many_at_once_are_all_written_and_one_name_is_given_once() {
        let dir = tempfile::tempdir().unwrap();
        let engine = engine(dir.path()).await;
        let store = Store::open(engine.documents()).await.unwrap();
        let wishes = (0..200)
            .map(|n| store.write(vec![Change::NewAgent(agent(&n.to_string(), &format!("a{}", n / 2)))]));
        let outcomes = futures_util::future::join_all(wishes).await;
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 100);
        assert_eq!(store.agents().len(), 100);
    }
}
