//! Following a run: everything it has written, then everything it writes.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::watch;

use super::Error;
use crate::event::Event;
use crate::store::{Entry, Pulse, Store};

/// Entries read from disk at a time.
const PAGE: usize = 128;

/// A position in a run's transcript that moves forward. It holds no queue of its own: a slow viewer costs nothing.
#[derive(Debug)]
pub struct Subscription {
    store: Store,
    entry: Arc<Entry>,
    pulse: watch::Receiver<Pulse>,
    after: u64,
    ready: VecDeque<Arc<Event>>,
}

impl Subscription {
    pub(super) fn new(store: Store, entry: Arc<Entry>, after: u64) -> Self {
        let pulse = entry.watch();
        Self { store, entry, pulse, after, ready: VecDeque::new() }
    }

    /// The next entry; waits for one, also beyond the run's end. `None` when the run was deleted.
    pub async fn next(&mut self) -> Result<Option<Arc<Event>>, Error> {
        self.advance(Patience::Endless).await
    }

    /// The next entry; `None` when the run has ended and everything was handed out.
    pub async fn next_until_end(&mut self) -> Result<Option<Arc<Event>>, Error> {
        self.advance(Patience::UntilEnd).await
    }

    async fn advance(&mut self, patience: Patience) -> Result<Option<Arc<Event>>, Error> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.after = event.seq;
                return Ok(Some(event));
            }
            let pulse = *self.pulse.borrow_and_update();
            if pulse.last_seq > self.after {
                self.fetch().await?;
                if self.ready.is_empty() && !pulse.deleted {
                    // A restart has removed what we were about to read.
                    self.after = pulse.last_seq;
                }
                if !self.ready.is_empty() || !pulse.deleted {
                    continue;
                }
            }
            let over = pulse.deleted || (patience == Patience::UntilEnd && pulse.ended);
            if over || self.pulse.changed().await.is_err() {
                return Ok(None);
            }
        }
    }

    async fn fetch(&mut self) -> Result<(), Error> {
        let events = match self.entry.tail_after(self.after, PAGE) {
            Some(events) => events,
            None => self.store.reader().events(&self.entry.record().id, self.after, PAGE).await?,
        };
        self.ready.extend(events);
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Patience {
    Endless,
    UntilEnd,
}
