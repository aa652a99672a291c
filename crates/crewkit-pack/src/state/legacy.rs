//! The snapshots of agentpack 0.9.1, as they are on disk. They are read and pruned, never written.
//!
//! `state/snapshots/<id>.json` describes one; `<id>/state/<target>/<key>` holds a copy of every managed file and
//! manifest after it, `<id>/backup/<target>/<key>` of everything it replaced. A key is the beginning of the hash of
//! the absolute path.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::fs::entry::read_all;
use crate::fs::hash::Digest;
use crate::fs::path::RelPath;
use crate::fs::{Fs, found, open_path, stat_path};
use crate::state::managed::{self, TargetManifest};
use crate::state::snapshot::{age_key, is_id};
use crate::state::transaction::SnapshotKind;

const KEY_DIGITS: usize = 16;

/// A snapshot of 0.9.1.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct LegacySnapshot {
    /// What made it.
    pub kind: SnapshotKind,
    /// Time in nanoseconds since 1970.
    pub id: String,
    /// When.
    pub created_at: String,
    /// The targets it has files of.
    #[serde(default)]
    pub targets: Vec<String>,
    /// Everything managed since.
    #[serde(default)]
    pub managed_files: Vec<LegacyManaged>,
    /// What it changed.
    #[serde(default)]
    pub changes: Vec<LegacyChange>,
    /// The snapshot it returned to.
    #[serde(default)]
    pub rolled_back_to: Option<String>,
    /// Hash of the lockfile.
    #[serde(default)]
    pub lockfile_sha256: Option<String>,
}

/// A managed file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct LegacyManaged {
    /// The target it belongs to.
    pub target: String,
    /// Where it is, absolute.
    pub path: PathBuf,
    /// Hash of its content.
    pub sha256: Digest,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct LegacyChange {
    /// The target it belongs to.
    pub target: String,
    /// `create`, `update` or `delete`.
    pub op: String,
    /// Where, absolute.
    pub path: PathBuf,
    /// Where the old content is kept.
    #[serde(default)]
    pub backup_path: Option<PathBuf>,
    /// Hash of the old content.
    #[serde(default)]
    pub before_sha256: Option<Digest>,
    /// Hash of the new content.
    #[serde(default)]
    pub after_sha256: Option<Digest>,
}

/// Reads a snapshot.
pub fn decode(bytes: &[u8]) -> Result<LegacySnapshot, String> {
    let snapshot: LegacySnapshot = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if is_id(&snapshot.id) { Ok(snapshot) } else { Err(format!("`{}` is not an id", snapshot.id)) }
}

/// The directory of these snapshots.
#[derive(Debug)]
pub(crate) struct LegacyDir<'a, F: Fs> {
    pub(crate) fs: &'a F,
    pub(crate) path: PathBuf,
    dir: Option<F::Dir>,
}

/// Which of the two copies of a path is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Copy {
    Before,
    After,
}

impl<'a, F: Fs> LegacyDir<'a, F> {
    pub(crate) fn open(fs: &'a F, home: &Path) -> io::Result<Self> {
        let path = home.join("state/snapshots");
        let dir = found(open_path(fs, &path))?;
        Ok(Self { fs, path, dir })
    }

    pub(crate) fn dir(&self) -> Option<&F::Dir> {
        self.dir.as_ref()
    }

    /// The ids, oldest first.
    pub(crate) fn ids(&self) -> io::Result<Vec<String>> {
        let Some(dir) = &self.dir else { return Ok(Vec::new()) };
        let names = self.fs.list(dir)?.into_iter();
        let mut ids: Vec<String> = names
            .filter_map(|name| name.strip_suffix(".json").filter(|id| is_id(id)).map(str::to_owned))
            .collect();
        ids.sort_by(|a, b| age_key(a).cmp(&age_key(b)));
        Ok(ids)
    }

    pub(crate) fn read(&self, id: &str) -> io::Result<Result<LegacySnapshot, String>> {
        let dir = self.dir.as_ref().ok_or(io::ErrorKind::NotFound)?;
        Ok(decode(&read_all(self.fs, dir, &format!("{id}.json"))?))
    }

    /// Where a snapshot keeps its copy of `path`.
    pub(crate) fn copy_path(&self, id: &str, copy: Copy, target: &str, path: &Path) -> PathBuf {
        let folder = match copy {
            Copy::Before => "backup",
            Copy::After => "state",
        };
        let text = path.display().to_string();
        let text = if copy == Copy::After { text.replace('\\', "/") } else { text };
        self.path.join(id).join(folder).join(target).join(Digest::of(text.as_bytes()).short(KEY_DIGITS))
    }

    /// The manifest of a root before or after a snapshot, from the copy it keeps.
    pub(crate) fn manifest(
        &self,
        id: &str,
        copy: Copy,
        target: &str,
        root: &Path,
    ) -> io::Result<Option<TargetManifest>> {
        let at = root.join(managed::file_name(target));
        let path = self.copy_path(id, copy, target, &at);
        let Some((dir, _)) = stat_path(self.fs, &path)? else { return Ok(None) };
        let bytes =
            read_all(self.fs, &dir, path.file_name().and_then(|name| name.to_str()).unwrap_or_default())?;
        Ok(managed::parse(&bytes, target, &at).ok().map(|(manifest, _)| manifest))
    }

    /// The roots of a snapshot: directories above its files for which it, or the disk, has a manifest.
    pub(crate) fn roots(&self, snapshot: &LegacySnapshot) -> io::Result<BTreeSet<(String, PathBuf)>> {
        let files = snapshot.managed_files.iter().map(|file| (&file.target, &file.path));
        let changes = snapshot.changes.iter().map(|change| (&change.target, &change.path));
        let mut candidates = BTreeSet::new();
        for (target, path) in files.chain(changes) {
            for dir in path.ancestors().skip(1) {
                if !candidates.insert((target.clone(), dir.to_owned())) {
                    break;
                }
            }
        }
        let mut roots = BTreeSet::new();
        for (target, dir) in candidates {
            let manifest = dir.join(managed::file_name(&target));
            let copies = [Copy::After, Copy::Before];
            let mut is_root = stat_path(self.fs, &manifest)?.is_some();
            for copy in copies {
                let kept = self.copy_path(&snapshot.id, copy, &target, &manifest);
                is_root = is_root || stat_path(self.fs, &kept)?.is_some();
            }
            if is_root {
                roots.insert((target, dir));
            }
        }
        Ok(roots)
    }

    /// Every content that the snapshots in `ids` keep a copy of, by hash.
    pub(crate) fn contents(&self, ids: &[String]) -> io::Result<BTreeMap<Digest, PathBuf>> {
        let mut contents = BTreeMap::new();
        for id in ids {
            let Ok(snapshot) = self.read(id)? else { continue };
            for file in &snapshot.managed_files {
                let path = self.copy_path(id, Copy::After, &file.target, &file.path);
                contents.entry(file.sha256).or_insert(path);
            }
            for change in &snapshot.changes {
                if let Some(sha256) = change.before_sha256 {
                    // The path in the file is absolute and may be of another machine; the place follows from the key.
                    let path = self.copy_path(id, Copy::Before, &change.target, &change.path);
                    contents.entry(sha256).or_insert(path);
                }
            }
        }
        Ok(contents)
    }
}

/// The deepest root of `target` that contains `path`, and the path below it.
pub(crate) fn below_root<'r>(
    roots: impl Iterator<Item = (usize, &'r str, &'r Path)>,
    target: &str,
    path: &Path,
) -> Option<(usize, RelPath)> {
    roots
        .filter(|(_, of, _)| *of == target)
        .filter_map(|(index, _, root)| {
            let below = path.strip_prefix(root).ok()?;
            Some((root.components().count(), index, RelPath::from_path(below).ok()?))
        })
        .max_by_key(|(depth, ..)| *depth)
        .map(|(_, index, below)| (index, below))
}
