//! A fleet over whichever backend is configured, tool by tool.

use std::sync::Arc;

use crate::backend::coder::CoderBackend;
use crate::backend::local::LocalFleet;
use crate::backend::local::project::LocalProject;
use crate::changes::{AgentDiff, DiffQuery};
use crate::equip::{DriftReport, EquipAgents, EquipReport, FleetDrift};
use crate::error::FleetError;
use crate::landing::{LandAgent, Landing};
use crate::model::{
    AddProject, AgentList, AgentLog, ByName, CreateAgent, Created, Deleted, ListAgents, ListRoles, LogQuery,
    ProjectChanged, ProjectList, ProjectPath, RemoveProject, Restarted, RoleList, Shown, StartTask, Started,
    Stopped, TaskHistory, TaskHistoryQuery, WaitForAgent, Waited,
};
use crate::service::Fleet;

/// The place of agents on this machine.
pub const LOCAL: &str = "local";

/// A fleet over whichever backend is configured.
#[derive(Clone)]
pub enum AnyFleet {
    /// Workspaces on Coder.
    Coder(Box<Fleet<CoderBackend>>),
    /// Workspaces on this machine.
    Local(Arc<LocalFleet>),
}

impl std::fmt::Debug for AnyFleet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Coder(_) => f.write_str("AnyFleet::Coder"),
            Self::Local(_) => f.write_str("AnyFleet::Local"),
        }
    }
}

/// Defines tools that every backend has under the same name.
macro_rules! tools {
    ($($(#[$doc:meta])* $tool:ident($($input:ident: $type:ty)?) -> $output:ty;)+) => {
        impl AnyFleet {$(
            $(#[$doc])*
            pub async fn $tool(&self $(, $input: $type)?) -> Result<$output, FleetError> {
                match self {
                    Self::Coder(fleet) => Box::pin(fleet.$tool($($input)?)).await,
                    Self::Local(fleet) => Box::pin(fleet.get().await?.$tool($($input)?)).await,
                }
            }
        )+}
    };
}

tools! {
    /// See [`Fleet::create_agent`].
    create_agent(input: CreateAgent) -> Created;
    /// See [`Fleet::list_agents`].
    list_agents(input: ListAgents) -> AgentList;
    /// See [`Fleet::show_agent`].
    show_agent(input: ByName) -> Shown;
    /// See [`Fleet::show_agent_task_history`].
    show_agent_task_history(input: TaskHistoryQuery) -> TaskHistory;
    /// See [`Fleet::show_agent_log`].
    show_agent_log(input: LogQuery) -> AgentLog;
    /// See [`Fleet::delete_agent`].
    delete_agent(input: ByName) -> Deleted;
    /// See [`Fleet::start_agent_task`].
    start_agent_task(input: StartTask) -> Started;
    /// See [`Fleet::stop_agent_task`].
    stop_agent_task(input: ByName) -> Stopped;
    /// See [`Fleet::restart_agent`].
    restart_agent(input: ByName) -> Restarted;
    /// See [`Fleet::wait_for_agent`].
    wait_for_agent(input: WaitForAgent) -> Waited;
    /// See [`Fleet::list_agent_roles`].
    list_agent_roles(input: ListRoles) -> RoleList;
    /// See [`Fleet::list_agent_projects`].
    list_agent_projects() -> ProjectList;
}

impl AnyFleet {
    /// The place of its agents: `local`, or the host of Coder.
    pub fn place(&self) -> &str {
        match self {
            Self::Coder(fleet) => fleet.backend().host(),
            Self::Local(_) => LOCAL,
        }
    }

    /// Deploys a pack profile into workspaces, or takes it back.
    pub async fn equip_agents(&self, input: EquipAgents) -> Result<EquipReport, FleetError> {
        let order = input.order()?;
        match self {
            Self::Coder(fleet) => Box::pin(fleet.backend().equip(order)).await,
            Self::Local(fleet) => Box::pin(fleet.get().await?.backend().equip(order)).await,
        }
    }

    /// Compares workspaces with their kit.
    pub async fn fleet_drift(&self, input: FleetDrift) -> Result<DriftReport, FleetError> {
        let choice = input.choice()?;
        match self {
            Self::Coder(fleet) => Box::pin(fleet.backend().drift(&choice)).await,
            Self::Local(fleet) => Box::pin(fleet.get().await?.backend().drift(&choice)).await,
        }
    }

    /// Shows what an agent of this machine has changed against its base.
    pub async fn agent_diff(&self, input: DiffQuery) -> Result<AgentDiff, FleetError> {
        match self {
            Self::Local(fleet) => Box::pin(fleet.get().await?.backend().diff(input)).await,
            Self::Coder(_) => Err(FleetError::bad_request(
                "Changes of agents on Coder cannot be shown yet. Look at the pull request, or into the workspace",
            )
            .with("reason", "not_supported")
            .with("agent_name", input.agent_name)),
        }
    }

    /// Brings the work of an agent of this machine onto its base, or tells what that would do.
    pub async fn land_agent(&self, input: LandAgent) -> Result<Landing, FleetError> {
        match self {
            Self::Local(fleet) => Box::pin(fleet.get().await?.backend().land(input)).await,
            Self::Coder(_) => Err(FleetError::bad_request(
                "Work of agents on Coder cannot be landed from here. Merge its pull request",
            )
            .with("reason", "not_supported")
            .with("agent_name", input.agent_name)),
        }
    }

    /// Registers a repository or directory of this machine as a project.
    pub async fn add_project(&self, input: AddProject) -> Result<ProjectChanged, FleetError> {
        let local = self.of_this_machine()?.get().await?;
        if !input.path.is_absolute() {
            return Err(FleetError::invalid("path", "`path` must be absolute"));
        }
        let project = Box::pin(local.backend().add_project(&input.path, input.name.as_deref())).await?;
        Ok(changed(project, "registered"))
    }

    /// Forgets a project of this machine that has no agents; its files stay as they are.
    pub async fn remove_project(&self, input: RemoveProject) -> Result<ProjectChanged, FleetError> {
        let local = self.of_this_machine()?.get().await?;
        Ok(changed(Box::pin(local.backend().remove_project(&input.project)).await?, "removed"))
    }

    fn of_this_machine(&self) -> Result<&LocalFleet, FleetError> {
        match self {
            Self::Local(fleet) => Ok(fleet),
            Self::Coder(_) => Err(FleetError::bad_request(
                "Projects on Coder are its templates. Push a template to Coder to add a project",
            )
            .with("reason", "not_supported")),
        }
    }
}

fn changed(project: LocalProject, what: &str) -> ProjectChanged {
    let message = format!("Project '{}' is {what}", project.name);
    ProjectChanged {
        project: ProjectPath { id: project.id, name: project.name, path: project.path },
        message,
    }
}
