//! A tool server behind streamable HTTP.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crewkit_core::{Limits, Secret};
use futures_util::StreamExt;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};

use super::link::{LinkError, cancelled, reply_to, result_of};
use crate::model::SseParser;
use crate::sync::lock;

const SESSION: &str = "mcp-session-id";
const VERSION: &str = "mcp-protocol-version";
/// Time for a message that nobody waits for.
const DETACHED_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct HttpLink {
    connection: Arc<Connection>,
    next_id: AtomicU64,
    max_bytes: usize,
}

/// The connection; messages in the background may outlive the link.
#[derive(Debug)]
struct Connection {
    client: reqwest::Client,
    url: String,
    headers: HeaderMap,
    state: Mutex<State>,
}

#[derive(Debug, Default, Clone)]
struct State {
    session: Option<HeaderValue>,
    version: Option<HeaderValue>,
}

impl HttpLink {
    pub(super) fn new(
        url: &str,
        headers: &BTreeMap<String, Secret>,
        limits: &Limits,
    ) -> Result<Self, LinkError> {
        let client = crate::http_client()
            .connect_timeout(Duration::from_secs(limits.llm_connect_seconds))
            .build()
            .map_err(|error| LinkError::Gone(error.to_string()))?;
        let mut map = HeaderMap::new();
        map.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        for (name, value) in headers {
            let bad = || LinkError::Gone(format!("header `{name}` cannot be sent"));
            let parsed: HeaderName = name.parse().map_err(|_| bad())?;
            let mut value = HeaderValue::from_str(value.expose()).map_err(|_| bad())?;
            value.set_sensitive(true);
            map.insert(parsed, value);
        }
        let connection = Connection { client, url: url.to_owned(), headers: map, state: Mutex::default() };
        Ok(Self {
            connection: Arc::new(connection),
            next_id: AtomicU64::new(1),
            max_bytes: usize::try_from(limits.tool_server_message_bytes).unwrap_or(usize::MAX),
        })
    }

    /// Stores the revision that the server chose; later requests must name it.
    pub(super) fn negotiated(&self, version: &str) {
        lock(&self.connection.state).version = HeaderValue::from_str(version).ok();
    }

    pub(super) async fn request(&self, method: &str, params: Value) -> Result<Value, LinkError> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        let mut pending = PendingRequest { connection: &self.connection, id, is_answered: false };
        let answer = self.exchange(&message, id).await;
        pending.is_answered = true;
        result_of(answer?)
    }

    async fn exchange(&self, message: &Value, id: u64) -> Result<Value, LinkError> {
        let response = self.connection.post(message).await?;
        if message["method"] == "initialize" {
            lock(&self.connection.state).session = response.headers().get(SESSION).cloned();
        }
        let kind =
            response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let streamed = kind.starts_with("text/event-stream");
        self.read_answer(response, id, streamed).await
    }

    pub(super) async fn notify(&self, method: &str) -> Result<(), LinkError> {
        self.connection.post(&json!({"jsonrpc": "2.0", "method": method})).await.map(drop)
    }

    async fn read_answer(
        &self,
        response: reqwest::Response,
        id: u64,
        streamed: bool,
    ) -> Result<Value, LinkError> {
        let mut stream = response.bytes_stream();
        let mut parser = SseParser::default();
        let mut whole = Vec::new();
        let mut total = 0;
        let mut found: Option<Value> = None;
        while let Some(piece) = stream.next().await {
            let piece = piece.map_err(|error| LinkError::Gone(error.without_url().to_string()))?;
            total += piece.len();
            if total > self.max_bytes {
                return Err(LinkError::Refused(format!(
                    "the answer is larger than {} bytes",
                    self.max_bytes
                )));
            }
            if !streamed {
                whole.extend_from_slice(&piece);
                continue;
            }
            let mut questions = Vec::new();
            let mut hear = |data: &str| {
                let Ok(message) = serde_json::from_str::<Value>(data) else { return };
                if message.get("method").is_some() {
                    questions.extend(reply_to(&message));
                } else if message["id"] == id {
                    found = Some(message);
                }
            };
            parser
                .feed(&piece, &mut hear)
                .map_err(|_| LinkError::Gone("the answer is not valid UTF-8".to_owned()))?;
            for reply in questions {
                let _ = self.connection.post(&reply).await;
            }
            if let Some(answer) = found {
                return Ok(answer);
            }
        }
        if streamed {
            return Err(LinkError::Gone("the stream ended before the answer".to_owned()));
        }
        serde_json::from_slice(&whole)
            .map_err(|bad| LinkError::Gone(format!("the answer is not valid JSON: {bad}")))
    }
}

impl Connection {
    async fn post(&self, message: &Value) -> Result<reqwest::Response, LinkError> {
        let has_session = lock(&self.state).session.is_some();
        let response = self.addressed(self.client.post(&self.url)).json(message).send().await;
        let response = response.map_err(|error| {
            let why = error.without_url();
            let text = innermost(&why);
            if why.is_connect() { LinkError::NotReached(text) } else { LinkError::Gone(text) }
        })?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let why = format!("the tool server answered with status {}", status.as_u16());
        Err(match status.as_u16() {
            404 if has_session => LinkError::NotReached("the tool server has ended our session".to_owned()),
            400..500 => LinkError::Refused(why),
            _ => LinkError::Gone(why),
        })
    }

    fn addressed(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        let mut request = request.headers(self.headers.clone());
        let State { session, version } = lock(&self.state).clone();
        if let Some(session) = session {
            request = request.header(SESSION, session);
        }
        if let Some(version) = version {
            request = request.header(VERSION, version);
        }
        request
    }
}

/// Returns the innermost cause: "connection refused" rather than "error sending request".
fn innermost(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    format!("the tool server cannot be reached: {cause}")
}

/// Cancels its request at the server if it is dropped before the answer.
struct PendingRequest<'a> {
    connection: &'a Arc<Connection>,
    id: u64,
    is_answered: bool,
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            let (connection, message) = (Arc::clone(self.connection), cancelled(self.id));
            send_detached(async move { connection.post(&message).await.map(drop) });
        }
    }
}

impl Drop for HttpLink {
    /// Ends the session, which the server would otherwise keep until it expires.
    fn drop(&mut self) {
        if lock(&self.connection.state).session.is_some() {
            let connection = Arc::clone(&self.connection);
            send_detached(async move {
                connection.addressed(connection.client.delete(&connection.url)).send().await.map(drop)
            });
        }
    }
}

/// Sends a message in the background.
fn send_detached<E>(message: impl Future<Output = Result<(), E>> + Send + 'static) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(async move { drop(tokio::time::timeout(DETACHED_TIMEOUT, message).await) });
    }
}
