//! Back to an earlier state, as one more transaction.
//!
//! A rollback covers the roots of the snapshot it returns to and no others. The state to return to follows from the
//! target manifests on disk by walking back through the snapshots made since; files that were edited by hand return
//! to what was deployed, and the edits are kept as backups of the new snapshot. Going back to *before* a snapshot
//! undoes it: an adopted file becomes the user's again, and before the first deploy there is nothing of ours.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;

use crate::config::ids::ModuleIds;
use crate::desired::target::TargetKind;
use crate::fs::entry::{Entry, EntryKind, Observed};
use crate::fs::hash::Digest;
use crate::fs::path::RelPath;
use crate::fs::place::{PlaceId, RootDir};
use crate::fs::{Fs, stat_path};
use crate::observe::owners::{Owner, Owners};
use crate::plan::Change;
use crate::state::blobs::Blobs;
use crate::state::heads::{self, Head};
use crate::state::history::{AnySnapshot, SnapshotId};
use crate::state::home::{Locked, StateHome};
use crate::state::legacy::{Copy, LegacyDir, LegacySnapshot, below_root};
use crate::state::managed::{self, TargetManifest};
use crate::state::snapshot::WasManaged;
use crate::state::transaction::file_at;
use crate::state::transaction::{
    Applied, Content, ManifestChange, NewFile, Project, Request, RootChange, SnapshotKind, TxnError,
};

/// The state to return to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RollbackTo {
    /// As the snapshot left it.
    After(String),
    /// As the snapshot found it; written `before:<id>`.
    Before(String),
}

impl RollbackTo {
    /// Reads what a user types: an id, or `before:` and an id.
    pub fn parse(text: &str) -> Self {
        match text.strip_prefix("before:") {
            Some(id) => Self::Before(id.to_owned()),
            None => Self::After(text.to_owned()),
        }
    }

    /// The snapshot it names.
    pub fn id(&self) -> &str {
        match self {
            Self::After(id) | Self::Before(id) => id,
        }
    }
}

impl fmt::Display for RollbackTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::After(id) => f.write_str(id),
            Self::Before(id) => write!(f, "before:{id}"),
        }
    }
}

/// What a rollback would do.
#[derive(Debug, Clone)]
pub struct RollbackPlan {
    /// The transaction.
    pub request: Request,
    /// Files edited by hand, or not ours, that it replaces; their content is kept.
    pub backups: Vec<PathBuf>,
    /// What else there is to know.
    pub warnings: Vec<String>,
}

/// A root of the rollback and the state it returns to.
struct Scope<F: Fs> {
    target: String,
    path: PathBuf,
    /// The directory, if it is there.
    root: Option<RootDir<F>>,
    /// What the manifest listed.
    managed: BTreeMap<RelPath, WasManaged>,
    /// The permissions of what a later snapshot changed or removed.
    modes: BTreeMap<RelPath, u16>,
    /// What was at places that were not managed.
    unmanaged: BTreeMap<RelPath, Option<Entry>>,
    has_manifest: bool,
    /// The manifest in the root.
    current: Option<Arc<TargetManifest>>,
    /// What is managed at present, as the history goes.
    history: Option<Arc<TargetManifest>>,
}

impl<F: Fs> StateHome<F> {
    /// Computes what returning to `to` takes. Reads only.
    pub fn plan_rollback(&self, to: &RollbackTo, now: Timestamp) -> Result<RollbackPlan, TxnError> {
        let legacy = self.legacy()?;
        let history = History::read(self, &legacy, to.id())?;
        let mut warnings = history.warnings.clone();
        let mut scopes = history.scopes(self, &legacy, to, &mut warnings)?;
        for past in history.since(to).iter().rev() {
            undo(&mut scopes, past, &legacy)?;
        }
        if let (RollbackTo::After(id), AnySnapshot::Legacy(snapshot)) = (to, &history.target) {
            let homeless = return_to_legacy(&mut scopes, snapshot, &legacy)
                .map_err(TxnError::at("read", &legacy.path.join(id)))?;
            warnings.extend(homeless.iter().map(|path| {
                format!("{} is not below any root the snapshot knows; it is left as it is", path.display())
            }));
        }
        let contents = Contents::open(self, &legacy)?;
        let mut plan = RollbackPlan {
            request: Request {
                kind: SnapshotKind::Rollback,
                now,
                targets: scopes.iter().map(|scope| scope.target.clone()).collect::<Vec<_>>(),
                project: history.project(),
                lockfile_sha256: history.lockfile_sha256(),
                plan_hash: None,
                rolled_back_to: Some(to.to_string()),
                roots: Vec::new(),
                changes: Vec::new(),
            },
            backups: Vec::new(),
            warnings,
        };
        plan.request.targets.sort();
        plan.request.targets.dedup();
        let mut shared = Shared::new(self.fs(), &scopes)?;
        for (index, scope) in scopes.into_iter().enumerate() {
            scope.plan(index, self.fs(), &contents, &mut shared, &mut plan)?;
        }
        Ok(plan)
    }
}

impl<F: Fs> Locked<'_, F> {
    /// Returns to an earlier state.
    pub fn rollback(&self, to: &RollbackTo, now: Timestamp) -> Result<(RollbackPlan, Applied), TxnError> {
        let plan = self.home.plan_rollback(to, now)?;
        let applied = self.apply(&plan.request)?;
        Ok((plan, applied))
    }
}

/// The snapshot to return to and everything made since.
struct History {
    target: AnySnapshot,
    since: Vec<AnySnapshot>,
    warnings: Vec<String>,
}

impl History {
    fn read<F: Fs>(home: &StateHome<F>, legacy: &LegacyDir<'_, F>, id: &str) -> Result<Self, TxnError> {
        let not_found = || TxnError::SnapshotNotFound { id: id.to_owned() };
        let ids = home.snapshot_ids(legacy)?;
        let position = ids.iter().position(|(known, _)| known == id).ok_or_else(not_found)?;
        let read = |id: &SnapshotId| home.read_snapshot(legacy, id);
        let target = read(&ids[position])?;
        if let AnySnapshot::Legacy(snapshot) = &target
            && snapshot.kind == SnapshotKind::Rollback
        {
            let path = legacy.path.join(format!("{id}.json"));
            let back = snapshot.rolled_back_to.as_deref().unwrap_or("an earlier snapshot");
            let reason =
                format!("it records a rollback without a state of its own; return to {back} instead");
            return Err(TxnError::SnapshotInvalid { path, reason });
        }
        let mut warnings = Vec::new();
        let mut since = Vec::new();
        for entry in &ids[position + 1..] {
            match read(entry) {
                Ok(past) => since.push(past),
                // A damaged snapshot of 0.9.1 can be skipped: its own effects show in the manifests.
                Err(error) if entry.1 => warnings.push(format!("{error}; it is skipped")),
                Err(error) => return Err(error),
            }
        }
        Ok(Self { target, since, warnings })
    }

    /// The snapshots to undo, oldest first.
    fn since(&self, to: &RollbackTo) -> Vec<&AnySnapshot> {
        let own = matches!(to, RollbackTo::Before(_)).then_some(&self.target);
        own.into_iter().chain(&self.since).collect()
    }

    fn project(&self) -> Option<Project> {
        match &self.target {
            AnySnapshot::Ours(snapshot) => snapshot.header.project.clone(),
            AnySnapshot::Legacy(_) => None,
        }
    }

    fn lockfile_sha256(&self) -> Option<Digest> {
        match &self.target {
            AnySnapshot::Ours(snapshot) => snapshot.header.lockfile_sha256,
            AnySnapshot::Legacy(snapshot) => {
                snapshot.lockfile_sha256.as_ref().and_then(|text| text.parse().ok())
            }
        }
    }

    /// The roots the rollback covers, in their present state.
    fn scopes<F: Fs>(
        &self,
        home: &StateHome<F>,
        legacy: &LegacyDir<'_, F>,
        to: &RollbackTo,
        warnings: &mut Vec<String>,
    ) -> Result<Vec<Scope<F>>, TxnError> {
        let before = matches!(to, RollbackTo::Before(_));
        let roots: Vec<(String, PathBuf, bool)> = match &self.target {
            AnySnapshot::Ours(snapshot) => {
                let roots = snapshot.header.roots.iter();
                roots
                    .map(|root| {
                        let had = if before { root.had_manifest } else { root.has_manifest };
                        (root.target.clone(), root.path.clone(), had)
                    })
                    .collect()
            }
            AnySnapshot::Legacy(snapshot) => {
                let at = || TxnError::at("read", &legacy.path);
                let mut roots = Vec::new();
                for (target, path) in legacy.roots(snapshot).map_err(at())? {
                    let copy = if before { Copy::Before } else { Copy::After };
                    let kept = legacy.manifest(&snapshot.id, copy, &target, &path).map_err(at())?;
                    roots.push((target, path, kept.is_some() || !before));
                }
                roots
            }
        };
        let (fs, boundary, heads) = (home.fs(), home.boundary()?, home.state_dir("heads")?);
        let mut scopes = Vec::with_capacity(roots.len());
        for (target, path, has_manifest) in roots {
            let root = RootDir::open(fs, &path, boundary.as_deref())?;
            let mut read = managed::read(fs, root.as_ref(), &target)
                .map_err(TxnError::at("read the manifest in", &path))?;
            warnings.append(&mut read.warnings);
            let current = read.manifest;
            let head = match &heads {
                Some(dir) => heads::read(fs, dir, &target, &path, None),
                None => Ok(Head::default()),
            };
            let head = head.map_err(TxnError::at("read the head of", &path))?;
            let history = heads::merged(head.manifest.as_ref(), current.as_ref());
            let files = history.iter().flat_map(|manifest| &manifest.files);
            let managed = files.map(|file| (file.path.clone(), WasManaged::from(file))).collect();
            let (unmanaged, modes) = (BTreeMap::new(), BTreeMap::new());
            scopes.push(Scope {
                target,
                path,
                root,
                managed,
                modes,
                unmanaged,
                has_manifest,
                current,
                history,
            });
        }
        Ok(scopes)
    }
}

/// Takes one snapshot back, in the roots covered.
fn undo<F: Fs>(
    scopes: &mut [Scope<F>],
    past: &AnySnapshot,
    legacy: &LegacyDir<'_, F>,
) -> Result<(), TxnError> {
    match past {
        AnySnapshot::Ours(snapshot) => {
            for change in &snapshot.changes {
                let root = &snapshot.header.roots[change.root];
                let covered = |scope: &&mut Scope<F>| scope.target == root.target && scope.path == root.path;
                if let Some(scope) = scopes.iter_mut().find(covered) {
                    scope.undo(change.path.clone(), change.was_managed.clone(), change.before);
                }
            }
        }
        AnySnapshot::Legacy(snapshot) => {
            let mut manifests = Vec::with_capacity(scopes.len());
            for scope in &*scopes {
                let read = legacy.manifest(&snapshot.id, Copy::Before, &scope.target, &scope.path);
                manifests.push(read.map_err(TxnError::at("read", &legacy.path.join(&snapshot.id)))?);
            }
            for change in &snapshot.changes {
                let roots = scopes.iter().enumerate();
                let roots = roots.map(|(index, scope)| (index, scope.target.as_str(), scope.path.as_path()));
                let Some((index, path)) = below_root(roots, &change.target, &change.path) else { continue };
                if managed::is_manifest_name(path.name()) {
                    continue;
                }
                let was =
                    manifests[index].as_ref().and_then(|manifest| manifest.file(&path)).map(WasManaged::from);
                scopes[index].undo(path, was, change.before_sha256.map(plain));
            }
        }
    }
    Ok(())
}

const fn plain(sha256: Digest) -> Entry {
    Entry::new(sha256, EntryKind::Plain)
}

/// A snapshot of 0.9.1 lists everything that was managed after it. Says what lies outside all roots.
fn return_to_legacy<F: Fs>(
    scopes: &mut [Scope<F>],
    snapshot: &LegacySnapshot,
    legacy: &LegacyDir<'_, F>,
) -> std::io::Result<Vec<PathBuf>> {
    let mut homeless = Vec::new();
    let mut listed: Vec<HashSet<RelPath>> = scopes.iter().map(|_| HashSet::new()).collect();
    for file in &snapshot.managed_files {
        let roots = scopes.iter().enumerate();
        let roots = roots.map(|(index, scope)| (index, scope.target.as_str(), scope.path.as_path()));
        let Some((index, path)) = below_root(roots, &file.target, &file.path) else {
            homeless.push(file.path.clone());
            continue;
        };
        let known = scopes[index].managed.get(&path);
        // What 0.9.1 did not record is taken from what is known by now, if it is the same file.
        let (executable, module_ids) = match known {
            Some(known) if known.sha256 == file.sha256 => (known.executable, known.module_ids.clone()),
            _ => (false, ModuleIds::default()),
        };
        scopes[index].unmanaged.remove(&path);
        scopes[index]
            .managed
            .insert(path.clone(), WasManaged { sha256: file.sha256, executable, module_ids });
        listed[index].insert(path);
    }
    for (scope, listed) in scopes.iter_mut().zip(listed) {
        let manifest = legacy.manifest(&snapshot.id, Copy::After, &scope.target, &scope.path)?;
        for file in manifest.into_iter().flat_map(|manifest| manifest.files) {
            if let Some(known) = scope.managed.get_mut(&file.path)
                && known.module_ids.is_empty()
            {
                known.module_ids = file.module_ids;
            }
        }
        let surplus: Vec<RelPath> =
            scope.managed.keys().filter(|path| !listed.contains(*path)).cloned().collect();
        for path in surplus {
            scope.managed.remove(&path);
            scope.unmanaged.entry(path).or_insert(None);
        }
    }
    Ok(homeless)
}

impl<F: Fs> Scope<F> {
    fn undo(&mut self, path: RelPath, was_managed: Option<WasManaged>, before: Option<Entry>) {
        if let Some(mode) = before.and_then(|before| before.mode) {
            self.modes.insert(path.clone(), mode);
        }
        if let Some(was) = was_managed {
            self.unmanaged.remove(&path);
            self.managed.insert(path, was);
        } else {
            self.managed.remove(&path);
            self.unmanaged.insert(path, before);
        }
    }

    /// Adds what this root needs to a plan.
    fn plan(
        self,
        index: usize,
        fs: &F,
        contents: &Contents<F>,
        shared: &mut Shared<'_, F>,
        plan: &mut RollbackPlan,
    ) -> Result<(), TxnError> {
        let managed = self.managed.iter().map(|(path, was)| (path, Some(was.at(path.clone()).entry())));
        let unmanaged = self.unmanaged.iter().map(|(path, entry)| (path, *entry));
        for (path, wanted) in managed.chain(unmanaged) {
            let shown = self.path.join(path.as_path());
            let observed = match &self.root {
                Some(root) => match root.observe(fs, path) {
                    // What lies behind a link or a file in the way is not ours, so nothing is there to be removed.
                    Err(error) if error.kind() == ErrorKind::NotADirectory && wanted.is_none() => continue,
                    Err(error) if error.kind() == ErrorKind::NotADirectory => {
                        return Err(TxnError::Blocked { path: shown, root: self.path });
                    }
                    observed => observed.map_err(TxnError::at("read", &shown))?,
                },
                None => Observed::Absent,
            };
            let before = file_at(observed, || shown.clone())?;
            if before == wanted {
                continue;
            }
            if let (None, Some(root)) = (wanted, &self.root)
                && shared.is_wanted(root, path)?
            {
                continue;
            }
            let deployed =
                self.history.as_ref().and_then(|manifest| manifest.file(path)).map(|file| file.sha256);
            if before.is_some_and(|before| Some(before.sha256) != deployed) {
                plan.backups.push(shown.clone());
            }
            let after = wanted.map(|entry| contents.find(fs, entry, &shown)).transpose()?;
            let after = after.map(|mut new| {
                // What is gone gets the permissions it had; what is there keeps its own.
                let was = self.modes.get(path).filter(|_| before.is_none() && new.entry.mode.is_none());
                let was = was.map(|mode| Entry { mode: Some(*mode), ..new.entry });
                new.entry.mode = new.entry.mode_after(was);
                new
            });
            plan.request.changes.push(Change::new(index, path.clone(), before, after));
        }
        let manifest = if self.has_manifest {
            ManifestChange::Write(self.managed.iter().map(|(path, was)| was.at(path.clone())).collect())
        } else if self.current.is_some() {
            ManifestChange::Remove
        } else {
            ManifestChange::Keep
        };
        let Self { target, path, current: seen, .. } = self;
        plan.request.roots.push(RootChange { target, path, seen, manifest });
        Ok(())
    }
}

/// What may not be deleted: places that another root of the rollback wants, or another manifest lists.
struct Shared<'a, F: Fs> {
    fs: &'a F,
    wanted: HashSet<PlaceId>,
    covered: HashSet<Owner>,
    owners: Owners<'a, F>,
}

impl<'a, F: Fs> Shared<'a, F> {
    fn new(fs: &'a F, scopes: &[Scope<F>]) -> Result<Self, TxnError> {
        let mut shared =
            Self { fs, wanted: HashSet::new(), covered: HashSet::new(), owners: Owners::new(fs) };
        if scopes.iter().all(|scope| scope.unmanaged.values().all(Option::is_some)) {
            return Ok(shared);
        }
        for scope in scopes {
            let Some(root) = &scope.root else { continue };
            let at = || TxnError::at("look at", &scope.path);
            let target = TargetKind::from_name(&scope.target).map_or("", TargetKind::name);
            shared.covered.insert(Owner { target, root: fs.identity(root.handle()).map_err(at())? });
            let restored = scope.unmanaged.iter().filter_map(|(path, entry)| entry.map(|_| path));
            for path in scope.managed.keys().chain(restored) {
                shared.wanted.insert(root.place_id(fs, path).map_err(at())?);
            }
        }
        Ok(shared)
    }

    fn is_wanted(&mut self, root: &RootDir<F>, path: &RelPath) -> Result<bool, TxnError> {
        let id = root.place_id(self.fs, path).map_err(TxnError::at("look at", root.path()))?;
        let covered = &self.covered;
        let is_other = |owner| !covered.contains(&owner);
        Ok(self.wanted.contains(&id) || self.owners.any(&root.real().join(path.as_path()), is_other)?)
    }
}

/// Where contents can be had.
pub(crate) struct Contents<F: Fs> {
    blobs: Blobs<F>,
    legacy: BTreeMap<Digest, PathBuf>,
}

impl<F: Fs> Contents<F> {
    pub(crate) fn open(home: &StateHome<F>, legacy: &LegacyDir<'_, F>) -> Result<Self, TxnError> {
        let blobs = home.blobs()?;
        let at = || TxnError::at("read", &legacy.path);
        let legacy = legacy.contents(&legacy.ids().map_err(at())?).map_err(at())?;
        Ok(Self { blobs, legacy })
    }

    /// A whole content; `shown` is the place it belongs to.
    pub(crate) fn read(&self, fs: &F, entry: Entry, shown: &Path) -> Result<Vec<u8>, TxnError> {
        let stored = self.blobs.read_to_vec(fs, &entry.sha256);
        if let Some(bytes) = stored.map_err(TxnError::at("read the kept content of", shown))? {
            return Ok(bytes);
        }
        let sha256 = entry.sha256.to_string();
        let missing = || TxnError::NotStored { path: shown.to_owned(), sha256 };
        let path = self.legacy.get(&entry.sha256).ok_or_else(missing)?;
        std::fs::read(path).map_err(TxnError::at("read", path))
    }

    fn find(&self, fs: &F, entry: Entry, shown: &Path) -> Result<NewFile, TxnError> {
        let sha256 = entry.sha256;
        if let Some(size) = self.blobs.length(&sha256) {
            return Ok(NewFile { entry, size, content: Content::Stored });
        }
        let missing = || TxnError::NotStored { path: shown.to_owned(), sha256: sha256.to_string() };
        let path = self.legacy.get(&sha256).ok_or_else(missing)?;
        let found = stat_path(fs, path).map_err(TxnError::at("look at", path))?;
        let (_, stat) = found.ok_or_else(missing)?;
        Ok(NewFile { entry, size: stat.size, content: Content::File(path.as_path().into()) })
    }
}
