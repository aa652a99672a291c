//! Where a command finds the agents: in a running server, or in this process when there is none.

use std::sync::Arc;

use crewkit_core::Code;
use crewkit_server::Services;
use crewkit_server::caller::Caller;
use crewkit_server::ops::agents::PruneWish;
use crewkit_server::ops::{self, Answer, Catalog, JsonObject, Progress};
use crewkit_server::services::Agents;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::options;
use crate::config::Config;
use crate::failure::Failure;
use crate::mcp;
use crate::remote::{self, Remote};

pub(super) enum Backend {
    /// This process has the store; agents end with it.
    Here { services: Arc<Services>, catalog: Arc<Catalog> },
    /// A server has it.
    Server(Remote),
}

impl Backend {
    /// The server the user names; else this process, unless a server holds the store.
    pub(super) async fn find(config: &Config) -> Result<Self, Failure> {
        if remote::is_named(config) {
            return Ok(Self::Server(Remote::new(config)?));
        }
        let base = config.text("server.public_url").unwrap_or("http://localhost:8101");
        let agents = Arc::new(Agents::lazy(options(config, base, &[])?));
        let services = Arc::new(Services { agents, ..Services::default() });
        match services.agents.engine().await {
            Ok(_) => Ok(Self::Here { catalog: mcp::catalog()?, services }),
            Err(error) if error.code() == Code::StoreLocked => Ok(Self::Server(Remote::new(config)?)),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) const fn is_here(&self) -> bool {
        matches!(self, Self::Here { .. })
    }

    /// Runs an operation of the table; a refusal becomes a failure.
    pub(super) async fn run(&self, name: &str, arguments: JsonObject) -> Result<Value, Failure> {
        let answer = match self {
            Self::Server(remote) => remote.run(name, arguments).await?,
            Self::Here { services, catalog } => {
                let entry = catalog
                    .get(name)
                    .ok_or_else(|| Failure::new(Code::Internal, format!("there is no operation `{name}`")))?;
                let services = Arc::clone(services);
                ops::run(
                    Arc::clone(entry),
                    services,
                    Caller::Owner,
                    arguments,
                    Progress::default(),
                    CancellationToken::new(),
                )
                .await
            }
        };
        body_of(answer)
    }

    /// All agents, newest last.
    pub(super) async fn list(&self) -> Result<Vec<Value>, Failure> {
        match self {
            Self::Here { services, .. } => {
                let engine = services.agents.engine().await?;
                let listed = engine.records().into_iter().map(|record| {
                    json!({
                        "id": record.id,
                        "status": record.state.status(),
                        "contract": &*record.contract,
                        "created_at": record.created_at,
                    })
                });
                Ok(listed.collect())
            }
            Self::Server(remote) => {
                let body = body_of(remote.get("/api/agents").await?)?;
                Ok(body["agents"].as_array().cloned().unwrap_or_default())
            }
        }
    }

    pub(super) async fn resume(&self, id: &str) -> Result<Value, Failure> {
        match self {
            Self::Here { services, .. } => {
                let engine = services.agents.engine().await?;
                let record = engine.resume(id).await?;
                Ok(json!({"id": record.id, "status": record.state.status()}))
            }
            Self::Server(remote) => body_of(remote.post(&format!("/api/agents/{id}/resume")).await?),
        }
    }

    pub(super) async fn delete(&self, id: &str) -> Result<Value, Failure> {
        match self {
            Self::Here { services, .. } => {
                services.agents.engine().await?.delete(id).await?;
                Ok(json!({"status": "deleted"}))
            }
            Self::Server(remote) => body_of(remote.delete(&format!("/api/agents/{id}")).await?),
        }
    }

    /// Removes ended agents, or only tells which it would remove.
    pub(super) async fn prune(&self, wish: JsonObject) -> Result<Value, Failure> {
        match self {
            Self::Here { services, .. } => {
                let engine = services.agents.engine().await?;
                Ok(PruneWish::read(&wish, &engine.options().limits)?.fulfil(engine).await?)
            }
            Self::Server(remote) => body_of(remote.post_json("/api/agents/prune", wish).await?),
        }
    }

    /// The compressed payload of an agent.
    pub(super) async fn payload(&self, id: &str) -> Result<Vec<u8>, Failure> {
        match self {
            Self::Here { services, .. } => {
                let engine = services.agents.engine().await?;
                Ok(engine.payload(id).await?.gzip.to_vec())
            }
            Self::Server(remote) => remote.bytes(&format!("/api/agents/{id}/payload")).await,
        }
    }

    /// Lets go of the store.
    pub(super) async fn close(self) {
        if let Self::Here { services, .. } = self
            && let Some(engine) = services.agents.opened()
        {
            engine.shutdown().await;
        }
    }
}

/// The answer's body, or the failure it tells.
fn body_of(answer: Answer) -> Result<Value, Failure> {
    if !answer.failed() {
        return Ok(answer.body);
    }
    let word = |key: &str| answer.body[key].as_str();
    let code = Code::ALL.iter().find(|code| Some(code.as_str()) == word("code").or_else(|| word("error")));
    let message =
        word("message").or_else(|| word("error")).unwrap_or("the server refused without saying why");
    Err(Failure::new(code.copied().unwrap_or(Code::Internal), message))
}
