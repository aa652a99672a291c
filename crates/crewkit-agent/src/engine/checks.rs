//! Whether a wish can be fulfilled: ids, names, sizes and room.

use std::str::FromStr;
use std::sync::Arc;

use crewkit_core::run::RunId;

use super::executors::Executors;
use super::{Engine, Error};
use crate::store::{Entry, RunSpec};

impl Engine {
    pub(super) fn id(&self, id: &str) -> Result<RunId, Error> {
        let parsed =
            RunId::from_str(id).ok().filter(|parsed| self.shared.store.memory().get(parsed).is_some());
        parsed.ok_or_else(|| Error::NotFound(id.chars().take(100).collect()))
    }

    pub(super) fn entry(&self, id: &str) -> Result<Arc<Entry>, Error> {
        let parsed = RunId::from_str(id).ok();
        let entry = parsed.and_then(|id| self.shared.store.memory().get(&id));
        entry.ok_or_else(|| Error::NotFound(id.chars().take(100).collect()))
    }

    /// What a run is carried out with: the settings of its start, or the server's own.
    pub(super) fn executors_of(&self, run: &RunId) -> Result<Arc<Executors>, Error> {
        match self.shared.executors.fixed(run) {
            Some(settings) => self.shared.executors.get(&settings, &self.shared.options),
            None => Ok(Arc::clone(&self.shared.own)),
        }
    }

    pub(super) async fn check_workdir(&self, spec: &RunSpec) -> Result<(), Error> {
        let Some(path) = spec.workdir.clone() else { return Ok(()) };
        let no = |path, source| Err(Error::Workdir { path, source });
        if !path.is_absolute() {
            let source = std::io::Error::new(std::io::ErrorKind::InvalidInput, "must be an absolute path");
            return no(path, source);
        }
        match tokio::fs::metadata(&path).await {
            Ok(metadata) if metadata.is_dir() => Ok(()),
            Ok(_) => no(path, std::io::ErrorKind::NotADirectory.into()),
            Err(source) => no(path, source),
        }
    }

    pub(super) fn check_contract(&self, contract: &str) -> Result<(), Error> {
        if contract.trim().is_empty() {
            return Err(Error::ContractBlank);
        }
        self.check_length(contract)
    }

    pub(super) fn check_length(&self, contract: &str) -> Result<(), Error> {
        let limit = self.shared.options.limits.agent_contract_bytes;
        if contract.len() as u64 > limit {
            return Err(Error::ContractTooLong { bytes: contract.len(), limit });
        }
        Ok(())
    }

    pub(super) fn check_count(&self, count: usize) -> Result<(), Error> {
        let limit = self.shared.options.limits.agent_status_ids;
        if count as u64 > limit { Err(Error::TooManyIds { count, limit }) } else { Ok(()) }
    }
}
