//! A tool server behind streamable HTTP.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crewkit_core::{Limits, Secret};
use futures_util::StreamExt;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};

use super::link::{LinkError, result_of};
use crate::model::SseParser;
use crate::sync::lock;

const SESSION: &str = "mcp-session-id";
const VERSION: &str = "mcp-protocol-version";

#[derive(Debug)]
pub(super) struct HttpLink {
    client: reqwest::Client,
    url: String,
    headers: HeaderMap,
    next_id: AtomicU64,
    max_bytes: usize,
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
        Ok(Self {
            client,
            url: url.to_owned(),
            headers: map,
            next_id: AtomicU64::new(1),
            max_bytes: usize::try_from(limits.tool_server_message_bytes).unwrap_or(usize::MAX),
            state: Mutex::default(),
        })
    }

    /// Remembers the revision the server chose; later requests must name it.
    pub(super) fn negotiated(&self, version: &str) {
        lock(&self.state).version = HeaderValue::from_str(version).ok();
    }

    pub(super) async fn request(&self, method: &str, params: Value) -> Result<Value, LinkError> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let response =
            self.post(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).await?;
        if method == "initialize" {
            lock(&self.state).session = response.headers().get(SESSION).cloned();
        }
        let kind =
            response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let streamed = kind.starts_with("text/event-stream");
        let answer = self.read_answer(response, id, streamed).await?;
        result_of(answer)
    }

    pub(super) async fn notify(&self, method: &str) -> Result<(), LinkError> {
        self.post(&json!({"jsonrpc": "2.0", "method": method})).await.map(drop)
    }

    async fn post(&self, message: &Value) -> Result<reqwest::Response, LinkError> {
        let mut request = self.client.post(&self.url).headers(self.headers.clone()).json(message);
        let State { session, version } = lock(&self.state).clone();
        if let Some(session) = session {
            request = request.header(SESSION, session);
        }
        if let Some(version) = version {
            request = request.header(VERSION, version);
        }
        let response =
            request.send().await.map_err(|error| LinkError::Gone(error.without_url().to_string()))?;
        if response.status().is_success() {
            return Ok(response);
        }
        // A session the server has forgotten is a server to connect to anew; so is anything else we cannot read.
        Err(LinkError::Gone(format!("the tool server answered with status {}", response.status().as_u16())))
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
            let mut hear = |data: &str| {
                let message = serde_json::from_str::<Value>(data).ok();
                found = message
                    .filter(|message| message["id"] == id && message.get("method").is_none())
                    .or(found.take());
            };
            parser
                .feed(&piece, &mut hear)
                .map_err(|_| LinkError::Refused("the answer is not valid UTF-8".to_owned()))?;
            if let Some(answer) = found {
                return Ok(answer);
            }
        }
        if streamed {
            return Err(LinkError::Gone("the stream ended before the answer".to_owned()));
        }
        serde_json::from_slice(&whole)
            .map_err(|bad| LinkError::Refused(format!("the answer is not valid JSON: {bad}")))
    }
}
