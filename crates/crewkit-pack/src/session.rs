//! One command's view of the world: which repo, profile, targets, machine and project it is about.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use crewkit_core::Code;

use crate::desired::{self, Desired, DesiredFile, DesiredRoot, Layout};
use crate::entry::Observed;
use crate::env::Env;
use crate::error::{PackError, Result};
use crate::fs::{Fs as _, RealFs, Stat};
use crate::hash::Digest;
use crate::hash_cache::HashCache;
use crate::lockfile::Lockfile;
use crate::managed::{self, Known, KnownManifests, ManagedFile, ManifestRead};
use crate::manifest::{ALL_TARGETS, DEFAULT_PROFILE, LastManifest, Manifest, Module, TargetConfig};
use crate::materialize::{Material, Workshop};
use crate::overlay::Overlays;
use crate::owners::{Owner, Owners};
use crate::path::RelPath;
use crate::place::{Located, PlaceId};
use crate::plan::{self, RootState};
use crate::project::Project;
use crate::scan::{Base, Found, InTheWay};
use crate::source::resolve;
use crate::target::TargetKind;
use crate::transaction::TxnError;
use crate::{ids, parallel, scan};

/// What a command is asked to look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Select {
    /// The config repo; the default one when nothing is said.
    pub repo: Option<PathBuf>,
    /// The profile.
    pub profile: String,
    /// A target's name, or `all`.
    pub target: String,
    /// The machine id; detected when nothing is said.
    pub machine: Option<String>,
    /// Whether nothing at all may be written, caches included.
    pub dry_run: bool,
}

impl Default for Select {
    fn default() -> Self {
        Self {
            repo: None,
            profile: DEFAULT_PROFILE.to_owned(),
            target: ALL_TARGETS.to_owned(),
            machine: None,
            dry_run: false,
        }
    }
}

/// Parts of a selection, each of which may be left open. A session has one: it fills in what a call leaves open, and what a
/// call says must not differ from it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choices {
    /// The config repo.
    pub repo: Option<PathBuf>,
    /// The profile; `default` leaves it open.
    pub profile: Option<String>,
    /// A target's name; `all` leaves it open.
    pub target: Option<String>,
    /// The machine id.
    pub machine: Option<String>,
    /// Whether nothing at all may be written.
    pub dry_run: bool,
}

impl Choices {
    /// What a call that chose `asked` is about, in a session that chose this.
    pub fn narrow(&self, asked: Self) -> Result<Select> {
        fn one<T: PartialEq + Clone>(
            name: &str,
            fixed: Option<&T>,
            asked: Option<T>,
            shown: fn(&T) -> String,
        ) -> Result<Option<T>> {
            match (fixed, asked) {
                (Some(fixed), Some(asked)) if *fixed != asked => {
                    let (fixed, asked) = (shown(fixed), shown(&asked));
                    let message =
                        format!("this session is for {name} `{fixed}` alone; `{asked}` is not allowed");
                    Err(PackError::new(Code::ArgumentInvalid, message).detail("argument", name))
                }
                (fixed, asked) => Ok(fixed.cloned().or(asked)),
            }
        }
        let open =
            |chosen: Option<String>| chosen.filter(|name| name != ALL_TARGETS && name != DEFAULT_PROFILE);
        let path = |path: &PathBuf| path.display().to_string();
        let target = one("target", open(self.target.clone()).as_ref(), open(asked.target), String::clone)?;
        let profile =
            one("profile", open(self.profile.clone()).as_ref(), open(asked.profile), String::clone)?;
        Ok(Select {
            repo: one("repo", self.repo.as_ref(), asked.repo, path)?,
            profile: profile.unwrap_or_else(|| DEFAULT_PROFILE.to_owned()),
            target: target.unwrap_or_else(|| ALL_TARGETS.to_owned()),
            machine: one("machine", self.machine.as_ref(), asked.machine, String::clone)?,
            dry_run: self.dry_run || asked.dry_run,
        })
    }
}

/// What a command found out before it does its own work.
#[derive(Debug)]
pub struct Session<'a> {
    /// The surroundings.
    pub env: &'a Env,
    /// Hashes of files seen before.
    pub cache: &'a HashCache,
    /// Target manifests read before.
    pub known: &'a KnownManifests,
    /// What was asked for.
    pub select: &'a Select,
    /// The config repo.
    pub repo: PathBuf,
    /// Its manifest.
    pub manifest: Arc<Manifest>,
    /// Its lockfile and that file's hash.
    pub lock: Option<(Lockfile, Digest)>,
    /// The project.
    pub project: Project,
    /// The machine.
    pub machine_id: String,
}

/// The config repo a command works on.
pub fn repo_of(env: &Env, select: &Select) -> PathBuf {
    match &select.repo {
        Some(repo) => env.cwd.join(repo),
        None => env.default_repo(),
    }
}

/// The machine a command works for.
pub fn machine_of(env: &Env, select: &Select) -> String {
    let asked = select.machine.iter().map(String::as_str);
    ids::machine_id(asked.chain(env.machine_names.iter().map(String::as_str)))
}

impl<'a> Session<'a> {
    /// Reads manifest and lockfile and finds out where we are.
    pub fn open(
        env: &'a Env,
        cache: &'a HashCache,
        known: &'a KnownManifests,
        last: &LastManifest,
        select: &'a Select,
    ) -> Result<Self> {
        let repo = repo_of(env, select);
        let mut manifest = last.load(&repo, &env.limits)?;
        if env.workspace_state.is_some() {
            Arc::make_mut(&mut manifest).keep_project_scope();
        }
        let lock = Lockfile::load(&repo, &env.limits)?;
        Ok(Self {
            env,
            cache,
            known,
            select,
            manifest,
            lock,
            project: Project::detect(env),
            machine_id: machine_of(env, select),
            repo,
        })
    }

    /// The selected targets, by name.
    pub fn targets(&self) -> Result<Vec<(TargetKind, &TargetConfig)>> {
        self.manifest.select_targets(&self.select.target)
    }

    /// The names of the selected targets.
    pub fn target_names(&self) -> Result<Vec<&'static str>> {
        Ok(self.targets()?.into_iter().map(|(target, _)| target.name()).collect())
    }

    /// The roots of the selected targets.
    pub fn layout(&self) -> Result<Layout> {
        let mut layout = Layout::new(self.env, &self.project.root, &self.targets()?)?;
        if self.env.workspace_state.is_some() {
            // What is configured to be elsewhere on this machine is no part of a kit.
            layout.keep_below(&self.project.root);
        }
        Ok(layout)
    }

    /// The overlays that count here.
    pub fn overlays(&self) -> Result<Overlays> {
        Overlays::list(&self.repo, &self.machine_id, || self.project.id(self.env))
    }

    /// The files that should exist.
    pub fn desired(&self, warnings: &mut Vec<String>) -> Result<Desired> {
        let layout = self.layout()?;
        let mut selected = self.manifest.select(&self.select.profile)?;
        selected.retain(|module| layout.takes(module));
        let materials = self.materials(&selected, warnings)?;
        layout.place(materials, self.env.limits.pack_text_bytes)
    }

    /// The files of `modules` with overlays applied.
    pub fn materials(&self, modules: &[&Module], warnings: &mut Vec<String>) -> Result<Vec<Material>> {
        let overlays = self.overlays()?;
        let locked = self.lock.as_ref().map(|(lock, _)| lock.by_id()).unwrap_or_default();
        let git = resolve::Access { env: self.env, cache: self.cache, may_fetch: !self.select.dry_run };
        let checkouts = resolve::prepare(git, modules, &locked, warnings)?;
        let base = Base::of_repo(&self.repo)?;
        let workshop = Workshop {
            env: self.env,
            repo: &base,
            overlays: &overlays,
            checkouts: &checkouts,
            cache: self.cache,
        };
        workshop.materialize(modules, warnings)
    }

    /// What exists at the places of `desired`, and what an earlier deploy left elsewhere in its roots.
    pub(crate) fn survey(&self, desired: &Desired, warnings: &mut Vec<String>) -> Result<Vec<RootState>> {
        let mut states = Vec::with_capacity(desired.roots.len());
        let mut known = HashMap::new();
        for (root, result) in
            desired.roots.iter().zip(parallel::map(&desired.roots, |root| self.listed(root)))
        {
            let Listed { at, mut read, stat } = result?;
            if let Some(stat) = stat {
                known.insert(root.manifest_path(), Known { stat, read: read.clone() });
            }
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
        self.known.replace(known);
        let has_module = |id: &str| self.manifest.modules.iter().any(|module| module.id == id);
        let mut undesired: Vec<Vec<RelPath>> = Vec::with_capacity(states.len());
        for (root, state) in desired.roots.iter().zip(&mut states) {
            let listed = state.manifest.as_ref().map(|manifest| manifest.files.as_slice());
            let (foreign, gone): (Vec<_>, Vec<_>) = without(listed.unwrap_or_default(), &root.files)
                .partition(|file| plan::is_foreign(file, has_module));
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
        let observed = parallel::map(&tasks, |task| {
            let in_the_way = if task.undesired { InTheWay::IsAbsent } else { InTheWay::Refuse };
            let Some(state) = states.get(task.root) else { return Ok(Vec::new()) };
            match state.at.dir() {
                Some(dir) => scan::observe(dir, task.paths.iter().copied(), in_the_way, self.cache),
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

    /// What the manifest of a root says.
    fn listed(&self, root: &DesiredRoot) -> Result<Listed> {
        let fs = RealFs::default();
        let boundary = self.env.workspace_state.as_ref().map(|_| self.project.root.as_path());
        let at = match Located::find(&fs, &root.path, boundary) {
            Err(TxnError::Blocked { path, .. }) if path.exists() => return Err(scan::not_a_directory(&path)),
            located => located?,
        };
        let dir = at.dir();
        let failed = |error| PackError::io("read the target manifest in", &root.path, error);
        let target = root.target.name();
        let stat = match dir {
            Some(dir) => fs.stat(dir.handle(), &managed::file_name(target)).map_err(failed)?,
            None => None,
        };
        // Asked before reading: an edit while we read then counts as later than the time we know.
        let has_local_clock = || dir.is_some_and(|dir| scan::has_local_clock(dir.handle()));
        let stat = stat.filter(|stat| self.cache.may_keep(stat, has_local_clock));
        if let Some(stat) = stat
            && let Some(read) = self.known.get(&root.manifest_path(), &stat)
        {
            return Ok(Listed { at, read, stat: Some(stat) });
        }
        let paths = managed::same_paths(&root.files, |file| &file.path);
        let read = match dir {
            Some(dir) => {
                managed::read_sharing(&fs, dir.handle(), dir.path(), target, paths).map_err(failed)?
            }
            None => ManifestRead::default(),
        };
        Ok(Listed { at, read, stat })
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
    let mut wanted: HashMap<PlaceId, (&DesiredRoot, &DesiredFile)> = HashMap::new();
    for (root, state) in roots() {
        for (file, found) in root.files.iter().zip(&state.found) {
            let earlier = wanted.insert(state.place_id(&file.path, found), (root, file));
            if let Some((_, earlier)) = earlier.filter(|(_, earlier)| earlier.entry() != file.entry()) {
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

/// What the manifest of a root says.
struct Listed {
    at: Located<RealFs>,
    read: ManifestRead,
    /// The stat data of its file, if it may be known by them.
    stat: Option<Stat>,
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
