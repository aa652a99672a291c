//! What is known of every run without asking the disk.
//!
//! Only the writer changes it, and only after the change is on disk, so whoever reads it reads what would survive
//! a power cut.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, RwLock};

use crewkit_core::Timestamp;
use crewkit_core::run::{Phase, RunId, RunState};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::event::{Event, Usage};
use crate::settings::RecordedSettings;
use crate::sync::{lock, read, write};

/// Newest entries of a transcript kept in memory, for previews and for viewers that keep up.
const TAIL_ENTRIES: usize = 16;
const TAIL_BYTES: usize = 16 * 1024;
/// Characters of a contract kept in memory, for lists.
pub(super) const CONTRACT_START_CHARS: u32 = 240;

/// Which slots a run uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pool {
    /// Those of runs: `limits.agent_runs_active`.
    #[default]
    Runs,
    /// Those of the fleet's tasks: `limits.fleet_tasks_active`.
    Fleet,
}

impl Pool {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// How a run is carried out; fixed when it is created.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RunSpec {
    /// Name of a driver; the built-in loop when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Name of a configured model; the default one when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The directory the agent works in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir: Option<PathBuf>,
    /// Cap on turns, instead of the configured one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_turns: Option<u64>,
    /// Cap on tokens, instead of the configured one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// Cap on wall time in seconds, instead of the configured one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_seconds: Option<u64>,
    /// Whose slots it uses.
    #[serde(skip_serializing_if = "Pool::is_default")]
    pub pool: Pool,
}

/// A stored payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PayloadInfo {
    /// Bytes before compression.
    pub size: u64,
    /// Bytes after it.
    pub gzip_size: u64,
    /// Strong entity tag of the compressed bytes, without quotes.
    pub etag: Arc<str>,
    pub(crate) upload: Arc<str>,
}

/// Everything about a run but its transcript and the bytes of its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunRecord {
    /// Its id.
    pub id: RunId,
    /// The beginning of what it shall do; the whole of it is on disk.
    pub contract_start: Arc<str>,
    /// How.
    pub spec: Arc<RunSpec>,
    /// When it was created.
    pub created_at: Timestamp,
    /// Where it stands.
    pub state: RunState,
    /// Which attempt this is, from 1; resuming and restarting begin a new one.
    pub attempt: u32,
    /// What the agent reported when it completed.
    pub summary: Option<Arc<str>>,
    /// What went wrong, when it stopped by itself.
    pub error: Option<Arc<str>>,
    /// The payload, if one was delivered.
    pub payload: Option<PayloadInfo>,
    /// Replies of the model so far.
    pub turns: u64,
    /// Tokens so far.
    pub usage: Usage,
    /// Position of the newest transcript entry.
    pub last_seq: u64,
    /// Times it was taken up again after its server ended, since somebody last started or resumed it.
    pub restarts: u32,
    /// Whether this attempt goes on from an earlier one.
    pub(crate) resumed: bool,
    /// Its place in the queue: runs are claimed in the order in which they were started.
    pub(crate) queue_order: u64,
    /// What it is carried out with; the server's own settings in records of 0.1.0.
    pub(crate) settings: Option<Arc<RecordedSettings>>,
    /// How far the output of this attempt's process was read.
    pub(crate) progress: Progress,
    /// The idempotency key it was started with.
    pub idempotency: Option<Arc<str>>,
}

impl RunRecord {
    /// Whether it may be removed because it is old. Whoever owns an agent removes its runs.
    pub(crate) fn is_prunable(&self) -> bool {
        self.state.status().is_terminal() && self.spec.pool == Pool::Runs
    }
}

/// How far the output of an attempt's process is in the transcript, and what the process had used by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Progress {
    /// Bytes that were read.
    pub(crate) position: u64,
    pub(crate) turns: u64,
    pub(crate) tokens: u64,
}

/// Whether a change left the earlier transcript in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum History {
    Kept,
    Cleared,
}

/// What watchers of a run are woken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pulse {
    pub(crate) last_seq: u64,
    pub(crate) ended: bool,
    pub(crate) deleted: bool,
}

impl Pulse {
    fn of(record: &RunRecord) -> Self {
        Self { last_seq: record.last_seq, ended: record.state.status().is_terminal(), deleted: false }
    }
}

/// A run as the rest of the crate sees it.
#[derive(Debug)]
pub(crate) struct Entry {
    record: RwLock<Arc<RunRecord>>,
    tail: Mutex<VecDeque<Arc<Event>>>,
    preview: Mutex<Option<String>>,
    pulse: watch::Sender<Pulse>,
    /// What the model is saying right now, for previews; empty between replies.
    pub(crate) speaking: Mutex<String>,
}

impl Entry {
    pub(crate) fn new(record: RunRecord) -> Self {
        let pulse = watch::Sender::new(Pulse::of(&record));
        Self {
            record: RwLock::new(Arc::new(record)),
            tail: Mutex::default(),
            preview: Mutex::default(),
            pulse,
            speaking: Mutex::default(),
        }
    }

    pub(crate) fn record(&self) -> Arc<RunRecord> {
        Arc::clone(&read(&self.record))
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Pulse> {
        self.pulse.subscribe()
    }

    /// Returns the beginning of the newest entry that says something.
    pub(crate) fn preview(&self) -> Option<String> {
        lock(&self.preview).clone()
    }

    /// Entries after `after` when all of them are still in memory.
    pub(crate) fn tail_after(&self, after: u64, limit: usize) -> Option<Vec<Arc<Event>>> {
        let tail = lock(&self.tail);
        let last = read(&self.record).last_seq;
        if after >= last {
            return Some(Vec::new());
        }
        let covered = tail.front().is_some_and(|first| first.seq <= after + 1);
        covered.then(|| tail.iter().filter(|event| event.seq > after).take(limit).cloned().collect())
    }

    /// Makes a change visible that is on disk.
    fn publish(&self, record: RunRecord, events: Vec<Arc<Event>>, history: History) {
        let pulse = Pulse::of(&record);
        {
            let mut tail = lock(&self.tail);
            let mut current = write(&self.record);
            if history == History::Cleared {
                tail.clear();
                *lock(&self.preview) = None;
            }
            if let Some(preview) = events.iter().rev().find_map(|event| event.body.preview()) {
                *lock(&self.preview) = Some(preview);
            }
            *current = Arc::new(record);
            tail.extend(events);
            let mut bytes: usize = tail.iter().map(|event| event.body.weight()).sum();
            while tail.len() > TAIL_ENTRIES || (bytes > TAIL_BYTES && tail.len() > 1) {
                bytes -= tail.pop_front().map_or(0, |event| event.body.weight());
            }
            if pulse.ended {
                // Nobody follows it any more; who looks at it reads from disk.
                *tail = VecDeque::new();
            }
        }
        self.pulse.send_replace(pulse);
    }

    fn retire(&self) {
        self.pulse.send_modify(|pulse| {
            pulse.deleted = true;
            pulse.ended = true;
        });
    }
}

/// All runs, by id; ids grow with time, so this is also the order of creation.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    runs: RwLock<BTreeMap<RunId, Arc<Entry>>>,
    keys: RwLock<HashMap<Arc<str>, RunId>>,
    queue: Mutex<Queue>,
}

/// What the writer knows about the queue.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Queue {
    /// Runs in it.
    pub(super) length: u64,
    /// How many there may be.
    pub(super) limit: u64,
    /// The last place that was given out.
    pub(super) order: u64,
}

impl Memory {
    pub(super) fn new(queue_limit: u64) -> Self {
        let queue = Mutex::new(Queue { limit: queue_limit, ..Queue::default() });
        Self { queue, ..Self::default() }
    }

    pub(super) fn queue(&self) -> Queue {
        *lock(&self.queue)
    }

    pub(super) fn set_queue(&self, queue: Queue) {
        *lock(&self.queue) = queue;
    }

    pub(crate) fn get(&self, id: &RunId) -> Option<Arc<Entry>> {
        read(&self.runs).get(id).cloned()
    }

    pub(crate) fn by_key(&self, key: &str) -> Option<RunId> {
        read(&self.keys).get(key).cloned()
    }

    /// Looks at every run, oldest first.
    pub(crate) fn all(&self) -> Vec<Arc<Entry>> {
        read(&self.runs).values().cloned().collect()
    }

    /// Looks up many ids under one lock.
    pub(crate) fn get_many<'a>(
        &self,
        ids: impl Iterator<Item = Option<&'a RunId>>,
    ) -> Vec<Option<Arc<Entry>>> {
        let runs = read(&self.runs);
        ids.map(|id| id.and_then(|id| runs.get(id).cloned())).collect()
    }

    pub(super) fn publish(&self, record: RunRecord, events: Vec<Arc<Event>>, history: History) {
        let known = self.get(&record.id);
        let entry = known.unwrap_or_else(|| {
            if let Some(key) = &record.idempotency {
                write(&self.keys).insert(Arc::clone(key), record.id.clone());
            }
            let blank = RunRecord { last_seq: 0, ..record.clone() };
            let entry = Arc::new(Entry::new(blank));
            write(&self.runs).insert(record.id.clone(), Arc::clone(&entry));
            entry
        });
        entry.publish(record, events, history);
    }

    pub(super) fn load(&self, record: RunRecord) {
        {
            let mut queue = lock(&self.queue);
            queue.order = queue.order.max(record.queue_order);
            queue.length += u64::from(record.state.phase() == Some(&Phase::Queued));
        }
        if let Some(key) = &record.idempotency {
            write(&self.keys).insert(Arc::clone(key), record.id.clone());
        }
        write(&self.runs).insert(record.id.clone(), Arc::new(Entry::new(record)));
    }

    pub(super) fn remove(&self, id: &RunId) {
        let removed = write(&self.runs).remove(id);
        if let Some(entry) = removed {
            if let Some(key) = &entry.record().idempotency {
                let mut keys = write(&self.keys);
                if keys.get(key) == Some(id) {
                    keys.remove(key);
                }
            }
            entry.retire();
        }
    }
}
