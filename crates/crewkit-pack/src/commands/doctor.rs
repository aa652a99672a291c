//! Whether the places to deploy to are usable, and whether bookkeeping would end up in somebody's commits.
//!
//! Looking writes nothing, not even a probe file.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::commands::answers::members;
use crate::desired::target::TargetKind;
use crate::env::Env;
use crate::error::{PackError, Result};
use crate::fs::atomic;
use crate::fs::read;
use crate::source::process;

/// The line that keeps target manifests out of commits.
pub(crate) const IGNORE_LINE: &str = ".agentpack.manifest*.json";

/// What was found about one root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RootCheck {
    pub exists: bool,
    /// What is wrong.
    pub issues: Vec<&'static str>,
    /// The directory.
    #[serde(flatten, serialize_with = "members::root")]
    pub root: PathBuf,
    /// Whether files nobody manages are reported there.
    pub scan_extras: bool,
    /// What to do about it.
    pub suggestion: Option<String>,
    pub target: &'static str,
    /// Whether files can be made in it.
    pub writable: bool,
}

/// Looks at one root.
pub(crate) fn check_root(target: TargetKind, root: &Path, scan_extras: bool) -> RootCheck {
    let shown = root.display();
    let (exists, writable, issue, suggestion) = match fs::metadata(root) {
        Ok(metadata) if !metadata.is_dir() => {
            (true, false, Some("not_a_directory"), Some(format!("remove or rename the file: {shown}")))
        }
        Ok(_) if is_writable(root) => (true, true, None, None),
        Ok(_) => (true, false, Some("not_writable"), Some(format!("fix the permissions of {shown}"))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => (
            false,
            false,
            Some("missing"),
            Some(format!("create directory: mkdir -p {}", quoted(&shown.to_string()))),
        ),
        Err(_) => (false, false, Some("not_writable"), Some(format!("fix the permissions of {shown}"))),
    };
    let issues = issue.into_iter().collect();
    let (root, target) = (root.to_owned(), target.name());
    RootCheck { exists, issues, root, scan_extras, suggestion, target, writable }
}

#[cfg(unix)]
fn is_writable(dir: &Path) -> bool {
    use rustix::fs::{Access, AtFlags, CWD, accessat};
    accessat(CWD, dir, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS).is_ok()
}

#[cfg(not(unix))]
fn is_writable(dir: &Path) -> bool {
    fs::metadata(dir).is_ok_and(|metadata| !metadata.permissions().readonly())
}

/// The oldest git that everything works with.
const OLDEST_GIT: (u32, u32) = (2, 34);

/// A warning when the installed git is older than what crewkit needs. A git that is missing is told by what needs it.
pub(crate) fn old_git(env: &Env, dir: &Path) -> Option<String> {
    let output = process::run(env, dir, &["--version"]).ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.trim().strip_prefix("git version ")?;
    let (major, minor) = OLDEST_GIT;
    (git_version(version)? < OLDEST_GIT).then(|| {
        format!("git {version} is older than {major}.{minor}, which crewkit needs; install a newer git")
    })
}

/// The first two numbers of `2.39.5 (Apple Git-154)`.
fn git_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// A git repository in which target manifests are not ignored.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NotIgnored {
    /// The top of its work tree.
    pub repo: PathBuf,
    /// The root with the manifest.
    pub root: PathBuf,
}

/// The repositories whose commits would catch target manifests.
pub(crate) fn not_ignored(env: &Env, checks: &[RootCheck]) -> Vec<NotIgnored> {
    let mut found = BTreeSet::new();
    for check in checks.iter().filter(|check| check.exists && check.issues.is_empty()) {
        let top = check.root.ancestors().find(|dir| dir.join(".git").exists());
        let Some(repo) = top else { continue };
        let name = crate::state::managed::file_name(check.target);
        let path = check.root.join(name);
        let args = [std::ffi::OsStr::new("check-ignore"), "-q".as_ref(), "--".as_ref(), path.as_os_str()];
        // 0: ignored; 1: not ignored; anything else means git cannot tell.
        if process::run(env, repo, &args).is_ok_and(|output| output.code == Some(1)) {
            found.insert(NotIgnored { repo: repo.to_owned(), root: check.root.clone() });
        }
    }
    found.into_iter().collect()
}

impl NotIgnored {
    /// What to tell.
    pub(crate) fn warning(&self) -> String {
        format!(
            "target root is in a git repo and `{IGNORE_LINE}` is not ignored: root={} repo={}; consider adding it to .gitignore (or run `agentpack doctor --fix`)",
            self.root.display(),
            self.repo.display()
        )
    }
}

/// What a repair would write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct IgnoreFix {
    /// The file with the names git ignores.
    #[serde(flatten, serialize_with = "members::gitignore_path")]
    pub gitignore_path: PathBuf,
    /// The repository.
    #[serde(flatten, serialize_with = "members::repo_root")]
    pub repo_root: PathBuf,
    /// Whether the file was written.
    pub updated: bool,
    /// The text to write, if it has to change.
    #[serde(skip)]
    text: Option<String>,
}

/// Works out the repair of each repository.
pub(crate) fn plan_fixes(problems: &[NotIgnored]) -> Result<Vec<IgnoreFix>> {
    let repos: BTreeSet<&Path> = problems.iter().map(|problem| problem.repo.as_path()).collect();
    repos.into_iter().map(|repo| plan_ignore_lines(repo, &[IGNORE_LINE])).collect()
}

/// Works out what `.gitignore` of `repo` must say to contain `lines`.
pub(crate) fn plan_ignore_lines(repo: &Path, lines: &[&str]) -> Result<IgnoreFix> {
    let path = repo.join(".gitignore");
    let mut text = match read::text(&path, 1 << 20) {
        Ok(text) => text,
        Err(read::ReadError::Io(error)) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(read::ReadError::Io(error)) => return Err(PackError::io("read", &path, error)),
        Err(error) => {
            return Err(PackError::new(
                crewkit_core::Code::ConfigInvalid,
                format!("{}: {error}", path.display()),
            )
            .detail("path", path.display().to_string()));
        }
    };
    let mut changed = false;
    for line in lines {
        if text.lines().any(|existing| existing.trim() == *line) {
            continue;
        }
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(line);
        text.push('\n');
        changed = true;
    }
    let text = changed.then_some(text);
    Ok(IgnoreFix { gitignore_path: path, repo_root: repo.to_owned(), updated: false, text })
}

impl IgnoreFix {
    /// Whether anything has to be written.
    pub fn is_needed(&self) -> bool {
        self.text.is_some()
    }

    /// Writes it.
    pub fn apply(&mut self) -> Result<()> {
        if let Some(text) = &self.text {
            atomic::write(&self.gitignore_path, text.as_bytes())?;
            self.updated = true;
        }
        Ok(())
    }
}

/// A word that a shell takes as one.
pub(crate) fn quoted(word: &str) -> String {
    let plain =
        !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || "_-./:@+~=".contains(c));
    if plain { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}
