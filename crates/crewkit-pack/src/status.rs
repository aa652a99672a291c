//! How what exists differs from what should: missing, modified, and extra files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crewkit_core::Limits;
use serde_json::{Value, json};

use crate::desired::{Desired, DesiredRoot};
use crate::entry::{Entry, Observed};
use crate::error::Result;
use crate::fs::{FileKind, RealFs};
use crate::hash::Digest;
use crate::hash_cache::HashCache;
use crate::ids::ModuleIds;
use crate::managed;
use crate::owners::Owners;
use crate::path::RelPath;
use crate::plan::{RootState, is_satisfied};
use crate::scan::{self, Next};
use crate::{parallel, view};

/// How a file differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drift {
    /// Index of the root.
    pub root: usize,
    /// Where, absolute.
    pub place: PathBuf,
    /// How it differs.
    pub kind: Kind,
    /// The content that should be there.
    pub expected: Option<Digest>,
    /// The content that is there.
    pub actual: Option<Digest>,
    /// The modules it comes from.
    pub module_ids: ModuleIds,
}

/// Counts by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// Files with another content.
    pub modified: usize,
    /// Files that do not exist.
    pub missing: usize,
    /// Files nothing wants.
    pub extra: usize,
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

    /// The JSON form.
    pub fn to_json(self) -> Value {
        json!({"modified": self.modified, "missing": self.missing, "extra": self.extra})
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
    let roots: Vec<(usize, (&DesiredRoot, &RootState))> =
        desired.roots.iter().zip(states).enumerate().collect();
    let parts = parallel::map(&roots, |(index, (root, state))| -> Result<Vec<Drift>> {
        let mut drift = known_places(*index, desired, root, state);
        if extras == Extras::Scan && root.scan_extras {
            drift.extend(extra_files(*index, desired, root, state, limits, cache)?);
        }
        Ok(drift)
    });
    let mut drift = Vec::new();
    for part in parts {
        drift.append(&mut part?);
    }
    // Before the first deploy there are no roots to speak of: one list, by target and path.
    if states.iter().all(|state| state.manifest.is_none()) {
        let target = |item: &Drift| desired.roots.get(item.root).map(|root| root.target.name());
        drift.sort_by(|a, b| (target(a), &a.place).cmp(&(target(b), &b.place)));
    }
    Ok(drift)
}

fn known_places(index: usize, desired: &Desired, root: &DesiredRoot, state: &RootState) -> Vec<Drift> {
    let mut drift: Vec<(&RelPath, Drift)> = Vec::new();
    for (file, found) in root.files.iter().zip(&state.found) {
        if let Some((kind, actual)) = compare(file.entry(), found.observed) {
            let item = Drift {
                root: index,
                place: root.path.join(file.path.as_path()),
                kind,
                expected: Some(file.sha256),
                actual,
                module_ids: desired.module_ids(file),
            };
            drift.push((&file.path, item));
        }
    }
    for (path, found) in &state.undesired {
        if let Observed::Entry(found) = found.observed {
            let module_ids = state.listed(path).map(|file| file.module_ids.clone()).unwrap_or_default();
            let item = Drift {
                root: index,
                place: root.path.join(path.as_path()),
                kind: Kind::Extra,
                expected: None,
                actual: Some(found.sha256),
                module_ids,
            };
            drift.push((path, item));
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
    index: usize,
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
    let mut extras = Vec::new();
    let Some(dir) = state.at.dir() else { return Ok(Vec::new()) };
    scan::walk(dir, limits, |item| {
        let name = item.path.rsplit('/').next().unwrap_or_default();
        if item.kind == FileKind::Directory {
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
            root: index,
            place: root.path.join(item.path),
            kind: Kind::Extra,
            expected: None,
            actual: actual.map(|known| known.sha256),
            module_ids: ModuleIds::default(),
        });
        Ok(Next::Skip)
    })?;
    extras.sort_by(|a, b| a.place.as_os_str().cmp(b.place.as_os_str()));
    Ok(extras)
}

/// One difference as JSON.
pub fn to_json(item: &Drift, desired: &Desired) -> Value {
    let hash = |hash: Option<Digest>| hash.map(|hash| format!("sha256:{hash}"));
    let mut map = view::object(json!({
        "kind": item.kind.name(),
        "expected": hash(item.expected),
        "actual": hash(item.actual),
    }));
    view::put_path(&mut map, "path", &item.place);
    if let Some(root) = desired.roots.get(item.root) {
        map.insert("target".to_owned(), root.target.name().into());
        view::put_path(&mut map, "root", &root.path);
    }
    Value::Object(map)
}

/// Counts of each root that has any difference.
pub fn by_root(drift: &[Drift], desired: &Desired) -> Vec<Value> {
    let mut rows = Vec::new();
    for (index, root) in desired.roots.iter().enumerate() {
        let summary = Summary::of(drift.iter().filter(|item| item.root == index));
        if !summary.is_clean() {
            let mut map = view::object(json!({"target": root.target.name(), "summary": summary.to_json()}));
            view::put_path(&mut map, "root", &root.path);
            rows.push(Value::Object(map));
        }
    }
    rows
}
