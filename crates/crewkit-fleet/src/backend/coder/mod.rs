//! Workspaces on Coder, through its REST API.
//!
//! Coder stores nothing for us: name, role, project and spec of an agent are read from the workspace, its preset, its
//! template and its first prompt. Who gave a task through this server, and which were interrupted, is kept in the home;
//! without it nothing else is missing.

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crewkit_core::{AgentName, Limits, Secret};
use tokio::sync::OnceCell;
use tokio::time::Instant;
use uuid::Uuid;

use super::{AgentRecord, Backend, BackendInfo, Early, Interrupted, Made, Moved, NewAgent, Rows, TaskOrder};
use crate::equip::{Choice, DriftReport, EquipOrder, EquipReport};
use crate::error::FleetError;
use crate::history::Report;
use crate::kit::Kit;
use crate::metadata::Metadata;
use crate::model::{HistoryScope, LogEntry, Project, Role, Task};
use crate::time::Clock;

mod agentapi;
mod builds;
mod capability;
mod circuit;
mod client;
mod create;
mod error;
mod intents;
mod journal;
mod kit;
mod metadata;
mod owner;
mod project;
mod pty;
mod record;
mod spec;
mod sse;
mod status;
mod stream;
mod tasks;
mod wire;

use client::Client;
pub use client::SettingsError;
pub use intents::Intents;
pub use kit::Profiles;

/// How Coder is reached and which of its workspaces are meant.
#[derive(Clone)]
pub struct CoderSettings {
    /// Address of Coder.
    pub url: String,
    /// Session token; what it may do is what the fleet may do.
    pub token: Secret,
    /// Certificates in PEM to trust besides those of the system, for a Coder whose certificate nobody else vouches for.
    pub ca: Option<Vec<u8>>,
    /// Whose workspaces: `me`, or a user name.
    pub owner: String,
    /// Organization to prefer when a project name exists in several.
    pub organization: Option<String>,
    /// Projects to restrict the fleet to; all when empty.
    pub projects: Vec<String>,
    /// Keys of Coder's agent metadata that are fleet metadata without the prefix that marks them.
    pub metadata_keys: Vec<String>,
    /// Seconds between two reads of metadata and kit through the terminal of a workspace.
    pub metadata_seconds: u64,
    /// Whether lists read them, too, instead of showing what was read last.
    pub list_metadata: bool,
    /// What agents are equipped with; nothing when absent.
    pub kit: Option<Arc<dyn Kit>>,
    /// Which agents get which profile of it.
    pub profiles: Profiles,
    /// Limits on time and size.
    pub limits: Limits,
    /// What is under way, shared by everything that this server does on any Coder.
    pub intents: Arc<Intents>,
}

/// Seconds between two reads through the terminal of a workspace unless set otherwise.
const METADATA_SECONDS: u64 = 60;

impl std::fmt::Debug for CoderSettings {
    /// Without the address: people put passwords into it, before they are told that it cannot be used.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CoderSettings").field("owner", &self.owner).finish_non_exhaustive()
    }
}

impl CoderSettings {
    /// Settings with nothing but what is needed.
    pub fn new(url: impl Into<String>, token: Secret) -> Self {
        Self {
            url: url.into(),
            token,
            ca: None,
            owner: "me".to_owned(),
            organization: None,
            projects: Vec::new(),
            metadata_keys: Vec::new(),
            metadata_seconds: METADATA_SECONDS,
            list_metadata: false,
            kit: None,
            profiles: Profiles::default(),
            limits: Limits::default(),
            intents: Arc::default(),
        }
    }
}

/// The fleet on Coder.
#[derive(Clone)]
pub struct CoderBackend {
    inner: Arc<Inner>,
}

struct Inner {
    client: Client,
    settings: CoderSettings,
    clock: Clock,
    me: OnceCell<wire::User>,
    app_host: agentapi::AppHost,
    /// Presets and parameters never change within a version of a template.
    presets: Cache<Arc<Vec<wire::Preset>>>,
    parameters: Cache<Arc<Vec<wire::RichParameter>>>,
    /// The spec of an agent never changes.
    specs: Cache<String>,
    task_templates: Mutex<Option<(Instant, Arc<Vec<Uuid>>)>>,
    tasks_routes: capability::TasksRoutes,
    /// How many workspaces there were when they were last listed.
    workspace_count: AtomicUsize,
    /// What was found through terminals.
    looked: Cache<metadata::Looked>,
    /// What agents were last seen to do.
    learned: Cache<record::Learned>,
    kit_locks: kit::Locks,
}

/// What the backend needs to act on an agent.
#[derive(Debug, Clone)]
pub struct CoderHandle {
    workspace: Arc<wire::Workspace>,
    /// Empty for agents of a list.
    reports: Arc<Vec<Report>>,
    /// Whether it was looked up alone, not as one of a list.
    alone: bool,
}

/// A bounded memory for what does not change.
struct Cache<V> {
    entries: Mutex<HashMap<Uuid, V>>,
}

/// Entries after which a [`Cache`] starts again.
const CACHE_ENTRIES: usize = 4096;

impl<V: Clone> Cache<V> {
    fn new() -> Self {
        Self { entries: Mutex::default() }
    }

    fn get(&self, key: Uuid) -> Option<V> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned()
    }

    fn put(&self, key: Uuid, value: V) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() >= CACHE_ENTRIES {
            entries.clear();
        }
        entries.insert(key, value);
    }
}

impl CoderBackend {
    /// The host of Coder, which is the place of its agents.
    pub fn host(&self) -> &str {
        self.inner.client.base().host_str().unwrap_or_default()
    }

    /// Prepares the backend; nothing is asked of Coder yet.
    pub fn new(settings: CoderSettings, clock: Clock) -> Result<Self, SettingsError> {
        let ca = settings.ca.as_deref();
        let client = Client::new(&settings.url, &settings.token, ca, settings.limits.clone(), clock.clone())?;
        Ok(Self {
            inner: Arc::new(Inner {
                client,
                settings,
                clock,
                me: OnceCell::new(),
                app_host: agentapi::AppHost::default(),
                presets: Cache::new(),
                parameters: Cache::new(),
                specs: Cache::new(),
                task_templates: Mutex::new(None),
                tasks_routes: capability::TasksRoutes::default(),
                workspace_count: AtomicUsize::new(record::UNKNOWN_COUNT),
                looked: Cache::new(),
                learned: Cache::new(),
                kit_locks: kit::Locks::default(),
            }),
        })
    }

    /// Deploys the kit into living workspaces. One that fails is reported; the others are done.
    pub async fn equip(&self, order: EquipOrder) -> Result<EquipReport, FleetError> {
        self.inner.equip(order).await
    }

    /// Tells how workspaces differ from their kits.
    pub async fn drift(&self, choice: &Choice) -> Result<DriftReport, FleetError> {
        self.inner.drift(choice).await
    }

    /// Goes on with what an earlier server left on this Coder.
    pub async fn take_up(&self) -> Result<(), FleetError> {
        self.inner.take_up().await
    }

    /// Returns when nothing is under way any more.
    pub async fn settled(&self) {
        let tasks = &self.inner.settings.intents.tasks;
        tasks.close();
        tasks.wait().await;
        tasks.reopen();
    }
}

impl Backend for CoderBackend {
    type Handle = CoderHandle;

    const HISTORY: HistoryScope = HistoryScope::CurrentBuild;

    async fn info(&self) -> BackendInfo {
        self.inner.info().await
    }

    async fn agents(&self) -> Result<Vec<AgentRecord<CoderHandle>>, FleetError> {
        self.inner.agents(None).await
    }

    async fn agents_early(
        &self,
        early: Early<CoderHandle>,
    ) -> Result<Vec<AgentRecord<CoderHandle>>, FleetError> {
        self.inner.agents(Some(&early)).await
    }

    async fn agent(&self, name: &AgentName) -> Result<AgentRecord<CoderHandle>, FleetError> {
        self.inner.agent(name).await
    }

    async fn live(&self, agent: &AgentRecord<CoderHandle>) -> AgentRecord<CoderHandle> {
        self.inner.live(agent).await
    }

    async fn complete(
        &self,
        agent: &AgentRecord<CoderHandle>,
    ) -> Result<AgentRecord<CoderHandle>, FleetError> {
        Ok(Box::pin(self.inner.complete(agent)).await)
    }

    async fn is_taken(&self, name: &AgentName) -> Result<bool, FleetError> {
        self.inner.workspace(name).await.map(|found| found.is_some())
    }

    fn taken(name: &AgentName) -> FleetError {
        // What Coder itself would answer, which was not asked in vain.
        FleetError::already_exists(name.as_str()).with("coder_status", 409)
    }

    async fn create(&self, new: NewAgent<'_>) -> Result<Made<CoderHandle>, FleetError> {
        let inner = Arc::clone(&self.inner);
        let (name, project, role) = (new.name.clone(), new.project.clone(), new.role.cloned());
        let (spec, key, source) = (new.spec.to_owned(), new.key.map(str::to_owned), new.source);
        // Not in the request, which may go away at any time.
        let creating = self.inner.settings.intents.tasks.spawn(async move {
            let (role, key) = (role.as_ref(), key.as_deref());
            let new = NewAgent { name: &name, project: &project, role, spec: &spec, source, key };
            Box::pin(create::create(&inner, new)).await
        });
        creating.await.unwrap_or_else(|_| {
            Err(FleetError::unavailable("the outcome is not known; list_agents shows whether it was made")
                .with("outcome", "unknown"))
        })
    }

    async fn delete(&self, agent: &AgentRecord<CoderHandle>) -> Result<Moved, FleetError> {
        self.inner.delete(agent).await
    }

    async fn restart(&self, agent: &AgentRecord<CoderHandle>) -> Result<Moved, FleetError> {
        self.inner.restart(agent).await
    }

    async fn start_task(
        &self,
        agent: &AgentRecord<CoderHandle>,
        task: TaskOrder<'_>,
    ) -> Result<Task, FleetError> {
        Box::pin(self.inner.start_task(agent, task)).await
    }

    async fn stop_task(&self, agent: &AgentRecord<CoderHandle>) -> Result<Interrupted, FleetError> {
        Box::pin(self.inner.stop_task(agent)).await
    }

    async fn tasks(
        &self,
        agent: &AgentRecord<CoderHandle>,
        rows: Rows,
    ) -> Result<(Vec<Task>, Option<String>), FleetError> {
        Ok(Box::pin(self.inner.history(agent, rows)).await)
    }

    async fn log(
        &self,
        agent: &AgentRecord<CoderHandle>,
        skip: usize,
        take: usize,
    ) -> Result<(Vec<LogEntry>, usize), FleetError> {
        let entries = self.inner.conversation(agent).await?;
        let total = entries.len();
        Ok((entries.into_iter().rev().skip(skip).take(take).collect(), total))
    }

    async fn projects(&self) -> Result<Vec<Project>, FleetError> {
        self.inner.projects().await
    }

    async fn roles(&self, project: &Project) -> Result<Vec<Role>, FleetError> {
        self.inner.roles(project).await
    }

    async fn metadata(&self, agent: &AgentRecord<CoderHandle>) -> Metadata {
        let until =
            Instant::now() + Duration::from_millis(self.inner.settings.limits.fleet_metadata_agent_ms);
        metadata::collect(&self.inner, &agent.handle, agent.pull_request_url.as_deref(), until).await
    }

    async fn changed(&self, agent: &AgentRecord<CoderHandle>, within: Duration) {
        self.inner.changed(&agent.handle, within).await;
    }
}
