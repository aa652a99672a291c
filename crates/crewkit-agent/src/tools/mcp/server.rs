//! A tool server that is started when needed, and again with growing pauses after failures.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::{Mutex, watch};

use super::Surroundings;
use super::config::ServerConfig;
use super::link::{Link, LinkError};
use crate::contract::ToolAnswer;

/// A server's state, for people.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
pub struct ServerStatus {
    /// Its name.
    pub name: String,
    /// `active`, `broken`, `starting`, or `per_agent` for one that is started with each run.
    pub status: &'static str,
    /// How many tools it offers.
    pub tools: usize,
    /// Why it is broken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[derive(Debug)]
pub(super) struct ToolServer {
    config: ServerConfig,
    around: Arc<Surroundings>,
    run: Option<String>,
    link: Mutex<Slot>,
    seen: watch::Sender<Seen>,
}

#[derive(Debug, Default)]
struct Slot {
    link: Option<Arc<Link>>,
    failures: u32,
    not_before: Option<Instant>,
}

/// The state that can be read without waiting for the server.
#[derive(Debug, Default, Clone)]
struct Seen {
    tools: Arc<Vec<Value>>,
    error: Option<String>,
    settled: bool,
}

impl ToolServer {
    pub(super) fn new(config: ServerConfig, around: &Arc<Surroundings>) -> Self {
        Self {
            config,
            around: Arc::clone(around),
            run: None,
            link: Mutex::default(),
            seen: watch::Sender::default(),
        }
    }

    pub(super) fn for_run(config: ServerConfig, around: &Arc<Surroundings>, run: &str) -> Self {
        Self { run: Some(run.to_owned()), ..Self::new(config, around) }
    }

    pub(super) fn config(&self) -> &ServerConfig {
        &self.config
    }

    pub(super) fn tools(&self) -> Vec<Value> {
        self.seen.borrow().tools.to_vec()
    }

    /// Copies the tool list of a process that one run started.
    pub(super) fn remember_tools(&self, other: &Self) {
        let seen = other.seen.borrow().clone();
        self.seen.send_replace(seen);
    }

    pub(super) fn status(&self) -> ServerStatus {
        let seen = self.seen.borrow().clone();
        let status = match (&seen.error, seen.settled) {
            (Some(_), _) => "broken",
            (None, _) if self.config.per_agent && self.run.is_none() => "per_agent",
            (None, true) => "active",
            (None, false) => "starting",
        };
        ServerStatus { name: self.config.name.clone(), status, tools: seen.tools.len(), error: seen.error }
    }

    /// Returns whether the last start failed.
    pub(super) fn is_broken(&self) -> bool {
        self.seen.borrow().error.is_some()
    }

    /// Waits until the server was started for the first time, with success or not.
    pub(super) async fn settled(&self) {
        let _ = self.seen.subscribe().wait_for(|seen| seen.settled).await;
    }

    /// Starts the server in the background unless it is running or being started.
    pub(super) fn start(self: &Arc<Self>) {
        let is_needed = self.link.try_lock().is_ok_and(|slot| !slot.is_alive());
        if is_needed {
            let server = Arc::clone(self);
            tokio::spawn(async move { server.settle().await });
        }
    }

    /// Starts the server if it is down, and waits for the outcome.
    pub(super) async fn settle(&self) {
        if let Err(error) = self.link().await {
            tracing::warn!(server = %self.config.name, %error, "a tool server is not available");
        }
    }

    /// Returns the connection. Starts the server if it is down and its pause is over.
    async fn link(&self) -> Result<Arc<Link>, LinkError> {
        let mut slot = self.link.lock().await;
        if slot.is_alive()
            && let Some(link) = &slot.link
        {
            return Ok(Arc::clone(link));
        }
        if slot.link.take().is_some() {
            slot.failed(&self.around);
        }
        if let Some(wait) = slot.not_before.and_then(|at| at.checked_duration_since(Instant::now())) {
            let seconds = wait.as_secs() + 1;
            return Err(LinkError::Gone(format!(
                "the tool server is down and is started again in {seconds} s"
            )));
        }
        match Link::open(&self.config, &self.around, self.run.as_deref()).await {
            Ok((link, tools)) => {
                let link = Arc::new(link);
                slot.link = Some(Arc::clone(&link));
                self.seen.send_replace(Seen { tools: Arc::new(tools), error: None, settled: true });
                Ok(link)
            }
            Err(error) => {
                slot.failed(&self.around);
                self.seen.send_modify(|seen| {
                    seen.error = Some(error.to_string());
                    seen.settled = true;
                });
                Err(error)
            }
        }
    }

    /// Drops a broken HTTP link, so that the next call connects again. A dead process is noticed by itself.
    async fn drop_link(&self, link: &Arc<Link>) {
        let mut slot = self.link.lock().await;
        if matches!(**link, Link::Http(_)) && slot.link.as_ref().is_some_and(|held| Arc::ptr_eq(held, link)) {
            slot.link = None;
            slot.failed(&self.around);
        }
    }

    pub(super) async fn call(&self, tool: &str, arguments: Value, time: Duration) -> ToolAnswer {
        let params = json!({"name": tool, "arguments": arguments});
        let mut link = match self.link().await {
            Ok(link) => link,
            Err(error) => return ToolAnswer::error(error.to_string()),
        };
        let mut answer = link.request("tools/call", params.clone(), time).await;
        if matches!(answer, Err(LinkError::NotReached(_))) {
            // The server was restarted, say: what never reached it can be sent once more.
            self.drop_link(&link).await;
            link = match self.link().await {
                Ok(link) => link,
                Err(error) => return ToolAnswer::error(format!("{error}. The call was not made.")),
            };
            answer = link.request("tools/call", params, time).await;
        }
        match answer {
            Ok(result) => {
                self.link.lock().await.failures = 0;
                answer_of(&result)
            }
            Err(LinkError::Gone(why)) => {
                self.drop_link(&link).await;
                ToolAnswer::error(format!("{why}. It is not known whether the call had its effect."))
            }
            Err(LinkError::NotReached(why)) => {
                self.drop_link(&link).await;
                ToolAnswer::error(format!("{why}. The call was not made."))
            }
            Err(LinkError::TimedOut(seconds)) => ToolAnswer::error(format!(
                "the tool did not answer within {seconds} seconds. It is not known whether the call had its effect."
            )),
            Err(LinkError::Refused(message)) => ToolAnswer::error(message),
        }
    }
}

impl Slot {
    fn is_alive(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.is_alive())
    }

    /// Counts a failure and sets the pause before the next start. The first restart is immediate.
    fn failed(&mut self, around: &Surroundings) {
        let pause = match self.failures {
            0 => Duration::ZERO,
            n => Duration::from_secs(1 << (n - 1).min(16)),
        };
        let longest = Duration::from_secs(around.limits.tool_server_restart_max_seconds);
        self.not_before = Some(Instant::now() + pause.min(longest));
        self.failures = self.failures.saturating_add(1);
    }
}

/// Returns the text of a tool result; other content is named.
fn answer_of(result: &Value) -> ToolAnswer {
    let mut parts: Vec<String> = Vec::new();
    for block in result["content"].as_array().into_iter().flatten() {
        match (block["text"].as_str(), block["resource"]["text"].as_str()) {
            (Some(text), _) | (None, Some(text)) => parts.push(text.to_owned()),
            (None, None) => {
                let kind = block["type"].as_str().unwrap_or("unknown");
                let mime = block["mimeType"].as_str().unwrap_or_default();
                parts.push(format!("[{kind} {mime}]"));
            }
        }
    }
    if parts.is_empty() && !result["structuredContent"].is_null() {
        parts.push(result["structuredContent"].to_string());
    }
    ToolAnswer { content: parts.join("\n"), is_error: result["isError"].as_bool().unwrap_or(false) }
}
