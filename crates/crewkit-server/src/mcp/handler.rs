//! The MCP server proper: lists the selected operations as tools and runs them.

use std::borrow::Cow;
use std::sync::Arc;

use crewkit_core::Limits;
use crewkit_core::suggest::nearest;
use futures_util::future::BoxFuture;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CompleteRequestMethod, CompleteRequestParams,
    CompleteResult, DiscoverResult, Implementation, InitializeRequestParams, InitializeResult,
    ListPromptsRequestMethod, ListPromptsResult, ListResourceTemplatesRequestMethod,
    ListResourceTemplatesResult, ListResourcesRequestMethod, ListResourcesResult, ListToolsResult,
    PaginatedRequestParams, ProgressNotificationParam, ProtocolVersion, ReadResourceRequestParams,
    ReadResourceResponse, ServerCapabilities, ServerConfig, SubscribeRequestParams, SubscriptionFilter, Tool,
    ToolAnnotations, UnsubscribeRequestParams,
};
use rmcp::service::{NotificationContext, RequestContext, SubscriptionContext};
use rmcp::transport::streamable_http_server::SessionRestoreMarker;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use tokio::io::{AsyncRead, AsyncWrite, BufReader};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::audience::Audience;
use super::http::{EndpointParts, McpEndpoint};
use super::message::SUPPORTED_VERSIONS;
use super::resources::Subscriptions;
use super::stdio;
use crate::Services;
use crate::ops::{self, Catalog, Entry, Operation, Progress, ProgressUpdate, Selection, Source};

/// The reading end of the protocol, whatever it is.
pub type Reader = BufReader<Box<dyn AsyncRead + Send + Unpin>>;
/// The writing end of the protocol.
pub type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// Serves the operations of a catalog that a selection shows, to one connection or session.
pub struct McpServer {
    pub(super) catalog: Arc<Catalog>,
    pub(super) services: Arc<Services>,
    selection: Arc<Selection>,
    pub(super) subscriptions: Arc<Subscriptions>,
}

impl McpServer {
    /// A server that shows what `selection` allows; a request can narrow it further, never widen it.
    pub fn new(catalog: Arc<Catalog>, services: Arc<Services>, selection: Arc<Selection>) -> Self {
        Self { catalog, services, selection, subscriptions: Arc::default() }
    }

    /// Serves one client on a pair of streams until its input ends.
    pub fn serve_stdio(mut self, reader: Reader, writer: Writer, limits: &Limits) -> BoxFuture<'_, ()> {
        self.subscriptions = Arc::new(Subscriptions::new(limits, None));
        Box::pin(stdio::serve(self, reader, writer, limits))
    }

    /// The way in over HTTP.
    pub fn endpoint(self, parts: EndpointParts) -> McpEndpoint {
        let (limits, records) = (Arc::clone(&parts.limits), Arc::clone(&parts.records));
        let of_session = move || Self {
            catalog: Arc::clone(&self.catalog),
            services: Arc::clone(&self.services),
            selection: Arc::clone(&self.selection),
            subscriptions: Arc::new(Subscriptions::new(&limits, Some(Arc::clone(&records)))),
        };
        McpEndpoint::new(of_session, parts)
    }

    fn shown(&self, entry: &Entry, audience: &Audience) -> bool {
        entry.tool_output.is_some() && self.offers(&entry.operation, audience)
    }

    /// Whether `operation` may be used for `audience`, as a tool or behind a resource.
    pub(super) fn offers(&self, operation: &Operation, audience: &Audience) -> bool {
        self.selection.shows(operation) && audience.sees(operation)
    }

    fn unknown_tool(&self, name: &str, audience: &Audience) -> ErrorData {
        let shown = self.catalog.entries().filter(|entry| self.shown(entry, audience));
        let near = nearest(name, shown.map(|entry| entry.operation.name));
        let hint = near.map(|near| format!(". Did you mean `{near}`?")).unwrap_or_default();
        ErrorData::invalid_params(format!("Unknown tool `{name}`{hint}"), None)
    }

    fn info(&self, audience: &Audience) -> ServerConfig {
        let narrowed = audience.narrowed.as_ref().filter(|selection| !selection.toolsets.is_empty());
        let named_by = narrowed.unwrap_or(&self.selection);
        let tools = ServerCapabilities::builder().enable_tools();
        let capabilities = if self.has_resources(audience) {
            tools.enable_resources().enable_resources_subscribe().enable_resources_list_changed().build()
        } else {
            tools.build()
        };
        let mut config = ServerConfig::new(capabilities).with_server_info(
            Implementation::new(named_by.server_name(), env!("CARGO_PKG_VERSION")).with_title("crewkit"),
        );
        config.protocol_version = ProtocolVersion::V_2025_11_25;
        config.instructions = Some(self.instructions(audience));
        config
    }

    /// Composed from the toolsets in view, so that a model reads only about tools it has.
    fn instructions(&self, audience: &Audience) -> String {
        let mut parts = Vec::new();
        for toolset in crewkit_core::Toolset::ALL {
            let in_view =
                |entry: &Entry| entry.operation.toolset == Some(toolset) && self.shown(entry, audience);
            if self.catalog.entries().any(in_view) {
                parts.push(match toolset {
                    crewkit_core::Toolset::Pack => {
                        "pack: deploy agent assets (instructions, skills, prompts, commands) from a config repo. \
                         Look with plan, diff or status first; deploy_apply and rollback write and need yes=true."
                    }
                    crewkit_core::Toolset::Fleet => {
                        "fleet: named agents that work in their own workspaces. create_agent starts one on a spec; \
                         wait_for_agent beats polling; delete_agent is forceful."
                    }
                    crewkit_core::Toolset::Agents => {
                        "agents: run a text contract to its end. agent_start returns at once; agent_wait beats polling \
                         agent_status; large results are read from payload_url or payload_resource."
                    }
                });
            }
        }
        parts.join("\n")
    }
}

async fn notify(context: &RequestContext<RoleServer>, update: ProgressUpdate) {
    let Some(token) = context.meta.get_progress_token() else { return };
    let mut param = ProgressNotificationParam::new(token, update.done);
    param.total = update.total;
    param.message = update.message;
    // A client that went away also cancels; the work ends by that.
    let _ = context.peer.notify_progress(param).await;
}

/// An operation as an MCP tool.
pub fn tool(entry: &Entry) -> Tool {
    let operation = &entry.operation;
    let hints = operation.hints;
    let mut tool = Tool::new(operation.name, operation.description, Arc::clone(&entry.input))
        .with_title(operation.title)
        .with_annotations(
            ToolAnnotations::new()
                .read_only(hints.read_only)
                .destructive(hints.destructive)
                .idempotent(hints.idempotent)
                .open_world(hints.open_world),
        );
    tool.output_schema.clone_from(&entry.tool_output);
    tool
}

impl ServerHandler for McpServer {
    fn get_info(&self) -> ServerConfig {
        self.info(&Audience::on_stdio())
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(SUPPORTED_VERSIONS)
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        context.peer.set_peer_info(request.clone());
        let version = self.negotiate_initialize(&request)?.protocol_version;
        let mut result = self.info(&Audience::of_context(&context));
        result.protocol_version = version;
        Ok(result)
    }

    async fn discover(&self, context: RequestContext<RoleServer>) -> Result<DiscoverResult, ErrorData> {
        let info = self.info(&Audience::of_context(&context));
        Ok(DiscoverResult::from_server_info(SUPPORTED_VERSIONS.to_vec(), info))
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        // The whole list is one page, so no cursor was ever handed out.
        if let Some(cursor) = request.and_then(|params| params.cursor) {
            return Err(ErrorData::invalid_params(format!("unknown cursor `{cursor}`"), None));
        }
        let audience = Audience::of_context(&context);
        let shown = self.catalog.entries().filter(|entry| self.shown(entry, &audience));
        Ok(ListToolsResult::with_all_items(shown.map(tool).collect()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.catalog.get(name).map(|entry| tool(entry))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let audience = Audience::of_context(&context);
        let Some(entry) = self.catalog.get(&request.name).filter(|entry| self.shown(entry, &audience)) else {
            return Err(self.unknown_tool(&request.name, &audience));
        };
        let (sender, mut updates) = mpsc::unbounded_channel();
        let progress = match context.meta.get_progress_token() {
            Some(_) => Progress::to(sender),
            None => Progress::default(),
        };
        let cancelled = CancellationToken::new();
        let _cancel = cancelled.clone().drop_guard();
        let call = ops::Request {
            caller: audience.caller,
            source: Source::Tool,
            arguments: request.arguments.unwrap_or_default(),
            progress,
            cancelled,
        };
        let mut work = ops::run(Arc::clone(entry), Arc::clone(&self.services), call);
        let answer = loop {
            tokio::select! {
                biased;
                Some(update) = updates.recv() => notify(&context, update).await,
                // Nobody reads this answer; leaving drops the work.
                () = context.ct.cancelled() => {
                    return Err(ErrorData::internal_error("cancelled by the client", None));
                }
                answer = &mut work => break answer,
            }
        };
        while let Ok(update) = updates.try_recv() {
            notify(&context, update).await;
        }
        let result =
            if answer.failed() { CallToolResult::structured_error } else { CallToolResult::structured };
        Ok(result(answer.body).into())
    }

    // rmcp would answer these with empty lists; a server that does not declare a capability must not seem to have it.
    async fn list_prompts(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListPromptsRequestMethod>())
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let audience = Audience::of_context(&context);
        if !self.has_resources(&audience) {
            return Err(ErrorData::method_not_found::<ListResourcesRequestMethod>());
        }
        self.follow(&audience, &context.peer).await?;
        self.resources(request.and_then(|page| page.cursor), &audience).await
    }

    async fn list_resource_templates(
        &self,
        _request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let audience = Audience::of_context(&context);
        if !self.has_resources(&audience) {
            return Err(ErrorData::method_not_found::<ListResourceTemplatesRequestMethod>());
        }
        Ok(ListResourceTemplatesResult::with_all_items(self.resource_templates(&audience)))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        self.read(&request.uri, &Audience::of_context(&context)).await
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let audience = Audience::of_context(&context);
        self.check_subscribable(&request.uri, &audience).await?;
        self.follow(&audience, &context.peer).await?;
        self.subscriptions.add(request.uri)?;
        self.subscriptions.remember(&context.extensions).await
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.subscriptions.remove(&request.uri);
        self.subscriptions.remember(&context.extensions).await
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        if let Some(restored) = context.extensions.get::<SessionRestoreMarker>() {
            self.take_up(&restored.id, &context).await;
        }
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        self.has_resources(&Audience::on_stdio()).then(|| self.subscriptions.bounded(requested))
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        self.listen_to_resources(context).await
    }

    async fn complete(
        &self,
        _request: CompleteRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        Err(ErrorData::method_not_found::<CompleteRequestMethod>())
    }
}
