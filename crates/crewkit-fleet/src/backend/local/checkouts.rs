//! Where a branch is checked out, and whether it can be moved there.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::git::{Git, GitError, Place, one_line};
use super::git_output;
use super::land::resolved;
use super::worktree::Checkout;
use crate::landing::Move;

/// Where the result of a landing goes.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) how: Move,
    /// The checkout that has the branch; the project, if none does.
    pub(super) checkout: PathBuf,
    /// The branch that the result gets if the base does not move.
    pub(super) aside: String,
    /// Why the base does not move.
    pub(super) obstacles: Vec<String>,
}

impl Target {
    /// The same with the branch of this agent. An agent called `landed` leaves no room for branches below its own.
    pub(super) fn named(self, agent: &str) -> Self {
        Self { aside: format!("{}/{agent}", self.aside), ..self }
    }

    /// What a person runs to bring the result home.
    pub(super) fn command(&self) -> String {
        let place = self.checkout.display().to_string().replace('\'', r"'\''");
        format!("git -C '{place}' merge {}", self.aside)
    }
}

/// Decides how the branch `base` can be moved to a commit in which the files of `changed` are others.
pub(super) async fn target(
    git: &Git,
    repository: &Place,
    checkout: &Checkout,
    workspaces: &Path,
    base: Option<&str>,
    changed: &[String],
) -> Result<Target, GitError> {
    let blocked = ["crewkit", "crewkit/landed"].map(|name| format!("refs/heads/{name}"));
    let listed =
        git.at(repository).args(["for-each-ref", "--format=%(refname)"]).args(&blocked).run().await?;
    let taken = String::from_utf8_lossy(&listed);
    let is_blocked = taken.lines().any(|line| blocked.iter().any(|name| name == line));
    let aside = if is_blocked { "crewkit-landed" } else { "crewkit/landed" }.to_owned();
    let mut target =
        Target { how: Move::Aside, checkout: repository.dir.clone(), aside, obstacles: Vec::new() };
    let Some(base) = base else {
        target.obstacles.push("the branch that the agent started from is gone, or there was none".to_owned());
        return Ok(target);
    };
    let listing = git.at(repository).args(["worktree", "list", "--porcelain"]).run().await?;
    let places = git_output::worktrees_on(&listing, base);
    if let Some(what) = under_way(&checkout.common_dir, base) {
        target.obstacles.push(what);
    }
    match places.as_slice() {
        [] => target.how = Move::Branch,
        [place] => {
            target.checkout = PathBuf::from(place);
            let found = obstacles(git, &target.checkout, checkout, workspaces, base, changed).await?;
            target.obstacles.extend(found);
            target.how = Move::Checkout;
        }
        _ => target.obstacles.push(format!("`{base}` is checked out in {}", places.join(" and "))),
    }
    if !target.obstacles.is_empty() {
        target.how = Move::Aside;
    }
    Ok(target)
}

/// Why files of the checkout at `path` are not to be changed.
async fn obstacles(
    git: &Git,
    path: &Path,
    checkout: &Checkout,
    workspaces: &Path,
    base: &str,
    changed: &[String],
) -> Result<Option<String>, GitError> {
    let shown = path.display();
    if resolved(path).starts_with(resolved(workspaces)) {
        return Ok(Some(format!("`{base}` is checked out in {shown}, where an agent works")));
    }
    let place = Place::found_from(path);
    let common = ["rev-parse", "--path-format=absolute", "--git-common-dir"];
    let found = if path.is_dir() { git.at(&place).args(common).lookup().await? } else { None };
    let found = found.map(|found| PathBuf::from(one_line(&found)));
    if found.is_none_or(|found| resolved(&found) != resolved(&checkout.common_dir)) {
        return Ok(Some(format!("{shown} is registered as a checkout of `{base}`, but is none")));
    }
    let foreign = git_output::foreign_programs(&git.foreign_settings(&place).await?);
    if foreign.iter().any(|name| name.starts_with("filter")) {
        return Ok(Some(format!("files in {shown} would have to pass filters of the repository")));
    }
    let status = ["status", "--porcelain=v2", "-z", "--untracked-files=all", "--ignore-submodules=dirty"];
    let status = git.at(&place).offline().args(status).run().await?;
    let mut touched = git_output::paths_of_status(&status);
    touched.retain(|file| changed.contains(file));
    // Git takes ignored files for nobody's and overwrites them.
    let tracked = git.at(&place).offline().args(["ls-files", "-z"]).run().await?;
    touched.extend(in_the_way(path, &String::from_utf8_lossy(&tracked), changed));
    touched.sort();
    touched.dedup();
    if !touched.is_empty() {
        return Ok(Some(format!("{} in {shown} would be overwritten", touched.join(", "))));
    }
    Ok(None)
}

/// Files in the checkout at `root` that git does not have, where files of `changed` would be written.
fn in_the_way(root: &Path, tracked: &str, changed: &[String]) -> Vec<String> {
    let tracked: HashSet<&str> = tracked.split('\0').collect();
    let is_own = |path: &Path| path.to_str().is_some_and(|path| tracked.contains(path));
    let mut found = Vec::new();
    for file in changed.iter().map(Path::new) {
        let paths = file.ancestors().filter(|path| !path.as_os_str().is_empty() && !is_own(path));
        found.extend(paths.filter_map(|path| {
            let entry = root.join(path).symlink_metadata().ok()?;
            (path == file || !entry.is_dir()).then(|| path.display().to_string())
        }));
    }
    found
}

/// An operation that is half done in some checkout and will move `base` itself at its end.
fn under_way(common_dir: &Path, base: &str) -> Option<String> {
    let linked = std::fs::read_dir(common_dir.join("worktrees")).into_iter().flatten().flatten();
    let places = std::iter::once(common_dir.to_owned()).chain(linked.map(|entry| entry.path()));
    for place in places {
        for (note, what) in [
            ("rebase-merge/head-name", "a rebase"),
            ("rebase-apply/head-name", "a rebase"),
            ("BISECT_START", "a bisection"),
        ] {
            let Ok(text) = crate::sys::beneath::read(&place, Path::new(note), 4096) else { continue };
            let text = String::from_utf8_lossy(&text);
            if text.trim().strip_prefix("refs/heads/").unwrap_or(text.trim()) == base {
                return Some(format!("{what} of `{base}` is half done"));
            }
        }
    }
    None
}
