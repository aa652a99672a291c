//! What is on disk, at the places a command is about.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use crate::config::manifest::Manifest;
use crate::desired::{self, Desired, DesiredFile, DesiredRoot};
use crate::error::{PackError, Result};
use crate::fs::RealFs;
use crate::fs::entry::Observed;
use crate::fs::path::RelPath;
use crate::fs::place::{Located, PlaceId};
use crate::fs::scan::{self, Found, InTheWay};
use crate::parallel;
use crate::plan;
use crate::state::managed::{self, ManagedFile, ManifestRead, TargetManifest};
use crate::state::transaction::TxnError;
use hash_cache::HashCache;
use owners::{Owner, Owners};

pub(crate) mod hash_cache;
pub(crate) mod owners;

/// What was found below a root.
#[derive(Debug)]
pub(crate) struct RootState {
    /// Where it is.
    pub(crate) at: Located<RealFs>,
    /// What is at the place of each desired file, in their order.
    pub(crate) found: Vec<Found>,
    /// The manifest of the root, if it has a usable one.
    pub(crate) manifest: Option<Arc<TargetManifest>>,
    /// Managed files that nobody wants any more and no other manifest lists, and what is there; sorted by path.
    pub(crate) undesired: Vec<(RelPath, Found)>,
    /// Managed files that no module of this repo ever made; they stay, and stay listed.
    pub(crate) foreign: Vec<ManagedFile>,
    /// Desired files that another manifest lists: their places are ours already.
    pub(crate) shared: BTreeSet<RelPath>,
}

/// What the `bootstrap` command of earlier versions installed beside the modules of a repo.
const OPERATOR_MODULES: [&str; 10] = [
    "skill:agentpack-operator",
    "command:ap-deploy",
    "command:ap-diff",
    "command:ap-doctor",
    "command:ap-evolve",
    "command:ap-explain",
    "command:ap-plan",
    "command:ap-preview",
    "command:ap-status",
    "command:ap-update",
];

/// Whether a managed file was installed by `bootstrap` and not from a module of this repo.
///
/// Both commands wrote the same manifests, so a deploy used to delete what `bootstrap` had installed.
fn is_foreign(file: &ManagedFile, has_module: impl Fn(&str) -> bool) -> bool {
    match (file.module_ids.get(0), file.module_ids.len()) {
        (Some(id), 1) => OPERATOR_MODULES.contains(&id) && !has_module(id),
        _ => false,
    }
}

impl RootState {
    /// Whether an earlier deploy wrote `path`.
    pub(crate) fn manages(&self, path: &RelPath) -> bool {
        self.listed(path).is_some() || self.shared.contains(path)
    }

    /// What the manifest of the root says about `path`.
    pub(crate) fn listed(&self, path: &RelPath) -> Option<&ManagedFile> {
        self.manifest.as_ref()?.file(path)
    }

    /// What is at the place of a managed file, if that was looked at.
    pub(crate) fn found(&self, root: &DesiredRoot, path: &RelPath) -> Option<Observed> {
        let found = match root.files.binary_search_by(|file| file.path.cmp(path)) {
            Ok(at) => self.found.get(at),
            Err(_) => {
                let at = self.undesired.binary_search_by(|(undesired, _)| undesired.cmp(path)).ok()?;
                self.undesired.get(at).map(|(_, found)| found)
            }
        };
        found.map(|found| found.observed)
    }

    /// Which place `path` is.
    fn place_id(&self, path: &RelPath, found: &Found) -> PlaceId {
        self.at.place_id(path, found.above, found.rest)
    }
}

/// What looking at the places of a plan takes.
pub(crate) struct Survey<'a> {
    /// Hashes of files seen before.
    pub(crate) cache: &'a HashCache,
    /// What the config repo says.
    pub(crate) manifest: &'a Manifest,
    /// What all roots must lie below.
    pub(crate) boundary: Option<&'a Path>,
}

impl Survey<'_> {
    /// What exists at the places of `desired`, and what an earlier deploy left elsewhere in its roots.
    pub(crate) fn run(&self, desired: &Desired, warnings: &mut Vec<String>) -> Result<Vec<RootState>> {
        let mut states = Vec::with_capacity(desired.roots.len());
        for result in parallel::map(&desired.roots, |root| self.listed(root)) {
            let (at, mut read) = result?;
            warnings.append(&mut read.warnings);
            states.push(RootState {
                at,
                found: Vec::new(),
                manifest: read.manifest,
                undesired: Vec::new(),
                foreign: Vec::new(),
                shared: BTreeSet::new(),
            });
        }
        let has_module = |id: &str| self.manifest.modules.iter().any(|module| module.id == id);
        let mut undesired: Vec<Vec<RelPath>> = Vec::with_capacity(states.len());
        for (root, state) in desired.roots.iter().zip(&mut states) {
            let listed = state.manifest.as_ref().map(|manifest| manifest.files.as_slice());
            let (foreign, gone): (Vec<_>, Vec<_>) = without(listed.unwrap_or_default(), &root.files)
                .partition(|file| is_foreign(file, has_module));
            state.foreign = foreign.into_iter().cloned().collect();
            undesired.push(gone.into_iter().map(|file| file.path.clone()).collect());
        }
        let mut tasks = Vec::new();
        for (index, (root, undesired)) in desired.roots.iter().zip(&undesired).enumerate() {
            for files in root.files.chunks(CHUNK) {
                let paths = files.iter().map(|file| &file.path).collect();
                tasks.push(Task { root: index, undesired: false, paths });
            }
            for paths in undesired.chunks(CHUNK) {
                tasks.push(Task { root: index, undesired: true, paths: paths.iter().collect() });
            }
        }
        let disk = RealFs::default();
        let observed = parallel::map(&tasks, |task| {
            let in_the_way = if task.undesired { InTheWay::IsAbsent } else { InTheWay::Refuse };
            let Some(state) = states.get(task.root) else { return Ok(Vec::new()) };
            match state.at.dir() {
                Some(dir) => scan::observe(&disk, dir, task.paths.iter().copied(), in_the_way, self.cache),
                None => {
                    let nothing = Found { observed: Observed::Absent, above: state.at.id, rest: 0 };
                    Ok(vec![nothing; task.paths.len()])
                }
            }
        });
        for (task, found) in tasks.into_iter().zip(observed) {
            let mut found = found?;
            let Some(state) = states.get_mut(task.root) else { continue };
            if task.undesired {
                state.undesired.extend(task.paths.into_iter().cloned().zip(found));
            } else {
                state.found.append(&mut found);
            }
        }
        settle_owners(desired, &mut states)?;
        Ok(states)
    }

    /// Where a root is, and what its manifest says.
    fn listed(&self, root: &DesiredRoot) -> Result<(Located<RealFs>, ManifestRead)> {
        let fs = RealFs::default();
        let at = match Located::find(&fs, &root.path, self.boundary) {
            Err(TxnError::Blocked { path, .. }) if path.exists() => return Err(scan::not_a_directory(&path)),
            located => located?,
        };
        let read = managed::read(&fs, at.dir(), root.target.name());
        let read = read.map_err(|error| PackError::io("read the target manifest in", &root.path, error))?;
        Ok((at, read))
    }
}

/// Finds out who else owns what was found: a place that somebody wants, or that the manifest of a root this command does
/// not cover lists, is not undesired; and a place that any manifest lists is not the user's.
fn settle_owners(desired: &Desired, states: &mut [RootState]) -> Result<()> {
    let leaves = |(_, found): &(RelPath, Found)| matches!(found.observed, Observed::Entry(_));
    let differs = |file: &DesiredFile, found: &Found| {
        !found.observed.entry().is_some_and(|found| plan::is_satisfied(file.entry(), found))
    };
    let roots = || desired.roots.iter().zip(&*states);
    let is_settled = roots().all(|(root, state)| {
        let mut places = root.files.iter().zip(&state.found);
        !places.any(|(file, found)| differs(file, found)) && !state.undesired.iter().any(leaves)
    });
    if is_settled {
        return Ok(());
    }
    let mut wanted: HashMap<PlaceId, &DesiredFile> = HashMap::new();
    for (root, state) in roots() {
        for (file, found) in root.files.iter().zip(&state.found) {
            let earlier = wanted.insert(state.place_id(&file.path, found), file);
            if let Some(earlier) = earlier.filter(|earlier| earlier.entry() != file.entry()) {
                let place = root.path.join(file.path.as_path());
                return Err(desired::conflict(desired, root.target, &place, earlier, file));
            }
        }
    }
    let owner =
        |(root, state): (&DesiredRoot, &RootState)| Owner { target: root.target.name(), root: state.at.id };
    let covered: HashSet<Owner> =
        roots().filter(|(_, state)| state.at.missing.is_none()).map(owner).collect();
    let fs = RealFs::default();
    let mut owners = Owners::new(&fs);
    for (root, state) in desired.roots.iter().zip(states) {
        let Some(dir) = state.at.dir() else { continue };
        let real = dir.real().to_owned();
        let mut shared = BTreeSet::new();
        for (file, found) in root.files.iter().zip(&state.found) {
            if differs(file, found)
                && found.observed.entry().is_some()
                && state.listed(&file.path).is_none()
                && owners.any(&real.join(file.path.as_path()), |_| true)?
            {
                shared.insert(file.path.clone());
            }
        }
        let undesired = std::mem::take(&mut state.undesired);
        for (path, found) in undesired {
            let is_elsewhere = leaves(&(path.clone(), found))
                && (wanted.contains_key(&state.place_id(&path, &found))
                    || owners.any(&real.join(path.as_path()), |owner| !covered.contains(&owner))?);
            if !is_elsewhere {
                state.undesired.push((path, found));
            }
        }
        state.shared = shared;
    }
    Ok(())
}

/// The listed files that are not desired; both are sorted by path.
fn without<'a>(
    listed: &'a [ManagedFile],
    desired: &'a [DesiredFile],
) -> impl Iterator<Item = &'a ManagedFile> {
    let mut desired = desired.iter().peekable();
    listed.iter().filter(move |file| {
        while desired.next_if(|wanted| wanted.path < file.path).is_some() {}
        desired.peek().is_none_or(|wanted| wanted.path != file.path)
    })
}

struct Task<'a> {
    root: usize,
    undesired: bool,
    paths: Vec<&'a RelPath>,
}

/// Places looked at in one go; small enough to spread one big root over several threads.
const CHUNK: usize = 512;
