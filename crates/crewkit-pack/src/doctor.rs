//! Whether the places to deploy to are usable, and whether bookkeeping would end up in somebody's commits.
//!
//! Looking writes nothing, not even a probe file.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::atomic;
use crate::env::Env;
use crate::error::{PackError, Result};
use crate::read;
use crate::source::process;
use crate::target::TargetKind;
use crate::view;

/// The line that keeps target manifests out of commits.
pub const IGNORE_LINE: &str = ".agentpack.manifest*.json";

/// What was found about one root.
#[derive(Debug)]
pub struct RootCheck {
    /// The target.
    pub target: TargetKind,
    /// The directory.
    pub root: PathBuf,
    /// Whether files nobody manages are reported there.
    pub scan_extras: bool,
    /// Whether it exists.
    pub exists: bool,
    /// Whether files can be made in it.
    pub writable: bool,
    /// What is wrong.
    pub issues: Vec<&'static str>,
    /// What to do about it.
    pub suggestion: Option<String>,
}

/// Looks at one root.
pub fn check_root(target: TargetKind, root: &Path, scan_extras: bool) -> RootCheck {
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
            Some(format!("create directory: mkdir -p {}", view::quoted(&shown.to_string()))),
        ),
        Err(_) => (false, false, Some("not_writable"), Some(format!("fix the permissions of {shown}"))),
    };
    let issues = issue.into_iter().collect();
    RootCheck { target, root: root.to_owned(), scan_extras, exists, writable, issues, suggestion }
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

impl RootCheck {
    /// The JSON form.
    pub fn to_json(&self) -> Value {
        let mut map = view::object(json!({
            "target": self.target.name(),
            "exists": self.exists,
            "writable": self.writable,
            "scan_extras": self.scan_extras,
            "issues": self.issues,
            "suggestion": self.suggestion,
        }));
        view::put_path(&mut map, "root", &self.root);
        Value::Object(map)
    }
}

/// The oldest git that everything works with.
const OLDEST_GIT: (u32, u32) = (2, 34);

/// A warning when the installed git is older than what crewkit needs. A git that is missing is told by what needs it.
pub fn old_git(env: &Env, dir: &Path) -> Option<String> {
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
pub struct NotIgnored {
    /// The top of its work tree.
    pub repo: PathBuf,
    /// The root with the manifest.
    pub root: PathBuf,
}

/// The repositories whose commits would catch target manifests.
pub fn not_ignored(env: &Env, checks: &[RootCheck]) -> Vec<NotIgnored> {
    let mut found = BTreeSet::new();
    for check in checks.iter().filter(|check| check.exists && check.issues.is_empty()) {
        let top = check.root.ancestors().find(|dir| dir.join(".git").exists());
        let Some(repo) = top else { continue };
        let name = crate::managed::file_name(check.target.name());
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
    pub fn warning(&self) -> String {
        format!(
            "target root is in a git repo and `{IGNORE_LINE}` is not ignored: root={} repo={}; consider adding it to .gitignore (or run `agentpack doctor --fix`)",
            self.root.display(),
            self.repo.display()
        )
    }
}

/// What a repair would write.
#[derive(Debug)]
pub struct IgnoreFix {
    repo: PathBuf,
    path: PathBuf,
    text: Option<String>,
}

/// Works out the repair of each repository.
pub fn plan_fixes(problems: &[NotIgnored]) -> Result<Vec<IgnoreFix>> {
    let repos: BTreeSet<&Path> = problems.iter().map(|problem| problem.repo.as_path()).collect();
    repos.into_iter().map(|repo| plan_ignore_lines(repo, &[IGNORE_LINE])).collect()
}

/// Works out what `.gitignore` of `repo` must say to contain `lines`.
pub fn plan_ignore_lines(repo: &Path, lines: &[&str]) -> Result<IgnoreFix> {
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
    Ok(IgnoreFix { repo: repo.to_owned(), path, text: changed.then_some(text) })
}

impl IgnoreFix {
    /// Whether anything has to be written.
    pub fn is_needed(&self) -> bool {
        self.text.is_some()
    }

    /// Writes it.
    pub fn apply(&self) -> Result<()> {
        match &self.text {
            Some(text) => atomic::write(&self.path, text.as_bytes()),
            None => Ok(()),
        }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The JSON form; `updated` says whether it was written.
    pub fn to_json(&self, updated: bool) -> Value {
        let mut map = Map::new();
        view::put_path(&mut map, "repo_root", &self.repo);
        view::put_path(&mut map, "gitignore_path", &self.path);
        map.insert("updated".to_owned(), updated.into());
        Value::Object(map)
    }
}
