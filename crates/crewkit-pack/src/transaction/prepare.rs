//! Everything that can be refused is refused here, before the first write.
//!
//! The outcome is the journal of the transaction and the list of what to stage; nothing is decided after it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use super::places::{Anchors, locate};
use super::roots::{Root, anchors_above, plan_roots, read_root, root_place, snapshot_root};
use super::survey::{Presence, Survey, Volume, check, room};
use super::{Content, NewFile, Request, TxnError};
use crate::blobs::Blobs;
use crate::entry::{Entry, EntryKind, Observed};
use crate::fs::Fs;
use crate::hash::Digest;
use crate::journal::{Action, Journal, Place, STAGED_PREFIX, Step, TreeFile};
use crate::managed;
use crate::path::RelPath;
use crate::snapshot::{self, Change, Header, Snapshot};

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
pub(super) struct Work {
    pub(super) place: Place,
    pub(super) shown: PathBuf,
    pub(super) before: Option<Entry>,
    pub(super) after: Option<NewFile>,
    pub(super) store: bool,
    pub(super) private: bool,
}

/// Checks a request and plans it; nothing when it would change nothing.
pub(super) fn prepare<F: Fs>(
    store: &Store<'_, F>,
    request: &Request,
) -> Result<Option<Prepared<F>>, TxnError> {
    let mut anchors = Anchors::new();
    let state = anchors.add(store.base_path.clone(), store.base.clone());
    let mut roots = Vec::with_capacity(request.roots.len());
    for root in &request.roots {
        let at = locate(store.fs, &root.path, &mut anchors)?;
        roots.push(read_root(store.fs, at, &root.path, &root.target, &anchors)?);
    }
    let above = anchors_above(store.fs, request, &roots, &mut anchors)?;

    let mut survey = Survey::new(store.fs, &anchors);
    let mut works = works_of_changes(request, &roots, &anchors)?;
    check(&mut survey, &works)?;
    let plan = plan_roots(&mut survey, request, &roots, &above, &store.next_id)?;
    works.retain(|work| work.before != work.after.as_ref().map(|new| new.entry));
    if works.is_empty() && plan.manifests.is_empty() {
        return Ok(None);
    }

    let keep = contents_to_keep(store, &mut survey, &works, &plan.manifests, &plan.newly_managed)?;
    let snapshot = snapshot_work(store, request, &roots, plan.changes, state)?;
    let mut builder = Builder::new(store);
    let new_contents = works.iter().any(|work| work.store && builder.is_new(work.after.as_ref()));
    let pack = if keep.is_empty() && !new_contents { None } else { Some(builder.pack(store, state)?) };
    builder.trees(&mut survey, &works, &plan.manifests)?;
    builder.files(&mut survey, works.iter().filter(|work| work.after.is_some()))?;
    builder.files(&mut survey, works.iter().filter(|work| work.after.is_none()))?;
    builder.files(&mut survey, plan.manifests.iter())?;
    builder.files(&mut survey, std::iter::once(&snapshot))?;

    let mut remove_dirs: Vec<Place> = plan.remove_dirs.into_iter().collect();
    remove_dirs.sort_by_key(|place| std::cmp::Reverse(anchors.shown(place).components().count()));
    let stored_bytes = builder.stored_bytes(&mut survey, &keep)?;
    let volumes = room(store.fs, survey.volumes, &builder.needed, stored_bytes, &store.base)?;
    let journal = Journal {
        id: store.next_id.clone(),
        command: store.command.clone(),
        started_at: request.now.to_string(),
        anchors: anchors.paths.clone(),
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
    request: &Request,
    roots: &[Root],
    changes: Vec<Change>,
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
    let bytes = Snapshot { header, changes }.encode();
    let bytes: Arc<[u8]> = bytes.map_err(|error| TxnError::Bug(format!("encode snapshot: {error}")))?.into();
    let entry = Entry { sha256: Digest::of(&bytes), kind: EntryKind::Plain };
    let place = state_place(store, state, format!("snapshots/{}{}", store.next_id, snapshot::ENDING))?;
    Ok(Work {
        shown: store.base_path.join(place.path.as_path()),
        place,
        before: None,
        after: Some(NewFile { entry, size: bytes.len() as u64, content: Content::Bytes(bytes) }),
        store: false,
        private: true,
    })
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

impl<'a, F: Fs> Builder<'a, F> {
    fn new(store: &Store<'a, F>) -> Self {
        Self {
            id: store.next_id.clone(),
            blobs: store.blobs,
            steps: Vec::new(),
            items: Vec::new(),
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
