//! A tool server as a child process: one JSON message per line, answers matched by id.

use std::collections::{HashMap, VecDeque};
use std::ffi::OsString;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::sync::{mpsc, oneshot};

use super::Surroundings;
use super::config::{ServerConfig, Transport};
use super::link::{LinkError, cancelled, reply_to, result_of};
use crate::lines::Lines;
use crate::sync::lock;
use crate::sys::{Launch, ProcessTree};

/// Messages queued for the server before callers have to wait.
const OUTBOX: usize = 256;
/// Last lines of standard error kept for error messages.
const STDERR_LINES: usize = 5;
const STDERR_LINE_BYTES: u64 = 2000;

/// A running server process. Dropping it ends the process with everything it started.
#[derive(Debug)]
pub(super) struct StdioLink {
    shared: Arc<Shared>,
    outbox: mpsc::Sender<String>,
    _tree: ProcessTree,
}

#[derive(Debug, Default)]
struct Shared {
    name: String,
    next_id: AtomicU64,
    gone: AtomicBool,
    waiting: Mutex<HashMap<u64, oneshot::Sender<Value>>>,
    stderr_tail: Mutex<VecDeque<String>>,
}

impl Shared {
    fn why_gone(&self) -> LinkError {
        let last_lines: Vec<String> = lock(&self.stderr_tail).iter().cloned().collect();
        let mut text = "the tool server ended".to_owned();
        if !last_lines.is_empty() {
            text.push_str("; standard error ends with: ");
            text.push_str(&last_lines.join(" / "));
        }
        LinkError::Gone(text)
    }
}

impl StdioLink {
    pub(super) fn spawn(
        config: &ServerConfig,
        around: &Surroundings,
        run: Option<&str>,
    ) -> Result<Self, LinkError> {
        let Transport::Stdio { command, args, env, cwd } = &config.transport else {
            return Err(LinkError::Gone("not a server with a command".to_owned()));
        };
        let line: Vec<OsString> = std::iter::once(command).chain(args).map(Into::into).collect();
        let no = |error: std::io::Error| LinkError::Gone(format!("{command}: {error}"));
        let mut launch = Launch::new(&around.helper, None, &line).map_err(no)?;
        let process = &mut launch.command;
        process.env_clear().envs(around.environment.iter().map(|(name, value)| (name, value)));
        process.envs(env.iter().map(|(name, value)| (name, value.expose())));
        if let Some(cwd) = cwd {
            process.current_dir(cwd);
        }
        process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut tree = ProcessTree::spawn(launch, run.unwrap_or("tools")).map_err(no)?;
        let (outbox, outgoing) = mpsc::channel(OUTBOX);
        let shared =
            Arc::new(Shared { name: config.name.clone(), next_id: AtomicU64::new(1), ..Shared::default() });
        let limit = around.limits.tool_server_message_bytes;
        if let Some(child) = tree.child() {
            if let Some(stdin) = child.stdin.take() {
                tokio::spawn(write_messages(stdin, outgoing));
            }
            if let Some(stdout) = child.stdout.take() {
                tokio::spawn(read_messages(stdout, limit, Arc::clone(&shared), outbox.downgrade()));
            }
            if let Some(stderr) = child.stderr.take() {
                tokio::spawn(drain(stderr, Arc::clone(&shared)));
            }
        }
        Ok(Self { shared, outbox, _tree: tree })
    }

    pub(super) async fn request(&self, method: &str, params: Value) -> Result<Value, LinkError> {
        let id = self.shared.next_id.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        lock(&self.shared.waiting).insert(id, answer);
        let mut pending = PendingRequest { link: self, id, is_answered: false };
        // Checked after the insertion, so that the reader cannot end without waking this request.
        if self.shared.gone.load(Ordering::SeqCst) {
            return Err(self.shared.why_gone());
        }
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).await?;
        let answer = answered.await.map_err(|_| self.shared.why_gone());
        pending.is_answered = true;
        result_of(answer?)
    }

    pub(super) async fn notify(&self, method: &str, params: Value) -> Result<(), LinkError> {
        self.send(&json!({"jsonrpc": "2.0", "method": method, "params": params})).await
    }

    async fn send(&self, message: &Value) -> Result<(), LinkError> {
        self.outbox.send(format!("{message}\n")).await.map_err(|_| self.shared.why_gone())
    }

    pub(super) fn is_alive(&self) -> bool {
        !self.shared.gone.load(Ordering::SeqCst)
    }
}

/// Cancels its request at the server if it is dropped before the answer.
struct PendingRequest<'a> {
    link: &'a StdioLink,
    id: u64,
    is_answered: bool,
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            lock(&self.link.shared.waiting).remove(&self.id);
            let message = cancelled(self.id);
            let _ = self.link.outbox.try_send(format!("{message}\n"));
        }
    }
}

async fn write_messages(mut stdin: ChildStdin, mut outgoing: mpsc::Receiver<String>) {
    while let Some(message) = outgoing.recv().await {
        let written = stdin.write_all(message.as_bytes()).await;
        if written.is_err() || stdin.flush().await.is_err() {
            break;
        }
    }
}

async fn read_messages(
    stdout: ChildStdout,
    limit: u64,
    shared: Arc<Shared>,
    outbox: mpsc::WeakSender<String>,
) {
    let mut lines = Lines::new(stdout, limit);
    while let Ok(Some(line)) = lines.next().await {
        if line.cut {
            tracing::warn!(server = %shared.name, "a message of the tool server was too long and is dropped");
            continue;
        }
        // Some servers print logs on standard output; they are skipped.
        let Ok(message) = serde_json::from_str::<Value>(&line.text) else { continue };
        if message["method"].is_string() {
            if let Some(reply) = reply_to(&message)
                && let Some(outbox) = outbox.upgrade()
            {
                let _ = outbox.try_send(format!("{reply}\n"));
            }
            continue;
        }
        let waiting = message["id"].as_u64().and_then(|id| lock(&shared.waiting).remove(&id));
        if let Some(waiting) = waiting {
            let _ = waiting.send(message);
        }
    }
    shared.gone.store(true, Ordering::SeqCst);
    // Dropping the senders wakes the requests that still wait.
    lock(&shared.waiting).clear();
}

async fn drain(stderr: ChildStderr, shared: Arc<Shared>) {
    let mut lines = Lines::new(stderr, STDERR_LINE_BYTES);
    while let Ok(Some(line)) = lines.next().await {
        tracing::debug!(server = %shared.name, line = %line.text, "tool server");
        let mut tail = lock(&shared.stderr_tail);
        if tail.len() == STDERR_LINES {
            tail.pop_front();
        }
        tail.push_back(line.text.chars().take(200).collect());
    }
}
