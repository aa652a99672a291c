//! Which project a directory belongs to, and the id that is the same on every machine.
//!
//! The few facts needed are read from the repository's files directly, because starting git costs more than a whole
//! plan. Where those files use a feature that is not understood here, git is asked.

use std::fs;
use std::path::{Path, PathBuf};

use crate::env::Env;
use crate::fs::hash::Digest;
use crate::fs::read;
use crate::source::process;

/// Largest git config file that is read.
const CONFIG_BYTES: u64 = 1 << 20;

/// A project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Project {
    /// Its root: the top of the git work tree, else the directory itself.
    pub root: PathBuf,
    /// The git directory that holds its configuration.
    git_dir: Option<PathBuf>,
}

impl Project {
    /// The project `env.cwd` belongs to.
    pub(crate) fn detect(env: &Env) -> Self {
        let cwd = fs::canonicalize(&env.cwd).unwrap_or_else(|_| env.cwd.clone());
        if env.workspace_state.is_some() {
            // A workspace is its own project: that its `.git` is gone must not make it part of what it lies in.
            return Self { git_dir: git_dir_of(&cwd), root: cwd };
        }
        for dir in cwd.ancestors() {
            if let Some(git_dir) = git_dir_of(dir) {
                if uses_unknown_features(&git_dir) {
                    return Self::ask_git(env, &cwd).unwrap_or(Self { root: cwd, git_dir: None });
                }
                return Self { root: dir.to_owned(), git_dir: Some(git_dir) };
            }
        }
        Self { root: cwd, git_dir: None }
    }

    fn ask_git(env: &Env, cwd: &Path) -> Option<Self> {
        let output = process::run(env, cwd, &["rev-parse", "--show-toplevel"]).ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        let root = PathBuf::from(text.trim_end_matches('\n'));
        (output.ok && root.is_absolute()).then(|| Self { git_dir: git_dir_of(&root), root })
    }

    /// The id overlays are filed under.
    pub(crate) fn id(&self, env: &Env) -> String {
        let origin = self.git_dir.as_deref().and_then(|git_dir| {
            if uses_unknown_features(git_dir) {
                let output = process::run(env, &self.root, &["config", "--get", "remote.origin.url"]).ok()?;
                return output.ok.then(|| String::from_utf8_lossy(&output.stdout).into_owned());
            }
            origin_url(&read::text(&git_dir.join("config"), CONFIG_BYTES).ok()?)
        });
        let basis = match origin.map(|url| normalized_origin(&url)) {
            Some(origin) if !origin.is_empty() => origin,
            _ => self.root.to_string_lossy().into_owned(),
        };
        Digest::of(basis.as_bytes()).short(16)
    }
}

/// The git directory with the configuration of a work tree whose top is `dir`.
fn git_dir_of(dir: &Path) -> Option<PathBuf> {
    let dot_git = dir.join(".git");
    let metadata = fs::metadata(&dot_git).ok()?;
    if metadata.is_dir() {
        return dot_git.join("HEAD").exists().then_some(dot_git);
    }
    // A linked work tree or submodule: a file that names the directory.
    let text = read::text(&dot_git, CONFIG_BYTES).ok()?;
    let git_dir = dir.join(text.strip_prefix("gitdir:")?.trim());
    if !git_dir.join("HEAD").exists() {
        return None;
    }
    match read::text(&git_dir.join("commondir"), CONFIG_BYTES) {
        Ok(common) => Some(git_dir.join(common.trim())),
        Err(_) => Some(git_dir),
    }
}

/// Whether the configuration says things this reader does not follow.
fn uses_unknown_features(git_dir: &Path) -> bool {
    read::text(&git_dir.join("config"), CONFIG_BYTES).is_ok_and(|text| {
        let text = text.to_ascii_lowercase();
        text.contains("[include") || text.contains("worktree") || text.contains("\\\n")
    })
}

/// The value of `remote.origin.url` in a git config file; the last one wins.
fn origin_url(config: &str) -> Option<String> {
    let mut in_origin = false;
    let mut found = None;
    for line in config.lines() {
        let line = line.trim();
        if line.starts_with('[') {
            in_origin = line.split_once('"').is_some_and(|(section, rest)| {
                section.trim_start_matches('[').trim().eq_ignore_ascii_case("remote")
                    && rest.split('"').next() == Some("origin")
            });
        } else if in_origin
            && let Some((name, value)) = line.split_once('=')
            && name.trim().eq_ignore_ascii_case("url")
        {
            let value = value.trim();
            let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(value);
            found = Some(value.to_owned());
        }
    }
    found
}

/// An address without what differs between people: scheme, user, case and the `.git` ending.
fn normalized_origin(url: &str) -> String {
    let url = url.trim();
    let url = url.strip_suffix(".git").unwrap_or(url);
    let plain = match url.strip_prefix("git@") {
        Some(rest) => rest.replacen(':', "/", 1),
        None => {
            url.strip_prefix("https://").or_else(|| url.strip_prefix("http://")).unwrap_or(url).to_owned()
        }
    };
    plain.to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> String {
        format!(
            "[core]\n\tbare = false\n[remote \"up\"]\n\turl = x\n[remote \"origin\"]\n\turl = {url}\n\tfetch = y\n"
        )
    }

    #[test]
    fn origins_of_the_same_project_are_equal() {
        for url in
            ["git@GitHub.com:Org/Repo.git", "https://github.com/org/repo", "http://github.com/Org/repo.git "]
        {
            assert_eq!(normalized_origin(&origin_url(&config(url)).unwrap()), "github.com/org/repo");
        }
        assert_eq!(normalized_origin("ssh://git@h/a.git"), "ssh://git@h/a");
        assert_eq!(origin_url("[remote \"up\"]\nurl = x\n"), None);
    }

    #[test]
    fn the_root_is_the_top_of_the_work_tree() {
        let dir = tempfile::tempdir().unwrap();
        let top = fs::canonicalize(dir.path()).unwrap().join("p");
        fs::create_dir_all(top.join("a/b")).unwrap();
        let mut env = Env::at_home(dir.path());
        env.cwd = top.join("a/b");
        assert_eq!(Project::detect(&env).root, top.join("a/b"));

        fs::create_dir_all(top.join(".git")).unwrap();
        assert_eq!(Project::detect(&env).root, top.join("a/b"), "an empty .git is no repository");
        fs::write(top.join(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
        fs::write(top.join(".git/config"), config("git@h:o/r.git")).unwrap();
        let project = Project::detect(&env);
        assert_eq!(project.root, top);
        assert_eq!(project.id(&env), Digest::of(b"h/o/r").short(16));
    }
}
