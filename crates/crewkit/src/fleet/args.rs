//! The arguments of `crewkit fleet`.

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

/// `crewkit fleet …`.
#[derive(Debug, Args)]
pub struct FleetArgs {
    #[command(subcommand)]
    command: FleetCommand,
}

#[derive(Debug, Subcommand)]
enum FleetCommand {
    /// List agents.
    List(ListArgs),
    /// Show everything about an agent.
    Show {
        /// Its name.
        agent: String,
    },
    /// Create an agent, which starts on its spec at once.
    Create(CreateArgs),
    /// Delete an agent and its workspace.
    Delete {
        /// Its name.
        agent: String,
    },
    /// Give an idle agent a task.
    Start {
        /// Its name.
        agent: String,
        /// What it is to do.
        task: String,
    },
    /// Interrupt the task an agent works on.
    Stop {
        /// Its name.
        agent: String,
    },
    /// Show what an agent has done, newest first.
    History(PageArgs),
    /// Show what an agent was told and said, newest first.
    Log(PageArgs),
    /// List the roles of a project.
    Roles {
        /// The project.
        project: String,
    },
    /// List the projects agents can work on.
    Projects,
    /// Register projects of this machine.
    #[command(subcommand)]
    Project(ProjectCommand),
    /// Deploy a pack profile into the workspaces of living agents.
    Equip(EquipArgs),
    /// Show where workspaces differ from their kit.
    Drift {
        /// Only this agent.
        #[arg(long, conflicts_with = "project")]
        agent: Option<String>,
        /// Only agents of this project.
        #[arg(long)]
        project: Option<String>,
    },
    /// Wait until an agent has a status; fails when it does not get there in time.
    Wait {
        /// Its name.
        agent: String,
        /// The status: one of the eleven, or `offline`.
        #[arg(long, default_value = "idle")]
        status: String,
        /// Longest wait in seconds.
        #[arg(long, default_value_t = 60, value_name = "SECONDS")]
        timeout: i64,
    },
    /// Stop and start the workspace of an agent.
    Restart {
        /// Its name.
        agent: String,
    },
}

#[derive(Debug, Subcommand)]
enum ProjectCommand {
    /// Register a git repository or a directory.
    Add {
        /// Where it is.
        path: std::path::PathBuf,
        /// Its name; that of the directory unless given.
        #[arg(long)]
        name: Option<String>,
    },
    /// List the projects agents can work on.
    List,
}

#[derive(Debug, Args)]
#[group(id = "whom", required = true, multiple = false, args = ["agent", "project", "all"])]
struct EquipArgs {
    /// This agent.
    #[arg(long)]
    agent: Option<String>,
    /// The agents of this project.
    #[arg(long)]
    project: Option<String>,
    /// All agents.
    #[arg(long)]
    all: bool,
    /// The profile; the one each agent has unless given.
    #[arg(long)]
    profile: Option<String>,
    /// Do this many first, the others only when none failed.
    #[arg(long, value_name = "N")]
    canary: Option<u32>,
    /// Take the newest deployment back instead.
    #[arg(long)]
    rollback: bool,
}

#[derive(Debug, Args)]
struct ListArgs {
    /// Only agents with this status, or `offline`.
    #[arg(long)]
    status: Option<String>,
    /// Only agents of this project.
    #[arg(long)]
    project: Option<String>,
    /// Only agents with this role.
    #[arg(long)]
    role: Option<String>,
    /// Do not ask the workspaces for metadata.
    #[arg(long)]
    no_metadata: bool,
    /// Most agents to list.
    #[arg(long)]
    limit: Option<i64>,
    /// Agents to pass over first.
    #[arg(long)]
    offset: Option<i64>,
}

#[derive(Debug, Args)]
struct CreateArgs {
    /// Name of the new agent.
    name: String,
    /// What it is to do.
    spec: String,
    /// Project it works on.
    #[arg(long)]
    project: String,
    /// Its role.
    #[arg(long)]
    role: Option<String>,
}

#[derive(Debug, Args)]
struct PageArgs {
    /// Name of the agent.
    agent: String,
    /// Page, from 1.
    #[arg(long, default_value_t = 1)]
    page: i64,
    /// Entries per page, at most 100.
    #[arg(long, default_value_t = 20)]
    page_size: i64,
}

impl FleetArgs {
    /// The operation that is meant, and its arguments.
    pub(super) fn operation(self) -> (&'static str, Map<String, Value>) {
        let by_name = |agent: String| json!({"agent_name": agent});
        let (operation, arguments) = match self.command {
            FleetCommand::List(list) => (
                "list_agents",
                json!({
                    "status_filter": list.status, "project_filter": list.project, "role_filter": list.role,
                    "include_metadata": !list.no_metadata, "limit": list.limit, "offset": list.offset,
                }),
            ),
            FleetCommand::Show { agent } => ("show_agent", by_name(agent)),
            FleetCommand::Create(new) => (
                "create_agent",
                json!({"name": new.name, "project": new.project, "spec": new.spec, "role": new.role}),
            ),
            FleetCommand::Delete { agent } => ("delete_agent", by_name(agent)),
            FleetCommand::Start { agent, task } => {
                ("start_agent_task", json!({"agent_name": agent, "task_description": task}))
            }
            FleetCommand::Stop { agent } => ("stop_agent_task", by_name(agent)),
            FleetCommand::History(of) => (
                "show_agent_task_history",
                json!({"agent_name": of.agent, "page": of.page, "page_size": of.page_size}),
            ),
            FleetCommand::Log(of) => (
                "show_agent_log",
                json!({"agent_name": of.agent, "page": of.page, "page_size": of.page_size}),
            ),
            FleetCommand::Roles { project } => ("list_agent_roles", json!({"project": project})),
            FleetCommand::Projects | FleetCommand::Project(ProjectCommand::List) => {
                ("list_agent_projects", json!({}))
            }
            FleetCommand::Project(ProjectCommand::Add { path, name }) => {
                // The server may run elsewhere in the tree, so a path must mean the same to both.
                let path = std::path::absolute(&path).unwrap_or(path);
                (crate::local::ADD_PROJECT, json!({"path": path, "name": name}))
            }
            FleetCommand::Equip(whom) => (
                "equip_agents",
                json!({
                    "agent_name": whom.agent, "project": whom.project, "all": whom.all.then_some(true),
                    "profile": whom.profile, "canary": whom.canary, "rollback": whom.rollback.then_some(true),
                    // Asking for it on the command line is the approval.
                    "yes": true,
                }),
            ),
            FleetCommand::Drift { agent, project } => {
                ("fleet_drift", json!({"agent_name": agent, "project": project}))
            }
            FleetCommand::Wait { agent, status, timeout } => {
                ("wait_for_agent", json!({"agent_name": agent, "status": status, "timeout_seconds": timeout}))
            }
            FleetCommand::Restart { agent } => ("restart_agent", by_name(agent)),
        };
        let given = match arguments {
            Value::Object(fields) => fields.into_iter().filter(|(_, value)| !value.is_null()).collect(),
            _ => Map::new(),
        };
        (operation, given)
    }
}
