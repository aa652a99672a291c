//! Tools of MCP servers: a client for stdio and streamable HTTP, and the supervision of its servers.

mod config;
mod http;
mod link;
mod server;
mod stdio;

use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use crewkit_core::Limits;
use serde_json::Value;

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
}

/// What every server process is given.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    /// The environment processes start from, before their own settings.
    pub environment: Vec<(OsString, OsString)>,
    /// Command line of the helper that supervises processes.
    pub helper: Vec<OsString>,
    /// Limits.
    pub limits: Arc<Limits>,
}

/// A tool with the name the model is told.
#[derive(Debug, Clone)]
pub struct ListedTool {
    /// The name the model uses.
    pub shown_as: String,
    server: usize,
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
        Self { servers, surroundings }
    }

    /// Starts every shared server, all at once, and waits until each is up or has failed for now.
    pub(crate) async fn settle(&self) {
        let starting =
            self.servers.iter().filter(|server| !server.config().per_agent).map(|server| server.settle());
        futures_util::future::join_all(starting).await;
    }

    /// The servers as one run sees them: shared ones, and processes of its own where configured.
    pub(crate) async fn for_run(&self, run: &str) -> Self {
        let servers = self.servers.iter().map(|server| {
            if server.config().per_agent {
                Arc::new(ToolServer::for_run(server.config().clone(), &self.surroundings, run))
            } else {
                Arc::clone(server)
            }
        });
        let mine = Self { servers: servers.collect(), surroundings: Arc::clone(&self.surroundings) };
        let starting = mine.servers.iter().map(|server| server.settle());
        futures_util::future::join_all(starting).await;
        for (own, listed) in mine.servers.iter().zip(&self.servers).filter(|(own, _)| own.config().per_agent)
        {
            listed.remember_tools(own);
        }
        mine
    }

    /// State of each server.
    pub fn status(&self) -> Vec<ServerStatus> {
        self.servers.iter().map(|server| server.status()).collect()
    }

    /// All tools. A name that is `taken`, or that two servers offer, carries its server's name in front.
    pub fn list(&self, taken: &[&str]) -> Vec<ListedTool> {
        let mut all = Vec::new();
        for (index, server) in self.servers.iter().enumerate() {
            for raw in server.tools() {
                let name = raw["name"].as_str().unwrap_or_default().to_owned();
                all.push((index, server.config().name.clone(), name, raw));
            }
        }
        let mut uses: HashMap<String, usize> = taken.iter().map(|name| ((*name).to_owned(), 1)).collect();
        for (_, _, name, _) in &all {
            *uses.entry(plain_name(name)).or_default() += 1;
        }
        let mut given: std::collections::HashSet<String> = std::collections::HashSet::new();
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

/// A name every model's server accepts.
fn plain_name(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '_' };
    name.chars().map(plain).take(MAX_NAME).collect()
}
