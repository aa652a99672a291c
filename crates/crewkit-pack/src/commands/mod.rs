//! The verbs: each takes what was asked and gives an answer or a coded error. Command line, MCP and REST call these and
//! only these.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crewkit_core::Code;

use crate::config::manifest::{self, LastManifest, Manifest};
use crate::env::{Env, Progress};
use crate::envelope::Answer;
use crate::error::{PackError, Result};
use crate::observe::hash_cache::{self, HashCache};
pub use crate::overlay::OverlayScope;
use crate::state::home::{Locked, Pending, StateHome};
use crate::state::lock::LockRequest;
use crate::state::transaction::{Outcome, Recovered};
use session::{Session, repo_of};

pub(crate) mod answers;
mod clients;
mod config;
mod deploy;
mod describe;
pub(crate) mod doctor;
mod look;
mod migrate;
mod overlays;
mod pins;
pub(crate) mod session;
mod snapshots;
mod workspace;

pub use crate::config::manifest::ModuleScope;
pub use answers::{
    Explained, ExplainedChange, ExplainedDrift, ExplainedModule, Fetched, GitInitialized, Health,
    Initialized, ManifestEdited, ModulesLocked, NextAction, OverlayEdited, OverlayPath, OverlayRebased,
    Planned, Preview, PreviewPlan, RolledBack, Snapshots, Status, UpdateDetail, UpdateStep, Updated,
};
pub use clients::{ClientPart, ClientProblem, ClientView, ExplainClient};
pub use config::{Add, Init};
pub use deploy::{Deploy, Tokens};
pub use describe::{Argument, CommandRow, GLOBAL_ARGUMENTS, Help, HelpRow, MUTATING};
pub use look::Explain;
pub use migrate::{Migrate, Migrated};
pub use overlays::{OverlayEdit, OverlayRef};
pub use pins::Update;
pub use session::{Choices, Select};
pub use snapshots::Prune;
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
#[derive(Debug, Clone)]
pub struct Pack {
    env: Env,
    cache: Arc<HashCache>,
    manifest: Arc<LastManifest>,
    tokens: Arc<Mutex<Tokens>>,
    session: Choices,
}

impl Pack {
    /// A service in these surroundings. Reads the hash cache, nothing else.
    pub fn new(env: Env) -> Self {
        let state = env.state_dir();
        Self {
            cache: Arc::new(HashCache::open(hash_cache::file_in(&state), &env.limits, env.clock.clone())),
            manifest: Arc::new(LastManifest::in_file(manifest::cache_file_in(&state))),
            tokens: Arc::default(),
            session: Choices::default(),
            env,
        }
    }

    /// The same service, telling `progress` how far it has come.
    #[must_use]
    pub fn telling(&self, progress: Arc<dyn Progress>) -> Self {
        let env = Env { progress, ..self.env.clone() };
        Self { env, ..self.clone() }
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
        Session::open(&self.env, &self.cache, &self.manifest, select)
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

    /// Runs a changing verb: if it is approved, and under the lock of the home. A dry run needs neither.
    fn change<T>(
        &self,
        select: &Select,
        command: &str,
        consent: Consent,
        run: impl FnOnce(&mut Vec<String>) -> Result<T>,
    ) -> Result<Answer<T>> {
        if select.dry_run {
            return collect_warnings(run);
        }
        consent.require(command)?;
        collect_warnings(|warnings| {
            // A missing or broken manifest is told before anything is created in the home.
            if command != "init" {
                Manifest::load(&repo_of(&self.env, select), &self.env.limits)?;
            }
            let home = self.state();
            let _locked = self.lock(&home, command, None, warnings)?;
            run(warnings)
        })
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
        let locked = home.lock(&self.lock_request(command, roots))?;
        self.warn_recovered(&locked, warnings);
        Ok(locked)
    }

    /// Takes the lock of the home if nothing was cut short and nobody holds it, so that one plan is enough.
    fn try_lock<'a>(
        &self,
        home: &'a StateHome,
        command: &str,
        warnings: &mut Vec<String>,
    ) -> Result<Option<Locked<'a>>> {
        let locked = home.try_lock(&self.lock_request(command, Vec::new()))?;
        Ok(locked.inspect(|locked| self.warn_recovered(locked, warnings)))
    }

    fn lock_request(&self, command: &str, roots: Vec<PathBuf>) -> LockRequest {
        let wait = Duration::from_secs(self.env.limits.pack_lock_wait_seconds);
        LockRequest { command: command.to_owned(), since: self.now(), wait, roots }
    }

    /// Adds a warning for each command that had been cut short and was ended with the lock.
    fn warn_recovered(&self, locked: &Locked<'_>, warnings: &mut Vec<String>) {
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
        self.warn_pending(warnings);
    }

    /// Says when a command was cut short, so that odd results explain themselves.
    fn warn_pending(&self, warnings: &mut Vec<String>) {
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

/// Runs a verb so that its warnings are returned whether or not it succeeds.
fn collect_warnings<T>(run: impl FnOnce(&mut Vec<String>) -> Result<T>) -> Result<Answer<T>> {
    let mut warnings = Vec::new();
    match run(&mut warnings) {
        Ok(data) => Ok(Answer { data, warnings }),
        Err(error) => Err(error.with_warnings(warnings)),
    }
}
