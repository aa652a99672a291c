//! The tools only a fleet on this machine has, and the fleet as something that is opened when it is first needed.

use std::path::PathBuf;

use futures_util::future::BoxFuture;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::OnceCell;

use super::Local;
use super::project::LocalProject;
use crate::equip::{drift_choice, equip_order};
use crate::error::FleetError;
use crate::service::Fleet;

type Opening = BoxFuture<'static, Result<Fleet<Local>, FleetError>>;

/// A fleet on this machine, opened by the first call.
///
/// A process that never asks for it never touches its record, and so never stands in the way of one that does.
pub struct LocalFleet {
    open: Box<dyn Fn() -> Opening + Send + Sync>,
    fleet: OnceCell<Fleet<Local>>,
}

impl std::fmt::Debug for LocalFleet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalFleet").field("fleet", &self.fleet.get()).finish_non_exhaustive()
    }
}

impl LocalFleet {
    /// A fleet that `open` opens.
    pub fn lazy(open: impl Fn() -> Opening + Send + Sync + 'static) -> Self {
        Self { open: Box::new(open), fleet: OnceCell::new() }
    }

    /// The fleet.
    pub async fn get(&self) -> Result<&Fleet<Local>, FleetError> {
        self.fleet.get_or_try_init(|| (self.open)()).await
    }

    /// The fleet, if it was opened already.
    pub fn opened(&self) -> Option<&Fleet<Local>> {
        self.fleet.get()
    }

    /// What is answered when a project was registered.
    pub fn registered(project: &LocalProject) -> Value {
        json!({
            "project": {"id": project.id, "name": project.name, "path": project.path},
            "message": format!("Project '{}' is registered", project.name),
        })
    }

    /// Runs the tool called `tool`.
    pub async fn call(&self, tool: &str, arguments: Map<String, Value>) -> Result<Value, FleetError> {
        let fleet = self.get().await.map_err(|error| error.with("operation", tool))?;
        let named = |error: FleetError| error.with("operation", tool);
        match tool {
            "equip_agents" => Box::pin(equip(fleet.backend(), arguments)).await.map_err(named),
            "fleet_drift" => Box::pin(drift(fleet.backend(), arguments)).await.map_err(named),
            "add_agent_project" => Box::pin(add_project(fleet.backend(), arguments)).await.map_err(named),
            _ => fleet.call(tool, arguments).await,
        }
    }
}

fn read<T: serde::de::DeserializeOwned>(arguments: Map<String, Value>) -> Result<T, FleetError> {
    serde_json::from_value(Value::Object(arguments))
        .map_err(|error| FleetError::bad_request(format!("the arguments do not fit: {error}")))
}

async fn equip(local: &Local, arguments: Map<String, Value>) -> Result<Value, FleetError> {
    let report = local.equip(equip_order(arguments)?).await?;
    Ok(serde_json::to_value(report).unwrap_or_default())
}

async fn drift(local: &Local, arguments: Map<String, Value>) -> Result<Value, FleetError> {
    let report = local.drift(&drift_choice(arguments)?).await?;
    Ok(serde_json::to_value(report).unwrap_or_default())
}

async fn add_project(local: &Local, arguments: Map<String, Value>) -> Result<Value, FleetError> {
    #[derive(Deserialize)]
    struct Add {
        path: PathBuf,
        name: Option<String>,
    }
    let wish: Add = read(arguments)?;
    if !wish.path.is_absolute() {
        return Err(FleetError::invalid("path", "`path` must be absolute"));
    }
    let project = local.add_project(&wish.path, wish.name.as_deref()).await?;
    Ok(LocalFleet::registered(&project))
}
