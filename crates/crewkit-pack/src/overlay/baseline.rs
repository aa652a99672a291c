//! Which upstream an overlay was made from, and whether that has moved on since.

use std::path::{Path, PathBuf};

use crewkit_core::{Code, Limits};
use serde::{Deserialize, Serialize};

use super::Overlay;
use crate::config::lockfile::FileRecord;
use crate::error::{PackError, Result};
use crate::fs::hash::Digest;
use crate::fs::path::RelPath;
use crate::fs::read::{self, ReadError};
use crate::source::git::Commit;
use crate::source::tree::{METADATA_DIR, TreeFile, digest_of};

/// The content of `baseline.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Baseline {
    /// Version of the format; 1 had no `upstream`.
    pub version: u32,
    /// When it was written.
    #[serde(default)]
    pub created_at: String,
    /// Hash of all upstream files.
    pub upstream_sha256: Digest,
    /// The upstream files, sorted by path.
    #[serde(default)]
    pub file_manifest: Vec<FileRecord>,
    /// Where their content can be found again.
    #[serde(default)]
    pub upstream: Option<Origin>,
}

/// Where the content of a baseline can be found again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Origin {
    /// In the history of the config repo.
    LocalPath {
        repo_rel_path: String,
        /// Commit of the repo; nothing when it has none.
        repo_git_rev: Option<String>,
        /// Whether the path had uncommitted changes.
        repo_dirty: Option<bool>,
    },
    /// At a commit of a git source.
    Git {
        /// Address.
        url: String,
        commit: Commit,
        /// Directory or file in it.
        #[serde(default)]
        subdir: String,
    },
}

impl Baseline {
    /// The baseline of these upstream files.
    pub fn of(files: &[TreeFile], upstream: Option<Origin>, created_at: String) -> Self {
        Self {
            version: 2,
            created_at,
            upstream_sha256: digest_of(files),
            file_manifest: files.iter().map(FileRecord::from).collect(),
            upstream,
        }
    }

    /// Where the baseline of an overlay is.
    pub fn path_in(overlay: &Path) -> PathBuf {
        overlay.join(METADATA_DIR).join("baseline.json")
    }

    /// The baseline of an overlay; nothing when it has none.
    pub fn load(overlay: &Path, limits: &Limits) -> Result<Option<Self>> {
        let path = Self::path_in(overlay);
        let invalid = |error: String| {
            PackError::new(
                Code::ConfigInvalid,
                format!("invalid overlay baseline {}: {error}", path.display()),
            )
            .detail("path", path.display().to_string())
            .detail("error", error)
        };
        match read::bytes(&path, limits.pack_lockfile_bytes) {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| invalid(error.to_string())),
            Err(ReadError::Io(error)) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(ReadError::Io(error)) => Err(PackError::io("read", &path, error)),
            Err(error) => Err(invalid(error.to_string())),
        }
    }

    /// The file's text.
    pub fn render(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }

    /// The hash `path` had.
    pub fn hash_of(&self, path: &RelPath) -> Option<Digest> {
        self.file_manifest.iter().find(|file| file.path == *path).map(|file| file.sha256)
    }
}

/// What to tell about an overlay whose upstream has moved on since it was made.
pub(crate) fn drift_warnings(
    overlay: &Overlay,
    touched: &[RelPath],
    upstream: &[TreeFile],
    module_id: &str,
    limits: &Limits,
) -> Result<Vec<String>> {
    let Some(baseline) = Baseline::load(&overlay.dir, limits)? else { return Ok(Vec::new()) };
    let scope = overlay.scope.name();
    let now = |path: &RelPath| upstream.iter().find(|file| file.path == *path).map(|file| file.sha256);
    let mut warnings = Vec::new();
    for path in touched {
        let Some(was) = baseline.hash_of(path) else { continue };
        match now(path) {
            Some(is) if is == was => {}
            Some(_) => warnings.push(format!(
                "overlay drift ({module_id}, {scope}): upstream changed {path} since the overlay was made; run `agentpack overlay rebase`"
            )),
            None => warnings.push(format!(
                "overlay drift ({module_id}, {scope}): upstream removed {path} since the overlay was made; run `agentpack overlay rebase`"
            )),
        }
    }
    if warnings.is_empty() && digest_of(upstream) != baseline.upstream_sha256 {
        warnings.push(format!(
            "overlay drift ({module_id}, {scope}): upstream changed since the overlay was made; run `agentpack overlay rebase`"
        ));
    }
    Ok(warnings)
}
