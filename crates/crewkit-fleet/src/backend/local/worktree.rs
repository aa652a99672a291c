//! Workspaces: a git worktree on a branch of its own, or a copy of a plain directory.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::copy;
use super::git::{Git, GitError, Place, one_line};
use super::git_output::branch_of_worktree;
use super::project::{Kind, LocalProject};

/// Branches that were tried before giving up on a name.
const MOST_BRANCHES: usize = 1000;

/// A workspace that was made.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Workspace {
    /// Where it is.
    pub path: PathBuf,
    /// Its git side; none for a copy of a plain directory.
    pub git: Option<Checkout>,
}

/// The git side of a workspace.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Checkout {
    /// The branch that was made for it.
    pub branch: String,
    /// The directory all worktrees of the repository share.
    pub common_dir: PathBuf,
    /// The directory that administers this one.
    pub admin_dir: PathBuf,
    /// The branch the project was on when it was made; absent if it was on none, and in records of 0.1.0.
    #[serde(default)]
    pub base_branch: Option<String>,
    /// The commit it was made from; absent if there was none, and in records of 0.1.0.
    #[serde(default)]
    pub base_commit: Option<String>,
}

impl Workspace {
    /// The git place of the worktree, whatever has become of its `.git` file.
    pub(crate) fn place(&self) -> Option<Place> {
        self.git.as_ref().map(|checkout| Place::worktree(&self.path, &checkout.admin_dir))
    }
}

/// Why a workspace could not be made.
#[derive(Debug, thiserror::Error)]
pub enum WorkspaceError {
    /// A directory could not be used.
    #[error("{}: {source}", path.display())]
    Path {
        /// Which.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// Git refused.
    #[error(transparent)]
    Git(#[from] GitError),
    /// Every branch name is taken.
    #[error("branches {0}, {0}-2 and so on are all taken; delete some of them")]
    Branches(String),
    /// The directory is too large to copy.
    #[error(
        "{} has more than {limit} {unit}, too many to copy for every agent; make it a git repository or raise limits.{key}",
        path.display()
    )]
    TooLarge {
        /// The directory.
        path: PathBuf,
        /// The limit.
        limit: u64,
        /// What is counted.
        unit: &'static str,
        /// The limit's key.
        key: &'static str,
    },
}

impl WorkspaceError {
    pub(crate) fn path(path: &Path, source: std::io::Error) -> Self {
        Self::Path { path: path.to_owned(), source }
    }
}

/// How large a plain directory may be to be copied.
#[derive(Debug, Clone, Copy)]
pub struct CopyLimits {
    /// Bytes in all files.
    pub bytes: u64,
    /// Files and directories.
    pub entries: u64,
}

/// Makes the workspace of `agent` at `path`, which must not exist. What fails half-way is taken back.
pub(crate) async fn create(
    git: &Git,
    project: &LocalProject,
    agent: &str,
    path: &Path,
    limits: CopyLimits,
) -> Result<Workspace, WorkspaceError> {
    if path.exists() {
        return Err(WorkspaceError::path(path, std::io::ErrorKind::AlreadyExists.into()));
    }
    let made = make(git, project, agent, path, limits).await;
    if made.is_err()
        && let Err(error) = undo(git, project, path).await
    {
        tracing::warn!(agent, %error, "a half-made workspace could not be removed");
    }
    made
}

async fn make(
    git: &Git,
    project: &LocalProject,
    agent: &str,
    path: &Path,
    limits: CopyLimits,
) -> Result<Workspace, WorkspaceError> {
    let Kind::Repository { common_dir } = &project.kind else {
        let (from, to) = (project.path.clone(), path.to_owned());
        let copied = tokio::task::spawn_blocking(move || copy::tree(&from, &to, limits)).await;
        copied.unwrap_or_else(|_| Err(WorkspaceError::path(path, std::io::ErrorKind::Other.into())))?;
        return Ok(Workspace { path: path.to_owned(), git: None });
    };
    let repository = Place::found_from(&project.path);
    let git = &git.without_filters(&repository).await?;
    let taken = branches(git, &repository).await?;
    let has_commits =
        git.at(&repository).args(["rev-parse", "--verify", "--quiet", "HEAD^{commit}"]).lookup().await?;
    let base_branch = branch_of_head(git, &repository).await?;
    let mut after = 1;
    loop {
        let (branch, number) =
            free_branch(agent, &taken, after).ok_or_else(|| WorkspaceError::Branches(agent.to_owned()))?;
        after = number + 1;
        let registered = {
            let _register = git.register(common_dir).await;
            match &has_commits {
                Some(commit) => {
                    // The files come afterwards, when nobody has to wait for them.
                    let on_branch = ["--no-track", "-b", &branch];
                    add(git, &repository, &on_branch, path, &one_line(commit)).await
                }
                None => add_unborn(git, &repository, &branch, path).await,
            }
        };
        match registered {
            Ok(()) => {
                let admin_dir = admin_dir_of(path).await?;
                if has_commits.is_some() {
                    let files = ["reset", "--hard", "--quiet", "--no-recurse-submodules"];
                    git.at(&Place::worktree(path, &admin_dir)).args(files).run().await?;
                }
                let base_commit = has_commits.as_deref().map(one_line);
                let common_dir = common_dir.clone();
                let checkout = Checkout { branch, common_dir, admin_dir, base_branch, base_commit };
                return Ok(Workspace { path: path.to_owned(), git: Some(checkout) });
            }
            // Somebody made the branch since we looked.
            Err(GitError::Refused { complaint, .. })
                if complaint.contains("already exists") && !path.exists() => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The branch that HEAD is on.
pub(crate) async fn branch_of_head(git: &Git, place: &Place) -> Result<Option<String>, GitError> {
    let head = git.at(place).args(["symbolic-ref", "--quiet", "HEAD"]).lookup().await?;
    Ok(head.and_then(|head| one_line(&head).strip_prefix("refs/heads/").map(str::to_owned)))
}

/// Registers a worktree at `path` whose HEAD is `commit`; its files are not written.
async fn add(
    git: &Git,
    repository: &Place,
    options: &[&str],
    path: &Path,
    commit: &str,
) -> Result<(), GitError> {
    let command = git.at(repository).args(["worktree", "add", "--quiet", "--no-checkout"]).args(options);
    command.args(["--".as_ref(), path.as_os_str(), commit.as_ref()]).run().await.map(drop)
}

/// Registers a worktree at `path` whose `branch` begins with nothing, like the repository itself, which has no commit.
///
/// Git before 2.42 adds worktrees for commits only. So it gets an empty commit to begin with, which is in no branch and no
/// reflog and goes with the next garbage collection.
async fn add_unborn(git: &Git, repository: &Place, branch: &str, path: &Path) -> Result<(), GitError> {
    let tree = git.at(repository).args(["mktree"]).input(Vec::new()).line().await?;
    let commit = git.at(repository).args(["commit-tree", &tree, "-m", "crewkit: empty"]).line().await?;
    add(&git.without_reflogs(), repository, &["--detach"], path, &commit).await?;
    let worktree = Place::found_from(path);
    let reference = format!("refs/heads/{branch}");
    git.at(&worktree).args(["symbolic-ref", "HEAD", &reference]).run().await.map(drop)
}

/// Names of all branches.
async fn branches(git: &Git, repository: &Place) -> Result<Vec<String>, GitError> {
    let listing =
        git.at(repository).args(["for-each-ref", "--format=%(refname:lstrip=2)", "refs/heads"]).run().await?;
    Ok(String::from_utf8_lossy(&listing).lines().map(str::to_owned).collect())
}

/// The first of `crewkit/agent`, `crewkit/agent-2` … that is not taken, counted from `after`.
fn free_branch(agent: &str, taken: &[String], after: usize) -> Option<(String, usize)> {
    // A branch called `crewkit` leaves no room for branches below it.
    let blocked = taken.iter().any(|name| name.eq_ignore_ascii_case("crewkit"));
    let base = if blocked { format!("crewkit-{agent}") } else { format!("crewkit/{agent}") };
    (after..after + MOST_BRANCHES).find_map(|number| {
        let name = if number == 1 { base.clone() } else { format!("{base}-{number}") };
        // Without regard to case: some file systems keep no difference.
        let clashes = |other: &String| {
            other.eq_ignore_ascii_case(&name)
                || other.to_ascii_lowercase().starts_with(&format!("{}/", name.to_ascii_lowercase()))
        };
        (!taken.iter().any(clashes)).then_some((name, number))
    })
}

/// Where git administers the worktree at `path`, read right after git wrote it.
async fn admin_dir_of(path: &Path) -> Result<PathBuf, WorkspaceError> {
    let link = path.join(".git");
    let text =
        tokio::fs::read_to_string(&link).await.map_err(|source| WorkspaceError::path(&link, source))?;
    let dir = text.strip_prefix("gitdir:").map(|dir| PathBuf::from(dir.trim()));
    dir.filter(|dir| dir.is_absolute())
        .ok_or_else(|| WorkspaceError::path(&link, std::io::ErrorKind::InvalidData.into()))
}

/// Removes what an interrupted [`create`] left at `path`. Nobody has worked there yet.
pub(crate) async fn undo(git: &Git, project: &LocalProject, path: &Path) -> Result<(), WorkspaceError> {
    if let Kind::Repository { common_dir } = &project.kind {
        let repository = Place::found_from(&project.path);
        let _register = git.register(common_dir).await;
        if let Some(branch) = registered_branch(git, &repository, path).await? {
            git.at(&repository).args(removal(path)).run().await?;
            if let Some(branch) = branch {
                // Only the branch that was made with the worktree, and only while nothing was added to it.
                let _ = git.at(&repository).args(["branch", "--quiet", "-d", "--", &branch]).run().await;
            }
        }
    }
    match tokio::fs::remove_dir_all(path).await {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(WorkspaceError::path(path, source))
        }
        _ => Ok(()),
    }
}

/// What has git forget the worktree at `path`, whatever is in it.
pub(crate) fn removal(path: &Path) -> [OsString; 6] {
    ["worktree".into(), "remove".into(), "--force".into(), "--force".into(), "--".into(), path.into()]
}

/// Whether `path` is registered as a worktree, and the branch it is on.
async fn registered_branch(
    git: &Git,
    repository: &Place,
    path: &Path,
) -> Result<Option<Option<String>>, GitError> {
    let listing = git.at(repository).args(["worktree", "list", "--porcelain"]).run().await?;
    Ok(branch_of_worktree(&listing, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branches_that_are_taken_are_passed_over() {
        let taken = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let free = |names: &[&str]| free_branch("papi", &taken(names), 1).unwrap().0;
        assert_eq!(free(&["main"]), "crewkit/papi");
        assert_eq!(free(&["crewkit/papi"]), "crewkit/papi-2");
        assert_eq!(free(&["crewkit/Papi", "crewkit/papi-2"]), "crewkit/papi-3");
        assert_eq!(free(&["crewkit/papi/x"]), "crewkit/papi-2");
        assert_eq!(free(&["crewkit"]), "crewkit-papi");
    }
}
