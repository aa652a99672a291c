//! Deciding a batch of commands against the state they find, and writing the result.
//!
//! Decisions are made on drafts; the drafts become visible only when the transaction that holds them is on disk. If it
//! is not, they are dropped and nothing has happened.

use std::collections::HashMap;
use std::sync::Arc;

use crewkit_core::Timestamp;
use crewkit_core::run::{Move, Moved, RunId, RunState, RunStatus};
use rusqlite::{Connection, params};

use super::memory::History;
use super::{Ack, Begin, Change, Effect, Memory, NewRun, RunRecord, StoreError};
use crate::event::{Event, EventBody, Usage};

/// A run as it will be.
struct Draft {
    record: RunRecord,
    events: Vec<Arc<Event>>,
    origin: Origin,
    history: History,
    contract_changed: bool,
    deleted: bool,
}

#[derive(PartialEq, Eq, Clone, Copy)]
enum Origin {
    Known,
    New,
}

/// Drafts of one transaction.
pub(super) struct Batch<'a> {
    memory: &'a Memory,
    now: Timestamp,
    drafts: HashMap<RunId, Draft>,
    keys: HashMap<Arc<str>, RunId>,
}

impl<'a> Batch<'a> {
    pub(super) fn new(memory: &'a Memory, now: Timestamp) -> Self {
        Self { memory, now, drafts: HashMap::new(), keys: HashMap::new() }
    }

    fn draft(&mut self, id: &RunId) -> Result<&mut Draft, StoreError> {
        if !self.drafts.contains_key(id) {
            let entry = self.memory.get(id).ok_or_else(|| StoreError::Unknown(id.clone()))?;
            let draft = Draft {
                record: RunRecord::clone(&entry.record()),
                events: Vec::new(),
                origin: Origin::Known,
                history: History::Kept,
                contract_changed: false,
                deleted: false,
            };
            self.drafts.insert(id.clone(), draft);
        }
        match self.drafts.get_mut(id) {
            Some(draft) if !draft.deleted => Ok(draft),
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
            contract: new.contract,
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
            idempotency: new.idempotency,
        };
        let mut draft = Draft {
            record,
            events: Vec::new(),
            origin: Origin::New,
            history: History::Kept,
            contract_changed: false,
            deleted: false,
        };
        if new.begin == Begin::Now {
            draft.record.state.apply(Move::Start, self.now)?;
            draft.push_status(self.now);
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
        draft.record.contract = contract;
        draft.contract_changed = true;
        Ok(Ack { effect: Effect::Done, record: Arc::new(draft.record.clone()) })
    }

    pub(super) fn append(
        &mut self,
        id: &RunId,
        attempt: u32,
        bodies: Vec<EventBody>,
    ) -> Result<Ack, StoreError> {
        let now = self.now;
        let draft = self.draft(id)?;
        if draft.record.attempt != attempt {
            return Err(StoreError::Stale);
        }
        for body in bodies {
            draft.push(body, now);
        }
        Ok(Ack { effect: Effect::Done, record: Arc::new(draft.record.clone()) })
    }

    pub(super) fn change(&mut self, change: Change) -> Result<Ack, StoreError> {
        let now = self.now;
        let draft = self.draft(&change.id)?;
        if change.attempt.is_some_and(|attempt| attempt != draft.record.attempt) {
            return Err(StoreError::Stale);
        }
        let moved = draft.record.state.apply(change.wanted, now)?;
        let effect = match moved {
            Moved::AlreadyEnded => {
                // What a late completion had to say is kept as output; the first end stands.
                if change.wanted == Move::Complete
                    && draft.record.state.status() == RunStatus::Stopped
                    && let Some(summary) = change.summary
                {
                    draft.push(EventBody::note(format!("completed too late: {summary}")), now);
                }
                Effect::Unchanged
            }
            Moved::Changed => {
                draft.carry(change, now);
                Effect::Done
            }
        };
        Ok(Ack { effect, record: Arc::new(draft.record.clone()) })
    }

    pub(super) fn delete(&mut self, id: &RunId) -> Result<Ack, StoreError> {
        let draft = self.draft(id)?;
        draft.deleted = true;
        Ok(Ack { effect: Effect::Done, record: Arc::new(draft.record.clone()) })
    }

    /// Writes every draft; the caller commits.
    pub(super) fn write(&self, connection: &Connection) -> rusqlite::Result<()> {
        for draft in self.drafts.values() {
            draft.write(connection)?;
        }
        Ok(())
    }

    /// Makes the drafts visible; called once they are on disk.
    pub(super) fn publish(self) {
        for (id, draft) in self.drafts {
            if draft.deleted {
                self.memory.remove(&id);
            } else {
                self.memory.publish(draft.record, draft.events, draft.history);
            }
        }
    }
}

impl Draft {
    fn push(&mut self, body: EventBody, at: Timestamp) {
        if let EventBody::Assistant { usage, content, reasoning, tool_calls } = &body {
            // Drivers that tell the cost afterwards do so in an entry that says nothing else.
            let says_something = !content.is_empty() || reasoning.is_some() || !tool_calls.is_empty();
            self.record.turns += u64::from(says_something || usage.is_none());
            self.record.usage = self.record.usage.plus(usage.unwrap_or_default());
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
        match change.wanted {
            Move::Start => {}
            Move::Complete => {
                record.summary = change.summary.map(Into::into);
                record.payload = change.payload;
            }
            Move::Stop(_) => record.error = change.error.clone().map(Into::into),
            Move::Resume => {
                record.attempt += 1;
                record.error = None;
            }
            Move::Restart => {
                record.attempt += 1;
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
        if self.deleted {
            return erase(connection, id);
        }
        if self.history == History::Cleared {
            connection.prepare_cached("DELETE FROM events WHERE run = ?1")?.execute([id])?;
            drop_payload(connection, id)?;
        }
        if self.origin == Origin::New {
            self.insert(connection)?;
        }
        self.update(connection)?;
        let mut insert =
            connection.prepare_cached("INSERT INTO events (run, seq, at, body) VALUES (?1, ?2, ?3, ?4)")?;
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
             VALUES (?1, ?2, ?3, ?4, ?5, 'ready', 1, 0, 0, 0, 0)",
        )?;
        let key = record.idempotency.as_deref();
        insert.execute(params![
            record.id.as_str(),
            &*record.contract,
            spec,
            sql(record.created_at.millis()),
            key
        ])?;
        Ok(())
    }

    fn update(&self, connection: &Connection) -> rusqlite::Result<()> {
        let record = &self.record;
        let id = record.id.as_str();
        if self.contract_changed {
            let mut update = connection.prepare_cached("UPDATE runs SET contract = ?2 WHERE id = ?1")?;
            update.execute(params![id, &*record.contract])?;
        }
        let mut update = connection.prepare_cached(
            "UPDATE runs SET status = ?2, started_at = ?3, ended_at = ?4, stop_reason = ?5, attempt = ?6,
                 summary = ?7, error = ?8, payload_upload = ?9, payload_size = ?10, payload_gzip = ?11,
                 payload_etag = ?12, turns = ?13, input_tokens = ?14, output_tokens = ?15, last_seq = ?16
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
        ])?;
        Ok(())
    }
}

/// Removes a run with everything that belongs to it.
fn erase(connection: &Connection, id: &str) -> rusqlite::Result<()> {
    drop_payload(connection, id)?;
    connection.prepare_cached("DELETE FROM events WHERE run = ?1")?.execute([id])?;
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
