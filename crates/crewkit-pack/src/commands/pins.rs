//! Lock, fetch, update: which content modules have, and getting it.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::{Consent, Pack, noticing, path_data};
use crate::atomic;
use crate::envelope::Answer;
use crate::error::{PackError, Result};
use crate::lockfile::{self, FileRecord, LockedModule, Lockfile, ResolvedGit, ResolvedLocal, ResolvedSource};
use crate::manifest::{Git, Manifest, Module, SourceRef};
use crate::materialize::Workshop;
use crate::overlay::Overlays;
use crate::scan::Base;
use crate::session::{Select, repo_of};
use crate::source::resolve::{self, Access, Checkout, Expected};
use crate::tree::{TreeFile, digest_of};
use crate::{parallel, view};

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
    pub fn lock_modules(&self, select: &Select, consent: Consent) -> Result<Answer> {
        if !select.dry_run {
            consent.require("lock")?;
        }
        noticing(|warnings| {
            self.locked(select, "lock", warnings, |warnings| self.write_lock(select, warnings))
        })
    }

    /// Makes every locked commit available in the cache and verifies it.
    pub fn fetch(&self, select: &Select, consent: Consent) -> Result<Answer> {
        if !select.dry_run {
            consent.require("fetch")?;
        }
        noticing(|warnings| self.locked(select, "fetch", warnings, |_| self.fetch_locked(select)))
    }

    /// Locks if there is no lockfile or it is asked for, then fetches.
    pub fn update(&self, select: &Select, update: Update, consent: Consent) -> Result<Answer> {
        let has_lock = Lockfile::path_in(&repo_of(&self.env, select)).exists();
        let lock = update.lock || (!has_lock && !update.no_lock);
        let fetch = !update.no_fetch;
        if (lock || fetch) && !select.dry_run {
            consent.require("update")?;
        }
        noticing(|warnings| {
            self.locked(select, "update", warnings, |warnings| {
                // Where things are is told also when there was nothing to do.
                let mut data = path_data("lockfile", &Lockfile::path_in(&repo_of(&self.env, select)));
                data.extend(self.store_data(0));
                let mut steps = Vec::new();
                for (name, wanted) in [("lock", lock), ("fetch", fetch)] {
                    if !wanted {
                        continue;
                    }
                    // A dry run writes no lockfile that the second step could read.
                    let nothing_to_fetch = name == "fetch" && select.dry_run && !has_lock;
                    let part = match name {
                        "lock" => self.write_lock(select, warnings)?,
                        _ if nothing_to_fetch => self.store_data(0).into(),
                        _ => self.fetch_locked(select)?,
                    };
                    steps.push(json!({"name": name, "ok": true, "detail": part}));
                    let mut part = view::object(part);
                    part.shift_remove("modules");
                    data.extend(part);
                }
                data.insert("steps".to_owned(), steps.into());
                Ok(data.into())
            })
        })
    }

    /// Runs a changing verb under the lock of the home; a dry run needs none.
    pub(super) fn locked(
        &self,
        select: &Select,
        command: &str,
        warnings: &mut Vec<String>,
        run: impl FnOnce(&mut Vec<String>) -> Result<Value>,
    ) -> Result<Value> {
        if select.dry_run {
            return run(warnings);
        }
        // A missing or broken manifest is told before anything is created in the home.
        if command != "init" {
            Manifest::load(&repo_of(&self.env, select), &self.env.limits)?;
        }
        let home = self.state();
        let _locked = self.lock(&home, command, None, warnings)?;
        run(warnings)
    }

    fn write_lock(&self, select: &Select, warnings: &mut Vec<String>) -> Result<Value> {
        let repo = repo_of(&self.env, select);
        let manifest = Manifest::load(&repo, &self.env.limits)?;
        let mut modules: Vec<&Module> = manifest.modules.iter().filter(|module| module.enabled).collect();
        modules.sort_by(|a, b| a.id.cmp(&b.id));
        let access = Access { env: &self.env, cache: &self.cache, may_fetch: !select.dry_run };
        // Nothing counts as locked: locking means looking anew.
        let checkouts = resolve::prepare(access, &modules, &HashMap::new(), warnings)?;
        let overlays = Overlays::default();
        let base = Base::of_repo(&repo)?;
        let workshop = Workshop {
            env: &self.env,
            repo: &base,
            overlays: &overlays,
            checkouts: &checkouts,
            cache: &self.cache,
        };
        let listed = parallel::map(&modules, |module| {
            let mut noticed = Vec::new();
            let files = workshop.upstream_files(module, &mut noticed)?;
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
        let mut data = path_data("lockfile", &path);
        data.insert("modules".to_owned(), lock.modules.len().into());
        Ok(data.into())
    }

    fn fetch_locked(&self, select: &Select) -> Result<Value> {
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
            let done = std::sync::atomic::AtomicUsize::new(0);
            // One repository at a time per commit; several modules often share one.
            for (module, source) in &pinned {
                self.env.go_on()?;
                self.fetch_one(module, source)?;
                let count = done.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
                self.env.progress.at("fetch", count, pinned.len());
            }
        }
        Ok(self.store_data(pinned.len()).into())
    }

    /// Where checkouts are, and how many were fetched.
    fn store_data(&self, fetched: usize) -> Map<String, Value> {
        let mut data = path_data("store", &self.env.agentpack_home.join("cache"));
        data.insert("git_modules_fetched".to_owned(), fetched.into());
        data
    }

    /// Makes one locked module available; a checkout that is not what was locked is fetched anew, once.
    fn fetch_one(&self, locked: &LockedModule, source: &Git) -> Result<()> {
        let Some(git) = &locked.resolved_source.git else { return Ok(()) };
        let module = Module {
            id: locked.id.clone(),
            kind: locked.kind,
            enabled: true,
            tags: Vec::new(),
            targets: Vec::new(),
            source: crate::manifest::Source { local_path: None, git: Some(source.clone()) },
        };
        let checkout = Checkout {
            path: resolve::checkout_path(&self.env, &git.url, &git.commit),
            source: source.clone(),
            commit: git.commit.clone(),
            expected: Expected::Locked(locked.sha256),
        };
        let checkouts = HashMap::from([(module.id.clone(), checkout.clone())]);
        let overlays = Overlays::default();
        // A git module does not ask where the repo is.
        let base = Base::of_repo(&self.env.cwd)?;
        let workshop = Workshop {
            env: &self.env,
            repo: &base,
            overlays: &overlays,
            checkouts: &checkouts,
            cache: &self.cache,
        };
        if checkout.path.is_dir() && workshop.upstream_files(&module, &mut Vec::new()).is_ok() {
            return Ok(());
        }
        resolve::fetch(&self.env, source, &git.commit, &self.cache)?;
        workshop.upstream_files(&module, &mut Vec::new()).map(drop)
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
    let record =
        |file: &TreeFile| FileRecord { path: file.path.clone(), sha256: file.sha256, bytes: file.bytes };
    Ok(LockedModule {
        id: module.id.clone(),
        kind: module.kind,
        resolved_source,
        resolved_version,
        sha256: digest_of(files),
        file_manifest: files.iter().map(record).collect(),
    })
}
