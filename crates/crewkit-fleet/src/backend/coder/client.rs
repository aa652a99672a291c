//! Speaks HTTP with Coder: connections that are used again, the token on every request, no redirects, and bounds on
//! everything.
//!
//! Reads are tried again within a deadline. Writes are sent once: a lost answer is for the caller to clear up.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crewkit_core::{Limits, Secret};
use futures_util::StreamExt;
use reqwest::header::{self, HeaderMap, HeaderValue};
use reqwest::{Certificate, ClientBuilder, Method, RequestBuilder, Response, StatusCode, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::capability::Version;
use super::circuit::Circuit;
use super::error::{CoderError, Refused};
use super::stream::{SplitError, Splitter};
use super::wire::{Refusal, Validation, Workspace, WorkspacePage};

const TOKEN_HEADER: &str = "coder-session-token";
const VERSION_HEADER: &str = "x-coder-build-version";
const REQUEST_ID_HEADER: &str = "x-coder-request-id";
const RATE_RESET_HEADER: &str = "x-ratelimit-reset";

/// Attempts for one read.
const ATTEMPTS: u32 = 3;
/// Time to connect.
const CONNECT: Duration = Duration::from_secs(3);
/// How long a connection is kept open for reuse. On HTTP/1 a list with metadata needs one for each agent, and most of
/// its work is opening them; who lists again soon finds them open.
const IDLE: Duration = Duration::from_secs(20);
/// Bytes of a list that are taken apart at once.
const HANDFUL: usize = 128 * 1024;
/// Workspaces of a page that are passed on together.
const SOME: usize = 16;
/// Longest wait a rate limit is honoured with.
const LONGEST_RATE_WAIT: u64 = 60;

/// Why the settings for Coder cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// The address is not one.
    #[error("the Coder address is not an http or https URL without user name or password")]
    Url,
    /// The token has characters that no token has.
    #[error("the Coder session token is empty or holds characters a token cannot hold")]
    Token,
    /// The certificates to trust are none.
    #[error("the certificates to trust for Coder are not PEM, or none are in the file")]
    Certificates,
    /// TLS or the resolver could not be set up.
    #[error("the HTTP client cannot be set up: {0}")]
    Client(String),
}

pub(super) struct Client {
    http: reqwest::Client,
    /// For connections that turn into a WebSocket, which HTTP/2 does not do; made when the first one is needed.
    http1: OnceLock<reqwest::Client>,
    connector: Connector,
    token: Secret,
    base: Url,
    limits: Limits,
    circuit: Mutex<Circuit>,
    version: Mutex<Option<Version>>,
    /// Seconds since 1970, for rate limits that name a point in time.
    clock: crate::time::Clock,
}

/// What an app in a workspace answered through Coder's proxy.
#[derive(Debug)]
pub(super) struct AppAnswer {
    pub(super) status: StatusCode,
    pub(super) is_json: bool,
    pub(super) body: Vec<u8>,
}

/// What clients are made of.
struct Connector {
    headers: HeaderMap,
    trust: Trust,
    idle_connections: usize,
}

/// Which certificates are believed.
enum Trust {
    /// None is needed: the address is not one of TLS, and to read those of the system takes time.
    Nobody,
    /// Those of the system, and these.
    System(Vec<Certificate>),
}

impl Connector {
    fn builder(&self) -> ClientBuilder {
        let builder = crewkit_agent::http_client()
            .default_headers(self.headers.clone())
            .user_agent(concat!("crewkit/", env!("CARGO_PKG_VERSION")))
            .referer(false)
            .connect_timeout(CONNECT)
            // Every request has a deadline, and no connection lives long without one.
            .tcp_keepalive(None)
            .tcp_keepalive_interval(None)
            .tcp_keepalive_retries(None)
            .tcp_user_timeout(None)
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(self.idle_connections);
        match &self.trust {
            Trust::Nobody => builder.tls_certs_only([]),
            Trust::System(more) if more.is_empty() => builder,
            Trust::System(more) => builder.tls_certs_merge(more.iter().cloned()),
        }
    }
}

fn build(builder: ClientBuilder) -> Result<reqwest::Client, SettingsError> {
    builder.build().map_err(|error| SettingsError::Client(error.without_url().to_string()))
}

impl Client {
    pub(super) fn new(
        url: &str,
        token: &Secret,
        ca: Option<&[u8]>,
        limits: Limits,
        clock: crate::time::Clock,
    ) -> Result<Self, SettingsError> {
        let mut base = Url::parse(url.trim()).map_err(|_| SettingsError::Url)?;
        let is_plain = matches!(base.scheme(), "http" | "https")
            && base.has_host()
            && base.username().is_empty()
            && base.password().is_none();
        if !is_plain {
            return Err(SettingsError::Url);
        }
        base.set_query(None);
        base.set_fragment(None);
        let path = base.path().trim_end_matches('/').to_owned();
        base.set_path(&path);

        let secret = token.clone();
        let mut token = HeaderValue::from_str(token.expose().trim()).map_err(|_| SettingsError::Token)?;
        if token.is_empty() {
            return Err(SettingsError::Token);
        }
        token.set_sensitive(true);
        let mut headers = HeaderMap::new();
        headers.insert(TOKEN_HEADER, token);
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        let more = match ca.map(Certificate::from_pem_bundle) {
            None => Vec::new(),
            Some(Ok(certificates)) if !certificates.is_empty() => certificates,
            Some(_) => return Err(SettingsError::Certificates),
        };
        let trust = if base.scheme() == "https" { Trust::System(more) } else { Trust::Nobody };
        let idle_connections = usize::try_from(limits.fleet_coder_idle_connections).unwrap_or(usize::MAX);
        let connector = Connector { headers, trust, idle_connections };
        Ok(Self {
            http: build(connector.builder())?,
            http1: OnceLock::new(),
            connector,
            token: secret,
            base,
            limits,
            circuit: Mutex::default(),
            version: Mutex::default(),
            clock,
        })
    }

    /// The address of Coder, without a slash at its end.
    pub(super) fn base(&self) -> &Url {
        &self.base
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The version Coder named in its latest answer.
    pub(super) fn version(&self) -> Option<Version> {
        *lock(&self.version)
    }

    /// Reads one thing.
    pub(super) async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, &str)],
    ) -> Result<T, CoderError> {
        let url = self.url(path, query);
        self.persistently(async |until| decode(&self.whole(url.clone(), until).await?)).await
    }

    /// Reads a page of workspaces while it arrives and says how many there are on all pages. What `keep` makes of each
    /// goes to `found`, some at a time; should the page have to be read again, they go there again.
    pub(super) async fn workspaces<T: Send + 'static>(
        &self,
        query: &[(&str, &str)],
        keep: fn(Workspace) -> T,
        found: &mpsc::UnboundedSender<Vec<T>>,
    ) -> Result<usize, CoderError> {
        let url = self.url("/api/v2/workspaces", query);
        self.persistently(|until| self.workspace_page(url.clone(), until, keep, found.clone())).await
    }

    /// Sends something once.
    pub(super) async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
        time: Duration,
    ) -> Result<T, CoderError> {
        decode(&self.send_bytes(method, path, body, time).await?)
    }

    /// Sends something once, when the answer has no body worth reading.
    pub(super) async fn send_bytes(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
        time: Duration,
    ) -> Result<Vec<u8>, CoderError> {
        let url = self.url(path, &[]);
        let until = Instant::now() + time;
        let attempt = || async {
            self.admitted(async {
                let request = self.http.request(method.clone(), url.clone()).json(body);
                let response = self.answer(request, until, time).await?;
                self.body(response, until, time).await
            })
            .await
        };
        match attempt().await {
            // Refused before anything was done: the only write that may be sent again.
            Err(CoderError::Refused(refused)) if refused.status == 429 => {
                self.wait_for_rate(&refused, until).await.ok_or(CoderError::Refused(refused))?;
                attempt().await
            }
            outcome => outcome,
        }
    }

    /// Opens a stream of events.
    pub(super) async fn events(&self, path: &str, until: Instant) -> Result<Response, CoderError> {
        let url = self.url(path, &[]);
        let time = until.saturating_duration_since(Instant::now());
        let request = self.http.get(url).header(header::ACCEPT, "text/event-stream");
        let response = self.answer(request, until, time).await?;
        if response.status().is_success() {
            Ok(response)
        } else {
            Err(self.refusal(response, until, time).await)
        }
    }

    /// Asks for a connection to become a WebSocket.
    pub(super) async fn upgrade(
        &self,
        path: &str,
        query: &[(&str, &str)],
        key: &str,
        until: Instant,
    ) -> Result<reqwest::Upgraded, CoderError> {
        let time = until.saturating_duration_since(Instant::now());
        if self.http1.get().is_none() {
            let made = build(self.connector.builder().http1_only());
            let made = made.map_err(|error| CoderError::Unreachable { reason: error.to_string() })?;
            let _ = self.http1.set(made);
        }
        let http1 = self.http1.get().unwrap_or(&self.http);
        let request = http1
            .get(self.url(path, query))
            .header(header::CONNECTION, "Upgrade")
            .header(header::UPGRADE, "websocket")
            .header(header::SEC_WEBSOCKET_VERSION, "13")
            .header(header::SEC_WEBSOCKET_KEY, key);
        let response = self.answer(request, until, time).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(self.refusal(response, until, time).await);
        }
        response.upgrade().await.map_err(|error| unreachable_because(&error))
    }

    /// Asks an app in a workspace; its troubles are not Coder's.
    pub(super) async fn app(
        &self,
        method: Method,
        url: Url,
        body: Option<&serde_json::Value>,
        until: Instant,
    ) -> Result<AppAnswer, CoderError> {
        let time = until.saturating_duration_since(Instant::now());
        let request = body.into_iter().fold(self.http.request(method, url), RequestBuilder::json);
        let response = sent(request, until, time).await?;
        let (status, is_json) = (response.status(), is_json(&response));
        let body = collect(response, self.limits.fleet_coder_answer_bytes, until, time).await?;
        Ok(AppAnswer { status, is_json, body })
    }

    /// The address of `path` at Coder.
    pub(super) fn url(&self, path: &str, query: &[(&str, &str)]) -> Url {
        let mut url = self.base.clone();
        url.set_path(&format!("{}{path}", self.base.path().trim_end_matches('/')));
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        url
    }

    /// Tries a read until it succeeds, cannot succeed, or its time is over.
    async fn persistently<T, F>(&self, attempt: impl Fn(Instant) -> F) -> Result<T, CoderError>
    where
        F: Future<Output = Result<T, CoderError>>,
    {
        let begun = Instant::now();
        let deadline = begun + Duration::from_millis(self.limits.fleet_coder_deadline_ms);
        let once = Duration::from_millis(self.limits.fleet_coder_request_ms);
        let mut waited_for_rate = false;
        for number in 1..=ATTEMPTS {
            let until = deadline.min(Instant::now() + once);
            let error = match self.admitted(attempt(until)).await {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            if number == ATTEMPTS || !error.is_passing() {
                return Err(with_whole_time(error, begun));
            }
            match &error {
                CoderError::Refused(refused) if refused.status == 429 => {
                    if waited_for_rate || self.wait_for_rate(refused, deadline).await.is_none() {
                        return Err(error);
                    }
                    waited_for_rate = true;
                }
                _ => {
                    let pause = backoff(number);
                    if Instant::now() + pause >= deadline {
                        return Err(with_whole_time(error, begun));
                    }
                    tracing::debug!(%error, attempt = number, "asking Coder again");
                    tokio::time::sleep(pause).await;
                }
            }
        }
        Err(CoderError::TimedOut { ms: millis(begun.elapsed()) })
    }

    /// Lets a request through unless Coder is being left alone, and notes how it went.
    async fn admitted<T>(
        &self,
        request: impl Future<Output = Result<T, CoderError>>,
    ) -> Result<T, CoderError> {
        let pause = Duration::from_millis(self.limits.fleet_coder_pause_ms);
        lock(&self.circuit)
            .admit(Instant::now(), pause)
            .map_err(|(left, reason)| CoderError::Paused { seconds: left.as_secs() + 1, reason })?;
        let begun = Instant::now();
        let outcome = request.await;
        let mut circuit = lock(&self.circuit);
        match &outcome {
            Err(error) if error.is_silence() => {
                circuit.silent(begun, Instant::now(), pause, &error.to_string());
            }
            _ => circuit.answered(),
        }
        outcome
    }

    async fn whole(&self, url: Url, until: Instant) -> Result<Vec<u8>, CoderError> {
        let time = until.saturating_duration_since(Instant::now());
        let response = self.answer(self.http.get(url), until, time).await?;
        self.body(response, until, time).await
    }

    async fn workspace_page<T: Send + 'static>(
        &self,
        url: Url,
        until: Instant,
        keep: fn(Workspace) -> T,
        found: mpsc::UnboundedSender<Vec<T>>,
    ) -> Result<usize, CoderError> {
        let time = until.saturating_duration_since(Instant::now());
        let response = self.good(self.answer(self.http.get(url), until, time).await?, until, time).await?;
        let longest = usize::try_from(self.limits.fleet_coder_answer_bytes).unwrap_or(usize::MAX);
        let (pieces, mut arriving) = mpsc::channel(1);
        // Megabytes are taken apart on a thread of their own: the requests that follow from the first workspaces are
        // made meanwhile.
        let reader = tokio::task::spawn_blocking(move || {
            let mut splitter = Splitter::new(longest);
            let mut some = Vec::with_capacity(SOME);
            while let Some(pieces) = arriving.blocking_recv() {
                for piece in Vec::into_iter(pieces) {
                    splitter.feed(AsRef::<[u8]>::as_ref(&piece), |element| {
                        some.push(keep(decode(element)?));
                        Ok::<(), CoderError>(())
                    })?;
                }
                if some.len() >= SOME {
                    // Who no longer listens has given up.
                    let _ = found.send(std::mem::replace(&mut some, Vec::with_capacity(SOME)));
                }
            }
            let _ = found.send(some);
            let page: WorkspacePage = decode(&splitter.finish()?)?;
            Ok(page.count)
        });
        let mut chunks = response.bytes_stream();
        let (mut waiting, mut size) = (Vec::new(), 0);
        loop {
            let chunk = next_before(&mut chunks, until, time).await?;
            let is_end = chunk.is_none();
            if let Some(chunk) = chunk {
                size += chunk.len();
                waiting.push(chunk);
            }
            // Some servers send crumbs, and to wake the reader for each would cost more than reading it.
            if is_end || size >= HANDFUL {
                size = 0;
                let is_over = pieces.send(std::mem::take(&mut waiting)).await.is_err();
                // A reader that takes no more has seen enough, and says why.
                if is_end || is_over {
                    break;
                }
            }
        }
        drop(pieces);
        reader.await.map_err(|_| CoderError::Malformed {
            reason: "it could not be read".to_owned(),
            request_id: None,
        })?
    }

    /// Sends a request and notes the version in its answer.
    async fn answer(
        &self,
        request: RequestBuilder,
        until: Instant,
        time: Duration,
    ) -> Result<Response, CoderError> {
        let response = sent(request, until, time).await?;
        if let Some(version) = header_text(&response, VERSION_HEADER).and_then(|text| Version::parse(&text)) {
            *lock(&self.version) = Some(version);
        }
        Ok(response)
    }

    async fn body(&self, response: Response, until: Instant, time: Duration) -> Result<Vec<u8>, CoderError> {
        let response = self.good(response, until, time).await?;
        collect(response, self.limits.fleet_coder_answer_bytes, until, time).await
    }

    /// Passes on an answer that is a success and JSON, and explains any other.
    async fn good(&self, response: Response, until: Instant, time: Duration) -> Result<Response, CoderError> {
        if !response.status().is_success() {
            return Err(self.refusal(response, until, time).await);
        }
        if response.status() != StatusCode::NO_CONTENT && !is_json(&response) {
            return Err(CoderError::Malformed {
                reason: "it is not JSON but a page; check that the Coder address is right".to_owned(),
                request_id: header_text(&response, REQUEST_ID_HEADER),
            });
        }
        Ok(response)
    }

    async fn refusal(&self, response: Response, until: Instant, time: Duration) -> CoderError {
        let status = response.status();
        if status.is_redirection() {
            return CoderError::Redirected;
        }
        let request_id = header_text(&response, REQUEST_ID_HEADER);
        let retry_after = self.retry_after(&response);
        let route = response.url().path().to_owned();
        let said_in_json = is_json(&response);
        // The refusal stands even when its reason got lost on the way.
        let body = collect(response, 64 * 1024, until, time).await.unwrap_or_default();
        let refusal: Refusal =
            if said_in_json { serde_json::from_slice(&body).unwrap_or_default() } else { Refusal::default() };
        if status == StatusCode::NOT_FOUND && (refusal.message == "Route not found." || !said_in_json) {
            return CoderError::RouteMissing { route };
        }
        let message = if refusal.message.is_empty() {
            status.canonical_reason().unwrap_or("no reason given").to_owned()
        } else {
            refusal.message
        };
        let validations = refusal.validations.into_iter();
        CoderError::Refused(Box::new(Refused {
            status: status.as_u16(),
            message: self.without_token(message),
            detail: self.without_token(refusal.detail),
            validations: validations
                .map(|it| Validation {
                    field: self.without_token(it.field),
                    detail: self.without_token(it.detail),
                })
                .collect(),
            request_id,
            retry_after,
        }))
    }

    /// Words of Coder's, or of a proxy before it, that are passed on: some repeat the request.
    fn without_token(&self, text: String) -> String {
        let token = self.token.expose().trim();
        if text.contains(token) { text.replace(token, "…") } else { text }
    }

    /// Seconds until a rate limit is over.
    fn retry_after(&self, response: &Response) -> Option<u64> {
        if response.status() != StatusCode::TOO_MANY_REQUESTS {
            return None;
        }
        let number =
            |name: &str| header_text(response, name).and_then(|text| text.trim().parse::<u64>().ok());
        number("retry-after").or_else(|| {
            let now = u64::try_from(self.clock.now().timestamp().as_second()).ok()?;
            number(RATE_RESET_HEADER).map(|reset| reset.saturating_sub(now))
        })
    }

    /// Waits a rate limit out; none when that would take too long.
    async fn wait_for_rate(&self, refused: &Refused, deadline: Instant) -> Option<()> {
        let seconds = refused.retry_after.unwrap_or(1).min(LONGEST_RATE_WAIT);
        let wait = Duration::from_secs(seconds) + backoff(1);
        if Instant::now() + wait >= deadline {
            return None;
        }
        tracing::debug!(seconds, "Coder's rate limit is reached");
        tokio::time::sleep(wait).await;
        Some(())
    }
}

impl From<SplitError> for CoderError {
    fn from(error: SplitError) -> Self {
        Self::Malformed { reason: error.to_string(), request_id: None }
    }
}

/// Reads JSON; what is wrong with it is told by place, never by quoting it.
fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CoderError> {
    serde_json::from_slice(bytes).map_err(|error| {
        let reason = match error.classify() {
            serde_json::error::Category::Data => "a field is missing or of the wrong kind",
            serde_json::error::Category::Eof => "it ends in the middle",
            _ => "it is not valid JSON",
        };
        CoderError::Malformed {
            reason: format!("{reason} (line {}, column {})", error.line(), error.column()),
            request_id: None,
        }
    })
}

async fn collect(
    response: Response,
    most: u64,
    until: Instant,
    time: Duration,
) -> Result<Vec<u8>, CoderError> {
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let mut body = Vec::new();
    let mut chunks = response.bytes_stream();
    while let Some(chunk) = next_before(&mut chunks, until, time).await? {
        if body.len() + chunk.len() > most {
            return Err(CoderError::Malformed {
                reason: format!("it is larger than {most} bytes"),
                request_id: None,
            });
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// Sends a request; `time` is what it had in all.
async fn sent(request: RequestBuilder, until: Instant, time: Duration) -> Result<Response, CoderError> {
    timeout_at(until, request.send())
        .await
        .map_err(|_| CoderError::TimedOut { ms: millis(time) })?
        .map_err(|error| unreachable_because(&error))
}

async fn next_before<B>(
    chunks: &mut (impl futures_util::Stream<Item = reqwest::Result<B>> + Unpin),
    until: Instant,
    time: Duration,
) -> Result<Option<B>, CoderError> {
    match timeout_at(until, chunks.next()).await {
        Err(_) => Err(CoderError::TimedOut { ms: millis(time) }),
        Ok(None) => Ok(None),
        Ok(Some(Ok(chunk))) => Ok(Some(chunk)),
        Ok(Some(Err(error))) => Err(unreachable_because(&error)),
    }
}

/// The innermost cause of a failed request; the outer ones name addresses, which say nothing new.
fn unreachable_because(error: &reqwest::Error) -> CoderError {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    let reason =
        if std::ptr::addr_eq(cause, error) { "the connection failed".to_owned() } else { cause.to_string() };
    CoderError::Unreachable { reason }
}

fn is_json(response: &Response) -> bool {
    let content_type = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    content_type.is_some_and(|text| {
        let kind = text.split(';').next().unwrap_or_default().trim();
        kind.eq_ignore_ascii_case("application/json") || kind.ends_with("+json")
    })
}

fn header_text(response: &Response, name: &str) -> Option<String> {
    response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

/// 100 to 300 ms, then three times as much: spread out so that many callers do not come back at once.
fn backoff(attempt: u32) -> Duration {
    let spread = u64::from(getrandom::u32().unwrap_or(u32::MAX / 2)) * 200 / u64::from(u32::MAX);
    Duration::from_millis((100 + spread) * 3_u64.pow(attempt.saturating_sub(1).min(3)))
}

/// A time-out names the whole time a caller waited, not that of the last attempt.
fn with_whole_time(error: CoderError, begun: Instant) -> CoderError {
    match error {
        CoderError::TimedOut { .. } => CoderError::TimedOut { ms: millis(begun.elapsed()) },
        other => other,
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What the locks guard is valid at every moment, so a panic elsewhere does not spoil it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
