//! Everything a command reads from its surroundings, in one value that is passed in.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use crewkit_core::{Code, Limits};

use crate::error::{PackError, Result};

/// The surroundings of a command.
#[derive(Clone)]
pub struct Env {
    /// The home directory of the user.
    pub home: PathBuf,
    /// Where state, cache and the default config repo live.
    pub agentpack_home: PathBuf,
    /// The directory the command works in; it decides which project is meant.
    pub cwd: PathBuf,
    /// Set when `cwd` is the workspace of an agent: where its own state is kept. Only the project is written then, never
    /// the user's directories, and files of the project itself are left alone.
    pub workspace_state: Option<PathBuf>,
    /// Directories of clients that an environment variable moves, by its name (`CODEX_HOME`).
    pub client_dirs: BTreeMap<&'static str, PathBuf>,
    /// Candidates for the machine id, best first: the environment's, then the host name.
    pub machine_names: Vec<String>,
    /// The git program.
    pub git: PathBuf,
    /// Tells the time; fixed in tests.
    pub clock: Arc<dyn Fn() -> SystemTime + Send + Sync>,
    /// Hears about long work.
    pub progress: Arc<dyn Progress>,
    /// The version answers carry.
    pub version: String,
    /// The limits in force.
    pub limits: Limits,
}

impl Env {
    /// Surroundings with everything below `home` and the real clock; for tests and as a start to fill in.
    pub fn at_home(home: impl Into<PathBuf>) -> Self {
        let home = home.into();
        Self {
            agentpack_home: home.join(".agentpack"),
            cwd: home.clone(),
            workspace_state: None,
            home,
            client_dirs: BTreeMap::new(),
            machine_names: Vec::new(),
            git: PathBuf::from("git"),
            clock: Arc::new(SystemTime::now),
            progress: Arc::new(Silent),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            limits: Limits::default(),
        }
    }

    /// The config repo when none is named.
    pub fn default_repo(&self) -> PathBuf {
        self.agentpack_home.join("repo")
    }

    /// Where checkouts of git sources are kept.
    pub fn git_cache(&self) -> PathBuf {
        self.agentpack_home.join("cache/git")
    }

    /// The directory whose `state` holds snapshots, journal and lock.
    pub fn state_home(&self) -> &Path {
        self.workspace_state.as_deref().unwrap_or(&self.agentpack_home)
    }

    /// Where snapshots, journal, lock and hash cache live.
    pub fn state_dir(&self) -> PathBuf {
        self.state_home().join("state")
    }

    /// The present moment.
    pub fn now(&self) -> SystemTime {
        (self.clock)()
    }

    /// The present moment as files and answers write it.
    pub fn timestamp(&self) -> String {
        timestamp(self.now())
    }

    /// Ends work that nobody waits for any more.
    pub fn check_cancelled(&self) -> Result<()> {
        if self.progress.wanted() {
            return Ok(());
        }
        Err(PackError::new(Code::Cancelled, "the call was cancelled; nothing was changed"))
    }

    /// A path with a leading `~` or `~/` replaced by the home directory.
    pub fn expand_tilde(&self, text: &str) -> PathBuf {
        match text.strip_prefix('~') {
            Some("") => self.home.clone(),
            Some(rest) if rest.starts_with('/') => self.home.join(rest.trim_start_matches('/')),
            _ => PathBuf::from(text),
        }
    }
}

impl fmt::Debug for Env {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Env")
            .field("home", &self.home)
            .field("agentpack_home", &self.agentpack_home)
            .field("cwd", &self.cwd)
            .finish_non_exhaustive()
    }
}

/// RFC 3339 in UTC with nanoseconds.
pub fn timestamp(at: SystemTime) -> String {
    jiff::Timestamp::try_from(at).map_or_else(|_| "1970-01-01T00:00:00Z".to_owned(), |at| at.to_string())
}

/// Hears how far long work has come. Called from worker threads.
pub trait Progress: Send + Sync {
    /// `done` of `total` units of the work called `what` are finished.
    fn at(&self, what: &str, done: usize, total: usize);

    /// Whether somebody still wants the result. Reading and fetching end early when nobody does; a transaction that has
    /// begun is always finished.
    fn wanted(&self) -> bool {
        true
    }
}

/// Tells nobody.
#[derive(Debug)]
pub struct Silent;

impl Progress for Silent {
    fn at(&self, _what: &str, _done: usize, _total: usize) {}
}
