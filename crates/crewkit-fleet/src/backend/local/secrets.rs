//! Tasks whose secrets are missing since the server was started: they wait, and hold no slot.

use std::sync::Arc;

use crewkit_core::AgentStatus;
use crewkit_core::run::{MissingSecret, Phase, WaitsFor};

use super::Local;
use super::owner::Owner;
use super::record::{AgentRow, AgentSettings, TaskRow};
use super::settings::Asker;
use super::store::Change;
use crate::backend::Moved;
use crate::error::FleetError;

impl Local {
    /// The secrets that an open task waits for.
    fn missing_secrets(&self, task: &TaskRow) -> Vec<MissingSecret> {
        match self.phase_of(task) {
            Some(Phase::Waiting(WaitsFor::Secret(missing))) => missing,
            _ => Vec::new(),
        }
    }

    /// The secrets that are missing for tasks of an agent with this driver.
    fn missing_for(&self, agent: &AgentRow, driver: &str) -> Vec<MissingSecret> {
        let spec = self.spec_of(agent, driver);
        self.shared.engine.missing_in(&self.recorded_settings(&agent.id), &spec)
    }
}

impl Owner {
    /// Gives an agent whose secrets are missing the settings of `asker`, if they have secrets for the same addresses, and lets
    /// its open task go on. Returns `None` if there is no such task.
    pub(super) async fn take_settings(&mut self, asker: &Asker) -> Result<Option<Moved>, FleetError> {
        let (agent, task) = (self.agent()?, self.open_task());
        let missing = match &task {
            Some(task) => self.local.missing_secrets(task),
            None => self.local.missing_for(&agent, &self.local.driver_for(&agent)),
        };
        let engine = &self.local.shared.engine;
        let settings = engine.record_settings(&asker.settings.run);
        let Some(fixed) =
            agent.settings.clone().filter(|_| !missing.is_empty() && settings.has_all(&missing))
        else {
            return Ok(None);
        };
        let changed = AgentRow {
            settings: Some(AgentSettings { run: Some(settings.id().to_owned()), ..fixed }),
            updated_ms: self.local.now_ms(),
            ..AgentRow::clone(&agent)
        };
        self.write(vec![Change::PutSettings(Arc::clone(&settings)), Change::PutAgent(changed)]).await?;
        self.local.fix_run_settings(&self.id, &settings);
        let Some(task) = task else { return Ok(None) };
        if let Some(run) = &task.run {
            let resumed = async { engine.with_settings(&asker.settings.run)?.resume(run).await };
            resumed.await.map_err(|error| FleetError::conflict(error.to_string()))?;
        }
        let note = "its task goes on with the settings of this client".to_owned();
        Ok(Some(Moved { status: AgentStatus::Busy.into(), note: Some(note) }))
    }
}
