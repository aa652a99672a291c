//! Overlay edit, rebase and path.

use std::collections::HashMap;

use crewkit_core::Code;
use serde_json::json;

use super::answers::{OverlayEdited, OverlayPath, OverlayRebased};
use super::{Consent, Pack};
use crate::commands::session::{Select, Session, machine_of, repo_of};
use crate::config::manifest::Module;
use crate::config::project::Project;
use crate::envelope::Answer;
use crate::error::{PackError, Result};
use crate::fs::scan::Base;
use crate::overlay::baseline::Baseline;
use crate::overlay::edit::{self, Start};
use crate::overlay::rebase::{Rebase, Report};
use crate::overlay::{self, Kind, Overlay, OverlayOwner, OverlayScope};
use crate::source::materialize::Materializer;
use crate::source::resolve::{self, Access, Checkout};
use crate::source::tree::TreeFile;

/// The overlay that is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverlayRef {
    /// The module it changes.
    pub module_id: String,
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
    pub fn overlay_path(&self, select: &Select, which: &OverlayRef) -> Result<Answer<OverlayPath>> {
        let (overlay, _) = self.overlay(select, which);
        let (module_id, scope) = (which.module_id.clone(), overlay.scope.name());
        let data = OverlayPath { module_id, overlay_dir: overlay.dir, scope };
        Ok(Answer { data, warnings: Vec::new() })
    }

    /// Creates an overlay, or completes one.
    pub fn overlay_edit(
        &self,
        select: &Select,
        which: &OverlayRef,
        how: OverlayEdit,
        consent: Consent,
    ) -> Result<Answer<OverlayEdited>> {
        self.change(select, "overlay edit", consent, |warnings| {
            let session = self.session(select)?;
            let present = self.present(&session, &which.module_id, warnings)?;
            let (overlay, owner) = self.overlay(select, which);
            let origin = edit::origin(&self.env, &session.repo, present.module, present.checkout.as_ref());
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
            let scope = overlay.scope;
            Ok(OverlayEdited {
                created: outcome.created && !select.dry_run,
                machine_id: (scope == OverlayScope::Machine).then_some(owner.machine_id),
                materialized: how.materialize,
                module_id: which.module_id.clone(),
                overlay_dir: overlay.dir,
                overlay_kind: outcome.kind.name(),
                patches_dir: patches.map(|path| path.display().to_string()),
                project: scope == OverlayScope::Project,
                project_id: (scope == OverlayScope::Project).then_some(owner.project_id),
                scope: scope.name(),
                sparse: how.sparse,
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
    ) -> Result<Answer<OverlayRebased>> {
        self.change(select, "overlay rebase", consent, |warnings| {
            self.rebase(select, which, sparsify, warnings)
        })
    }

    fn rebase(
        &self,
        select: &Select,
        which: &OverlayRef,
        sparsify: bool,
        warnings: &mut Vec<String>,
    ) -> Result<OverlayRebased> {
        let limits = &self.env.limits;
        let session = self.session(select)?;
        let module = session.manifest.module(&which.module_id)?;
        let (overlay, _) = self.overlay(select, which);
        let shown = overlay.dir.display().to_string();
        let scope = overlay.scope.name();
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
        let rebased = OverlayRebased {
            dry_run: select.dry_run,
            module_id: module.id.clone(),
            overlay_dir: overlay.dir.clone(),
            report: rebase.run()?,
            scope,
            sparsify,
        };
        if rebased.report.conflicts.is_empty() {
            return Ok(rebased);
        }
        let OverlayRebased { dry_run, module_id, report: Report { conflicts, summary, .. }, .. } = rebased;
        Err(PackError::new(
            Code::OverlayRebaseConflict,
            format!("overlay and upstream changed the same lines of {} files", conflicts.len()),
        )
        .detail("conflicts", conflicts)
        .detail("summary", json!(summary))
        .detail("dry_run", dry_run)
        .detail("module_id", module_id)
        .detail("overlay_dir_posix", shown.replace('\\', "/"))
        .detail("overlay_dir", shown)
        .detail("scope", scope)
        .detail("sparsify", sparsify)
        .hint(format!(
            "edit the files in {} until no conflict marker is left, or copy the version to keep of a file that is not text, X.overlay or X.upstream, to X; then run `agentpack overlay rebase` again",
            overlay.dir.join(".agentpack/conflicts").display()
        )))
    }

    fn overlay(&self, select: &Select, which: &OverlayRef) -> (Overlay, OverlayOwner) {
        let repo = repo_of(&self.env, select);
        let scope = which.scope;
        let owner = OverlayOwner {
            machine_id: machine_of(&self.env, select),
            project_id: match scope {
                OverlayScope::Project => Project::detect(&self.env).id(&self.env),
                OverlayScope::Global | OverlayScope::Machine => String::new(),
            },
        };
        let dir = overlay::dir_of(&repo, scope, &owner, &which.module_id);
        (Overlay { scope, dir }, owner)
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
        let base = Base::of_repo(&session.repo)?;
        let materializer =
            Materializer { env: &self.env, repo: &base, checkouts: &checkouts, cache: &self.cache };
        let files = materializer.upstream_files(module, warnings)?;
        Ok(Present { module, files, checkout: checkouts.remove(module_id) })
    }
}
