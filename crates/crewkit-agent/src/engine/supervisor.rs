//! The owner of all runs: it decides who works, and sees to it that every attempt ends.
//!
//! What somebody asks for is decided by the writer and recorded; the supervisor hears of it from the writer after that, never
//! from the request. It looks at what is recorded and at the attempts it has, and makes the one follow the other. So a request
//! may go away at any time, and a message that says less than the record does no harm.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crewkit_core::run::{MissingSecret, Phase, RunId, RunStatus, WaitsFor};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::Engine;
use super::slots::Slots;
use super::task::Attempt;
use crate::store::{Pool, RunRecord};

/// What is asked of the supervisor.
#[derive(Debug)]
pub(super) enum Request {
    /// The task of a run's attempt is gone, and with it every process of the attempt.
    Gone(RunId),
    /// An attempt waits for something and needs no slot.
    Pause(RunId, u32),
    /// An attempt that waited needs a slot again; it is told when it has one.
    Unpause(RunId, u32, oneshot::Sender<()>),
    /// Somebody wants to know when no attempt of a run is left.
    Settled(RunId, oneshot::Sender<()>),
    /// Somebody wants to know when no attempt is left at all.
    Idle(oneshot::Sender<()>),
}

/// An attempt under way. It has one task and one token.
struct Active {
    attempt: u32,
    pool: Pool,
    order: u64,
    stop: CancellationToken,
    slot: Slot,
    /// Waits under way: a driver may ask for several at once.
    pauses: usize,
    /// Those that are told when it has a slot again.
    resumed: Vec<oneshot::Sender<()>>,
    /// Those that are told when it is gone.
    settled: Vec<oneshot::Sender<()>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slot {
    Held,
    Released,
    Queued,
}

/// Tells the supervisor that an attempt's task is gone, however it went.
struct GoneGuard {
    requests: mpsc::UnboundedSender<Request>,
    run: RunId,
}

impl Drop for GoneGuard {
    fn drop(&mut self) {
        let _ = self.requests.send(Request::Gone(self.run.clone()));
    }
}

/// Everything the supervisor is told.
pub(super) struct Inbox {
    /// Runs whose recorded state has changed.
    pub(super) moved: mpsc::UnboundedReceiver<RunId>,
    pub(super) requests: mpsc::UnboundedReceiver<Request>,
}

struct Supervisor {
    engine: Engine,
    slots: Slots,
    attempts: HashMap<RunId, Active>,
    idle: Vec<oneshot::Sender<()>>,
}

/// Owns the runs until the engine shuts down; begins with those that were not ended when the last process did.
pub(super) async fn supervise(engine: Engine, mut inbox: Inbox, running: Vec<RunId>) {
    let shutdown = engine.shared.shutdown.clone();
    let slots = Slots::new(&engine.shared.options.limits);
    let mut learned = engine.shared.vault.watch();
    let mut supervisor = Supervisor { engine, slots, attempts: HashMap::new(), idle: Vec::new() };
    supervisor.step(|supervisor| running.iter().for_each(|run| supervisor.reconcile(run)));
    loop {
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            Some(request) = inbox.requests.recv() => supervisor.step(|supervisor| supervisor.take(request)),
            Ok(()) = learned.changed() => supervisor.step(Supervisor::look_for_secrets),
            Some(run) = inbox.moved.recv() => supervisor.step(|supervisor| supervisor.reconcile(&run)),
            else => return,
        }
    }
}

impl Supervisor {
    /// Does something and hands out the slots that are free. After a fault everything is looked at again.
    fn step(&mut self, act: impl FnOnce(&mut Self)) {
        let done = catch_unwind(AssertUnwindSafe(|| {
            act(self);
            self.claim();
        }));
        if done.is_err() {
            tracing::error!("the supervisor of runs failed; it looks at every run again");
            let again = catch_unwind(AssertUnwindSafe(|| {
                for record in self.engine.records() {
                    self.reconcile(&record.id);
                }
                self.claim();
            }));
            if again.is_err() {
                tracing::error!("the supervisor of runs failed again");
            }
        }
        if self.attempts.is_empty() {
            tell_all(self.idle.drain(..));
        }
    }

    /// Makes the attempts of a run follow what is recorded about it.
    fn reconcile(&mut self, run: &RunId) {
        let record = self.engine.shared.store.memory().get(run).map(|entry| entry.record());
        let running = record.as_ref().filter(|record| record.state.status() == RunStatus::Running);
        if let Some(active) = self.attempts.get(run) {
            // Another attempt waits until this one is gone.
            if running.is_none_or(|record| record.attempt != active.attempt) {
                active.stop.cancel();
            }
            return;
        }
        self.slots.leave(run);
        match running.and_then(|record| Some((record, record.state.phase()?))) {
            Some((record, Phase::Queued)) => {
                let missing = self.engine.missing_secrets(record);
                if missing.is_empty() {
                    self.slots.enqueue(run, record.spec.pool, record.queue_order);
                } else {
                    self.follow_secrets(record, missing);
                }
            }
            Some((record, Phase::Waiting(WaitsFor::Secret(waited)))) => {
                let missing = self.engine.missing_secrets(record);
                if missing != *waited {
                    self.follow_secrets(record, missing);
                }
            }
            // Nobody carries it out although it is recorded so: its server ended. A process that is held works on.
            Some((record, _)) if self.engine.is_held(record) => {
                self.slots.take(record.spec.pool);
                self.begin(run);
            }
            Some((record, Phase::Working | Phase::Waiting(WaitsFor::Agents(_)))) => {
                let (engine, record) = (self.engine.clone(), Arc::clone(record));
                self.spawn(async move { engine.take_up(&record).await });
            }
            None if record.is_none() => self.clean_up(run),
            None => {}
        }
    }

    /// Records what a run that has no attempt waits for.
    fn follow_secrets(&self, record: &Arc<RunRecord>, missing: Vec<MissingSecret>) {
        let (engine, record) = (self.engine.clone(), Arc::clone(record));
        self.spawn(async move { engine.follow_secrets(&record, missing).await });
    }

    /// Looks again at the runs that wait for a secret.
    fn look_for_secrets(&mut self) {
        for record in self.engine.records() {
            if matches!(record.state.phase(), Some(Phase::Waiting(WaitsFor::Secret(_)))) {
                self.reconcile(&record.id);
            }
        }
    }

    /// Removes what a deleted run left.
    fn clean_up(&self, run: &RunId) {
        let options = &self.engine.shared.options;
        let left = [options.directory().join("work").join(run.as_str()), options.processes_of(run)];
        self.engine.shared.runtime.spawn_blocking(move || {
            for directory in left {
                let _ = std::fs::remove_dir_all(directory);
            }
        });
    }

    fn take(&mut self, request: Request) {
        match request {
            Request::Gone(run) => {
                if let Some(active) = self.attempts.remove(&run) {
                    if active.slot == Slot::Held {
                        self.slots.release(active.pool);
                    }
                    tell_all(active.settled);
                }
                self.reconcile(&run);
            }
            Request::Pause(run, attempt) => {
                if let Some(active) = self.attempt(&run, attempt) {
                    active.pauses += 1;
                    let (pool, slot) = (active.pool, std::mem::replace(&mut active.slot, Slot::Released));
                    match slot {
                        Slot::Held => self.slots.release(pool),
                        Slot::Queued => self.slots.leave(&run),
                        Slot::Released => {}
                    }
                }
            }
            Request::Unpause(run, attempt, ready) => {
                // Without an attempt the caller need not wait: what it was told is dropped with `ready`.
                let Some(active) = self.attempt(&run, attempt) else { return };
                active.resumed.push(ready);
                active.pauses = active.pauses.saturating_sub(1);
                if active.pauses == 0 && active.slot == Slot::Released {
                    active.slot = Slot::Queued;
                    let (pool, order) = (active.pool, active.order);
                    self.slots.enqueue(&run, pool, order);
                }
            }
            Request::Settled(run, settled) => match self.attempts.get_mut(&run) {
                Some(active) => active.settled.push(settled),
                None => tell_all([settled]),
            },
            Request::Idle(idle) => self.idle.push(idle),
        }
    }

    fn attempt(&mut self, run: &RunId, attempt: u32) -> Option<&mut Active> {
        self.attempts.get_mut(run).filter(|active| active.attempt == attempt)
    }

    /// Hands out free slots.
    fn claim(&mut self) {
        while self.engine.shared.claims.load(Ordering::Relaxed)
            && let Some(run) = self.slots.claim()
        {
            match self.attempts.get_mut(&run) {
                Some(active) => {
                    active.slot = Slot::Held;
                    tell_all(active.resumed.drain(..));
                }
                None => self.start(&run),
            }
        }
    }

    /// Starts the attempt of a queued run that was given a slot.
    fn start(&mut self, run: &RunId) {
        let Some(entry) = self.engine.shared.store.memory().get(run) else { return };
        let record = entry.record();
        if record.state.phase() == Some(&Phase::Queued) {
            self.begin(run);
        } else {
            self.slots.release(record.spec.pool);
        }
    }

    /// Begins the attempt of a run that has a slot.
    fn begin(&mut self, run: &RunId) {
        let Some(entry) = self.engine.shared.store.memory().get(run) else { return };
        let record = entry.record();
        let pool = record.spec.pool;
        let stop = CancellationToken::new();
        let active = Active {
            attempt: record.attempt,
            pool,
            order: record.queue_order,
            stop: stop.clone(),
            slot: Slot::Held,
            pauses: 0,
            resumed: Vec::new(),
            settled: Vec::new(),
        };
        self.attempts.insert(run.clone(), active);
        let gone = GoneGuard { requests: self.engine.shared.requests.clone(), run: run.clone() };
        let engine = self.engine.clone();
        self.spawn(async move {
            let _gone = gone;
            engine.attempt(Attempt { entry, record, stop }).await;
        });
    }

    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.engine.shared.tasks.spawn_on(work, &self.engine.shared.runtime);
    }
}

/// Tells those who wait; some may have gone.
fn tell_all(waiting: impl IntoIterator<Item = oneshot::Sender<()>>) {
    for waits in waiting {
        let _ = waits.send(());
    }
}
