//! What is written down about agents, their tasks and their projects.
//!
//! Every struct is stored as JSON. Fields may be added with a default; what an older program wrote must stay readable.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::project::LocalProject;
use super::role::RoleConfig;
use super::worktree::Workspace;
use crate::kit::KitState;
use crate::model::TaskSource;

/// How far the workspace of an agent has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It is being made.
    Preparing,
    /// It is there.
    Ready,
    /// It could not be made.
    Failed,
    /// It is being taken away.
    Deleting,
}

/// An agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentRow {
    /// Id of its workspace, unique for ever.
    pub id: String,
    /// Its name, unique without regard to case.
    pub name: String,
    /// Id of its project.
    pub project: String,
    /// Name of its role.
    pub role: String,
    /// What it was made for.
    pub spec: String,
    /// How far its workspace is.
    pub phase: Phase,
    /// Where its workspace is or will be.
    pub path: PathBuf,
    /// The workspace, once made.
    #[serde(default)]
    pub workspace: Option<Workspace>,
    /// What went wrong when it was made.
    #[serde(default)]
    pub failure: Option<String>,
    /// The kit it was equipped with.
    #[serde(default)]
    pub kit: Option<KitState>,
    /// What it was made with; absent in records of 0.1.0.
    #[serde(default)]
    pub settings: Option<AgentSettings>,
    /// A command that was accepted and is not finished.
    #[serde(default)]
    pub intent: Option<Intent>,
    /// The idempotency key it was created with.
    #[serde(default)]
    pub key: Option<String>,
    /// When it was made.
    pub created_ms: i64,
    /// When something about it last changed.
    pub updated_ms: i64,
}

/// A command that the next owner of the agent finishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Intent {
    /// End the open task and repair the workspace.
    Restart,
}

/// The settings of an agent, fixed when it is created.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentSettings {
    /// Its project.
    pub project: LocalProject,
    /// Its role.
    pub role: RoleConfig,
    /// What carries out its tasks unless the role says otherwise.
    #[serde(default)]
    pub driver: Option<String>,
    /// Id of the recorded settings that its tasks are carried out with.
    #[serde(default)]
    pub run: Option<String>,
}

/// How far a task has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// It waits for its turn.
    #[serde(alias = "starting")]
    Queued,
    /// Its driver was seen at work.
    Running,
    /// The agent said it is done.
    Completed,
    /// It ended badly.
    Failed,
    /// Somebody interrupted it.
    Stopped,
}

impl TaskState {
    /// Whether nothing more will happen.
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Stopped)
    }
}

/// A task of an agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskRow {
    /// Unique for ever.
    pub id: String,
    /// Id of the agent.
    pub agent: String,
    /// Position among the agent's tasks, from 1.
    pub number: u64,
    /// What is to be done.
    pub text: String,
    /// Who gave it.
    pub source: Source,
    /// What carries it out.
    pub driver: String,
    /// How far it is.
    pub state: TaskState,
    /// The run that carries it out. Tasks that command lines carried out before tasks were runs have none.
    #[serde(default)]
    pub run: Option<String>,
    /// What the agent said at the end.
    #[serde(default)]
    pub summary: Option<String>,
    /// Why it ended unfulfilled, as a word.
    #[serde(default)]
    pub reason: Option<String>,
    /// The same, for people.
    #[serde(default)]
    pub error: Option<String>,
    /// Tokens it took, as far as known.
    #[serde(default)]
    pub tokens: u64,
    /// The idempotency key it was started with.
    #[serde(default)]
    pub key: Option<String>,
    /// When it was given.
    pub created_ms: i64,
    /// When its driver began.
    #[serde(default)]
    pub started_ms: Option<i64>,
    /// When it ended.
    #[serde(default)]
    pub ended_ms: Option<i64>,
}

/// Who gave a task, as stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// A person, through the command line or the page.
    Human,
    /// A program, through a tool.
    AiController,
}

impl From<Source> for TaskSource {
    fn from(source: Source) -> Self {
        match source {
            Source::Human => Self::Human,
            Source::AiController => Self::AiController,
        }
    }
}

impl From<TaskSource> for Source {
    fn from(source: TaskSource) -> Self {
        match source {
            TaskSource::Human => Self::Human,
            TaskSource::AiController | TaskSource::Agent => Self::AiController,
        }
    }
}

/// A project somebody registered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProjectRow {
    /// Stable for its path.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
}
