//! Everything that can be refused is refused here, before the first write.
//!
//! The outcome is the journal of the transaction and the list of what to stage; nothing is decided after it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::places::{Anchors, Dirs, RootAt, locate};
use super::{Content, FileChange, ManifestChange, NewFile, Request, SnapshotKind, TxnError};
use crate::blobs::Blobs;
use crate::entry::{Entry, EntryKind, Observed, observe};
use crate::fs::Fs;
use crate::hash::Digest;
use crate::journal::{Action, Journal, Place, STAGED_PREFIX, Step, TreeFile};
use crate::managed::{self, CreatedDirs, ManagedFile, TargetManifest};
use crate::path::{RelPath, RootDir};
use crate::snapshot::{self, Change, Header, Snapshot, SnapshotRoot, WasManaged};

/// A transaction that may begin.
#[derive(Debug)]
pub(super) struct Prepared<F: Fs> {
    pub(super) journal: Journal,
    pub(super) anchors: Anchors<F>,
    /// Files to stage.
    pub(super) items: Vec<Item>,
    /// Contents on disk that the store does not have yet.
    pub(super) keep: Vec<Keep>,
    /// Where the new pack is staged, if there is anything to store.
    pub(super) pack: Option<Place>,
    /// The file systems it touches.
    pub(super) volumes: Vec<Volume<F>>,
    pub(super) snapshot_id: String,
}

/// A file to stage.
#[derive(Debug)]
pub(super) struct Item {
    /// Where it is staged.
    pub(super) at: Place,
    /// Where it goes, for messages.
    pub(super) shown: PathBuf,
    pub(super) entry: Entry,
    pub(super) size: u64,
    pub(super) content: Content,
    /// Whether its content belongs into the store.
    pub(super) store: bool,
    pub(super) private: bool,
}

/// A file whose content goes into the store before it is replaced.
#[derive(Debug)]
pub(super) struct Keep {
    pub(super) at: Place,
    pub(super) entry: Entry,
}

/// A file system and how much goes onto it.
#[derive(Debug)]
pub(super) struct Volume<F: Fs> {
    device: u64,
    pub(super) dir: F::Dir,
    shown: PathBuf,
    pub(super) needed: u64,
    block: u64,
}

impl<F: Fs> Volume<F> {
    pub(super) fn shown(&self) -> &Path {
        &self.shown
    }
}

/// The parts of a home a transaction needs.
pub(super) struct Store<'a, F: Fs> {
    pub(super) fs: &'a F,
    /// The state directory.
    pub(super) base: F::Dir,
    pub(super) base_path: PathBuf,
    pub(super) blobs: &'a Blobs<F>,
    /// Newer than every snapshot there is.
    pub(super) next_id: String,
    pub(super) command: String,
}

/// A place with what was and what shall be there.
struct Work {
    place: Place,
    shown: PathBuf,
    before: Option<Entry>,
    after: Option<NewFile>,
    store: bool,
    private: bool,
}

/// A root with what was read of its manifest.
struct Root {
    at: RootAt,
    old: Option<TargetManifest>,
    /// The manifest file as it is.
    file: Option<Entry>,
    /// Whether that file could not be understood, so is not surely ours.
    foreign: bool,
}

/// Whether a directory is there, or which of its ancestors is the topmost missing one.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Presence {
    Present,
    Missing { top: Place },
}

/// Checks a request and plans it; nothing when it would change nothing.
pub(super) fn prepare<F: Fs>(
    store: &Store<'_, F>,
    request: &Request,
) -> Result<Option<Prepared<F>>, TxnError> {
    let mut anchors = Anchors::new();
    let state_anchor = anchors.add(store.base_path.clone(), store.base.clone());
    let mut roots = Vec::with_capacity(request.roots.len());
    for root in &request.roots {
        let at = locate(store.fs, &root.path, &mut anchors)?;
        roots.push(read_root(store.fs, at, &root.path, &root.target, &anchors)?);
    }
    let above = anchors_above(store.fs, request, &roots, &mut anchors)?;

    let mut survey = Survey::new(store.fs, &anchors);
    let mut works = works_of_changes(request, &roots, &anchors)?;
    check(&mut survey, &works)?;

    let mut manifests = Vec::new();
    let mut changes = Vec::new();
    let mut remove_dirs = BTreeSet::new();
    let mut newly_managed = Vec::new();
    for (index, (root, change)) in roots.iter().zip(&request.roots).enumerate() {
        let files: Vec<&FileChange> = request.changes.iter().filter(|file| file.root == index).collect();
        let made = directories_made(&mut survey, root, &files)?;
        let plan = plan_manifest(root, &change.target, &change.manifest, made, &files, &store.next_id);
        for dir in &plan.remove_dirs {
            remove_dirs.insert(root_place(root, dir, &change.path)?);
        }
        if change.manifest == ManifestChange::Remove
            && let (Some(anchor), Some(old)) = (above[index], &root.old)
        {
            remove_dirs.extend(dirs_above(&anchors, root, anchor, old.created.above));
        }
        if let Some(work) = manifest_work(root, &change.target, &plan, &request.now.to_string(), &anchors)? {
            // A root can have two names; its manifest is one.
            let entry = |work: &Work| work.after.as_ref().map(|new| new.entry);
            match manifests.iter().find(|known: &&Work| known.shown == work.shown) {
                Some(known) if entry(known) == entry(&work) => {}
                Some(_) => return Err(TxnError::Twice { path: work.shown }),
                None => manifests.push(work),
            }
        }
        let (mut recorded, newly) = record(index, root, &plan, &files);
        if request.kind != SnapshotKind::Rollback {
            check_released(&mut survey, root, &recorded, &change.path)?;
        }
        changes.append(&mut recorded);
        for path in newly {
            newly_managed.push(root_place(root, &path, &change.path)?);
        }
    }
    works.retain(|work| work.before != work.after.as_ref().map(|new| new.entry));
    if works.is_empty() && manifests.is_empty() {
        return Ok(None);
    }
    check_parents(&mut survey, &manifests)?;

    let snapshot = Snapshot {
        header: Header {
            crewkit_snapshot: Header::FORMAT,
            id: store.next_id.clone(),
            kind: request.kind,
            created_at: request.now.to_string(),
            targets: request.targets.clone(),
            project: request.project.clone(),
            lockfile_sha256: request.lockfile_sha256,
            plan_hash: request.plan_hash.clone(),
            rolled_back_to: request.rolled_back_to.clone(),
            roots: request.roots.iter().zip(&roots).map(snapshot_root).collect(),
            counts: snapshot::count(&changes),
        },
        changes,
    };
    let mut keep = contents_to_keep(store, &mut survey, &works, &manifests, &newly_managed)?;
    keep.retain(|kept| !store.blobs.contains(&kept.entry.sha256));

    let mut builder = Builder {
        id: store.next_id.clone(),
        blobs: store.blobs,
        steps: Vec::new(),
        items: Vec::new(),
        stored: HashSet::new(),
        needed: HashMap::new(),
    };
    let wants_pack =
        !keep.is_empty() || works.iter().any(|work| work.store && builder.is_new(work.after.as_ref()));
    let state = |path: String| -> Result<Place, TxnError> {
        let path = RelPath::new(path).map_err(|error| TxnError::bad_path(&store.base_path, &error))?;
        Ok(Place { anchor: state_anchor, path })
    };
    let pack = wants_pack.then(|| state(format!("packs/{}.pack", store.next_id))).transpose()?;
    if let Some(place) = &pack {
        builder.steps.push(Step {
            staged: Journal::staged_name(&store.next_id, 0),
            place: place.clone(),
            action: Action::Create { new: None },
        });
    }
    builder.trees(&mut survey, &works, &manifests)?;
    builder.files(&mut survey, works.iter().filter(|work| work.after.is_some()))?;
    builder.files(&mut survey, works.iter().filter(|work| work.after.is_none()))?;
    builder.files(&mut survey, manifests.iter())?;
    let bytes: Arc<[u8]> =
        snapshot.encode().map_err(|error| TxnError::Bug(format!("encode snapshot: {error}")))?.into();
    let entry = Entry { sha256: Digest::of(&bytes), kind: EntryKind::Plain };
    let place = state(format!("snapshots/{}{}", store.next_id, snapshot::ENDING))?;
    let snapshot_work = Work {
        shown: anchors.shown(&place),
        place,
        before: None,
        after: Some(NewFile { entry, size: bytes.len() as u64, content: Content::Bytes(bytes) }),
        store: false,
        private: true,
    };
    builder.files(&mut survey, std::iter::once(&snapshot_work))?;

    let mut remove_dirs: Vec<Place> = remove_dirs.into_iter().collect();
    remove_dirs.sort_by_key(|place| std::cmp::Reverse(anchors.shown(place).components().count()));
    let stored_bytes = builder.stored_bytes(&mut survey, &keep)?;
    let (volumes, needed) = (survey.volumes, builder.needed);
    let journal = Journal {
        id: store.next_id.clone(),
        command: store.command.clone(),
        started_at: request.now.to_string(),
        anchors: anchors.paths.clone(),
        steps: builder.steps,
        remove_dirs,
    };
    let items = builder.items;
    let volumes = room(store.fs, volumes, &needed, stored_bytes, &store.base)?;
    let pack = pack.map(|place| sibling(&place, &Journal::staged_name(&store.next_id, 0))).transpose()?;
    Ok(Some(Prepared { journal, anchors, items, keep, pack, volumes, snapshot_id: store.next_id.clone() }))
}

fn snapshot_root((change, root): (&super::RootChange, &Root)) -> SnapshotRoot {
    SnapshotRoot {
        target: change.target.clone(),
        path: change.path.clone(),
        had_manifest: root.old.is_some(),
        has_manifest: match change.manifest {
            ManifestChange::Keep => root.old.is_some(),
            ManifestChange::Write(_) => true,
            ManifestChange::Remove => false,
        },
    }
}

fn root_place(root: &Root, path: &RelPath, shown: &Path) -> Result<Place, TxnError> {
    root.at.place(path).map_err(|error| TxnError::bad_path(&shown.join(path.as_path()), &error))
}

fn read_root<F: Fs>(
    fs: &F,
    at: RootAt,
    path: &Path,
    target: &str,
    anchors: &Anchors<F>,
) -> Result<Root, TxnError> {
    let name = managed::file_name(target);
    RelPath::new(name.as_str()).map_err(|error| TxnError::bad_path(path, &error))?;
    let (None, Some(dir)) = (&at.missing, &anchors.dirs[at.anchor]) else {
        return Ok(Root { at, old: None, file: None, foreign: false });
    };
    let shown = path.join(&name);
    let file = match observe(fs, dir, &name).map_err(TxnError::at("read", &shown))? {
        Observed::Absent => None,
        Observed::Entry(entry) => Some(entry),
        Observed::Directory => return Err(TxnError::NotAFile { path: shown, found: "a directory" }),
        Observed::Special => {
            return Err(TxnError::NotAFile { path: shown, found: "a device, socket or pipe" });
        }
    };
    let root = RootDir::open(fs, &anchors.paths[at.anchor]).map_err(TxnError::at("open", path))?;
    let read = managed::read(fs, root.as_ref(), target).map_err(TxnError::at("read", &shown))?;
    let foreign = file.is_some() && (read.manifest.is_none() || !read.warnings.is_empty());
    Ok(Root { at, old: read.manifest, file, foreign })
}

/// For roots that were made with their ancestors and are to vanish: an anchor above all of these.
fn anchors_above<F: Fs>(
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
                Some(anchors.add(path, dir))
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

fn works_of_changes<F: Fs>(
    request: &Request,
    roots: &[Root],
    anchors: &Anchors<F>,
) -> Result<Vec<Work>, TxnError> {
    let mut works: Vec<Work> = Vec::with_capacity(request.changes.len());
    let mut seen: HashMap<PathBuf, usize> = HashMap::with_capacity(request.changes.len());
    for change in &request.changes {
        let root =
            roots.get(change.root).ok_or_else(|| TxnError::Bug("a change without a root".to_owned()))?;
        let root_path = &request.roots[change.root].path;
        let place = root_place(root, &change.path, root_path)?;
        let shown = anchors.shown(&place);
        let is_reserved = |name: &str| name.starts_with(STAGED_PREFIX) || managed::is_manifest_name(name);
        if let Some(name) = change.path.components().find(|name| is_reserved(name)) {
            let reason = format!("the name `{name}` is reserved");
            return Err(TxnError::BadPath { path: shown, reason });
        }
        if let Some(&first) = seen.get(&shown) {
            let first = &works[first];
            let after = |new: &Option<NewFile>| new.as_ref().map(|new| new.entry);
            if first.before == change.before && after(&first.after) == after(&change.after) {
                continue;
            }
            return Err(TxnError::Twice { path: shown });
        }
        seen.insert(shown.clone(), works.len());
        let (before, after) = (change.before, change.after.clone());
        works.push(Work { place, shown, before, after, store: true, private: false });
    }
    works.sort_by(|a, b| a.place.cmp(&b.place));
    Ok(works)
}

/// Looks at directories once, and notes which file systems are involved.
struct Survey<'a, F: Fs> {
    fs: &'a F,
    anchors: &'a Anchors<F>,
    dirs: Dirs<'a, F>,
    known: HashMap<(usize, Option<RelPath>), Presence>,
    volumes: Vec<Volume<F>>,
}

impl<'a, F: Fs> Survey<'a, F> {
    fn new(fs: &'a F, anchors: &'a Anchors<F>) -> Self {
        Self { fs, anchors, dirs: Dirs::new(fs, anchors), known: HashMap::new(), volumes: Vec::new() }
    }

    /// Whether the directory `path` below `anchor` is there.
    fn presence(&mut self, anchor: usize, path: Option<RelPath>) -> Result<Presence, TxnError> {
        let key = (anchor, path);
        if let Some(known) = self.known.get(&key) {
            return Ok(known.clone());
        }
        let presence = match &key.1 {
            None => self.look(anchor, None)?,
            Some(path) => match self.presence(anchor, path.parent())? {
                Presence::Present => self.look(anchor, Some(path))?,
                missing @ Presence::Missing { .. } => missing,
            },
        };
        self.known.insert(key, presence.clone());
        Ok(presence)
    }

    fn look(&mut self, anchor: usize, path: Option<&RelPath>) -> Result<Presence, TxnError> {
        let shown = match path {
            Some(path) => self.anchors.paths[anchor].join(path.as_path()),
            None => self.anchors.paths[anchor].clone(),
        };
        let dir = match self.dirs.dir(anchor, path.cloned()) {
            Ok(dir) => dir,
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                let root = self.anchors.paths[anchor].clone();
                return Err(TxnError::Blocked { path: shown, root });
            }
            Err(error) => match (error.kind(), path) {
                (io::ErrorKind::NotFound, Some(path)) => {
                    return Ok(Presence::Missing { top: Place { anchor, path: path.clone() } });
                }
                _ => return Err(TxnError::io("open", shown, error)),
            },
        };
        self.note_volume(&dir, shown)?;
        Ok(Presence::Present)
    }

    fn note_volume(&mut self, dir: &F::Dir, shown: PathBuf) -> Result<(), TxnError> {
        let device = self.fs.device(dir).map_err(TxnError::at("look at", &shown))?;
        if !self.volumes.iter().any(|volume| volume.device == device) {
            self.volumes.push(Volume { device, dir: dir.clone(), shown, needed: 0, block: 1 });
        }
        Ok(())
    }

    /// The file system that what is staged for `place` goes onto.
    fn device_for(&mut self, place: &Place) -> Result<u64, TxnError> {
        let parent = match self.presence(place.anchor, place.path.parent())? {
            Presence::Present => place.path.parent(),
            Presence::Missing { top } => top.path.parent(),
        };
        let shown = self.anchors.shown(place);
        let dir = self.dirs.dir(place.anchor, parent).map_err(TxnError::at("open", &shown))?;
        self.fs.device(&dir).map_err(TxnError::at("look at", &shown))
    }

    /// What is at a place.
    fn observe(&mut self, place: &Place, shown: &Path) -> Result<Observed, TxnError> {
        match self.presence(place.anchor, place.path.parent())? {
            Presence::Missing { .. } => Ok(Observed::Absent),
            Presence::Present => {
                let dir = self.dirs.parent(place).map_err(TxnError::at("open", shown))?;
                observe(self.fs, &dir, place.path.name()).map_err(TxnError::at("read", shown))
            }
        }
    }
}

/// Every place still holds what the plan saw.
fn check<F: Fs>(survey: &mut Survey<'_, F>, works: &[Work]) -> Result<(), TxnError> {
    for work in works {
        let path = || work.shown.clone();
        match (survey.observe(&work.place, &work.shown)?, work.before) {
            (Observed::Absent, None) => {}
            (Observed::Entry(found), Some(expected)) if found == expected => {}
            (Observed::Directory, _) => {
                return Err(TxnError::NotAFile { path: path(), found: "a directory" });
            }
            (Observed::Special, _) => {
                return Err(TxnError::NotAFile { path: path(), found: "a device, socket or pipe" });
            }
            (Observed::Absent, Some(_)) => {
                return Err(TxnError::Changed { path: path(), found: "it is gone" });
            }
            (Observed::Entry(_), None) => {
                return Err(TxnError::Changed { path: path(), found: "something is there now" });
            }
            (Observed::Entry(_), Some(_)) => {
                return Err(TxnError::Changed { path: path(), found: "it has other content" });
            }
        }
    }
    Ok(())
}

/// The directories of manifests may be looked at for the first time here.
fn check_parents<F: Fs>(survey: &mut Survey<'_, F>, works: &[Work]) -> Result<(), TxnError> {
    for work in works {
        survey.presence(work.place.anchor, work.place.path.parent())?;
    }
    Ok(())
}

/// The directories that the new files of a root need and that are not there.
fn directories_made<F: Fs>(
    survey: &mut Survey<'_, F>,
    root: &Root,
    files: &[&FileChange],
) -> Result<CreatedDirs, TxnError> {
    let mut made = CreatedDirs::default();
    if let Some(missing) = &root.at.missing
        && let Presence::Missing { top } = survey.presence(root.at.anchor, Some(missing.clone()))?
    {
        let levels = 1 + missing.components().count() - top.path.components().count();
        made.above = u32::try_from(levels).unwrap_or(u32::MAX);
    }
    for file in files.iter().filter(|file| file.after.is_some()) {
        let mut parent = file.path.parent();
        while let Some(dir) = parent {
            if made.below.contains(&dir) {
                break;
            }
            let place = root_place(root, &dir, Path::new(""))?;
            if survey.presence(place.anchor, Some(place.path))? == Presence::Present {
                break;
            }
            parent = dir.parent();
            made.below.insert(dir);
        }
    }
    Ok(made)
}

/// What becomes of a manifest.
struct ManifestPlan {
    /// The manifest afterwards; nothing when there is none.
    new: Option<TargetManifest>,
    touched: bool,
    /// Directories that lose their last managed file.
    remove_dirs: Vec<RelPath>,
}

fn plan_manifest(
    root: &Root,
    target: &str,
    change: &ManifestChange,
    made: CreatedDirs,
    changed: &[&FileChange],
    snapshot_id: &str,
) -> ManifestPlan {
    let mut files = match change {
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
        let mut parent = file.path.parent();
        while let Some(dir) = parent {
            parent = dir.parent();
            if !in_use.insert(dir) {
                break;
            }
        }
    }
    let mut created = made;
    let mut leaving = BTreeSet::new();
    if let Some(old) = &root.old {
        created.above = created.above.max(old.created.above);
        created.below.extend(old.created.below.iter().cloned());
        if !old.knows_directories {
            // A manifest of 0.9.1 does not say what was made; what is empty afterwards surely was.
            for file in changed.iter().filter(|file| file.after.is_none()) {
                let mut parent = file.path.parent();
                while let Some(dir) = parent {
                    parent = dir.parent();
                    leaving.insert(dir);
                }
            }
        }
    }
    leaving.extend(created.below.iter().cloned());
    leaving.retain(|dir| !in_use.contains(dir));
    created.below.retain(|dir| in_use.contains(dir));
    let remove_dirs = leaving.into_iter().collect();
    if *change == ManifestChange::Remove {
        return ManifestPlan { new: None, touched: root.file.is_some(), remove_dirs };
    }
    let same = |old: &TargetManifest| old.files == files && old.created == created && !root.foreign;
    let touched = root.file.is_none() || !root.old.as_ref().is_some_and(same);
    let new = TargetManifest {
        target: target.to_owned(),
        snapshot_id: Some(snapshot_id.to_owned()),
        files,
        created,
        knows_directories: true,
    };
    ManifestPlan { new: Some(new), touched, remove_dirs }
}

fn manifest_work<F: Fs>(
    root: &Root,
    target: &str,
    plan: &ManifestPlan,
    now: &str,
    anchors: &Anchors<F>,
) -> Result<Option<Work>, TxnError> {
    if !plan.touched {
        return Ok(None);
    }
    let name = RelPath::new(managed::file_name(target))
        .map_err(|error| TxnError::bad_path(Path::new(target), &error))?;
    let place = root_place(root, &name, Path::new(""))?;
    let after = plan.new.as_ref().map(|manifest| {
        let bytes: Arc<[u8]> = managed::render(manifest, now).into();
        let entry = Entry { sha256: Digest::of(&bytes), kind: EntryKind::Plain };
        NewFile { entry, size: bytes.len() as u64, content: Content::Bytes(bytes) }
    });
    let shown = anchors.shown(&place);
    Ok(Some(Work { place, shown, before: root.file, after, store: false, private: false }))
}

/// What the snapshot says about a root, and which files became managed without being written.
fn record(
    index: usize,
    root: &Root,
    plan: &ManifestPlan,
    files: &[&FileChange],
) -> (Vec<Change>, Vec<RelPath>) {
    let by_path = |list: &[ManagedFile]| -> BTreeMap<RelPath, WasManaged> {
        list.iter().map(|file| (file.path.clone(), WasManaged::from(file))).collect()
    };
    let old = root.old.as_ref().map(|old| by_path(&old.files)).unwrap_or_default();
    let new = plan.new.as_ref().map(|new| by_path(&new.files)).unwrap_or_default();
    let mut changes = BTreeMap::new();
    let mut newly = Vec::new();
    for file in files {
        changes.insert(
            file.path.clone(),
            Change {
                root: index,
                path: file.path.clone(),
                before: file.before,
                after: file.after.as_ref().map(|new| new.entry),
                was_managed: old.get(&file.path).cloned(),
                managed: new.contains_key(&file.path),
            },
        );
    }
    for path in old.keys().chain(new.keys()) {
        let (was, is) = (old.get(path), new.get(path));
        if was == is || changes.contains_key(path) {
            continue;
        }
        let entry = |managed: &WasManaged| managed.at(path.clone()).entry();
        // Untouched on disk: what the manifest says is there now is what is there, or it is gone.
        let there = is.map(entry);
        if was.map(|was| was.sha256) != is.map(|is| is.sha256) && is.is_some() {
            newly.push(path.clone());
        }
        changes.insert(
            path.clone(),
            Change {
                root: index,
                path: path.clone(),
                before: there,
                after: there,
                was_managed: was.cloned(),
                managed: is.is_some(),
            },
        );
    }
    (changes.into_values().collect(), newly)
}

/// A file that leaves the manifest is deleted or already gone. One that is still there was unknown to the plan,
/// which then is older than the manifest.
fn check_released<F: Fs>(
    survey: &mut Survey<'_, F>,
    root: &Root,
    changes: &[Change],
    shown: &Path,
) -> Result<(), TxnError> {
    for change in changes.iter().filter(|change| change.op() == snapshot::Op::Manage && !change.managed) {
        let place = root_place(root, &change.path, shown)?;
        let shown = shown.join(change.path.as_path());
        if survey.observe(&place, &shown)? != Observed::Absent {
            return Err(TxnError::Changed {
                path: shown,
                found: "it is managed, which the plan did not know",
            });
        }
    }
    Ok(())
}

/// What is on disk, not in the store, and could be wanted again.
fn contents_to_keep<F: Fs>(
    store: &Store<'_, F>,
    survey: &mut Survey<'_, F>,
    works: &[Work],
    manifests: &[Work],
    newly_managed: &[Place],
) -> Result<Vec<Keep>, TxnError> {
    let mut keep = Vec::new();
    let mut seen = HashSet::new();
    for work in works.iter().chain(manifests) {
        let Some(entry) = work.before else { continue };
        // A manifest of ours can be written again from the snapshots.
        if !work.store && !is_foreign(survey, work)? {
            continue;
        }
        if !store.blobs.contains(&entry.sha256) && seen.insert(entry.sha256) {
            keep.push(Keep { at: work.place.clone(), entry });
        }
    }
    for place in newly_managed {
        let shown = survey.anchors.shown(place);
        if let Observed::Entry(entry) = survey.observe(place, &shown)?
            && !store.blobs.contains(&entry.sha256)
            && seen.insert(entry.sha256)
        {
            keep.push(Keep { at: place.clone(), entry });
        }
    }
    Ok(keep)
}

/// Whether a manifest that is about to be replaced is not one.
fn is_foreign<F: Fs>(survey: &mut Survey<'_, F>, manifest: &Work) -> Result<bool, TxnError> {
    if manifest.before.is_some_and(|entry| entry.kind == EntryKind::Symlink) {
        return Ok(true);
    }
    let dir = survey.dirs.parent(&manifest.place).map_err(TxnError::at("open", &manifest.shown))?;
    let name = manifest.place.path.name();
    let bytes =
        crate::entry::read_all(survey.fs, &dir, name).map_err(TxnError::at("read", &manifest.shown))?;
    let target = name.strip_prefix(".agentpack.manifest.").and_then(|rest| rest.strip_suffix(".json"));
    Ok(managed::parse(&bytes, target.unwrap_or_default(), &manifest.shown)
        .map_or(true, |(_, warnings)| !warnings.is_empty()))
}

/// Collects steps and what to stage for them.
struct Builder<'a, F: Fs> {
    id: String,
    blobs: &'a Blobs<F>,
    steps: Vec<Step>,
    items: Vec<Item>,
    /// Contents that go into the new pack.
    stored: HashSet<Digest>,
    /// By file system: the sizes of what goes onto it.
    needed: HashMap<u64, Vec<u64>>,
}

impl<F: Fs> Builder<'_, F> {
    fn is_new(&self, new: Option<&NewFile>) -> bool {
        new.is_some_and(|new| {
            !self.blobs.contains(&new.entry.sha256) && !self.stored.contains(&new.entry.sha256)
        })
    }

    fn next_staged(&self) -> String {
        Journal::staged_name(&self.id, self.steps.len())
    }

    fn item(&mut self, at: Place, work: &Work, device: u64) {
        let Some(new) = &work.after else { return };
        let store = work.store && self.is_new(Some(new));
        if store {
            self.stored.insert(new.entry.sha256);
        }
        self.needed.entry(device).or_default().push(new.size);
        self.items.push(Item {
            at,
            shown: work.shown.clone(),
            entry: new.entry,
            size: new.size,
            content: new.content.clone(),
            store,
            private: work.private,
        });
    }

    /// Directories that do not exist yet are built aside and appear whole.
    fn trees(
        &mut self,
        survey: &mut Survey<'_, F>,
        works: &[Work],
        manifests: &[Work],
    ) -> Result<(), TxnError> {
        let mut trees: BTreeMap<PathBuf, (Place, Vec<&Work>)> = BTreeMap::new();
        for work in works.iter().chain(manifests).filter(|work| work.after.is_some()) {
            let presence = survey.presence(work.place.anchor, work.place.path.parent())?;
            if let Presence::Missing { top } = presence {
                let shown = survey.anchors.shown(&top);
                trees.entry(shown).or_insert_with(|| (top, Vec::new())).1.push(work);
            }
        }
        for (shown, (place, works)) in trees {
            let device = survey.device_for(&place)?;
            let staged = self.next_staged();
            let staged_at = sibling(&place, &staged)?;
            let mut dirs = BTreeSet::new();
            let mut files = Vec::with_capacity(works.len());
            for work in works {
                let below = work.shown.strip_prefix(&shown).ok();
                let path = below.and_then(|below| RelPath::from_path(below).ok());
                let path = path.ok_or_else(|| TxnError::Bug("a file outside its tree".to_owned()))?;
                let mut parent = path.parent();
                while let Some(dir) = parent {
                    parent = dir.parent();
                    if !dirs.insert(dir) {
                        break;
                    }
                }
                let at = staged_at.path.join(&path);
                let at = at.map_err(|error| TxnError::bad_path(&work.shown, &error))?;
                self.item(Place { anchor: place.anchor, path: at }, work, device);
                files.push(TreeFile { path, new: work.after.as_ref().map(|new| new.entry) });
            }
            self.needed.entry(device).or_default().extend(std::iter::repeat_n(1, dirs.len() + 1));
            let action = Action::Tree { dirs: dirs.into_iter().collect(), files };
            self.steps.push(Step { place, staged, action });
        }
        Ok(())
    }

    /// Files that go into directories that exist.
    fn files<'w>(
        &mut self,
        survey: &mut Survey<'_, F>,
        works: impl Iterator<Item = &'w Work>,
    ) -> Result<(), TxnError> {
        for work in works {
            if survey.presence(work.place.anchor, work.place.path.parent())? != Presence::Present {
                continue;
            }
            let action = match (work.before, work.after.as_ref().map(|new| new.entry)) {
                (None, Some(new)) => Action::Create { new: Some(new) },
                (Some(old), Some(new)) => Action::Update { old, new },
                (Some(old), None) => Action::Delete { old },
                (None, None) => continue,
            };
            let staged = self.next_staged();
            let device = survey.device_for(&work.place)?;
            self.item(sibling(&work.place, &staged)?, work, device);
            self.steps.push(Step { place: work.place.clone(), staged, action });
        }
        Ok(())
    }

    /// The size of the new pack.
    fn stored_bytes(&self, survey: &mut Survey<'_, F>, keep: &[Keep]) -> Result<u64, TxnError> {
        let sizes: HashMap<Digest, u64> =
            self.items.iter().filter(|item| item.store).map(|item| (item.entry.sha256, item.size)).collect();
        let mut total = sizes.values().sum::<u64>();
        for kept in keep {
            let shown = survey.anchors.shown(&kept.at);
            let dir = survey.dirs.parent(&kept.at).map_err(TxnError::at("open", &shown))?;
            let stat = survey.fs.stat(&dir, kept.at.path.name()).map_err(TxnError::at("look at", &shown))?;
            total += stat.map_or(0, |stat| stat.size);
        }
        Ok(total + 64 * (sizes.len() + keep.len()) as u64)
    }
}

/// The place of another name in the same directory.
pub(super) fn sibling(place: &Place, name: &str) -> Result<Place, TxnError> {
    let path = match place.path.parent() {
        Some(parent) => RelPath::new(format!("{parent}/{name}")),
        None => RelPath::new(name),
    };
    let path = path.map_err(|error| TxnError::bad_path(place.path.as_path(), &error))?;
    Ok(Place { anchor: place.anchor, path })
}

/// Every file system takes writes and has room for what goes onto it.
fn room<F: Fs>(
    fs: &F,
    mut volumes: Vec<Volume<F>>,
    needed: &HashMap<u64, Vec<u64>>,
    stored: u64,
    base: &F::Dir,
) -> Result<Vec<Volume<F>>, TxnError> {
    let state = fs.device(base).map_err(TxnError::at("look at", Path::new("the state directory")))?;
    for volume in &mut volumes {
        let space = fs.space(&volume.dir).map_err(TxnError::at("ask for the room on", &volume.shown))?;
        volume.block = space.block;
        let whole_blocks = |size: &u64| size.div_ceil(volume.block).saturating_mul(volume.block);
        let sizes = needed.get(&volume.device).map(Vec::as_slice).unwrap_or_default();
        volume.needed = sizes.iter().map(whole_blocks).fold(0, u64::saturating_add);
        if volume.device == state {
            volume.needed = volume.needed.saturating_add(whole_blocks(&stored));
        }
        if space.read_only {
            return Err(TxnError::ReadOnly { path: volume.shown.clone(), needed: volume.needed });
        }
        if volume.needed > space.available {
            return Err(TxnError::NoSpace {
                path: volume.shown.clone(),
                needed: volume.needed,
                available: Some(space.available),
            });
        }
    }
    Ok(volumes)
}
