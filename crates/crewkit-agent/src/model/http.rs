//! Sends one request and reads its answer, within limits.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use crewkit_core::Limits;
use futures_util::StreamExt;
use http_body_util::Full;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use serde_json::Value;

use super::endpoint::{Dialect, Endpoint};
use super::failure::{Failure, Sent, classify};
use super::retry::parse_retry_after;
use super::sse::SseParser;

/// Most bytes read of an error text.
const ERROR_BYTES: usize = 16 * 1024;
/// Silence after which a reply whose end was announced counts as whole.
const TRAILER_TIME: Duration = Duration::from_secs(2);
/// Time for the end of the body after the end of the stream, so that the connection can be used again.
const DRAIN_TIME: Duration = Duration::from_millis(100);
/// How often a wait checks whether the machine was asleep.
const SLEEP_CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// A wall clock this far ahead of the working time means that the machine was asleep.
const SLEEP_NOTICED: Duration = Duration::from_secs(10);

/// A client for one endpoint.
#[derive(Debug)]
pub(super) struct Http {
    client: reqwest::Client,
    url: reqwest::Url,
    headers: HeaderMap,
    idle: Duration,
    reply_bytes: usize,
    pub(super) wall_clock: WallClock,
}

/// Reads the wall clock; tests let it jump.
#[derive(Clone)]
pub(super) struct WallClock(pub(super) Arc<dyn Fn() -> SystemTime + Send + Sync>);

impl std::fmt::Debug for WallClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WallClock")
    }
}

/// The answer to a request.
pub(super) enum Answer {
    /// One JSON document.
    Whole(Value),
    /// Events, all of which were handed over.
    Streamed,
}

/// How far a stream has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StreamState {
    /// More is expected.
    Open,
    /// The reply is whole; usage and the end of the stream may follow.
    ReplyEnded,
    /// Nothing follows.
    Over,
}

impl Http {
    pub(super) fn new(endpoint: &Endpoint, limits: &Limits) -> Result<Self, String> {
        let url: reqwest::Url =
            endpoint.url.parse().map_err(|bad| format!("the address of model `{}`: {bad}", endpoint.name))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!(
                "the address of model `{}` must begin with http:// or https://",
                endpoint.name
            ));
        }
        let mut builder = crate::http_client()
            .connect_timeout(Duration::from_secs(limits.llm_connect_seconds))
            // As many as there are runs at work, and not for long after.
            .pool_max_idle_per_host(usize::MAX)
            .pool_idle_timeout(Duration::from_secs(limits.llm_keep_alive_seconds))
            .tcp_nodelay(true);
        if let Some(proxy) = &endpoint.proxy {
            let proxy =
                reqwest::Proxy::all(proxy).map_err(|bad| format!("proxy of `{}`: {bad}", endpoint.name))?;
            builder = builder.proxy(proxy);
        }
        Ok(Self {
            client: builder.build().map_err(|bad| format!("model `{}`: {bad}", endpoint.name))?,
            url,
            headers: headers(endpoint)?,
            idle: Duration::from_secs(limits.llm_idle_seconds.max(1)),
            reply_bytes: usize::try_from(limits.llm_reply_bytes).unwrap_or(usize::MAX),
            wall_clock: WallClock(Arc::new(SystemTime::now)),
        })
    }

    /// Returns host and path, without anything secret.
    pub(super) fn place(&self) -> String {
        let port = self.url.port().map(|port| format!(":{port}")).unwrap_or_default();
        format!("{}{port}{}", self.url.host_str().unwrap_or_default(), self.url.path())
    }

    /// Posts `body`. Events of a streamed answer go to `event` as they arrive; an error ends the reading.
    pub(super) async fn post(
        &self,
        body: Vec<u8>,
        sent: Sent,
        event: &mut (dyn FnMut(&str) -> Result<StreamState, Failure> + Send),
    ) -> Result<Answer, Failure> {
        // A body that cannot be cloned is dropped once it is sent; otherwise the client keeps the whole conversation in memory
        // until the reply has arrived.
        let body = reqwest::Body::wrap(Full::new(Bytes::from(body)));
        let request = self.client.post(self.url.clone()).headers(self.headers.clone()).body(body);
        let response =
            self.within_idle(self.idle, request.send()).await?.map_err(|error| unreachable(&error))?;
        let status = response.status().as_u16();
        if !response.status().is_success() {
            let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
            let retry_after = retry_after.and_then(|value| parse_retry_after(value, (self.wall_clock.0)()));
            let text = self.read_error(response).await;
            return Err(classify(status, &text, sent, retry_after));
        }
        let kind =
            response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if kind.starts_with("text/event-stream") {
            self.read_events(response, event).await?;
            return Ok(Answer::Streamed);
        }
        let bytes = self.read_whole(response).await?;
        match serde_json::from_slice(&bytes) {
            Ok(value) => Ok(Answer::Whole(value)),
            Err(bad) => Err(Failure::transient(format!("the reply is not valid JSON: {bad}"))),
        }
    }

    /// Waits at most `idle` of working time. After a sleep of the machine the connection is as good as lost.
    async fn within_idle<T>(&self, idle: Duration, future: impl Future<Output = T>) -> Result<T, Failure> {
        let mut future = pin!(future);
        let (begun, begun_at) = (Instant::now(), (self.wall_clock.0)());
        loop {
            let left = idle.saturating_sub(begun.elapsed());
            if let Ok(done) = tokio::time::timeout(left.min(SLEEP_CHECK_INTERVAL), &mut future).await {
                return Ok(done);
            }
            let passed = (self.wall_clock.0)().duration_since(begun_at).unwrap_or_default();
            if passed.saturating_sub(begun.elapsed()) >= SLEEP_NOTICED {
                return Err(Failure::Slept);
            }
            if begun.elapsed() >= idle {
                return Err(Failure::transient(format!("nothing heard for {} seconds", idle.as_secs())));
            }
        }
    }

    async fn read_whole(&self, response: reqwest::Response) -> Result<Vec<u8>, Failure> {
        let mut bytes = Vec::new();
        self.read(response, &mut |piece| {
            bytes.extend_from_slice(piece);
            Ok(StreamState::Open)
        })
        .await?;
        Ok(bytes)
    }

    async fn read_events(
        &self,
        response: reqwest::Response,
        event: &mut (dyn FnMut(&str) -> Result<StreamState, Failure> + Send),
    ) -> Result<(), Failure> {
        let mut parser = SseParser::default();
        let not_text = |_| Failure::transient("the stream is not valid UTF-8");
        let mut feed = |parser: &mut SseParser, piece: Option<&[u8]>| {
            let mut state = Ok(StreamState::Open);
            let mut hear = |data: &str| {
                if matches!(state, Ok(StreamState::Open | StreamState::ReplyEnded)) {
                    state = event(data);
                }
            };
            let fed = match piece {
                Some(piece) => parser.feed(piece, &mut hear),
                None => parser.finish(&mut hear),
            };
            fed.map_err(not_text)?;
            state
        };
        self.read(response, &mut |piece| feed(&mut parser, Some(piece))).await?;
        feed(&mut parser, None).map(drop)
    }

    async fn read(
        &self,
        response: reqwest::Response,
        piece: &mut (dyn FnMut(&[u8]) -> Result<StreamState, Failure> + Send),
    ) -> Result<(), Failure> {
        let mut stream = response.bytes_stream();
        let mut total = 0;
        let mut idle = self.idle;
        while let Some(next) = self.within_idle(idle, stream.next()).await? {
            let bytes = next.map_err(|error| unreachable(&error))?;
            total += bytes.len();
            if total > self.reply_bytes {
                return Err(Failure::Fatal(format!("the reply is larger than {} bytes", self.reply_bytes)));
            }
            match piece(&bytes)? {
                StreamState::Open => {}
                StreamState::ReplyEnded => idle = TRAILER_TIME.min(self.idle),
                StreamState::Over => {
                    let _ = tokio::time::timeout(DRAIN_TIME, stream.next()).await;
                    break;
                }
            }
        }
        Ok(())
    }

    async fn read_error(&self, response: reqwest::Response) -> String {
        let mut stream = response.bytes_stream();
        let mut bytes = Vec::new();
        while bytes.len() < ERROR_BYTES {
            match self.within_idle(self.idle, stream.next()).await {
                Ok(Some(Ok(piece))) => bytes.extend_from_slice(&piece),
                _ => break,
            }
        }
        bytes.truncate(ERROR_BYTES);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

fn headers(endpoint: &Endpoint) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    headers.insert(reqwest::header::ACCEPT, HeaderValue::from_static("text/event-stream, application/json"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if endpoint.dialect == Dialect::Anthropic {
        headers.insert(HeaderName::from_static("anthropic-version"), HeaderValue::from_static("2023-06-01"));
    }
    let Some(key) = endpoint.api_key.as_ref().filter(|key| !key.is_empty()) else { return Ok(headers) };
    let (name, value) = match endpoint.dialect {
        Dialect::OpenAi => (reqwest::header::AUTHORIZATION, format!("Bearer {}", key.expose())),
        Dialect::Anthropic => (HeaderName::from_static("x-api-key"), key.expose().to_owned()),
    };
    let mut value = HeaderValue::from_str(&value).map_err(|_| {
        format!("the API key of model `{}` has characters a header cannot hold", endpoint.name)
    })?;
    value.set_sensitive(true);
    headers.insert(name, value);
    Ok(headers)
}

/// The innermost cause says the most: "connection refused" rather than "error sending request".
fn unreachable(error: &reqwest::Error) -> Failure {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let stage = if error.is_connect() {
        "cannot connect"
    } else if error.is_timeout() {
        "timed out"
    } else if error.is_body() || error.is_decode() {
        "the reply was cut off"
    } else {
        "the request failed"
    };
    Failure::transient(format!("{stage}: {cause}"))
}
