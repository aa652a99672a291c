//! The roots of a request: their target manifests before and after, the directories made for their files, and what
//! the snapshot says about them.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use super::prepare::{Work, written};
use super::survey::{Presence, Survey};
use super::{ManifestChange, Request, RootChange, TxnError};
use crate::fs::entry::{Entry, EntryKind, read_all};
use crate::fs::hash::Digest;
use crate::fs::path::RelPath;
use crate::fs::place::{Anchors, Place, RootAt};
use crate::fs::{FileKind, Fs};
use crate::plan::Change;
use crate::state::heads::{self, Head};
use crate::state::managed::{self, CreatedDirs, ManagedFile, TargetManifest};
use crate::state::snapshot::{RecordedChange, SnapshotRoot, WasManaged};

/// A root with what was read of its manifest.
pub(super) struct Root {
    pub(super) at: RootAt,
    pub(super) old: Option<Arc<TargetManifest>>,
    /// The manifest file as it is.
    pub(super) file: Option<Entry>,
    /// Whether that file could not be understood, so is not surely ours.
    pub(super) foreign: bool,
    /// What the last command left there.
    pub(super) head: Head,
}

impl Root {
    /// What was managed before, as the history goes.
    fn history(&self) -> Option<Arc<TargetManifest>> {
        heads::merged(self.head.manifest.as_ref(), self.old.as_ref())
    }
}

/// The name of the manifest of a target.
pub(super) fn manifest_name(target: &str) -> Result<RelPath, TxnError> {
    RelPath::new(managed::file_name(target)).map_err(|error| TxnError::bad_path(Path::new(target), &error))
}

/// What happens in all roots besides the files of the request.
#[derive(Default)]
pub(super) struct RootsPlan {
    /// Manifests to write or remove.
    pub(super) manifests: Vec<Work>,
    /// What the snapshot records.
    pub(super) records: Vec<RecordedChange>,
    /// Directories to remove if they are empty afterwards.
    pub(super) remove_dirs: BTreeSet<Place>,
    /// Files that are managed from now on without being written, and what the plan saw there.
    pub(super) newly_managed: Vec<(Place, Entry)>,
}

/// Plans the manifests of all roots.
pub(super) fn plan_roots<F: Fs>(
    survey: &mut Survey<'_, F>,
    request: &Request,
    roots: &[Root],
    above: &[Option<usize>],
    snapshot_id: &str,
) -> Result<RootsPlan, TxnError> {
    let anchors = survey.anchors;
    let mut all = RootsPlan::default();
    for (index, (root, change)) in roots.iter().zip(&request.roots).enumerate() {
        let files: Vec<&Change> = request.changes.iter().filter(|file| file.root == index).collect();
        let made = directories_made(survey, root, &files)?;
        let plan = plan_manifest(root, change, made, &files, snapshot_id);
        for dir in &plan.remove_dirs {
            all.remove_dirs.insert(root_place(root, dir, &change.path)?);
        }
        if change.manifest == ManifestChange::Remove
            && let (Some(anchor), Some(old)) = (above[index], &root.old)
        {
            all.remove_dirs.extend(dirs_above(anchors, root, anchor, old.created.above));
        }
        if let Some(work) = manifest_work(survey, root, &change.target, &plan, &request.now.to_string())? {
            // A root can have two names; its manifest is one.
            match all.manifests.iter().find(|known| known.id == work.id) {
                Some(known) if known.new_entry() == work.new_entry() => {}
                Some(_) => return Err(TxnError::Twice { path: anchors.shown(&work.place) }),
                None => all.manifests.push(work),
            }
        }
        let (records, newly_managed) = records(index, root.history().as_ref(), plan.new.as_ref(), &files);
        for (path, entry) in newly_managed {
            all.newly_managed.push((root_place(root, &path, &change.path)?, entry));
        }
        all.records.extend(records.into_values());
    }
    Ok(all)
}

pub(super) fn snapshot_root((change, root): (&RootChange, &Root)) -> SnapshotRoot {
    SnapshotRoot {
        target: change.target.clone(),
        path: change.path.clone(),
        had_manifest: root.history().is_some(),
        has_manifest: match change.manifest {
            ManifestChange::Keep => root.history().is_some(),
            ManifestChange::Write(_) => true,
            ManifestChange::Remove => false,
        },
    }
}

pub(super) fn root_place(root: &Root, path: &RelPath, shown: &Path) -> Result<Place, TxnError> {
    root.at.place(path).map_err(|error| TxnError::bad_path(&shown.join(path.as_path()), &error))
}

pub(super) fn read_root<F: Fs>(
    fs: &F,
    at: RootAt,
    change: &RootChange,
    anchors: &Anchors<F>,
) -> Result<Root, TxnError> {
    let RootChange { target, path, .. } = change;
    let name = managed::file_name(target);
    RelPath::new(name.as_str()).map_err(|error| TxnError::bad_path(path, &error))?;
    let (None, Some(dir)) = (&at.missing, &anchors.dirs[at.anchor]) else {
        return Ok(Root { at, old: None, file: None, foreign: false, head: Head::default() });
    };
    let shown = path.join(&name);
    let stat = fs.stat(dir, &name).map_err(TxnError::at("look at", &shown))?;
    match stat.map(|stat| (stat.kind, stat)) {
        None => {
            let read = managed::read_in(fs, dir, path, target);
            let read = read.map_err(TxnError::at("read", &shown))?;
            Ok(Root { at, old: read.manifest, file: None, foreign: false, head: Head::default() })
        }
        Some((FileKind::File, stat)) => {
            // Hashed and parsed from the same bytes, so that both surely are about the same content.
            let bytes = read_all(fs, dir, &name).map_err(TxnError::at("read", &shown))?;
            let file = Some(Entry::found(Digest::of(&bytes), &stat));
            Ok(match managed::parse(&bytes, target, &shown) {
                Ok((old, warnings)) => {
                    let (old, foreign) = (Some(Arc::new(old)), !warnings.is_empty());
                    Root { at, old, file, foreign, head: Head::default() }
                }
                Err(_) => Root { at, old: None, file, foreign: true, head: Head::default() },
            })
        }
        Some((FileKind::Symlink, _)) => {
            let text = fs.read_link(dir, &name).map_err(TxnError::at("read", &shown))?;
            let file = Some(Entry::new(Digest::of(&text), EntryKind::Symlink));
            Ok(Root { at, old: None, file, foreign: true, head: Head::default() })
        }
        Some((FileKind::Directory, _)) => Err(TxnError::NotAFile { path: shown, found: "a directory" }),
        Some((FileKind::Special, _)) => {
            Err(TxnError::NotAFile { path: shown, found: "a device, socket or pipe" })
        }
    }
}

/// For roots that were made with their ancestors and are to vanish: an anchor above all of these.
pub(super) fn anchors_above<F: Fs>(
    fs: &F,
    request: &Request,
    roots: &[Root],
    anchors: &mut Anchors<F>,
) -> Result<Vec<Option<usize>>, TxnError> {
    let mut above = Vec::with_capacity(roots.len());
    for (root, change) in roots.iter().zip(&request.roots) {
        let levels = root.old.as_ref().map_or(0, |old| old.created.above) as usize;
        let wanted = change.manifest == ManifestChange::Remove && levels > 0 && root.at.missing.is_none();
        let path = wanted.then(|| anchors.paths[root.at.anchor].ancestors().nth(levels)).flatten();
        above.push(match path.map(Path::to_owned) {
            Some(path) => {
                let dir = fs.open_root(&path).map_err(TxnError::at("open", &path))?;
                Some(anchors.add(fs, path, dir)?)
            }
            None => None,
        });
    }
    Ok(above)
}

/// The root and as many of its ancestors as were made for it.
fn dirs_above<F: Fs>(anchors: &Anchors<F>, root: &Root, above: usize, levels: u32) -> Vec<Place> {
    let below = anchors.paths[root.at.anchor].strip_prefix(&anchors.paths[above]).ok();
    let Some(mut path) = below.and_then(|below| RelPath::from_path(below).ok()) else { return Vec::new() };
    let mut places = Vec::new();
    for _ in 0..levels {
        let parent = path.parent();
        places.push(Place { anchor: above, path });
        match parent {
            Some(parent) => path = parent,
            None => break,
        }
    }
    places
}

/// The directories that the new files of a root need and that are not there.
fn directories_made<F: Fs>(
    survey: &mut Survey<'_, F>,
    root: &Root,
    files: &[&Change],
) -> Result<CreatedDirs, TxnError> {
    let mut made = CreatedDirs::default();
    if let Some(missing) = &root.at.missing
        && let Presence::Missing { top, .. } = survey.presence(root.at.anchor, Some(missing.clone()))?
    {
        let levels = 1 + missing.components().count() - top.path.components().count();
        made.above = u32::try_from(levels).unwrap_or(u32::MAX);
    }
    for file in files.iter().filter(|file| file.after.is_some()) {
        for dir in file.path.parents() {
            if made.below.contains(&dir) {
                break;
            }
            let place = root_place(root, &dir, Path::new(""))?;
            if !survey.presence(place.anchor, Some(place.path))?.is_missing() {
                break;
            }
            made.below.insert(dir);
        }
    }
    Ok(made)
}

/// What becomes of a manifest.
struct ManifestPlan {
    /// The manifest afterwards; nothing when there is none.
    new: Option<Arc<TargetManifest>>,
    touched: bool,
    /// Directories that lose their last managed file.
    remove_dirs: Vec<RelPath>,
}

fn plan_manifest(
    root: &Root,
    change: &RootChange,
    made: CreatedDirs,
    changed: &[&Change],
    snapshot_id: &str,
) -> ManifestPlan {
    let mut files = match &change.manifest {
        ManifestChange::Keep => {
            return ManifestPlan { new: root.old.clone(), touched: false, remove_dirs: Vec::new() };
        }
        ManifestChange::Write(files) => files.clone(),
        ManifestChange::Remove => Vec::new(),
    };
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files.dedup_by(|a, b| a.path == b.path);
    let mut in_use = BTreeSet::new();
    for file in &files {
        // Those above one that is known are known, too.
        let _ = file.path.parents().find(|dir| !in_use.insert(dir.clone()));
    }
    let mut created = made;
    let mut leaving = BTreeSet::new();
    if let Some(old) = &root.old {
        created.above = created.above.max(old.created.above);
        created.below.extend(old.created.below.iter().cloned());
        if !old.knows_directories {
            // A manifest of 0.9.1 does not say what was made; what is empty afterwards surely was.
            for file in changed.iter().filter(|file| file.after.is_none()) {
                leaving.extend(file.path.parents());
            }
        }
    }
    leaving.extend(created.below.iter().cloned());
    leaving.retain(|dir| !in_use.contains(dir));
    created.below.retain(|dir| in_use.contains(dir));
    let remove_dirs = leaving.into_iter().collect();
    if change.manifest == ManifestChange::Remove {
        return ManifestPlan { new: None, touched: root.file.is_some(), remove_dirs };
    }
    let same = |old: &Arc<TargetManifest>| old.files == files && old.created == created && !root.foreign;
    let touched = root.file.is_none() || !root.old.as_ref().is_some_and(same);
    let new = TargetManifest {
        target: change.target.clone(),
        snapshot_id: Some(snapshot_id.to_owned()),
        files,
        created,
        knows_directories: true,
    };
    ManifestPlan { new: Some(Arc::new(new)), touched, remove_dirs }
}

fn manifest_work<F: Fs>(
    survey: &mut Survey<'_, F>,
    root: &Root,
    target: &str,
    plan: &ManifestPlan,
    now: &str,
) -> Result<Option<Work>, TxnError> {
    if !plan.touched {
        return Ok(None);
    }
    let place = root_place(root, &manifest_name(target)?, Path::new(""))?;
    let encoded = |manifest: &Arc<TargetManifest>| {
        let mut bytes = Vec::new();
        let encoded = managed::write(manifest, now, &mut bytes);
        encoded.map(|()| written(bytes)).map_err(|error| TxnError::Bug(format!("encode manifest: {error}")))
    };
    let after = plan.new.as_ref().map(encoded).transpose()?;
    let (id, before) = (survey.id(&place)?, root.file);
    Ok(Some(Work { place, id, before, after, keep: root.foreign, store: false, private: false }))
}

/// What the snapshot says about a root, by path; and which files become managed without being written.
fn records(
    root: usize,
    old: Option<&Arc<TargetManifest>>,
    new: Option<&Arc<TargetManifest>>,
    asked: &[&Change],
) -> (BTreeMap<RelPath, RecordedChange>, Vec<(RelPath, Entry)>) {
    let mut records = BTreeMap::new();
    let mut newly_managed = Vec::new();
    // A path that the request names twice counts once, as it did last.
    for file in asked {
        let (path, after) = (file.path.clone(), file.after.as_ref().map(|new| new.entry));
        let record =
            RecordedChange { root, path, before: file.before, after, was_managed: None, managed: false };
        records.insert(file.path.clone(), record);
    }
    for (was, is) in side_by_side(listed(old), listed(new)) {
        let Some(ManagedFile { path, .. }) = was.or(is) else { continue };
        let (was_managed, managed) = (was.map(WasManaged::from), is.is_some());
        if let Some(record) = records.get_mut(path) {
            (record.was_managed, record.managed) = (was_managed, managed);
        } else if was != is {
            // Untouched on disk: what the manifest says is there now is what is there, or it is gone.
            let there = is.map(ManagedFile::entry);
            let hash = was.map(|was| was.sha256);
            let entry = there.filter(|entry| hash != Some(entry.sha256));
            newly_managed.extend(entry.map(|entry| (path.clone(), entry)));
            let (before, after, path) = (there, there, path.clone());
            let record = RecordedChange { root, path: path.clone(), before, after, was_managed, managed };
            records.insert(path, record);
        }
    }
    (records, newly_managed)
}

fn listed(manifest: Option<&Arc<TargetManifest>>) -> &[ManagedFile] {
    manifest.map_or(&[], |manifest| &manifest.files)
}

/// Pairs the entries of two lists that are sorted by path.
fn side_by_side<'a>(
    old: &'a [ManagedFile],
    new: &'a [ManagedFile],
) -> impl Iterator<Item = (Option<&'a ManagedFile>, Option<&'a ManagedFile>)> {
    let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
    std::iter::from_fn(move || {
        let order = match (old.peek(), new.peek()) {
            (None, None) => return None,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(was), Some(is)) => was.path.cmp(&is.path),
        };
        let was = if order.is_le() { old.next() } else { None };
        let is = if order.is_ge() { new.next() } else { None };
        Some((was, is))
    })
}
