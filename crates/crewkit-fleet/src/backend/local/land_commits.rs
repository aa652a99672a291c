//! The trees and commits of a landing.

use std::collections::BTreeSet;

use super::git::{Git, GitError, Place};
use super::git_output;
use super::land::git_failed;
use super::snapshot::Snapshot;
use crate::error::FleetError;
use crate::landing::{LandConflict, Strategy};

/// Who commits, as the user's configuration says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Committer {
    name: String,
    email: String,
    /// Whether commits have to be signed.
    pub(super) signs: bool,
}

impl std::fmt::Display for Committer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} <{}>", self.name, self.email)
    }
}

impl Committer {
    /// The user as git knows him in the repository of the project.
    pub(super) async fn of(git: &Git, repository: &Place) -> Result<Self, FleetError> {
        let read = async |key: &str| {
            let listed = git.at(repository).args(["config", "--show-scope", "-z", "--get-all", key]);
            listed.lookup().await.map_err(|error| git_failed(&error))
        };
        let (name, email, signing) =
            (read("user.name").await?, read("user.email").await?, read("commit.gpgSign").await?);
        let set = |listing: Option<Vec<u8>>| listing.and_then(|listing| git_output::last_set(&listing));
        let (Some(name), Some(email)) = (set(name), set(email)) else {
            let message = "git does not know who you are, and commits are made in your name. Set `git config --global \
                           user.name` and `user.email`";
            return Err(FleetError::bad_request(message).with("reason", "no_identity"));
        };
        // An agent can switch it off in the repository, but not what the user has said for all of them.
        let signs = signing.is_some_and(|listing| git_output::is_required(&listing));
        Ok(Self { name, email, signs })
    }
}

/// What comes of putting the work onto its base.
#[derive(Debug)]
pub(super) struct Merged {
    /// The tree; none if there are conflicts.
    pub(super) tree: Option<String>,
    pub(super) conflicts: Vec<LandConflict>,
    steps: Steps,
}

#[derive(Debug)]
enum Steps {
    /// A commit with two parents. What is not committed comes with a commit of its own before.
    Merge { head: String, uncommitted: Option<String> },
    /// One commit.
    Squash,
    /// Commits of the agent, each with the tree it gets; the one without a commit is what is not committed.
    Rebase(Vec<(Option<String>, String)>),
}

/// What a commit of the agent's is called when it was none.
const UNCOMMITTED: &str = "Work that was not committed";

impl Merged {
    /// Merges in memory. Commits that are made on the way have nobody's name and are part of nothing.
    pub(super) async fn make(
        snapshot: &Snapshot,
        onto: &str,
        head: &str,
        strategy: Strategy,
        commits: &[String],
    ) -> Result<Self, GitError> {
        let uncommitted = snapshot.uncommitted.then(|| snapshot.tree.clone());
        if strategy == Strategy::Rebase {
            return Self::one_by_one(snapshot, onto, head, commits).await;
        }
        let theirs = match &uncommitted {
            Some(tree) => scratch_commit(snapshot, tree, head).await?,
            None => head.to_owned(),
        };
        let (tree, conflicts) = merge(snapshot, onto, &theirs).await?;
        let steps = match strategy {
            Strategy::Squash => Steps::Squash,
            _ => Steps::Merge { head: head.to_owned(), uncommitted },
        };
        Ok(Self { tree: conflicts.is_empty().then_some(tree), conflicts, steps })
    }

    async fn one_by_one(
        snapshot: &Snapshot,
        onto: &str,
        head: &str,
        commits: &[String],
    ) -> Result<Self, GitError> {
        let tree_of = async |commit: &str| {
            snapshot.at().args(["rev-parse", "--verify", &format!("{commit}^{{tree}}")]).line().await
        };
        let mut todo: Vec<(Option<String>, String)> =
            commits.iter().map(|commit| (Some(commit.clone()), commit.clone())).collect();
        if snapshot.uncommitted {
            todo.push((None, scratch_commit(snapshot, &snapshot.tree, head).await?));
        }
        let mut tree = tree_of(onto).await?;
        let mut done = Vec::new();
        for (original, commit) in todo {
            let parent = snapshot.at().args(["rev-parse", "--verify", &format!("{commit}^1")]).line().await?;
            // Beside the commit it becomes a child of the same parent: that parent is what the two have in common.
            let ours = scratch_commit(snapshot, &tree, &parent).await?;
            let (next, mut conflicts) = merge(snapshot, &ours, &commit).await?;
            if !conflicts.is_empty() {
                for conflict in &mut conflicts {
                    conflict.commit.clone_from(&original);
                }
                return Ok(Self { tree: None, conflicts, steps: Steps::Rebase(Vec::new()) });
            }
            if next != tree {
                done.push((original, next.clone()));
                tree = next;
            }
        }
        Ok(Self { tree: Some(tree), conflicts: Vec::new(), steps: Steps::Rebase(done) })
    }

    /// How many files are in conflict.
    pub(super) fn paths(&self) -> usize {
        self.conflicts.iter().map(|conflict| &conflict.path).collect::<BTreeSet<_>>().len()
    }

    /// Makes the commits in the name of `committer` and gives the newest. Nothing leads to them yet.
    pub(super) async fn commit(
        &self,
        snapshot: &Snapshot,
        committer: &Committer,
        onto: &str,
        message: &str,
    ) -> Result<String, FleetError> {
        let tree = self.tree.as_deref().unwrap_or_default();
        let make = |tree, parents: &[&str]| {
            let parents = parents.iter().map(|parent| (*parent).to_owned()).collect();
            NewCommit { snapshot, committer, tree, parents, original: None }
        };
        match &self.steps {
            Steps::Squash => make(tree, &[onto]).write(message).await,
            Steps::Merge { head, uncommitted } => {
                let theirs = match uncommitted {
                    Some(tree) => make(tree, &[head]).write(UNCOMMITTED).await?,
                    None => head.clone(),
                };
                make(tree, &[onto, &theirs]).write(message).await
            }
            Steps::Rebase(steps) => {
                let mut tip = onto.to_owned();
                for (original, tree) in steps {
                    let new = NewCommit { original: original.as_deref(), ..make(tree, &[&tip]) };
                    let message = match original {
                        Some(original) => {
                            let show = ["show", "-s", "--no-show-signature", "--format=%B", original];
                            let text = snapshot.at().args(show).line().await;
                            text.map_err(|error| git_failed(&error))?
                        }
                        None => UNCOMMITTED.to_owned(),
                    };
                    tip = new.write(&message).await?;
                }
                Ok(tip)
            }
        }
    }
}

struct NewCommit<'a> {
    snapshot: &'a Snapshot,
    committer: &'a Committer,
    tree: &'a str,
    parents: Vec<String>,
    /// The commit whose author it keeps.
    original: Option<&'a str>,
}

impl NewCommit<'_> {
    async fn write(&self, message: &str) -> Result<String, FleetError> {
        let Committer { name, email, signs } = self.committer;
        let mut author = [name.clone(), email.clone(), String::new()];
        if let Some(original) = self.original {
            let show =
                ["show", "-s", "--no-show-signature", "--date=raw", "--format=%an%n%ae%n%ad", original];
            let text = self.snapshot.at().args(show).line().await.map_err(|error| git_failed(&error))?;
            for (field, line) in author.iter_mut().zip(text.lines()) {
                line.clone_into(field);
            }
        }
        let [author_name, author_email, date] = author;
        let git = self.snapshot.git().with([format!("user.name={name}"), format!("user.email={email}")]);
        let mut command = self.snapshot.at_with(&git).args(["commit-tree", self.tree]);
        command = command.env("GIT_AUTHOR_NAME", author_name).env("GIT_AUTHOR_EMAIL", author_email);
        if !date.is_empty() {
            command = command.env("GIT_AUTHOR_DATE", date);
        }
        command = command.args(self.parents.iter().flat_map(|parent| ["-p", parent.as_str()]));
        if *signs {
            command = command.args(["-S"]);
        }
        command.input(format!("{}\n", message.trim_end()).into_bytes()).line().await.map_err(|error| {
            if !signs {
                return git_failed(&error);
            }
            let message = format!(
                "your configuration requires signed commits (commit.gpgSign), and signing failed: {error}"
            );
            FleetError::bad_request(message).with("reason", "signing")
        })
    }
}

/// A commit that only stands for a tree while something is merged.
async fn scratch_commit(snapshot: &Snapshot, tree: &str, parent: &str) -> Result<String, GitError> {
    snapshot.at().args(["commit-tree", tree, "-p", parent, "-m", "crewkit"]).line().await
}

/// Merges two commits in memory: the tree, and where they are in conflict.
async fn merge(
    snapshot: &Snapshot,
    ours: &str,
    theirs: &str,
) -> Result<(String, Vec<LandConflict>), GitError> {
    let command = ["merge-tree", "--write-tree", "-z", "--messages", ours, theirs];
    let (is_clean, output) = snapshot.at().args(command).answered().await?;
    let (tree, conflicts) = git_output::merge_result(&output);
    if tree.is_empty() || is_clean != conflicts.is_empty() {
        let complaint = "git did not tell what came of the merge; landing needs git 2.38 or newer".to_owned();
        return Err(GitError::Refused {
            verb: "merge-tree".to_owned(),
            dir: snapshot.dir().to_owned(),
            complaint,
        });
    }
    Ok((tree, conflicts))
}
