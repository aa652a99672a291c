//! What the fleet needs to know of a place where workspaces live.
//!
//! A backend reports facts and carries out orders. What callers may ask, and how answers look, is decided by the
//! service above it, so that every backend behaves alike.

use std::future::Future;
use std::time::Duration;

use crewkit_core::AgentName;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::error::FleetError;
use crate::metadata::Metadata;
use crate::model::{AgentKit, Health, HistoryScope, LogEntry, Project, Role, StatusWord, Task, TaskSource};
use crate::time::Moment;

pub mod coder;
pub mod local;

/// What is known of one agent, and the backend's own handle to it.
#[derive(Debug, Clone)]
pub struct AgentRecord<H> {
    /// Name in the case it was given.
    pub name: String,
    /// Id of the workspace.
    pub workspace_id: String,
    /// Status, derived from evidence.
    pub status: StatusWord,
    /// Role, or `unknown`.
    pub role: String,
    /// Name of the project.
    pub project: String,
    /// Everything the project can be called: short name, id, `organization/name`.
    pub project_aliases: Vec<String>,
    /// What it was created to do, where that is known.
    pub spec: Option<String>,
    /// What it works on; none unless busy.
    pub current_task: Option<String>,
    /// The newest thing it reported.
    pub last_task: Option<String>,
    /// Newest link to a pull request it reported.
    pub pull_request_url: Option<String>,
    /// When the workspace was created.
    pub created_at: Moment,
    /// When something last changed.
    pub updated_at: Moment,
    /// Whether a person should look at it.
    pub needs_attention: bool,
    /// Whether the workspace is well.
    pub health: Health,
    /// Whose it is.
    pub owner: String,
    /// Organization it belongs to.
    pub organization: String,
    /// Where a person looks at it.
    pub url: Option<String>,
    /// What it was equipped with.
    pub kit: Option<AgentKit>,
    /// What the backend itself needs to act on it.
    pub handle: H,
}

/// Takes agents that become known before the others.
pub type Early<H> = tokio::sync::mpsc::UnboundedSender<AgentRecord<H>>;

/// Which rows of a history to give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    /// Empty rows dropped, repetitions joined.
    Tidy,
    /// Every row as it came.
    Raw,
}

/// An agent to be made.
#[derive(Debug, Clone, Copy)]
pub struct NewAgent<'a> {
    /// Its name; not known to be taken.
    pub name: &'a AgentName,
    /// Its project.
    pub project: &'a Project,
    /// Its role; none when the project has no roles.
    pub role: Option<&'a Role>,
    /// What it is to do.
    pub spec: &'a str,
    /// Who asks for it.
    pub source: TaskSource,
    /// Idempotency key.
    pub key: Option<&'a str>,
}

/// A task to be started.
#[derive(Debug, Clone, Copy)]
pub struct TaskOrder<'a> {
    /// What the agent is to do.
    pub text: &'a str,
    /// Who asks for it.
    pub source: TaskSource,
    /// Idempotency key.
    pub key: Option<&'a str>,
}

/// An agent that was made.
#[derive(Debug)]
pub struct Made<H> {
    /// The agent.
    pub agent: AgentRecord<H>,
    /// What the caller should know beyond success.
    pub note: Option<String>,
}

/// A task that was interrupted.
#[derive(Debug)]
pub struct Interrupted {
    /// The task.
    pub task: Task,
    /// Whether the agent was seen to come to rest.
    pub confirmed: bool,
}

/// What came of a delete or restart.
#[derive(Debug)]
pub struct Moved {
    /// Status of the workspace now.
    pub status: StatusWord,
    /// What the caller should know beyond success.
    pub note: Option<String>,
}

/// What a backend says about itself.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BackendInfo {
    /// `coder` or `local`.
    pub backend: &'static str,
    /// Whether it answers.
    pub reachable: bool,
    /// Facts for a person who looks for a fault.
    pub facts: Map<String, Value>,
}

/// A place where workspaces live.
pub trait Backend: Send + Sync + 'static {
    /// What the backend itself needs to act on an agent.
    type Handle: Clone + Send + Sync;

    /// How far back [`Backend::tasks`] reaches.
    const HISTORY: HistoryScope;

    /// What it is and whether it answers.
    fn info(&self) -> impl Future<Output = BackendInfo> + Send;

    /// Every agent of the caller, with role and status.
    fn agents(&self) -> impl Future<Output = Result<Vec<AgentRecord<Self::Handle>>, FleetError>> + Send;

    /// The same. Where agents become known one after the other, tells `early` of those it already can, some perhaps
    /// twice and with their roles still missing, so that more can be found out about them meanwhile.
    fn agents_early(
        &self,
        early: Early<Self::Handle>,
    ) -> impl Future<Output = Result<Vec<AgentRecord<Self::Handle>>, FleetError>> + Send {
        drop(early);
        self.agents()
    }

    /// One agent of the caller, as one look shows it: role and spec may be missing, the status may lag.
    fn agent(
        &self,
        name: &AgentName,
    ) -> impl Future<Output = Result<AgentRecord<Self::Handle>, FleetError>> + Send;

    /// The same agent with its status checked against the agent itself.
    fn live(
        &self,
        agent: &AgentRecord<Self::Handle>,
    ) -> impl Future<Output = AgentRecord<Self::Handle>> + Send;

    /// The same agent with everything there is to know: live status, role and spec.
    fn complete(
        &self,
        agent: &AgentRecord<Self::Handle>,
    ) -> impl Future<Output = Result<AgentRecord<Self::Handle>, FleetError>> + Send;

    /// Whether the name is taken; what a caller is told then is up to [`Backend::taken`].
    fn is_taken(&self, name: &AgentName) -> impl Future<Output = Result<bool, FleetError>> + Send;

    /// What is wrong with a name that is taken.
    fn taken(name: &AgentName) -> FleetError {
        FleetError::already_exists(name.as_str())
    }

    /// The agent that was created with the idempotency key `key`, where the backend remembers keys.
    fn created_with(
        &self,
        key: &str,
    ) -> impl Future<Output = Result<Option<AgentRecord<Self::Handle>>, FleetError>> + Send {
        let _ = key;
        async { Ok(None) }
    }

    /// The task of `agent` that was started with the idempotency key `key`, where the backend remembers keys.
    fn started_with(
        &self,
        agent: &AgentRecord<Self::Handle>,
        key: &str,
    ) -> impl Future<Output = Result<Option<Task>, FleetError>> + Send {
        let _ = (agent, key);
        async { Ok(None) }
    }

    /// Makes an agent, which begins to work on its spec by itself.
    fn create(
        &self,
        new: NewAgent<'_>,
    ) -> impl Future<Output = Result<Made<Self::Handle>, FleetError>> + Send;

    /// Deletes an agent in whatever status it is.
    fn delete(
        &self,
        agent: &AgentRecord<Self::Handle>,
    ) -> impl Future<Output = Result<Moved, FleetError>> + Send;

    /// Stops and starts the workspace, or starts it when it is stopped.
    fn restart(
        &self,
        agent: &AgentRecord<Self::Handle>,
    ) -> impl Future<Output = Result<Moved, FleetError>> + Send;

    /// Gives an idle agent a task; returns once the agent has taken it.
    fn start_task(
        &self,
        agent: &AgentRecord<Self::Handle>,
        task: TaskOrder<'_>,
    ) -> impl Future<Output = Result<Task, FleetError>> + Send;

    /// Interrupts a busy agent.
    fn stop_task(
        &self,
        agent: &AgentRecord<Self::Handle>,
    ) -> impl Future<Output = Result<Interrupted, FleetError>> + Send;

    /// The tasks of an agent, newest first, and what they do not tell.
    fn tasks(
        &self,
        agent: &AgentRecord<Self::Handle>,
        rows: Rows,
    ) -> impl Future<Output = Result<(Vec<Task>, Option<String>), FleetError>> + Send;

    /// The `take` entries of an agent's conversation before its `skip` newest ones, newest first, and how many there are in
    /// all.
    fn log(
        &self,
        agent: &AgentRecord<Self::Handle>,
        skip: usize,
        take: usize,
    ) -> impl Future<Output = Result<(Vec<LogEntry>, usize), FleetError>> + Send;

    /// The projects agents can be made for.
    fn projects(&self) -> impl Future<Output = Result<Vec<Project>, FleetError>> + Send;

    /// The roles of a project.
    fn roles(&self, project: &Project) -> impl Future<Output = Result<Vec<Role>, FleetError>> + Send;

    /// The metadata of an online agent; whatever goes wrong, it is empty rather than an error.
    fn metadata(&self, agent: &AgentRecord<Self::Handle>) -> impl Future<Output = Metadata> + Send;

    /// Returns when something about the agent may have changed, and at the latest after `within`.
    fn changed(&self, agent: &AgentRecord<Self::Handle>, within: Duration)
    -> impl Future<Output = ()> + Send;
}
