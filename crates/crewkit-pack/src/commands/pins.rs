//! Lock, fetch, update: which content modules have, and getting it.

use std::collections::HashMap;
use std::path::PathBuf;

use super::answers::{Fetched, ModulesLocked, UpdateDetail, UpdateStep, Updated};
use super::{Consent, Pack};
use crate::commands::session::{Select, repo_of};
use crate::config::lockfile::{
    self, FileRecord, LockedModule, Lockfile, ResolvedGit, ResolvedLocal, ResolvedSource,
};
use crate::config::manifest::{Git, Manifest, Module, SourceRef};
use crate::envelope::Answer;
use crate::error::{PackError, Result};
use crate::fs::atomic;
use crate::fs::scan::Base;
use crate::parallel;
use crate::source::materialize::Materializer;
use crate::source::resolve::{self, Access, Checkout, Expected};
use crate::source::tree::{TreeFile, digest_of};

/// Which steps an update takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Update {
    /// Lock even though there is a lockfile.
    pub lock: bool,
    /// Do not lock even though there is none.
    pub no_lock: bool,
    /// Do not fetch.
    pub no_fetch: bool,
}

impl Pack {
    /// Writes the lockfile for all enabled modules.
    pub fn lock_modules(&self, select: &Select, consent: Consent) -> Result<Answer<ModulesLocked>> {
        self.change(select, "lock", consent, |warnings| self.write_lock(select, warnings))
    }

    /// Makes every locked commit available in the cache and verifies it.
    pub fn fetch(&self, select: &Select, consent: Consent) -> Result<Answer<Fetched>> {
        self.change(select, "fetch", consent, |_| self.fetch_locked(select))
    }

    /// Locks if there is no lockfile or it is asked for, then fetches.
    pub fn update(&self, select: &Select, update: Update, consent: Consent) -> Result<Answer<Updated>> {
        let has_lock = Lockfile::path_in(&repo_of(&self.env, select)).exists();
        let lock = update.lock || (!has_lock && !update.no_lock);
        let fetch = !update.no_fetch;
        // What does nothing needs no approval.
        let consent = if lock || fetch { consent } else { Consent::Given };
        self.change(select, "update", consent, |warnings| {
            let mut updated = Updated {
                git_modules_fetched: 0,
                lockfile: Lockfile::path_in(&repo_of(&self.env, select)),
                steps: Vec::new(),
                store: self.store(),
            };
            if lock {
                let detail = UpdateDetail::Lock(self.write_lock(select, warnings)?);
                updated.steps.push(UpdateStep { detail, name: "lock", ok: true });
            }
            if fetch {
                // A dry run writes no lockfile that this step could read.
                let fetched = if select.dry_run && !has_lock {
                    Fetched { git_modules_fetched: 0, store: self.store() }
                } else {
                    self.fetch_locked(select)?
                };
                updated.git_modules_fetched = fetched.git_modules_fetched;
                let detail = UpdateDetail::Fetch(fetched);
                updated.steps.push(UpdateStep { detail, name: "fetch", ok: true });
            }
            Ok(updated)
        })
    }

    fn write_lock(&self, select: &Select, warnings: &mut Vec<String>) -> Result<ModulesLocked> {
        let repo = repo_of(&self.env, select);
        let manifest = Manifest::load(&repo, &self.env.limits)?;
        let mut modules: Vec<&Module> = manifest.modules.iter().filter(|module| module.enabled).collect();
        modules.sort_by(|a, b| a.id.cmp(&b.id));
        let access = Access { env: &self.env, cache: &self.cache, may_fetch: !select.dry_run };
        // Nothing counts as locked: locking means looking anew.
        let checkouts = resolve::prepare(access, &modules, &HashMap::new(), warnings)?;
        let base = Base::of_repo(&repo)?;
        let materializer =
            Materializer { env: &self.env, repo: &base, checkouts: &checkouts, cache: &self.cache };
        let listed = parallel::map(&modules, |module| {
            let mut noticed = Vec::new();
            let files = materializer.upstream_files(module, &mut noticed)?;
            Ok::<_, PackError>((locked_module(module, checkouts.get(&module.id), &files)?, noticed))
        });
        let mut locked = Vec::with_capacity(listed.len());
        for result in listed {
            let (module, mut noticed) = result?;
            warnings.append(&mut noticed);
            locked.push(module);
        }
        self.remember(select);
        let path = Lockfile::path_in(&repo);
        let lock =
            Lockfile { version: lockfile::VERSION, generated_at: self.env.timestamp(), modules: locked };
        // A lockfile that says the same stays as it is: rewriting it would only make noise in version control.
        let existing = Lockfile::load(&repo, &self.env.limits).ok().flatten();
        let same = existing.is_some_and(|(existing, _)| existing.modules == lock.modules);
        if !select.dry_run && !same {
            atomic::write(&path, &lock.render())?;
        }
        Ok(ModulesLocked { lockfile: path, modules: lock.modules.len() })
    }

    fn fetch_locked(&self, select: &Select) -> Result<Fetched> {
        let repo = repo_of(&self.env, select);
        let manifest = Manifest::load(&repo, &self.env.limits)?;
        let (lock, _) = Lockfile::require(&repo, &self.env.limits)?;
        let pinned: Vec<(&LockedModule, Git)> = lock
            .modules
            .iter()
            .filter_map(|module| {
                let git = module.resolved_source.git.as_ref()?;
                let written = manifest.module(&module.id).ok().and_then(|module| module.source.git.as_ref());
                let source = Git {
                    url: git.url.clone(),
                    reference: written.map_or_else(|| git.commit.to_string(), |git| git.reference.clone()),
                    subdir: git.subdir.clone(),
                    shallow: written.is_none_or(|git| git.shallow),
                };
                Some((module, source))
            })
            .collect();
        if !select.dry_run {
            // One repository at a time per commit; several modules often share one.
            for (done, (module, source)) in pinned.iter().enumerate() {
                self.env.check_cancelled()?;
                self.fetch_one(module, source)?;
                self.env.progress.at("fetch", done + 1, pinned.len());
            }
        }
        Ok(Fetched { git_modules_fetched: pinned.len(), store: self.store() })
    }

    /// Where checkouts are.
    fn store(&self) -> PathBuf {
        self.env.agentpack_home.join("cache")
    }

    /// Makes one locked module available; a checkout that is not what was locked is fetched anew, once.
    fn fetch_one(&self, locked: &LockedModule, source: &Git) -> Result<()> {
        let Some(git) = &locked.resolved_source.git else { return Ok(()) };
        let git_source = crate::config::manifest::Source { local_path: None, git: Some(source.clone()) };
        let module = Module::new(locked.id.clone(), locked.kind, git_source);
        let checkout = Checkout {
            path: resolve::checkout_path(&self.env, &git.url, &git.commit),
            source: source.clone(),
            commit: git.commit.clone(),
            expected: Expected::Locked(locked.sha256),
        };
        let checkouts = HashMap::from([(module.id.clone(), checkout.clone())]);
        // A git module does not ask where the repo is.
        let base = Base::of_repo(&self.env.cwd)?;
        let materializer =
            Materializer { env: &self.env, repo: &base, checkouts: &checkouts, cache: &self.cache };
        if checkout.path.is_dir() && materializer.upstream_files(&module, &mut Vec::new()).is_ok() {
            return Ok(());
        }
        resolve::fetch(&self.env, source, &git.commit, &self.cache)?;
        materializer.upstream_files(&module, &mut Vec::new()).map(drop)
    }
}

fn locked_module(module: &Module, checkout: Option<&Checkout>, files: &[TreeFile]) -> Result<LockedModule> {
    let (resolved_source, resolved_version) = match (module.source.get(), checkout) {
        (Some(SourceRef::Local(local)), _) => (
            ResolvedSource {
                local_path: Some(ResolvedLocal { path: local.path.replace('\\', "/") }),
                git: None,
            },
            "local".to_owned(),
        ),
        (Some(SourceRef::Git(git)), Some(checkout)) => (
            ResolvedSource {
                local_path: None,
                git: Some(ResolvedGit {
                    url: git.url.clone(),
                    commit: checkout.commit.clone(),
                    subdir: git.subdir.clone(),
                }),
            },
            checkout.commit.to_string(),
        ),
        _ => return Err(PackError::bug(format!("module {} was not resolved", module.id))),
    };
    Ok(LockedModule {
        id: module.id.clone(),
        kind: module.kind,
        resolved_source,
        resolved_version,
        sha256: digest_of(files),
        file_manifest: files.iter().map(FileRecord::from).collect(),
    })
}
