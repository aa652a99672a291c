//! Taking a workspace away without losing work.
//!
//! What is not committed becomes a commit on the agent's branch. What a commit cannot hold (ignored files, repositories
//! within, a merge half done) goes to the trash with the whole directory. Branches with commits of their own stay. Whenever
//! something does not go as expected, the directory goes to the trash: that needs nothing but a rename.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::copy::move_tree;
use super::git::{Git, GitError, Place, one_line};
use super::git_output::{self, WorktreeStatus};
use super::hazard;
use super::trash::{Trash, Trashed};
use super::worktree::{Checkout, Workspace, removal};
use crate::sys::beneath;

/// Entries of a worktree that are looked at before git is run in it.
pub(super) const MOST_ENTRIES: usize = 1_000_000;
/// Largest note of git about an operation that is half done.
const NOTE_BYTES: u64 = 64 * 1024;

/// Where the work of a removed workspace is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kept {
    /// Branches of the project that hold its commits.
    pub branches: Vec<String>,
    /// Whether one of them got a commit with what was not committed.
    pub saved_changes: bool,
    /// Where the directory went, when a branch could not hold everything.
    pub trashed: Option<Trashed>,
    /// Why changes could not be committed, when that was tried.
    pub obstacle: Option<String>,
}

impl Kept {
    /// For the person who deleted the agent.
    pub(crate) fn sentence(&self, project: &Path) -> String {
        let mut parts = Vec::new();
        if !self.branches.is_empty() {
            let what =
                if self.saved_changes { "its work, with what was not committed," } else { "its commits" };
            let noun = if self.branches.len() == 1 { "branch" } else { "branches" };
            let verb = if self.saved_changes { "is" } else { "are" };
            parts.push(format!(
                "{what} {verb} on {noun} {} of {}",
                self.branches.join(", "),
                project.display()
            ));
        }
        if let Some(trashed) = &self.trashed {
            let until = trashed.until.map_or_else(String::new, |until| format!(" until {until}"));
            parts.push(format!("its files are in {}{until}", trashed.path.display()));
        }
        if let Some(obstacle) = &self.obstacle {
            parts.push(format!("its changes could not be committed: {obstacle}"));
        }
        if parts.is_empty() { "it left no changes".to_owned() } else { parts.join("; ") }
    }
}

/// Why a workspace was not taken away. It is still where it was.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// The directory could not be moved.
    #[error("{}: {source}", path.display())]
    Move {
        /// The workspace.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

/// A workspace to be taken away.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Leaving<'a> {
    /// Whose it was.
    pub(crate) agent: &'a str,
    /// The workspace.
    pub(crate) workspace: &'a Workspace,
    /// The project it came from.
    pub(crate) project: &'a Path,
    /// Files of the kit nobody has changed, relative to the workspace: they are no work.
    pub(crate) kit_files: &'a [String],
}

/// Takes the workspace away. Asking again after a crash goes on where it was.
pub(crate) async fn take_away(git: &Git, trash: &Trash, leaving: Leaving<'_>) -> Result<Kept, KeepError> {
    let path = &leaving.workspace.path;
    let Some(checkout) = &leaving.workspace.git else {
        let trashed = if path.exists() {
            Some(to_trash(trash, leaving.agent, path, None).await.map_err(|source| moved(path, source))?)
        } else {
            None
        };
        return Ok(Kept { trashed, ..Kept::default() });
    };
    if !path.exists() {
        let mut kept = Kept::default();
        finish(git, leaving.project, checkout, path, &mut kept).await;
        return Ok(kept);
    }
    let place = Place::worktree(path, &checkout.admin_dir);
    let saved = match hazard::check(path, MOST_ENTRIES).await {
        Ok(()) => match git.without_filters(&place).await {
            Ok(git) => save(&git, &place, leaving, checkout).await,
            Err(error) => Err(error),
        },
        Err(error) => Err(error),
    };
    let (mut kept, everything_is_committed) = match saved {
        Ok(saved) => saved,
        Err(error) => {
            tracing::warn!(agent = leaving.agent, %error, "changes could not be committed and go to the trash");
            let mut kept = Kept { obstacle: Some(error.to_string()), ..Kept::default() };
            // The files are safe in the trash; commits that no branch holds would vanish with the worktree.
            match git.at(&place).args(["rev-parse", "--verify", "--quiet", "HEAD^{commit}"]).lookup().await {
                Ok(head) => {
                    let commits = head.map(|head| one_line(&head)).into_iter();
                    let commits = commits.chain(under_way(&checkout.admin_dir));
                    if let Err(error) = keep_commits(git, &place, leaving.agent, commits, &mut kept).await {
                        tracing::warn!(agent = leaving.agent, %error, "commits could not be looked up");
                    }
                }
                Err(error) => tracing::warn!(agent = leaving.agent, %error, "HEAD could not be looked up"),
            }
            (kept, false)
        }
    };
    if everything_is_committed {
        trash.discard(path).await.map_err(|source| moved(path, source))?;
    } else {
        let trashed = to_trash(trash, leaving.agent, path, Some(&checkout.admin_dir)).await;
        kept.trashed = Some(trashed.map_err(|source| moved(path, source))?);
    }
    finish(git, leaving.project, checkout, path, &mut kept).await;
    Ok(kept)
}

fn moved(path: &Path, source: std::io::Error) -> KeepError {
    KeepError::Move { path: path.to_owned(), source }
}

/// Moves a workspace to the trash. What git administers beside it goes first: once the directory is gone, so is the only
/// sign that there is something to save.
async fn to_trash(
    trash: &Trash,
    agent: &str,
    path: &Path,
    admin_dir: Option<&Path>,
) -> std::io::Result<Trashed> {
    let place = trash.place_for(agent).await?;
    if let Some(admin_dir) = admin_dir {
        save_admin(admin_dir, &place.path).await?;
    }
    trash.take(path, &place).await?;
    Ok(place)
}

/// What git keeps beside the files that a trashed directory may still need: repositories of submodules, the index, and
/// where HEAD has been.
async fn save_admin(admin_dir: &Path, trashed: &Path) -> std::io::Result<()> {
    let (from, to) = (admin_dir.to_owned(), trashed.with_extension("git"));
    let saved = tokio::task::spawn_blocking(move || {
        if !from.is_dir() {
            return Ok(());
        }
        std::fs::create_dir_all(&to)?;
        for name in ["HEAD", "index", "MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "ORIG_HEAD"] {
            if !std::fs::symlink_metadata(from.join(name)).is_ok_and(|entry| entry.is_file()) {
                continue;
            }
            match std::fs::copy(from.join(name), to.join(name)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        for name in ["modules", "logs", "rebase-merge", "rebase-apply", "sequencer"] {
            if from.join(name).is_dir() && !to.join(name).exists() {
                move_tree(&from.join(name), &to.join(name))?;
            }
        }
        Ok(())
    });
    saved.await.unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into()))
}

/// Commits what is not committed and names what HEAD is at. Tells whether that was everything there was.
async fn save(
    git: &Git,
    place: &Place,
    leaving: Leaving<'_>,
    checkout: &Checkout,
) -> Result<(Kept, bool), GitError> {
    // Looking into submodules would follow their own configuration; that they are there is all that matters.
    let status = [
        "status",
        "--porcelain=v2",
        "-z",
        "--branch",
        "--untracked-files=all",
        "--ignored=matching",
        "--ignore-submodules=dirty",
    ];
    let status = git.at(place).args(status).run().await?;
    let mut survey = WorktreeStatus::parse(&status, leaving.kit_files);
    let half_done =
        ["MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "BISECT_LOG", "rebase-merge", "rebase-apply"];
    survey.half_done = half_done.iter().any(|name| checkout.admin_dir.join(name).exists());
    let hidden = hidden_files(git, place, leaving.kit_files).await?;
    survey.changed |= !hidden.is_empty();
    let mut kept = Kept::default();
    let mut tip = survey.head.clone();
    let mut links = git_output::links(&git.at(place).args(["ls-files", "--stage", "-z"]).run().await?);
    if survey.changed {
        match commit_everything(git, place, leaving, &survey, &links, &hidden).await {
            Ok(commit) => {
                links.extend(commit.links);
                kept.saved_changes = true;
                tip = Some(commit.id);
            }
            // The files go to the trash; the commits made before must still be kept.
            Err(error) => {
                tracing::warn!(agent = leaving.agent, %error, "changes could not be committed and go to the trash");
                kept.obstacle = Some(error.to_string());
            }
        }
    }
    let has_inner_repositories = checkout.admin_dir.join("modules").exists()
        || links.iter().any(|link| !is_empty(&place.dir.join(link)));
    if let Some(tip) = &tip {
        let own = survey.branch.as_deref() == Some(&checkout.branch) && !survey.half_done;
        if kept.saved_changes && own {
            let reference = format!("refs/heads/{}", checkout.branch);
            // The empty old value means: only if there is no such branch.
            let old = survey.head.as_deref().unwrap_or_default();
            git.at(place).args(["update-ref", "-m", "crewkit: saved", &reference, tip, old]).run().await?;
            kept.branches.push(checkout.branch.clone());
        } else if kept.saved_changes {
            kept.branches.push(save_branch(git, place, leaving.agent, tip).await?);
        } else {
            keep_commits(git, place, leaving.agent, [tip.clone()], &mut kept).await?;
        }
    }
    keep_commits(git, place, leaving.agent, under_way(&checkout.admin_dir), &mut kept).await?;
    let everything =
        kept.obstacle.is_none() && !survey.ignored && !survey.half_done && !has_inner_repositories;
    Ok((kept, everything))
}

/// Changed files that `git status` does not mention since somebody marked them `assume-unchanged` or `skip-worktree`.
pub(super) async fn hidden_files(
    git: &Git,
    place: &Place,
    kit_files: &[String],
) -> Result<Vec<String>, GitError> {
    let marked = git_output::hidden(&git.at(place).args(["ls-files", "-v", "-z"]).run().await?);
    // A sparse checkout leaves such files out.
    let is_work =
        |file: &String| place.dir.join(file).symlink_metadata().is_ok() && !kit_files.contains(file);
    let marked: Vec<String> = marked.into_iter().filter(is_work).collect();
    if marked.is_empty() {
        return Ok(marked);
    }
    let scratch = Scratch::new(place);
    let index = scratch.copy_of_index().map_err(GitError::Start)?;
    reveal(git, place, &index, &marked).await?;
    let changed = ["diff-files", "--name-only", "-z", "--ignore-submodules=all"];
    let changed = git.at(place).index(&index).args(changed).run().await?;
    let changed = String::from_utf8_lossy(&changed);
    Ok(marked.into_iter().filter(|file| changed.split('\0').any(|name| name == file)).collect())
}

/// Takes back in `index` what hides changes of `files` from git.
pub(super) async fn reveal(git: &Git, place: &Place, index: &Path, files: &[String]) -> Result<(), GitError> {
    if files.is_empty() {
        return Ok(());
    }
    for mark in ["--no-assume-unchanged", "--no-skip-worktree"] {
        let list = files.join("\0").into_bytes();
        let update = git.at(place).index(index).args(["update-index", mark, "-z", "--stdin"]);
        update.input(list).run().await?;
    }
    Ok(())
}

struct Saved {
    id: String,
    /// Other repositories its tree names, whose files it does not hold.
    links: Vec<String>,
}

/// Whether there is nothing to lose in a directory.
fn is_empty(dir: &Path) -> bool {
    match std::fs::read_dir(dir) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

/// A commit of the files as they are, made beside the worktree's own index so that nothing changes if it fails.
async fn commit_everything(
    git: &Git,
    place: &Place,
    leaving: Leaving<'_>,
    survey: &WorktreeStatus,
    links: &[String],
    hidden: &[String],
) -> Result<Saved, GitError> {
    let scratch = Scratch::new(place);
    let index = scratch.copy_of_index().map_err(GitError::Start)?;
    reveal(git, place, &index, hidden).await?;
    let staged = staged_tree(git, place, &scratch).await?;
    let mut add: Vec<OsString> = ["add", "--all", "--", "."].map(OsString::from).into();
    // Adding a submodule runs git in it, and with that the programs its own configuration names. What is in there goes to
    // the trash with the directory.
    let submodules = links.iter().filter(|link| place.dir.join(link).symlink_metadata().is_ok());
    let left_out = leaving.kit_files.iter().chain(submodules);
    add.extend(left_out.map(|file| OsString::from(format!(":(exclude,top,literal){file}"))));
    git.at(place).index(&index).args(add).run().await?;
    let tree = git.at(place).index(&index).args(["write-tree"]).line().await?;
    let links =
        git_output::links(&git.at(place).index(&index).args(["ls-files", "--stage", "-z"]).run().await?);

    let mut parents: Vec<String> = survey.head.iter().cloned().collect();
    // What was staged and then changed again is in neither HEAD nor the files.
    let head_tree = match &survey.head {
        Some(head) => Some(git.at(place).args(["rev-parse", &format!("{head}^{{tree}}")]).line().await?),
        None => None,
    };
    if let Some(staged) = staged.filter(|staged| *staged != tree && Some(staged) != head_tree.as_ref()) {
        let message = format!("crewkit: what {} had staged", leaving.agent);
        parents.push(commit_tree(git, place, &staged, &parents, &message).await?);
    }
    let message = format!("crewkit: changes of {} saved when it was deleted", leaving.agent);
    Ok(Saved { id: commit_tree(git, place, &tree, &parents, &message).await?, links })
}

async fn commit_tree(
    git: &Git,
    place: &Place,
    tree: &str,
    parents: &[String],
    message: &str,
) -> Result<String, GitError> {
    let parents = parents.iter().flat_map(|parent| ["-p", parent.as_str()]);
    let arguments = ["commit-tree", tree].into_iter().chain(parents).chain(["-m", message]);
    git.at(place).args(arguments).line().await
}

/// The tree of what is staged, without files in conflict: those have no staged version.
async fn staged_tree(git: &Git, place: &Place, scratch: &Scratch) -> Result<Option<String>, GitError> {
    let entries = git.at(place).args(["ls-files", "--stage", "-z"]).run().await?;
    // Entries that only announce a file name a blob that need not exist.
    git.at(place).args(["hash-object", "-w", "--stdin"]).input(Vec::new()).run().await?;
    let settled = git_output::without_conflicts(&entries);
    if settled.is_empty() {
        return Ok(None);
    }
    let index = scratch.path("staged");
    git.at(place).index(&index).args(["update-index", "-z", "--index-info"]).input(settled).run().await?;
    git.at(place).index(&index).args(["write-tree"]).line().await.map(Some)
}

/// Whether a commit is in the history of some branch, tag or remote; branches of agents do not count, because they go.
async fn is_reachable(
    git: &Git,
    place: &Place,
    commit: &str,
    except: Option<&str>,
) -> Result<bool, GitError> {
    let listing = git
        .at(place)
        .args([
            "for-each-ref",
            "--contains",
            commit,
            "--format=%(refname)",
            "refs/heads",
            "refs/tags",
            "refs/remotes",
        ])
        .run()
        .await?;
    let text = String::from_utf8_lossy(&listing);
    let except = except.map(|branch| format!("refs/heads/{branch}"));
    // Another agent's branch counts only when no branch is to be removed on its account.
    let counts = |name: &&str| match &except {
        Some(own) => *name != own && !name.starts_with("refs/heads/crewkit"),
        None => true,
    };
    Ok(text.lines().any(|name| counts(&name)))
}

/// Gives each of `commits` that no branch, tag or remote leads to a branch of its own.
async fn keep_commits(
    git: &Git,
    place: &Place,
    agent: &str,
    commits: impl IntoIterator<Item = String>,
    kept: &mut Kept,
) -> Result<(), GitError> {
    for commit in commits {
        let name = format!("{commit}^{{commit}}");
        let known = git.at(place).args(["rev-parse", "--verify", "--quiet", &name]).lookup().await?;
        if known.is_some() && !is_reachable(git, place, &commit, None).await? {
            kept.branches.push(save_branch(git, place, agent, &commit).await?);
        }
    }
    Ok(())
}

/// Files in which git notes commits while a merge, rebase or the like is half done.
const NOTES: [&str; 12] = [
    "MERGE_HEAD",
    "MERGE_AUTOSTASH",
    "CHERRY_PICK_HEAD",
    "REVERT_HEAD",
    "REBASE_HEAD",
    "rebase-merge/orig-head",
    "rebase-merge/autostash",
    "rebase-merge/stopped-sha",
    "rebase-apply/orig-head",
    "rebase-apply/autostash",
    "rebase-apply/original-commit",
    "sequencer/head",
];

/// The commits of an operation that is half done. A rebase begun without a branch has its commits nowhere else, and what
/// was stashed for it is in no list of stashes.
fn under_way(admin_dir: &Path) -> Vec<String> {
    let notes = NOTES.iter().filter_map(|name| beneath::read(admin_dir, Path::new(name), NOTE_BYTES).ok());
    let mut commits: Vec<String> = Vec::new();
    for text in notes {
        let text = String::from_utf8_lossy(&text);
        for id in text.split_whitespace().filter(|word| word.bytes().all(|byte| byte.is_ascii_hexdigit())) {
            if !commits.iter().any(|known| known == id) {
                commits.push(id.to_owned());
            }
        }
    }
    commits
}

/// A new branch at `commit`.
async fn save_branch(git: &Git, place: &Place, agent: &str, commit: &str) -> Result<String, GitError> {
    let base = format!("crewkit/{agent}-saved");
    let mut number = 1;
    loop {
        let name = if number == 1 { base.clone() } else { format!("{base}-{number}") };
        let reference = format!("refs/heads/{name}");
        // The empty old value means: only if there is no such branch.
        match git.at(place).args(["update-ref", "-m", "crewkit: saved", &reference, commit, ""]).run().await {
            Ok(_) => return Ok(name),
            Err(error) if number >= 1000 => return Err(error),
            Err(_) => number += 1,
        }
    }
}

/// Forgets the worktree and removes its branch when that holds nothing of its own. Nothing here can lose work, so
/// whatever goes wrong is only noted.
async fn finish(git: &Git, project: &Path, checkout: &Checkout, path: &Path, kept: &mut Kept) {
    let repository = Place::found_from(project);
    if checkout.admin_dir.exists() {
        let _register = git.register(&checkout.common_dir).await;
        if let Err(error) = git.at(&repository).args(removal(path)).run().await {
            tracing::warn!(%error, "a worktree could not be removed from its repository");
        }
    }
    let reference = format!("refs/heads/{}", checkout.branch);
    let tip = git.at(&repository).args(["rev-parse", "--verify", "--quiet", &reference]).lookup().await;
    let Ok(Some(tip)) = tip else { return };
    let tip = one_line(&tip);
    match is_reachable(git, &repository, &tip, Some(&checkout.branch)).await {
        Ok(true) => {
            // Only while it still is where it was seen to be.
            let _ = git.at(&repository).args(["update-ref", "-d", &reference, &tip]).run().await;
            kept.branches.retain(|branch| *branch != checkout.branch);
        }
        Ok(false) if !kept.branches.contains(&checkout.branch) => {
            kept.branches.insert(0, checkout.branch.clone());
        }
        Ok(false) => {}
        Err(error) => tracing::warn!(%error, "a branch is kept because its commits could not be looked up"),
    }
}

/// Files beside the worktree's index; gone when dropped.
struct Scratch {
    dir: PathBuf,
    mark: String,
}

impl Scratch {
    fn new(place: &Place) -> Self {
        let dir = place.git_dir.clone().unwrap_or_else(|| place.dir.clone());
        Self { dir, mark: uuid::Uuid::now_v7().simple().to_string() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(format!("crewkit-{}-{name}", self.mark))
    }

    fn copy_of_index(&self) -> std::io::Result<PathBuf> {
        let path = self.path("all");
        copy_index(&self.dir, &path)?;
        Ok(path)
    }
}

/// Copies the index of the worktree that is administered in `admin_dir`; there may be none.
///
/// The copy is as old as the original: git takes a file for unchanged when its entry is older than the index, so that in a
/// younger copy a file that was staged and changed again within one tick of the clock would count as unchanged, and be lost.
pub(super) fn copy_index(admin_dir: &Path, to: &Path) -> std::io::Result<()> {
    let original = admin_dir.join("index");
    match std::fs::copy(&original, to) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        outcome => outcome?,
    };
    let age = std::fs::metadata(&original)?.modified()?;
    std::fs::File::options().append(true).open(to)?.set_modified(age)
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for name in ["all", "all.lock", "staged", "staged.lock"] {
            let _ = std::fs::remove_file(self.path(name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_of_a_worktree_is_understood() {
        let parse =
            |text: &str| WorktreeStatus::parse(text.replace('|', "\0").as_bytes(), &["AGENTS.md".to_owned()]);
        let clean = parse("# branch.oid abc|# branch.head crewkit/papi|");
        assert_eq!((clean.head.as_deref(), clean.branch.as_deref()), (Some("abc"), Some("crewkit/papi")));
        assert!(!clean.changed && !clean.ignored);
        assert!(!parse("# branch.oid abc|? AGENTS.md|").changed);
        assert!(parse("? other.md|").changed);
        assert!(parse("! target/|").ignored && !parse("! target/|").changed);
        assert!(parse("1 .M N... 100644 100644 100644 a b x|").changed);
        let renamed = parse("2 R. N... 100644 100644 100644 a b R100 new|? AGENTS.md|! x|");
        assert!(renamed.changed && renamed.ignored);
        assert_eq!(parse("# branch.oid (initial)|# branch.head (detached)|"), WorktreeStatus::default());
    }

    #[test]
    fn people_are_told_where_the_work_is() {
        let kept = |branches: &[&str], saved_changes| Kept {
            branches: branches.iter().map(|name| (*name).to_owned()).collect(),
            saved_changes,
            ..Kept::default()
        };
        let project = Path::new("/p");
        assert_eq!(kept(&[], false).sentence(project), "it left no changes");
        assert_eq!(kept(&["b"], false).sentence(project), "its commits are on branch b of /p");
        assert_eq!(
            kept(&["b", "c"], true).sentence(project),
            "its work, with what was not committed, is on branches b, c of /p"
        );
    }
}
