//! The secrets that a server has: in memory alone, found by their fingerprints.

use std::collections::HashMap;
use std::sync::Mutex;

use crewkit_core::Secret;
use crewkit_core::run::MissingSecret;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use tokio::sync::watch;

use super::record::{RecordedSettings, UsedBy, replaced, visit};
use super::{RunSettings, record};
use crate::sync::lock;
use crate::tools::CommandPolicy;

/// Secrets by fingerprint, for as long as the server lives.
pub(crate) struct Vault {
    /// The home's random key, without which a fingerprint tells nothing.
    key: Secret,
    known: Mutex<HashMap<String, Secret>>,
    learned: watch::Sender<u64>,
}

/// What a run does with its settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use<'a> {
    /// Carries out a loop, with this model unless it is a rehearsal.
    Loop(Option<&'a str>),
    /// Starts this driver.
    Driver(&'a str),
}

impl UsedBy {
    fn is_part_of(&self, what: Use<'_>) -> bool {
        match (self, what) {
            (Self::Everything, _) | (Self::Loop, Use::Loop(_)) => true,
            (Self::Model(name), Use::Loop(model)) => model == Some(name),
            (Self::Driver(name), Use::Driver(driver)) => driver == name,
            _ => false,
        }
    }
}

impl Vault {
    pub(crate) fn new(key: Secret) -> Self {
        Self { key, known: Mutex::default(), learned: watch::Sender::new(0) }
    }

    /// Counts how often something was learned.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.learned.subscribe()
    }

    fn fingerprint(&self, value: &str) -> String {
        // A key of any length will do.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(self.key.expose().as_bytes()) else {
            return String::new();
        };
        mac.update(value.as_bytes());
        mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Remembers secrets that somebody brings.
    pub(crate) fn learn<'a>(&self, values: impl Iterator<Item = &'a str>) {
        let found: Vec<_> = values
            .filter(|value| !value.is_empty())
            .map(|value| (self.fingerprint(value), Secret::new(value)))
            .collect();
        let mut known = lock(&self.known);
        let before = known.len();
        known.extend(found);
        if known.len() > before {
            self.learned.send_modify(|count| *count += 1);
        }
    }

    /// Returns settings as they are written down, and remembers their secrets.
    pub(crate) fn record(&self, settings: &RunSettings) -> RecordedSettings {
        let mut values = Vec::new();
        visit(&mut settings.clone(), &mut |_, value| values.push(std::mem::take(value)));
        self.learn(values.iter().map(String::as_str));
        RecordedSettings::new(settings, |value| self.fingerprint(value))
    }

    /// The secrets that are missing for this use of the settings.
    pub(crate) fn missing(&self, settings: &RecordedSettings, what: Use<'_>) -> Vec<MissingSecret> {
        let known = lock(&self.known);
        let is_missing = |needed: &&record::NeededSecret| {
            needed.used_by.is_part_of(what) && !known.contains_key(&needed.fingerprint)
        };
        settings.needed().iter().filter(is_missing).map(|needed| needed.secret.clone()).collect()
    }

    /// Puts the secrets back. What needs one that is not known is left out; a run that uses it waits instead.
    pub(crate) fn fill(&self, settings: &RecordedSettings) -> RunSettings {
        let mut filled = RunSettings::clone(settings.redacted());
        let mut incomplete = Vec::new();
        {
            let known = lock(&self.known);
            visit(&mut filled, &mut |spot, value| {
                let Some((fingerprint, _)) = replaced(value) else { return };
                match known.get(fingerprint) {
                    Some(secret) => secret.expose().clone_into(value),
                    None => incomplete.push(spot.used_by),
                }
            });
        }
        filled.models.retain(|model| !incomplete.contains(&UsedBy::Model(model.name.clone())));
        filled.drivers.retain(|driver| !incomplete.contains(&UsedBy::Driver(driver.name.clone())));
        if incomplete.contains(&UsedBy::Loop) {
            filled.tool_servers.clear();
            filled.commands = CommandPolicy::Off;
        }
        filled
    }
}
