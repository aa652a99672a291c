//! Coder's JSON, decoded only into the fields in use.
//!
//! What is not named here is skipped while reading; above all the environment variables of a workspace, which hold
//! secrets, are never looked at. Ids are UUIDs by type, so that they can stand in a path.

use serde::{Deserialize, Deserializer, Serialize};
use uuid::Uuid;

use crate::model::{LogEntry, LogKind};
use crate::time::Moment;

/// A workspace.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Workspace {
    pub(super) id: Uuid,
    pub(super) name: String,
    pub(super) owner_id: Uuid,
    pub(super) owner_name: String,
    #[serde(default)]
    pub(super) organization_name: String,
    pub(super) template_id: Uuid,
    pub(super) template_name: String,
    #[serde(default)]
    pub(super) template_display_name: String,
    #[serde(default)]
    pub(super) template_allow_user_cancel_workspace_jobs: bool,
    pub(super) created_at: Moment,
    pub(super) updated_at: Moment,
    pub(super) latest_build: Build,
    #[serde(default)]
    pub(super) latest_app_status: Option<AppStatus>,
    /// Since 2.28.
    #[serde(default)]
    pub(super) task_id: Option<Uuid>,
    #[serde(default)]
    pub(super) is_prebuild: bool,
    #[serde(default)]
    pub(super) dormant_at: Option<Moment>,
}

impl Workspace {
    /// The agents (Coder's word for its process in a workspace) that are not children of another.
    pub(super) fn top_agents(&self) -> impl Iterator<Item = &WorkspaceAgent> {
        self.all_agents().filter(|agent| agent.parent_id.is_none())
    }

    pub(super) fn all_agents(&self) -> impl Iterator<Item = &WorkspaceAgent> {
        self.latest_build.resources.iter().flat_map(|resource| &resource.agents)
    }

    pub(super) fn apps(&self) -> impl Iterator<Item = (&WorkspaceAgent, &App)> {
        self.all_agents().flat_map(|agent| agent.apps.iter().map(move |app| (agent, app)))
    }
}

/// The newest build of a workspace.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Build {
    pub(super) id: Uuid,
    pub(super) status: String,
    #[serde(default)]
    pub(super) transition: String,
    pub(super) created_at: Moment,
    pub(super) updated_at: Moment,
    #[serde(rename = "build_number", default)]
    pub(super) number: u64,
    pub(super) template_version_id: Uuid,
    #[serde(default)]
    pub(super) template_version_preset_id: Option<Uuid>,
    #[serde(default)]
    pub(super) has_ai_task: Option<bool>,
    /// Up to 2.28.
    #[serde(default)]
    pub(super) ai_task_sidebar_app_id: Option<Uuid>,
    #[serde(default)]
    pub(super) job: Job,
    #[serde(default, deserialize_with = "null_is_empty")]
    pub(super) resources: Vec<Resource>,
}

impl Build {
    /// The status; one that waits for a provisioner is told by what it is to do.
    pub(super) fn word(&self) -> &str {
        match (self.status.as_str(), self.transition.as_str()) {
            ("pending", "delete") => "deleting",
            ("pending", "stop") => "stopping",
            (status, _) => status,
        }
    }
}

/// What the provisioner says about a build.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Job {
    #[serde(default)]
    pub(super) error: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Resource {
    #[serde(default, deserialize_with = "null_is_empty")]
    pub(super) agents: Vec<WorkspaceAgent>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct WorkspaceAgent {
    pub(super) id: Uuid,
    pub(super) name: String,
    #[serde(default)]
    pub(super) parent_id: Option<Uuid>,
    pub(super) status: String,
    #[serde(default)]
    pub(super) lifecycle_state: String,
    /// Where the agent works; a terminal opens elsewhere while the directory is missing.
    #[serde(default)]
    pub(super) expanded_directory: String,
    #[serde(default, deserialize_with = "null_is_empty")]
    pub(super) apps: Vec<App>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct App {
    pub(super) id: Uuid,
    pub(super) slug: String,
    #[serde(default)]
    pub(super) display_name: String,
    #[serde(default)]
    pub(super) subdomain: bool,
    #[serde(default)]
    pub(super) subdomain_name: Option<String>,
    #[serde(default)]
    pub(super) health: String,
    #[serde(default, deserialize_with = "null_is_empty")]
    pub(super) statuses: Vec<AppStatus>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct AppStatus {
    pub(super) id: Uuid,
    pub(super) created_at: Moment,
    pub(super) app_id: Uuid,
    pub(super) state: String,
    #[serde(default)]
    pub(super) message: String,
    #[serde(default)]
    pub(super) uri: String,
    #[serde(default)]
    pub(super) needs_user_attention: bool,
}

/// What is left of a list of workspaces once the workspaces are taken out.
#[derive(Debug, Deserialize)]
pub(super) struct WorkspacePage {
    /// Holds nothing unless something other than a workspace stood in the list.
    #[serde(rename = "workspaces", default)]
    pub(super) _workspaces: Option<Vec<Nothing>>,
    pub(super) count: usize,
}

/// Cannot be read from anything.
#[derive(Debug)]
pub(super) enum Nothing {}

impl<'de> Deserialize<'de> for Nothing {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(serde::de::Error::custom("the list holds something that is no workspace"))
    }
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct User {
    pub(super) id: Uuid,
    pub(super) username: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Organization {
    pub(super) id: Uuid,
    pub(super) name: String,
    #[serde(default)]
    pub(super) is_default: bool,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Template {
    pub(super) id: Uuid,
    pub(super) name: String,
    #[serde(default)]
    pub(super) display_name: String,
    #[serde(default)]
    pub(super) description: String,
    pub(super) organization_id: Uuid,
    #[serde(default)]
    pub(super) organization_name: String,
    pub(super) active_version_id: Uuid,
    #[serde(default)]
    pub(super) deprecated: bool,
    #[serde(default)]
    pub(super) deleted: bool,
}

/// A preset; Coder writes its fields in the case of its own source, its documentation in lower case.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Preset {
    #[serde(alias = "ID")]
    pub(super) id: Uuid,
    #[serde(alias = "Name")]
    pub(super) name: String,
    #[serde(alias = "Parameters", default, deserialize_with = "null_is_empty")]
    pub(super) parameters: Vec<PresetParameter>,
    #[serde(alias = "Default", default)]
    pub(super) default: bool,
    #[serde(alias = "Description", default)]
    pub(super) description: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct PresetParameter {
    #[serde(alias = "Name")]
    pub(super) name: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct RichParameter {
    pub(super) name: String,
    #[serde(default, deserialize_with = "null_is_empty")]
    pub(super) options: Vec<RichParameterOption>,
    #[serde(default)]
    pub(super) default_value: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct RichParameterOption {
    pub(super) name: String,
    pub(super) value: String,
    #[serde(default)]
    pub(super) description: String,
}

/// A parameter of a build, and of a request for one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ParameterValue {
    pub(super) name: String,
    pub(super) value: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct BuildReference {
    pub(super) id: Uuid,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct TaskList {
    #[serde(default, deserialize_with = "null_is_empty")]
    pub(super) tasks: Vec<CoderTask>,
}

/// A task of Coder's tasks API.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct CoderTask {
    #[serde(default)]
    pub(super) workspace_id: Option<Uuid>,
    #[serde(default)]
    pub(super) workspace_app_id: Option<Uuid>,
    #[serde(default)]
    pub(super) initial_prompt: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct TaskLogs {
    #[serde(default, deserialize_with = "null_is_empty")]
    pub(super) logs: Vec<TaskLog>,
    /// Whether it is what was kept when the workspace stopped; none was kept if it has no time. Since 2.32.
    #[serde(default)]
    pub(super) snapshot: bool,
    #[serde(default)]
    pub(super) snapshot_at: Option<Moment>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct TaskLog {
    #[serde(default)]
    pub(super) id: i64,
    #[serde(default)]
    pub(super) content: String,
    #[serde(rename = "type", default)]
    pub(super) kind: String,
    #[serde(default)]
    pub(super) time: Option<Moment>,
}

impl TaskLog {
    pub(super) fn entry(self) -> LogEntry {
        LogEntry {
            id: self.id,
            kind: if self.kind == "input" { LogKind::Input } else { LogKind::Output },
            content: self.content,
            time: self.time,
            truncated: false,
        }
    }
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct ApplicationHost {
    #[serde(default)]
    pub(super) host: String,
}

/// One value of Coder's agent metadata.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct AgentMetadatum {
    pub(super) result: AgentMetadatumResult,
    pub(super) description: AgentMetadatumDescription,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct AgentMetadatumResult {
    #[serde(default)]
    pub(super) value: String,
    #[serde(default)]
    pub(super) error: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct AgentMetadatumDescription {
    #[serde(default)]
    pub(super) display_name: String,
    pub(super) key: String,
}

/// What Coder says when it refuses.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Refusal {
    #[serde(default)]
    pub(super) message: String,
    #[serde(default)]
    pub(super) detail: String,
    #[serde(default, deserialize_with = "null_is_empty")]
    pub(super) validations: Vec<Validation>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Validation {
    #[serde(default)]
    pub(super) field: String,
    #[serde(default)]
    pub(super) detail: String,
}

/// Coder writes an empty list as `null` in places.
pub(super) fn null_is_empty<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(Option::<Vec<T>>::deserialize(deserializer)?.unwrap_or_default())
}

/// A whole body that may be `null` instead of a list.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(super) struct NullableList<T>(Option<Vec<T>>);

impl<T> NullableList<T> {
    pub(super) fn into_vec(self) -> Vec<T> {
        self.0.unwrap_or_default()
    }
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
