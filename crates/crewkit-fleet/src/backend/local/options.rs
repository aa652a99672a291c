//! What the fleet on this machine is made of.

use std::path::PathBuf;
use std::sync::Arc;

use crewkit_core::Limits;

use super::git::Git;
use super::settings::FleetSettings;
use crate::error::FleetError;
use crate::metadata::sandbox::Sandbox;
use crate::time::Clock;

/// The built-in loop.
pub const LOOP: &str = "loop";
/// The built-in loop without a model.
pub const REHEARSAL: &str = "rehearsal";

/// A project of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProjectConfig {
    /// Its name; that of its directory when absent.
    pub name: Option<String>,
    /// Where it is.
    pub path: PathBuf,
    /// What it is about.
    pub description: String,
    /// Pack profile of its agents.
    pub profile: Option<String>,
}

/// Everything the fleet needs to know; nothing is read from the environment.
#[derive(Clone)]
pub struct LocalOptions {
    /// Directory of the record, the workspaces and the trash.
    pub home: PathBuf,
    /// Limits in force.
    pub limits: Arc<Limits>,
    /// The clock.
    pub clock: Clock,
    /// Git.
    pub git: Git,
    /// The server's own settings, for whoever brings none.
    pub settings: FleetSettings,
    /// The `task` program, when it is installed.
    pub task_program: Option<PathBuf>,
    /// What confines the commands of a workspace's Taskfile, or why nothing does. Agents write those commands, so without
    /// it they are not run.
    pub taskfile_sandbox: Result<Sandbox, String>,
    /// Whose agents these are.
    pub owner: String,
    /// Lets tests fail the owners of agents.
    pub faults: Faults,
}

/// Fails the owner of an agent after an effect, where a test asks for it.
#[derive(Clone, Default)]
pub struct Faults(Option<Arc<AfterEffect>>);

type AfterEffect = dyn Fn(&'static str) -> Result<(), String> + Send + Sync;

impl Faults {
    /// Calls `after` after each effect of an owner: a `store` write, a `git` or `pack` command, the start or stop of a
    /// `run`. An error, or a panic, is the owner's.
    pub fn new(after: impl Fn(&'static str) -> Result<(), String> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(after)))
    }

    pub(super) fn after(&self, effect: &'static str) -> Result<(), FleetError> {
        let failed = self.0.as_ref().and_then(|after| after(effect).err());
        failed.map_or(Ok(()), |error| Err(FleetError::unavailable(error)))
    }
}

impl std::fmt::Debug for LocalOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalOptions").field("home", &self.home).finish_non_exhaustive()
    }
}

impl LocalOptions {
    /// A fleet at `home` with defaults: no projects, no kit, the built-in loop.
    pub fn new(home: impl Into<PathBuf>, git: Git) -> Self {
        Self {
            home: home.into(),
            limits: Arc::new(Limits::default()),
            clock: Clock::system(),
            git,
            settings: FleetSettings::default(),
            task_program: None,
            taskfile_sandbox: Err("nothing here can confine its commands".to_owned()),
            owner: "me".to_owned(),
            faults: Faults::default(),
        }
    }
}
