//! A tool server on streamable HTTP, strict about sessions, with fault switches.
//!
//! Its one tool `echo` answers with its text and counts how often it ran; `ms` makes it slow.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode};
use axum::routing::post;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// How answers are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answers {
    /// As one JSON document.
    Json,
    /// As an event stream, with a notification and, within a call, a ping of the server before the answer.
    Events,
}

/// What happened to it.
#[derive(Debug, Default)]
struct Seen {
    sessions: HashSet<String>,
    opened: usize,
    closed: usize,
    cancelled: usize,
    pongs: usize,
    complaints: Vec<String>,
}

#[derive(Debug)]
struct Shared {
    answers: Answers,
    token: Option<String>,
    seen: Mutex<Seen>,
    calls: AtomicUsize,
    cut: AtomicBool,
}

impl Shared {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running tool server; ends when dropped.
#[derive(Debug)]
pub struct HttpToolServer {
    at: SocketAddr,
    shared: Arc<Shared>,
    serving: Option<tokio::task::JoinHandle<()>>,
}

impl HttpToolServer {
    /// Starts one; with a `token` it wants to see it as a bearer token.
    pub async fn start(answers: Answers, token: Option<&str>) -> Self {
        let shared = Arc::new(Shared {
            answers,
            token: token.map(|token| format!("Bearer {token}")),
            seen: Mutex::default(),
            calls: AtomicUsize::new(0),
            cut: AtomicBool::new(false),
        });
        let mut server = Self { at: SocketAddr::from(([127, 0, 0, 1], 0)), shared, serving: None };
        server.up().await;
        server
    }

    /// The endpoint.
    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.at)
    }

    /// How often the tool ran.
    pub fn calls(&self) -> usize {
        self.shared.calls.load(Ordering::SeqCst)
    }

    /// Sessions opened, closed by their client, calls cancelled by their client, and pings answered.
    pub fn tally(&self) -> (usize, usize, usize, usize) {
        let seen = self.shared.seen();
        (seen.opened, seen.closed, seen.cancelled, seen.pongs)
    }

    /// What clients did against the rules.
    pub fn complaints(&self) -> Vec<String> {
        self.shared.seen().complaints.clone()
    }

    /// Forgets every session, as a restarted server does.
    pub fn forget_sessions(&self) {
        self.shared.seen().sessions.clear();
    }

    /// Breaks the stream of the next call after the tool ran and before its answer.
    pub fn cut_next(&self) {
        self.shared.cut.store(true, Ordering::SeqCst);
    }

    /// Stops listening; connections break.
    pub async fn down(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.abort();
            let _ = serving.await;
        }
    }

    /// Listens, on the same port as before, with no session left.
    #[expect(clippy::expect_used, reason = "a test without a port has nothing to go on with")]
    pub async fn up(&mut self) {
        self.forget_sessions();
        let listener = TcpListener::bind(self.at).await.expect("a loopback port");
        self.at = listener.local_addr().unwrap_or(self.at);
        let router =
            Router::new().route("/mcp", post(message).delete(close)).with_state(Arc::clone(&self.shared));
        self.serving = Some(tokio::spawn(serve(listener, router)));
    }
}

async fn serve(listener: TcpListener, router: Router) {
    // Dropping the set when the server is aborted ends the connections with it.
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok((stream, _)) = listener.accept().await else { continue };
        let service = TowerToHyperService::new(router.clone());
        connections.spawn(async move {
            let _ = auto::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

impl Drop for HttpToolServer {
    fn drop(&mut self) {
        if let Some(serving) = &self.serving {
            serving.abort();
        }
    }
}

fn plain(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Refuses what a strict server refuses.
fn check(shared: &Shared, headers: &HeaderMap, method: &str) -> Result<(), StatusCode> {
    if shared.token.as_deref().is_some_and(|token| header(headers, "authorization") != Some(token)) {
        return Err(StatusCode::UNAUTHORIZED);
    }
    let accept = header(headers, "accept").unwrap_or_default();
    let mut seen = shared.seen();
    if method != "DELETE" && !(accept.contains("application/json") && accept.contains("text/event-stream")) {
        seen.complaints.push(format!("{method}: accept is `{accept}`"));
        return Err(StatusCode::NOT_ACCEPTABLE);
    }
    if method == "initialize" {
        return Ok(());
    }
    if header(headers, "mcp-protocol-version") != Some("2025-06-18") {
        seen.complaints.push(format!("{method}: the negotiated revision is not named"));
        return Err(StatusCode::BAD_REQUEST);
    }
    match header(headers, "mcp-session-id") {
        None => {
            seen.complaints.push(format!("{method}: no session is named"));
            Err(StatusCode::BAD_REQUEST)
        }
        Some(session) if !seen.sessions.contains(session) => Err(StatusCode::NOT_FOUND),
        Some(_) => Ok(()),
    }
}

async fn close(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response<Body> {
    if let Err(refusal) = check(&shared, &headers, "DELETE") {
        return plain(refusal);
    }
    let mut seen = shared.seen();
    seen.sessions.remove(header(&headers, "mcp-session-id").unwrap_or_default());
    seen.closed += 1;
    plain(StatusCode::NO_CONTENT)
}

async fn message(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Bytes) -> Response<Body> {
    let Ok(message) = serde_json::from_slice::<Value>(&body) else { return plain(StatusCode::BAD_REQUEST) };
    let method = message["method"].as_str().unwrap_or("an answer").to_owned();
    if let Err(refusal) = check(&shared, &headers, &method) {
        return plain(refusal);
    }
    let id = message["id"].clone();
    let result = match method.as_str() {
        "initialize" => json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                               "serverInfo": {"name": "http-tools", "version": "1"}}),
        "tools/list" => json!({"tools": [{
            "name": "echo",
            "description": "Answers with its text, after a while.",
            "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}, "ms": {"type": "integer"}}},
        }]}),
        "tools/call" => {
            shared.calls.fetch_add(1, Ordering::SeqCst);
            let arguments = &message["params"]["arguments"];
            tokio::time::sleep(Duration::from_millis(arguments["ms"].as_u64().unwrap_or(0))).await;
            json!({"content": [{"type": "text", "text": arguments["text"]}], "isError": false})
        }
        other => {
            let mut seen = shared.seen();
            seen.cancelled += usize::from(other == "notifications/cancelled");
            seen.pongs += usize::from(message["id"] == "ping-1" && message["result"].is_object());
            return plain(StatusCode::ACCEPTED);
        }
    };
    let is_call = method == "tools/call";
    let cut = is_call && shared.cut.swap(false, Ordering::SeqCst);
    let mut response = answer(&shared, &json!({"jsonrpc": "2.0", "id": id, "result": result}), is_call, cut);
    if method == "initialize" {
        let mut seen = shared.seen();
        seen.opened += 1;
        let session = format!("session-{}", seen.opened);
        if let Ok(value) = HeaderValue::from_str(&session) {
            response.headers_mut().insert("mcp-session-id", value);
        }
        seen.sessions.insert(session);
    }
    response
}

fn answer(shared: &Shared, message: &Value, is_call: bool, cut: bool) -> Response<Body> {
    let (kind, body) = match shared.answers {
        Answers::Json if cut => ("application/json", "{\"jsonrpc\":".to_owned()),
        Answers::Json => ("application/json", message.to_string()),
        Answers::Events => {
            let note =
                json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "busy"}});
            let ping = json!({"jsonrpc": "2.0", "id": "ping-1", "method": "ping"});
            let ping = if is_call { format!("id: 2\ndata: {ping}\n\n") } else { String::new() };
            let end = if cut { String::new() } else { format!("event: message\ndata: {message}\n\n") };
            ("text/event-stream", format!(": hello\n\ndata: {note}\n\n{ping}{end}"))
        }
    };
    let mut response = Response::new(Body::from(body));
    response.headers_mut().insert("content-type", HeaderValue::from_static(kind));
    response
}
