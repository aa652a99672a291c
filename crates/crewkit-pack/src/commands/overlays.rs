//! Overlay edit, rebase and path.

use std::collections::HashMap;
use std::path::PathBuf;

use crewkit_core::Code;
use serde_json::{Value, json};

use super::{Consent, Pack, noticing};
use crate::envelope::Answer;
use crate::error::{PackError, Result};
use crate::manifest::Module;
use crate::materialize::Workshop;
use crate::overlay::baseline::Baseline;
use crate::overlay::edit::{self, Start};
use crate::overlay::rebase::Rebase;
use crate::overlay::{self, Kind, Overlay, Overlays, Whose};
use crate::project::Project;
use crate::scan::Base;
use crate::session::{Select, Session, machine_of, repo_of};
use crate::source::resolve::{self, Access, Checkout};
use crate::tree::{Layer, TreeFile};
use crate::view;

/// The layer an overlay belongs to, as flags name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OverlayScope {
    /// Every machine and project.
    #[default]
    Global,
    /// This machine.
    Machine,
    /// This project.
    Project,
}

impl OverlayScope {
    /// Its layer.
    pub const fn layer(self) -> Layer {
        match self {
            Self::Global => Layer::Global,
            Self::Machine => Layer::Machine,
            Self::Project => Layer::Project,
        }
    }

    /// The scope of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Global, Self::Machine, Self::Project].into_iter().find(|scope| scope.layer().name() == name)
    }
}

/// The overlay that is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverlayRef {
    /// The module it changes.
    pub module_id: String,
    /// Its layer.
    pub scope: OverlayScope,
}

/// How an overlay is to be created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OverlayEdit {
    /// Whether it changes whole files or lines; nothing keeps what an existing one says.
    pub patch: Option<bool>,
    /// Start without upstream files.
    pub sparse: bool,
    /// Add the upstream files it lacks.
    pub materialize: bool,
}

/// A module's upstream, as overlays are made from it.
struct Present<'a> {
    module: &'a Module,
    files: Vec<TreeFile>,
    checkout: Option<Checkout>,
}

impl Pack {
    /// Where the overlay of a module is or would be. The module need not exist.
    pub fn overlay_path(&self, select: &Select, which: &OverlayRef) -> Result<Answer> {
        let (overlay, _) = self.overlay(select, which)?;
        let mut data = view::object(json!({"module_id": which.module_id, "scope": overlay.layer.name()}));
        view::put_path(&mut data, "overlay_dir", &overlay.dir);
        Ok(Answer::new(data.into()))
    }

    /// Creates an overlay, or completes one.
    pub fn overlay_edit(
        &self,
        select: &Select,
        which: &OverlayRef,
        how: OverlayEdit,
        consent: Consent,
    ) -> Result<Answer> {
        if !select.dry_run {
            consent.require("overlay edit")?;
        }
        noticing(|warnings| {
            self.locked(select, "overlay edit", warnings, |warnings| {
                let session = self.session(select)?;
                let present = self.present(&session, &which.module_id, warnings)?;
                let (overlay, whose) = self.overlay(select, which)?;
                let origin =
                    edit::origin(&self.env, &session.repo, present.module, present.checkout.as_ref());
                let plan = edit::Plan {
                    overlay: &overlay,
                    kind: how.patch.map(|patch| if patch { Kind::Patch } else { Kind::Dir }),
                    start: match how {
                        OverlayEdit { materialize: true, .. } => Start::Materialize,
                        OverlayEdit { sparse: true, .. } => Start::Sparse,
                        _ => Start::Full,
                    },
                    module: present.module,
                    upstream: &present.files,
                    baseline: Baseline::of(&present.files, origin, self.env.timestamp()),
                };
                let limits = &self.env.limits;
                let outcome =
                    if select.dry_run { edit::look(&plan, limits)? } else { edit::create(&plan, limits)? };
                let patches = (outcome.kind == Kind::Patch).then(|| overlay::patches_dir(&overlay.dir));
                let mut data = view::object(json!({
                    "module_id": which.module_id,
                    "scope": overlay.layer.name(),
                    "overlay_kind": outcome.kind.name(),
                    "created": outcome.created && !select.dry_run,
                    "sparse": how.sparse,
                    "materialized": how.materialize,
                    "patches_dir": patches.as_ref().map(|path: &PathBuf| path.display().to_string()),
                    "project": overlay.layer == Layer::Project,
                    "machine_id": (overlay.layer == Layer::Machine).then_some(&whose.machine_id),
                    "project_id": (overlay.layer == Layer::Project).then_some(&whose.project_id),
                }));
                view::put_path(&mut data, "overlay_dir", &overlay.dir);
                Ok(data.into())
            })
        })
    }

    /// Carries an overlay over to the present upstream.
    pub fn overlay_rebase(
        &self,
        select: &Select,
        which: &OverlayRef,
        sparsify: bool,
        consent: Consent,
    ) -> Result<Answer> {
        if !select.dry_run {
            consent.require("overlay rebase")?;
        }
        noticing(|warnings| {
            self.locked(select, "overlay rebase", warnings, |warnings| {
                self.rebase(select, which, sparsify, warnings)
            })
        })
    }

    fn rebase(
        &self,
        select: &Select,
        which: &OverlayRef,
        sparsify: bool,
        warnings: &mut Vec<String>,
    ) -> Result<Value> {
        let limits = &self.env.limits;
        let session = self.session(select)?;
        let module = session.manifest.module(&which.module_id)?;
        let (overlay, _) = self.overlay(select, which)?;
        let shown = overlay.dir.display().to_string();
        let scope = overlay.layer.name();
        if !overlay.dir.is_dir() {
            return Err(PackError::new(Code::OverlayNotFound, format!("overlay does not exist: {shown}"))
                .detail("overlay_dir", shown)
                .hint(format!("run `agentpack overlay edit {} --scope {scope}` to create it", module.id)));
        }
        let baseline = Baseline::load(&overlay.dir, limits)?.ok_or_else(|| {
            let path = Baseline::path_in(&overlay.dir).display().to_string();
            PackError::new(Code::OverlayBaselineMissing, format!("overlay baseline is missing: {path}"))
                .detail("overlay_dir", shown.as_str())
                .detail("baseline_path", path)
                .hint(format!("run `agentpack overlay edit {} --scope {scope}` to write it", module.id))
        })?;
        let present = self.present(&session, &module.id, warnings)?;
        let contents = overlay::read_contents(&overlay, &module.id, limits, &self.cache)?;
        let origin = edit::origin(&self.env, &session.repo, module, present.checkout.as_ref());
        let rebase = Rebase {
            env: &self.env,
            cache: &self.cache,
            repo: &session.repo,
            module_id: &module.id,
            overlay: &overlay,
            contents: &contents,
            baseline: &baseline,
            upstream: &present.files,
            next_baseline: Baseline::of(&present.files, origin, self.env.timestamp()),
            sparsify,
            dry_run: select.dry_run,
        };
        let report = rebase.run()?.to_json();
        let mut data = view::object(json!({
            "module_id": module.id,
            "scope": scope,
            "dry_run": select.dry_run,
            "sparsify": sparsify,
        }));
        view::put_path(&mut data, "overlay_dir", &overlay.dir);
        if report["conflicts"].as_array().is_some_and(|conflicts| !conflicts.is_empty()) {
            let mut error = PackError::new(
                Code::OverlayRebaseConflict,
                format!("overlay and upstream changed the same lines of {} files", report["conflicts"].as_array().map_or(0, Vec::len)),
            )
            .detail("conflicts", report["conflicts"].clone())
            .detail("summary", report["summary"].clone())
            .hint(format!(
                "edit the files in {} until no conflict marker is left, or copy the version to keep of a file that is not text, X.overlay or X.upstream, to X; then run `agentpack overlay rebase` again",
                overlay.dir.join(".agentpack/conflicts").display()
            ));
            for (key, value) in data {
                error = error.detail(&key, value);
            }
            return Err(error);
        }
        data.insert("report".to_owned(), report);
        Ok(data.into())
    }

    fn overlay(&self, select: &Select, which: &OverlayRef) -> Result<(Overlay, Whose)> {
        let repo = repo_of(&self.env, select);
        let layer = which.scope.layer();
        let whose = Whose {
            machine_id: machine_of(&self.env, select),
            project_id: match which.scope {
                OverlayScope::Project => Project::detect(&self.env).id(&self.env),
                OverlayScope::Global | OverlayScope::Machine => String::new(),
            },
        };
        let dir = overlay::dir_of(&repo, layer, &whose, &which.module_id)
            .ok_or_else(|| PackError::bug("the upstream is not an overlay"))?;
        Ok((Overlay { layer, dir }, whose))
    }

    fn present<'a>(
        &self,
        session: &'a Session<'_>,
        module_id: &str,
        warnings: &mut Vec<String>,
    ) -> Result<Present<'a>> {
        let module = session.manifest.module(module_id)?;
        let locked = session.lock.as_ref().map(|(lock, _)| lock.by_id()).unwrap_or_default();
        let access = Access { env: &self.env, cache: &self.cache, may_fetch: !session.select.dry_run };
        let mut checkouts: HashMap<String, Checkout> =
            resolve::prepare(access, &[module], &locked, warnings)?;
        let overlays = Overlays::default();
        let base = Base::of_repo(&session.repo)?;
        let workshop = Workshop {
            env: &self.env,
            repo: &base,
            overlays: &overlays,
            checkouts: &checkouts,
            cache: &self.cache,
        };
        let files = workshop.upstream_files(module, warnings)?;
        Ok(Present { module, files, checkout: checkouts.remove(module_id) })
    }
}
