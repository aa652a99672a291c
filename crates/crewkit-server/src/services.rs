//! What the operations work on.

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crewkit_agent::{Engine, Error, Options};
use crewkit_fleet::AnyFleet;
use crewkit_pack::commands::Pack;
use futures_util::future::BoxFuture;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::ops::{Answer, JsonObject, Progress};

/// The services behind the operations, built once by the binary and shared by every door.
#[derive(Default)]
pub struct Services {
    /// Deployment of agent assets.
    pub pack: Option<Arc<Pack>>,
    /// Named agents in workspaces; none when no place for workspaces is configured.
    pub fleet: Option<AnyFleet>,
    /// Agents in other places that this server reaches.
    pub other_fleets: Vec<AnyFleet>,
    /// Agents with a text contract.
    pub agents: Arc<Agents>,
    /// The server that carries out every operation but pack's; `None` in the process that does so itself.
    pub remote: Option<Arc<dyn RemoteOperations>>,
    /// The server these services belong to; `None` in a process that serves nobody.
    pub server: Option<Arc<ServerControl>>,
    /// Operations under way that change something. They outlive the requests that asked for them.
    pub commands: TaskTracker,
}

impl Services {
    /// Completes when the server of these services is about to end; never in a process that serves nobody.
    pub async fn leaving(&self) {
        match &self.server {
            Some(server) => server.stop.cancelled().await,
            None => std::future::pending().await,
        }
    }

    /// Waits until every operation that changes something has ended, for at most `patience`. Called before the services
    /// are shut down, when no door accepts calls any more.
    pub async fn finish_commands(&self, patience: Duration) {
        self.commands.close();
        if tokio::time::timeout(patience, self.commands.wait()).await.is_err() {
            tracing::warn!(count = self.commands.len(), "operations were still under way at the end");
        }
    }
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Services")
            .field("fleet", &self.fleet)
            .field("agents", &self.agents)
            .finish_non_exhaustive()
    }
}

/// Who a server is.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ServerAbout {
    /// Its process id.
    pub pid: u32,
    /// Since when it owns its home.
    pub since: String,
    /// Its build.
    pub build: String,
    /// The protocol it speaks with clients of its socket.
    pub protocol: u32,
    /// Its HTTP address, if it has one.
    pub http: Option<String>,
}

/// What a server lets its owner do with the server itself.
#[derive(Debug, Default)]
pub struct ServerControl {
    /// Who it is, once it can be reached.
    pub about: OnceLock<ServerAbout>,
    /// Ends the server.
    pub stop: CancellationToken,
    /// Whether the server's work ends with it.
    pub ends_work: AtomicBool,
}

/// The operations of a server, called by its client.
pub trait RemoteOperations: Send + Sync {
    /// Runs the operation `name` there. Failures of the connection are answers too.
    fn run(
        &self,
        name: &'static str,
        arguments: JsonObject,
        progress: Progress,
        cancelled: CancellationToken,
    ) -> BoxFuture<'static, Answer>;

    /// Runs the operation `name`, which only reads, if a server is there. Starts none, so that who merely watches keeps no
    /// server alive that somebody stopped.
    fn watch(&self, name: &'static str, arguments: JsonObject) -> BoxFuture<'static, Answer>;
}

/// The engine of the agents, opened when the first call needs it.
///
/// A process that only deploys assets never touches the run store, and so never stands in the way of one that does.
#[derive(Default)]
pub struct Agents {
    options: Option<Options>,
    engine: OnceCell<Engine>,
}

impl Agents {
    /// An engine that is opened when it is first needed.
    pub fn lazy(options: Options) -> Self {
        Self { options: Some(options), ..Self::default() }
    }

    /// An engine that is open already.
    pub fn opened_as(engine: Engine) -> Self {
        Self { engine: OnceCell::new_with(Some(engine)), ..Self::default() }
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
