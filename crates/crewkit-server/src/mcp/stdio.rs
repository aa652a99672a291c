//! The front on stdin and stdout: one JSON-RPC message a line.
//!
//! It is an rmcp transport. What rmcp should not see it answers by itself; a bad line never ends the server.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crewkit_core::Limits;
use rmcp::model::{
    ClientJsonRpcMessage, ClientNotification, ProtocolVersion, RequestId, ServerJsonRpcMessage, ServerResult,
};
use rmcp::transport::Transport;
use rmcp::{RoleServer, ServerHandler};
use serde_json::Value;
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::message::{
    self, INVALID_REQUEST, Message, PARSE_ERROR, Refusal, TRANSPORT_ERROR, id_to_json, written,
};
use crate::json;

/// Serves one client until its input ends.
pub async fn serve<H, R, W>(handler: H, reader: R, writer: W, limits: &Limits)
where
    H: ServerHandler,
    R: AsyncBufRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let transport = Stdio::new(reader, writer, limits);
    match rmcp::serve_server(handler, transport).await {
        Ok(service) => {
            if let Err(error) = service.waiting().await {
                tracing::error!(%error, "the MCP service ended badly");
            }
        }
        // The client left before it said anything of use; that is its right.
        Err(error) => tracing::debug!(%error, "no MCP client"),
    }
}

struct Stdio<R, W> {
    reader: R,
    line: Vec<u8>,
    too_long: bool,
    ready: VecDeque<ClientJsonRpcMessage>,
    connection: Arc<Connection<W>>,
    bounds: Bounds,
}

#[derive(Clone, Copy)]
struct Bounds {
    line_bytes: usize,
    depth: u64,
    batch: usize,
    in_flight: usize,
}

struct Connection<W> {
    writer: tokio::sync::Mutex<W>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// What `initialize` agreed on; a second one is refused.
    version: Option<ProtocolVersion>,
    /// A request of the stateless revision has been let through.
    stateless: bool,
    /// Requests not yet answered, with the batch each came in.
    in_flight: HashMap<RequestId, Option<u64>>,
    batches: HashMap<u64, Batch>,
    batches_seen: u64,
}

/// The answers to one batch; written when the last one is in.
#[derive(Default)]
struct Batch {
    waiting_for: usize,
    answers: Vec<Value>,
}

enum Line {
    Text(Vec<u8>),
    TooLong,
    End,
}

impl<R, W> Stdio<R, W>
where
    R: AsyncBufRead + Send + Unpin,
    W: AsyncWrite + Send + Unpin + 'static,
{
    fn new(reader: R, writer: W, limits: &Limits) -> Self {
        let bounded = |limit: u64| usize::try_from(limit).unwrap_or(usize::MAX);
        Self {
            reader,
            line: Vec::new(),
            too_long: false,
            ready: VecDeque::new(),
            connection: Arc::new(Connection {
                writer: tokio::sync::Mutex::new(writer),
                state: Mutex::default(),
            }),
            bounds: Bounds {
                line_bytes: bounded(limits.mcp_line_bytes),
                depth: limits.json_depth,
                batch: bounded(limits.mcp_batch_messages),
                in_flight: bounded(limits.mcp_calls_in_flight),
            },
        }
    }

    /// The next line. Keeps what it has read in `self`, since the caller may drop this future at any await.
    async fn next_line(&mut self) -> Line {
        loop {
            let chunk = match self.reader.fill_buf().await {
                Ok([]) if self.line.is_empty() && !self.too_long => return Line::End,
                // The last line may lack its newline.
                Ok([]) => return self.take_line(),
                Ok(chunk) => chunk,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    tracing::warn!(%error, "standard input failed");
                    return Line::End;
                }
            };
            let newline = chunk.iter().position(|&byte| byte == b'\n');
            let text = newline.map_or(chunk, |at| &chunk[..at]);
            // An over-long line is dropped up to its end, so that its tail cannot pass for a message.
            if self.too_long || self.line.len() + text.len() > self.bounds.line_bytes {
                self.too_long = true;
                self.line = Vec::new();
            } else {
                self.line.extend_from_slice(text);
            }
            let used = newline.map_or(chunk.len(), |at| at + 1);
            self.reader.consume(used);
            if newline.is_some() {
                return self.take_line();
            }
        }
    }

    fn take_line(&mut self) -> Line {
        if std::mem::take(&mut self.too_long) {
            Line::TooLong
        } else {
            Line::Text(std::mem::take(&mut self.line))
        }
    }

    /// Takes in one line; what is to be passed on lands in `ready`, what is to be answered is returned.
    fn take_in(&mut self, line: &[u8]) -> Option<Vec<u8>> {
        if line.iter().all(u8::is_ascii_whitespace) {
            return None;
        }
        match json::parse(line, self.bounds.depth) {
            Err(error) => {
                Some(Refusal::anonymous(PARSE_ERROR, format!("this line is not JSON: {error}")).to_line())
            }
            Ok(Value::Array(items)) => self.take_in_batch(items).map(|answers| to_line(&answers)),
            Ok(value) => match self.admit(value, None) {
                Ok(message) => {
                    self.ready.extend(message.map(|message| message.inner));
                    None
                }
                Err(refusal) => Some(refusal.to_line()),
            },
        }
    }

    fn take_in_batch(&mut self, items: Vec<Value>) -> Option<Value> {
        let refuse = |message: String| Some(Refusal::anonymous(INVALID_REQUEST, message).to_json());
        if self.connection.state().version != Some(ProtocolVersion::V_2025_03_26) {
            return refuse("batches belong to revision 2025-03-26 only".to_owned());
        }
        if items.is_empty() {
            return refuse("a batch must not be empty".to_owned());
        }
        if items.len() > self.bounds.batch {
            return refuse(format!("a batch may hold at most {} messages", self.bounds.batch));
        }
        let number = {
            let mut state = self.connection.state();
            state.batches_seen += 1;
            let number = state.batches_seen;
            // Held open by one until every item is in: an answer may come before the last item is read.
            state.batches.insert(number, Batch { waiting_for: 1, answers: Vec::new() });
            number
        };
        for item in items {
            match self.admit(item, Some(number)) {
                Ok(message) => self.ready.extend(message.map(|message| message.inner)),
                Err(refusal) => {
                    self.connection
                        .state()
                        .batches
                        .entry(number)
                        .or_default()
                        .answers
                        .push(refusal.to_json());
                }
            }
        }
        self.connection.state().close_one(number)
    }

    /// Decides whether a message goes on to rmcp. `Ok(None)` drops it.
    fn admit(&self, value: Value, batch: Option<u64>) -> Result<Option<Message>, Refusal> {
        let Some(message) = message::read(value)? else { return Ok(None) };
        let mut state = self.connection.state();
        match &message.inner {
            ClientJsonRpcMessage::Request(_) => self.admit_request(&mut state, &message, batch)?,
            // Before a client has opened the conversation rmcp would take these as a reason to leave.
            _ if !state.opened() => return Ok(None),
            ClientJsonRpcMessage::Notification(notification) => {
                if let ClientNotification::CancelledNotification(cancelled) = &notification.notification
                    && let Some(id) = &cancelled.params.request_id
                {
                    // A cancelled request is never answered.
                    let answer = state.finish(id, None);
                    drop(state);
                    if let Some(answer) = answer {
                        self.connection.write_later(to_line(&answer));
                    }
                }
            }
            _ => {}
        }
        Ok(Some(message))
    }

    fn admit_request(&self, state: &mut State, message: &Message, batch: Option<u64>) -> Result<(), Refusal> {
        let Some(id) = message.request_id() else { return Ok(()) };
        let refuse = |code: i32, text: String| Err(Refusal { id: id_to_json(id), code, message: text });
        if message.is_initialize() && state.version.is_some() {
            return refuse(INVALID_REQUEST, "this connection is initialized already".to_owned());
        }
        if state.in_flight.contains_key(id) {
            return refuse(
                INVALID_REQUEST,
                format!("a request with id {} is still in flight", id_to_json(id)),
            );
        }
        if state.in_flight.len() >= self.bounds.in_flight {
            return refuse(
                TRANSPORT_ERROR,
                format!("{} requests are in flight already", self.bounds.in_flight),
            );
        }
        state.stateless |= message.opens_stateless();
        state.in_flight.insert(id.clone(), batch);
        if let Some(number) = batch {
            state.batches.entry(number).or_default().waiting_for += 1;
        }
        Ok(())
    }
}

fn to_line(json: &Value) -> Vec<u8> {
    json.to_string().into_bytes()
}

impl State {
    fn opened(&self) -> bool {
        self.version.is_some() || self.stateless
    }

    /// Notes that `id` is answered, with `answer` unless it was cancelled. Returns what is to be written now.
    fn finish(&mut self, id: &RequestId, answer: Option<Value>) -> Option<Value> {
        match self.in_flight.remove(id) {
            Some(Some(number)) => {
                self.batches.entry(number).or_default().answers.extend(answer);
                self.close_one(number)
            }
            _ => answer,
        }
    }

    /// Notes that one message of a batch needs no more waiting; returns the batch's answer with the last one.
    fn close_one(&mut self, number: u64) -> Option<Value> {
        let batch = self.batches.get_mut(&number)?;
        batch.waiting_for -= 1;
        if batch.waiting_for > 0 {
            return None;
        }
        let answers = self.batches.remove(&number)?.answers;
        // A batch of notifications is not answered.
        (!answers.is_empty()).then_some(Value::Array(answers))
    }

    fn in_batch(&self, id: &RequestId) -> bool {
        matches!(self.in_flight.get(id), Some(Some(_)))
    }
}

impl<W: AsyncWrite + Send + Unpin + 'static> Connection<W> {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn write(&self, mut line: Vec<u8>) -> io::Result<()> {
        line.push(b'\n');
        let mut writer = self.writer.lock().await;
        writer.write_all(&line).await?;
        writer.flush().await
    }

    /// Writes in a task of its own: `receive` may be dropped half-way, a line must not be.
    fn write_later(self: &Arc<Self>, line: Vec<u8>) -> tokio::task::JoinHandle<()> {
        let connection = Arc::clone(self);
        tokio::spawn(async move {
            if let Err(error) = connection.write(line).await {
                tracing::debug!(%error, "standard output failed");
            }
        })
    }

    /// What to write for a message of rmcp's, if anything yet.
    fn outgoing(&self, item: &ServerJsonRpcMessage) -> Option<Vec<u8>> {
        let mut state = self.state();
        let id = match item {
            ServerJsonRpcMessage::Response(response) => {
                if let ServerResult::InitializeResult(result) = &response.result {
                    state.version = Some(result.protocol_version.clone());
                }
                Some(&response.id)
            }
            ServerJsonRpcMessage::Error(error) => match &error.id {
                // JSON-RPC wants `"id": null` where rmcp leaves it out.
                None => {
                    drop(state);
                    let error = &error.error;
                    let mut json = Refusal::anonymous(error.code.0, error.message.clone()).to_json();
                    if let Some(data) = &error.data {
                        json["error"]["data"] = data.clone();
                    }
                    return Some(to_line(&json));
                }
                Some(id) => Some(id),
            },
            _ => None,
        };
        match id {
            Some(id) if state.in_batch(id) => {
                let answer = written(Some(id), || serde_json::to_value(item), |refusal| refusal.to_json());
                state.finish(id, answer).map(|whole| to_line(&whole))
            }
            id => {
                if let Some(id) = id {
                    state.finish(id, None);
                }
                drop(state);
                written(id, || serde_json::to_vec(item), |refusal| refusal.to_line())
            }
        }
    }
}

impl<R, W> Transport<RoleServer> for Stdio<R, W>
where
    R: AsyncBufRead + Send + Unpin,
    W: AsyncWrite + Send + Unpin + 'static,
{
    type Error = io::Error;

    fn send(&mut self, item: ServerJsonRpcMessage) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let connection = Arc::clone(&self.connection);
        async move {
            match connection.outgoing(&item) {
                Some(line) => connection.write(line).await,
                None => Ok(()),
            }
        }
    }

    async fn receive(&mut self) -> Option<ClientJsonRpcMessage> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Some(message);
            }
            let answer = match self.next_line().await {
                Line::End => return None,
                Line::TooLong => {
                    let text = format!("a line may be at most {} bytes long", self.bounds.line_bytes);
                    Some(Refusal::anonymous(PARSE_ERROR, text).to_line())
                }
                Line::Text(line) => self.take_in(&line),
            };
            if let Some(answer) = answer {
                // Waiting here keeps a flood of bad lines from piling up answers.
                let _ = self.connection.write_later(answer).await;
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        self.connection.writer.lock().await.flush().await
    }
}
