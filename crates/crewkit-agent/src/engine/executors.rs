//! The models, drivers and tool servers that settings describe, made once for all runs with the same settings.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use crewkit_core::run::RunId;

use super::{Error, Options, RunSettings};
use crate::driver::ProcessDriver;
use crate::model::{EndpointModel, Model, Rehearsal};
use crate::store::RunSpec;
use crate::sync::lock;
use crate::tools::Commands;
use crate::tools::mcp::{Surroundings, ToolServers};

/// What carries out a contract.
#[derive(Clone)]
pub(super) enum Executor {
    Loop(Arc<dyn Model>),
    Process(Arc<ProcessDriver>),
}

/// Everything that settings describe, ready for use.
pub(super) struct Executors {
    pub(super) settings: Arc<RunSettings>,
    pub(super) endpoints: Vec<Arc<EndpointModel>>,
    pub(super) servers: ToolServers,
    pub(super) commands: Arc<Commands>,
    models: Vec<(String, Arc<dyn Model>)>,
    drivers: Vec<Arc<ProcessDriver>>,
}

impl Executors {
    /// Prepares clients and tool servers; nothing is sent or started yet.
    fn new(settings: Arc<RunSettings>, options: &Options) -> Result<Self, Error> {
        let mut models: Vec<(String, Arc<dyn Model>)> = Vec::new();
        let mut endpoints = Vec::new();
        for endpoint in &settings.models {
            let model = EndpointModel::new(endpoint.clone(), Arc::clone(&options.limits));
            let model = Arc::new(model.map_err(Error::Setting)?);
            endpoints.push(Arc::clone(&model));
            models.push((endpoint.name.clone(), model));
        }
        models.push((Rehearsal::NAME.to_owned(), Arc::new(Rehearsal)));
        let surroundings = Surroundings {
            environment: settings.environment.clone(),
            helper: options.helper.clone(),
            limits: Arc::clone(&options.limits),
        };
        Ok(Self {
            endpoints,
            models,
            drivers: settings.drivers.iter().cloned().map(Arc::new).collect(),
            servers: ToolServers::new(settings.tool_servers.clone(), surroundings),
            commands: Arc::new(Commands {
                policy: settings.commands.clone(),
                helper: options.helper.clone(),
                server_ports: options.server_ports.clone(),
            }),
            settings,
        })
    }

    /// The model called `name`, or the default one.
    pub(super) fn model(&self, name: Option<&str>) -> Result<Arc<dyn Model>, Error> {
        let models = &self.models;
        // The rehearsal comes last: it is the default only when nothing else is configured.
        let found = match name {
            None => models.first(),
            Some(name) => models.iter().find(|(known, _)| known == name),
        };
        match found {
            Some((_, model)) => Ok(Arc::clone(model)),
            None => Err(Error::UnknownModel {
                name: name.unwrap_or_default().to_owned(),
                known: models.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", "),
            }),
        }
    }

    /// What carries out a contract with this spec.
    pub(super) fn executor(&self, spec: &RunSpec) -> Result<Executor, Error> {
        match spec.driver.as_deref() {
            None | Some("loop") => Ok(Executor::Loop(self.model(spec.model.as_deref())?)),
            Some(name) => {
                let found = self.drivers.iter().find(|driver| driver.name == name);
                found.map(|driver| Executor::Process(Arc::clone(driver))).ok_or_else(|| {
                    let drivers = self.drivers.iter().map(|driver| driver.name.as_str());
                    Error::UnknownDriver {
                        name: name.to_owned(),
                        known: std::iter::once("loop").chain(drivers).collect::<Vec<_>>().join(", "),
                    }
                })
            }
        }
    }
}

/// The executors in use, and the settings of runs that have others than the server's own.
#[derive(Default)]
pub(super) struct ExecutorCache {
    live: Mutex<Vec<Weak<Executors>>>,
    of_runs: Mutex<HashMap<RunId, Arc<RunSettings>>>,
}

impl ExecutorCache {
    /// Returns the executors for `settings`; those of equal settings are shared while somebody uses them.
    pub(super) fn get(
        &self,
        settings: &Arc<RunSettings>,
        options: &Options,
    ) -> Result<Arc<Executors>, Error> {
        let mut live = lock(&self.live);
        live.retain(|executors| executors.strong_count() > 0);
        let known = live.iter().filter_map(Weak::upgrade).find(|executors| executors.settings == *settings);
        if let Some(executors) = known {
            return Ok(executors);
        }
        let executors = Arc::new(Executors::new(Arc::clone(settings), options)?);
        live.push(Arc::downgrade(&executors));
        Ok(executors)
    }

    /// Fixes the settings of a run.
    pub(super) fn fix(&self, run: &RunId, settings: &Arc<RunSettings>) {
        lock(&self.of_runs).insert(run.clone(), Arc::clone(settings));
    }

    /// Returns the settings fixed for a run, or `None` if it uses the server's own.
    pub(super) fn fixed(&self, run: &RunId) -> Option<Arc<RunSettings>> {
        lock(&self.of_runs).get(run).cloned()
    }

    /// Forgets the settings of a run that is gone.
    pub(super) fn forget(&self, run: &RunId) {
        lock(&self.of_runs).remove(run);
    }
}
