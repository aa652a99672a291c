//! Operations of a server, run by a client.
//!
//! A client belongs to the server of its home, which it starts if nobody answers, or to a server that the user named. When the
//! server of the home goes away under a call, the client connects to the next one. Calls that may be repeated are repeated:
//! reads, and calls with a key. For any other call nobody can tell whether it was carried out, and the answer says so.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crewkit_core::Code;
use crewkit_core::secret::masked_url;
use crewkit_server::ops::{Answer, Catalog, Entry, JsonObject, Problem, Progress, ProgressUpdate, Source};
use crewkit_server::services::RemoteOperations;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use reqwest::{Method, RequestBuilder, Response};
use serde_json::Value;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::config::{Config, Origin};
use crate::failure::Failure;
use crate::server::Connection;
use crate::{server, token};

/// How often a client that asked for progress hears of a call that takes long.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// A client of one server.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
    /// Whether it starts the server of the home if nobody answers.
    starts_server: bool,
}

struct Shared {
    config: Config,
    catalog: Arc<Catalog>,
    source: Source,
    /// The server that the user named, once it is needed.
    named: OnceLock<Arc<Link>>,
    /// The connection to the server of the home, while there is one.
    home: Mutex<Option<Arc<Link>>>,
}

/// A way to a server.
enum Link {
    /// The server of the home. It knows the settings of this process.
    Home(Box<Connection>),
    /// A server that the user named. It gets the token of the home.
    Named { base: String, client: reqwest::Client, token: Option<crewkit_core::Secret> },
}

/// Whether the user names the server to talk to.
pub fn is_named(config: &Config) -> bool {
    config.values.get("client.server").is_some_and(|server| server.origin != Origin::Default)
}

impl Client {
    /// A client that connects with its first call.
    pub fn new(config: &Config, catalog: Arc<Catalog>, source: Source) -> Self {
        let (named, home) = (OnceLock::new(), Mutex::new(None));
        let shared = Arc::new(Shared { config: config.clone(), catalog, source, named, home });
        Self { shared, starts_server: true }
    }

    /// Runs one operation; a refusal of the operation's own is an answer, not a failure.
    pub async fn call(&self, operation: &str, mut arguments: JsonObject) -> Result<Answer, Failure> {
        let entry = self.shared.catalog.get(operation);
        let is_read = entry.is_some_and(|entry| entry.operation.hints.read_only);
        if entry.is_some_and(|entry| takes_key(entry)) && !arguments.contains_key("key") {
            // With a key the call can be repeated when the server goes away under it.
            arguments.extend(new_key().map(|key| ("key".to_owned(), key.into())));
        }
        let may_repeat = is_read || arguments.contains_key("key");
        let path = format!("/api/ops/{operation}");
        let body = Value::Object(arguments);
        answer(&self.send(Method::POST, &path, Some(&body), may_repeat).await?)
    }

    /// The bytes at a path of the server, compressed as they are kept.
    pub async fn bytes(&self, path: &str) -> Result<Vec<u8>, Failure> {
        let response = self.send(Method::GET, path, None, true).await?;
        if response.status.is_success() {
            return Ok(response.body);
        }
        Failure::of_answer(answer(&response)?).map(|_| Vec::new())
    }

    /// Sends a request, if need be to a server that is started for it.
    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        may_repeat: bool,
    ) -> Result<Received, Failure> {
        let limits = self.shared.config.limits();
        let mut attempts = limits.client_attempts.max(1);
        loop {
            attempts -= 1;
            let link = self.link().await?;
            let request = link.request(method.clone(), path);
            let request = request.header(Source::HEADER, self.shared.source.as_str());
            let request = request.header("accept-encoding", "gzip");
            let request = body.into_iter().fold(request, RequestBuilder::json);
            let error = match receive(request).await {
                Ok(received) if received.is_unknown_asker() && attempts > 0 => {
                    self.forget(&link).await;
                    continue;
                }
                Ok(received) if received.status.as_u16() == 401 => return Err(link.token_needed()),
                Ok(received) => return Ok(received),
                Err(error) => error,
            };
            self.forget(&link).await;
            let was_sent = !error.is_connect();
            let is_home = matches!(*link, Link::Home(_));
            if is_home && was_sent && !may_repeat {
                return Err(outcome_unknown(path));
            }
            if !is_home || attempts == 0 {
                return Err(link.unreachable(error));
            }
        }
    }

    async fn link(&self) -> Result<Arc<Link>, Failure> {
        if is_named(&self.shared.config) {
            if let Some(named) = self.shared.named.get() {
                return Ok(Arc::clone(named));
            }
            let named = Arc::new(Link::named(&self.shared.config)?);
            return Ok(Arc::clone(self.shared.named.get_or_init(|| named)));
        }
        let mut home = self.shared.home.lock().await;
        if let Some(link) = &*home {
            return Ok(Arc::clone(link));
        }
        let config = &self.shared.config;
        let connection = if self.starts_server {
            server::connect_or_start(config).await?
        } else {
            let none = || Failure::new(Code::ServerUnreachable, "No server is running for this home");
            server::connect(config).await?.ok_or_else(none)?
        };
        let link = Arc::new(Link::Home(Box::new(connection)));
        *home = Some(Arc::clone(&link));
        Ok(link)
    }

    /// Drops a connection that does not work any more, unless another call has replaced it already.
    async fn forget(&self, link: &Arc<Link>) {
        let mut home = self.shared.home.lock().await;
        if home.as_ref().is_some_and(|known| Arc::ptr_eq(known, link)) {
            *home = None;
        }
    }
}

impl RemoteOperations for Client {
    fn run(
        &self,
        name: &'static str,
        arguments: JsonObject,
        progress: Progress,
        _cancelled: CancellationToken,
    ) -> BoxFuture<'static, Answer> {
        // The work of a call that is cancelled is dropped, which hangs up.
        let client = self.clone();
        async move {
            let call = client.call(name, arguments);
            let answered = tokio::select! {
                answered = call => answered,
                never = report_progress(&progress, name) => match never {},
            };
            answered.unwrap_or_else(|failure| client.failed(name, &failure))
        }
        .boxed()
    }

    fn watch(&self, name: &'static str, arguments: JsonObject) -> BoxFuture<'static, Answer> {
        let client = Self { starts_server: false, ..self.clone() };
        async move { client.call(name, arguments).await.unwrap_or_else(|failure| client.failed(name, &failure)) }
            .boxed()
    }
}

impl Client {
    /// A failure of the connection in the form of the operation's contract.
    fn failed(&self, operation: &str, failure: &Failure) -> Answer {
        let problem = Problem { code: failure.code, message: failure.message.clone(), argument: None };
        let status = failure.code.http_status();
        match self.shared.catalog.get(operation) {
            Some(entry) => Answer { body: (entry.operation.error_form)(&entry.operation, &problem), status },
            None => Answer { body: Value::String(problem.message), status },
        }
    }
}

async fn report_progress(progress: &Progress, operation: &str) -> std::convert::Infallible {
    let began = Instant::now();
    loop {
        tokio::time::sleep(PROGRESS_INTERVAL).await;
        let elapsed = began.elapsed();
        let message = Some(format!("`{operation}` has been running for {} s", elapsed.as_secs()));
        progress.report(ProgressUpdate::step(elapsed.as_secs_f64(), None, message));
    }
}

impl Link {
    fn named(config: &Config) -> Result<Self, Failure> {
        let base = config.text("client.server").unwrap_or_default().trim_end_matches('/').to_owned();
        let client = crewkit_agent::http_client().build();
        let client = client.map_err(|error| Failure::new(Code::Internal, error.to_string()))?;
        Ok(Self::Named { base, client, token: token::load(&config.home)? })
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        match self {
            Self::Home(connection) => connection.request(method, path),
            Self::Named { base, client, token } => {
                let request = client.request(method, format!("{base}{path}"));
                token.iter().fold(request, |request, token| request.bearer_auth(token.expose()))
            }
        }
    }

    fn address(&self) -> String {
        match self {
            Self::Home(connection) => connection.server().describe(),
            Self::Named { base, .. } => masked_url(base),
        }
    }

    fn unreachable(&self, error: reqwest::Error) -> Failure {
        Failure::new(Code::ServerUnreachable, format!("{}: {}", self.address(), error.without_url()))
    }

    fn token_needed(&self) -> Failure {
        let message =
            format!("The server at {} requires a token that this home does not have", self.address());
        Failure::new(Code::Unauthorized, message)
    }
}

/// A response that has arrived completely: one that breaks off in the middle is as good as none.
struct Received {
    status: reqwest::StatusCode,
    body: Vec<u8>,
}

impl Received {
    fn is_unknown_asker(&self) -> bool {
        let code = || {
            Some(serde_json::from_slice::<Value>(&self.body).ok()?["error"] == Code::AskerUnknown.as_str())
        };
        self.status.as_u16() == Code::AskerUnknown.http_status() && code() == Some(true)
    }
}

async fn receive(request: RequestBuilder) -> Result<Received, reqwest::Error> {
    let response: Response = request.send().await?;
    let status = response.status();
    Ok(Received { status, body: response.bytes().await?.to_vec() })
}

fn answer(received: &Received) -> Result<Answer, Failure> {
    let status = received.status.as_u16();
    let body = serde_json::from_slice(&received.body).map_err(|error| {
        Failure::new(Code::ServerUnreachable, format!("the server answered {status} without JSON: {error}"))
    })?;
    Ok(Answer { body, status })
}

fn takes_key(entry: &Entry) -> bool {
    entry
        .input
        .get("properties")
        .and_then(Value::as_object)
        .is_some_and(|properties| properties.contains_key("key"))
}

/// A key that no other call has. Returns `None` if the system has no random numbers; the call then is not repeated.
fn new_key() -> Option<String> {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes).ok()?;
    Some(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn outcome_unknown(path: &str) -> Failure {
    let operation = path.rsplit('/').next().unwrap_or(path);
    let message = format!(
        "The server ended before it answered `{operation}`; the call may have been carried out or not"
    );
    Failure::new(Code::OutcomeUnknown, message)
}
