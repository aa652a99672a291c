//! The tools of a run: those of its working directory and those of the configured tool servers.

pub mod mcp;
mod workspace;

use std::sync::Arc;
use std::time::Duration;

use crewkit_core::Limits;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::Value;

pub(crate) use workspace::Commands;
pub use workspace::{CommandPolicy, Workspace};

use crate::contract::{AGENT_COMPLETE, Company, ToolAnswer, Toolbox};
use crate::event::ToolCall;
use crate::model::ToolDef;
use mcp::ToolServers;

/// Everything one run may use, but its own completion.
pub(crate) struct RunTools {
    workspace: Option<Workspace>,
    servers: Arc<ToolServers>,
    timeout: Duration,
    /// Server tools as the model sees them: names that clash carry their server's name in front.
    server_tools: Vec<mcp::ListedTool>,
}

impl RunTools {
    pub(crate) fn new(workspace: Option<Workspace>, servers: Arc<ToolServers>, limits: &Limits) -> Self {
        let taken: Vec<&str> = match &workspace {
            Some(workspace) => workspace.names().chain([AGENT_COMPLETE]).collect(),
            None => vec![AGENT_COMPLETE],
        };
        let server_tools = servers.list(&taken);
        Self { workspace, servers, timeout: Duration::from_secs(limits.tool_call_seconds), server_tools }
    }

    async fn dispatch(&self, call: &ToolCall, arguments: Value) -> ToolAnswer {
        if let Some(workspace) = &self.workspace
            && let Some(answer) = workspace.call(&call.name, &arguments).await
        {
            return answer;
        }
        if let Some(tool) = self.server_tools.iter().find(|tool| tool.shown_as == call.name) {
            return self.servers.call(tool, arguments, self.timeout).await;
        }
        let own = std::iter::once(AGENT_COMPLETE).chain(self.workspace.iter().flat_map(Workspace::names));
        let servers = self.server_tools.iter().map(|tool| tool.shown_as.clone());
        let known: Vec<String> = own.map(str::to_owned).chain(servers).collect();
        ToolAnswer::error(format!(
            "there is no tool `{}`; there are {}",
            call.name.chars().take(80).collect::<String>(),
            known.join(", ")
        ))
    }
}

impl Toolbox for RunTools {
    fn tools(&self) -> Vec<Arc<ToolDef>> {
        let own = self.workspace.iter().flat_map(Workspace::definitions);
        own.chain(self.server_tools.iter().map(|tool| Arc::new(tool.definition()))).collect()
    }

    fn company(&self, name: &str) -> Company {
        if self.workspace.is_some() { Workspace::company(name) } else { Company::Any }
    }

    fn call<'a>(&'a self, call: &'a ToolCall, arguments: Value) -> BoxFuture<'a, ToolAnswer> {
        self.dispatch(call, arguments).boxed()
    }
}
