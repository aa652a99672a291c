//! Bytes of a stranger against the doors of a server: HTTP, MCP on standard input, WebSocket.
//!
//! Shared by the fuzz targets and by the test that replays what they found. Each function returns when the server is done with
//! the bytes; it panics if the server keeps the connection or answers nonsense.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crewkit_agent::Options as AgentOptions;
use crewkit_agent::engine::Start;
use crewkit_core::Limits;
use crewkit_server::Services;
use crewkit_server::http::{App, Guard, Peer, router, serve_stream};
use crewkit_server::mcp::McpServer;
use crewkit_server::mcp::http::{EndpointParts, SessionMode};
use crewkit_server::mcp::sessions::SessionRecords;
use crewkit_server::ops::{Catalog, Selection};
use crewkit_server::services::Agents;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

/// Only a hang takes this long.
const PATIENCE: Duration = Duration::from_secs(30);
const PIPE_BYTES: usize = 1 << 20;

struct TestServer {
    runtime: Runtime,
    router: axum::Router,
    limits: Arc<Limits>,
    catalog: Arc<Catalog>,
    services: Arc<Services>,
    /// A run that waits to be started.
    agent: String,
}

/// A server with the product's operations, whose agents are rehearsed; its state is in `directory`.
fn start_server(directory: &Path) -> TestServer {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let limits = Arc::new(Limits {
        http_body_bytes: 1 << 16,
        mcp_line_bytes: 1 << 16,
        agent_contract_bytes: 1 << 12,
        mcp_sessions: 4,
        mcp_session_records: 4,
        shutdown_grace_seconds: 1,
        ..Limits::default()
    });
    let mut agents = AgentOptions::new(directory);
    agents.limits = Arc::clone(&limits);
    agents.settings_mut().drivers.clear();
    let services = Arc::new(Services { agents: Arc::new(Agents::lazy(agents)), ..Services::default() });
    let catalog = Arc::new(Catalog::product().expect("the table"));
    let selection = Arc::new(Selection::default());
    let inside = runtime.enter();
    let agent = runtime.block_on(async {
        let engine = services.agents.engine().await.expect("an engine");
        engine.create(Start::default()).await.expect("a run").id.to_string()
    });
    let parts = EndpointParts {
        mode: SessionMode::Sessions,
        records: Arc::new(SessionRecords::new(directory.join("sessions"), &limits)),
        limits: Arc::clone(&limits),
        stop: CancellationToken::new(),
    };
    let server = McpServer::new(Arc::clone(&catalog), Arc::clone(&services), Arc::clone(&selection));
    let app = App {
        catalog: Arc::clone(&catalog),
        services: Arc::clone(&services),
        selection,
        limits: Arc::clone(&limits),
        mcp: server.endpoint(parts),
        askers: Arc::default(),
    };
    let router = router(app, Guard::default());
    drop(inside);
    TestServer { runtime, router, limits, catalog, services, agent }
}

/// The one server of this process.
fn shared() -> &'static TestServer {
    static SERVER: OnceLock<(tempfile::TempDir, TestServer)> = OnceLock::new();
    let (_, test_server) = SERVER.get_or_init(|| {
        let directory = tempfile::tempdir().expect("a directory");
        let test_server = start_server(directory.path());
        (directory, test_server)
    });
    test_server
}

/// Sends `request` on a connection of `peer`, then, once a head came back, `more`; ends the sending side, and returns all that
/// came back.
fn exchange(peer: Peer, request: &[u8], more: Option<&[u8]>) -> Vec<u8> {
    let test_server = shared();
    test_server.runtime.block_on(async {
        let (mut ours, theirs) = tokio::io::duplex(PIPE_BYTES);
        let served =
            serve_stream(Box::new(theirs), peer, test_server.router.clone(), Arc::clone(&test_server.limits));
        let talked = async move {
            let mut answer = Vec::new();
            let _ = ours.write_all(request).await;
            if let Some(more) = more {
                let has_head = |answer: &[u8]| answer.windows(4).any(|four| four == b"\r\n\r\n");
                while !has_head(&answer) && ours.read_buf(&mut answer).await.is_ok_and(|length| length > 0) {}
                let _ = ours.write_all(more).await;
            }
            let _ = ours.shutdown().await;
            let _ = ours.read_to_end(&mut answer).await;
            answer
        };
        let both = async { tokio::join!(served, talked).1 };
        tokio::time::timeout(PATIENCE, both)
            .await
            .expect("the server keeps a connection whose client is gone")
    })
}

/// One connection that sends `data`: the first byte chooses who sends it.
pub(super) fn http(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    let peer = match first % 4 {
        0 => Peer::Unknown,
        1 => Peer::OtherUser,
        2 => Peer::Agent,
        _ => Peer::Owner,
    };
    let answer = exchange(peer, rest, None);
    let is_http1 = answer.is_empty() || answer.starts_with(b"HTTP/1.");
    // A client that opens with the preface of HTTP/2 gets frames; the first one holds the settings.
    let is_http2 = rest.starts_with(b"PRI * HTTP/2.0") && answer.get(3) == Some(&4);
    assert!(is_http1 || is_http2, "{:?}", String::from_utf8_lossy(&answer));
    if peer != Peer::Owner && is_http1 {
        let text = String::from_utf8_lossy(&answer);
        let open = ["/healthz", "/api/health"]
            .iter()
            .any(|path| rest.windows(path.len()).any(|found| found == path.as_bytes()));
        assert!(open || !text.contains("HTTP/1.1 2"), "a stranger got in: {text}");
    }
}

/// One WebSocket that sends `data`: as it stands, or cut into frames as a client would send them.
pub(super) fn websocket(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    let path = if first & 1 == 0 { "/ws/fuzz".to_owned() } else { format!("/ws/agent/{}", shared().agent) };
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    );
    let mut bytes = Vec::new();
    if first & 2 == 0 {
        bytes.extend_from_slice(rest);
    } else {
        for piece in rest.split(|byte| *byte == 0xff) {
            let Some((opcode, payload)) = piece.split_first() else { continue };
            frame(*opcode, payload, &mut bytes);
        }
    }
    let answer = exchange(Peer::Owner, request.as_bytes(), Some(&bytes));
    assert!(answer.starts_with(b"HTTP/1.1 101"), "{:?}", String::from_utf8_lossy(&answer));
}

/// A masked frame; the mask is zero, so that what is sent can be read.
fn frame(opcode: u8, payload: &[u8], out: &mut Vec<u8>) {
    out.push(opcode);
    match u16::try_from(payload.len()) {
        Ok(short @ 0..126) => out.push(0x80 | short.to_le_bytes()[0]),
        Ok(long) => {
            out.push(0xfe);
            out.extend(long.to_be_bytes());
        }
        Err(_) => {
            out.push(0xff);
            out.extend((payload.len() as u64).to_be_bytes());
        }
    }
    out.extend([0; 4]);
    out.extend_from_slice(payload);
}

/// One client on standard input that sends `data`, after `initialize` if the first byte says so.
pub(super) fn mcp(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    let mut bytes = Vec::new();
    if first & 1 == 1 {
        bytes.extend_from_slice(
            b"{\"jsonrpc\":\"2.0\",\"id\":0,\"method\":\"initialize\",\"params\":{\"protocolVersion\":\"2025-11-25\",\"capabilities\":{},\
              \"clientInfo\":{\"name\":\"fuzz\",\"version\":\"1\"}}}\n{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n",
        );
    }
    bytes.extend_from_slice(rest);
    let test_server = shared();
    let answer = test_server.runtime.block_on(async {
        let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
        let (mut read, mut write) = tokio::io::split(ours);
        let (their_read, their_write) = tokio::io::split(theirs);
        let server = McpServer::new(
            Arc::clone(&test_server.catalog),
            Arc::clone(&test_server.services),
            Arc::new(Selection::default()),
        );
        let reader: Box<dyn tokio::io::AsyncRead + Send + Unpin> = Box::new(their_read);
        let serving = server.serve_stdio(BufReader::new(reader), Box::new(their_write), &test_server.limits);
        let sent = async move {
            let _ = write.write_all(&bytes).await;
            let _ = write.shutdown().await;
        };
        let mut answer = Vec::new();
        let heard = read.read_to_end(&mut answer);
        let all = async { tokio::join!(serving, sent, heard).2 };
        let _ =
            tokio::time::timeout(PATIENCE, all).await.expect("the server waits for a client that is gone");
        answer
    });
    for line in answer.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let message: serde_json::Value = serde_json::from_slice(line).expect("only JSON on standard output");
        assert_eq!(message["jsonrpc"], "2.0", "{message}");
    }
}
