//! What the operations work on.

use std::fmt;
use std::sync::Arc;

use crewkit_agent::{Engine, Error, Options};
use crewkit_fleet::AnyFleet;
use crewkit_pack::commands::Pack;
use futures_util::future::BoxFuture;
use tokio::sync::OnceCell;

use crate::ops::{Answer, JsonObject};

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

/// Runs an operation in the process that has the store; the error is for people.
pub type Forward =
    Arc<dyn Fn(&'static str, JsonObject) -> BoxFuture<'static, Result<Answer, String>> + Send + Sync>;

/// The engine of the agents, opened when the first call needs it.
///
/// A process that only deploys assets never touches the run store, and so never stands in the way of one that does. A process
/// that finds the store taken hands its calls to the one that has it.
#[derive(Default)]
pub struct Agents {
    options: Option<Options>,
    engine: OnceCell<Engine>,
    forward: Option<Forward>,
}

impl Agents {
    /// An engine that is opened when it is first needed.
    pub fn lazy(options: Options) -> Self {
        Self { options: Some(options), ..Self::default() }
    }

    /// The same, with a way to the process that has the store if this one cannot.
    #[must_use]
    pub fn or_forward(mut self, forward: Forward) -> Self {
        self.forward = Some(forward);
        self
    }

    /// The way to another process, if there is one.
    pub(crate) const fn forward(&self) -> Option<&Forward> {
        self.forward.as_ref()
    }

    /// The engine.
    pub fn engine(&self) -> BoxFuture<'_, Result<&Engine, Error>> {
        let open = async || match &self.options {
            Some(options) => Engine::open(options.clone()).await,
            None => Err(Error::Setting("agents are not set up in this process".to_owned())),
        };
        Box::pin(self.engine.get_or_try_init(open))
    }

    /// The engine, if it was opened already.
    pub fn opened(&self) -> Option<&Engine> {
        self.engine.get()
    }
}

impl fmt::Debug for Agents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agents").field("engine", &self.engine).finish_non_exhaustive()
    }
}
