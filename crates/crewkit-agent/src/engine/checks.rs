//! Whether a wish can be fulfilled: ids, names, sizes and room.

use std::str::FromStr;
use std::sync::Arc;

use crewkit_core::run::{MissingSecret, RunId};

use super::executors::{Executors, choose};
use super::{Engine, Error};
use crate::settings::RecordedSettings;
use crate::store::{Entry, RunRecord, RunSpec};

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
    pub(super) fn executors_of(&self, record: &RunRecord) -> Result<Arc<Executors>, Error> {
        let shared = &self.shared;
        match &record.settings {
            Some(recorded) if **recorded != *shared.own.recorded => {
                let filled = Arc::new(shared.vault.fill(recorded));
                shared.executors.get(&filled, &shared.options, &shared.vault)
            }
            _ => Ok(Arc::clone(&shared.own)),
        }
    }

    /// The settings of a run, without their secrets.
    pub(super) fn settings_of<'a>(&'a self, record: &'a RunRecord) -> &'a RecordedSettings {
        record.settings.as_ref().unwrap_or(&self.shared.own.recorded)
    }

    /// The secrets without which a run cannot be carried out, and which nobody has brought since the server was started.
    pub fn missing_secrets(&self, record: &RunRecord) -> Vec<MissingSecret> {
        self.missing_in(self.settings_of(record), &record.spec)
    }

    /// The settings that replace those of a run whose secrets are missing: the asker's, if it has secrets for the same
    /// addresses. Returns `None` if nothing is missing.
    pub(super) fn replacement(&self, record: &RunRecord) -> Result<Option<Arc<RecordedSettings>>, Error> {
        let missing = self.missing_secrets(record);
        if missing.is_empty() {
            return Ok(None);
        }
        let own = &self.asker.recorded;
        if !own.has_all(&missing) {
            return Err(Error::SecretMissing(MissingSecret::explain(&missing)));
        }
        choose(own.redacted(), &record.spec)?;
        Ok(Some(Arc::clone(own)))
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
