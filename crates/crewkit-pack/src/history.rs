//! What there is to return to: listing, showing and pruning snapshots.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::blobs::{Blobs, PACK_ENDING, PackWriter};
use crate::entry::Entry;
use crate::fs::{FileKind, Fs, Mode, Rename, found, open_path};
use crate::hash::Digest;
use crate::heads;
use crate::home::{Locked, StateHome};
use crate::journal::Journal;
use crate::legacy::LegacyDir;
use crate::managed;
use crate::path::RelPath;
use crate::place::RootDir;
use crate::rollback::Contents;
use crate::snapshot::{self, Counts, Op, Snapshot, age_key};
use crate::transaction::{Project, SnapshotKind, TxnError};

/// A snapshot in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SnapshotInfo {
    /// Its id.
    pub id: String,
    /// What made it.
    pub kind: SnapshotKind,
    /// When.
    pub created_at: String,
    /// The targets it covers.
    pub targets: Vec<String>,
    /// The project it was made in, if that is known.
    pub project: Option<Project>,
    /// The state it returned to.
    pub rolled_back_to: Option<String>,
    /// How many files it changed.
    pub counts: Counts,
    /// Whether agentpack 0.9.1 made it.
    pub legacy: bool,
}

/// All snapshots.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SnapshotList {
    /// Oldest first.
    pub snapshots: Vec<SnapshotInfo>,
    /// Those that cannot be read, and why.
    pub warnings: Vec<String>,
}

/// A snapshot in full.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SnapshotDetails {
    /// As in a list.
    #[serde(flatten)]
    pub info: SnapshotInfo,
    /// What it changed.
    pub changes: Vec<ChangeInfo>,
}

/// A change in a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChangeInfo {
    /// The target it belongs to.
    pub target: String,
    /// How the place changed.
    pub op: Op,
    /// Where, absolute.
    pub path: PathBuf,
    /// What was there.
    pub before: Option<Entry>,
    /// What is there since.
    pub after: Option<Entry>,
    /// Whether what was there was not ours and is kept.
    pub backup: bool,
}

/// What pruning removed, or would remove.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Pruned {
    /// The snapshots, oldest first.
    pub removed: Vec<String>,
    /// How many are left.
    pub kept: usize,
}

/// Whether pruning happens or is only reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PruneMode {
    /// Snapshots and contents are removed.
    Remove,
    /// Snapshots are removed, and contents where that pays: for every deploy, which must not copy what it keeps each time.
    Lazily,
    /// Nothing is removed.
    Report,
}

impl<F: Fs> StateHome<F> {
    pub(crate) fn snapshots_dir(&self) -> Result<Option<F::Dir>, TxnError> {
        let path = self.path().join("state/crewkit/snapshots");
        found(open_path(self.fs(), &path)).map_err(TxnError::at("open", &path))
    }

    pub(crate) fn heads_dir(&self) -> Result<Option<F::Dir>, TxnError> {
        let path = self.path().join("state/crewkit/heads");
        found(open_path(self.fs(), &path)).map_err(TxnError::at("open", &path))
    }

    /// The contents in store.
    pub fn blobs(&self) -> Result<Blobs<F>, TxnError> {
        let path = self.path().join("state/crewkit/packs");
        let dir = found(open_path(self.fs(), &path)).map_err(TxnError::at("open", &path))?;
        Blobs::open(self.fs(), dir).map_err(TxnError::at("read", &path))
    }

    /// Lists all snapshots, of ours and of 0.9.1; what cannot be read is a warning.
    pub fn snapshots(&self) -> Result<SnapshotList, TxnError> {
        let mut list = SnapshotList::default();
        let path = self.path().join("state/crewkit/snapshots");
        if let Some(dir) = self.snapshots_dir()? {
            for id in snapshot::ids(self.fs(), &dir).map_err(TxnError::at("list", &path))? {
                let header = match snapshot::read_header(self.fs(), &dir, &id) {
                    Ok(header) => header,
                    // Pruned while we looked.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    Err(error) => Err(error.to_string()),
                };
                match header {
                    Ok(header) => list.snapshots.push(info_of(&header)),
                    Err(reason) => {
                        list.warnings.push(format!("the snapshot `{id}` cannot be read: {reason}"));
                    }
                }
            }
        }
        let legacy = LegacyDir::open(self.fs(), self.path()).map_err(TxnError::at("open", self.path()))?;
        for id in legacy.ids().map_err(TxnError::at("list", &legacy.path))? {
            match legacy.read(&id) {
                Ok(Ok(snapshot)) => list.snapshots.push(legacy_info(&snapshot)),
                Ok(Err(reason)) => {
                    list.warnings.push(format!("the snapshot `{id}` cannot be read: {reason}"));
                }
                Err(error) => list.warnings.push(format!("the snapshot `{id}` cannot be read: {error}")),
            }
        }
        list.snapshots.sort_by(|a, b| age_key(&a.id).cmp(&age_key(&b.id)));
        Ok(list)
    }

    /// The content a snapshot found at `path` and replaced; none when it does not keep one.
    pub fn replaced(&self, id: &str, path: &Path) -> Result<Option<Vec<u8>>, TxnError> {
        let details = self.snapshot(id)?;
        let change = details.changes.into_iter().find(|change| change.path == path);
        let Some(entry) = change.and_then(|change| change.before) else { return Ok(None) };
        let legacy = LegacyDir::open(self.fs(), self.path()).map_err(TxnError::at("open", self.path()))?;
        Contents::open(self, &legacy)?.read(self.fs(), entry, path).map(Some)
    }

    /// Shows one snapshot.
    pub fn snapshot(&self, id: &str) -> Result<SnapshotDetails, TxnError> {
        let not_found = || TxnError::SnapshotNotFound { id: id.to_owned() };
        if !snapshot::is_id(id) {
            return Err(not_found());
        }
        let path = self.path().join("state/crewkit/snapshots").join(format!("{id}{}", snapshot::ENDING));
        if let Some(dir) = self.snapshots_dir()? {
            let read = snapshot::read(self.fs(), &dir, id);
            if let Some(read) = found(read).map_err(TxnError::at("read", &path))? {
                let snapshot = read.map_err(|reason| TxnError::SnapshotInvalid { path, reason })?;
                return Ok(details_of(&snapshot));
            }
        }
        let legacy = LegacyDir::open(self.fs(), self.path()).map_err(TxnError::at("open", self.path()))?;
        let path = legacy.path.join(format!("{id}.json"));
        match found(legacy.read(id)).map_err(TxnError::at("read", &path))? {
            None => Err(not_found()),
            Some(Err(reason)) => Err(TxnError::SnapshotInvalid { path, reason }),
            Some(Ok(snapshot)) => Ok(legacy_details(&snapshot)),
        }
    }
}

fn info_of(header: &snapshot::Header) -> SnapshotInfo {
    SnapshotInfo {
        id: header.id.clone(),
        kind: header.kind,
        created_at: header.created_at.clone(),
        targets: header.targets.clone(),
        project: header.project.clone(),
        rolled_back_to: header.rolled_back_to.clone(),
        counts: header.counts,
        legacy: false,
    }
}

fn details_of(snapshot: &Snapshot) -> SnapshotDetails {
    let roots = &snapshot.header.roots;
    let change = |change: &snapshot::Change| ChangeInfo {
        target: roots[change.root].target.clone(),
        op: change.op(),
        path: roots[change.root].path.join(change.path.as_path()),
        before: change.before,
        after: change.after,
        backup: change.is_backup(),
    };
    let changes = snapshot.changes.iter().map(change).collect();
    SnapshotDetails { info: info_of(&snapshot.header), changes }
}

fn legacy_info(snapshot: &crate::legacy::LegacySnapshot) -> SnapshotInfo {
    // Manifests are listed among the changes there; they are not files anybody deployed.
    let is_manifest =
        |path: &Path| path.file_name().and_then(|name| name.to_str()).is_some_and(managed::is_manifest_name);
    let files = || snapshot.changes.iter().filter(|change| !is_manifest(&change.path));
    let count = |op: &str| files().filter(|change| change.op == op).count() as u64;
    let counts =
        Counts { create: count("create"), update: count("update"), delete: count("delete"), backups: 0 };
    SnapshotInfo {
        id: snapshot.id.clone(),
        kind: snapshot.kind,
        created_at: snapshot.created_at.clone(),
        targets: snapshot.targets.clone(),
        project: None,
        rolled_back_to: snapshot.rolled_back_to.clone(),
        counts,
        legacy: true,
    }
}

fn legacy_details(snapshot: &crate::legacy::LegacySnapshot) -> SnapshotDetails {
    let entry = |sha256| Entry::new(sha256, crate::entry::EntryKind::Plain);
    let change = |change: &crate::legacy::LegacyChange| ChangeInfo {
        target: change.target.clone(),
        op: match change.op.as_str() {
            "create" => Op::Create,
            "delete" => Op::Delete,
            _ => Op::Update,
        },
        path: change.path.clone(),
        before: change.before_sha256.map(entry),
        after: change.after_sha256.map(entry),
        backup: false,
    };
    SnapshotDetails { info: legacy_info(snapshot), changes: snapshot.changes.iter().map(change).collect() }
}

impl<F: Fs> Locked<'_, F> {
    /// Removes all snapshots but the newest `keep`, and the contents nothing needs any more.
    ///
    /// Needed are the contents of the snapshots that stay, and of what is deployed in the roots these cover.
    pub fn prune(&self, keep: usize, mode: PruneMode) -> Result<Pruned, TxnError> {
        let (fs, dirs) = (self.home.fs(), &self.dirs);
        let snapshots_path = dirs.path.join("snapshots");
        let legacy = LegacyDir::open(fs, self.home.path()).map_err(TxnError::at("open", self.home.path()))?;
        let mut ids: Vec<(String, bool)> = Vec::new();
        let ours = snapshot::ids(fs, &dirs.snapshots).map_err(TxnError::at("list", &snapshots_path))?;
        ids.extend(ours.into_iter().map(|id| (id, false)));
        let theirs = legacy.ids().map_err(TxnError::at("list", &legacy.path))?;
        ids.extend(theirs.into_iter().map(|id| (id, true)));
        ids.sort_by(|a, b| age_key(&a.0).cmp(&age_key(&b.0)));
        let stay = ids.split_off(ids.len().saturating_sub(keep));
        let pruned = Pruned { removed: ids.iter().map(|(id, _)| id.clone()).collect(), kept: stay.len() };
        if mode == PruneMode::Report || (mode == PruneMode::Lazily && ids.is_empty()) {
            return Ok(pruned);
        }
        let (needed, covered) = self.needed(&legacy, &stay)?;
        let dead = self.rewrite_packs(&legacy, &ids, &needed, mode)?;
        // Oldest first: however far it gets, what is left is a whole history of the newest.
        for (id, is_legacy) in &ids {
            if *is_legacy {
                remove_legacy(&legacy, id)?;
            } else {
                let path = snapshots_path.join(id);
                found(fs.remove_file(&dirs.snapshots, &format!("{id}{}", snapshot::ENDING)))
                    .map_err(TxnError::at("remove", &path))?;
            }
        }
        fs.sync_dir(&dirs.snapshots).map_err(TxnError::at("sync", &snapshots_path))?;
        let heads_path = dirs.path.join("heads");
        for name in fs.list(&dirs.heads).map_err(TxnError::at("list", &heads_path))? {
            if !covered.contains(&name) {
                found(fs.remove_file(&dirs.heads, &name))
                    .map_err(TxnError::at("remove", &heads_path.join(name)))?;
            }
        }
        // What was cut short so long ago, in a directory that has not been seen since, is given up.
        let oldest = stay.first().map_or("", |(id, _)| id);
        let journals =
            Journal::list(fs, &dirs.journal).map_err(TxnError::at("list", &dirs.path.join("journal")))?;
        for (name, _) in journals {
            let id = name.split('.').next().unwrap_or_default();
            if age_key(id) < age_key(oldest) {
                let shown = dirs.path.join("journal").join(&name);
                Journal::remove(fs, &dirs.journal, id).map_err(TxnError::at("remove", &shown))?;
            }
        }
        for pack in dead {
            let path = dirs.path.join("packs").join(&pack);
            found(fs.remove_file(&dirs.packs, &pack)).map_err(TxnError::at("remove", &path))?;
        }
        Ok(pruned)
    }

    /// The contents that the snapshots which stay, and the files deployed in their roots, refer to; and the heads of these.
    fn needed(
        &self,
        legacy: &LegacyDir<'_, F>,
        stay: &[(String, bool)],
    ) -> Result<(HashSet<Digest>, BTreeSet<String>), TxnError> {
        let fs = self.home.fs();
        let (mut needed, mut covered) = (HashSet::new(), BTreeSet::new());
        let mut roots = BTreeSet::new();
        for (id, is_legacy) in stay {
            let path = self.dirs.path.join("snapshots").join(id);
            if *is_legacy {
                // A snapshot of 0.9.1 keeps its own copies; a damaged one has no roots to tell.
                let read = legacy.read(id).map_err(TxnError::at("read", &path))?;
                let Ok(snapshot) = read else { continue };
                for root in legacy.roots(&snapshot).map_err(TxnError::at("read", &path))? {
                    roots.insert(root);
                }
                continue;
            }
            let read = snapshot::read(fs, &self.dirs.snapshots, id).map_err(TxnError::at("read", &path))?;
            let snapshot = read.map_err(|reason| TxnError::SnapshotInvalid { path, reason })?;
            for change in &snapshot.changes {
                needed.extend(change.before.into_iter().chain(change.after).map(|entry| entry.sha256));
                needed.extend(change.was_managed.iter().map(|was| was.sha256));
            }
            for root in snapshot.header.roots {
                roots.insert((root.target, root.path));
            }
        }
        let boundary = self.home.boundary()?;
        for (target, path) in roots {
            let root = RootDir::open(fs, &path, boundary.as_deref())?;
            let read = managed::read(fs, root.as_ref(), &target).map_err(TxnError::at("read", &path))?;
            let head = heads::read(fs, &self.dirs.heads, &target, &path, None);
            let head = head.map_err(TxnError::at("read the head of", &path))?;
            let files = read.manifest.iter().chain(&head.manifest).flat_map(|manifest| &manifest.files);
            needed.extend(files.map(|file| file.sha256));
            covered.insert(heads::name(&target, &path));
        }
        Ok((needed, covered))
    }

    /// Copies what is needed out of packs, and snapshots of 0.9.1, that are about to go; names the packs that may.
    fn rewrite_packs(
        &self,
        legacy: &LegacyDir<'_, F>,
        leaving: &[(String, bool)],
        needed: &HashSet<Digest>,
        mode: PruneMode,
    ) -> Result<Vec<String>, TxnError> {
        let (fs, dirs) = (self.home.fs(), &self.dirs);
        let packs_path = dirs.path.join("packs");
        let blobs = Blobs::open(fs, Some(dirs.packs.clone())).map_err(TxnError::at("read", &packs_path))?;
        let mut dead = Vec::new();
        let mut moving = Vec::new();
        for pack in blobs.packs() {
            let contents: Vec<Digest> = blobs.contents_of(pack).collect();
            let alive: Vec<Digest> =
                contents.iter().filter(|digest| needed.contains(digest)).copied().collect();
            let worth = if mode == PruneMode::Lazily { contents.len() / 2 } else { contents.len() };
            if alive.len() < worth || alive.is_empty() {
                dead.push(pack.clone());
                moving.extend(alive);
            }
        }
        let legacy_ids: Vec<String> =
            leaving.iter().filter(|(_, is_legacy)| *is_legacy).map(|(id, _)| id.clone()).collect();
        let copies = legacy.contents(&legacy_ids).map_err(TxnError::at("read", &legacy.path))?;
        let copies: Vec<_> = copies
            .into_iter()
            .filter(|(digest, _)| needed.contains(digest) && !blobs.contains(digest))
            .collect();
        if moving.is_empty() && copies.is_empty() {
            return Ok(dead);
        }
        moving.sort();
        let id = self.dirs.newest_id(fs)?.saturating_add(1).to_string();
        let staged = Journal::staged_name(&id, 0);
        let at = || TxnError::at("write", &packs_path);
        found(fs.remove_file(&dirs.packs, &staged)).map_err(at())?;
        let file = fs.create(&dirs.packs, &staged, Mode::Private).map_err(at())?;
        let mut writer = PackWriter::<F>::new(file);
        for digest in moving {
            let offset = writer.begin();
            blobs.read(fs, &digest, |piece| writer.piece(fs, piece)).map_err(at())?;
            writer.end(digest, offset);
        }
        for (_, path) in copies {
            // A copy that is gone or damaged is of no use to anybody.
            if let Ok(file) = fs.open_source(&path) {
                writer.add_file(fs, &file, 0).map_err(at())?;
            }
        }
        let file = writer.finish(fs).map_err(at())?;
        fs.sync_file(&file).map_err(at())?;
        fs.rename(&dirs.packs, &staged, &dirs.packs, &format!("{id}{PACK_ENDING}"), Rename::NoReplace)
            .map_err(at())?;
        fs.sync_dir(&dirs.packs).map_err(at())?;
        Ok(dead)
    }
}

/// Removes a snapshot of 0.9.1: its copies first, so that an interruption leaves something to prune again.
fn remove_legacy<F: Fs>(legacy: &LegacyDir<'_, F>, id: &str) -> Result<(), TxnError> {
    let Some(dir) = legacy.dir() else { return Ok(()) };
    let path = legacy.path.join(id);
    remove_all(legacy.fs, dir, id).map_err(TxnError::at("remove", &path))?;
    found(legacy.fs.remove_file(dir, &format!("{id}.json"))).map_err(TxnError::at("remove", &path))?;
    Ok(())
}

/// Removes a directory of ours with everything in it, following no link.
fn remove_all<F: Fs>(fs: &F, parent: &F::Dir, name: &str) -> io::Result<()> {
    let Some(stat) = fs.stat(parent, name)? else { return Ok(()) };
    if stat.kind != FileKind::Directory {
        return fs.remove_file(parent, name);
    }
    let dir = fs.open_dir(parent, &RelPath::new(name).map_err(io::Error::other)?)?;
    for entry in fs.list(&dir)? {
        remove_all(fs, &dir, &entry)?;
    }
    fs.remove_dir(parent, name)
}
