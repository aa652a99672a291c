//! Looking at runs: how they stand, what they wrote, when they end.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crewkit_core::run::{RunId, RunStatus};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::oneshot;

use super::executors::choose;
use super::supervisor::Request;
use super::{Engine, Error, Page, Payload, Status, Subscription, Until, Waited};
use crate::model::Rehearsal;
use crate::settings::Use;
use crate::store::{Entry, PayloadInfo, RunRecord, StoreError};

impl Engine {
    /// The state of each run, in the order of the ids.
    pub fn status<S: AsRef<str>>(&self, ids: &[S]) -> Result<Vec<Status>, Error> {
        self.check_count(ids.len())?;
        let parsed: Vec<Option<RunId>> = ids.iter().map(|id| RunId::from_str(id.as_ref()).ok()).collect();
        let found = self.shared.store.memory().get_many(parsed.iter().map(Option::as_ref));
        Ok(ids
            .iter()
            .zip(found)
            .map(|(id, entry)| match entry {
                Some(entry) => self.view(&entry),
                None => Status::unknown(id.as_ref()),
            })
            .collect())
    }

    /// The state of one run.
    pub fn show(&self, id: &str) -> Result<Status, Error> {
        Ok(self.view(&*self.entry(id)?))
    }

    fn view(&self, entry: &Entry) -> Status {
        let record = entry.record();
        let settings = self.settings_of(&record).redacted();
        let model = match choose(settings, &record.spec) {
            Ok(Use::Loop(None)) => Some(Rehearsal::NAME.to_owned()),
            Ok(Use::Loop(Some(name))) => {
                let found = settings.models.iter().find(|model| model.name == name);
                found.map(|model| model.model.clone())
            }
            Ok(Use::Driver(_)) | Err(_) => None,
        };
        Status::of(entry, model, &self.shared.options.public_base)
    }

    /// Everything about one run.
    pub fn record(&self, id: &str) -> Result<Arc<RunRecord>, Error> {
        Ok(self.entry(id)?.record())
    }

    /// All runs, oldest first, optionally of one status.
    pub fn list(&self, status: Option<RunStatus>) -> Vec<Status> {
        let entries = self.shared.store.memory().all();
        let wanted = entries
            .iter()
            .filter(|entry| status.is_none_or(|status| entry.record().state.status() == status));
        wanted.map(|entry| self.view(entry)).collect()
    }

    /// The records of all runs, oldest first.
    pub fn records(&self) -> Vec<Arc<RunRecord>> {
        self.shared.store.memory().all().iter().map(|entry| entry.record()).collect()
    }

    /// Waits until runs have ended, or the time is over. `progress` hears how many have, whenever that changes.
    pub async fn wait<S: AsRef<str>>(
        &self,
        ids: &[S],
        until: Until,
        time: Duration,
        progress: &(dyn Fn(usize, usize) + Send + Sync),
    ) -> Result<Waited, Error> {
        self.check_count(ids.len())?;
        let time = time.min(Duration::from_secs(self.shared.options.limits.agent_wait_seconds));
        let entries: Vec<Arc<Entry>> = ids.iter().filter_map(|id| self.entry(id.as_ref()).ok()).collect();
        let total = entries.len();
        let mut open: FuturesUnordered<_> = entries
            .iter()
            .map(|entry| {
                let mut pulse = entry.watch();
                async move { pulse.wait_for(|pulse| pulse.ended).await.map(drop) }
            })
            .collect();
        let mut ended = 0;
        let waiting = async {
            while open.next().await.is_some() {
                ended += 1;
                progress(ended, total);
                if until == Until::Any {
                    break;
                }
            }
        };
        let _ = tokio::time::timeout(time, waiting).await;
        let done = match until {
            Until::All => ended == total,
            Until::Any => ended > 0 || total == 0,
        };
        Ok(Waited { done, agents: self.status(ids)? })
    }

    /// Waits until what is recorded about a run is as `wanted`.
    pub async fn until(
        &self,
        id: &str,
        wanted: impl Fn(&RunRecord) -> bool,
    ) -> Result<Arc<RunRecord>, Error> {
        let entry = self.entry(id)?;
        let mut pulse = entry.watch();
        loop {
            let is_deleted = pulse.borrow_and_update().deleted;
            let record = entry.record();
            if is_deleted {
                return Err(StoreError::Unknown(record.id.clone()).into());
            }
            if wanted(&record) {
                return Ok(record);
            }
            // The sender is in the entry.
            let _ = pulse.changed().await;
        }
    }

    /// Waits until no attempt of a run is under way: nothing is left of the process of one that has ended.
    pub async fn settled(&self, id: &str) -> Result<(), Error> {
        let (settled, is_settled) = oneshot::channel();
        let _ = self.shared.requests.send(Request::Settled(self.id(id)?, settled));
        Ok(is_settled.await.map_err(|_| StoreError::Closed)?)
    }

    /// A part of a run's transcript: at most `limit` entries after the one at `after`.
    pub async fn output(&self, id: &str, after: u64, limit: usize) -> Result<Page, Error> {
        let entry = self.entry(id)?;
        let most = usize::try_from(self.shared.options.limits.agent_output_entries).unwrap_or(usize::MAX);
        let limit = limit.clamp(1, most.max(1));
        let entries = match entry.tail_after(after, limit) {
            Some(entries) => entries,
            None => self.shared.store.reader().events(&entry.record().id, after, limit).await?,
        };
        let record = entry.record();
        let next = entries.last().map(|event| event.seq).filter(|seq| *seq < record.last_seq);
        Ok(Page { entries, next, status: record.state.status() })
    }

    /// Follows a run from the entry after `after`.
    pub fn subscribe(&self, id: &str, after: u64) -> Result<Subscription, Error> {
        Ok(Subscription::new(self.shared.store.clone(), self.entry(id)?, after))
    }

    /// Size and tag of a run's payload.
    pub fn payload_info(&self, id: &str) -> Result<PayloadInfo, Error> {
        let record = self.record(id)?;
        record.payload.clone().ok_or_else(|| Error::PayloadMissing(record.id.clone()))
    }

    /// A run's payload, compressed.
    pub async fn payload(&self, id: &str) -> Result<Payload, Error> {
        let info = self.payload_info(id)?;
        let gzip = self.shared.store.reader().payload(&info).await?;
        Ok(Payload { info, gzip })
    }
}
