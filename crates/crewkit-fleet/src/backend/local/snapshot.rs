//! The files of an agent's worktree as one tree of git, made beside its index: committed work and what is not committed.
//!
//! Git reads the files once, with hooks, filters and monitors off, and puts what is new into a directory that goes with the
//! snapshot. Whatever is asked afterwards comes from that tree: an agent that works on changes nothing of it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::git::{Git, GitError, Invocation, Place, one_line};
use super::keep::{self, MOST_ENTRIES};
use super::worktree::{Checkout, Workspace};
use super::{git_output, hazard};

/// Where snapshots are made, below the home.
pub(super) const DIRECTORY: &str = "snapshots";
/// Longest time git may read files of a worktree. A file may become a pipe while git opens it.
const LONGEST_READ: Duration = Duration::from_secs(30);
/// Names of unreadable files that are told.
const MOST_UNREADABLE: usize = 20;

/// Where a snapshot puts new objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Objects {
    /// Into a directory that goes with it.
    Beside,
    /// Into the repository, for commits that are to stay.
    InRepository,
}

/// A tree with the files of a worktree.
#[derive(Debug)]
pub(super) struct Snapshot {
    git: Git,
    /// A directory without files, in the repository of the worktree: nothing of the agent's is read there.
    place: Place,
    scratch: Scratch,
    alternates: OsString,
    objects: Objects,
    /// The commit the worktree is at.
    pub(super) head: Option<String>,
    /// The tree.
    pub(super) tree: String,
    /// Whether it differs from that of the commit.
    pub(super) uncommitted: bool,
    /// What git said about files that could not be read.
    pub(super) unreadable: Vec<String>,
}

/// A directory that is removed when it is dropped.
#[derive(Debug)]
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let path = std::mem::take(&mut self.0);
        // It may hold large files; whoever drops it should not wait for that.
        let _ = std::thread::Builder::new().spawn(move || std::fs::remove_dir_all(path));
    }
}

impl Snapshot {
    /// Reads the worktree. Files of `kit_files` are left as they are in its index.
    pub(super) async fn take(
        git: &Git,
        home: &Path,
        workspace: &Workspace,
        checkout: &Checkout,
        kit_files: &[String],
        objects: Objects,
    ) -> Result<Self, GitError> {
        hazard::check(&workspace.path, MOST_ENTRIES).await?;
        let worktree = Place::worktree(&workspace.path, &checkout.admin_dir);
        let scratch = Scratch(home.join(DIRECTORY).join(uuid::Uuid::now_v7().simple().to_string()));
        let (empty, index) = (scratch.0.join("empty"), scratch.0.join("index"));
        for dir in [&scratch.0.join("objects"), &empty] {
            crate::sys::create_private_dir(dir).map_err(GitError::Start)?;
        }
        let (admin_dir, copy) = (checkout.admin_dir.clone(), index.clone());
        let copied = tokio::task::spawn_blocking(move || keep::copy_index(&admin_dir, &copy)).await;
        copied.unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into())).map_err(GitError::Start)?;
        let mut snapshot = Self {
            git: git.without_filters(&worktree).await?,
            place: Place::worktree(&empty, &checkout.common_dir),
            alternates: quoted(&checkout.common_dir.join("objects")),
            scratch,
            objects,
            head: None,
            tree: String::new(),
            uncommitted: false,
            unreadable: Vec::new(),
        };
        snapshot.read(&worktree, &index, kit_files).await?;
        Ok(snapshot)
    }

    async fn read(&mut self, worktree: &Place, index: &Path, kit_files: &[String]) -> Result<(), GitError> {
        let git = self.git.within(LONGEST_READ);
        let hidden = keep::hidden_files(&git, worktree, kit_files).await?;
        keep::reveal(&git, worktree, index, &hidden).await?;
        let listing = git.at(worktree).index(index).args(["ls-files", "--stage", "-z"]).run().await?;
        // Adding a submodule runs git in it, and with that the programs its own configuration names.
        let submodules = git_output::links(&listing);
        let submodules = submodules.iter().filter(|link| worktree.dir.join(link).symlink_metadata().is_ok());
        // Files that cannot be read stay as they were, and are told.
        let mut add: Vec<OsString> =
            ["add", "--all", "--ignore-errors", "--", "."].map(OsString::from).into();
        let left_out = kit_files.iter().chain(submodules);
        add.extend(left_out.map(|file| OsString::from(format!(":(exclude,top,literal){file}"))));
        let added = self.beside(git.at(worktree).index(index)).args(add).told().await?;
        self.unreadable = added.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect();
        self.unreadable.truncate(MOST_UNREADABLE);
        self.tree = self.beside(git.at(worktree).index(index)).args(["write-tree"]).line().await?;
        let head =
            git.at(worktree).args(["rev-parse", "--verify", "--quiet", "HEAD^{commit}"]).lookup().await?;
        self.head = head.as_deref().map(one_line);
        let committed = match &self.head {
            Some(head) => self.at().args(["rev-parse", &format!("{head}^{{tree}}")]).line().await?,
            None => self.empty_tree().await?,
        };
        self.uncommitted = committed != self.tree;
        Ok(())
    }

    /// A command that sees the tree, and nothing of the worktree.
    pub(super) fn at(&self) -> Invocation<'_> {
        self.beside(self.git.at(&self.place))
    }

    /// The same with other settings of git.
    pub(super) fn at_with<'a>(&'a self, git: &'a Git) -> Invocation<'a> {
        self.beside(git.at(&self.place))
    }

    /// Puts the attribute files of `commit` where commands run, so that merges follow them and nothing the agent has changed.
    pub(super) async fn put_attributes(&self, commit: &str) -> Result<(), GitError> {
        let index = self.scratch.0.join("base-index");
        let at = || self.at().index(&index);
        at().args(["read-tree", commit]).run().await?;
        let files = at().args(["ls-files", "-z", "--", ":(glob)**/.gitattributes"]).run().await?;
        if !files.is_empty() {
            at().args(["checkout-index", "-z", "--stdin"]).input(files).run().await?;
        }
        Ok(())
    }

    /// Where commands run.
    pub(super) fn dir(&self) -> &Path {
        &self.place.dir
    }

    /// The git it was read with.
    pub(super) fn git(&self) -> &Git {
        &self.git
    }

    /// The tree without files.
    pub(super) async fn empty_tree(&self) -> Result<String, GitError> {
        self.at().args(["mktree"]).input(Vec::new()).line().await
    }

    /// Has a command write new objects where they belong.
    fn beside<'a>(&self, command: Invocation<'a>) -> Invocation<'a> {
        if self.objects == Objects::InRepository {
            return command.offline();
        }
        let objects = self.scratch.0.join("objects");
        command
            .offline()
            .env("GIT_OBJECT_DIRECTORY", objects)
            .env("GIT_ALTERNATE_OBJECT_DIRECTORIES", self.alternates.clone())
    }
}

/// A path as it stands in a list that is separated by colons.
fn quoted(path: &Path) -> OsString {
    let mut text = vec![b'"'];
    for byte in path.as_os_str().as_encoded_bytes() {
        if matches!(byte, b'"' | b'\\') {
            text.push(b'\\');
        }
        text.push(*byte);
    }
    text.push(b'"');
    crate::sys::os_string(&text)
}
