//! A model that follows a script, on a loopback port.
//!
//! It speaks OpenAI chat completions and Anthropic Messages, streamed or whole as asked, and OpenAI Responses, streamed; refuses histories a strict server
//! would refuse, counts requests, and can fail in every way a real server does.

mod strict;
mod wire;

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Request as HttpRequest, State};
use axum::response::Response;
use axum::routing::post;
use serde_json::{Value, json};

/// What the model is asked.
#[derive(Debug, Clone)]
pub struct Request {
    /// Position among all requests, from 0.
    pub n: usize,
    /// Replies of the model already in the conversation.
    pub turn: usize,
    /// The agent's id, as its system prompt tells it.
    pub agent_id: String,
    /// The bearer token it came with; empty without one.
    pub key: String,
    /// The whole request.
    pub body: Value,
}

impl Request {
    /// Whether tools were offered.
    pub fn has_tools(&self) -> bool {
        self.body["tools"].as_array().is_some_and(|tools| !tools.is_empty())
    }

    /// The newest message.
    pub fn last_message(&self) -> &Value {
        self.body["messages"].as_array().and_then(|messages| messages.last()).unwrap_or(&Value::Null)
    }
}

/// What the model does with a request.
#[derive(Debug, Clone)]
pub struct Turn {
    delay: Duration,
    act: Act,
}

#[derive(Debug, Clone)]
enum Act {
    Reply(Reply),
    /// Streams a whole reply, then keeps the connection open and silent.
    Held {
        reply: Reply,
        end_mark: EndMark,
    },
    Status {
        status: u16,
        body: String,
        retry_after: Option<String>,
    },
    /// Headers, half an answer, then the connection breaks.
    Cut,
    /// Words without end.
    Endless,
    /// Bytes sent as they are, with this content type.
    Raw {
        kind: &'static str,
        bytes: Vec<u8>,
    },
}

/// Whether a stream says that it is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndMark {
    /// By `[DONE]` or `message_stop`.
    Sent,
    /// Not beyond the reason why the reply ended.
    Missing,
}

/// An answer in words and tool calls.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reply {
    content: Option<String>,
    reasoning: Option<String>,
    calls: Vec<(String, String, String)>,
}

impl Turn {
    fn of(act: Act) -> Self {
        Self { delay: Duration::ZERO, act }
    }

    /// Says something.
    pub fn say(text: impl Into<String>) -> Self {
        Self::of(Act::Reply(Reply { content: Some(text.into()), ..Reply::default() }))
    }

    /// Calls one tool, with content null beside it as OpenAI sends it.
    pub fn call(name: &str, arguments: &Value) -> Self {
        Self::of(Act::Reply(Reply::default())).and_call(&format!("call_{name}"), name, &arguments.to_string())
    }

    /// Calls one more tool; arguments are sent as they are.
    #[must_use]
    pub fn and_call(mut self, id: &str, name: &str, arguments: &str) -> Self {
        if let Act::Reply(reply) = &mut self.act {
            reply.calls.push((id.to_owned(), name.to_owned(), arguments.to_owned()));
        }
        self
    }

    /// Thinks aloud, in the field some servers use.
    #[must_use]
    pub fn thinking(mut self, text: &str) -> Self {
        if let Act::Reply(reply) = &mut self.act {
            reply.reasoning = Some(text.to_owned());
        }
        self
    }

    /// Calls `agent_complete`.
    pub fn complete(summary: &str) -> Self {
        Self::call("agent_complete", &json!({"summary": summary}))
    }

    /// Calls `agent_complete` with a payload.
    pub fn deliver(summary: &str, payload: &str) -> Self {
        Self::call("agent_complete", &json!({"summary": summary, "payload": payload}))
    }

    /// Keeps the connection open after the streamed reply.
    #[must_use]
    pub fn held(mut self, end_mark: EndMark) -> Self {
        if let Act::Reply(reply) = self.act {
            self.act = Act::Held { reply, end_mark };
        }
        self
    }

    /// Answers with an HTTP error.
    pub fn status(status: u16, body: &str) -> Self {
        Self::of(Act::Status { status, body: body.to_owned(), retry_after: None })
    }

    /// Answers 429 and asks to come back later.
    pub fn slow_down(retry_after: &str) -> Self {
        let retry_after = Some(retry_after.to_owned());
        Self::of(Act::Status { status: 429, body: "slow down".to_owned(), retry_after })
    }

    /// Breaks the connection in the middle of the answer.
    pub fn cut() -> Self {
        Self::of(Act::Cut)
    }

    /// Streams without end.
    pub fn endless() -> Self {
        Self::of(Act::Endless)
    }

    /// A stream that is not text.
    pub fn invalid_utf8() -> Self {
        Self::of(Act::Raw {
            kind: "text/event-stream",
            bytes: b"data: {\"choices\":[{\"delta\":\xff\xfe}]}\n\n".to_vec(),
        })
    }

    /// A body that is not JSON.
    pub fn invalid_json() -> Self {
        Self::of(Act::Raw { kind: "application/json", bytes: b"{\"choices\": [".to_vec() })
    }

    /// A body without an answer in it.
    pub fn empty_choices() -> Self {
        Self::of(Act::Raw { kind: "application/json", bytes: b"{\"choices\":[]}".to_vec() })
    }

    /// Does all that only after a while.
    #[must_use]
    pub fn after(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }
}

type Script = dyn Fn(&Request) -> Turn + Send + Sync;

struct Shared {
    script: Box<Script>,
    requests: AtomicUsize,
    in_flight: AtomicUsize,
    peak: AtomicUsize,
    violations: Mutex<Vec<String>>,
    bodies: Mutex<Vec<Value>>,
    manner: Manner,
}

/// What a model makes of the requests it gets, besides answering them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// Refuses what a strict server refuses, and keeps the rest for a look afterwards.
    Attentive,
    /// Refuses the same and keeps nothing.
    Forgetful,
    /// Answers everything and keeps nothing.
    Lenient,
}

/// A running model; ends when dropped.
pub struct ScriptedModel {
    base: String,
    shared: Arc<Shared>,
    server: tokio::task::JoinHandle<()>,
}

impl ScriptedModel {
    /// Starts a model that asks `script` what to do.
    pub async fn start(script: impl Fn(&Request) -> Turn + Send + Sync + 'static) -> Self {
        Self::launch(Box::new(script), Manner::Attentive).await
    }

    /// Starts a model that does not keep what it was asked; for benchmarks.
    pub async fn start_forgetful(script: impl Fn(&Request) -> Turn + Send + Sync + 'static) -> Self {
        Self::launch(Box::new(script), Manner::Forgetful).await
    }

    /// Starts a model that takes any history; for programs whose histories are wrong.
    pub async fn start_lenient(script: impl Fn(&Request) -> Turn + Send + Sync + 'static) -> Self {
        Self::launch(Box::new(script), Manner::Lenient).await
    }

    /// Starts a model that gives these turns one after the other, whoever asks; the last one repeats.
    pub async fn sequence(turns: Vec<Turn>) -> Self {
        Self::start(move |request| {
            let at = request.n.min(turns.len().saturating_sub(1));
            turns.get(at).cloned().unwrap_or_else(|| Turn::say("the script is empty"))
        })
        .await
    }

    async fn launch(script: Box<Script>, manner: Manner) -> Self {
        let shared = Arc::new(Shared {
            script,
            requests: AtomicUsize::new(0),
            in_flight: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            violations: Mutex::default(),
            bodies: Mutex::default(),
            manner,
        });
        let router = Router::new()
            .route("/v1/chat/completions", post(openai))
            .route("/v1/messages", post(anthropic))
            .route("/v1/responses", post(responses))
            .layer(DefaultBodyLimit::disable())
            .with_state(Arc::clone(&shared));
        let listener = listen().await;
        let base = listener.local_addr().map_or_else(|_| String::new(), |at| format!("http://{at}"));
        let server = tokio::spawn(async move {
            let _ = axum::serve(listener, router).await;
        });
        Self { base, shared, server }
    }

    /// The chat completions endpoint.
    pub fn url(&self) -> String {
        format!("{}/v1/chat/completions", self.base)
    }

    /// The Messages endpoint.
    pub fn anthropic_url(&self) -> String {
        format!("{}/v1/messages", self.base)
    }

    /// The address without a path.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Requests so far.
    pub fn requests(&self) -> usize {
        self.shared.requests.load(Ordering::SeqCst)
    }

    /// Most requests that were answered at the same time.
    pub fn peak_in_flight(&self) -> usize {
        self.shared.peak.load(Ordering::SeqCst)
    }

    /// Requests being answered now.
    pub fn in_flight(&self) -> usize {
        self.shared.in_flight.load(Ordering::SeqCst)
    }

    /// Histories that a strict server would have refused.
    pub fn violations(&self) -> Vec<String> {
        self.shared.violations.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What was asked.
    pub fn bodies(&self) -> Vec<Value> {
        self.shared.bodies.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for ScriptedModel {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// A loopback port; a test that cannot have one cannot run.
#[expect(clippy::expect_used, reason = "a test without a port has nothing to go on with")]
async fn listen() -> tokio::net::TcpListener {
    tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a loopback port")
}

/// A loopback address nobody listens on.
pub async fn refusing_url() -> String {
    let listener = listen().await;
    let url =
        listener.local_addr().map_or_else(|_| String::new(), |at| format!("http://{at}/v1/chat/completions"));
    drop(listener);
    url
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Wire {
    OpenAi,
    Anthropic,
    Responses,
}

async fn openai(state: State<Arc<Shared>>, request: HttpRequest) -> Response {
    answer(state, request, Wire::OpenAi).await
}

async fn anthropic(state: State<Arc<Shared>>, request: HttpRequest) -> Response {
    answer(state, request, Wire::Anthropic).await
}

async fn responses(state: State<Arc<Shared>>, request: HttpRequest) -> Response {
    answer(state, request, Wire::Responses).await
}

/// Counts a request for as long as its answer takes, stream included.
struct InFlight(Arc<Shared>);

impl InFlight {
    fn new(shared: &Arc<Shared>) -> Self {
        let now = shared.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        shared.peak.fetch_max(now, Ordering::SeqCst);
        Self(Arc::clone(shared))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn answer(State(shared): State<Arc<Shared>>, request: HttpRequest, wire: Wire) -> Response {
    let flight = InFlight::new(&shared);
    let has_length = request.headers().contains_key("content-length");
    let key = request.headers().get("authorization").and_then(|value| value.to_str().ok());
    let key = key.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default().to_owned();
    let bytes = axum::body::to_bytes(request.into_body(), usize::MAX).await.unwrap_or_default();
    let n = shared.requests.fetch_add(1, Ordering::SeqCst);
    let Ok(body) = serde_json::from_slice::<Value>(&bytes) else {
        return plain(400, "the request is not JSON");
    };
    let violation = match (shared.manner, wire) {
        (Manner::Lenient, _) => None,
        // Servers in front of models count bytes before they pass them on.
        _ if !has_length => Some("Content-Length is missing".to_owned()),
        (_, Wire::OpenAi) => strict::openai(&body),
        (_, Wire::Anthropic) => strict::anthropic(&body),
        (_, Wire::Responses) => strict::responses(&body),
    };
    if let Some(violation) = violation {
        shared.violations.lock().unwrap_or_else(PoisonError::into_inner).push(violation.clone());
        return plain(400, &violation);
    }
    if shared.manner == Manner::Attentive {
        shared.bodies.lock().unwrap_or_else(PoisonError::into_inner).push(body.clone());
    }
    let request = Request { n, turn: wire::turns(&body), agent_id: wire::agent_id(&body), key, body };
    let turn = (shared.script)(&request);
    if !turn.delay.is_zero() {
        tokio::time::sleep(turn.delay).await;
    }
    let streamed = request.body["stream"] == true;
    respond(turn.act, wire, streamed, flight)
}

fn respond(act: Act, wire: Wire, streamed: bool, flight: InFlight) -> Response {
    match act {
        Act::Reply(reply) if streamed => typed("text/event-stream", Body::from(stream_of(&reply, wire))),
        Act::Held { reply, end_mark } => {
            let mut text = stream_of(&reply, wire);
            if end_mark == EndMark::Missing {
                let without_mark = text.trim_end().rfind("\n\n").unwrap_or(0);
                text.truncate(without_mark + 2);
            }
            let pieces = futures_util::stream::unfold((flight, Some(text)), |(flight, text)| async move {
                let Some(text) = text else { return std::future::pending().await };
                Some((Ok::<_, Infallible>(Bytes::from(text)), (flight, None)))
            });
            typed("text/event-stream", Body::from_stream(pieces))
        }
        Act::Reply(reply) => {
            let value = match wire {
                Wire::OpenAi | Wire::Responses => wire::openai_whole(&reply),
                Wire::Anthropic => wire::anthropic_whole(&reply),
            };
            typed("application/json", Body::from(value.to_string()))
        }
        Act::Status { status, body, retry_after } => {
            let mut response = plain(status, &body);
            if let Some(value) = retry_after.and_then(|value| value.parse().ok()) {
                response.headers_mut().insert("retry-after", value);
            }
            response
        }
        Act::Cut => {
            let half = wire::openai_delta(&json!({"content": "half an ans"}));
            let pieces = futures_util::stream::unfold(Some(half), |half| async move {
                let Some(half) = half else {
                    // Lets the first half get out before the connection breaks.
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    return Some((Err(std::io::Error::other("cut")), None));
                };
                Some((Ok(Bytes::from(half)), None))
            });
            typed("text/event-stream", Body::from_stream(pieces))
        }
        Act::Endless => {
            let piece = Bytes::from(wire::openai_delta(&json!({"content": "on and on ".repeat(100)})));
            let pieces = futures_util::stream::unfold((flight, piece), |(flight, piece)| async move {
                tokio::task::yield_now().await;
                Some((Ok::<_, Infallible>(piece.clone()), (flight, piece)))
            });
            typed("text/event-stream", Body::from_stream(pieces))
        }
        Act::Raw { kind, bytes } => typed(kind, Body::from(bytes)),
    }
}

fn stream_of(reply: &Reply, wire: Wire) -> String {
    match wire {
        Wire::OpenAi => wire::openai_stream(reply),
        Wire::Anthropic => wire::anthropic_stream(reply),
        Wire::Responses => wire::responses_stream(reply),
    }
}

fn typed(kind: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().insert("content-type", axum::http::HeaderValue::from_static(kind));
    response
}

fn plain(status: u16, text: &str) -> Response {
    let mut response = Response::new(Body::from(text.to_owned()));
    *response.status_mut() = axum::http::StatusCode::from_u16(status).unwrap_or_default();
    response
}
