//! What there is to return to: listing, showing and pruning snapshots.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::commands::answers::members;
use crate::fs::entry::Entry;
use crate::fs::hash::Digest;
use crate::fs::path::RelPath;
use crate::fs::place::RootDir;
use crate::fs::{FileKind, Fs, Mode, Rename, found, open_path};
use crate::state::blobs::{Blobs, PACK_ENDING, PackWriter};
use crate::state::heads;
use crate::state::home::{Locked, StateHome};
use crate::state::journal::Journal;
use crate::state::legacy::{LegacyChange, LegacyDir, LegacySnapshot};
use crate::state::managed;
use crate::state::rollback::Contents;
use crate::state::snapshot::{self, Counts, Op, Snapshot, age_key};
use crate::state::transaction::{Project, SnapshotKind, TxnError};

/// A snapshot in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SnapshotInfo {
    /// How many files it changed.
    pub counts: Counts,
    /// When it was made.
    pub created_at: String,
    pub id: String,
    /// What made it.
    pub kind: SnapshotKind,
    /// Whether agentpack 0.9.1 made it.
    pub legacy: bool,
    /// The project it was made in, if that is known.
    pub project: Option<Project>,
    /// The state it returned to.
    pub rolled_back_to: Option<String>,
    /// The targets it covers.
    pub targets: Vec<String>,
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
    /// What it changed.
    pub changes: Vec<ChangeInfo>,
    /// As in a list.
    #[serde(flatten)]
    pub info: SnapshotInfo,
}

/// A change in a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChangeInfo {
    /// What is there since.
    pub after: Option<Entry>,
    /// Whether what was there was not ours and is kept.
    pub backup: bool,
    /// What was there.
    pub before: Option<Entry>,
    /// How the place changed.
    pub op: Op,
    /// Where, absolute.
    #[serde(flatten, serialize_with = "members::path")]
    pub path: PathBuf,
    /// The target it belongs to.
    pub target: String,
}

/// What pruning removed, or would remove.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Pruned {
    /// How many snapshots are left.
    pub kept: usize,
    /// The snapshots that were removed, oldest first.
    pub removed: Vec<String>,
}

/// How thoroughly pruning is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PruneMode {
    /// Snapshots and contents are removed.
    Remove,
    /// Snapshots are removed, and contents where that pays: for every deploy, which must not copy what it keeps each time.
    Lazily,
}

/// A snapshot in the form of whoever made it.
pub(crate) enum AnySnapshot {
    Ours(Snapshot),
    Legacy(LegacySnapshot),
}

/// The id of a snapshot, and whether agentpack 0.9.1 made it.
pub(crate) type SnapshotId = (String, bool);

impl<F: Fs> StateHome<F> {
    /// A directory of the state; `None` if it is not there.
    pub(crate) fn state_dir(&self, name: &str) -> Result<Option<F::Dir>, TxnError> {
        let path = self.path().join("state/crewkit").join(name);
        found(open_path(self.fs(), &path)).map_err(TxnError::at("open", &path))
    }

    /// The snapshots of 0.9.1.
    pub(crate) fn legacy(&self) -> Result<LegacyDir<'_, F>, TxnError> {
        LegacyDir::open(self.fs(), self.path()).map_err(TxnError::at("open", self.path()))
    }

    /// The contents in store.
    pub fn blobs(&self) -> Result<Blobs<F>, TxnError> {
        let path = self.path().join("state/crewkit/packs");
        Blobs::open(self.fs(), self.state_dir("packs")?).map_err(TxnError::at("read", &path))
    }

    /// The ids of all snapshots, oldest first.
    pub(crate) fn snapshot_ids(&self, legacy: &LegacyDir<'_, F>) -> Result<Vec<SnapshotId>, TxnError> {
        let mut ids: Vec<SnapshotId> = Vec::new();
        if let Some(dir) = self.state_dir("snapshots")? {
            let path = self.path().join("state/crewkit/snapshots");
            let ours = snapshot::ids(self.fs(), &dir).map_err(TxnError::at("list", &path))?;
            ids.extend(ours.into_iter().map(|id| (id, false)));
        }
        let theirs = legacy.ids().map_err(TxnError::at("list", &legacy.path))?;
        ids.extend(theirs.into_iter().map(|id| (id, true)));
        ids.sort_by(|a, b| age_key(&a.0).cmp(&age_key(&b.0)));
        Ok(ids)
    }

    /// Reads a snapshot.
    pub(crate) fn read_snapshot(
        &self,
        legacy: &LegacyDir<'_, F>,
        (id, is_legacy): &SnapshotId,
    ) -> Result<AnySnapshot, TxnError> {
        let (path, read) = if *is_legacy {
            let path = legacy.path.join(format!("{id}.json"));
            let read = legacy.read(id).map_err(TxnError::at("read", &path))?;
            (path, read.map(AnySnapshot::Legacy))
        } else {
            let name = format!("{id}{}", snapshot::ENDING);
            let path = self.path().join("state/crewkit/snapshots").join(name);
            let not_found = || TxnError::SnapshotNotFound { id: id.clone() };
            let dir = self.state_dir("snapshots")?.ok_or_else(not_found)?;
            let read = snapshot::read(self.fs(), &dir, id).map_err(TxnError::at("read", &path))?;
            (path, read.map(AnySnapshot::Ours))
        };
        read.map_err(|reason| TxnError::SnapshotInvalid { path, reason })
    }

    /// Lists all snapshots, of ours and of 0.9.1; what cannot be read is a warning.
    pub fn snapshots(&self) -> Result<SnapshotList, TxnError> {
        let mut list = SnapshotList::default();
        let (legacy, dir) = (self.legacy()?, self.state_dir("snapshots")?);
        for (id, is_legacy) in self.snapshot_ids(&legacy)? {
            let read = match &dir {
                Some(dir) if !is_legacy => {
                    let header = snapshot::read_header(self.fs(), dir, &id);
                    header.map(|header| header.map(|header| info_of(&header)))
                }
                _ => legacy.read(&id).map(|read| read.map(|snapshot| legacy_info(&snapshot))),
            };
            match read {
                Ok(Ok(info)) => list.snapshots.push(info),
                // Pruned while we looked.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Ok(Err(reason)) => {
                    list.warnings.push(format!("the snapshot `{id}` cannot be read: {reason}"));
                }
                Err(error) => list.warnings.push(format!("the snapshot `{id}` cannot be read: {error}")),
            }
        }
        Ok(list)
    }

    /// The content a snapshot found at `path` and replaced; none when it does not keep one.
    pub(crate) fn replaced(&self, id: &str, path: &Path) -> Result<Option<Vec<u8>>, TxnError> {
        let details = self.snapshot(id)?;
        let change = details.changes.into_iter().find(|change| change.path == path);
        let Some(entry) = change.and_then(|change| change.before) else { return Ok(None) };
        Contents::open(self, &self.legacy()?)?.read(self.fs(), entry, path).map(Some)
    }

    /// Shows one snapshot.
    pub fn snapshot(&self, id: &str) -> Result<SnapshotDetails, TxnError> {
        let legacy = self.legacy()?;
        let known = self.snapshot_ids(&legacy)?.into_iter().find(|(known, _)| known == id);
        let known = known.ok_or_else(|| TxnError::SnapshotNotFound { id: id.to_owned() })?;
        Ok(match self.read_snapshot(&legacy, &known)? {
            AnySnapshot::Ours(snapshot) => details_of(&snapshot),
            AnySnapshot::Legacy(snapshot) => legacy_details(&snapshot),
        })
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
    let change = |change: &snapshot::RecordedChange| ChangeInfo {
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

fn legacy_info(snapshot: &LegacySnapshot) -> SnapshotInfo {
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

fn legacy_details(snapshot: &LegacySnapshot) -> SnapshotDetails {
    let entry = |sha256| Entry::new(sha256, crate::fs::entry::EntryKind::Plain);
    let change = |change: &LegacyChange| ChangeInfo {
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
        let legacy = self.home.legacy()?;
        let mut ids = self.home.snapshot_ids(&legacy)?;
        let stay = ids.split_off(ids.len().saturating_sub(keep));
        let pruned = Pruned { removed: ids.iter().map(|(id, _)| id.clone()).collect(), kept: stay.len() };
        if mode == PruneMode::Lazily && ids.is_empty() {
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
        stay: &[SnapshotId],
    ) -> Result<(HashSet<Digest>, BTreeSet<String>), TxnError> {
        let fs = self.home.fs();
        let (mut needed, mut covered) = (HashSet::new(), BTreeSet::new());
        let mut roots = BTreeSet::new();
        for id in stay {
            match self.home.read_snapshot(legacy, id) {
                Ok(AnySnapshot::Ours(snapshot)) => {
                    for change in &snapshot.changes {
                        let entries = change.before.into_iter().chain(change.after);
                        needed.extend(entries.map(|entry| entry.sha256));
                        needed.extend(change.was_managed.iter().map(|was| was.sha256));
                    }
                    roots.extend(snapshot.header.roots.into_iter().map(|root| (root.target, root.path)));
                }
                // A snapshot of 0.9.1 keeps its own copies; a damaged one has no roots to tell.
                Ok(AnySnapshot::Legacy(snapshot)) => {
                    roots.extend(legacy.roots(&snapshot).map_err(TxnError::at("read", &legacy.path))?);
                }
                Err(TxnError::SnapshotInvalid { .. }) if id.1 => {}
                Err(error) => return Err(error),
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
        leaving: &[SnapshotId],
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
