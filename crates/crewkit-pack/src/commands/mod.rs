//! The verbs: each takes what was asked and gives an answer or a coded error. Command line, MCP and REST call these and
//! only these.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crewkit_core::Code;
use serde_json::{Map, Value, json};

use crate::env::{Env, Progress};
use crate::envelope::Answer;
use crate::error::{PackError, Result};
use crate::hash_cache::{self, HashCache};
use crate::home::{Locked, Pending, StateHome};
use crate::managed::KnownManifests;
use crate::manifest::{self, LastManifest};
use crate::session::{Choices, Select, Session};
use crate::state_lock::LockRequest;
use crate::transaction::{Outcome, Recovered};
use crate::view;

mod config;
mod deploy;
mod describe;
mod look;
mod overlays;
mod pins;
mod snapshots;
mod workspace;

pub use config::{Add, Init};
pub use deploy::{Deploy, Tokens};
pub use describe::{Argument, CommandRow, GLOBAL_ARGUMENTS, MUTATING};
pub use look::Explain;
pub use overlays::{OverlayEdit, OverlayRef, OverlayScope};
pub use pins::Update;
pub use snapshots::{Prune, RolledBack};
pub use workspace::{KitDrift, KitFile, KitReport};

/// Whether the caller has approved that something changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consent {
    /// Approved.
    Given,
    /// Not said.
    Missing,
}

impl Consent {
    /// Refuses `command` unless it is approved.
    pub fn require(self, command: &str) -> Result<()> {
        match self {
            Self::Given => Ok(()),
            Self::Missing => Err(PackError::new(
                Code::ConfirmRequired,
                format!("`{command}` changes something and was not approved: repeat with --yes (yes=true)"),
            )
            .detail("command", command)),
        }
    }
}

/// The pack service: surroundings, remembered hashes, and plans that wait for approval.
#[derive(Debug)]
pub struct Pack {
    env: Env,
    cache: Arc<HashCache>,
    manifest: Arc<LastManifest>,
    known: Arc<KnownManifests>,
    tokens: Arc<Mutex<Tokens>>,
    session: Choices,
}

impl Pack {
    /// A service in these surroundings. Reads the hash cache, nothing else.
    pub fn new(env: Env) -> Self {
        let manifest = LastManifest::in_file(manifest::cache_file_in(&env.state_dir()));
        Self::with_manifest(env, Arc::new(manifest))
    }

    /// A service in these surroundings that shares what is remembered of the manifest.
    fn with_manifest(env: Env, manifest: Arc<LastManifest>) -> Self {
        let file = hash_cache::file_in(&env.state_dir());
        let cache = HashCache::open(file, &env.limits, env.clock.clone());
        Self {
            env,
            cache: Arc::new(cache),
            manifest,
            known: Arc::default(),
            tokens: Arc::default(),
            session: Choices::default(),
        }
    }

    /// The same service, telling `progress` how far it has come.
    #[must_use]
    pub fn telling(&self, progress: Arc<dyn Progress>) -> Self {
        let env = Env { progress, ..self.env.clone() };
        let (cache, manifest) = (Arc::clone(&self.cache), Arc::clone(&self.manifest));
        let (known, tokens) = (Arc::clone(&self.known), Arc::clone(&self.tokens));
        Self { env, cache, manifest, known, tokens, session: self.session.clone() }
    }

    /// The same service for a session that chose `session` once for all its calls.
    #[must_use]
    pub fn choosing(self, session: Choices) -> Self {
        Self { session, ..self }
    }

    /// What a call that chose `asked` is about.
    pub fn select(&self, asked: Choices) -> Result<Select> {
        self.session.narrow(asked)
    }

    /// The surroundings.
    pub fn env(&self) -> &Env {
        &self.env
    }

    fn session<'a>(&'a self, select: &'a Select) -> Result<Session<'a>> {
        Session::open(&self.env, &self.cache, &self.known, &self.manifest, select)
    }

    /// Keeps what was found out for the next process, unless nothing may be written.
    fn remember(&self, select: &Select) {
        if !select.dry_run {
            self.cache.save();
            self.manifest.save();
        }
    }

    fn state(&self) -> StateHome {
        let workspace = self.env.workspace_state.as_ref().map(|_| self.env.cwd.as_path());
        StateHome::new(self.env.state_home()).confined_to(workspace)
    }

    fn now(&self) -> jiff::Timestamp {
        jiff::Timestamp::try_from(self.env.now()).unwrap_or_default()
    }

    /// Takes the lock of the home, finishing what was cut short. `select` says what the command is about.
    fn lock<'a>(
        &self,
        home: &'a StateHome,
        command: &str,
        select: Option<&Select>,
        warnings: &mut Vec<String>,
    ) -> Result<Locked<'a>> {
        // Only what was cut short needs them.
        let roots = match select {
            Some(select) if !home.is_quiet() => self.session(select)?.layout()?.paths(),
            _ => Vec::new(),
        };
        let request = LockRequest {
            command: command.to_owned(),
            since: self.now(),
            wait: Duration::from_secs(self.env.limits.pack_lock_wait_seconds),
            roots,
        };
        let locked = home.lock(&request)?;
        for recovered in locked.recovered() {
            let ended = match recovered.outcome {
                Outcome::Undone => "undone",
                Outcome::Completed => "completed",
            };
            let Recovered { command, started_at, unreached, .. } = recovered;
            if unreached.is_empty() {
                warnings.push(format!("`{command}`, begun {started_at}, had been cut short and was {ended}"));
            }
            for kept in &recovered.kept {
                warnings.push(format!("{} was changed meanwhile and left as it is", kept.display()));
            }
        }
        self.notice_pending(warnings);
        Ok(locked)
    }

    /// Says when a command was cut short, so that odd results explain themselves.
    fn notice_pending(&self, warnings: &mut Vec<String>) {
        let pending = match self.state().pending() {
            Ok(pending) => pending,
            Err(error) => return warnings.push(error.to_string()),
        };
        for Pending { command, started_at, journal, unreached, .. } in pending {
            let cut = format!("`{command}`, begun {started_at}, was cut short");
            if unreached.is_empty() {
                warnings.push(format!("{cut}; the next changing command ends it"));
                continue;
            }
            let places: Vec<String> = unreached.iter().map(|path| path.display().to_string()).collect();
            warnings.push(format!(
                "{cut} and cannot be ended in {}, which is not there at present: it is ended by the first changing \
                 command once it is back; if it is gone for good, delete {}",
                places.join(", "),
                journal.display()
            ));
        }
    }
}

/// Runs a verb so that what it noticed is told whether or not it succeeds.
fn noticing<T: Into<Answer>>(run: impl FnOnce(&mut Vec<String>) -> Result<T>) -> Result<Answer> {
    let mut warnings = Vec::new();
    match run(&mut warnings) {
        Ok(answer) => Ok(Answer { warnings, ..answer.into() }),
        Err(error) => Err(error.with_warnings(warnings)),
    }
}

/// The members every answer about a selection has.
fn selected(session: &Session<'_>) -> Result<Map<String, Value>> {
    Ok(view::object(json!({"profile": session.select.profile, "targets": session.target_names()?})))
}

/// An answer that names one path.
fn path_data(key: &str, path: &Path) -> Map<String, Value> {
    let mut data = Map::new();
    view::put_path(&mut data, key, path);
    data
}
