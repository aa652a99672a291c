//! What the fleet on this machine is made of.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use crewkit_agent::driver::ProcessDriver;
use crewkit_core::Limits;

use super::git::Git;
use super::role::RoleConfig;
use crate::kit::Kit;
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
    /// Projects of the configuration.
    pub projects: Vec<ProjectConfig>,
    /// Roles of the configuration.
    pub roles: Vec<RoleConfig>,
    /// What carries out tasks unless a role says otherwise; the built-in loop when absent.
    pub driver: Option<String>,
    /// Command lines that can carry out tasks.
    pub drivers: Vec<ProcessDriver>,
    /// Program and leading arguments of the process that holds such a command line.
    pub shim: Vec<OsString>,
    /// The environment command lines start from.
    pub environment: Vec<(OsString, OsString)>,
    /// What equips workspaces, if anything does.
    pub kit: Option<Arc<dyn Kit>>,
    /// The `task` program, when it is installed.
    pub task_program: Option<PathBuf>,
    /// What confines the commands of a workspace's Taskfile, or why nothing does. Agents write those commands, so without
    /// it they are not run.
    pub taskfile_sandbox: Result<Sandbox, String>,
    /// Whose agents these are.
    pub owner: String,
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
            projects: Vec::new(),
            roles: Vec::new(),
            driver: None,
            drivers: ProcessDriver::presets(),
            shim: Vec::new(),
            environment: Vec::new(),
            kit: None,
            task_program: None,
            taskfile_sandbox: Err("nothing here can confine its commands".to_owned()),
            owner: "me".to_owned(),
        }
    }
}
