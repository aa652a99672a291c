//! From the hello of a client to the services that its requests use.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crewkit_agent::{Engine, is_secret};
use crewkit_core::Secret;
use crewkit_fleet::LOCAL;
use crewkit_fleet::backend::coder::Intents;
use crewkit_fleet::backend::local::LocalFleet;
use crewkit_server::Services;
use crewkit_server::asker::{Asker, Hello, MakeAsker};
use crewkit_server::ops::{Catalog, Problem};
use crewkit_server::services::Agents;

use crate::config::Config;
use crate::failure::Failure;
use crate::{agent, fleet, local, mcp, pack, secrets};

/// What all askers of a server share.
pub struct SharedServices {
    /// The home, whose `crewkit.toml` every asker's settings begin with.
    pub home: PathBuf,
    /// The operations.
    pub catalog: Arc<Catalog>,
    /// The services of the server itself.
    pub own: Arc<Services>,
    /// The engine of the runs.
    pub engine: Engine,
    /// The fleet on this machine.
    pub local_fleet: Arc<LocalFleet>,
    /// What is under way on Coder.
    pub intents: Arc<Intents>,
}

/// Makes askers. Clients that say the same share one, as long as the configuration stays the same.
pub fn make(shared: SharedServices) -> MakeAsker {
    let made: Mutex<HashMap<String, Weak<Asker>>> = Mutex::default();
    Box::new(move |hello| {
        let kept = secrets::values(&shared.home);
        shared.engine.learn(kept.iter().map(Secret::expose));
        let key = key(&shared, hello);
        let mut made = made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(asker) = made.get(&key).and_then(Weak::upgrade) {
            return Ok(asker);
        }
        let asker = Arc::new(asker(&shared, hello).map_err(problem)?);
        made.retain(|_, asker| asker.strong_count() > 0);
        made.insert(key, Arc::downgrade(&asker));
        Ok(asker)
    })
}

/// Everything that an asker is made from.
fn key(shared: &SharedServices, hello: &Hello) -> String {
    let file = |name: &str| std::fs::read_to_string(shared.home.join(name)).unwrap_or_default();
    let hello = (&hello.directory, &hello.settings, &hello.environment);
    serde_json::json!([hello, file("crewkit.toml"), file("mcp_config.json")]).to_string()
}

fn asker(shared: &SharedServices, hello: &Hello) -> Result<Asker, Failure> {
    let mut config = Config::load(shared.home.clone(), |_| None, &[])?;
    config.bring(&hello.settings)?;
    let selection = mcp::selection(&config, &shared.catalog)?;
    let pack = Arc::new(pack::service_of(config.limits(), &hello.environment, &hello.directory)?);
    let environment = hello.environment.iter().map(|(name, value)| (name.into(), value.into()));
    let settings = Arc::new(agent::run_settings(&config, environment)?);
    shared.engine.learn(secrets_of(hello));
    let directory = hello.directory.clone();
    let here = local::for_asker(&shared.local_fleet, &config, &pack, &settings, directory)?;
    let (fleet, other_fleets) = match fleet::service(&config, &pack, &shared.intents)? {
        Some(on_coder) => {
            fleet::take_up(&on_coder);
            (on_coder, vec![here])
        }
        // The server's own Coder, if it has one.
        None => (here, shared.own.fleet.iter().filter(|own| own.place() != LOCAL).cloned().collect()),
    };
    let services = Services {
        pack: Some(pack),
        fleet: Some(fleet),
        agents: Arc::new(Agents::opened_as(shared.engine.with_settings(&settings)?)),
        other_fleets,
        remote: None,
        server: shared.own.server.clone(),
        commands: shared.own.commands.clone(),
    };
    Ok(Asker {
        services: Arc::new(services),
        selection: Arc::new(selection),
        directory: hello.directory.clone(),
    })
}

/// The secrets among what a client says, also those that its settings have no use for.
fn secrets_of(hello: &Hello) -> impl Iterator<Item = &str> {
    let settings = hello.settings.iter().filter_map(|(key, value)| Some((key, value.as_str()?)));
    let variables = hello.environment.iter().map(|(name, value)| (name, value.as_str()));
    settings.chain(variables).filter(|(name, value)| is_secret(name, value)).map(|(_, value)| value)
}

fn problem(failure: Failure) -> Problem {
    Problem { code: failure.code, message: failure.message, argument: None }
}
