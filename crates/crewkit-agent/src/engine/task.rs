//! One attempt of one run, from its start to its recorded end.

use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crewkit_core::run::{Move, StopReason};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use super::{Engine, Error, payload};
use crate::contract::{Assignment, Caps, Durability, End, Transcript, carry_out, rebuild};
use crate::driver::{Errand, ProcessDriver, drive};
use crate::event::EventBody;
use crate::model::{Message, Model, Rehearsal};
use crate::store::{Change, Entry, RunRecord, Store, StoreError};
use crate::sync::lock;
use crate::tools::{RunTools, Workspace};

/// Pause before an end that could not be written is written again.
const REWRITE_PAUSE: Duration = Duration::from_secs(1);
/// Words kept of a reply that is arriving, for previews.
const SPEAKING_BYTES: usize = 400;

/// An attempt that was made and is to be carried out.
pub(super) struct Attempt {
    pub(super) entry: Arc<Entry>,
    pub(super) record: Arc<RunRecord>,
    pub(super) halt: CancellationToken,
    pub(super) means: Means,
    pub(super) origin: Origin,
}

/// Whether an attempt begins or goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    Fresh,
    Resumed,
}

/// What carries out a contract.
#[derive(Clone)]
pub(super) enum Means {
    Loop(Arc<dyn Model>),
    Process(Arc<ProcessDriver>),
}

/// Writes to the store under the attempt's number, so that an attempt that is over changes nothing.
struct StoreTranscript {
    store: Store,
    record: Arc<RunRecord>,
}

impl Transcript for StoreTranscript {
    fn append(
        &self,
        entries: Vec<EventBody>,
        durability: Durability,
    ) -> BoxFuture<'_, Result<(), StoreError>> {
        async move {
            if entries.is_empty() {
                return Ok(());
            }
            let (id, attempt) = (self.record.id.clone(), self.record.attempt);
            match durability {
                Durability::Now => self.store.append(id, attempt, entries).await.map(drop),
                Durability::Soon => self.store.append_later(id, attempt, entries).await,
            }
        }
        .boxed()
    }
}

impl Engine {
    /// Carries out an attempt and records how it ended.
    pub(super) async fn attempt(self, attempt: Attempt) {
        let worked = AssertUnwindSafe(self.work(&attempt)).catch_unwind();
        let end = tokio::select! {
            worked = worked => worked.unwrap_or_else(|_| End::Stopped {
                reason: StopReason::Internal,
                error: "the agent broke by a fault of crewkit; the log has the details".to_owned(),
            }),
            // The store still says running; the next process will tell the truth about it.
            () = self.shared.shutdown.cancelled() => return,
        };
        lock(&attempt.entry.speaking).clear();
        self.record_end(&attempt.record, end).await;
    }

    async fn work(&self, attempt: &Attempt) -> End {
        let transcript =
            StoreTranscript { store: self.shared.store.clone(), record: Arc::clone(&attempt.record) };
        match &attempt.means {
            Means::Process(driver) => self.run_process(attempt, driver, &transcript).await,
            Means::Loop(model) => match self.run_loop(attempt, &**model, &transcript).await {
                Ok(end) => end,
                Err(Error::Store(error)) => error.into(),
                Err(error) => End::Stopped { reason: StopReason::Internal, error: error.to_string() },
            },
        }
    }

    async fn run_loop(
        &self,
        attempt: &Attempt,
        model: &dyn Model,
        transcript: &dyn Transcript,
    ) -> Result<End, Error> {
        let (record, limits) = (&attempt.record, &self.shared.options.limits);
        let begun = Instant::now();
        if model.name() == Rehearsal::NAME {
            let note = EventBody::note(
                "This is a rehearsal: no model is configured or asked, and nothing is changed.",
            );
            transcript.append(vec![note], Durability::Soon).await?;
        }
        let workspace = self.open_workspace(record)?;
        let workdir = workspace.as_ref().map(|workspace| workspace.path().to_owned());
        let servers = Arc::new(self.shared.servers.for_run(record.id.as_str()).await);
        let toolbox = RunTools::new(workspace, servers, limits);
        let past = match attempt.origin {
            Origin::Fresh => Vec::new(),
            Origin::Resumed => self.past(record).await?,
        };
        let entry = Arc::clone(&attempt.entry);
        let speaking = move |words: &str| {
            let mut said = lock(&entry.speaking);
            said.push_str(words);
            let excess = said.len().saturating_sub(SPEAKING_BYTES);
            let from = said.ceil_char_boundary(excess);
            said.drain(..from);
        };
        let clear = ClearSpeaking { entry: &attempt.entry, inner: transcript };
        let assignment = Assignment {
            id: &record.id,
            contract: &record.contract,
            workdir,
            caps: Caps::of(limits, &record.spec),
            used: record.usage,
            past,
            model,
            toolbox: &toolbox,
            transcript: &clear,
            halt: attempt.halt.clone(),
            speaking: &speaking,
            elapsed: Arc::new(move || begun.elapsed()),
            max_payload: limits.agent_payload_bytes,
            max_result: usize::try_from(limits.tool_result_bytes).unwrap_or(usize::MAX),
            parallel: usize::try_from(limits.tool_parallel_calls).unwrap_or(usize::MAX),
        };
        let working = carry_out(assignment).boxed();
        let wall = Caps::of(limits, &record.spec).wall;
        if wall.is_zero() {
            return Ok(working.await);
        }
        // The cap is checked before each request; this catches a tool or a model that does not come back.
        let generous = wall + Duration::from_secs(limits.llm_request_seconds.min(60));
        Ok(tokio::time::timeout(generous, working).await.unwrap_or_else(|_| End::Stopped {
            reason: StopReason::TimeLimit,
            error: format!("the cap of {} seconds is reached", wall.as_secs()),
        }))
    }

    async fn run_process(
        &self,
        attempt: &Attempt,
        driver: &ProcessDriver,
        transcript: &dyn Transcript,
    ) -> End {
        let (record, options) = (&attempt.record, &self.shared.options);
        let workdir = match &record.spec.workdir {
            Some(path) => path.clone(),
            None => match self.own_directory(record) {
                Ok(path) => path,
                Err(error) => {
                    return End::Stopped { reason: StopReason::DriverFailed, error: error.to_string() };
                }
            },
        };
        if attempt.origin == Origin::Resumed {
            let note = EventBody::note(format!("{} cannot go on where it was and begins anew", driver.name));
            if let Err(error) = transcript.append(vec![note], Durability::Soon).await {
                return error.into();
            }
        }
        let issued = match self.shared.grants.issue(record) {
            Ok(issued) => issued,
            Err(error) => {
                return End::Stopped { reason: StopReason::DriverFailed, error: error.to_string() };
            }
        };
        let identity = issued.variables(options.server_socket.as_deref());
        let errand = Errand {
            id: &record.id,
            contract: &record.contract,
            workdir: &workdir,
            environment: &options.child_environment,
            identity: &identity,
            helper: &options.helper,
            transcript,
            halt: attempt.halt.clone(),
            wall: Caps::of(&options.limits, &record.spec).wall,
            limits: &options.limits,
        };
        drive(driver, errand).boxed().await
    }

    fn open_workspace(&self, record: &RunRecord) -> Result<Option<Workspace>, Error> {
        let Some(path) = &record.spec.workdir else { return Ok(None) };
        let options = &self.shared.options;
        let workspace = Workspace::open(
            path,
            record.id.as_str(),
            &self.shared.scratch,
            Arc::clone(&self.shared.commands),
            Arc::clone(&options.limits),
        );
        workspace.map(Some).map_err(|source| Error::Workdir { path: path.clone(), source })
    }

    /// A directory for a driver whose run names none.
    fn own_directory(&self, record: &RunRecord) -> Result<PathBuf, Error> {
        let path = self.shared.options.home.join("work").join(record.id.as_str());
        crate::sys::create_private_dir(&path)
            .map_err(|source| Error::Workdir { path: path.clone(), source })?;
        Ok(path)
    }

    /// The conversation so far, from the transcript.
    async fn past(&self, record: &RunRecord) -> Result<Vec<Message>, Error> {
        let reader = self.shared.store.reader();
        let mut events = Vec::new();
        loop {
            let after = events.last().map_or(0, |event: &Arc<crate::event::Event>| event.seq);
            let page = reader.events(&record.id, after, 1000).await?;
            if page.is_empty() {
                break;
            }
            events.extend(page);
        }
        Ok(rebuild(events.iter().map(|event| &**event)))
    }

    /// Writes the end; tries again for as long as the disk does not take it.
    async fn record_end(&self, record: &RunRecord, end: End) {
        let (wanted, summary, error, mut text) = match end {
            End::Halted => return,
            End::Completed { summary, payload } => (Move::Complete, Some(summary), None, payload),
            End::Stopped { reason, error } => (Move::Stop(reason), None, Some(error), None),
        };
        let mut stored = None;
        loop {
            if let Some(payload) = text.take() {
                match payload::store(&self.shared.store, payload.clone()).await {
                    Ok(info) => stored = Some(info),
                    Err(error) => {
                        tracing::error!(run = %record.id, %error, "a payload could not be written; trying again");
                        text = Some(payload);
                        if self.pause().await.is_break() {
                            return;
                        }
                        continue;
                    }
                }
            }
            let change = Change {
                id: record.id.clone(),
                attempt: Some(record.attempt),
                wanted,
                summary: summary.clone().map(|summary| self.cut_summary(summary)),
                error: error.clone(),
                payload: stored.clone(),
            };
            match self.shared.store.change(change).await {
                Ok(_)
                | Err(
                    StoreError::Unknown(_) | StoreError::Stale | StoreError::Illegal(_) | StoreError::Closed,
                ) => {
                    return;
                }
                Err(error) => {
                    tracing::error!(run = %record.id, %error, "an end could not be written; trying again");
                }
            }
            if self.pause().await.is_break() {
                return;
            }
        }
    }

    async fn pause(&self) -> std::ops::ControlFlow<()> {
        tokio::select! {
            () = tokio::time::sleep(REWRITE_PAUSE) => std::ops::ControlFlow::Continue(()),
            () = self.shared.shutdown.cancelled() => std::ops::ControlFlow::Break(()),
        }
    }
}

/// Forgets the words that were arriving once they are in the transcript.
struct ClearSpeaking<'a> {
    entry: &'a Entry,
    inner: &'a dyn Transcript,
}

impl Transcript for ClearSpeaking<'_> {
    fn append(
        &self,
        entries: Vec<EventBody>,
        durability: Durability,
    ) -> BoxFuture<'_, Result<(), StoreError>> {
        lock(&self.entry.speaking).clear();
        self.inner.append(entries, durability)
    }
}
