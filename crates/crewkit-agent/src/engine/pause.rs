//! Waiting on behalf of a run: an attempt that waits for other runs holds no slot meanwhile.

use std::time::Duration;

use crewkit_core::run::{Move, WaitsFor};
use tokio::sync::oneshot;

use super::grants::AttemptGrant;
use super::supervisor::Request;
use super::{Engine, Error, Until, Waited};
use crate::store::Change;

/// Ids told of the runs that are waited for.
const NAMED: usize = 32;

impl Engine {
    /// Waits like [`Engine::wait`] for a process of an attempt, whose run gives its slot back until the wait is over.
    pub async fn wait_as<S: AsRef<str>>(
        &self,
        grant: &AttemptGrant,
        ids: &[S],
        until: Until,
        time: Duration,
        progress: &(dyn Fn(usize, usize) + Send + Sync),
    ) -> Result<Waited, Error> {
        let named = ids.iter().take(NAMED).map(|id| id.as_ref().chars().take(100).collect()).collect();
        let reason = WaitsFor::Agents(named);
        let change = Change { attempt: Some(grant.attempt), ..Change::to(&grant.run, Move::Wait(reason)) };
        if self.shared.store.change(change).await.is_err() {
            // The attempt is over, or the disk is full: the wait is still a wait.
            return self.wait(ids, until, time, progress).await;
        }
        let pause = Pause { engine: self, grant, is_over: false };
        let _ = self.shared.requests.send(Request::Pause(grant.run.clone(), grant.attempt));
        let waited = self.wait(ids, until, time, progress).await;
        pause.end().await;
        waited
    }

    /// Waits for a slot and records that the run works again.
    async fn unpause(&self, grant: &AttemptGrant) {
        let (ready, is_ready) = oneshot::channel();
        let _ = self.shared.requests.send(Request::Unpause(grant.run.clone(), grant.attempt, ready));
        // An error means that the attempt is over; then the record says so.
        if is_ready.await.is_ok() {
            let change = Change { attempt: Some(grant.attempt), ..Change::to(&grant.run, Move::Claim) };
            let _ = self.shared.store.change(change).await;
        }
    }
}

/// A run that waits; it is set to work again also if its wait is abandoned.
struct Pause<'a> {
    engine: &'a Engine,
    grant: &'a AttemptGrant,
    is_over: bool,
}

impl Pause<'_> {
    async fn end(mut self) {
        self.is_over = true;
        let (engine, grant) = (self.engine.internal(), self.grant.clone());
        // In a task of its own: nobody may stop between the slot and its record.
        let ending = self.engine.shared.runtime.spawn(async move { engine.unpause(&grant).await });
        let _ = ending.await;
    }
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            let (engine, grant) = (self.engine.internal(), self.grant.clone());
            self.engine.shared.runtime.spawn(async move { engine.unpause(&grant).await });
        }
    }
}
