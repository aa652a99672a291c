//! Creating overlays: the directory, its metadata, and copies of the upstream files to change.

use std::fs;
use std::io;
use std::path::Path;

use crewkit_core::{Code, Limits};
use serde_json::json;

use super::baseline::{Baseline, Origin};
use super::{Kind, Overlay, kind_path, patches_dir, read_kind};
use crate::config::manifest::{Module, SourceRef};
use crate::env::Env;
use crate::error::{PackError, Result};
use crate::fs::atomic;
use crate::source::resolve::Checkout;
use crate::source::tree::{self, METADATA_DIR, TreeFile};
use crate::source::{LocalPlace, process};

/// Which upstream files a new overlay starts with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// All of them.
    Full,
    /// None.
    Sparse,
    /// Those it does not have yet, also when the overlay exists already.
    Materialize,
}

/// What is to be created.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    pub overlay: &'a Overlay,
    /// How it changes its module; nothing keeps what an existing one says.
    pub kind: Option<Kind>,
    /// Which files it starts with.
    pub start: Start,
    pub module: &'a Module,
    /// The module's upstream files.
    pub upstream: &'a [TreeFile],
    /// The baseline of a new overlay.
    pub baseline: Baseline,
}

/// What was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Created {
    /// Whether the overlay is new.
    pub created: bool,
    /// How it changes its module.
    pub kind: Kind,
}

/// Says what would be created without creating it.
pub(crate) fn look(plan: &Plan<'_>, limits: &Limits) -> Result<Created> {
    let dir = &plan.overlay.dir;
    if !dir.exists() {
        return Ok(Created { created: true, kind: plan.kind.unwrap_or(Kind::Dir) });
    }
    let kind = read_kind(dir, limits)?;
    if let Some(wanted) = plan.kind
        && wanted != kind
    {
        return Err(PackError::new(
            Code::ConfigInvalid,
            format!("overlay {} is of kind {}, not {}", dir.display(), kind.name(), wanted.name()),
        )
        .detail("module_id", plan.module.id.as_str())
        .detail("overlay_dir", dir.display().to_string())
        .hint("edit it as it is, or move it away and create it anew"));
    }
    Ok(Created { created: false, kind })
}

/// Creates what is missing. A new overlay appears whole or not at all.
pub(crate) fn create(plan: &Plan<'_>, limits: &Limits) -> Result<Created> {
    let created = look(plan, limits)?;
    let dir = &plan.overlay.dir;
    if created.created {
        let staged = atomic::staged_name(dir).map_err(|error| PackError::io("create overlay", dir, error))?;
        let outcome = fill(&staged, plan, created.kind).and_then(|()| {
            fs::rename(&staged, dir).map_err(|error| PackError::io("create overlay", dir, error))
        });
        if outcome.is_err() {
            let _ = fs::remove_dir_all(&staged);
        }
        outcome?;
    } else {
        fill(dir, plan, created.kind)?;
    }
    Ok(created)
}

fn fill(dir: &Path, plan: &Plan<'_>, kind: Kind) -> Result<()> {
    let metadata = dir.join(METADATA_DIR);
    let fail = |path: &Path| {
        let path = path.to_owned();
        move |error: io::Error| PackError::io("create overlay", &path, error)
    };
    fs::create_dir_all(&metadata).map_err(fail(&metadata))?;
    let is_new = !kind_path(dir).exists() && !Baseline::path_in(dir).exists();
    let copy = match (kind, plan.start) {
        (Kind::Patch, _) | (Kind::Dir, Start::Sparse) => false,
        (Kind::Dir, Start::Materialize) => true,
        (Kind::Dir, Start::Full) => is_new,
    };
    if copy {
        for file in plan.upstream.iter().filter(|file| !tree::is_metadata(&file.path)) {
            let to = dir.join(file.path.as_path());
            if to.symlink_metadata().is_ok() {
                continue;
            }
            let parent = to.parent().unwrap_or(dir);
            fs::create_dir_all(parent).map_err(fail(parent))?;
            match &file.place {
                tree::Place::Disk(from) => fs::copy(from, &to).map(drop).map_err(fail(&to))?,
                tree::Place::Memory(bytes) => fs::write(&to, bytes).map_err(fail(&to))?,
            }
        }
    }
    if kind == Kind::Patch {
        fs::create_dir_all(patches_dir(dir)).map_err(fail(dir))?;
    }
    let pretty = |value: serde_json::Value| format!("{value:#}\n").into_bytes();
    let files = [
        (Baseline::path_in(dir), plan.baseline.render()),
        (metadata.join("module_id"), format!("{}\n", plan.module.id).into_bytes()),
        (kind_path(dir), pretty(json!({"overlay_kind": kind.name()}))),
    ];
    for (path, bytes) in files {
        if !path.exists() {
            atomic::write(&path, &bytes)?;
        }
    }
    Ok(())
}

/// Where the present upstream of a module can be found again later.
pub(crate) fn origin(env: &Env, repo: &Path, module: &Module, checkout: Option<&Checkout>) -> Option<Origin> {
    match (module.source.get()?, checkout) {
        (SourceRef::Git(_), Some(checkout)) => Some(Origin::Git {
            url: checkout.source.url.clone(),
            commit: checkout.commit.clone(),
            subdir: checkout.source.subdir.clone(),
        }),
        (SourceRef::Git(_), None) => None,
        (SourceRef::Local(local), _) => {
            let LocalPlace::InRepo(path) = LocalPlace::parse(&local.path).ok()? else { return None };
            let said = |args: &[&str]| {
                let output = process::run(env, repo, args).ok().filter(|output| output.ok)?;
                Some(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
            };
            let revision = said(&["rev-parse", "--verify", "--quiet", "HEAD"]);
            let changes =
                revision.as_ref().and_then(|_| said(&["status", "--porcelain", "--", path.as_str()]));
            Some(Origin::LocalPath {
                repo_rel_path: path,
                repo_git_rev: revision,
                repo_dirty: changes.map(|changes| !changes.is_empty()),
            })
        }
    }
}
