//! The way from a client to the server of its home.

use std::path::Path;
use std::time::{Duration, Instant};

use crewkit_core::Code;
use crewkit_server::asker::{ASKER_HEADER, Hello};
use reqwest::{Client, Method, RequestBuilder, Response};
use serde_json::{Value, json};

use super::identity::{self, Build, Namespaces};
use super::lock::{HomeLock, StartLock};
use super::own::{in_use, start_lock, unusable};
use super::record::{ServerKind, ServerRecord};
use super::{checks, launch};
use crate::agent::client_environment;
use crate::config::Config;
use crate::failure::Failure;
use crate::socket::Reachable;

/// How often a server that is about to leave is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A connection to the server of a home, with the settings of this process.
#[derive(Debug)]
pub struct Connection {
    found: Found,
    asker: String,
}

impl Connection {
    /// The server at the other end.
    pub const fn server(&self) -> &ServerRecord {
        &self.found.record
    }

    /// A request to `path`, which begins with a slash, in the name of this asker.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.found.request(method, path).header(ASKER_HEADER, &self.asker)
    }
}

/// Connects to the server of the home. Returns `None` if nobody answers.
pub async fn connect(config: &Config) -> Result<Option<Connection>, Failure> {
    let (began, patience) = (Instant::now(), Duration::from_secs(config.limits().server_start_seconds));
    while let Some(found) = find(&config.home).await? {
        match found.connect(config).await {
            Err(failure) if is_leaving(&failure) && began.elapsed() < patience => {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            outcome => return outcome.map(Some),
        }
    }
    Ok(None)
}

/// Whether a server that listened went away before it answered: it is about to end, so looking again shows what comes after it.
fn is_leaving(failure: &Failure) -> bool {
    failure.code == Code::ServerUnreachable
}

/// The owner of the home: a server that listens, whatever protocol it speaks, or a command that works in its own process.
pub async fn running(home: &Path) -> Result<Option<ServerRecord>, Failure> {
    let in_process =
        || ServerRecord::read(home).filter(|record| record.socket.is_none() && record.is_alive());
    Ok(find(home).await?.map(|found| found.record).or_else(in_process))
}

/// Ends the server of the home and all of its work, whatever protocol it speaks.
pub async fn stop(config: &Config) -> Result<(), Failure> {
    let starting = start_lock(&config.home, &config.limits()).await?;
    match find(&config.home).await? {
        Some(found) => found.leave(config, &starting, Work::Ends).await,
        None => Ok(()),
    }
}

/// What becomes of a server's work when the server ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// It ends too.
    Ends,
    /// The next server of the home goes on with it.
    GoesOn,
}

/// Connects to the server of the home, and starts it in the background if nobody answers. An older background server is
/// replaced; its work goes on.
pub async fn connect_or_start(config: &Config) -> Result<Connection, Failure> {
    let home = &config.home;
    let refusal = match find(home).await? {
        Some(found) if !found.is_outdated() => match found.connect(config).await {
            Err(failure) if is_leaving(&failure) => checks::refusal(home),
            outcome => return outcome,
        },
        Some(found) => match checks::refusal(home) {
            Some(_) => return found.connect(config).await,
            None => None,
        },
        None => checks::refusal(home),
    };
    if let Some(refusal) = refusal {
        return Err(Failure::new(Code::ServerNotStarted, refusal));
    }
    let limits = config.limits();
    let starting = start_lock(home, &limits).await?;
    let (began, patience) = (Instant::now(), Duration::from_secs(limits.server_start_seconds));
    loop {
        match find(home).await? {
            Some(found) if found.is_outdated() => found.leave(config, &starting, Work::GoesOn).await?,
            Some(found) => match found.connect(config).await {
                Err(failure) if is_leaving(&failure) && began.elapsed() < patience => {}
                outcome => return outcome,
            },
            None => {}
        }
        let is_free = HomeLock::take(home).map_err(|error| unusable(home, &error))?.is_some();
        if is_free {
            match launch::start(config).await {
                Ok(()) => {}
                // Somebody whose starter is gone was faster.
                Err(failure) if failure.code == Code::HomeInUse && began.elapsed() < patience => {}
                Err(failure) => return Err(failure),
            }
        } else {
            let in_process =
                ServerRecord::read(home).is_some_and(|owner| owner.kind == ServerKind::InProcess);
            if in_process || began.elapsed() >= patience {
                return Err(in_use(home));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

/// A server that listens, and to which nothing was said yet.
#[derive(Debug)]
pub(super) struct Found {
    record: ServerRecord,
    client: Client,
    _socket: Reachable,
}

/// Looks for a server of `home` that listens. Returns `None` if there is none.
pub(super) async fn find(home: &Path) -> Result<Option<Found>, Failure> {
    let Some(record) = ServerRecord::read(home) else { return Ok(None) };
    let Some(path) = &record.socket else { return Ok(None) };
    let Ok(socket) = Reachable::new(path) else { return Ok(None) };
    if tokio::net::UnixStream::connect(socket.path()).await.is_err() {
        return Ok(None);
    }
    if let Some(difference) = record.namespaces.difference(&Namespaces::own()) {
        let message = format!(
            "{} runs in another {difference}. Run this command there, or use `--in-process` with another `--home`",
            record.describe()
        );
        return Err(Failure::new(Code::HomeInUse, message));
    }
    let client = crewkit_agent::http_client().unix_socket(socket.path()).build();
    let client = client.map_err(|error| Failure::new(Code::Internal, error.to_string()))?;
    Ok(Some(Found { record, client, _socket: socket }))
}

impl Found {
    pub(super) const fn record(&self) -> &ServerRecord {
        &self.record
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("http://localhost{path}"))
    }

    /// Whether this process is of a newer build than a server that may be replaced. What a person started stays.
    fn is_outdated(&self) -> bool {
        self.record.kind == ServerKind::Background && Build::own().is_newer_than(&self.record.build)
    }

    async fn connect(self, config: &Config) -> Result<Connection, Failure> {
        let asker = self.hello(config).await?;
        Ok(Connection { found: self, asker })
    }

    /// Tells the server the settings of this process. Returns the id of the asker.
    async fn hello(&self, config: &Config) -> Result<String, Failure> {
        if self.record.protocol != identity::protocol() {
            let message = format!(
                "{} speaks protocol {}, this program (build {}) protocol {}",
                self.record.describe(),
                self.record.protocol,
                Build::own(),
                identity::protocol()
            );
            return Err(Failure::new(Code::ProtocolDiffers, message));
        }
        let directory = std::env::current_dir().unwrap_or_else(|_| "/".into());
        let hello = Hello {
            build: Build::own().to_string(),
            protocol: identity::protocol(),
            directory,
            settings: config.brought(),
            environment: client_environment(config),
        };
        let answer = self.answer(self.request(Method::POST, "/api/hello").json(&hello)).await?;
        answer["asker"].as_str().map(str::to_owned).ok_or_else(|| {
            Failure::new(
                Code::Internal,
                format!("{} answered a hello without an asker", self.record.describe()),
            )
        })
    }

    /// Asks the server to leave, and waits until the home is free.
    pub(super) async fn leave(
        &self,
        config: &Config,
        starting: &StartLock,
        work: Work,
    ) -> Result<(), Failure> {
        let limits = config.limits();
        let wish = json!({"keep_work": work == Work::GoesOn});
        match self.answer(self.request(Method::POST, "/api/server/stop").json(&wish)).await {
            Err(failure) if !is_leaving(&failure) => self.terminate(failure)?,
            _ => {}
        }
        let patience = Duration::from_secs(limits.shutdown_grace_seconds + limits.server_start_seconds);
        let is_free = starting.wait_until_free(&config.home, patience).await;
        if is_free.map_err(|error| unusable(&config.home, &error))? {
            Ok(())
        } else {
            Err(in_use(&config.home))
        }
    }

    /// Ends a server that did not understand the request to leave, as a service manager does. The record names the process
    /// beyond doubt, or the refusal stands.
    fn terminate(&self, refusal: Failure) -> Result<(), Failure> {
        use rustix::process::{Pid, Signal, kill_process};
        let pid = i32::try_from(self.record.pid).ok().and_then(Pid::from_raw);
        match pid.filter(|_| self.record.is_alive()) {
            Some(pid) => kill_process(pid, Signal::TERM).map_err(|_| refusal),
            None => Err(refusal),
        }
    }

    async fn answer(&self, request: RequestBuilder) -> Result<Value, Failure> {
        let unreachable = |error: reqwest::Error| {
            let message = format!("{}: {}", self.record.describe(), error.without_url());
            Failure::new(Code::ServerUnreachable, message)
        };
        let response: Response = request.send().await.map_err(unreachable)?;
        let is_success = response.status().is_success();
        let body: Value = response.json().await.map_err(unreachable)?;
        if is_success {
            return Ok(body);
        }
        let code = Code::ALL.iter().find(|code| body["error"] == code.as_str()).copied();
        let message = body["message"].as_str().unwrap_or("the server refused without a reason");
        Err(Failure::new(code.unwrap_or(Code::Internal), message))
    }
}
