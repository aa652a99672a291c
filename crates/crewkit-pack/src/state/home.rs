//! The state of one home: its lock, journals, contents and snapshots.
//!
//! Everything of ours is in `<home>/state/crewkit`, beside the `snapshots` of agentpack 0.9.1, which are read but
//! never written.

use std::io;
use std::path::{Path, PathBuf};

use crate::fs::path::RelPath;
use crate::fs::place::{Anchors, Located};
use crate::fs::{Fs, Mode, RealFs, ensure_dir, found, open_path};
use crate::state::journal::{Journal, Stage};
use crate::state::legacy::LegacyDir;
use crate::state::lock::{LockError, LockRequest, StateLock};
use crate::state::transaction::{self, Applied, Context, Recovered, Request, TxnError};

/// How many threads stage files.
const STAGING_THREADS: usize = 2;

/// The directories of the state, open.
#[derive(Debug, Clone)]
pub(crate) struct StateDirs<F: Fs> {
    /// `<home>/state/crewkit`, without links.
    pub(crate) path: PathBuf,
    pub(crate) base: F::Dir,
    pub(crate) journal: F::Dir,
    pub(crate) packs: F::Dir,
    pub(crate) snapshots: F::Dir,
    pub(crate) heads: F::Dir,
    /// The newest snapshot of 0.9.1.
    newest_legacy: u64,
}

impl<F: Fs> StateDirs<F> {
    /// The largest id in use.
    pub(crate) fn newest_id(&self, fs: &F) -> Result<u64, TxnError> {
        let mut newest = self.newest_legacy;
        for (dir, name) in
            [(&self.snapshots, "snapshots"), (&self.packs, "packs"), (&self.journal, "journal")]
        {
            let names = fs.list(dir).map_err(TxnError::at("list", &self.path.join(name)))?;
            let ids = names.iter().filter_map(|name| name.split_once('.')?.0.parse().ok());
            newest = newest.max(ids.max().unwrap_or(0));
        }
        Ok(newest)
    }
}

/// A home: reads whatever is there, changes things only through [`lock`](Self::lock).
#[derive(Debug)]
pub struct StateHome<F: Fs = RealFs> {
    fs: F,
    path: PathBuf,
    boundary: Option<PathBuf>,
    threads: usize,
}

/// A command that was cut short.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// What it was; empty when its journal cannot be read.
    pub command: String,
    /// When it began.
    pub started_at: String,
    /// Whether the next changing command completes it, or undoes it.
    pub stage: Stage,
    pub journal: PathBuf,
    /// Directories it has to do with that cannot be reached.
    pub unreached: Vec<PathBuf>,
}

impl StateHome<RealFs> {
    /// The home at `path`, which need not exist yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self::with_fs(RealFs::default(), path)
    }

    /// Takes the lock and ends whatever a killed command left unfinished.
    pub fn lock(&self, request: &LockRequest) -> Result<Locked<'_, RealFs>, TxnError> {
        let dirs = self.create_dirs()?;
        let path = dirs.path.join("lock");
        let lock = StateLock::acquire(&path, request).map_err(|error| match error {
            LockError::Held(holder) => TxnError::Locked { path: path.clone(), holder },
            LockError::Io(error) => TxnError::io("lock", &path, error),
        })?;
        self.recovered(dirs, request.command.clone(), &request.roots, Some(lock))
    }

    /// Takes the lock if that takes neither waiting nor writing anything.
    pub fn try_lock(&self, request: &LockRequest) -> Result<Option<Locked<'_, RealFs>>, TxnError> {
        let Some(lock) = StateLock::try_acquire(&self.path.join("state/crewkit/lock"), request) else {
            return Ok(None);
        };
        self.recovered(self.create_dirs()?, request.command.clone(), &request.roots, Some(lock)).map(Some)
    }
}

impl<F: Fs> StateHome<F> {
    /// The home at `path` on another file system.
    pub fn with_fs(fs: F, path: impl Into<PathBuf>) -> Self {
        Self { fs, path: path.into(), boundary: None, threads: STAGING_THREADS }
    }

    /// Sets how many threads stage files.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Refuses roots that are not below `boundary`, wherever links lead.
    #[must_use]
    pub fn confined_to(mut self, boundary: Option<&Path>) -> Self {
        self.boundary = boundary.map(Path::to_owned);
        self
    }

    /// The real path of what all roots must lie below.
    pub(crate) fn boundary(&self) -> Result<Option<PathBuf>, TxnError> {
        let real = |path: &PathBuf| self.fs.canonical(path).map_err(TxnError::at("resolve", path));
        self.boundary.as_ref().map(real).transpose()
    }

    /// The file system it is on.
    pub fn fs(&self) -> &F {
        &self.fs
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Does without the lock, where nobody else can be: on a simulated disk.
    pub fn lock_alone(&self, command: &str) -> Result<Locked<'_, F>, TxnError> {
        let dirs = self.create_dirs()?;
        self.recovered(dirs, command.to_owned(), &[], None)
    }

    /// The commands that were cut short, oldest first. Reads only.
    pub fn pending(&self) -> Result<Vec<Pending>, TxnError> {
        let mut pending = Vec::new();
        let path = self.path.join("state/crewkit/journal");
        let Some(dir) = found(open_path(&self.fs, &path)).map_err(TxnError::at("open", &path))? else {
            return Ok(pending);
        };
        let list = Journal::list(&self.fs, &dir).map_err(TxnError::at("list", &path))?;
        for (name, stage) in list {
            let Some(stage) = stage else { continue };
            let journal = match Journal::read(&self.fs, &dir, &name) {
                // It ended while we looked.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                read => read.map_err(TxnError::at("read", &path.join(&name)))?,
            };
            let mut one = Pending {
                command: String::new(),
                started_at: String::new(),
                stage,
                journal: path.join(&name),
                unreached: Vec::new(),
            };
            if let Ok(journal) = journal {
                let anchors = Anchors::reopen(&self.fs, &journal.anchors, &journal.anchor_ids, &[])?;
                one.unreached =
                    journal.only(|anchor| anchors.dirs.get(anchor).is_none_or(Option::is_none)).places();
                (one.command, one.started_at) = (journal.command, journal.started_at);
            }
            pending.push(one);
        }
        Ok(pending)
    }

    /// Whether no command is at work or was cut short.
    pub fn is_quiet(&self) -> bool {
        self.pending().is_ok_and(|pending| pending.is_empty())
    }

    fn recovered(
        &self,
        dirs: StateDirs<F>,
        command: String,
        roots: &[PathBuf],
        lock: Option<StateLock>,
    ) -> Result<Locked<'_, F>, TxnError> {
        let boundary = self.boundary()?;
        let is_inside = |path: &&PathBuf| {
            let real = self.fs.canonical(path).ok();
            boundary.as_ref().is_none_or(|boundary| real.is_some_and(|real| real.starts_with(boundary)))
        };
        let mut candidates: Vec<PathBuf> = roots.iter().filter(is_inside).cloned().collect();
        candidates.push(dirs.path.clone());
        let recovered = transaction::recover(&self.fs, &dirs, &candidates)?;
        Ok(Locked { home: self, dirs, command, recovered, lock })
    }

    /// Makes the directories of the state where they are missing.
    fn create_dirs(&self) -> Result<StateDirs<F>, TxnError> {
        let path = self.path.join("state/crewkit");
        // The home and its `state` may be links, to another disk for instance.
        let Located { nearest, missing, .. } = Located::find(&self.fs, &path, None)?;
        let make = |dir: &F::Dir, name: &RelPath| -> Result<F::Dir, TxnError> {
            ensure_dir(&self.fs, dir, name, Mode::Private)
                .map_err(TxnError::at("create the directory", &path.join(name.as_path())))
        };
        let sub = |dir: &F::Dir, name: &str| {
            make(dir, &RelPath::new(name).map_err(|error| TxnError::bad_path(&self.path, &error))?)
        };
        let base = match &missing {
            Some(missing) => make(nearest.handle(), missing)?,
            None => nearest.handle().clone(),
        };
        let legacy = self.path.join("state/snapshots");
        let ids = LegacyDir::open(&self.fs, &self.path).and_then(|legacy| legacy.ids());
        let ids = ids.map_err(TxnError::at("list", &legacy))?;
        Ok(StateDirs {
            newest_legacy: ids.last().and_then(|id| id.parse().ok()).unwrap_or(0),
            journal: sub(&base, "journal")?,
            packs: sub(&base, "packs")?,
            snapshots: sub(&base, "snapshots")?,
            heads: sub(&base, "heads")?,
            path: self.fs.canonical(&path).map_err(TxnError::at("resolve", &path))?,
            base,
        })
    }
}

/// A home nobody else can change.
#[derive(Debug)]
pub struct Locked<'a, F: Fs = RealFs> {
    pub(crate) home: &'a StateHome<F>,
    pub(crate) dirs: StateDirs<F>,
    command: String,
    recovered: Vec<Recovered>,
    /// Held until this is dropped.
    lock: Option<StateLock>,
}

impl<F: Fs> Locked<'_, F> {
    /// The commands that had been cut short and are dealt with now.
    pub fn recovered(&self) -> &[Recovered] {
        &self.recovered
    }

    /// Carries out a request: all of it or nothing.
    pub fn apply(&self, request: &Request) -> Result<Applied, TxnError> {
        if let Some(lock) = &self.lock {
            lock.introduce();
        }
        transaction::apply(&self.context(), request)
    }

    pub(crate) fn context(&self) -> Context<'_, F> {
        let home = self.home;
        Context { home, fs: &home.fs, state: &self.dirs, command: &self.command, threads: home.threads }
    }
}
