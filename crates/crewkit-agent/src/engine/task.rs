//! One attempt of one run, from its start to its recorded end.

use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crewkit_core::Limits;
use crewkit_core::run::{MissingSecret, Move, Phase, StopReason, WaitsFor};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use super::executors::{Executor, Executors, choose};
use super::grants::TokenHash;
use super::payload::{self, Upload};
use super::{Engine, Error};
use crate::contract::{
    Assignment, Caps, Contract, Durability, End, Goal, Transcript, TranscriptError, carry_out, rebuild,
};
use crate::driver::{Append, Attendance, Errand, ProcessDriver, are_held, drive, go_on};
use crate::event::EventBody;
use crate::held::Held;
use crate::model::{Message, Model, Rehearsal};
use crate::settings::Use;
use crate::store::{Change, Effect, Entry, Pool, Progress, RunRecord, RunSpec, Store, StoreError};
use crate::sync::lock;
use crate::sys::MARK_RUN;
use crate::tools::{RunTools, Workspace};

/// Pause before an end that could not be written is written again.
const REWRITE_PAUSE: Duration = Duration::from_secs(1);
/// Words kept of a reply that is arriving, for previews.
const SPEAKING_BYTES: usize = 400;

/// An attempt that has a slot and is to be carried out.
pub(super) struct Attempt {
    pub(super) entry: Arc<Entry>,
    pub(super) record: Arc<RunRecord>,
    /// Cancelled when the attempt is over, whoever ended it.
    pub(super) stop: CancellationToken,
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
    ) -> BoxFuture<'_, Result<(), TranscriptError>> {
        async move {
            if entries.is_empty() {
                return Ok(());
            }
            let (id, attempt) = (self.record.id.clone(), self.record.attempt);
            match durability {
                Durability::Now => self.store.append(id, attempt, entries).await.map(drop)?,
                Durability::Soon => self.store.append_later(id, attempt, entries, None).await?,
            }
            Ok(())
        }
        .boxed()
    }
}

impl StoreTranscript {
    /// Appends what a process printed, and how far that is.
    fn append_read(
        &self,
        entries: Vec<EventBody>,
        read: Progress,
    ) -> BoxFuture<'_, Result<(), TranscriptError>> {
        async move {
            if entries.is_empty() {
                return Ok(());
            }
            let (id, attempt) = (self.record.id.clone(), self.record.attempt);
            Ok(self.store.append_later(id, attempt, entries, Some(read)).await?)
        }
        .boxed()
    }
}

impl From<StoreError> for TranscriptError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unknown(_) | StoreError::Stale => Self::AttemptOver,
            error => Self::Failed(error.to_string()),
        }
    }
}

impl Engine {
    /// Carries out an attempt and records how it ended.
    pub(super) async fn attempt(self, attempt: Attempt) {
        // One whose process was held works already.
        if attempt.record.state.phase() != Some(&Phase::Working) && !self.claim(&attempt).await {
            return;
        }
        let meeting = self.meeting_of(&attempt.record);
        let worked = AssertUnwindSafe(self.work(&attempt)).catch_unwind();
        let end = tokio::select! {
            worked = worked => worked.unwrap_or_else(|_| End::Stopped {
                reason: StopReason::Internal,
                error: "the agent broke by a fault of crewkit; the log has the details".to_owned(),
            }),
            // The next process goes on with what is recorded as running.
            () = self.shared.shutdown.cancelled() => return,
        };
        lock(&attempt.entry.speaking).clear();
        let left = meeting.clone();
        let _ = self.shared.runtime.spawn_blocking(move || crate::held::end_left(&left)).await;
        self.record_end(&attempt.record, end).await;
        if !self.shared.shutdown.is_cancelled() {
            let _ = tokio::fs::remove_dir_all(meeting).await;
        }
        if attempt.stop.is_cancelled() && attempt.record.spec.workdir.is_some() {
            // What was cut off in the middle of a command ends by itself; the next attempt must not meet it.
            let run = attempt.record.id.clone();
            let swept = self.shared.runtime.spawn_blocking(move || {
                crate::sys::kill_marked(MARK_RUN, |mark| mark == run.as_str());
            });
            let _ = swept.await;
        }
    }

    /// Records that the attempt works. Returns whether it may: somebody may have ended it meanwhile.
    async fn claim(&self, attempt: &Attempt) -> bool {
        let record = &attempt.record;
        loop {
            let change = Change { attempt: Some(record.attempt), ..Change::to(&record.id, Move::Claim) };
            let claimed = tokio::select! {
                claimed = self.shared.store.change(change) => claimed,
                () = self.shared.shutdown.cancelled() => return false,
            };
            match claimed {
                Ok(_) => return true,
                Err(error) if is_over(&error) => return false,
                Err(error) => {
                    tracing::error!(run = %record.id, %error, "a start could not be written; trying again");
                }
            }
            if attempt.stop.is_cancelled() || self.pause().await.is_break() {
                return false;
            }
        }
    }

    /// Takes up a run whose server ended while it was carried out: the built-in loop goes on from the transcript, a process
    /// that is not held never began or is gone with its server.
    pub(super) async fn take_up(&self, record: &RunRecord) {
        while self.try_take_up(record).await.is_err() {
            if self.pause().await.is_break() {
                return;
            }
        }
    }

    pub(super) async fn try_take_up(&self, record: &RunRecord) -> Result<(), StoreError> {
        let chosen = choose(self.settings_of(record).redacted(), &record.spec);
        let goes_on = match chosen {
            Ok(Use::Loop(_)) => true,
            Ok(Use::Driver(_)) => are_held(&self.shared.options.helper),
            Err(_) => false,
        };
        let is_allowed = u64::from(record.restarts) < self.shared.options.limits.agent_restarts;
        let change = if goes_on && is_allowed {
            Change {
                note: Some("The server ended while the agent was at work; it goes on.".to_owned()),
                ..Change::to(&record.id, Move::Requeue)
            }
        } else {
            let why = "the server ended while the agent was at work; resume it to go on";
            Change {
                error: Some(why.to_owned()),
                ..Change::to(&record.id, Move::Stop(StopReason::ServerRestarted))
            }
        };
        let change = Change { attempt: Some(record.attempt), ..change };
        match self.shared.store.change(change).await {
            Ok(_) => Ok(()),
            Err(error) if is_over(&error) => Ok(()),
            Err(error) => {
                tracing::error!(run = %record.id, %error, "an interrupted run could not be taken up yet");
                Err(error)
            }
        }
    }

    async fn work(&self, attempt: &Attempt) -> End {
        let record = &attempt.record;
        let transcript =
            StoreTranscript { store: self.shared.store.clone(), record: Arc::clone(&attempt.record) };
        if let Some(held) = Held::adopt(&self.meeting_of(record)).await {
            let token = TokenHash::try_from(held.order.token.as_slice()).ok();
            let _grant = token.map(|token| self.shared.grants.restore(record, token));
            let append = |entries, read| transcript.append_read(entries, read);
            return go_on(held, self.attendance(attempt, &append)).boxed().await;
        }
        let prepared = self.executors_of(record).and_then(|executors| {
            let executor = executors.executor(&record.spec)?;
            Ok((executors, executor))
        });
        let (executors, executor) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => return End::Stopped { reason: StopReason::DriverFailed, error: error.to_string() },
        };
        let working = async {
            let contract = self.contract(&record.id).await?;
            match &executor {
                Executor::Process(driver) => {
                    Ok(self.run_process(attempt, &executors, driver, &contract, &transcript).await)
                }
                Executor::Loop(model) => {
                    self.run_loop(attempt, &executors, &**model, &contract, &transcript).await
                }
            }
        };
        match working.await {
            Ok(end) => end,
            Err(Error::Store(error)) => TranscriptError::from(error).into(),
            Err(error) => End::Stopped { reason: StopReason::Internal, error: error.to_string() },
        }
    }

    async fn run_loop(
        &self,
        attempt: &Attempt,
        executors: &Executors,
        model: &dyn Model,
        contract: &str,
        transcript: &dyn Transcript,
    ) -> Result<End, Error> {
        let (record, limits) = (&attempt.record, &self.shared.options.limits);
        let begun = Instant::now();
        let workspace = self.open_workspace(record, executors)?;
        let workdir = workspace.as_ref().map(|workspace| workspace.path().to_owned());
        let servers = Arc::new(executors.servers.for_run(record.id.as_str()).await);
        let mut notes: Vec<EventBody> = servers.absent().into_iter().map(EventBody::note).collect();
        if model.name() == Rehearsal::NAME {
            notes.push(EventBody::note(
                "This is a rehearsal: no model is configured or asked, and nothing is changed.",
            ));
        }
        if let Err(error) = transcript.append(notes, Durability::Soon).await {
            return Ok(error.into());
        }
        let toolbox = RunTools::new(workspace, servers, limits);
        let past = if record.resumed { self.past(record).await? } else { Vec::new() };
        let entry = Arc::clone(&attempt.entry);
        let on_text = move |words: &str| {
            let mut said = lock(&entry.speaking);
            said.push_str(words);
            let excess = said.len().saturating_sub(SPEAKING_BYTES);
            let from = said.ceil_char_boundary(excess);
            said.drain(..from);
        };
        let clear = ClearSpeaking { entry: &attempt.entry, inner: transcript };
        let caps = caps(limits, &record.spec);
        let time = caps.time;
        let assignment = Assignment {
            goal: Goal::Contract(Contract {
                id: &record.id,
                text: contract,
                workdir: workdir.as_deref(),
                max_payload: limits.agent_payload_bytes,
            }),
            caps,
            used: record.usage,
            past,
            model,
            toolbox: &toolbox,
            transcript: &clear,
            halt: attempt.stop.clone(),
            on_text: &on_text,
            elapsed: &|| begun.elapsed(),
            max_result: usize::try_from(limits.tool_result_bytes).unwrap_or(usize::MAX),
            parallel: usize::try_from(limits.tool_parallel_calls).unwrap_or(usize::MAX),
        };
        let working = carry_out(assignment).boxed();
        if time.is_zero() {
            return Ok(working.await);
        }
        // The cap is checked before each request; this catches a tool or a model that does not come back.
        let generous = time.saturating_add(Duration::from_secs(limits.llm_request_seconds.min(60)));
        Ok(tokio::time::timeout(generous, working).await.unwrap_or_else(|_| End::Stopped {
            reason: StopReason::TimeLimit,
            error: format!("the cap of {} seconds is reached", time.as_secs()),
        }))
    }

    async fn run_process(
        &self,
        attempt: &Attempt,
        executors: &Executors,
        driver: &ProcessDriver,
        contract: &str,
        transcript: &StoreTranscript,
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
        if record.resumed {
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
            contract,
            workdir: &workdir,
            meeting: &self.meeting_of(record),
            environment: &executors.settings.environment,
            identity: &identity,
            token: issued.hash(),
            helper: &options.helper,
        };
        let append = |entries, read| transcript.append_read(entries, read);
        drive(driver, errand, self.attendance(attempt, &append)).boxed().await
    }

    fn attendance<'a>(&'a self, attempt: &Attempt, append: Append<'a>) -> Attendance<'a> {
        let (record, limits) = (&attempt.record, &self.shared.options.limits);
        Attendance {
            append,
            read: record.progress,
            halt: attempt.stop.clone(),
            // A driver's turns are its own business unless the run asks for a cap.
            caps: Caps { turns: record.spec.max_turns.unwrap_or(0), ..caps(limits, &record.spec) },
            grace: stop_grace(
                Duration::from_secs(limits.driver_stop_grace_seconds),
                limits,
                record.spec.pool,
            ),
            limits,
        }
    }

    /// Where server and shim of an attempt meet.
    fn meeting_of(&self, record: &RunRecord) -> PathBuf {
        self.shared.options.processes_of(&record.id).join(record.attempt.to_string())
    }

    fn open_workspace(&self, record: &RunRecord, executors: &Executors) -> Result<Option<Workspace>, Error> {
        let Some(path) = &record.spec.workdir else { return Ok(None) };
        let options = &self.shared.options;
        let workspace = Workspace::open(
            path,
            record.id.as_str(),
            &self.shared.scratch,
            Arc::clone(&executors.commands),
            Arc::clone(&options.limits),
        );
        workspace.map(Some).map_err(|source| Error::Workdir { path: path.clone(), source })
    }

    /// A directory for a driver whose run names none.
    fn own_directory(&self, record: &RunRecord) -> Result<PathBuf, Error> {
        let path = self.shared.options.directory().join("work").join(record.id.as_str());
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
        Ok(rebuild(events.iter().map(|event| &event.body)))
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
                attempt: Some(record.attempt),
                summary: summary.clone().map(|summary| self.cut_summary(summary)),
                error: error.clone(),
                payload: stored.as_ref().map(Upload::info),
                ..Change::to(&record.id, wanted.clone())
            };
            match self.shared.store.change(change).await {
                Ok(ack) => {
                    if ack.effect == Effect::Done {
                        stored.into_iter().for_each(Upload::taken);
                    }
                    return;
                }
                Err(error) if is_over(&error) => return,
                Err(error) => {
                    tracing::error!(run = %record.id, %error, "an end could not be written; trying again");
                }
            }
            if self.pause().await.is_break() {
                return;
            }
        }
    }

    /// Records that a run waits for secrets, or is queued again because they are there.
    pub(super) async fn follow_secrets(&self, record: &RunRecord, missing: Vec<MissingSecret>) {
        let (note, wanted) = if missing.is_empty() {
            (None, Move::Requeue)
        } else {
            (Some(MissingSecret::explain(&missing)), Move::Wait(WaitsFor::Secret(missing)))
        };
        loop {
            let (attempt, note) = (Some(record.attempt), note.clone());
            let change = Change { attempt, note, ..Change::to(&record.id, wanted.clone()) };
            match self.shared.store.change(change).await {
                Ok(_) => return,
                Err(error) if is_over(&error) => return,
                Err(error) => {
                    tracing::error!(run = %record.id, %error, "a wait for a secret could not be written; trying again");
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

/// Returns the caps of a run: what it asks for, else what is configured.
fn caps(limits: &Limits, spec: &RunSpec) -> Caps {
    let configured = Caps::of(limits);
    Caps {
        turns: spec.max_turns.unwrap_or(configured.turns),
        tokens: spec.max_tokens.unwrap_or(configured.tokens),
        time: spec.max_seconds.map_or(configured.time, Duration::from_secs),
        stop_grace: stop_grace(configured.stop_grace, limits, spec.pool),
        ..configured
    }
}

/// How long a process or a request has to end by itself. Whoever stops a task of the fleet waits `fleet_stop_confirm_ms` for its end.
fn stop_grace(configured: Duration, limits: &Limits, pool: Pool) -> Duration {
    match pool {
        Pool::Runs => configured,
        Pool::Fleet => configured.min(Duration::from_millis(limits.fleet_stop_confirm_ms) * 2 / 3),
    }
}

/// Whether an error says that the attempt is over, rather than that a change could not be written.
fn is_over(error: &StoreError) -> bool {
    matches!(error, StoreError::Unknown(_) | StoreError::Stale | StoreError::Illegal(_) | StoreError::Closed)
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
    ) -> BoxFuture<'_, Result<(), TranscriptError>> {
        lock(&self.entry.speaking).clear();
        self.inner.append(entries, durability)
    }
}
