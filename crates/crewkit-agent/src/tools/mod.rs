//! The tools of a run: those of its working directory and those of the configured tool servers.

pub mod mcp;
mod workspace;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crewkit_core::Limits;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::Value;

pub(crate) use workspace::Commands;
pub use workspace::{CommandPolicy, Workspace};

use crate::contract::{AGENT_COMPLETE, Concurrency, ToolAnswer, Toolbox};
use crate::event::ToolCall;
use crate::model::ToolDef;
use crate::sync::lock;
use mcp::{ListedTool, ToolServers};

/// The tools of one conversation, except `agent_complete`.
pub(crate) struct RunTools {
    workspace: Option<Workspace>,
    servers: Arc<ToolServers>,
    timeout: Duration,
    /// Tools of the servers that are ready. A tool keeps its name when another server becomes ready.
    server_tools: Mutex<Vec<Arc<ServerTool>>>,
}

/// A tool of a server, as the model knows it.
struct ServerTool {
    listed: ListedTool,
    definition: Arc<ToolDef>,
}

impl RunTools {
    pub(crate) fn new(workspace: Option<Workspace>, servers: Arc<ToolServers>, limits: &Limits) -> Self {
        let timeout = Duration::from_secs(limits.tool_call_seconds);
        Self { workspace, servers, timeout, server_tools: Mutex::default() }
    }

    /// Returns the names of all tools, given those of the servers.
    fn names<'a>(&'a self, server_tools: &'a [Arc<ServerTool>]) -> Vec<&'a str> {
        let own = self.workspace.iter().flat_map(Workspace::names);
        let mut names: Vec<&'a str> = Vec::new();
        for name in std::iter::once(AGENT_COMPLETE).chain(own) {
            names.push(name);
        }
        names.extend(server_tools.iter().map(|tool| tool.listed.shown_as.as_str()));
        names
    }

    /// Returns the tools of all servers that are ready by now.
    fn server_tools(&self) -> Vec<Arc<ServerTool>> {
        let mut known = lock(&self.server_tools);
        let is_new = |server| known.iter().all(|tool| tool.listed.server != server);
        let new = self.servers.list_some(&self.names(&known), is_new);
        known.extend(new.into_iter().map(|listed| {
            let definition = Arc::new(listed.definition());
            Arc::new(ServerTool { listed, definition })
        }));
        known.clone()
    }

    async fn dispatch(&self, call: &ToolCall, arguments: Value) -> ToolAnswer {
        if let Some(workspace) = &self.workspace
            && let Some(answer) = workspace.call(&call.name, &arguments).await
        {
            return answer;
        }
        let server_tools = self.server_tools();
        if let Some(tool) = server_tools.iter().find(|tool| tool.listed.shown_as == call.name) {
            return self.servers.call(&tool.listed, arguments, self.timeout).await;
        }
        ToolAnswer::error(format!(
            "there is no tool `{}`; there are {}",
            call.name.chars().take(80).collect::<String>(),
            self.names(&server_tools).join(", ")
        ))
    }
}

impl Toolbox for RunTools {
    fn tools(&self) -> Vec<Arc<ToolDef>> {
        let own = self.workspace.iter().flat_map(Workspace::definitions);
        own.chain(self.server_tools().iter().map(|tool| Arc::clone(&tool.definition))).collect()
    }

    fn concurrency(&self, name: &str) -> Concurrency {
        if self.workspace.is_some() { Workspace::concurrency(name) } else { Concurrency::Shared }
    }

    fn call<'a>(&'a self, call: &'a ToolCall, arguments: Value) -> BoxFuture<'a, ToolAnswer> {
        self.dispatch(call, arguments).boxed()
    }
}
