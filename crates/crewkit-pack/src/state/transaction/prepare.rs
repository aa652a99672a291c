//! Everything that can be refused is refused here, before the first write.
//!
//! The outcome is the journal of the transaction and the list of what to stage; nothing is decided after it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::PathBuf;

use super::roots::{Root, anchors_above, manifest_name, plan_roots, read_root, root_place, snapshot_root};
use super::survey::{Presence, Survey, Volume, check, room};
use super::{Content, NewFile, Request, TxnError};
use crate::fs::entry::{Entry, EntryKind};
use crate::fs::hash::Digest;
use crate::fs::path::RelPath;
use crate::fs::place::{Anchors, Place, PlaceId};
use crate::fs::{DirId, Fs, Mode};
use crate::state::blobs::Blobs;
use crate::state::heads;
use crate::state::journal::{Action, Journal, STAGED_PREFIX, Step, TreeFile};
use crate::state::managed;
use crate::state::snapshot::{self, Header, RecordedChange, Snapshot};

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
    /// Where it goes.
    pub(super) place: Place,
    pub(super) new: NewFile,
    /// Whether its content belongs into the store.
    pub(super) store: bool,
    pub(super) mode: Mode,
}

/// A content that follows from a request.
pub(super) fn written(bytes: Vec<u8>) -> NewFile {
    let entry = Entry::new(Digest::of(&bytes), EntryKind::Plain);
    NewFile { entry, size: bytes.len() as u64, content: Content::Bytes(bytes.into()) }
}

/// A file whose content goes into the store before it is replaced.
#[derive(Debug)]
pub(super) struct Keep {
    pub(super) at: Place,
    pub(super) entry: Entry,
}

/// The parts of a home a transaction needs.
pub(super) struct Store<'a, F: Fs> {
    pub(super) fs: &'a F,
    /// What all roots must lie below.
    pub(super) boundary: Option<PathBuf>,
    pub(super) heads: &'a F::Dir,
    /// The state directory.
    pub(super) base: F::Dir,
    pub(super) base_path: PathBuf,
    pub(super) blobs: &'a Blobs<F>,
    /// Newer than every snapshot there is.
    pub(super) next_id: String,
    pub(super) command: String,
}

/// A place with what was and what shall be there.
pub(super) struct Work {
    pub(super) place: Place,
    pub(super) id: PlaceId,
    pub(super) before: Option<Entry>,
    pub(super) after: Option<NewFile>,
    /// Whether what was there belongs into the store.
    pub(super) keep: bool,
    /// Whether what shall be there belongs into the store.
    pub(super) store: bool,
    pub(super) private: bool,
}

impl Work {
    /// What shall be there, by its hash and kind.
    pub(super) fn new_entry(&self) -> Option<Entry> {
        self.after.as_ref().map(|new| new.entry)
    }
}

/// Checks a request and plans it; nothing when it would change nothing.
pub(super) fn prepare<F: Fs>(
    store: &Store<'_, F>,
    request: &Request,
) -> Result<Option<Prepared<F>>, TxnError> {
    let mut anchors = Anchors::new();
    let state = anchors.add(store.fs, store.base_path.clone(), store.base.clone())?;
    let mut roots = Vec::with_capacity(request.roots.len());
    for root in &request.roots {
        let at = anchors.locate(store.fs, &root.path, store.boundary.as_deref())?;
        let mut read = read_root(store.fs, at, root, &anchors)?;
        if read.old != root.seen {
            let path = root.path.join(managed::file_name(&root.target));
            return Err(TxnError::Changed { path, found: "it is not the manifest the plan was made from" });
        }
        read.head =
            heads::read(store.fs, store.heads, &root.target, &root.path, read.file.zip(read.old.as_ref()))
                .map_err(TxnError::at("read the head of", &root.path))?;
        roots.push(read);
    }
    let above = anchors_above(store.fs, request, &roots, &mut anchors)?;

    let mut survey = Survey::new(store.fs, &anchors);
    let mut works = works_of_changes(&mut survey, request, &roots)?;
    check(&mut survey, &works)?;
    let mut plan = plan_roots(&mut survey, request, &roots, &above, &store.next_id)?;
    works.retain(|work| work.before != work.new_entry());
    if works.is_empty() && plan.manifests.is_empty() {
        return Ok(None);
    }

    plan.manifests.append(&mut head_works(store, &mut survey, request, &roots, &plan.manifests, state)?);
    let keep = contents_to_keep(store, &mut survey, &works, &plan.manifests, &plan.newly_managed)?;
    let snapshot = snapshot_work(store, &mut survey, request, &roots, plan.records, state)?;
    let mut builder = Builder::new(store, works.len() + plan.manifests.len() + 1);
    let new_contents = works.iter().any(|work| builder.is_new(work));
    let pack = if keep.is_empty() && !new_contents { None } else { Some(builder.pack(store, state)?) };
    builder.trees(&mut survey, &works, &plan.manifests)?;
    builder.files(&mut survey, works.iter().filter(|work| work.after.is_some()))?;
    builder.files(&mut survey, works.iter().filter(|work| work.after.is_none()))?;
    builder.files(&mut survey, plan.manifests.iter())?;
    builder.files(&mut survey, std::iter::once(&snapshot))?;
    drop(works);

    let mut remove_dirs: Vec<Place> = plan.remove_dirs.into_iter().collect();
    remove_dirs.sort_by_key(|place| std::cmp::Reverse(anchors.shown(place).components().count()));
    let stored_bytes = builder.stored_bytes(&mut survey, &keep)?;
    let volumes = room(store.fs, survey.volumes, &builder.needed, stored_bytes, &store.base)?;
    let journal = Journal {
        id: store.next_id.clone(),
        command: store.command.clone(),
        started_at: request.now.to_string(),
        anchors: anchors.paths.clone(),
        anchor_ids: anchors.ids.clone(),
        steps: builder.steps,
        remove_dirs,
    };
    let (items, snapshot_id) = (builder.items, store.next_id.clone());
    Ok(Some(Prepared { journal, anchors, items, keep, pack, volumes, snapshot_id }))
}

/// A place among our own files.
fn state_place<F: Fs>(store: &Store<'_, F>, anchor: usize, path: String) -> Result<Place, TxnError> {
    let path = RelPath::new(path).map_err(|error| TxnError::bad_path(&store.base_path, &error))?;
    Ok(Place { anchor, path })
}

/// The snapshot, as one more file to create.
fn snapshot_work<F: Fs>(
    store: &Store<'_, F>,
    survey: &mut Survey<'_, F>,
    request: &Request,
    roots: &[Root],
    changes: Vec<RecordedChange>,
    state: usize,
) -> Result<Work, TxnError> {
    let header = Header {
        crewkit_snapshot: Header::FORMAT,
        id: store.next_id.clone(),
        kind: request.kind,
        created_at: request.now.to_string(),
        targets: request.targets.clone(),
        project: request.project.clone(),
        lockfile_sha256: request.lockfile_sha256,
        plan_hash: request.plan_hash.clone(),
        rolled_back_to: request.rolled_back_to.clone(),
        roots: request.roots.iter().zip(roots).map(snapshot_root).collect(),
        counts: snapshot::count(&changes),
    };
    let mut bytes = Vec::new();
    let encoded = Snapshot { header, changes }.encode(&mut bytes);
    encoded.map_err(|error| TxnError::Bug(format!("encode snapshot: {error}")))?;
    let after = Some(written(bytes));
    let place = state_place(store, state, format!("snapshots/{}{}", store.next_id, snapshot::ENDING))?;
    let id = survey.id(&place)?;
    Ok(Work { place, id, before: None, after, keep: false, store: false, private: true })
}

/// The heads of the roots whose manifests change, as further files.
fn head_works<F: Fs>(
    store: &Store<'_, F>,
    survey: &mut Survey<'_, F>,
    request: &Request,
    roots: &[Root],
    manifests: &[Work],
    state: usize,
) -> Result<Vec<Work>, TxnError> {
    let mut works = Vec::new();
    for (root, change) in roots.iter().zip(&request.roots) {
        let manifest = root_place(root, &manifest_name(&change.target)?, &change.path)?;
        let id = survey.id(&manifest)?;
        let Some(manifest) = manifests.iter().find(|work| work.id == id) else { continue };
        if root.head.file.is_none() && manifest.after.is_none() {
            continue;
        }
        let name = heads::name(&change.target, &change.path);
        let place = state_place(store, state, format!("heads/{name}"))?;
        let (id, before, after) = (survey.id(&place)?, root.head.file, manifest.after.clone());
        works.push(Work { place, id, before, after, keep: false, store: false, private: true });
    }
    Ok(works)
}

fn works_of_changes<F: Fs>(
    survey: &mut Survey<'_, F>,
    request: &Request,
    roots: &[Root],
) -> Result<Vec<Work>, TxnError> {
    let anchors = survey.anchors;
    let mut works: Vec<Work> = Vec::with_capacity(request.changes.len());
    for change in &request.changes {
        let root =
            roots.get(change.root).ok_or_else(|| TxnError::Bug("a change without a root".to_owned()))?;
        let place = root_place(root, &change.path, &request.roots[change.root].path)?;
        let is_reserved = |name: &str| name.starts_with(STAGED_PREFIX) || managed::is_manifest_name(name);
        if let Some(name) = change.path.components().find(|name| is_reserved(name)) {
            let reason = format!("the name `{name}` is reserved");
            return Err(TxnError::BadPath { path: anchors.shown(&place), reason });
        }
        let (id, before, after) = (survey.id(&place)?, change.before, change.after.clone());
        works.push(Work { place, id, before, after, keep: true, store: true, private: false });
    }
    // A place can have several names.
    works.sort_by(|a, b| a.id.cmp(&b.id));
    let mut twice = None;
    works.dedup_by(|second, first| {
        if first.id != second.id {
            return false;
        }
        if first.before != second.before || first.new_entry() != second.new_entry() {
            twice.get_or_insert_with(|| anchors.shown(&first.place));
        }
        true
    });
    match twice {
        Some(path) => Err(TxnError::Twice { path }),
        None => Ok(works),
    }
}

/// What is on disk, not in the store, and could be wanted again.
fn contents_to_keep<F: Fs>(
    store: &Store<'_, F>,
    survey: &mut Survey<'_, F>,
    works: &[Work],
    manifests: &[Work],
    newly_managed: &[(Place, Entry)],
) -> Result<Vec<Keep>, TxnError> {
    let mut keep = Vec::new();
    let mut seen = HashSet::new();
    for work in works.iter().chain(manifests) {
        // A manifest of ours can be written again from the snapshots.
        let Some(entry) = work.before.filter(|_| work.keep) else { continue };
        if !store.blobs.contains(&entry.sha256) && seen.insert(entry.sha256) {
            keep.push(Keep { at: work.place.clone(), entry });
        }
    }
    for (place, planned) in newly_managed {
        // A manifest must not list what is not there.
        let Some(entry) = survey.observe(place)?.entry().filter(|entry| entry.sha256 == planned.sha256)
        else {
            let path = survey.anchors.shown(place);
            return Err(TxnError::Changed { path, found: "it has other content" });
        };
        if !store.blobs.contains(&entry.sha256) && seen.insert(entry.sha256) {
            keep.push(Keep { at: place.clone(), entry });
        }
    }
    Ok(keep)
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

impl<'a, F: Fs> Builder<'a, F> {
    fn new(store: &Store<'a, F>, files: usize) -> Self {
        Self {
            id: store.next_id.clone(),
            blobs: store.blobs,
            steps: Vec::new(),
            items: Vec::with_capacity(files),
            stored: HashSet::new(),
            needed: HashMap::new(),
        }
    }

    /// The new pack; says where it is staged.
    fn pack(&mut self, store: &Store<'_, F>, state: usize) -> Result<Place, TxnError> {
        let place = state_place(store, state, format!("packs/{}.pack", self.id))?;
        let staged = self.next_staged();
        let staged_at = sibling(&place, &staged)?;
        self.steps.push(Step { place, staged, action: Action::Create { new: None } });
        Ok(staged_at)
    }

    /// Whether the new content belongs into the store, and is not in it.
    fn is_new(&self, work: &Work) -> bool {
        let is_new =
            |entry: Entry| !self.blobs.contains(&entry.sha256) && !self.stored.contains(&entry.sha256);
        work.store && work.new_entry().is_some_and(is_new)
    }

    fn next_staged(&self) -> String {
        Journal::staged_name(&self.id, self.steps.len())
    }

    fn item(&mut self, at: Place, work: &Work, device: u64) {
        let Some(new) = &work.after else { return };
        let store = self.is_new(work);
        if store {
            self.stored.insert(new.entry.sha256);
        }
        self.needed.entry(device).or_default().push(new.size);
        let mode = match (new.entry.mode_after(work.before), new.entry.kind) {
            _ if work.private => Mode::Private,
            (Some(bits), _) => Mode::Exact(bits),
            (None, EntryKind::Executable) => Mode::Executable,
            (None, EntryKind::Plain | EntryKind::Symlink) => Mode::Plain,
        };
        self.items.push(Item { at, place: work.place.clone(), new: new.clone(), store, mode });
    }

    /// Directories that do not exist yet are built aside and appear whole.
    fn trees(
        &mut self,
        survey: &mut Survey<'_, F>,
        works: &[Work],
        manifests: &[Work],
    ) -> Result<(), TxnError> {
        let mut trees: BTreeMap<(DirId, &str), (Place, Vec<&Work>)> = BTreeMap::new();
        for work in works.iter().chain(manifests).filter(|work| work.after.is_some()) {
            let presence = survey.presence(work.place.anchor, work.place.path.parent())?;
            if let Presence::Missing { above, top } = presence {
                let name = work.id.path.split('/').next().unwrap_or_default();
                trees.entry((above, name)).or_insert_with(|| (top, Vec::new())).1.push(work);
            }
        }
        for ((DirId { device, .. }, _), (place, works)) in trees {
            let staged = self.next_staged();
            let staged_at = sibling(&place, &staged)?;
            let mut dirs = BTreeSet::new();
            let mut files = Vec::with_capacity(works.len());
            for work in works {
                let path = below(work)?;
                let _ = path.parents().find(|dir| !dirs.insert(dir.clone()));
                let at = staged_at.path.join(&path);
                let at = at.map_err(|error| TxnError::bad_path(path.as_path(), &error))?;
                self.item(Place { anchor: staged_at.anchor, path: at }, work, device);
                files.push(TreeFile { path, new: work.new_entry() });
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
            if survey.presence(work.place.anchor, work.place.path.parent())?.is_missing() {
                continue;
            }
            let action = match (work.before, work.new_entry()) {
                (None, Some(new)) => Action::Create { new: Some(new) },
                (Some(old), Some(new)) => Action::Update { old, new },
                (Some(old), None) => Action::Delete { old },
                (None, None) => continue,
            };
            let staged = self.next_staged();
            self.item(sibling(&work.place, &staged)?, work, work.id.dir.device);
            self.steps.push(Step { place: work.place.clone(), staged, action });
        }
        Ok(())
    }

    /// The size of the new pack.
    fn stored_bytes(&self, survey: &mut Survey<'_, F>, keep: &[Keep]) -> Result<u64, TxnError> {
        let sizes: HashMap<Digest, u64> = self
            .items
            .iter()
            .filter(|item| item.store)
            .map(|item| (item.new.entry.sha256, item.new.size))
            .collect();
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

/// Where a file is in the tree that appears with it.
fn below(work: &Work) -> Result<RelPath, TxnError> {
    let outside = || TxnError::Bug("a file outside its tree".to_owned());
    let (_, rest) = work.id.path.split_once('/').ok_or_else(outside)?;
    RelPath::new(rest).map_err(|_| outside())
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
