//! A server on a loopback port, and a client that sends exactly the bytes it is told.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use crewkit_core::{Limits, Secret};
use crewkit_server::Services;
use crewkit_server::http::{App, Guard, Listeners, PeerPolicy, router};
use crewkit_server::mcp::McpServer;
use crewkit_server::mcp::http::{EndpointParts, SessionMode};
use crewkit_server::mcp::sessions::SessionRecords;
use crewkit_server::ops::{Catalog, Selection};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::operations;
use super::wire::PATIENCE;
use super::{initialize, notification};

pub(crate) struct Options {
    pub(crate) limits: Limits,
    pub(crate) token: Option<&'static str>,
    pub(crate) mode: SessionMode,
    pub(crate) selection: Selection,
    /// Where sessions are remembered; a directory of its own when there is none.
    pub(crate) records: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            token: None,
            mode: SessionMode::Sessions,
            selection: Selection::default(),
            records: None,
        }
    }
}

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
    _records: Option<tempfile::TempDir>,
}

/// An HTTP answer, body and all.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The message with an id: the body itself, or the one in an event stream.
    pub(crate) fn message(&self) -> Value {
        if self.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream")) {
            let messages = self.body.lines().filter_map(|line| line.strip_prefix("data: "));
            return messages
                .filter_map(|data| serde_json::from_str::<Value>(data).ok())
                .find(|message| message.get("id").is_some())
                .unwrap_or_else(|| panic!("no message in {self:?}"));
        }
        self.json()
    }
}

impl Server {
    pub(crate) async fn start(options: Options) -> Self {
        Self::serve(options, operations::catalog(), Services::default()).await
    }

    /// A server of the product's own operations.
    pub(crate) async fn start_with(options: Options, catalog: Catalog, services: Services) -> Self {
        Self::serve(options, Arc::new(catalog), services).await
    }

    async fn serve(options: Options, catalog: Arc<Catalog>, services: Services) -> Self {
        let (records, own) = match options.records {
            Some(directory) => (directory, None),
            None => {
                let own = tempfile::tempdir().unwrap();
                (own.path().to_owned(), Some(own))
            }
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let limits = Arc::new(options.limits);
        let services = Arc::new(services);
        let selection = Arc::new(options.selection);
        let handler = McpServer::new(Arc::clone(&catalog), Arc::clone(&services), Arc::clone(&selection));
        let records = Arc::new(SessionRecords::new(records, &limits));
        let mcp = handler.endpoint(EndpointParts {
            mode: options.mode,
            records,
            limits: Arc::clone(&limits),
            stop: stop.clone(),
        });
        let app =
            App { catalog, services, selection, limits: Arc::clone(&limits), mcp, askers: Arc::default() };
        let router = router(app, Guard { token: options.token.map(Secret::new), ..Guard::default() });
        let listeners = Listeners { tcp: Some(listener), ..Listeners::default() };
        let task = tokio::spawn(crewkit_server::http::serve(
            listeners,
            router,
            PeerPolicy::Check,
            limits,
            stop.clone(),
        ));
        Self { address, stop, task, _records: own }
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        tokio::time::timeout(PATIENCE, self.task).await.expect("the server does not end").unwrap();
    }

    /// Sends `bytes` as they are and reads one answer to its end.
    pub(crate) async fn raw(&self, bytes: &[u8]) -> Reply {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        // The server may answer and close before it has read everything.
        let _ = stream.write_all(bytes).await;
        let mut answer = Vec::new();
        let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("no answer");
        if answer.is_empty() {
            read.unwrap();
        }
        parse(&answer)
    }

    /// One request with the given headers; `Host` is added unless it is among them.
    pub(crate) async fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Reply {
        let mut head =
            format!("{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            let _ = write!(head, "Host: {}\r\n", self.address);
        }
        for (name, value) in headers {
            let _ = write!(head, "{name}: {value}\r\n");
        }
        head.push_str("\r\n");
        self.raw(&[head.as_bytes(), body].concat()).await
    }

    /// A POST as MCP clients send it.
    pub(crate) async fn post(&self, path: &str, session: Option<&str>, message: &Value) -> Reply {
        self.post_with(path, session, &[], message).await
    }

    pub(crate) async fn post_with(
        &self,
        path: &str,
        session: Option<&str>,
        more: &[(&str, &str)],
        message: &Value,
    ) -> Reply {
        let mut headers =
            vec![("Content-Type", "application/json"), ("Accept", "application/json, text/event-stream")];
        headers.extend(session.map(|session| ("Mcp-Session-Id", session)));
        headers.extend_from_slice(more);
        self.request("POST", path, &headers, message.to_string().as_bytes()).await
    }

    /// Opens a session and returns its id.
    pub(crate) async fn session(&self, path: &str, version: &str) -> String {
        let reply = self.post(path, None, &initialize(0, version)).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        let session = reply.header("mcp-session-id").expect("a session").to_owned();
        let accepted = self.post(path, Some(&session), &notification("notifications/initialized")).await;
        assert_eq!(accepted.status, 202, "{accepted:?}");
        session
    }

    /// Runs an operation over REST.
    pub(crate) async fn rest(&self, operation: &str, arguments: &Value) -> Reply {
        let headers = [("Content-Type", "application/json")];
        self.request("POST", &format!("/api/ops/{operation}"), &headers, arguments.to_string().as_bytes())
            .await
    }
}

fn parse(answer: &[u8]) -> Reply {
    let at = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("an HTTP head");
    let head = String::from_utf8_lossy(&answer[..at]).into_owned();
    let mut lines = head.lines();
    let status =
        lines.next().and_then(|line| line.split(' ').nth(1)).and_then(|code| code.parse().ok()).unwrap();
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let chunked = headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
    let body = if chunked { unchunk(&answer[at + 4..]) } else { answer[at + 4..].to_vec() };
    Reply { status, headers, body: String::from_utf8_lossy(&body).into_owned() }
}

fn unchunk(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(at) = rest.windows(2).position(|two| two == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..at]).unwrap(), 16).unwrap();
        let Some(chunk) = rest.get(at + 2..at + 2 + size) else { break };
        body.extend_from_slice(chunk);
        rest = rest.get(at + 4 + size..).unwrap_or_default();
    }
    body
}
