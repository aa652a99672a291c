//! A model behind an HTTP endpoint: queueing, retries and what the server refuses.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crewkit_core::secret::masked_url;
use crewkit_core::{Limits, Secret};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::Semaphore;

use super::failure::{Failure, Refusal};
use super::http::Http;
use super::retry::Policy;
use super::{Ask, AskError, Model, Reply, anthropic, openai};
use crate::sync::lock;

/// The wire format of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dialect {
    /// OpenAI chat completions, which most servers offer.
    #[default]
    OpenAi,
    /// Anthropic Messages.
    Anthropic,
}

/// Whether replies are streamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Streaming {
    /// Requested; if the server refuses, replies are requested whole for a while.
    #[default]
    Auto,
    /// Not requested.
    Off,
}

/// The address of a model and how to use it.
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Endpoint {
    /// Name in configuration.
    pub name: String,
    /// Complete URL, the path included.
    pub url: String,
    /// The model's name at the server.
    pub model: String,
    /// Sent as bearer token or `x-api-key`.
    #[serde(with = "crate::settings::text::optional_secret")]
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
        // The addresses of models and proxies may contain a key.
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

/// When a server last refused something. The refusal is forgotten after a while: servers are restarted with other options.
#[derive(Debug, Default)]
struct LastRefusal(Mutex<Option<Instant>>);

impl LastRefusal {
    fn remember(&self, now: Instant) {
        *lock(&self.0) = Some(now);
    }

    fn is_within(&self, memory: Duration, now: Instant) -> bool {
        lock(&self.0).is_some_and(|at| now.saturating_duration_since(at) < memory)
    }
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
    tools_refused: LastRefusal,
    stream_refused: LastRefusal,
}

impl EndpointModel {
    /// Creates a client; nothing is sent.
    pub fn new(endpoint: Endpoint, limits: Arc<Limits>) -> Result<Self, String> {
        let permits = endpoint.concurrency.unwrap_or(limits.llm_concurrency);
        let permits = usize::try_from(permits).unwrap_or(usize::MAX).clamp(1, Semaphore::MAX_PERMITS);
        Ok(Self {
            http: Http::new(&endpoint, &limits)?,
            policy: Policy::of(&limits),
            permits: Semaphore::new(permits),
            queued: AtomicUsize::new(0),
            request_time: Duration::from_secs(limits.llm_request_seconds),
            tools_refused: LastRefusal::default(),
            stream_refused: LastRefusal::default(),
            limits,
            endpoint,
        })
    }

    /// Returns the address of the model and how to use it.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Returns the number of requests that wait for a permit.
    pub fn queued(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    /// How long a refusal of the server is remembered.
    fn refusal_memory(&self) -> Duration {
        Duration::from_secs(self.limits.llm_refusal_memory_seconds)
    }

    /// Sends one request and reads its reply.
    async fn attempt(&self, ask: &Ask<'_>, stream: bool) -> Result<Reply, Failure> {
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
        let mut stream = self.endpoint.streaming == Streaming::Auto
            && !self.stream_refused.is_within(self.refusal_memory(), Instant::now());
        loop {
            let outcome = {
                let _permit = self.permit(ask).await?;
                if ask.halt.is_cancelled() {
                    return Err(AskError::Halted);
                }
                tokio::select! {
                    outcome = self.attempt(ask, stream) => outcome,
                    () = stop_grace_over(ask) => return Err(AskError::Halted),
                }
            };
            let (what, retry_after) = match outcome {
                Ok(reply) => return Ok(reply),
                Err(Failure::Overflow(what)) => return Err(AskError::Overflow(what)),
                Err(Failure::ToolsRefused(refusal)) => {
                    if refusal == Refusal::Server {
                        self.tools_refused.remember(Instant::now());
                    }
                    return Err(AskError::ToolsRefused);
                }
                Err(Failure::StreamRefused(refusal)) => {
                    if refusal == Refusal::Server {
                        self.stream_refused.remember(Instant::now());
                    }
                    stream = false;
                    continue;
                }
                Err(Failure::Slept) => {
                    tracing::info!(endpoint = %self.endpoint.name, "the machine was asleep; asking the model again");
                    continue;
                }
                Err(Failure::Fatal(what)) => return Err(AskError::Failed(self.blame(&what))),
                Err(Failure::Transient { what, retry_after }) => (what, retry_after),
            };
            failed += 1;
            let Some(pause) = self.policy.pause(failed, retry_after, random_fraction()) else {
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

    /// Adds the model and its address to an error. Removes the key, which servers may repeat.
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
        !self.tools_refused.is_within(self.refusal_memory(), Instant::now())
    }

    fn window(&self) -> Option<u64> {
        self.endpoint.window
    }

    fn ask<'a>(&'a self, ask: Ask<'a>) -> BoxFuture<'a, Result<Reply, AskError>> {
        async move { self.ask_until_answered(&ask).await }.boxed()
    }
}

/// Counts a request while it waits for a permit.
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

/// Returns a random number between 0 and 1.
fn random_fraction() -> f64 {
    let random = getrandom::u32().unwrap_or(u32::MAX / 2);
    f64::from(random) / f64::from(u32::MAX)
}

/// Returns when the run has been over for so long that its request in flight is given up. The contract lets such a request end
/// normally, but a model that does not answer must not hold the run's slot for ever.
async fn stop_grace_over(ask: &Ask<'_>) {
    ask.halt.cancelled().await;
    tokio::time::sleep(ask.stop_grace).await;
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::time::SystemTime;

    use crewkit_testkit::model::{ScriptedModel, Turn};
    use tokio_util::sync::CancellationToken;

    use super::super::Message;
    use super::super::http::WallClock;
    use super::*;

    #[test]
    fn a_refusal_is_forgotten_after_a_while() {
        let (refusal, memory, now) = (LastRefusal::default(), Duration::from_hours(1), Instant::now());
        assert!(!refusal.is_within(memory, now));
        refusal.remember(now);
        assert!(refusal.is_within(memory, now + Duration::from_mins(59)));
        assert!(!refusal.is_within(memory, now + memory));
    }

    /// The first request hangs in a machine that falls asleep; five minutes of silence are not waited for.
    #[tokio::test]
    async fn a_request_is_repeated_after_the_machine_was_asleep() {
        let asleep = Arc::new(AtomicU64::new(0));
        let falls_asleep = Arc::clone(&asleep);
        let server = ScriptedModel::start(move |request| {
            if request.n == 0 {
                falls_asleep.store(3600, Ordering::SeqCst);
                return Turn::say("too late").after(Duration::from_hours(1));
            }
            Turn::say("awake")
        })
        .await;
        let endpoint = Endpoint::new("m", server.url(), "m");
        let limits = Limits { llm_tries: 1, ..Limits::default() };
        let mut model = EndpointModel::new(endpoint, Arc::new(limits)).unwrap();
        model.http.wall_clock = WallClock(Arc::new(move || {
            SystemTime::now() + Duration::from_secs(asleep.load(Ordering::SeqCst))
        }));
        let messages = [Message::User("hello".to_owned())];
        let halt = CancellationToken::new();
        let ask = Ask {
            messages: &messages,
            tools: &[],
            halt: &halt,
            stop_grace: Duration::ZERO,
            on_text: &|_| {},
        };
        assert_eq!(model.ask(ask).await.unwrap().content, "awake");
        assert_eq!(server.requests(), 2);
    }
}
