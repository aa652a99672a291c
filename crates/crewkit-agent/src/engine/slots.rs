//! Which runs may work: slots by pool, claimed in the order in which runs were started.

use std::collections::{BTreeSet, HashMap};

use crewkit_core::Limits;
use crewkit_core::run::RunId;

use crate::store::Pool;

/// The slots of every pool, and who waits for one.
#[derive(Debug)]
pub(super) struct Slots {
    runs: PoolSlots,
    fleet: PoolSlots,
    queued: HashMap<RunId, (Pool, u64)>,
}

#[derive(Debug)]
struct PoolSlots {
    capacity: u64,
    used: u64,
    queue: BTreeSet<(u64, RunId)>,
}

impl PoolSlots {
    fn new(capacity: u64) -> Self {
        // Without any slot nothing would ever end.
        Self { capacity: capacity.max(1), used: 0, queue: BTreeSet::new() }
    }

    fn claim(&mut self) -> Option<RunId> {
        if self.used >= self.capacity {
            return None;
        }
        let (_, run) = self.queue.pop_first()?;
        self.used += 1;
        Some(run)
    }
}

impl Slots {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            runs: PoolSlots::new(limits.agent_runs_active),
            fleet: PoolSlots::new(limits.fleet_tasks_active),
            queued: HashMap::new(),
        }
    }

    fn pool(&mut self, pool: Pool) -> &mut PoolSlots {
        match pool {
            Pool::Runs => &mut self.runs,
            Pool::Fleet => &mut self.fleet,
        }
    }

    /// Puts a run into the queue of its pool, at its place.
    pub(super) fn enqueue(&mut self, run: &RunId, pool: Pool, order: u64) {
        self.leave(run);
        self.queued.insert(run.clone(), (pool, order));
        self.pool(pool).queue.insert((order, run.clone()));
    }

    /// Takes a run out of the queue, if it is there.
    pub(super) fn leave(&mut self, run: &RunId) {
        if let Some((pool, order)) = self.queued.remove(run) {
            self.pool(pool).queue.remove(&(order, run.clone()));
        }
    }

    /// Gives a slot to the run that was started first; returns `None` if no slot is free or nobody waits for one.
    pub(super) fn claim(&mut self) -> Option<RunId> {
        let run = self.runs.claim().or_else(|| self.fleet.claim())?;
        self.queued.remove(&run);
        Some(run)
    }

    /// Gives a slot to a run that is at work already, whatever the limit says.
    pub(super) fn take(&mut self, pool: Pool) {
        self.pool(pool).used += 1;
    }

    /// Takes a slot back.
    pub(super) fn release(&mut self, pool: Pool) {
        let pool = self.pool(pool);
        pool.used = pool.used.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(n: u64) -> RunId {
        format!("agent-{n}").parse().unwrap()
    }

    fn slots(runs: u64, fleet: u64) -> Slots {
        let limits = Limits { agent_runs_active: runs, fleet_tasks_active: fleet, ..Limits::default() };
        Slots::new(&limits)
    }

    #[test]
    fn slots_are_claimed_in_the_order_of_starting() {
        let mut slots = slots(2, 1);
        for n in [3, 1, 2] {
            slots.enqueue(&run(n), Pool::Runs, n);
        }
        assert_eq!((slots.claim(), slots.claim(), slots.claim()), (Some(run(1)), Some(run(2)), None));
        slots.enqueue(&run(0), Pool::Runs, 0);
        slots.release(Pool::Runs);
        assert_eq!((slots.claim(), slots.claim()), (Some(run(0)), None));
        slots.leave(&run(3));
        slots.release(Pool::Runs);
        assert_eq!(slots.claim(), None);
    }

    #[test]
    fn pools_do_not_hold_each_other_up() {
        let mut slots = slots(1, 1);
        slots.enqueue(&run(1), Pool::Fleet, 1);
        slots.enqueue(&run(2), Pool::Fleet, 2);
        slots.enqueue(&run(3), Pool::Runs, 3);
        let mut claimed = [slots.claim(), slots.claim()];
        claimed.sort();
        assert_eq!(claimed, [Some(run(1)), Some(run(3))]);
        assert_eq!(slots.claim(), None);
    }
}
