//! Tasks whose secrets are missing since the server was started: they wait, and hold no place.

use std::sync::Arc;

use crewkit_agent::RunSpec;
use crewkit_core::AgentStatus;
use crewkit_core::run::MissingSecret;

use super::Local;
use super::options::{LOOP, REHEARSAL};
use super::owner::Owner;
use super::record::{AgentRow, AgentSettings, TaskRow, TaskState};
use super::settings::Asker;
use super::store::Change;
use crate::backend::Moved;
use crate::error::FleetError;

impl Local {
    /// The secrets that an open task waits for.
    pub(super) fn missing_secrets(&self, task: &TaskRow) -> Vec<MissingSecret> {
        let engine = &self.shared.engine;
        match &task.run {
            _ if task.state.is_over() => Vec::new(),
            // A run can have taken other settings than its agent has.
            Some(run) => engine.record(run).map(|run| engine.missing_secrets(&run)).unwrap_or_default(),
            // Its process has what it needs.
            None if task.state == TaskState::Running => Vec::new(),
            None => match self.shared.store.agent(&task.agent) {
                Some(agent) => self.missing_for(&agent, &task.driver),
                None => Vec::new(),
            },
        }
    }

    /// The secrets that are missing for tasks of an agent with this driver.
    fn missing_for(&self, agent: &AgentRow, driver: &str) -> Vec<MissingSecret> {
        let (driver, model) = match driver {
            LOOP => (None, self.role_of(agent).model),
            REHEARSAL => (None, Some(REHEARSAL.to_owned())),
            name => (Some(name.to_owned()), None),
        };
        let spec = RunSpec { driver, model, ..RunSpec::default() };
        self.shared.engine.missing_in(&self.recorded_settings(&agent.id), &spec)
    }

    /// Waits until no secret of a task is missing: somebody has brought it, or the task has other settings.
    pub(super) async fn until_secrets(&self, task: &TaskRow) {
        let engine = &self.shared.engine;
        let (mut secrets, mut events) = (engine.watch_secrets(), engine.watch_events());
        let mut agents = self.shared.store.watch();
        while !self.missing_secrets(task).is_empty() {
            tokio::select! {
                _ = secrets.changed() => {}
                _ = events.changed() => {}
                _ = agents.changed() => {}
            }
        }
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
