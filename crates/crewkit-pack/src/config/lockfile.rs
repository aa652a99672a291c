//! `agentpack.lock.json`: which content each module had when it was locked.
//!
//! A lockfile decides which code reaches an agent, so it is never guessed around: one that cannot be read or holds
//! values that could lead elsewhere stops every command that would use it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crewkit_core::{Code, Limits};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::config::manifest::ModuleType;
use crate::error::{PackError, Result};
use crate::fs::hash::Digest;
use crate::fs::path::RelPath;
use crate::fs::read::{self, ReadError};
use crate::source::git::Commit;
use crate::source::tree::TreeFile;

/// The file's name in a config repo.
pub const FILE_NAME: &str = "agentpack.lock.json";

/// The one version there is.
pub const VERSION: u32 = 1;

/// The parsed file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lockfile {
    /// Version of the format.
    pub version: u32,
    /// When it was written.
    #[serde(default)]
    pub generated_at: String,
    /// The enabled modules, sorted by id.
    #[serde(default)]
    pub modules: Vec<LockedModule>,
}

/// Locked modules by their id.
pub type ById<'a> = HashMap<&'a str, &'a LockedModule>;

/// What a module was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockedModule {
    pub id: String,
    #[serde(rename = "type")]
    pub kind: ModuleType,
    /// Where it came from.
    pub resolved_source: ResolvedSource,
    /// The commit, or `local`.
    pub resolved_version: String,
    /// Hash of all of it.
    pub sha256: Digest,
    /// Its files, sorted by path.
    #[serde(default)]
    pub file_manifest: Vec<FileRecord>,
}

/// Where a module came from: exactly one member is set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResolvedSource {
    /// On this machine.
    #[serde(default)]
    pub local_path: Option<ResolvedLocal>,
    /// In a git repository.
    #[serde(default)]
    pub git: Option<ResolvedGit>,
}

/// A source on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResolvedLocal {
    /// As in the manifest.
    pub path: String,
}

/// A commit of a git repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResolvedGit {
    /// Address.
    pub url: String,
    pub commit: Commit,
    /// Directory or file in it.
    #[serde(default)]
    pub subdir: String,
}

/// A file of a module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    /// Where it is in the module.
    pub path: RelPath,
    /// Hash of its content.
    pub sha256: Digest,
    /// Length of its content.
    pub bytes: u64,
}

impl From<&TreeFile> for FileRecord {
    fn from(file: &TreeFile) -> Self {
        Self { path: file.path.clone(), sha256: file.sha256, bytes: file.bytes }
    }
}

impl Lockfile {
    /// Where the file is in `repo`.
    pub fn path_in(repo: &Path) -> PathBuf {
        repo.join(FILE_NAME)
    }

    /// Reads the file of `repo`; nothing when there is none.
    pub fn load(repo: &Path, limits: &Limits) -> Result<Option<(Self, Digest)>> {
        let path = Self::path_in(repo);
        match read::bytes(&path, limits.pack_lockfile_bytes) {
            Ok(bytes) => Ok(Some((Self::parse(&bytes, &path)?, Digest::of(&bytes)))),
            Err(ReadError::Io(error)) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(ReadError::Io(error)) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                Err(PackError::io("read", &path, error))
            }
            Err(error) => Err(invalid(&path, &error.to_string())),
        }
    }

    /// Reads the file of `repo`, which must be there.
    pub fn require(repo: &Path, limits: &Limits) -> Result<(Self, Digest)> {
        Self::load(repo, limits)?.ok_or_else(|| {
            let path = Self::path_in(repo).display().to_string();
            PackError::new(Code::LockfileMissing, format!("missing lockfile: {path}"))
                .detail("path", path)
                .hint("run `agentpack lock` or `agentpack update` to create it")
        })
    }

    /// Parses and checks `bytes`; `path` is for messages.
    pub fn parse(bytes: &[u8], path: &Path) -> Result<Self> {
        #[derive(Deserialize)]
        struct VersionOnly {
            version: u32,
        }
        let wrong = |error: serde_json::Error| invalid(path, &error.to_string());
        let VersionOnly { version } = serde_json::from_slice(bytes).map_err(wrong)?;
        if version != VERSION {
            return Err(PackError::new(
                Code::LockfileUnsupportedVersion,
                format!("unsupported lockfile version {version}: {}", path.display()),
            )
            .detail("path", path.display().to_string())
            .detail("version", version)
            .detail("supported", json!([VERSION]))
            .hint("use a newer agentpack, or write the lockfile anew with `agentpack lock`"));
        }
        let lockfile: Self = serde_json::from_slice(bytes).map_err(wrong)?;
        for module in &lockfile.modules {
            let source = &module.resolved_source;
            if source.local_path.is_some() == source.git.is_some() {
                return Err(invalid(path, &format!("module {} must have exactly one source", module.id)));
            }
            if let Some(git) = &source.git
                && let Err(error) = crate::source::git::check_url(&git.url)
                    .and_then(|()| crate::source::normalized_subdir(&git.subdir))
            {
                return Err(invalid(path, &format!("module {}: {error}", module.id)));
            }
        }
        Ok(lockfile)
    }

    /// The file's text.
    pub fn render(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }

    /// The modules by id.
    pub fn by_id(&self) -> ById<'_> {
        self.modules.iter().map(|module| (module.id.as_str(), module)).collect()
    }
}

fn invalid(path: &Path, error: &str) -> PackError {
    let shown = path.display().to_string();
    PackError::new(Code::LockfileInvalid, format!("invalid lockfile {shown}: {error}"))
        .detail("path", shown)
        .detail("error", error)
        .hint("restore it from version control, or write it anew with `agentpack lock`")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(text: &str) -> String {
        match Lockfile::parse(text.as_bytes(), Path::new("l")) {
            Ok(lockfile) => format!("ok {}", lockfile.modules.len()),
            Err(error) => format!("{} {error}", error.code()),
        }
    }

    fn git(url: &str, commit: &str, subdir: &str, file: &str) -> String {
        let sha = "0".repeat(64);
        json!({"version": 1, "generated_at": "t", "modules": [{
            "id": "skill:a", "type": "skill", "resolved_version": commit, "sha256": sha,
            "resolved_source": {"local_path": null, "git": {"url": url, "commit": commit, "subdir": subdir}},
            "file_manifest": [{"path": file, "sha256": sha, "bytes": 1}]
        }]})
        .to_string()
    }

    #[test]
    fn what_could_lead_elsewhere_is_refused() {
        let commit = "a".repeat(40);
        assert_eq!(outcome(&git("https://x/y", &commit, "sub/dir", "SKILL.md")), "ok 1");
        assert_eq!(outcome(&git("https://x/y", &"b".repeat(64), "", "a/b")), "ok 1");
        for (text, part) in [
            (git("https://x/y", "../../../../evil", "", "a"), "commit"),
            (git("https://x/y", &commit, "../..", "a"), ".."),
            (git("--upload-pack=x", &commit, "", "a"), "starts with `-`"),
            (git("ext::sh -c x", &commit, "", "a"), "transport"),
            (git("https://x/y", &commit, "", "../a"), ".."),
            ("{".to_owned(), "EOF"),
            ("{}".to_owned(), "version"),
        ] {
            let outcome = outcome(&text);
            assert!(outcome.starts_with("E_LOCKFILE_INVALID") && outcome.contains(part), "{text}: {outcome}");
        }
        assert!(outcome(r#"{"version": 2}"#).starts_with("E_LOCKFILE_UNSUPPORTED_VERSION"));
    }
}
