//! Tools of MCP servers: a client for stdio and streamable HTTP, which starts and restarts its servers.

mod config;
mod http;
mod link;
mod server;
mod stdio;

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use crewkit_core::Limits;
use serde_json::Value;
use tokio_util::task::AbortOnDropHandle;

pub use config::{ConfigError, ServerConfig, Transport, parse};
pub use server::ServerStatus;
use server::ToolServer;

use crate::contract::ToolAnswer;
use crate::model::ToolDef;

/// Longest tool name models accept.
const MAX_NAME: usize = 64;

/// The tool servers a run can use.
#[derive(Debug, Clone)]
pub struct ToolServers {
    servers: Vec<Arc<ToolServer>>,
    surroundings: Arc<Surroundings>,
    /// Starts of a run's own processes; they end with the run.
    _starting: Arc<Vec<AbortOnDropHandle<()>>>,
}

/// What every server process gets.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    /// The environment processes start from, before their own settings.
    pub environment: Vec<(OsString, OsString)>,
    /// Command line of the helper that supervises processes.
    pub helper: Vec<OsString>,
    /// Limits.
    pub limits: Arc<Limits>,
}

/// A tool with the name that models use.
#[derive(Debug, Clone)]
pub struct ListedTool {
    /// The name the model uses.
    pub shown_as: String,
    pub(crate) server: usize,
    /// Name of the server.
    pub server_name: String,
    /// The tool as the server described it.
    pub raw: Value,
}

impl ListedTool {
    pub(crate) fn definition(&self) -> ToolDef {
        let schema = &self.raw["inputSchema"];
        ToolDef {
            name: self.shown_as.clone(),
            description: self.raw["description"].as_str().unwrap_or_default().to_owned(),
            input_schema: if schema.is_object() {
                schema.clone()
            } else {
                serde_json::json!({"type": "object"})
            },
        }
    }
}

impl ToolServers {
    /// Prepares the configured servers; nothing is started yet.
    pub(crate) fn new(configs: Vec<ServerConfig>, surroundings: Surroundings) -> Self {
        let surroundings = Arc::new(surroundings);
        let servers =
            configs.into_iter().map(|config| Arc::new(ToolServer::new(config, &surroundings))).collect();
        Self { servers, surroundings, _starting: Arc::default() }
    }

    /// Starts every shared server, all at once, and waits until each is ready or has failed.
    pub(crate) async fn settle(&self) {
        let starting =
            self.servers.iter().filter(|server| !server.config().per_agent).map(|server| server.settle());
        futures_util::future::join_all(starting).await;
    }

    /// Returns the servers as one run sees them: shared ones, and processes of its own where configured.
    ///
    /// Waits a short time for servers that start for the first time. Those that take longer, or are known to be broken, are
    /// started in the background: their tools are offered when they are ready.
    pub(crate) async fn for_run(&self, run: &str) -> Self {
        let mut servers = Vec::new();
        let mut starting = Vec::new();
        for listed in &self.servers {
            if !listed.config().per_agent {
                listed.start();
                servers.push(Arc::clone(listed));
                continue;
            }
            let own = Arc::new(ToolServer::for_run(listed.config().clone(), &self.surroundings, run));
            let (starts, listed) = (Arc::clone(&own), Arc::clone(listed));
            starting.push(AbortOnDropHandle::new(tokio::spawn(async move {
                starts.settle().await;
                listed.remember_tools(&starts);
            })));
            servers.push(own);
        }
        let first_starts = servers.iter().zip(&self.servers).filter(|(_, listed)| !listed.is_broken());
        let settled = futures_util::future::join_all(first_starts.map(|(own, _)| own.settled()));
        let wait = Duration::from_millis(self.surroundings.limits.tool_server_wait_ms);
        let _ = tokio::time::timeout(wait, settled).await;
        Self { servers, surroundings: Arc::clone(&self.surroundings), _starting: Arc::new(starting) }
    }

    /// Describes the servers that offer no tools yet, for the transcript of a run.
    pub(crate) fn absent(&self) -> Vec<String> {
        let absent = self.servers.iter().map(|server| server.status()).filter_map(|status| {
            let name = &status.name;
            match (status.error, status.status) {
                (Some(error), _) => Some(format!("tool server `{name}` is not available: {error}")),
                (None, "starting") => Some(format!(
                    "tool server `{name}` is still starting; its tools are offered when it is ready"
                )),
                (None, _) => None,
            }
        });
        absent.collect()
    }

    /// State of each server.
    pub fn status(&self) -> Vec<ServerStatus> {
        self.servers.iter().map(|server| server.status()).collect()
    }

    /// Returns all tools. If two servers offer the same name, it is prefixed with the name of its server.
    pub fn list(&self) -> Vec<ListedTool> {
        self.list_some(&[], |_| true)
    }

    /// Returns the tools of the servers that `is_wanted`. Names that are `taken` are prefixed too.
    pub(crate) fn list_some(&self, taken: &[&str], is_wanted: impl Fn(usize) -> bool) -> Vec<ListedTool> {
        let mut all = Vec::new();
        for (index, server) in self.servers.iter().enumerate().filter(|(index, _)| is_wanted(*index)) {
            for raw in server.tools() {
                let name = raw["name"].as_str().unwrap_or_default().to_owned();
                all.push((index, server.config().name.clone(), name, raw));
            }
        }
        let mut uses: HashMap<String, usize> = taken.iter().map(|name| ((*name).to_owned(), 1)).collect();
        for (_, _, name, _) in &all {
            *uses.entry(plain_name(name)).or_default() += 1;
        }
        let mut given: HashSet<String> = taken.iter().map(|name| (*name).to_owned()).collect();
        all.into_iter()
            .map(|(server, server_name, name, raw)| {
                let clashes = uses.get(&plain_name(&name)).is_some_and(|count| *count > 1);
                let wanted = if clashes { format!("{server_name}__{name}") } else { name };
                let mut shown_as = plain_name(&wanted);
                let mut n = 1;
                while !given.insert(shown_as.clone()) {
                    n += 1;
                    shown_as = format!(
                        "{}_{n}",
                        &plain_name(&wanted).chars().take(MAX_NAME - 4).collect::<String>()
                    );
                }
                ListedTool { shown_as, server, server_name, raw }
            })
            .collect()
    }

    pub(crate) async fn call(&self, tool: &ListedTool, arguments: Value, timeout: Duration) -> ToolAnswer {
        let Some(server) = self.servers.get(tool.server) else {
            return ToolAnswer::error("the tool is gone");
        };
        let name = tool.raw["name"].as_str().unwrap_or_default();
        server.call(name, arguments, timeout).await
    }
}

/// Returns a name that every model's server accepts.
fn plain_name(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '_' };
    name.chars().map(plain).take(MAX_NAME).collect()
}
