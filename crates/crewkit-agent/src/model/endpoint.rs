//! A model behind an HTTP endpoint: queueing, retries and what was learned about the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use crewkit_core::secret::masked_url;
use crewkit_core::{Limits, Secret};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::Semaphore;

use super::failure::Failure;
use super::http::Http;
use super::retry::Policy;
use super::{Ask, AskError, Model, Reply, anthropic, openai};

/// The wire format an endpoint speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dialect {
    /// OpenAI chat completions, as most servers speak it.
    #[default]
    OpenAi,
    /// Anthropic Messages.
    Anthropic,
}

/// Whether replies are streamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Streaming {
    /// Asked for; a server that refuses is asked without, from then on.
    #[default]
    Auto,
    /// Never asked for.
    Off,
}

/// Where a model is and how to ask it.
#[derive(Clone)]
pub struct Endpoint {
    /// Name in configuration.
    pub name: String,
    /// Complete URL, the path included.
    pub url: String,
    /// The model's name at the server.
    pub model: String,
    /// Sent as bearer token or `x-api-key`.
    pub api_key: Option<Secret>,
    /// Wire format.
    pub dialect: Dialect,
    /// Streaming.
    pub streaming: Streaming,
    /// Tokens that fit into one request, if known.
    pub window: Option<u64>,
    /// Longest reply asked for, in tokens; the dialect's default when absent.
    pub max_output_tokens: Option<u64>,
    /// Requests in flight; the general limit when absent.
    pub concurrency: Option<u64>,
    /// An HTTP proxy to go through.
    pub proxy: Option<String>,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Addresses of a model and of a proxy may hold a key.
        f.debug_struct("Endpoint")
            .field("name", &self.name)
            .field("url", &masked_url(&self.url))
            .field("model", &self.model)
            .finish_non_exhaustive()
    }
}

impl Endpoint {
    /// An endpoint with nothing but name, address and model.
    pub fn new(name: impl Into<String>, url: impl Into<String>, model: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            url: url.into(),
            model: model.into(),
            api_key: None,
            dialect: Dialect::default(),
            streaming: Streaming::default(),
            window: None,
            max_output_tokens: None,
            concurrency: None,
            proxy: None,
        }
    }
}

/// What was learned about a server, so that no request has to learn it again.
#[derive(Debug, Default)]
pub(super) struct Learned {
    no_tools: AtomicBool,
    no_stream: AtomicBool,
}

/// A model at an endpoint.
#[derive(Debug)]
pub struct EndpointModel {
    endpoint: Endpoint,
    http: Http,
    policy: Policy,
    permits: Semaphore,
    queued: AtomicUsize,
    request_time: Duration,
    limits: Arc<Limits>,
    learned: Learned,
}

impl EndpointModel {
    /// Prepares a client; nothing is sent.
    pub fn new(endpoint: Endpoint, limits: Arc<Limits>) -> Result<Self, String> {
        let permits = endpoint.concurrency.unwrap_or(limits.llm_concurrency);
        let permits = usize::try_from(permits).unwrap_or(usize::MAX).clamp(1, Semaphore::MAX_PERMITS);
        Ok(Self {
            http: Http::new(&endpoint, &limits)?,
            policy: Policy::of(&limits),
            permits: Semaphore::new(permits),
            queued: AtomicUsize::new(0),
            request_time: Duration::from_secs(limits.llm_request_seconds),
            learned: Learned::default(),
            limits,
            endpoint,
        })
    }

    /// Where it is and how it is asked.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Requests that wait for their turn.
    pub fn queued(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    fn streams(&self) -> bool {
        self.endpoint.streaming == Streaming::Auto && !self.learned.no_stream.load(Ordering::Relaxed)
    }

    /// One request, one reply.
    async fn attempt(&self, ask: &Ask<'_>) -> Result<Reply, Failure> {
        let stream = self.streams();
        let exchange = match self.endpoint.dialect {
            Dialect::OpenAi => {
                openai::exchange(&self.http, &self.endpoint, &self.limits, ask, stream).boxed()
            }
            Dialect::Anthropic => {
                anthropic::exchange(&self.http, &self.endpoint, &self.limits, ask, stream).boxed()
            }
        };
        match tokio::time::timeout(self.request_time, exchange).await {
            Ok(result) => result,
            Err(_) => Err(Failure::Fatal(format!("no reply within {} seconds", self.request_time.as_secs()))),
        }
    }

    async fn ask_until_answered(&self, ask: &Ask<'_>) -> Result<Reply, AskError> {
        let mut failed = 0;
        loop {
            let outcome = {
                let _permit = self.permit(ask).await?;
                if ask.halt.is_cancelled() {
                    return Err(AskError::Halted);
                }
                self.attempt(ask).await
            };
            let (what, retry_after) = match outcome {
                Ok(reply) => return Ok(reply),
                Err(Failure::Overflow(what)) => return Err(AskError::Overflow(what)),
                Err(Failure::ToolsRefused) => {
                    self.learned.no_tools.store(true, Ordering::Relaxed);
                    return Err(AskError::ToolsRefused);
                }
                Err(Failure::StreamRefused) => {
                    self.learned.no_stream.store(true, Ordering::Relaxed);
                    continue;
                }
                Err(Failure::Fatal(what)) => return Err(AskError::Failed(self.blame(&what))),
                Err(Failure::Transient { what, retry_after }) => (what, retry_after),
            };
            failed += 1;
            let Some(pause) = self.policy.pause(failed, retry_after, dice()) else {
                return Err(AskError::Failed(format!("{} ({failed} attempts)", self.blame(&what))));
            };
            tracing::debug!(endpoint = %self.endpoint.name, %what, ?pause, "asking the model again");
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = ask.halt.cancelled() => return Err(AskError::Halted),
            }
        }
    }

    async fn permit(&self, ask: &Ask<'_>) -> Result<tokio::sync::SemaphorePermit<'_>, AskError> {
        if let Ok(permit) = self.permits.try_acquire() {
            return Ok(permit);
        }
        let waiting = Waiting::new(&self.queued);
        let permit = tokio::select! {
            permit = self.permits.acquire() => permit.map_err(|_| AskError::Halted),
            () = ask.halt.cancelled() => Err(AskError::Halted),
        };
        drop(waiting);
        permit
    }

    /// Says who failed; a key that a server echoes never gets out.
    fn blame(&self, what: &str) -> String {
        let text = format!("model {} at {}: {what}", self.endpoint.model, self.http.place());
        match &self.endpoint.api_key {
            Some(key) if !key.is_empty() => text.replace(key.expose(), crewkit_core::secret::MASK),
            _ => text,
        }
    }
}

impl Model for EndpointModel {
    fn name(&self) -> &str {
        self.endpoint.model.as_str()
    }

    fn takes_tools(&self) -> bool {
        !self.learned.no_tools.load(Ordering::Relaxed)
    }

    fn window(&self) -> Option<u64> {
        self.endpoint.window
    }

    fn ask<'a>(&'a self, ask: Ask<'a>) -> BoxFuture<'a, Result<Reply, AskError>> {
        async move { self.ask_until_answered(&ask).await }.boxed()
    }
}

/// Counts a waiting request for as long as it waits.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A number between 0 and 1, fit for spreading retries.
fn dice() -> f64 {
    let random = getrandom::u32().unwrap_or(u32::MAX / 2);
    f64::from(random) / f64::from(u32::MAX)
}

/// The moment a `Retry-After` date is compared with.
pub(super) fn wall_clock() -> SystemTime {
    SystemTime::now()
}
