//! Deciding a batch of commands against the state they find, and writing the result.
//!
//! Decisions are made on drafts; the drafts become visible only when the transaction that holds them is on disk. If it
//! is not, they are dropped and nothing has happened.

use std::collections::HashMap;
use std::sync::Arc;

use crewkit_core::Timestamp;
use crewkit_core::run::{Move, Moved, Phase, RunId, RunState, RunStatus};
use rusqlite::{Connection, params};

use super::documents;
use super::load::phase_text;
use super::memory::{CONTRACT_START_CHARS, History, Queue};
use super::{
    Ack, Begin, Change, Effect, Memory, NewEvent, NewRun, Progress, PruneRule, RunRecord, StoreError,
};
use crate::event::{Event, EventBody, Usage};

/// A run as it will be.
struct Draft {
    record: RunRecord,
    events: Vec<Arc<Event>>,
    row: Row,
    history: History,
    /// A new contract.
    contract: Option<Arc<str>>,
    settings_changed: bool,
    /// Whether the transcript grew by something that no event tells yet.
    has_output: bool,
    /// Whether the supervisor has to hear of it.
    moved: bool,
}

/// What is to become of the row of a run.
#[derive(PartialEq, Eq, Clone, Copy)]
enum Row {
    Update,
    Insert,
    Delete,
}

/// Drafts of one transaction.
pub(super) struct Batch<'a> {
    memory: &'a Memory,
    now: Timestamp,
    drafts: HashMap<RunId, Draft>,
    keys: HashMap<Arc<str>, RunId>,
    events: Vec<NewEvent>,
    queue: Queue,
}

impl<'a> Batch<'a> {
    pub(super) fn new(memory: &'a Memory, now: Timestamp) -> Self {
        let queue = memory.queue();
        Self { memory, now, drafts: HashMap::new(), keys: HashMap::new(), events: Vec::new(), queue }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.now
    }

    /// Records events of something that is no run.
    pub(super) fn record(&mut self, events: Vec<NewEvent>) {
        self.events.extend(events);
    }

    /// What happened, in order.
    pub(super) fn take_events(&mut self) -> Vec<NewEvent> {
        let mut grown: Vec<&mut Draft> =
            self.drafts.values_mut().filter(|draft| draft.has_output && draft.row != Row::Delete).collect();
        grown.sort_by(|one, other| one.record.id.cmp(&other.record.id));
        for draft in grown {
            draft.tell(None, &mut self.events);
        }
        std::mem::take(&mut self.events)
    }

    fn draft(&mut self, id: &RunId) -> Result<&mut Draft, StoreError> {
        if !self.drafts.contains_key(id) {
            let entry = self.memory.get(id).ok_or_else(|| StoreError::Unknown(id.clone()))?;
            let draft = Draft {
                record: RunRecord::clone(&entry.record()),
                events: Vec::new(),
                row: Row::Update,
                history: History::Kept,
                contract: None,
                settings_changed: false,
                has_output: false,
                moved: false,
            };
            self.drafts.insert(id.clone(), draft);
        }
        match self.drafts.get_mut(id) {
            Some(draft) if draft.row != Row::Delete => Ok(draft),
            _ => Err(StoreError::Unknown(id.clone())),
        }
    }

    pub(super) fn create(&mut self, new: NewRun) -> Result<Ack, StoreError> {
        if let Some(key) = &new.idempotency {
            let earlier = self.keys.get(key).cloned().or_else(|| self.memory.by_key(key));
            if let Some(id) = earlier
                && let Ok(draft) = self.draft(&id)
            {
                return Ok(Ack { effect: Effect::Unchanged, record: Arc::new(draft.record.clone()) });
            }
            self.keys.insert(Arc::clone(key), new.id.clone());
        }
        let record = RunRecord {
            id: new.id.clone(),
            contract_start: start_of(&new.contract),
            spec: Arc::new(new.spec),
            created_at: self.now,
            state: RunState::Ready,
            attempt: 1,
            summary: None,
            error: None,
            payload: None,
            turns: 0,
            usage: Usage::default(),
            last_seq: 0,
            restarts: 0,
            resumed: false,
            queue_order: 0,
            settings: new.settings,
            progress: Progress::default(),
            idempotency: new.idempotency,
        };
        let mut draft = Draft {
            record,
            events: Vec::new(),
            row: Row::Insert,
            history: History::Kept,
            contract: Some(new.contract),
            settings_changed: true,
            has_output: false,
            moved: false,
        };
        if new.begin == Begin::Now {
            let start = Change::to(&new.id, Move::Start);
            draft.change(start, self.now, &mut self.events, &mut self.queue)?;
        } else {
            draft.tell(Some("run.created"), &mut self.events);
        }
        let record = Arc::new(draft.record.clone());
        self.drafts.insert(new.id, draft);
        Ok(Ack { effect: Effect::Done, record })
    }

    pub(super) fn set_contract(&mut self, id: &RunId, contract: Arc<str>) -> Result<Ack, StoreError> {
        let draft = self.draft(id)?;
        let status = draft.record.state.status();
        if status != RunStatus::Ready {
            return Err(crewkit_core::run::IllegalMove { verb: "give a new contract to", status }.into());
        }
        draft.record.contract_start = start_of(&contract);
        draft.contract = Some(contract);
        let record = Arc::new(draft.record.clone());
        let position = record.last_seq;
        self.events.push(NewEvent { kind: "run.changed", subject: id.to_string(), position });
        Ok(Ack { effect: Effect::Done, record })
    }

    pub(super) fn append(
        &mut self,
        id: &RunId,
        attempt: u32,
        bodies: Vec<EventBody>,
        progress: Option<Progress>,
    ) -> Result<Ack, StoreError> {
        let now = self.now;
        let draft = self.draft(id)?;
        if draft.record.attempt != attempt {
            return Err(StoreError::Stale);
        }
        draft.record.progress = progress.unwrap_or(draft.record.progress);
        for body in bodies {
            draft.push(body, now);
            draft.has_output = true;
        }
        Ok(Ack { effect: Effect::Done, record: Arc::new(draft.record.clone()) })
    }

    pub(super) fn change(&mut self, change: Change) -> Result<Ack, StoreError> {
        let now = self.now;
        let (mut events, mut queue) = (std::mem::take(&mut self.events), self.queue);
        let id = change.id.clone();
        let changed = self.draft(&id).and_then(|draft| draft.change(change, now, &mut events, &mut queue));
        (self.events, self.queue) = (events, queue);
        changed
    }

    pub(super) fn delete(&mut self, id: &RunId) -> Result<Ack, StoreError> {
        let draft = self.draft(id)?;
        draft.row = Row::Delete;
        draft.moved = true;
        let record = Arc::new(draft.record.clone());
        self.queue.length -= u64::from(record.state.phase() == Some(&Phase::Queued));
        self.events.push(NewEvent {
            kind: "run.deleted",
            subject: id.to_string(),
            position: record.last_seq,
        });
        Ok(Ack { effect: Effect::Done, record })
    }

    /// Deletes ended runs as the rule says; returns them, oldest first.
    pub(super) fn prune(&mut self, rule: PruneRule) -> Vec<Arc<RunRecord>> {
        let known = self.memory.all();
        let mut ended: Vec<Arc<RunRecord>> = known
            .iter()
            .map(|entry| entry.record())
            .filter_map(|record| match self.drafts.get(&record.id) {
                None => Some(record),
                Some(draft) if draft.row == Row::Delete => None,
                Some(draft) => Some(Arc::new(draft.record.clone())),
            })
            .filter(|record| record.is_prunable())
            .collect();
        ended.truncate(ended.len().saturating_sub(rule.keep));
        let now = self.now;
        let is_old = |record: &Arc<RunRecord>| {
            record.state.ended_at().is_some_and(|at| now.since(at) >= rule.older_than)
        };
        ended.retain(is_old);
        ended.truncate(rule.most);
        ended.retain(|record| self.delete(&record.id).is_ok());
        ended
    }

    /// Whether a run may have let go of its settings.
    pub(super) fn frees_settings(&self) -> bool {
        let frees =
            |draft: &Draft| draft.row == Row::Delete || (draft.settings_changed && draft.row == Row::Update);
        self.drafts.values().any(frees)
    }

    /// Writes every draft; the caller commits.
    pub(super) fn write(&self, connection: &Connection) -> rusqlite::Result<()> {
        // What goes makes room for what comes: a key may be used again in the same batch.
        let (gone, kept): (Vec<&Draft>, Vec<&Draft>) =
            self.drafts.values().partition(|draft| draft.row == Row::Delete);
        gone.into_iter().chain(kept).try_for_each(|draft| draft.write(connection))
    }

    /// Makes the drafts visible; called once they are on disk. Returns the runs whose state has changed.
    pub(super) fn publish(self) -> Vec<RunId> {
        let moved = self.drafts.iter().filter(|(_, draft)| draft.moved).map(|(id, _)| id.clone()).collect();
        self.memory.set_queue(self.queue);
        let (gone, kept): (Vec<_>, Vec<_>) =
            self.drafts.into_iter().partition(|(_, draft)| draft.row == Row::Delete);
        for (id, _) in gone {
            self.memory.remove(&id);
        }
        for (_, draft) in kept {
            self.memory.publish(draft.record, draft.events, draft.history);
        }
        moved
    }
}

/// What is kept in memory of a contract.
fn start_of(contract: &str) -> Arc<str> {
    let end = contract.char_indices().nth(CONTRACT_START_CHARS as usize).map_or(contract.len(), |(at, _)| at);
    contract[..end].into()
}

impl Draft {
    fn change(
        &mut self,
        change: Change,
        now: Timestamp,
        events: &mut Vec<NewEvent>,
        queue: &mut Queue,
    ) -> Result<Ack, StoreError> {
        let draft = self;
        if change.attempt.is_some_and(|attempt| attempt != draft.record.attempt) {
            return Err(StoreError::Stale);
        }
        let mut state = draft.record.state.clone();
        let moved = state.apply(&change.wanted, now)?;
        let (was_queued, is_queued) =
            (draft.record.state.phase() == Some(&Phase::Queued), state.phase() == Some(&Phase::Queued));
        let is_asked_for = matches!(change.wanted, Move::Start | Move::Resume);
        if is_asked_for && queue.length >= queue.limit {
            return Err(StoreError::QueueFull(queue.limit));
        }
        draft.record.state = state;
        if is_asked_for {
            queue.order += 1;
            draft.record.queue_order = queue.order;
        }
        queue.length = queue.length + u64::from(is_queued) - u64::from(was_queued);
        let effect = match moved {
            Moved::AlreadyEnded => {
                // What a late completion had to say is kept as output; the first end stands.
                if change.wanted == Move::Complete
                    && draft.record.state.status() == RunStatus::Stopped
                    && let Some(summary) = change.summary
                {
                    draft.push(EventBody::note(format!("completed too late: {summary}")), now);
                    draft.has_output = true;
                }
                Effect::Unchanged
            }
            Moved::Changed => {
                if let Some(settings) = &change.settings {
                    draft.record.settings = Some(Arc::clone(settings));
                    draft.settings_changed = true;
                }
                draft.carry(change, now);
                draft.moved = true;
                let kind = match &draft.record.state {
                    RunState::Ready => Some("run.changed"),
                    RunState::Running { phase: Phase::Queued, .. } => Some("run.queued"),
                    RunState::Running { phase: Phase::Working, .. } => Some("run.started"),
                    RunState::Running { phase: Phase::Waiting(_), .. } => Some("run.waiting"),
                    RunState::Stopped { .. } | RunState::Completed { .. } => Some("run.ended"),
                };
                draft.tell(kind, events);
                Effect::Done
            }
        };
        Ok(Ack { effect, record: Arc::new(draft.record.clone()) })
    }

    /// Records an event, and before it that the transcript grew, if it did.
    fn tell(&mut self, kind: Option<&'static str>, events: &mut Vec<NewEvent>) {
        let output = std::mem::take(&mut self.has_output).then_some("run.output");
        for kind in output.into_iter().chain(kind) {
            let position = self.record.last_seq;
            events.push(NewEvent { kind, subject: self.record.id.to_string(), position });
        }
    }

    fn push(&mut self, body: EventBody, at: Timestamp) {
        if let EventBody::Assistant { usage, content, reasoning, tool_calls } = &body {
            // Drivers that report usage afterwards do so in an entry without anything else.
            let says_something = !content.is_empty() || reasoning.is_some() || !tool_calls.is_empty();
            self.record.turns += u64::from(says_something || usage.is_none());
        }
        if let EventBody::Assistant { usage: Some(usage), .. }
        | EventBody::Compacted { usage: Some(usage), .. } = &body
        {
            self.record.usage = self.record.usage.plus(*usage);
        }
        self.record.last_seq += 1;
        self.events.push(Arc::new(Event { seq: self.record.last_seq, at, body }));
    }

    fn push_status(&mut self, at: Timestamp) {
        let state = &self.record.state;
        self.push(EventBody::Status { status: state.status(), reason: state.stop_reason() }, at);
    }

    /// Takes over what comes along with a move that was made.
    fn carry(&mut self, change: Change, now: Timestamp) {
        let record = &mut self.record;
        if matches!(change.wanted, Move::Resume | Move::Restart) || change.note.is_some() {
            // Another process will print from the beginning.
            record.progress = Progress::default();
        }
        match change.wanted {
            Move::Start => {
                record.restarts = 0;
                record.resumed = false;
            }
            // Nothing that the transcript tells: it goes on where it was.
            Move::Claim => return,
            Move::Wait(_) => {
                if let Some(note) = change.note {
                    self.push(EventBody::note(note), now);
                    self.has_output = true;
                }
                return;
            }
            Move::Requeue => {
                if let Some(note) = change.note {
                    record.restarts += 1;
                    record.resumed = true;
                    self.push(EventBody::note(note), now);
                    self.has_output = true;
                }
                return;
            }
            Move::Complete => {
                record.summary = change.summary.map(Into::into);
                record.payload = change.payload;
            }
            Move::Stop(_) => record.error = change.error.clone().map(Into::into),
            Move::Resume => {
                record.attempt += 1;
                record.restarts = 0;
                record.resumed = true;
                record.error = None;
            }
            Move::Restart => {
                record.attempt += 1;
                record.resumed = false;
                record.error = None;
                record.summary = None;
                record.payload = None;
                record.turns = 0;
                record.usage = Usage::default();
                self.events.clear();
                self.history = History::Cleared;
            }
        }
        if let Some(error) = change.error {
            self.push(EventBody::Error { content: error }, now);
        }
        self.push_status(now);
    }

    fn write(&self, connection: &Connection) -> rusqlite::Result<()> {
        let record = &self.record;
        let id = record.id.as_str();
        if self.row == Row::Delete {
            return erase(connection, id);
        }
        if self.history == History::Cleared {
            connection.prepare_cached("DELETE FROM transcript WHERE run = ?1")?.execute([id])?;
            drop_payload(connection, id)?;
        }
        if self.row == Row::Insert {
            self.insert(connection)?;
        }
        if let Some(settings) = record.settings.as_ref().filter(|_| self.settings_changed) {
            documents::put_settings(connection, settings.id(), settings.body())?;
        }
        self.update(connection)?;
        let mut insert = connection
            .prepare_cached("INSERT INTO transcript (run, seq, at, body) VALUES (?1, ?2, ?3, ?4)")?;
        for event in &self.events {
            let body = serde_json::to_string(&event.body)
                .map_err(|bad| rusqlite::Error::ToSqlConversionFailure(Box::new(bad)))?;
            insert.execute(params![id, sql(event.seq), sql(event.at.millis()), body])?;
        }
        Ok(())
    }

    fn insert(&self, connection: &Connection) -> rusqlite::Result<()> {
        let record = &self.record;
        let spec = serde_json::to_string(&*record.spec)
            .map_err(|bad| rusqlite::Error::ToSqlConversionFailure(Box::new(bad)))?;
        let mut insert = connection.prepare_cached(
            "INSERT INTO runs (id, contract, spec, created_at, idempotency, status, attempt, turns,
                 input_tokens, output_tokens, last_seq)
             VALUES (?1, '', ?2, ?3, ?4, 'ready', 1, 0, 0, 0, 0)",
        )?;
        let key = record.idempotency.as_deref();
        insert.execute(params![record.id.as_str(), spec, sql(record.created_at.millis()), key])?;
        Ok(())
    }

    fn update(&self, connection: &Connection) -> rusqlite::Result<()> {
        let record = &self.record;
        let id = record.id.as_str();
        if let Some(contract) = &self.contract {
            let mut update = connection.prepare_cached("UPDATE runs SET contract = ?2 WHERE id = ?1")?;
            update.execute(params![id, &**contract])?;
        }
        let mut update = connection.prepare_cached(
            "UPDATE runs SET status = ?2, started_at = ?3, ended_at = ?4, stop_reason = ?5, attempt = ?6,
                 summary = ?7, error = ?8, payload_upload = ?9, payload_size = ?10, payload_gzip = ?11,
                 payload_etag = ?12, turns = ?13, input_tokens = ?14, output_tokens = ?15, last_seq = ?16,
                 phase = ?17, queue_order = ?18, resumed = ?19, restarts = ?20, settings = ?21, progress = ?22
             WHERE id = ?1",
        )?;
        let (state, payload) = (&record.state, record.payload.as_ref());
        update.execute(params![
            id,
            state.status().as_str(),
            state.started_at().map(|at| sql(at.millis())),
            state.ended_at().map(|at| sql(at.millis())),
            state.stop_reason().map(crewkit_core::run::StopReason::as_str),
            record.attempt,
            record.summary.as_deref(),
            record.error.as_deref(),
            payload.map(|payload| &*payload.upload),
            payload.map(|payload| sql(payload.size)),
            payload.map(|payload| sql(payload.gzip_size)),
            payload.map(|payload| &*payload.etag),
            sql(record.turns),
            sql(record.usage.input_tokens),
            sql(record.usage.output_tokens),
            sql(record.last_seq),
            state.phase().and_then(phase_text),
            sql(record.queue_order),
            record.resumed,
            record.restarts,
            record.settings.as_ref().map(|settings| settings.id()),
            serde_json::to_string(&record.progress).ok(),
        ])?;
        Ok(())
    }
}

/// Removes a run with everything that belongs to it.
fn erase(connection: &Connection, id: &str) -> rusqlite::Result<()> {
    drop_payload(connection, id)?;
    connection.prepare_cached("DELETE FROM transcript WHERE run = ?1")?.execute([id])?;
    connection.prepare_cached("DELETE FROM runs WHERE id = ?1")?.execute([id])?;
    Ok(())
}

fn drop_payload(connection: &Connection, id: &str) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "DELETE FROM payload_chunks WHERE upload = (SELECT payload_upload FROM runs WHERE id = ?1)",
        )?
        .execute([id])?;
    Ok(())
}

/// SQLite's integers are signed; no count of ours comes near the top.
pub(super) fn sql(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
