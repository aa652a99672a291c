//! The engine: starts runs, tells how they stand, ends them.
//!
//! [`Options`] make an [`Engine`]; an engine is a cheap handle that can be cloned. It ends when [`Engine::shutdown`] is
//! called; runs at work are then found by the next process and told truthfully as interrupted.

mod chat;
mod checks;
mod error;
mod grants;
mod options;
mod payload;
mod queries;
mod subscription;
mod task;
mod view;

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use crewkit_core::run::{Move, RunId, RunStatus, StopReason};
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use chat::ChatFrame;
pub use error::Error;
pub use grants::AttemptGrant;
pub use options::Options;
pub use subscription::Subscription;
pub use view::{Moment, OutputRow, Status, output_rows};

use crate::driver::ProcessDriver;
use crate::event::Event;
use crate::model::{EndpointModel, Model, Rehearsal};
use crate::store::{Ack, Begin, Change, Effect, NewRun, PayloadInfo, RunRecord, RunSpec, Store};
use crate::sync::lock;
use crate::tools::Commands;
use crate::tools::mcp::{ListedTool, ServerStatus, Surroundings, ToolServers};
use task::{Attempt, Means, Origin};

/// Longest idempotency key.
const KEY_BYTES: usize = 200;
/// Runs removed side by side.
const PRUNED_AT_ONCE: usize = 64;

/// A wish for a new run.
#[derive(Debug, Clone, Default)]
pub struct Start {
    /// What it shall do.
    pub contract: String,
    /// How.
    pub spec: RunSpec,
    /// The same key again gives the same run again.
    pub key: Option<String>,
}

/// Which of several runs have to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Until {
    /// All of them.
    #[default]
    All,
    /// Any one.
    Any,
}

/// What a wait found.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Waited {
    /// Whether what was waited for has happened.
    pub done: bool,
    /// State of every run, in the order of the ids.
    pub agents: Vec<Status>,
}

/// A page of a transcript.
#[derive(Debug, Clone)]
pub struct Page {
    /// The entries.
    pub entries: Vec<Arc<Event>>,
    /// Where the next page begins; absent at the end.
    pub next: Option<u64>,
    /// Where the run stands.
    pub status: RunStatus,
}

/// A payload to be served.
#[derive(Debug, Clone)]
pub struct Payload {
    /// Size and entity tag.
    pub info: PayloadInfo,
    /// The compressed bytes.
    pub gzip: Bytes,
}

/// What may be removed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Prune {
    /// Only runs that ended longer ago than this.
    pub older_than: Duration,
    /// Keep this many of the newest ended runs in any case.
    pub keep: usize,
}

/// A handle to the engine.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

struct Shared {
    options: Options,
    store: Store,
    models: Vec<(String, Arc<dyn Model>)>,
    endpoints: Vec<Arc<EndpointModel>>,
    drivers: Vec<Arc<ProcessDriver>>,
    servers: ToolServers,
    commands: Arc<Commands>,
    scratch: PathBuf,
    tasks: TaskTracker,
    runtime: tokio::runtime::Handle,
    shutdown: CancellationToken,
    writer: Mutex<Option<std::thread::JoinHandle<()>>>,
    chats: chat::Chats,
    grants: grants::Grants,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("home", &self.shared.options.home).finish_non_exhaustive()
    }
}

impl Engine {
    /// Opens the store, ends what an earlier process left behind, and starts the tool servers in the background.
    ///
    /// Must be called within a tokio runtime, which is where runs are carried out, whoever starts them.
    pub fn open(options: Options) -> BoxFuture<'static, Result<Self, Error>> {
        Box::pin(async move {
            let mut models: Vec<(String, Arc<dyn Model>)> = Vec::new();
            let mut endpoints = Vec::new();
            for endpoint in &options.models {
                let model = EndpointModel::new(endpoint.clone(), Arc::clone(&options.limits))
                    .map_err(Error::Setting)?;
                let model = Arc::new(model);
                endpoints.push(Arc::clone(&model));
                models.push((endpoint.name.clone(), model));
            }
            models.push((Rehearsal::NAME.to_owned(), Arc::new(Rehearsal)));
            let (path, clock, limits) =
                (options.home.join("agents.db"), Arc::clone(&options.clock), Arc::clone(&options.limits));
            let opened = tokio::task::spawn_blocking(move || {
                let recovered = Store::open(&path, &clock, &limits)?;
                for run in &recovered.interrupted {
                    let killed = crate::sys::kill_marked(run.as_str());
                    tracing::warn!(%run, killed, "the agent was at work when the last server ended");
                }
                Ok::<_, crate::store::StoreError>(recovered)
            });
            let recovered = opened
                .await
                .map_err(|_| Error::Setting("the run store broke while opening".to_owned()))??;
            let surroundings = Surroundings {
                environment: options.child_environment.clone(),
                helper: options.helper.clone(),
                limits: Arc::clone(&options.limits),
            };
            let engine = Self {
                shared: Arc::new(Shared {
                    store: recovered.store,
                    models,
                    endpoints,
                    drivers: options.drivers.iter().cloned().map(Arc::new).collect(),
                    servers: ToolServers::new(options.tool_servers.clone(), surroundings),
                    commands: Arc::new(Commands {
                        policy: options.commands.clone(),
                        helper: options.helper.clone(),
                        server_ports: options.server_ports.clone(),
                    }),
                    scratch: options.home.join("scratch"),
                    tasks: TaskTracker::new(),
                    runtime: tokio::runtime::Handle::current(),
                    shutdown: CancellationToken::new(),
                    writer: Mutex::new(Some(recovered.writer)),
                    chats: chat::Chats::default(),
                    grants: grants::Grants::default(),
                    options,
                }),
            };
            engine.spawn_chores();
            Ok(engine)
        })
    }

    fn spawn_chores(&self) {
        let engine = self.clone();
        self.shared.tasks.spawn(async move {
            tokio::select! {
                () = engine.shared.servers.settle() => {}
                () = engine.shared.shutdown.cancelled() => {}
            }
        });
        let days = self.shared.options.limits.agent_retention_days;
        if days == 0 {
            return;
        }
        let engine = self.clone();
        self.shared.tasks.spawn(async move {
            let wish = Prune { older_than: Duration::from_secs(days * 86_400), keep: 0 };
            loop {
                if let Err(error) = engine.prune(wish).await {
                    tracing::warn!(%error, "ended agents could not be pruned");
                }
                tokio::select! {
                    () = tokio::time::sleep(Duration::from_hours(1)) => {}
                    () = engine.shared.shutdown.cancelled() => return,
                }
            }
        });
    }

    /// Lets go of every run and closes the store. Runs at work are told as interrupted by the next process.
    pub async fn shutdown(&self) {
        self.shared.shutdown.cancel();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }

    /// Creates a run and starts it; answers once it is on disk.
    pub async fn start(&self, start: Start) -> Result<Arc<RunRecord>, Error> {
        self.check_contract(&start.contract)?;
        let means = self.means(&start.spec)?;
        self.check_workdir(&start.spec).await?;
        self.check_room()?;
        let ack = self.create_run(start, Begin::Now).await?;
        if ack.effect == Effect::Done {
            self.spawn(&ack.record, means, Origin::Fresh)?;
        }
        Ok(ack.record)
    }

    /// Creates a run that waits to be started.
    pub async fn create(&self, start: Start) -> Result<Arc<RunRecord>, Error> {
        self.check_length(&start.contract)?;
        self.means(&start.spec)?;
        self.check_workdir(&start.spec).await?;
        Ok(self.create_run(start, Begin::Later).await?.record)
    }

    async fn create_run(&self, start: Start, begin: Begin) -> Result<Ack, Error> {
        let id = RunId::from_str(&format!("{}{}", RunId::PREFIX, uuid::Uuid::now_v7().simple()));
        let id = id.map_err(|bad| Error::Argument { name: "agent_id", what: bad.to_string() })?;
        if let Some(key) = &start.key
            && (key.is_empty() || key.len() > KEY_BYTES)
        {
            return Err(Error::Argument { name: "key", what: format!("must have 1 to {KEY_BYTES} bytes") });
        }
        let new = NewRun {
            id,
            contract: start.contract.into(),
            spec: start.spec,
            idempotency: start.key.map(Into::into),
            begin,
        };
        Ok(self.shared.store.create(new).await?)
    }

    /// Gives a waiting run another contract.
    pub async fn set_contract(&self, id: &str, contract: String) -> Result<Arc<RunRecord>, Error> {
        self.check_length(&contract)?;
        let id = self.id(id)?;
        Ok(self.shared.store.set_contract(id, contract.into()).await?.record)
    }

    /// Starts a waiting run.
    pub async fn start_ready(&self, id: &str) -> Result<Arc<RunRecord>, Error> {
        let record = self.record(id)?;
        self.check_contract(&record.contract)?;
        self.begin(&record, Move::Start, Origin::Fresh).await
    }

    /// Lets a stopped run go on where it was. Calls whose result is not known are not repeated.
    pub async fn resume(&self, id: &str) -> Result<Arc<RunRecord>, Error> {
        let record = self.record(id)?;
        self.begin(&record, Move::Resume, Origin::Resumed).await
    }

    async fn begin(&self, record: &RunRecord, wanted: Move, origin: Origin) -> Result<Arc<RunRecord>, Error> {
        let means = self.means(&record.spec)?;
        self.check_workdir(&record.spec).await?;
        self.check_room()?;
        let ack = self.shared.store.change(Change::to(&record.id, wanted)).await?;
        self.spawn(&ack.record, means, origin)?;
        Ok(ack.record)
    }

    /// Sets an ended run back to ready, with its contract and without its past.
    pub async fn restart(&self, id: &str) -> Result<Arc<RunRecord>, Error> {
        let id = self.id(id)?;
        Ok(self.shared.store.change(Change::to(&id, Move::Restart)).await?.record)
    }

    fn spawn(&self, record: &Arc<RunRecord>, means: Means, origin: Origin) -> Result<(), Error> {
        let entry = self.shared.store.get(&record.id)?;
        let halt = entry.halt();
        let now = entry.record();
        // Somebody may have been quicker: then the attempt is over before it began.
        if now.attempt != record.attempt || now.state.status() != RunStatus::Running {
            return Ok(());
        }
        let attempt = Attempt { entry, record: Arc::clone(record), halt, means, origin };
        self.shared.tasks.spawn_on(self.clone().attempt(attempt), &self.shared.runtime);
        Ok(())
    }

    /// Records that the contract is fulfilled. The first end stands: the answer tells the state that holds.
    pub async fn complete(
        &self,
        id: &str,
        summary: String,
        payload: Option<String>,
    ) -> Result<Arc<RunRecord>, Error> {
        let entry = self.entry(id)?;
        let limit = self.shared.options.limits.agent_payload_bytes;
        if let Some(payload) = &payload
            && payload.len() as u64 > limit
        {
            return Err(Error::PayloadTooLarge { bytes: payload.len(), limit });
        }
        let record = entry.record();
        let stored = match payload {
            Some(payload) if !record.state.status().is_terminal() => {
                Some(payload::store(&self.shared.store, payload).await?)
            }
            _ => None,
        };
        let change = Change {
            summary: Some(self.cut_summary(summary)),
            payload: stored,
            ..Change::to(&record.id, Move::Complete)
        };
        Ok(self.shared.store.change(change).await?.record)
    }

    /// Ends a run. The first end stands: the answer tells the state that holds.
    pub async fn stop(&self, id: &str) -> Result<Arc<RunRecord>, Error> {
        let id = self.id(id)?;
        let change = Change::to(&id, Move::Stop(StopReason::Requested));
        Ok(self.shared.store.change(change).await?.record)
    }

    /// Removes a run with everything it left; one at work is ended by it.
    pub async fn delete(&self, id: &str) -> Result<(), Error> {
        let id = self.id(id)?;
        self.shared.store.delete(id.clone()).await?;
        let own = self.shared.options.home.join("work").join(id.as_str());
        let _ = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(own)).await;
        Ok(())
    }

    /// What [`Self::prune`] would remove, oldest first.
    pub fn prunable(&self, prune: Prune) -> Vec<Arc<RunRecord>> {
        let now = (self.shared.options.clock)();
        let mut ended = self.records();
        ended.retain(|record| record.state.status().is_terminal());
        ended.truncate(ended.len().saturating_sub(prune.keep));
        let is_old = |record: &Arc<RunRecord>| {
            record.state.ended_at().is_some_and(|at| now.since(at) >= prune.older_than)
        };
        ended.retain(is_old);
        ended
    }

    /// Removes ended runs with everything they left; returns what was removed.
    pub async fn prune(&self, prune: Prune) -> Result<Vec<Arc<RunRecord>>, Error> {
        let old = self.prunable(prune);
        // Side by side, so that many of them share a write.
        let removing = old.iter().map(|record| {
            let (engine, record) = (self.clone(), Arc::clone(record));
            async move { engine.delete(record.id.as_str()).await }
        });
        let removing: Vec<_> = removing.collect();
        let mut removed = futures_util::stream::iter(removing).buffer_unordered(PRUNED_AT_ONCE);
        while let Some(done) = removed.next().await {
            match done {
                // Somebody else was quicker, which is as good.
                Ok(()) | Err(Error::NotFound(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(old)
    }

    /// The tool servers and their tools.
    pub fn tools(&self) -> (Vec<ServerStatus>, Vec<ListedTool>) {
        let servers = &self.shared.servers;
        (servers.status(), servers.list(&[]))
    }

    /// Name of the model that runs use unless they say otherwise, and where it is.
    pub fn default_model(&self) -> (String, Option<String>) {
        match self.shared.endpoints.first() {
            Some(model) => (model.endpoint().model.clone(), Some(model.endpoint().url.clone())),
            None => (Rehearsal::NAME.to_owned(), None),
        }
    }

    /// Requests waiting for a model, by the model's name in configuration.
    pub fn queued(&self) -> Vec<(String, usize)> {
        self.shared.endpoints.iter().map(|model| (model.endpoint().name.clone(), model.queued())).collect()
    }

    /// Runs at work.
    pub fn active(&self) -> usize {
        let entries = self.shared.store.memory().all();
        entries.iter().filter(|entry| entry.record().state.status() == RunStatus::Running).count()
    }

    /// Who a token of an attempt's process speaks for. Returns `None` once that attempt is over.
    pub fn attempt_by_token(&self, token: &str) -> Option<AttemptGrant> {
        let (run, attempt) = self.shared.grants.find(token)?;
        // A run that was stopped is over, even while its process still has time to end.
        let record = self.shared.store.memory().get(&run)?.record();
        let lasts = record.attempt == attempt && record.state.status() == RunStatus::Running;
        lasts.then(|| grants::grant_for(run))
    }

    /// The options it was made with.
    pub fn options(&self) -> &Options {
        &self.shared.options
    }

    fn cut_summary(&self, summary: String) -> String {
        let limit = usize::try_from(self.shared.options.limits.agent_summary_bytes).unwrap_or(usize::MAX);
        if summary.len() <= limit {
            return summary;
        }
        let at = summary.floor_char_boundary(limit);
        format!("{}…", &summary[..at])
    }

    /// Waits until the writer has closed the file; call after [`Self::shutdown`], when this is the last handle.
    pub async fn closed(self) {
        let writer = lock(&self.shared.writer).take();
        drop(self);
        if let Some(writer) = writer {
            let _ = tokio::task::spawn_blocking(move || writer.join()).await;
        }
    }
}
