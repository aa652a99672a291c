//! One command's view of the world: which repo, profile, targets, machine and project it is about.

use std::path::PathBuf;
use std::sync::Arc;

use crewkit_core::Code;

use crate::config::ids;
use crate::config::lockfile::Lockfile;
use crate::config::manifest::{ALL_TARGETS, DEFAULT_PROFILE, LastManifest, Manifest, Module, TargetConfig};
use crate::config::project::Project;
use crate::desired::target::TargetKind;
use crate::desired::{Desired, Layout};
use crate::env::Env;
use crate::error::{PackError, Result};
use crate::fs::hash::Digest;
use crate::fs::scan::Base;
use crate::observe::hash_cache::HashCache;
use crate::observe::{RootState, Survey};
use crate::overlay::Overlays;
use crate::source::materialize::{Material, Materializer};
use crate::source::resolve;

/// What a command is asked to look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Select {
    /// The config repo; the default one when nothing is said.
    pub repo: Option<PathBuf>,
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
pub(crate) struct Session<'a> {
    /// The surroundings.
    pub env: &'a Env,
    /// Hashes of files seen before.
    pub cache: &'a HashCache,
    /// What was asked for.
    pub select: &'a Select,
    /// The config repo.
    pub repo: PathBuf,
    pub manifest: Arc<Manifest>,
    /// Its lockfile and that file's hash.
    pub lock: Option<(Lockfile, Digest)>,
    pub project: Project,
    pub machine_id: String,
}

/// The config repo a command works on.
pub(crate) fn repo_of(env: &Env, select: &Select) -> PathBuf {
    match &select.repo {
        Some(repo) => env.cwd.join(repo),
        None => env.default_repo(),
    }
}

/// The machine a command works for.
pub(crate) fn machine_of(env: &Env, select: &Select) -> String {
    let asked = select.machine.iter().map(String::as_str);
    ids::machine_id(asked.chain(env.machine_names.iter().map(String::as_str)))
}

impl<'a> Session<'a> {
    /// Reads manifest and lockfile and finds out where we are.
    pub(crate) fn open(
        env: &'a Env,
        cache: &'a HashCache,
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
            select,
            manifest,
            lock,
            project: Project::detect(env),
            machine_id: machine_of(env, select),
            repo,
        })
    }

    /// The selected targets, by name.
    pub(crate) fn targets(&self) -> Result<Vec<(TargetKind, &TargetConfig)>> {
        self.manifest.select_targets(&self.select.target)
    }

    /// The profile and the names of the selected targets, as answers show them.
    pub(crate) fn selection(&self) -> Result<(String, Vec<&'static str>)> {
        let targets = self.targets()?.into_iter().map(|(target, _)| target.name());
        Ok((self.select.profile.clone(), targets.collect()))
    }

    /// The roots of the selected targets.
    pub(crate) fn layout(&self) -> Result<Layout<'_>> {
        let mut layout = Layout::new(self.env, &self.project.root, &self.manifest, &self.targets()?)?;
        if self.env.workspace_state.is_some() {
            // What is configured to be elsewhere on this machine is no part of a kit.
            layout.keep_below(&self.project.root);
        }
        Ok(layout)
    }

    /// The overlays that count here.
    pub(crate) fn overlays(&self) -> Result<Overlays> {
        Overlays::list(&self.repo, &self.machine_id, || self.project.id(self.env))
    }

    /// The files that should exist.
    pub(crate) fn desired(&self, warnings: &mut Vec<String>) -> Result<Desired> {
        let layout = self.layout()?;
        let mut selected = self.manifest.select(&self.select.profile)?;
        warnings.extend(layout.homeless(&selected));
        selected.retain(|module| layout.takes(module));
        let materials = self.materials(&selected, warnings)?;
        layout.place(materials, &self.env.limits)
    }

    /// The files of `modules` with overlays applied.
    pub(crate) fn materials(&self, modules: &[&Module], warnings: &mut Vec<String>) -> Result<Vec<Material>> {
        let overlays = self.overlays()?;
        let locked = self.lock.as_ref().map(|(lock, _)| lock.by_id()).unwrap_or_default();
        let git = resolve::Access { env: self.env, cache: self.cache, may_fetch: !self.select.dry_run };
        let checkouts = resolve::prepare(git, modules, &locked, warnings)?;
        let base = Base::of_repo(&self.repo)?;
        let materializer =
            Materializer { env: self.env, repo: &base, checkouts: &checkouts, cache: self.cache };
        materializer.materialize(modules, &overlays, warnings)
    }

    /// What exists at the places of `desired`, and what an earlier deploy left elsewhere in its roots.
    pub(crate) fn survey(&self, desired: &Desired, warnings: &mut Vec<String>) -> Result<Vec<RootState>> {
        let boundary = self.env.workspace_state.as_ref().map(|_| self.project.root.as_path());
        Survey { cache: self.cache, manifest: &self.manifest, boundary }.run(desired, warnings)
    }
}
