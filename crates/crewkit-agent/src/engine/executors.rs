//! The models, drivers and tool servers that settings describe, made once for all runs with the same settings.

use std::sync::{Arc, Mutex, Weak};

use super::{Error, Options};
use crate::driver::ProcessDriver;
use crate::model::{Endpoint, EndpointModel, Model, Rehearsal};
use crate::settings::{RecordedSettings, RunSettings, Use, Vault};
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
    /// The settings as they are written down.
    pub(super) recorded: Arc<RecordedSettings>,
    pub(super) endpoints: Vec<Arc<EndpointModel>>,
    pub(super) servers: ToolServers,
    pub(super) commands: Arc<Commands>,
    drivers: Vec<Arc<ProcessDriver>>,
}

impl Executors {
    /// Prepares clients and tool servers; nothing is sent or started yet.
    fn new(settings: Arc<RunSettings>, options: &Options, vault: &Vault) -> Result<Self, Error> {
        let model = |endpoint: &Endpoint| {
            let model = EndpointModel::new(endpoint.clone(), Arc::clone(&options.limits));
            model.map(Arc::new).map_err(Error::Setting)
        };
        let surroundings = Surroundings {
            environment: settings.environment.clone(),
            helper: options.helper.clone(),
            limits: Arc::clone(&options.limits),
        };
        Ok(Self {
            endpoints: settings.models.iter().map(model).collect::<Result<_, _>>()?,
            drivers: settings.drivers.iter().cloned().map(Arc::new).collect(),
            servers: ToolServers::new(settings.tool_servers.clone(), surroundings),
            commands: Arc::new(Commands {
                policy: settings.commands.clone(),
                helper: options.helper.clone(),
                server_ports: options.server_ports.clone(),
            }),
            recorded: Arc::new(vault.record(&settings)),
            settings,
        })
    }

    /// The default model.
    pub(super) fn default_model(&self) -> Arc<dyn Model> {
        let first = self.endpoints.first().map(|model| Arc::clone(model) as Arc<dyn Model>);
        first.unwrap_or_else(|| Arc::new(Rehearsal))
    }

    /// What carries out a contract with this spec.
    pub(super) fn executor(&self, spec: &RunSpec) -> Result<Executor, Error> {
        Ok(match choose(&self.settings, spec)? {
            Use::Loop(None) => Executor::Loop(Arc::new(Rehearsal)),
            Use::Loop(Some(name)) => {
                let found = self.endpoints.iter().find(|model| model.endpoint().name == name);
                Executor::Loop(found.map_or_else(|| self.default_model(), |model| Arc::clone(model) as _))
            }
            Use::Driver(name) => {
                let found = self.drivers.iter().find(|driver| driver.name == name);
                Executor::Process(found.map(Arc::clone).ok_or_else(|| unknown_driver(&self.settings, name))?)
            }
        })
    }
}

/// What a run with this spec uses of its settings.
pub(super) fn choose<'a>(settings: &'a RunSettings, spec: &RunSpec) -> Result<Use<'a>, Error> {
    if let Some(name) = spec.driver.as_deref().filter(|name| *name != "loop") {
        let found = settings.drivers.iter().find(|driver| driver.name == name);
        return found.map(|driver| Use::Driver(&driver.name)).ok_or_else(|| unknown_driver(settings, name));
    }
    let models = &settings.models;
    let found = match spec.model.as_deref() {
        None => return Ok(Use::Loop(models.first().map(|model| model.name.as_str()))),
        Some(name) => models.iter().find(|model| model.name == name).map(|model| Some(model.name.as_str())),
    };
    let is_rehearsal = spec.model.as_deref() == Some(Rehearsal::NAME);
    let found = found.or_else(|| is_rehearsal.then_some(None));
    found.map(Use::Loop).ok_or_else(|| Error::UnknownModel {
        name: spec.model.clone().unwrap_or_default(),
        known: names(models.iter().map(|model| model.name.as_str()).chain([Rehearsal::NAME])),
    })
}

fn unknown_driver(settings: &RunSettings, name: &str) -> Error {
    let drivers = settings.drivers.iter().map(|driver| driver.name.as_str());
    Error::UnknownDriver { name: name.to_owned(), known: names(std::iter::once("loop").chain(drivers)) }
}

fn names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

/// The executors in use.
#[derive(Default)]
pub(super) struct ExecutorCache {
    live: Mutex<Vec<Weak<Executors>>>,
}

impl ExecutorCache {
    /// Returns the executors for `settings`; those of equal settings are shared while somebody uses them.
    pub(super) fn get(
        &self,
        settings: &Arc<RunSettings>,
        options: &Options,
        vault: &Vault,
    ) -> Result<Arc<Executors>, Error> {
        let mut live = lock(&self.live);
        live.retain(|executors| executors.strong_count() > 0);
        let known = live.iter().filter_map(Weak::upgrade).find(|executors| executors.settings == *settings);
        if let Some(executors) = known {
            return Ok(executors);
        }
        let executors = Arc::new(Executors::new(Arc::clone(settings), options, vault)?);
        live.push(Arc::downgrade(&executors));
        Ok(executors)
    }
}
