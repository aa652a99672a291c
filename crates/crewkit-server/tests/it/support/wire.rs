//! A client on the other end of a stdio server.

use std::sync::Arc;
use std::time::Duration;

use crewkit_core::Limits;
use crewkit_server::Services;
use crewkit_server::mcp::McpServer;
use crewkit_server::ops::Selection;
use serde_json::Value;
use tokio::io::{
    AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf,
};

use super::operations;
use super::{initialize, notification};

/// Long enough that only a hang reaches it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Wire {
    write: WriteHalf<DuplexStream>,
    lines: Lines<BufReader<ReadHalf<DuplexStream>>>,
}

impl Wire {
    /// A connection to a fresh server.
    pub(crate) fn open(limits: Limits) -> Self {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let (their_read, their_write) = tokio::io::split(theirs);
        let server = McpServer::new(
            operations::catalog(),
            Arc::new(Services::default()),
            Arc::new(Selection::default()),
        );
        tokio::spawn(async move {
            crewkit_server::mcp::stdio::serve(server, BufReader::new(their_read), their_write, &limits).await;
        });
        let (read, write) = tokio::io::split(ours);
        Self { write, lines: BufReader::new(read).lines() }
    }

    /// A connection that has agreed on a revision.
    pub(crate) async fn initialized(version: &str) -> Self {
        let mut wire = Self::open(Limits::default());
        wire.handshake(version).await;
        wire
    }

    pub(crate) async fn handshake(&mut self, version: &str) {
        let answer = self.ask(&initialize(0, version)).await;
        assert_eq!(answer["id"], 0, "{answer}");
        self.send(&notification("notifications/initialized")).await;
    }

    pub(crate) async fn send(&mut self, message: &Value) {
        self.send_raw(message.to_string().as_bytes()).await;
    }

    pub(crate) async fn send_raw(&mut self, line: &[u8]) {
        self.write.write_all(line).await.unwrap();
        self.write.write_all(b"\n").await.unwrap();
    }

    pub(crate) async fn receive(&mut self) -> Value {
        let line = tokio::time::timeout(PATIENCE, self.lines.next_line()).await.expect("no answer").unwrap();
        serde_json::from_str(&line.expect("the server ended")).unwrap()
    }

    pub(crate) async fn ask(&mut self, message: &Value) -> Value {
        self.send(message).await;
        self.receive().await
    }

    /// Ends the input; returns what the server still says until it ends.
    pub(crate) async fn finish(mut self) -> Vec<Value> {
        self.write.shutdown().await.unwrap();
        let mut rest = Vec::new();
        while let Some(line) =
            tokio::time::timeout(PATIENCE, self.lines.next_line()).await.expect("no end").unwrap()
        {
            rest.push(serde_json::from_str(&line).unwrap());
        }
        rest
    }
}
