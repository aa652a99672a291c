//! How what exists differs from what should: missing, modified, and extra files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crewkit_core::Limits;
use serde::Serialize;

use crate::commands::answers::{members, prefixed};
use crate::config::ids::ModuleIds;
use crate::desired::{Desired, DesiredRoot};
use crate::error::Result;
use crate::fs::entry::{Entry, Observed};
use crate::fs::hash::Digest;
use crate::fs::path::RelPath;
use crate::fs::scan::{self, Next};
use crate::fs::{FileKind, RealFs};
use crate::observe::RootState;
use crate::observe::hash_cache::HashCache;
use crate::observe::owners::Owners;
use crate::parallel;
use crate::plan::is_satisfied;
use crate::state::managed;

/// How a file differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// It exists with another content.
    Modified,
    /// It does not exist.
    Missing,
    /// It exists, but nothing says it should.
    Extra,
}

impl Kind {
    /// Every kind, by its name in flags and answers.
    pub const ALL: [Self; 3] = [Self::Missing, Self::Modified, Self::Extra];

    /// The name in flags and answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Modified => "modified",
            Self::Missing => "missing",
            Self::Extra => "extra",
        }
    }

    /// The kind of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Drift {
    /// The content that is there.
    #[serde(serialize_with = "prefixed")]
    pub actual: Option<Digest>,
    /// The content that should be there.
    #[serde(serialize_with = "prefixed")]
    pub expected: Option<Digest>,
    /// How it differs.
    pub kind: Kind,
    /// Where, absolute.
    #[serde(flatten, serialize_with = "members::path")]
    pub path: PathBuf,
    /// The root it lies below.
    #[serde(flatten, serialize_with = "members::root")]
    pub root: Arc<Path>,
    /// The target the root belongs to.
    pub target: &'static str,
    /// The modules it comes from.
    #[serde(skip)]
    pub module_ids: ModuleIds,
}

/// Counts by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Summary {
    /// Files nothing wants.
    pub extra: usize,
    /// Files that do not exist.
    pub missing: usize,
    /// Files with another content.
    pub modified: usize,
}

/// The differences of one root, counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RootSummary {
    #[serde(flatten, serialize_with = "members::root")]
    pub root: PathBuf,
    /// How many there are.
    pub summary: Summary,
    /// The target it belongs to.
    pub target: &'static str,
}

impl Summary {
    /// Counts.
    pub fn of<'a>(drift: impl IntoIterator<Item = &'a Drift>) -> Self {
        let mut summary = Self::default();
        for item in drift {
            match item.kind {
                Kind::Modified => summary.modified += 1,
                Kind::Missing => summary.missing += 1,
                Kind::Extra => summary.extra += 1,
            }
        }
        summary
    }

    /// Whether there is no difference at all.
    pub fn is_clean(self) -> bool {
        self == Self::default()
    }
}

/// Whether files nobody manages are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extras {
    /// In the roots that are for our kind of file alone.
    Scan,
    /// Not at all.
    Skip,
}

/// All differences: root by root, files that are or were managed by path, then files nobody manages.
pub(crate) fn drift(
    desired: &Desired,
    states: &[RootState],
    extras: Extras,
    limits: &Limits,
    cache: &HashCache,
) -> Result<Vec<Drift>> {
    let roots: Vec<(&DesiredRoot, &RootState)> = desired.roots.iter().zip(states).collect();
    let parts = parallel::map(&roots, |(root, state)| -> Result<Vec<Drift>> {
        let mut drift = known_places(desired, root, state);
        if extras == Extras::Scan && root.scan_extras {
            drift.extend(extra_files(desired, root, state, limits, cache)?);
        }
        Ok(drift)
    });
    let mut drift = Vec::new();
    for part in parts {
        drift.append(&mut part?);
    }
    // Before the first deploy there are no roots to speak of: one list, by target and path.
    if states.iter().all(|state| state.manifest.is_none()) {
        drift.sort_by(|a, b| (a.target, &a.path).cmp(&(b.target, &b.path)));
    }
    Ok(drift)
}

fn known_places(desired: &Desired, root: &DesiredRoot, state: &RootState) -> Vec<Drift> {
    let shown: Arc<Path> = root.path.as_path().into();
    let item = |path: &RelPath, kind, expected, actual, module_ids| Drift {
        actual,
        expected,
        kind,
        path: root.path.join(path.as_path()),
        root: Arc::clone(&shown),
        target: root.target.name(),
        module_ids,
    };
    let mut drift: Vec<(&RelPath, Drift)> = Vec::new();
    for (file, found) in root.files.iter().zip(&state.found) {
        if let Some((kind, actual)) = compare(file.entry(), found.observed) {
            let ids = desired.module_ids(file);
            drift.push((&file.path, item(&file.path, kind, Some(file.sha256), actual, ids)));
        }
    }
    for (path, found) in &state.undesired {
        if let Observed::Entry(found) = found.observed {
            let ids = state.listed(path).map(|file| file.module_ids.clone()).unwrap_or_default();
            drift.push((path, item(path, Kind::Extra, None, Some(found.sha256), ids)));
        }
    }
    drift.sort_by(|a, b| a.0.cmp(b.0));
    drift.into_iter().map(|(_, item)| item).collect()
}

fn compare(wanted: Entry, found: Observed) -> Option<(Kind, Option<Digest>)> {
    match found {
        Observed::Absent => Some((Kind::Missing, None)),
        Observed::Entry(found) if is_satisfied(wanted, found) => None,
        Observed::Entry(found) => Some((Kind::Modified, Some(found.sha256))),
        Observed::Directory | Observed::Special => Some((Kind::Modified, None)),
    }
}

fn extra_files(
    desired: &Desired,
    root: &DesiredRoot,
    state: &RootState,
    limits: &Limits,
    cache: &HashCache,
) -> Result<Vec<Drift>> {
    let wanted = |path: &str| root.files.binary_search_by(|file| file.path.as_str().cmp(path)).is_ok();
    let managed = |path: &str| RelPath::new(path).is_ok_and(|path| state.listed(&path).is_some());
    let fs = RealFs::default();
    let mut owners = Owners::new(&fs);
    // A root may contain another one, which reports for itself.
    let inner: BTreeSet<&Path> = desired
        .roots
        .iter()
        .filter(|other| other.path != root.path)
        .filter_map(|other| other.path.strip_prefix(&root.path).ok())
        .collect();
    let shown: Arc<Path> = root.path.as_path().into();
    let mut extras = Vec::new();
    let Some(dir) = state.at.dir() else { return Ok(Vec::new()) };
    scan::walk(&fs, dir.handle(), dir.path(), limits, None, |item| {
        let name = item.path.rsplit('/').next().unwrap_or_default();
        if item.kind == FileKind::Directory && item.utf8 {
            let foreign = matches!(name, ".git" | ".agentpack") || inner.contains(Path::new(item.path));
            return Ok(if foreign { Next::Skip } else { Next::Descend });
        }
        if managed::is_manifest_name(name) || wanted(item.path) || managed(item.path) {
            return Ok(Next::Skip);
        }
        if owners.any(&dir.real().join(item.path), |_| true)? {
            return Ok(Next::Skip);
        }
        // An unreadable file of the user's is still an extra one, and no reason to fail.
        let actual = match item.kind {
            FileKind::File => item.stat().and_then(|stat| cache.hash(&stat, || item.open())).ok(),
            FileKind::Directory | FileKind::Symlink | FileKind::Special => None,
        };
        extras.push(Drift {
            actual: actual.map(|known| known.sha256),
            expected: None,
            kind: Kind::Extra,
            path: root.path.join(item.path),
            root: Arc::clone(&shown),
            target: root.target.name(),
            module_ids: ModuleIds::default(),
        });
        Ok(Next::Skip)
    })?;
    extras.sort_by(|a, b| a.path.as_os_str().cmp(b.path.as_os_str()));
    Ok(extras)
}

/// Counts of each root that has any difference.
pub(crate) fn by_root(drift: &[Drift], desired: &Desired) -> Vec<RootSummary> {
    let count = |root: &DesiredRoot| {
        let is_here = |item: &&Drift| item.target == root.target.name() && *item.root == *root.path;
        let summary = Summary::of(drift.iter().filter(is_here));
        RootSummary { root: root.path.clone(), summary, target: root.target.name() }
    };
    desired.roots.iter().map(count).filter(|row| !row.summary.is_clean()).collect()
}
