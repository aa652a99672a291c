//! The front on streamable HTTP.
//!
//! Reads each POST itself, answers what rmcp would answer badly or not at all, and hands on the rest. Every rejection has a
//! JSON-RPC body.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use crewkit_core::{Code, Limits, Toolset};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Method, StatusCode};
use http_body_util::BodyExt as _;
use http_body_util::combinators::BoxBody;
use rmcp::ServerHandler;
use rmcp::model::ProtocolVersion;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use serde::Serialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::in_flight::InFlight;
use super::message::{
    self, INVALID_PARAMS, INVALID_REQUEST, Message, PARSE_ERROR, Refusal, SESSION_NOT_FOUND, TRANSPORT_ERROR,
    id_to_json,
};
use super::sessions::{SessionRecords, Sessions, SharedRecords};
use crate::blocking;
use crate::http::read_body;
use crate::json;
use crate::ops::Selection;

pub(super) const SESSION_HEADER: &str = "mcp-session-id";

/// Whether clients get sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionMode {
    /// Sessions, with a cap; answers are streams.
    Sessions,
    /// No sessions; answers are plain JSON.
    Stateless,
}

/// What an endpoint is made of, beside its handler.
pub struct EndpointParts {
    /// Whether clients get sessions.
    pub mode: SessionMode,
    /// What is remembered of them.
    pub records: Arc<SessionRecords>,
    /// The bounds on everything.
    pub limits: Arc<Limits>,
    /// Fires when the server is about to end: replies under way get their grace, then every stream ends.
    pub stop: CancellationToken,
}

/// What rmcp makes of a request.
type Service =
    dyn Fn(Request) -> BoxFuture<'static, http::Response<BoxBody<Bytes, Infallible>>> + Send + Sync;

/// Serves MCP over HTTP for one handler.
#[derive(Clone)]
pub struct McpEndpoint {
    service: Arc<Service>,
    sessions: Arc<Sessions>,
    records: Arc<SessionRecords>,
    in_flight: Arc<InFlight>,
    limits: Arc<Limits>,
    /// Replies that are not written to their end.
    replies: TaskTracker,
}

impl McpEndpoint {
    /// The endpoint of handlers made by `handler`, one for each session.
    pub fn new<H: ServerHandler>(
        handler: impl Fn() -> H + Send + Sync + 'static,
        parts: EndpointParts,
    ) -> Self {
        let EndpointParts { mode, records, limits, stop } = parts;
        let replies = TaskTracker::new();
        let end_of_streams = CancellationToken::new();
        tokio::spawn(end_after_replies(
            stop,
            replies.clone(),
            limits.shutdown_grace_seconds,
            end_of_streams.clone(),
        ));
        let in_flight = Arc::new(InFlight::default());
        let sessions = Arc::new(Sessions::new(&limits, Arc::clone(&in_flight)));
        // Host and Origin are checked for every route by one guard, and the body is read and bounded here.
        let mut config = StreamableHttpServerConfig::default()
            .disable_allowed_hosts()
            .with_legacy_session_mode(mode == SessionMode::Sessions)
            .with_json_response(true)
            .with_max_request_body_bytes(usize::MAX)
            .with_cancellation_token(end_of_streams);
        config.session_store = Some(Arc::new(SharedRecords(Arc::clone(&records))));
        let service = StreamableHttpService::new(move || Ok(handler()), Arc::clone(&sessions), config);
        let service = Arc::new(move |request| {
            let service = service.clone();
            async move { service.handle(request).await }.boxed()
        });
        Self { service, sessions, records, in_flight, limits, replies }
    }

    /// Answers one request to the endpoint; `toolset` is set when the path names one.
    pub async fn handle(&self, toolset: Option<Toolset>, mut request: Request) -> Response {
        match narrowing(toolset, request.uri().query()) {
            Ok(Some(selection)) => {
                request.extensions_mut().insert(Arc::new(selection));
            }
            Ok(None) => {}
            Err(reason) => {
                return refuse(StatusCode::BAD_REQUEST, &Refusal::anonymous(INVALID_PARAMS, reason));
            }
        }
        match *request.method() {
            Method::POST => {
                let under_way = self.replies.token();
                self.post(request).await.map(|body| {
                    Body::new(body.map_frame(move |frame| {
                        let _until_written = &under_way;
                        frame
                    }))
                })
            }
            Method::DELETE => {
                let mut response = self.forward(request).await;
                // There is nothing left to wait for, so 202 would be wrong; some clients complain about it.
                if response.status() == StatusCode::ACCEPTED {
                    *response.status_mut() = StatusCode::NO_CONTENT;
                }
                response
            }
            _ => self.forward(request).await,
        }
    }

    async fn post(&self, request: Request) -> Response {
        if let Err(response) = check_media_types(&request) {
            return *response;
        }
        let (parts, body) = request.into_parts();
        let bytes = match read_body(&parts.headers, body, self.limits.http_body_bytes).await {
            Ok(bytes) => bytes,
            Err(problem) => {
                return refuse(problem.status, &Refusal::anonymous(TRANSPORT_ERROR, problem.message));
            }
        };
        let (size, depth) = (bytes.len(), self.limits.json_depth);
        let reading = move || (json::parse(&bytes, depth).map(Posted::of), bytes);
        let (posted, bytes) = blocking::by_size(size, reading).await;
        let posted = match posted {
            Ok(posted) => posted,
            Err(error) => {
                let text = format!("the body is not JSON: {error}");
                return refuse(StatusCode::BAD_REQUEST, &Refusal::anonymous(PARSE_ERROR, text));
            }
        };
        match posted {
            Posted::Batch(items) => self.batch(parts, items).await,
            Posted::One(read) => self.single(parts, *read, bytes).await,
        }
    }

    /// Handles what was read of one message; `bytes` are the message as it came.
    async fn single(&self, mut parts: http::request::Parts, read: Read, bytes: Vec<u8>) -> Response {
        let message = match read {
            Ok(Some(message)) => message,
            Ok(None) => return StatusCode::ACCEPTED.into_response(),
            // A request that can be answered is answered, also when the answer is no.
            Err(refusal) => {
                let status = if refusal.id.is_null() { StatusCode::BAD_REQUEST } else { StatusCode::OK };
                return refuse(status, &refusal);
            }
        };
        let session =
            parts.headers.get(SESSION_HEADER).and_then(|id| id.to_str().ok()).map(ToOwned::to_owned);
        if message.is_initialize() && session.is_some() {
            let id = message.request_id().map_or(Value::Null, id_to_json);
            let text =
                "this session is initialized already; leave out the session header for a new one".to_owned();
            return refuse(StatusCode::BAD_REQUEST, &Refusal { id, code: INVALID_REQUEST, message: text });
        }
        if let (Some(session), Some(id)) = (session, message.request_id()) {
            self.sessions.note_used(&session);
            match InFlight::enter(&self.in_flight, session, id, self.limits.mcp_calls_in_flight) {
                Ok(place) => {
                    // rmcp keeps the request's parts until the handler is done, and with them this place.
                    parts.extensions.insert(Arc::new(place));
                }
                Err(refusal) => return refuse(StatusCode::OK, &refusal),
            }
        }
        let is_initialize = message.is_initialize();
        let response = self.forward(Request::from_parts(parts, Body::from(bytes))).await;
        if is_initialize
            && response.status() == StatusCode::INTERNAL_SERVER_ERROR
            && self.sessions.full().await
        {
            return self.too_many_sessions(&message);
        }
        response
    }

    fn too_many_sessions(&self, message: &Message) -> Response {
        let id = message.request_id().map_or(Value::Null, id_to_json);
        let text = format!(
            "{}: {} sessions are open and all of them have calls in flight (limits.mcp_sessions)",
            Code::Busy,
            self.limits.mcp_sessions
        );
        let mut response =
            refuse(StatusCode::SERVICE_UNAVAILABLE, &Refusal { id, code: TRANSPORT_ERROR, message: text });
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("5"));
        response
    }

    /// Takes a batch apart and puts the answers together. Only revision 2025-03-26 has batches.
    async fn batch(&self, parts: http::request::Parts, items: Vec<Value>) -> Response {
        let refuse_batch =
            |text: String| refuse(StatusCode::BAD_REQUEST, &Refusal::anonymous(INVALID_REQUEST, text));
        let session = parts.headers.get(SESSION_HEADER).and_then(|id| id.to_str().ok());
        let version = match session {
            Some(session) => self.records.version(session).await,
            None => header_version(&parts),
        };
        if version != Some(ProtocolVersion::V_2025_03_26) {
            return refuse_batch("batches belong to revision 2025-03-26 only".to_owned());
        }
        if items.is_empty() {
            return refuse_batch("a batch must not be empty".to_owned());
        }
        if items.len() as u64 > self.limits.mcp_batch_messages {
            return refuse_batch(format!(
                "a batch may hold at most {} messages",
                self.limits.mcp_batch_messages
            ));
        }
        let answers =
            futures_util::future::join_all(items.into_iter().map(|item| self.batch_item(&parts, item))).await;
        let mut collected = Vec::new();
        for answer in answers {
            match answer {
                Ok(messages) => collected.extend(messages),
                // A whole request that is refused (unknown session, say) refuses the batch with its status.
                Err(response) => return *response,
            }
        }
        if collected.is_empty() {
            return StatusCode::ACCEPTED.into_response();
        }
        json_response(StatusCode::OK, &Value::Array(collected))
    }

    async fn batch_item(
        &self,
        parts: &http::request::Parts,
        item: Value,
    ) -> Result<Vec<Value>, Box<Response>> {
        if item.get("method").and_then(Value::as_str) == Some("initialize") {
            let id = item.get("id").cloned().unwrap_or_default();
            let text = "`initialize` cannot be part of a batch".to_owned();
            return Ok(vec![Refusal { id, code: INVALID_REQUEST, message: text }.to_json()]);
        }
        let bytes = item.to_string().into_bytes();
        let is_request = item.get("id").is_some();
        let response = Box::pin(self.single(parts.clone(), message::read(item), bytes)).await;
        let status = response.status();
        let is_stream = media_type(&response) == Some("text/event-stream");
        let Ok(body) = response.into_body().collect().await else { return Ok(Vec::new()) };
        let body = body.to_bytes();
        if is_stream {
            return Ok(stream_messages(&body).filter(|message| message.get("id").is_some()).collect());
        }
        match serde_json::from_slice::<Value>(&body) {
            Ok(json) if status.is_success() || !is_request => Ok(vec![json]),
            // An item that is no message at all is answered within the batch.
            Ok(json) if json["error"]["code"] == INVALID_REQUEST && status == StatusCode::BAD_REQUEST => {
                Ok(vec![json])
            }
            Ok(json) => Err(Box::new(json_response(status, &json))),
            Err(_) => Ok(Vec::new()),
        }
    }

    /// Lets rmcp answer, and gives its refusals a JSON body.
    async fn forward(&self, request: Request) -> Response {
        let response = (self.service)(request).await;
        let failed = response.status().is_client_error() || response.status().is_server_error();
        if failed && media_type(&response) != Some("application/json") {
            return explain(response).await;
        }
        response.map(Body::new)
    }
}

/// Ends the streams of an endpoint once the server is about to end and the replies under way are written, or their grace is over.
async fn end_after_replies(
    stop: CancellationToken,
    replies: TaskTracker,
    grace_seconds: u64,
    end_of_streams: CancellationToken,
) {
    stop.cancelled().await;
    replies.close();
    let _ = tokio::time::timeout(Duration::from_secs(grace_seconds), replies.wait()).await;
    end_of_streams.cancel();
}

/// What [`message::read`] made of a message.
type Read = Result<Option<Message>, Refusal>;

/// A body, taken apart.
enum Posted {
    Batch(Vec<Value>),
    One(Box<Read>),
}

impl Posted {
    fn of(value: Value) -> Self {
        match value {
            Value::Array(items) => Self::Batch(items),
            value => Self::One(Box::new(message::read(value))),
        }
    }
}

/// What the path and `?toolsets=` leave over; `None` when they say nothing.
fn narrowing(toolset: Option<Toolset>, query: Option<&str>) -> Result<Option<Selection>, String> {
    if let Some(toolset) = toolset {
        return Ok(Some(Selection::of(toolset)));
    }
    let named = query
        .into_iter()
        .flat_map(|query| query.split('&'))
        .filter_map(|pair| pair.split_once('='))
        .find_map(|(key, value)| (key == "toolsets").then_some(value));
    let Some(named) = named else { return Ok(None) };
    let decoded = named.replace("%2C", ",").replace("%2c", ",");
    let toolsets: Result<Vec<Toolset>, _> =
        decoded.split(',').filter(|name| !name.is_empty()).map(str::parse).collect();
    match toolsets {
        Ok(toolsets) if toolsets.is_empty() => {
            Err("`toolsets` names no toolset; known are pack, fleet and agents".to_owned())
        }
        Ok(toolsets) => Ok(Some(Selection { toolsets, ..Selection::default() })),
        Err(unknown) => Err(unknown.to_string()),
    }
}

fn check_media_types(request: &Request) -> Result<(), Box<Response>> {
    let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let refusal = |text: &str| Refusal::anonymous(TRANSPORT_ERROR, text);
    let content_type = header(CONTENT_TYPE).split(';').next().unwrap_or_default().trim();
    if !content_type.eq_ignore_ascii_case("application/json") {
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return Err(Box::new(refuse(status, &refusal("Content-Type must be application/json"))));
    }
    let accept = header(ACCEPT);
    if !(accept.contains("application/json") && accept.contains("text/event-stream")) {
        let text = "Accept must name both application/json and text/event-stream";
        return Err(Box::new(refuse(StatusCode::NOT_ACCEPTABLE, &refusal(text))));
    }
    Ok(())
}

/// The revision a request without a session speaks; a missing header means 2025-03-26.
fn header_version(parts: &http::request::Parts) -> Option<ProtocolVersion> {
    match parts.headers.get("mcp-protocol-version") {
        None => Some(ProtocolVersion::V_2025_03_26),
        Some(value) => serde_json::from_value(Value::from(value.to_str().ok()?)).ok(),
    }
}

/// Turns a text refusal of rmcp's into a JSON-RPC one; status and headers stay.
async fn explain(response: http::Response<BoxBody<Bytes, Infallible>>) -> Response {
    let (mut parts, body) = response.into_parts();
    let text = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let code = if parts.status == StatusCode::NOT_FOUND { SESSION_NOT_FOUND } else { TRANSPORT_ERROR };
    let message = if text.trim().is_empty() { parts.status.to_string() } else { text.trim().to_owned() };
    let json = Refusal::anonymous(code, message).to_json();
    parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    parts.headers.remove(http::header::CONTENT_LENGTH);
    Response::from_parts(parts, Body::from(json.to_string()))
}

fn refuse(status: StatusCode, refusal: &Refusal) -> Response {
    json_response(status, &refusal.to_json())
}

fn json_response(status: StatusCode, json: &impl Serialize) -> Response {
    match serde_json::to_vec(json) {
        Ok(json) => (status, [(CONTENT_TYPE, "application/json")], json).into_response(),
        Err(error) => {
            tracing::error!(%error, "an answer cannot be written as JSON");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

fn media_type<B>(response: &http::Response<B>) -> Option<&str> {
    Some(response.headers().get(CONTENT_TYPE)?.to_str().ok()?.split(';').next()?.trim())
}

/// The JSON messages in a finished event stream.
fn stream_messages(body: &[u8]) -> impl Iterator<Item = Value> {
    body.split(|&byte| byte == b'\n')
        .filter_map(|line| line.strip_prefix(b"data:"))
        .filter_map(|data| serde_json::from_slice(data.trim_ascii()).ok())
}
