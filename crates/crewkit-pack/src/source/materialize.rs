//! The files of each module with its overlays applied: read once per command, whatever number of targets use them.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::client::findings::some_of;
use crate::config::ids::ModuleIds;
use crate::config::manifest::{Module, SourceRef};
use crate::env::Env;
use crate::error::{PackError, Result};
use crate::fs::scan::Base;
use crate::observe::hash_cache::HashCache;
use crate::overlay::{self, Overlays, baseline};
use crate::parallel;
use crate::source::module::{self, BrokenRule};
use crate::source::resolve::Checkout;
use crate::source::tree::{self, Links, TreeFile};
use crate::source::{self, LocalPlace, Upstream, resolve};

/// A module and its files.
#[derive(Debug, Clone)]
pub struct Material {
    /// The module's id.
    pub id: String,
    /// The same, as the list that manifests show with each of its files.
    pub ids: ModuleIds,
    /// What the config file says about it.
    pub module: Module,
    /// Its files, sorted by path.
    pub files: Vec<Arc<TreeFile>>,
}

/// A module that was read.
struct Read {
    material: Material,
    warnings: Vec<String>,
    broken_rules: Vec<BrokenRule>,
}

/// What materialising needs to know.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Materializer<'a> {
    /// The surroundings.
    pub env: &'a Env,
    /// The config repo.
    pub(crate) repo: &'a Base<'a>,
    /// The checkouts of git modules.
    pub checkouts: &'a HashMap<String, Checkout>,
    /// Hashes of files seen before.
    pub cache: &'a HashCache,
}

impl Materializer<'_> {
    /// All of `modules`, in their order; the first failure by that order wins.
    pub(crate) fn materialize(
        &self,
        modules: &[&Module],
        overlays: &Overlays,
        warnings: &mut Vec<String>,
    ) -> Result<Vec<Material>> {
        let done = AtomicUsize::new(0);
        let results = parallel::map(modules, |module| {
            let result = self.env.check_cancelled().and_then(|()| self.one(module, overlays));
            let count = done.fetch_add(1, Ordering::Relaxed) + 1;
            if count.is_multiple_of(64) {
                self.env.progress.at("read modules", count, modules.len());
            }
            result
        });
        let mut materials = Vec::with_capacity(results.len());
        let mut broken: BTreeMap<BrokenRule, Vec<String>> = BTreeMap::new();
        for result in results {
            let Read { material, warnings: mut noticed, broken_rules } = result?;
            warnings.append(&mut noticed);
            for rule in broken_rules {
                broken.entry(rule).or_default().push(material.id.clone());
            }
            materials.push(material);
        }
        warnings.extend(broken.iter().map(|(rule, ids)| rule.message() + &some_of(ids)));
        Ok(materials)
    }

    fn one(&self, module: &Module, overlays: &Overlays) -> Result<Read> {
        let limits = &self.env.limits;
        let mut warnings = Vec::new();
        let upstream = self.upstream_files(module, &mut warnings)?;
        let overlays = overlays.of(&module.id);
        let files = if overlays.is_empty() {
            upstream.into_iter().filter(|file| !tree::is_metadata(&file.path)).collect()
        } else {
            let mut layered: BTreeMap<_, _> = upstream
                .iter()
                .filter(|file| !tree::is_metadata(&file.path))
                .map(|file| (file.path.clone(), file.clone()))
                .collect();
            for overlay in &overlays {
                let touched = overlay::apply(&mut layered, overlay, module, limits, self.cache)?;
                warnings.extend(baseline::drift_warnings(overlay, &touched, &upstream, &module.id, limits)?);
            }
            layered.into_values().collect::<Vec<_>>()
        };
        let broken_rules =
            module::check(module, &files, limits, self.cache).map_err(|error| named(error, module))?;
        let files = files.into_iter().map(Arc::new).collect();
        let material = Material {
            id: module.id.clone(),
            ids: [module.id.as_str()].into_iter().collect(),
            module: module.clone(),
            files,
        };
        Ok(Read { material, warnings, broken_rules })
    }

    /// The files of a module's source, verified where there is something to verify against.
    pub(crate) fn upstream_files(
        &self,
        module: &Module,
        warnings: &mut Vec<String>,
    ) -> Result<Vec<TreeFile>> {
        let checkout = self.checkouts.get(&module.id);
        let (opened, base) = self.open_upstream(module, warnings)?;
        let limits = &self.env.limits;
        let files = tree::list(opened, &base, None, Links::Follow, limits, self.cache)
            .map_err(|error| named(error, module))?;
        if let Some(checkout) = checkout {
            resolve::verify(module, checkout, &files)?;
        }
        Ok(files)
    }

    fn open_upstream(&self, module: &Module, warnings: &mut Vec<String>) -> Result<(Upstream, PathBuf)> {
        match module.source.get() {
            Some(SourceRef::Local(local)) => {
                if let Ok(LocalPlace::Absolute(path)) = LocalPlace::parse(&local.path) {
                    warnings.push(format!(
                        "module {} reads from the absolute path {}, which other machines may not have",
                        module.id,
                        path.display()
                    ));
                }
                source::open_local(module, local, self.repo)
            }
            Some(SourceRef::Git(_)) => match self.checkouts.get(&module.id) {
                Some(checkout) => source::open_in_checkout(module, &checkout.source, &checkout.path),
                None => Err(PackError::bug(format!("module {} has no checkout", module.id))),
            },
            None => Err(PackError::bug(format!("module {} has no single source", module.id))),
        }
    }
}

/// The same error, saying which module it is about.
fn named(error: PackError, module: &Module) -> PackError {
    error.detail("module_id", module.id.as_str())
}
