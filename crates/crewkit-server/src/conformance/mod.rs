//! The fixture toolset the MCP conformance suite asks for; only in builds with the feature `conformance`.
//!
//! The suite wants tools, resources and prompts with fixed names and answers. They are of no use to anybody else, so they
//! are a handler of their own beside the product's, served through the same front, session manager, guard and HTTP
//! server: what the suite finds out about those holds for the product.

#![expect(
    deprecated,
    reason = "the suite also tests sampling, logging and subscriptions of the older revisions"
)]

mod content;
mod rounds;
mod tools;

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CompleteRequestParams, CompleteResult, CompletionInfo,
    GetPromptRequestParams, GetPromptResponse, Implementation, ListPromptsResult,
    ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, LoggingLevel, PaginatedRequestParams,
    ProtocolVersion, ReadResourceRequestParams, ReadResourceResponse, ServerConfig, SetLevelRequestParams,
    SubscribeRequestParams, SubscriptionFilter, Tool, UnsubscribeRequestParams,
};
use rmcp::service::{RequestContext, SubscriptionContext};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::broadcast;

use crate::mcp::message::SUPPORTED_VERSIONS;

/// The name `--toolsets` knows the fixture by.
pub const TOOLSET: &str = "conformance";

/// Changes waiting for a listener that reads slowly.
const CHANGES_KEPT: usize = 16;

/// What a listener is told about.
#[derive(Debug, Clone, Copy)]
enum Change {
    Tools,
    Prompts,
}

/// The server the conformance suite talks to.
#[derive(Clone)]
pub struct Fixture {
    changes: broadcast::Sender<Change>,
    /// One level for all sessions: the suite runs one scenario at a time.
    least_level: Arc<Mutex<LoggingLevel>>,
    rounds: Arc<rounds::Rounds>,
}

/// The system has no randomness to seal the state of a conversation with.
#[derive(Debug, thiserror::Error)]
#[error("no random numbers: {0}")]
pub struct NoRandomness(#[from] getrandom::Error);

impl Fixture {
    /// A fixture in its initial state.
    pub fn new() -> Result<Self, NoRandomness> {
        Ok(Self {
            changes: broadcast::Sender::new(CHANGES_KEPT),
            least_level: Arc::new(Mutex::new(LoggingLevel::Info)),
            rounds: Arc::new(rounds::Rounds::new()?),
        })
    }

    /// Whether a client wants to hear of something as severe as `level`. The stateless revision asks per request.
    fn logs(&self, level: LoggingLevel, context: &RequestContext<RoleServer>) -> bool {
        let stateless =
            context.protocol_version().is_some_and(|version| version >= ProtocolVersion::V_2026_07_28);
        let least = if stateless {
            context.meta.log_level()
        } else {
            Some(*self.least_level.lock().unwrap_or_else(PoisonError::into_inner))
        };
        least.is_some_and(|least| level as u8 >= least as u8)
    }

    fn announce(&self, change: Change) {
        // Nobody listening is no fault.
        let _ = self.changes.send(change);
    }
}

/// Fixtures are written as the JSON the suite compares with; the types only check them.
fn fixture<T: DeserializeOwned>(json: Value) -> Result<T, ErrorData> {
    serde_json::from_value(json).map_err(|error| ErrorData::internal_error(error.to_string(), None))
}

fn one_page(request: Option<PaginatedRequestParams>) -> Result<(), ErrorData> {
    match request.and_then(|params| params.cursor) {
        Some(cursor) => Err(ErrorData::invalid_params(format!("unknown cursor `{cursor}`"), None)),
        None => Ok(()),
    }
}

/// Left whole to rmcp: what the suite asks for needs the client on the other side.

impl ServerHandler for Fixture {
    fn get_info(&self) -> ServerConfig {
        let capabilities = fixture(json!({
            "tools": {"listChanged": true},
            "prompts": {"listChanged": true},
            "resources": {"subscribe": true, "listChanged": true},
            "completions": {},
            "logging": {},
        }));
        let mut config = ServerConfig::new(capabilities.unwrap_or_default())
            .with_server_info(Implementation::new("crewkit-conformance", env!("CARGO_PKG_VERSION")));
        config.protocol_version = ProtocolVersion::V_2025_11_25;
        config
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(SUPPORTED_VERSIONS)
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        one_page(request)?;
        Ok(ListToolsResult::with_all_items(tools::all()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools::all().into_iter().find(|tool| tool.name == name)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        match self.rounds.call(&request, &context)? {
            Some(response) => Ok(response),
            None => self.call_plain(request, context).await,
        }
    }

    async fn list_prompts(
        &self,
        request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        one_page(request)?;
        Ok(ListPromptsResult::with_all_items(fixture(content::prompts())?))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        if request.name == rounds::PROMPT {
            return rounds::prompt(&request);
        }
        Ok(GetPromptResponse::Complete(fixture(content::prompt(&request)?)?))
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        one_page(request)?;
        Ok(ListResourcesResult::with_all_items(fixture(content::resources())?))
    }

    async fn list_resource_templates(
        &self,
        request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        one_page(request)?;
        Ok(ListResourceTemplatesResult::with_all_items(fixture(content::templates())?))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let contents = content::resource(&request.uri).ok_or_else(|| no_such_resource(&request.uri))?;
        Ok(ReadResourceResponse::Complete(fixture(
            json!({"contents": [contents], "resultType": "complete"}),
        )?))
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        content::resource(&request.uri).map(drop).ok_or_else(|| no_such_resource(&request.uri))
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        content::resource(&request.uri).map(drop).ok_or_else(|| no_such_resource(&request.uri))
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        Some(requested.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let mut changes = self.changes.subscribe();
        loop {
            let change = tokio::select! {
                () = context.cancelled() => return Ok(()),
                change = changes.recv() => change,
            };
            // What the client did not ask for is refused by the sink, and a lost change is announced by the next one.
            let _ = match change {
                Ok(Change::Tools) => context.sink().notify_tool_list_changed().await,
                Ok(Change::Prompts) => context.sink().notify_prompt_list_changed().await,
                Err(broadcast::error::RecvError::Lagged(_)) => Ok(()),
                Err(broadcast::error::RecvError::Closed) => return Ok(()),
            };
        }
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        let values = content::completions(&request.argument.value);
        let completion =
            CompletionInfo::new(values).map_err(|error| ErrorData::internal_error(error, None))?;
        Ok(CompleteResult::new(completion))
    }

    async fn set_level(
        &self,
        request: SetLevelRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        *self.least_level.lock().unwrap_or_else(PoisonError::into_inner) = request.level;
        Ok(())
    }
}

fn no_such_resource(uri: &str) -> ErrorData {
    ErrorData::resource_not_found(format!("there is no resource `{uri}`"), Some(json!({"uri": uri})))
}
