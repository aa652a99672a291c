//! Rebasing: carrying an overlay's changes over to a newer upstream.
//!
//! Everything is computed before anything is written. With conflicts, only the conflicting files are written, beside
//! the overlay and never into it, and the baseline stays: an overlay counts as rebased only when nothing is left to
//! resolve. A conflict is resolved by editing its file and running the rebase again.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crewkit_core::{Code, Limits};
use serde::{Deserialize, Serialize};

use super::baseline::{Baseline, Origin};
use super::merge3::{self, Names};
use super::{Contents, Kind, Overlay, patch, patches_dir};
use crate::env::Env;
use crate::error::{PackError, Result};
use crate::fs::atomic;
use crate::fs::hash::Digest;
use crate::fs::path::RelPath;
use crate::fs::read;
use crate::observe::hash_cache::HashCache;
use crate::source::tree::{METADATA_DIR, TreeFile};
use crate::source::{process, resolve};

/// What becomes of one file of an overlay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// It stays.
    Keep,
    /// It gets this content.
    Write(Vec<u8>),
    /// It goes, because the upstream says the same or no longer has it.
    Delete,
    /// Both sides changed the same lines; this is what is to be resolved.
    Conflict(Vec<u8>),
    /// Both sides changed it and it is not text: one of them is to be chosen.
    Choose,
}

/// The three versions of a file.
#[derive(Debug, Clone, Copy)]
pub struct Sides<'a> {
    /// The upstream the overlay was made from.
    pub base: &'a [u8],
    /// What the overlay makes of it.
    pub ours: &'a [u8],
    /// The upstream now; nothing when it is gone.
    pub upstream: Option<&'a [u8]>,
}

const NAMES: Names<'static> = Names { ours: "overlay", theirs: "upstream" };

/// Decides what becomes of a file. `sparsify` drops files that say what the upstream says.
pub fn decide(sides: Sides<'_>, sparsify: bool) -> Fate {
    let Sides { base, ours, upstream } = sides;
    let Some(upstream) = upstream else {
        return match std::str::from_utf8(ours) {
            _ if ours == base => Fate::Delete,
            Ok(ours) => Fate::Conflict(
                format!("<<<<<<< overlay\n{ours}\n=======\n>>>>>>> upstream (deleted)\n").into_bytes(),
            ),
            Err(_) => Fate::Choose,
        };
    };
    if ours == upstream {
        return if sparsify { Fate::Delete } else { Fate::Keep };
    }
    if ours == base {
        return if sparsify { Fate::Delete } else { Fate::Write(upstream.to_vec()) };
    }
    if upstream == base {
        return Fate::Keep;
    }
    match (std::str::from_utf8(base), std::str::from_utf8(ours), std::str::from_utf8(upstream)) {
        (Ok(base), Ok(ours), Ok(upstream)) => {
            let merged = merge3::merge(base, ours, upstream, NAMES);
            if merged.conflicts > 0 {
                Fate::Conflict(merged.text.into_bytes())
            } else if sparsify && merged.text == upstream {
                Fate::Delete
            } else {
                Fate::Write(merged.text.into_bytes())
            }
        }
        _ => Fate::Choose,
    }
}

/// What a rebase works on.
#[derive(Debug)]
pub struct Rebase<'a> {
    /// The surroundings.
    pub env: &'a Env,
    /// Hashes of files seen before.
    pub cache: &'a HashCache,
    /// The config repo.
    pub repo: &'a Path,
    pub module_id: &'a str,
    pub overlay: &'a Overlay,
    /// What it contains.
    pub contents: &'a Contents,
    /// What it was made from.
    pub baseline: &'a Baseline,
    /// The upstream files now.
    pub upstream: &'a [TreeFile],
    /// What the baseline becomes.
    pub next_baseline: Baseline,
    /// Whether files that say what the upstream says are dropped.
    pub sparsify: bool,
    /// Whether nothing is written.
    pub dry_run: bool,
}

/// What became of the files of an overlay.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Report {
    /// Files that both sides changed.
    pub conflicts: Vec<String>,
    /// Files that were removed from the overlay.
    pub deleted: Vec<String>,
    /// Files that stayed as they were.
    pub skipped: Vec<String>,
    /// How many there are of each.
    pub summary: Summary,
    /// Files that were written.
    pub updated: Vec<String>,
}

/// How many files of an overlay were rebased, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Summary {
    /// Files that both sides changed.
    pub conflict_files: usize,
    /// Files that were removed from the overlay.
    pub deleted_files: usize,
    /// All of them.
    pub processed_files: usize,
    /// Files that stayed as they were.
    pub skipped_files: usize,
    /// Files that were written.
    pub updated_files: usize,
}

impl Report {
    fn counted(mut self) -> Self {
        let [conflict_files, deleted_files, skipped_files, updated_files] =
            [&self.conflicts, &self.deleted, &self.skipped, &self.updated].map(Vec::len);
        let processed_files = conflict_files + deleted_files + skipped_files + updated_files;
        self.summary =
            Summary { conflict_files, deleted_files, processed_files, skipped_files, updated_files };
        self
    }
}

/// The versions a conflict was made from; a resolution counts only for the same ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ConflictOf {
    base: Digest,
    ours: Digest,
    upstream: Option<Digest>,
}

/// Files in conflict: what is written for each, by the ending of its name, and what it was made from.
type Conflicts = BTreeMap<RelPath, (Vec<(&'static str, Vec<u8>)>, ConflictOf)>;

impl Rebase<'_> {
    /// Rebases, or says what is in conflict.
    pub fn run(&self) -> Result<Report> {
        let limits = &self.env.limits;
        let open = read_conflicts(&self.conflicts_index(), limits);
        let mut report = Report::default();
        let mut writes: Vec<(PathBuf, Option<Vec<u8>>)> = Vec::new();
        let mut conflicts = Conflicts::new();
        for path in self.touched() {
            let Some(base_hash) = self.baseline.hash_of(&path) else {
                report.skipped.push(path.to_string());
                continue;
            };
            let upstream_file = self.upstream.iter().find(|file| file.path == path);
            let upstream = upstream_file.map(|file| file.read(limits.pack_text_bytes)).transpose()?;
            let base = self.base(&path, base_hash, upstream.as_deref())?;
            let ours = self.ours(&path, &base)?;
            let versions = ConflictOf {
                base: base_hash,
                ours: Digest::of(&ours),
                upstream: upstream.as_deref().map(Digest::of),
            };
            let sides = Sides { base: &base, ours: &ours, upstream: upstream.as_deref() };
            let mut fate = decide(sides, self.sparsify);
            if matches!(fate, Fate::Conflict(_) | Fate::Choose) && open.get(&path) == Some(&versions) {
                let resolved = fs::read(self.conflict_file(&path)).ok();
                // A choice is made by putting a file there; a conflict is resolved when its markers are gone.
                if let Some(resolved) = resolved.filter(|bytes| fate == Fate::Choose || is_resolved(bytes)) {
                    fate = Fate::Write(resolved);
                }
            }
            match fate {
                Fate::Keep if self.contents.kind == Kind::Dir => report.skipped.push(path.to_string()),
                Fate::Keep => self.write(&path, &ours, upstream.as_deref(), &mut writes, &mut report),
                Fate::Write(bytes) => {
                    self.write(&path, &bytes, upstream.as_deref(), &mut writes, &mut report);
                }
                Fate::Delete => {
                    report.deleted.push(path.to_string());
                    writes.push((self.file_of(&path), None));
                }
                Fate::Conflict(bytes) => {
                    report.conflicts.push(path.to_string());
                    conflicts.insert(path, (vec![("", bytes)], versions));
                }
                Fate::Choose => {
                    report.conflicts.push(path.to_string());
                    let mut sides = vec![(".overlay", ours)];
                    sides.extend(upstream.map(|bytes| (".upstream", bytes)));
                    conflicts.insert(path, (sides, versions));
                }
            }
        }
        let report = report.counted();
        if self.dry_run {
            return Ok(report);
        }
        if conflicts.is_empty() {
            self.commit(&writes)?;
        } else {
            self.record_conflicts(&conflicts, &open)?;
        }
        Ok(report)
    }

    fn touched(&self) -> Vec<RelPath> {
        match self.contents.kind {
            Kind::Dir => self.contents.files.iter().map(|file| file.path.clone()).collect(),
            Kind::Patch => self.contents.patches.keys().cloned().collect(),
        }
    }

    fn file_of(&self, path: &RelPath) -> PathBuf {
        match self.contents.kind {
            Kind::Dir => self.overlay.dir.join(path.as_path()),
            Kind::Patch => patches_dir(&self.overlay.dir).join(format!("{path}.patch")),
        }
    }

    /// Plans that the overlay makes `content` of the file.
    fn write(
        &self,
        path: &RelPath,
        content: &[u8],
        upstream: Option<&[u8]>,
        writes: &mut Vec<(PathBuf, Option<Vec<u8>>)>,
        report: &mut Report,
    ) {
        let file = self.file_of(path);
        if self.contents.kind == Kind::Dir {
            report.updated.push(path.to_string());
            writes.push((file, Some(content.to_vec())));
            return;
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let new_text = patch::make(path.as_str(), &text(upstream.unwrap_or_default()), &text(content));
        if new_text.is_empty() {
            report.deleted.push(path.to_string());
            writes.push((file, None));
        } else if fs::read(&file).is_ok_and(|existing| existing == new_text.as_bytes()) {
            report.skipped.push(path.to_string());
        } else {
            report.updated.push(path.to_string());
            writes.push((file, Some(new_text.into_bytes())));
        }
    }

    /// What the overlay makes of the file.
    fn ours(&self, path: &RelPath, base: &[u8]) -> Result<Vec<u8>> {
        let limit = self.env.limits.pack_text_bytes;
        if self.contents.kind == Kind::Dir {
            let file = self.contents.files.iter().find(|file| file.path == *path);
            return file.map_or_else(|| Ok(Vec::new()), |file| file.read(limit));
        }
        let file = self.file_of(path);
        let wrong = |what: String| {
            PackError::new(
                Code::ConfigInvalid,
                format!("the patch {} of module {}: {what}", file.display(), self.module_id),
            )
            .detail("module_id", self.module_id)
            .detail("path", file.display().to_string())
        };
        let text = read::text(&file, limit).map_err(|error| wrong(error.to_string()))?;
        let base =
            std::str::from_utf8(base).map_err(|_| wrong("the baseline is not UTF-8 text".to_owned()))?;
        let change = patch::Patch::parse(&text, path.as_str()).map_err(|error| wrong(error.to_string()))?;
        let ours = change.apply(base).map_err(|error| {
            PackError::new(
                Code::OverlayPatchApplyFailed,
                format!("the patch of {path} does not apply to its own baseline: {error}"),
            )
            .detail("module_id", self.module_id)
            .detail("patch_file", file.display().to_string())
            .detail("relpath", path.as_str())
        })?;
        Ok(ours.into_bytes())
    }

    /// The content the overlay was made from, wherever it can still be found.
    fn base(&self, path: &RelPath, expected: Digest, upstream: Option<&[u8]>) -> Result<Vec<u8>> {
        if let Some(upstream) = upstream
            && Digest::of(upstream) == expected
        {
            return Ok(upstream.to_vec());
        }
        let unsupported = |why: String| {
            PackError::new(
                Code::OverlayBaselineUnsupported,
                format!(
                    "the baseline of {path} in overlay {} is not available: {why}",
                    self.overlay.dir.display()
                ),
            )
            .detail("module_id", self.module_id)
            .detail("overlay_dir", self.overlay.dir.display().to_string())
            .detail("path", path.as_str())
            .detail("expected_sha256", expected.to_string())
        };
        let found = match &self.baseline.upstream {
            None => return Err(unsupported("it does not say where its upstream came from".to_owned())),
            Some(Origin::LocalPath { repo_git_rev: None, repo_rel_path, .. }) => {
                return Err(unsupported(
                    "the config repo had no commit when the overlay was made".to_owned(),
                )
                .detail("repo_rel_path", repo_rel_path.as_str()));
            }
            Some(Origin::LocalPath { repo_git_rev: Some(revision), repo_rel_path, .. }) => {
                self.content_in_history(revision, repo_rel_path, path).map_err(unsupported)?
            }
            Some(Origin::Git { url, commit, subdir }) => {
                let source = crate::config::manifest::Git {
                    url: url.clone(),
                    reference: commit.to_string(),
                    subdir: subdir.clone(),
                    shallow: true,
                };
                resolve::check(self.module_id, &source)?;
                let checkout = resolve::checkout_path(self.env, url, commit);
                if !checkout.is_dir() {
                    if self.dry_run {
                        return Err(unsupported(
                            "its commit is not in the cache, and a dry run fetches nothing".to_owned(),
                        ));
                    }
                    resolve::fetch(self.env, &source, commit, self.cache)?;
                }
                let subdir = crate::source::normalized_subdir(subdir).unwrap_or_default();
                let inside = checkout.join(&subdir);
                let file = if inside.is_file() { inside } else { inside.join(path.as_path()) };
                fs::read(&file).map_err(|error| unsupported(format!("{}: {error}", file.display())))?
            }
        };
        let actual = Digest::of(&found);
        if actual == expected {
            return Ok(found);
        }
        Err(unsupported("what was found is not what was recorded".to_owned())
            .detail("base_sha256", actual.to_string()))
    }

    fn content_in_history(
        &self,
        revision: &str,
        repo_rel_path: &str,
        path: &RelPath,
    ) -> Result<Vec<u8>, String> {
        let hex = matches!(revision.len(), 40 | 64) && revision.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !hex {
            return Err(format!("`{revision}` is not a commit"));
        }
        // A module may be a directory or a single file; `git show` of a directory prints a listing, not a file.
        for spec in [format!("{revision}:./{repo_rel_path}/{path}"), format!("{revision}:./{repo_rel_path}")]
        {
            let output = process::run(self.env, self.repo, &["cat-file", "blob", spec.as_str()])
                .map_err(|error| error.to_string())?;
            if output.ok {
                return Ok(output.stdout);
            }
        }
        Err(format!("commit {revision} of the config repo does not have it"))
    }

    fn conflicts_dir(&self) -> PathBuf {
        self.overlay.dir.join(METADATA_DIR).join("conflicts")
    }

    fn conflict_file(&self, path: &RelPath) -> PathBuf {
        self.conflicts_dir().join(path.as_path())
    }

    fn conflicts_index(&self) -> PathBuf {
        self.overlay.dir.join(METADATA_DIR).join("conflicts.json")
    }

    /// Writes the files first and the baseline last: cut short, the next rebase does the rest.
    fn commit(&self, writes: &[(PathBuf, Option<Vec<u8>>)]) -> Result<()> {
        for (path, content) in writes {
            match content {
                Some(bytes) => atomic::write(path, bytes)?,
                None => remove_with_empty_parents(path, &self.overlay.dir)?,
            }
        }
        atomic::write(&Baseline::path_in(&self.overlay.dir), &self.next_baseline.render())?;
        let _ = fs::remove_dir_all(self.conflicts_dir());
        let _ = fs::remove_file(self.conflicts_index());
        Ok(())
    }

    fn record_conflicts(&self, conflicts: &Conflicts, open: &BTreeMap<RelPath, ConflictOf>) -> Result<()> {
        for (path, (files, versions)) in conflicts {
            for (ending, bytes) in files {
                let file = PathBuf::from(format!("{}{ending}", self.conflict_file(path).display()));
                // Work on a resolution that is under way is not overwritten.
                if open.get(path) != Some(versions) || !file.exists() {
                    atomic::write(&file, bytes)?;
                }
            }
        }
        let mut index: BTreeMap<&RelPath, &ConflictOf> =
            open.iter().filter(|(path, _)| self.conflict_file(path).exists()).collect();
        index.extend(conflicts.iter().map(|(path, (_, versions))| (path, versions)));
        let bytes = serde_json::to_vec_pretty(&index).map_err(|error| PackError::bug(error.to_string()))?;
        atomic::write(&self.conflicts_index(), &bytes)
    }
}

fn is_resolved(bytes: &[u8]) -> bool {
    !merge3::has_markers(&String::from_utf8_lossy(bytes))
}

fn read_conflicts(path: &Path, limits: &Limits) -> BTreeMap<RelPath, ConflictOf> {
    let bytes = read::bytes(path, limits.pack_yaml_bytes).unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or_default()
}

fn remove_with_empty_parents(path: &Path, stop: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(PackError::io("remove", path, error));
        }
        _ => {}
    }
    for parent in path.ancestors().skip(1).take_while(|parent| *parent != stop) {
        if fs::remove_dir(parent).is_err() {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fate_of_a_file_follows_from_its_three_versions() {
        let fate = |base: &str, ours: &str, upstream: Option<&str>, sparsify| {
            let sides =
                Sides { base: base.as_bytes(), ours: ours.as_bytes(), upstream: upstream.map(str::as_bytes) };
            match decide(sides, sparsify) {
                Fate::Keep => "keep".to_owned(),
                Fate::Write(bytes) => format!("write {}", String::from_utf8(bytes).unwrap()),
                Fate::Delete => "delete".to_owned(),
                Fate::Conflict(_) => "conflict".to_owned(),
                Fate::Choose => "choose".to_owned(),
            }
        };
        for (base, ours, upstream, sparsify, want) in [
            ("a\n", "a\n", Some("b\n"), false, "write b\n"),
            ("a\n", "a\n", Some("b\n"), true, "delete"),
            ("a\n", "a\n", Some("a\n"), false, "keep"),
            ("a\n", "a\n", Some("a\n"), true, "delete"),
            ("a\n", "a\n", None, false, "delete"),
            ("a\n", "x\n", Some("a\n"), true, "keep"),
            ("a\n", "x\n", Some("x\n"), false, "keep"),
            ("a\n", "x\n", Some("x\n"), true, "delete"),
            ("a\nb\nc\n", "A\nb\nc\n", Some("a\nb\nC\n"), false, "write A\nb\nC\n"),
            ("a\n", "x\n", Some("y\n"), false, "conflict"),
            ("a\n", "x\n", None, false, "conflict"),
        ] {
            assert_eq!(
                fate(base, ours, upstream, sparsify),
                want,
                "{base:?} {ours:?} {upstream:?} {sparsify}"
            );
        }
    }
}
