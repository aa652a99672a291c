//! The engine: starts runs, tells how they stand, ends them.
//!
//! [`Options`] make an [`Engine`]; an engine is a cheap handle that can be cloned. It ends when [`Engine::shutdown`] is
//! called; the next process goes on with the runs at work.

mod chat;
mod checks;
mod error;
mod executors;
mod grants;
mod options;
mod pause;
mod payload;
mod queries;
mod slots;
mod subscription;
mod supervisor;
mod task;
mod view;

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use crewkit_core::run::{MissingSecret, Move, Phase, RunId, RunStatus, StopReason, WaitsFor};
use crewkit_core::{Secret, Timestamp};
use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use chat::ChatFrame;
pub use error::Error;
pub use grants::{AttemptGrant, ON_OTHERS};
pub use options::Options;
pub use subscription::Subscription;
pub use view::{Moment, OutputRow, PayloadAddress, Status, output_rows, payload_resource};

use crate::event::Event;
use crate::model::Rehearsal;
use crate::settings::{RecordedSettings, RunSettings, Vault};
use crate::store::{
    Ack, Begin, Change, Documents, Effect, EventPage, NewRun, PayloadInfo, Pool, PruneRule, RunRecord,
    RunSpec, Store, StoreError, StoreLock,
};
use crate::sync::lock;
use crate::sys::MARK_RUN;
use crate::tools::mcp::{ListedTool, ServerStatus};
use executors::{ExecutorCache, Executors, choose};
use payload::Upload;
use supervisor::{Inbox, Request};

/// Longest idempotency key.
const KEY_BYTES: usize = 200;
/// Runs removed in one transaction, so that others do not wait long for it.
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
    /// What it is carried out with; absent for the settings of the handle it is started by.
    pub settings: Option<Arc<RecordedSettings>>,
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

/// A handle to the engine, with the settings of who asks.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
    /// What the asker's settings describe; the server's own unless [`Engine::with_settings`] says otherwise.
    asker: Arc<Executors>,
    /// Ends the engine's own tasks with the last handle; they have none.
    #[expect(dead_code, reason = "held for what happens when it is dropped")]
    handles: Option<Arc<LastHandle>>,
}

/// Shuts the engine down when the last handle outside of it is dropped.
struct LastHandle(CancellationToken);

impl Drop for LastHandle {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

struct Shared {
    options: Options,
    store: Store,
    /// What the server's own settings describe.
    own: Arc<Executors>,
    executors: ExecutorCache,
    vault: Vault,
    scratch: PathBuf,
    tasks: TaskTracker,
    runtime: tokio::runtime::Handle,
    shutdown: CancellationToken,
    /// Whether runs that wait for a slot are begun.
    claims: AtomicBool,
    writer: Mutex<Option<std::thread::JoinHandle<()>>>,
    chats: chat::Chats,
    grants: grants::Grants,
    requests: mpsc::UnboundedSender<Request>,
}

/// Ends what processes of an earlier server left behind, apart from those that are held for us, and removes directories of
/// runs that are no more.
fn sweep(store: &Store, options: &Options) {
    let record = |run: &str| {
        let run = RunId::from_str(run).ok()?;
        Some(store.memory().get(&run)?.record())
    };
    let killed = crate::sys::kill_marked(MARK_RUN, |run| {
        record(run).is_some_and(|record| held_in(options, &record).is_none())
    });
    if killed > 0 {
        tracing::warn!(killed, "processes that the last server left behind were ended");
    }
    for directory in not_held(store, options) {
        attempts_in(&directory).for_each(|attempt| crate::held::end_left(&attempt));
        let _ = std::fs::remove_dir_all(directory);
    }
    for entry in std::fs::read_dir(options.directory().join("work")).into_iter().flatten().flatten() {
        let run = entry.file_name().to_str().and_then(|name| RunId::from_str(name).ok());
        if run.is_some_and(|run| store.memory().get(&run).is_none()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Directories of processes that no attempt at work has.
fn not_held(store: &Store, options: &Options) -> Vec<PathBuf> {
    let runs = std::fs::read_dir(options.directory().join("processes")).into_iter().flatten().flatten();
    let is_held = |name: &str| {
        let entry = RunId::from_str(name).ok().and_then(|run| store.memory().get(&run));
        entry.is_some_and(|entry| held_in(options, &entry.record()).is_some())
    };
    runs.filter(|run| !run.file_name().to_str().is_some_and(is_held)).map(|run| run.path()).collect()
}

/// Where server and shim met for each attempt of a run.
fn attempts_in(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let attempts = std::fs::read_dir(directory).into_iter().flatten().flatten();
    attempts.map(|attempt| attempt.path())
}

/// Whether processes of runs are held in a home, or have ended since its last server did.
pub fn has_held_processes(home: &Path) -> bool {
    let runs = std::fs::read_dir(Options::new(home).directory().join("processes")).into_iter().flatten();
    runs.flatten().any(|run| attempts_in(&run.path()).next().is_some())
}

/// Where server and shim meet, if the run's attempt is at work and has a process that is held.
fn held_in(options: &Options, record: &RunRecord) -> Option<PathBuf> {
    let is_at_work = matches!(
        record.state.phase(),
        Some(Phase::Working | Phase::Waiting(crewkit_core::run::WaitsFor::Agents(_)))
    );
    let directory = options.processes_of(&record.id).join(record.attempt.to_string());
    (is_at_work && directory.join("order.json").exists()).then_some(directory)
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
    pub fn open(mut options: Options) -> BoxFuture<'static, Result<Self, Error>> {
        Box::pin(async move {
            let (home, lock, swept) = (options.home.clone(), options.lock.take(), options.clone());
            let (clock, limits) = (Arc::clone(&options.clock), Arc::clone(&options.limits));
            let opened = tokio::task::spawn_blocking(move || {
                let lock = match lock {
                    Some(lock) => lock,
                    None => Arc::new(StoreLock::of_home(&home)?),
                };
                let recovered = Store::open(&home, lock, &clock, &limits)?;
                sweep(&recovered.store, &swept);
                Ok::<_, crate::store::StoreError>(recovered)
            });
            let recovered = opened
                .await
                .map_err(|_| Error::Setting("the run store broke while opening".to_owned()))??;
            let vault = Vault::new(recovered.fingerprint_key);
            vault.learn(options.secrets.iter().map(Secret::expose));
            let executors = ExecutorCache::default();
            let own = executors.get(&options.settings, &options, &vault)?;
            let (requests, asked) = mpsc::unbounded_channel();
            let shutdown = CancellationToken::new();
            let engine = Self {
                asker: Arc::clone(&own),
                handles: Some(Arc::new(LastHandle(shutdown.clone()))),
                shared: Arc::new(Shared {
                    store: recovered.store,
                    own,
                    executors,
                    vault,
                    scratch: options.directory().join("scratch"),
                    tasks: TaskTracker::new(),
                    runtime: tokio::runtime::Handle::current(),
                    shutdown,
                    claims: AtomicBool::new(true),
                    writer: Mutex::new(Some(recovered.writer)),
                    chats: chat::Chats::default(),
                    grants: grants::Grants::default(),
                    requests,
                    options,
                }),
            };
            let interrupted = recovered.running.iter().filter_map(|run| engine.record(run.as_str()).ok());
            let interrupted: Vec<_> = interrupted
                .filter(|record| record.state.phase() == Some(&Phase::Working) && !engine.is_held(record))
                .collect();
            // What cannot be written now, the supervisor tries again.
            futures_util::future::join_all(interrupted.iter().map(|record| engine.try_take_up(record))).await;
            let inbox = Inbox { moved: recovered.moved, requests: asked };
            let supervising = supervisor::supervise(engine.internal(), inbox, recovered.running);
            engine.shared.tasks.spawn(supervising);
            engine.spawn_chores();
            Ok(engine)
        })
    }

    /// Returns a handle for an asker with settings of its own: they hold for what is asked through it.
    ///
    /// Its models and tool servers live as long as a handle or a run uses them.
    pub fn with_settings(&self, settings: &Arc<RunSettings>) -> Result<Self, Error> {
        let asker = self.shared.executors.get(settings, &self.shared.options, &self.shared.vault)?;
        let engine = Self { asker, ..self.clone() };
        let settling = engine.internal();
        self.shared.tasks.spawn_on(
            async move {
                tokio::select! {
                    () = settling.asker.servers.settle() => {}
                    () = settling.shared.shutdown.cancelled() => {}
                }
            },
            &self.shared.runtime,
        );
        Ok(engine)
    }

    /// Returns settings as they are written down, and remembers their secrets.
    pub fn record_settings(&self, settings: &RunSettings) -> Arc<RecordedSettings> {
        Arc::new(self.shared.vault.record(settings))
    }

    /// Puts the secrets of recorded settings back. What needs a secret that nobody has brought is left out.
    pub fn fill_settings(&self, settings: &RecordedSettings) -> RunSettings {
        self.shared.vault.fill(settings)
    }

    /// The secrets that nobody has brought, of those that a run with these settings and this spec needs.
    pub fn missing_in(&self, settings: &RecordedSettings, spec: &RunSpec) -> Vec<MissingSecret> {
        // A run whose driver is unknown ends with that, whatever else is missing.
        let chosen = choose(settings.redacted(), spec).ok();
        chosen.map(|what| self.shared.vault.missing(settings, what)).unwrap_or_default()
    }

    /// Tells when somebody has brought a secret.
    pub fn watch_secrets(&self) -> watch::Receiver<u64> {
        self.shared.vault.watch()
    }

    /// Remembers secrets that somebody brings. Runs that wait for one of them go on.
    pub fn learn<'a>(&self, secrets: impl Iterator<Item = &'a str>) {
        self.shared.vault.learn(secrets);
    }

    /// Whether a process of the run's attempt is held for this server.
    fn is_held(&self, record: &RunRecord) -> bool {
        held_in(&self.shared.options, record).is_some()
    }

    /// Adds to the input of the process that carries out a run, if its driver asked for one that stays open. What is added is
    /// read also if this server ends.
    pub async fn append_input(&self, id: &str, text: String) -> Result<(), Error> {
        self.change_input(id, move |directory| crate::held::append_input(directory, &text)).await
    }

    /// Closes the input of the process that carries out a run once everything is read.
    pub async fn close_input(&self, id: &str) -> Result<(), Error> {
        self.change_input(id, crate::held::close_input).await
    }

    async fn change_input(
        &self,
        id: &str,
        change: impl FnOnce(&Path) -> std::io::Result<()> + Send + 'static,
    ) -> Result<(), Error> {
        let directory = held_in(&self.shared.options, &*self.record(id)?);
        let refused = || Error::Input(id.to_owned());
        let directory = directory.ok_or_else(refused)?;
        let changed = tokio::task::spawn_blocking(move || change(&directory)).await;
        changed.map_err(|_| refused())?.map_err(|_| refused())
    }

    /// A handle for a task of the engine itself.
    fn internal(&self) -> Self {
        Self { handles: None, ..self.clone() }
    }

    fn spawn_chores(&self) {
        let engine = self.internal();
        self.shared.tasks.spawn(async move {
            tokio::select! {
                () = engine.shared.own.servers.settle() => {}
                () = engine.shared.shutdown.cancelled() => {}
            }
        });
        let engine = self.internal();
        self.shared.tasks.spawn(async move {
            loop {
                engine.forget_the_old().await;
                tokio::select! {
                    () = tokio::time::sleep(Duration::from_hours(1)) => {}
                    () = engine.shared.shutdown.cancelled() => return,
                }
            }
        });
    }

    /// Removes ended runs and events that are older than they are kept.
    async fn forget_the_old(&self) {
        let limits = &self.shared.options.limits;
        let days = |days: u64| Duration::from_secs(days.saturating_mul(86_400));
        if limits.agent_retention_days > 0 {
            let wish = Prune { older_than: days(limits.agent_retention_days), keep: 0 };
            if let Err(error) = self.prune(wish).await {
                tracing::warn!(%error, "ended runs could not be pruned");
            }
        }
        let now = (self.shared.options.clock)().millis();
        let kept = u64::try_from(days(limits.events_days).as_millis()).unwrap_or(u64::MAX);
        let before = Timestamp::from_millis(now.saturating_sub(kept));
        if limits.events_days > 0 && self.shared.store.forget_events(before).await.is_err() {
            tracing::warn!("old events could not be removed: the store is closed");
        }
    }

    /// Leaves runs that wait for a slot to the next process. Those at work go on.
    pub fn stop_claiming(&self) {
        self.shared.claims.store(false, Ordering::Relaxed);
    }

    /// Lets go of every run and closes the store. The next process goes on with runs at work.
    pub async fn shutdown(&self) {
        self.shared.shutdown.cancel();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
        // What was stopped a moment ago ends, although nobody waits for it any more.
        let shared = Arc::clone(&self.shared);
        let told = self.shared.runtime.spawn_blocking(move || {
            let stopped = not_held(&shared.store, &shared.options);
            stopped
                .iter()
                .flat_map(|run| attempts_in(run))
                .for_each(|attempt| crate::held::ask_to_end(&attempt));
        });
        let _ = told.await;
    }

    /// Creates a run and queues it; returns once that is on disk. The supervisor carries it out.
    pub async fn start(&self, start: Start) -> Result<Arc<RunRecord>, Error> {
        self.check_contract(&start.contract)?;
        Ok(self.create_run(start, Begin::Now).await?.record)
    }

    /// Creates a run that waits to be started.
    pub async fn create(&self, start: Start) -> Result<Arc<RunRecord>, Error> {
        self.check_length(&start.contract)?;
        Ok(self.create_run(start, Begin::Later).await?.record)
    }

    async fn create_run(&self, start: Start, begin: Begin) -> Result<Ack, Error> {
        let settings = start.settings.unwrap_or_else(|| Arc::clone(&self.asker.recorded));
        choose(settings.redacted(), &start.spec)?;
        self.check_workdir(&start.spec).await?;
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
            settings: Some(settings),
            begin,
        };
        Ok(self.shared.store.create(new).await?)
    }

    /// What a run shall do.
    pub async fn contract(&self, id: &RunId) -> Result<String, Error> {
        let contract = self.shared.store.reader().contract(id).await?;
        Ok(contract.ok_or_else(|| StoreError::Unknown(id.clone()))?)
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
        self.check_contract(&self.contract(&record.id).await?)?;
        self.begin(&record, Move::Start).await
    }

    /// Lets a stopped run go on where it was. Calls whose result is not known are not repeated.
    ///
    /// A run whose secrets are missing goes on with the settings of this handle, if they have secrets for the same addresses;
    /// this holds for one that waits for them, too.
    pub async fn resume(&self, id: &str) -> Result<Arc<RunRecord>, Error> {
        let record = self.record(id)?;
        let is_waiting = matches!(record.state.phase(), Some(Phase::Waiting(WaitsFor::Secret(_))));
        if !is_waiting {
            return self.begin(&record, Move::Resume).await;
        }
        let Some(settings) = self.replacement(&record)? else { return Ok(record) };
        let change = Change { settings: Some(settings), ..Change::to(&record.id, Move::Requeue) };
        Ok(self.shared.store.change(change).await?.record)
    }

    async fn begin(&self, record: &RunRecord, wanted: Move) -> Result<Arc<RunRecord>, Error> {
        choose(self.settings_of(record).redacted(), &record.spec)?;
        self.check_workdir(&record.spec).await?;
        let settings = if wanted == Move::Resume { self.replacement(record)? } else { None };
        let change = Change { settings, ..Change::to(&record.id, wanted) };
        Ok(self.shared.store.change(change).await?.record)
    }

    /// Sets an ended run back to ready, with its contract and without its past. One whose secrets are missing takes the
    /// settings of this handle, if they have secrets for the same addresses.
    pub async fn restart(&self, id: &str) -> Result<Arc<RunRecord>, Error> {
        let record = self.record(id)?;
        let settings = self.replacement(&record).unwrap_or_default();
        let change = Change { settings, ..Change::to(&record.id, Move::Restart) };
        Ok(self.shared.store.change(change).await?.record)
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
            payload: stored.as_ref().map(Upload::info),
            ..Change::to(&record.id, Move::Complete)
        };
        let ack = self.shared.store.change(change).await?;
        if ack.effect == Effect::Done {
            stored.into_iter().for_each(Upload::taken);
        }
        Ok(ack.record)
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
        self.shared.store.delete(id).await?;
        Ok(())
    }

    /// Ends every run that is not ended, and waits until no process of theirs is left. Returns how many there were.
    pub async fn stop_all(&self, reason: StopReason) -> Result<usize, Error> {
        let running = self.records().into_iter().filter(|run| run.state.status() == RunStatus::Running);
        let stopping: Vec<_> = running
            .map(|run| {
                let store = self.shared.store.clone();
                async move { store.change(Change::to(&run.id, Move::Stop(reason))).await }
            })
            .collect();
        let count = stopping.len();
        for stopped in futures_util::future::join_all(stopping).await {
            match stopped {
                Ok(_) | Err(StoreError::Unknown(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let (idle, is_idle) = oneshot::channel();
        let _ = self.shared.requests.send(Request::Idle(idle));
        let _ = is_idle.await;
        Ok(count)
    }

    /// What [`Self::prune`] would remove, oldest first.
    pub fn prunable(&self, prune: Prune) -> Vec<Arc<RunRecord>> {
        let now = (self.shared.options.clock)();
        let mut ended = self.records();
        ended.retain(|record| record.is_prunable());
        ended.truncate(ended.len().saturating_sub(prune.keep));
        let is_old = |record: &Arc<RunRecord>| {
            record.state.ended_at().is_some_and(|at| now.since(at) >= prune.older_than)
        };
        ended.retain(is_old);
        ended
    }

    /// Removes ended runs with everything they left; returns what was removed. Tasks of the fleet go with their agent.
    pub async fn prune(&self, prune: Prune) -> Result<Vec<Arc<RunRecord>>, Error> {
        let mut removed = Vec::new();
        loop {
            let rule = PruneRule { older_than: prune.older_than, keep: prune.keep, most: PRUNED_AT_ONCE };
            let runs = self.shared.store.prune(rule).await?;
            let is_last = runs.len() < PRUNED_AT_ONCE;
            removed.extend(runs);
            if is_last {
                return Ok(removed);
            }
        }
    }

    /// The tool servers and their tools.
    pub fn tools(&self) -> (Vec<ServerStatus>, Vec<ListedTool>) {
        let servers = &self.asker.servers;
        (servers.status(), servers.list())
    }

    /// Name of the model that runs use unless they say otherwise, and where it is.
    pub fn default_model(&self) -> (String, Option<String>) {
        match self.asker.endpoints.first() {
            Some(model) => (model.endpoint().model.clone(), Some(model.endpoint().url.clone())),
            None => (Rehearsal::NAME.to_owned(), None),
        }
    }

    /// Requests waiting for a model, by the model's name in configuration.
    pub fn queued(&self) -> Vec<(String, usize)> {
        self.asker.endpoints.iter().map(|model| (model.endpoint().name.clone(), model.queued())).collect()
    }

    /// Runs that have not ended, without the tasks of the fleet.
    pub fn active(&self) -> usize {
        let is_active =
            |run: &&Arc<RunRecord>| run.state.status() == RunStatus::Running && run.spec.pool == Pool::Runs;
        self.records().iter().filter(is_active).count()
    }

    /// Who a token of an attempt's process speaks for. Returns `None` once that attempt is over.
    pub fn attempt_by_token(&self, token: &str) -> Option<AttemptGrant> {
        let (run, attempt) = self.shared.grants.find(token)?;
        // A run that was stopped is over, even while its process still has time to end.
        let record = self.shared.store.memory().get(&run)?.record();
        let lasts = record.attempt == attempt && record.state.status() == RunStatus::Running;
        lasts.then(|| grants::grant_for(run, attempt, &self.shared.options.may))
    }

    /// The documents that other parts of the server keep in the home's database.
    pub fn documents(&self) -> Documents {
        self.shared.store.documents()
    }

    /// Returns at most `limit` entries of the event log after the cursor `after`; 0 stands for the oldest that is kept.
    pub async fn events(&self, after: u64, limit: usize) -> Result<EventPage, Error> {
        let most = usize::try_from(self.shared.options.limits.agent_output_entries).unwrap_or(usize::MAX);
        let page = self.shared.store.reader().event_log(after, limit.clamp(1, most.max(1))).await?;
        page.ok_or(Error::CursorExpired(after))
    }

    /// The number of the newest event, as it grows.
    pub fn watch_events(&self) -> watch::Receiver<u64> {
        self.shared.store.watch_events()
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
