//! A client that loses its connection in the middle of a call gets the answer over a new one.
//!
//! The conformance suite only asks whether a stream could be resumed; here it is.

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::call;
use crate::support::operations::{GATE, SIGNALS, WAITING};
use crate::support::server::{Options, Server};
use crate::support::wire::PATIENCE;

/// Sends a request and reads until `mark` has come.
async fn read_until(server: &Server, request: &str, mark: &str) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let text = read_more(&mut stream, mark).await;
    (stream, text)
}

async fn read_more(stream: &mut TcpStream, mark: &str) -> String {
    let mut text = String::new();
    let mut piece = [0; 4096];
    while !text.contains(mark) {
        let reading = tokio::time::timeout(PATIENCE, stream.read(&mut piece)).await;
        let length = reading.unwrap_or_else(|_| panic!("no {mark:?} in {text}")).unwrap();
        assert!(length > 0, "the connection ended before {mark:?}: {text}");
        text.push_str(std::str::from_utf8(&piece[..length]).unwrap());
    }
    text
}

#[tokio::test]
async fn a_call_goes_on_for_a_client_that_lost_its_connection() {
    let _turn = SIGNALS.lock().await;
    let server = Server::start(Options::default()).await;
    let session = server.session("/mcp", "2025-11-25").await;
    let head = format!("Host: {}\r\nMcp-Session-Id: {session}\r\n", server.address);
    let body = call(7, "gated", &json!({"text": "kept"})).to_string();
    let post = format!(
        "POST /mcp HTTP/1.1\r\n{head}Content-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let (connection, begun) = read_until(&server, &post, "retry: ").await;
    WAITING.notified().await;
    let event = begun.lines().find_map(|line| line.strip_prefix("id: ")).unwrap();
    drop(connection);
    let get =
        format!("GET /mcp HTTP/1.1\r\n{head}Accept: text/event-stream\r\nLast-Event-ID: {event}\r\n\r\n");
    let (mut connection, _) = read_until(&server, &get, "text/event-stream").await;
    GATE.notify_one();
    let resumed = read_more(&mut connection, "\"kept\"").await;
    assert!(resumed.contains("\"id\":7"), "{resumed}");
}
