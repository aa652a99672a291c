//! What operations are run through: the server of the home, or this process.

use std::sync::Arc;
use std::time::Duration;

use crewkit_core::{Code, Limits};
use crewkit_fleet::AnyFleet;
use crewkit_server::Services;
use crewkit_server::ops::{self, Catalog, Source};
use serde_json::{Value, json};

use crate::cli::{self, ServedAt};
use crate::client::{self, Client};
use crate::config::Config;
use crate::failure::Failure;
use crate::server::ServerKind;
use crate::server::own::{Ownership, own_home};
use crate::{local, mcp, output, pack};

/// Pause before a server that is gone is looked for again.
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);
/// Time a process has to be gone after it was killed.
const KILL_PATIENCE: Duration = Duration::from_secs(2);

/// Who carries out operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// The server of the home, or one that the user named.
    Server,
    /// This process, which owns the home. Refused if somebody else owns it.
    ThisProcess,
    /// This process, unless somebody else owns the home.
    ThisProcessIfFree,
}

impl Owner {
    /// Who carries out the operations of `mcp` and `run`.
    ///
    /// A job of a CI system and the first process of a container leave nothing behind that outlives them. Without Unix
    /// sockets there is no server to connect to.
    pub fn of_long_command(config: &Config, in_process: bool) -> Self {
        let is_ci = std::env::var("CI").is_ok_and(|value| !matches!(value.as_str(), "" | "false" | "0"));
        if in_process {
            Self::ThisProcess
        } else if !client::is_named(config) && (is_ci || std::process::id() == 1) {
            Self::ThisProcessIfFree
        } else {
            Self::of_short_command(config)
        }
    }

    /// Who carries out the operations of all other commands.
    pub fn of_short_command(config: &Config) -> Self {
        if cfg!(unix) || client::is_named(config) { Self::Server } else { Self::ThisProcess }
    }
}

/// What a command runs operations through.
pub struct Session {
    catalog: Arc<Catalog>,
    services: Arc<Services>,
    source: Source,
    /// The client, unless this process is the owner.
    client: Option<Client>,
    /// The ownership of the home, if this process has it.
    ownership: Option<Ownership>,
    limits: Limits,
}

impl Session {
    /// Takes the home if this process shall own it. A server is connected to by the first operation.
    pub async fn open(config: &Config, owner: Owner, source: Source) -> Result<Self, Failure> {
        let catalog = mcp::catalog()?;
        let limits = config.limits();
        let own = async || own_home(config, ServerKind::InProcess).await.map(|taken| taken.ownership);
        let ownership = match owner {
            Owner::Server => None,
            Owner::ThisProcess => Some(own().await?),
            Owner::ThisProcessIfFree => match own().await {
                Err(failure) if failure.code == Code::HomeInUse => None,
                ownership => Some(ownership?),
            },
        };
        let Some(ownership) = ownership else {
            let client = Client::new(config, Arc::clone(&catalog), source);
            let pack = Some(Arc::new(pack::service(config.limits())?));
            let remote = Some(Arc::new(client.clone()) as Arc<_>);
            let services = Arc::new(Services { pack, remote, ..Services::default() });
            return Ok(Self { catalog, services, source, client: Some(client), ownership: None, limits });
        };
        let base = config.text("server.public_url").unwrap_or_default();
        let at = ServedAt {
            base,
            ports: &[],
            socket: None,
            lock: Some(ownership.store_lock()),
            intents: Arc::default(),
        };
        let services = Arc::new(cli::services(config, at)?);
        Ok(Self { catalog, services, source, client: None, ownership: Some(ownership), limits })
    }

    /// What the operations work on.
    pub const fn services(&self) -> &Arc<Services> {
        &self.services
    }

    /// The client, unless this process is the owner.
    pub const fn client(&self) -> Option<&Client> {
        self.client.as_ref()
    }

    /// Whether what is started here is carried out by this process.
    pub const fn is_in_process(&self) -> bool {
        self.client.is_none()
    }

    /// Runs an operation; a refusal is a failure. Arguments that are null count as not given.
    pub async fn run(&self, operation: &str, mut arguments: Value) -> Result<Value, Failure> {
        let bug = |what: &str| Failure::new(Code::Internal, format!("`{operation}` {what}"));
        let entry = self.catalog.get(operation).ok_or_else(|| bug("is no operation"))?;
        let arguments = arguments.as_object_mut().ok_or_else(|| bug("takes an object"))?;
        arguments.retain(|_, value| !value.is_null());
        let request = ops::Request::of_owner(self.source, std::mem::take(arguments));
        Failure::of_answer(ops::run(Arc::clone(entry), Arc::clone(&self.services), request).await)
    }

    /// Runs an operation that reads for as long as it takes to get an answer. A server that goes away is waited for: whoever
    /// follows something starts none that somebody stopped.
    pub async fn watch(&self, operation: &'static str, arguments: Value) -> Result<Value, Failure> {
        let Some(remote) = &self.services.remote else { return self.run(operation, arguments).await };
        let arguments = arguments.as_object().cloned().unwrap_or_default();
        let mut is_told = false;
        loop {
            match Failure::of_answer(remote.watch(operation, arguments.clone()).await) {
                Err(failure) if failure.code == Code::ServerUnreachable => {
                    if !std::mem::replace(&mut is_told, true) {
                        output::talk("The server is gone; waiting for the next one.");
                    }
                    tokio::time::sleep(RECONNECT_PAUSE).await;
                }
                outcome => return outcome,
            }
        }
    }

    /// The cursor behind the newest event.
    pub async fn newest_event(&self) -> Result<u64, Failure> {
        let page = self.run("events", json!({"limit": 1})).await?;
        Ok(page["last"].as_u64().unwrap_or(0))
    }

    /// Waits at most `seconds` for an event after the cursor, of `subject` if one is given. Returns the next cursor.
    pub async fn wait_for_event(
        &self,
        after: u64,
        subject: Option<&str>,
        seconds: u64,
    ) -> Result<u64, Failure> {
        let mut wish = json!({"after": after, "wait_seconds": seconds});
        if let Some(subject) = subject {
            wish["subject"] = subject.into();
        }
        match self.watch("events", wish).await {
            // The caller looks at the present state next, so events it missed do not matter.
            Err(failure) if failure.code == Code::CursorExpired => self.newest_event().await,
            page => Ok(page?["next"].as_u64().unwrap_or(after)),
        }
    }

    /// The compressed payload of a run.
    pub async fn payload(&self, id: &str) -> Result<Vec<u8>, Failure> {
        match &self.client {
            None => Ok(self.services.agents.engine().await?.payload(id).await?.gzip.to_vec()),
            Some(client) => client.bytes(&format!("/api/agents/{id}/payload")).await,
        }
    }

    /// Ends what this process owns, and its work: nobody could follow or stop what an owner without a socket left behind.
    pub async fn close(self) {
        self.services.finish_commands(Duration::from_secs(self.limits.shutdown_grace_seconds)).await;
        let engine = self.services.agents.opened();
        let fleet = match &self.services.fleet {
            Some(AnyFleet::Local(fleet)) => Some(&**fleet),
            _ => None,
        };
        let patience = Duration::from_secs(self.limits.driver_stop_grace_seconds) + KILL_PATIENCE;
        local::end_work(fleet, engine, patience).await;
        if let Some(fleet) = fleet {
            local::close(fleet).await;
        }
        if let Some(engine) = engine {
            engine.shutdown().await;
        }
        drop(self.ownership);
    }
}
