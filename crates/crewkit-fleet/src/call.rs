//! The tools by name, from JSON to JSON: what every door needs and none should repeat.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::backend::Backend;
use crate::backend::coder::CoderBackend;
use crate::backend::local::LocalFleet;
use crate::equip::{drift_choice, equip_order};
use crate::error::FleetError;
use crate::service::Fleet;

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

impl AnyFleet {
    /// Runs the tool called `tool`.
    pub fn call<'a>(
        &'a self,
        tool: &'a str,
        arguments: Map<String, Value>,
    ) -> BoxFuture<'a, Result<Value, FleetError>> {
        Box::pin(async move {
            match self {
                Self::Coder(fleet) => on_coder(fleet, tool, arguments)
                    .await
                    .map_err(|error| error.or_with("operation", Some(tool))),
                Self::Local(fleet) => fleet.call(tool, arguments).await,
            }
        })
    }
}

async fn on_coder(
    fleet: &Fleet<CoderBackend>,
    tool: &str,
    arguments: Map<String, Value>,
) -> Result<Value, FleetError> {
    match tool {
        "equip_agents" => shown(Box::pin(fleet.backend().equip(equip_order(arguments)?)).await),
        "fleet_drift" => shown(Box::pin(fleet.backend().drift(&drift_choice(arguments)?)).await),
        "add_agent_project" => Err(FleetError::bad_request(
            "projects on Coder are its templates; push a template to Coder to have another project",
        )
        .with("reason", "not_supported")),
        _ => fleet.call(tool, arguments).await,
    }
}

impl<B: Backend> Fleet<B> {
    /// Runs the tool called `tool`.
    pub async fn call(&self, tool: &str, arguments: Map<String, Value>) -> Result<Value, FleetError> {
        match tool {
            "create_agent" => shown(Box::pin(self.create_agent(read(tool, arguments)?)).await),
            "list_agents" => shown(Box::pin(self.list_agents(read(tool, arguments)?)).await),
            "show_agent" => shown(Box::pin(self.show_agent(read(tool, arguments)?)).await),
            "show_agent_task_history" => {
                shown(Box::pin(self.show_agent_task_history(read(tool, arguments)?)).await)
            }
            "delete_agent" => shown(Box::pin(self.delete_agent(read(tool, arguments)?)).await),
            "start_agent_task" => shown(Box::pin(self.start_agent_task(read(tool, arguments)?)).await),
            "stop_agent_task" | "cancel_agent_task" => {
                let stopped = Box::pin(self.stop_agent_task(read(tool, arguments)?)).await;
                shown(stopped.map_err(|error| error.with("operation", tool)))
            }
            "list_agent_roles" => shown(Box::pin(self.list_agent_roles(read(tool, arguments)?)).await),
            "list_agent_projects" => shown(Box::pin(self.list_agent_projects()).await),
            "restart_agent" => shown(Box::pin(self.restart_agent(read(tool, arguments)?)).await),
            "show_agent_log" => shown(Box::pin(self.show_agent_log(read(tool, arguments)?)).await),
            "wait_for_agent" => shown(Box::pin(self.wait_for_agent(read(tool, arguments)?)).await),
            other => {
                Err(FleetError::bad_request(format!("there is no fleet tool `{other}`"))
                    .with("operation", other))
            }
        }
    }
}

fn read<T: DeserializeOwned>(tool: &str, arguments: Map<String, Value>) -> Result<T, FleetError> {
    serde_json::from_value(Value::Object(arguments)).map_err(|error| {
        FleetError::bad_request(format!("the arguments do not fit: {error}")).with("operation", tool)
    })
}

fn shown<T: Serialize>(outcome: Result<T, FleetError>) -> Result<Value, FleetError> {
    outcome.map(|answer| serde_json::to_value(answer).unwrap_or_default())
}
