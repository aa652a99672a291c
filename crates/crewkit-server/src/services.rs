//! What the operations work on.

use std::sync::Arc;

use crewkit_agent::{Engine, Error, Options};
use crewkit_fleet::AnyFleet;
use crewkit_pack::commands::Pack;
use tokio::sync::OnceCell;

/// The services behind the operations, built once by the binary and shared by every door.
#[derive(Debug, Default)]
pub struct Services {
    /// Deployment of agent assets.
    pub pack: Option<Arc<Pack>>,
    /// Named agents in workspaces; none when no place for workspaces is configured.
    pub fleet: Option<AnyFleet>,
    /// Agents with a text contract.
    pub agents: Arc<Agents>,
}

/// The engine of the agents, opened when the first call needs it.
///
/// A process that only deploys assets never touches the run store, and so never stands in the way of one that does.
#[derive(Debug, Default)]
pub struct Agents {
    options: Option<Options>,
    engine: OnceCell<Engine>,
}

impl Agents {
    /// An engine that is opened when it is first needed.
    pub fn lazy(options: Options) -> Self {
        Self { options: Some(options), engine: OnceCell::new() }
    }

    /// The engine.
    pub async fn engine(&self) -> Result<&Engine, Error> {
        let options = self.options.clone();
        let open = async || match options {
            Some(options) => Engine::open(options).await,
            None => Err(Error::Setting("agents are not set up in this process".to_owned())),
        };
        self.engine.get_or_try_init(open).await
    }

    /// The engine, if it was opened already.
    pub fn opened(&self) -> Option<&Engine> {
        self.engine.get()
    }
}
