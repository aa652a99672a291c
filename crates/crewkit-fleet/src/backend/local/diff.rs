//! What an agent has changed against its base.

use std::ffi::OsString;
use std::sync::Arc;

use super::Local;
use super::git::{Git, GitError, Place, one_line};
use super::patch::{self, Entry};
use super::record::{AgentRow, Phase};
use super::snapshot::{Objects, Snapshot};
use super::worktree::{Checkout, Workspace, branch_of_head};
use crate::changes::{AgentDiff, DiffBase, DiffLine, DiffQuery, FileDiff, FileStatus};
use crate::error::FleetError;

/// What an entry of a file counts for in an answer, beside its lines.
const ENTRY_BYTES: usize = 200;
/// What a line counts for beside its text.
const LINE_BYTES: usize = 60;

/// The changes of an agent at one moment.
pub(super) struct Changes {
    pub(super) id: String,
    pub(super) base: DiffBase,
    pub(super) snapshot: Snapshot,
    git: Git,
    base_tree: String,
    files: Vec<(Entry, Option<(u64, u64)>)>,
    longest_line: usize,
}

/// Where an answer goes on: a file and one of its lines.
#[derive(Clone, Copy)]
struct Position {
    file: usize,
    line: usize,
}

impl Local {
    /// What an agent has changed against its base, as much as fits into one answer.
    pub async fn diff(&self, query: DiffQuery) -> Result<AgentDiff, FleetError> {
        let agent = self.row_named(&query.agent_name)?;
        let told = |error: FleetError| error.or_with("agent_name", Some(agent.name.clone()));
        let changes = self.changes(&agent).await.map_err(told)?;
        let from = changes.position(query.after.as_deref()).map_err(told)?;
        let mut diff = changes.summary(&agent.name);
        let chosen: Vec<usize> = match &query.file {
            None => (0..changes.files.len()).collect(),
            Some(word) => vec![changes.find(word).map_err(told)?],
        };
        let room = usize::try_from(self.shared.options.limits.fleet_diff_bytes).unwrap_or(usize::MAX);
        let mut used = 0;
        for file in chosen.into_iter().filter(|file| *file >= from.file) {
            if used >= room {
                diff.next = Some(changes.cursor(Position { file, line: 0 }));
                break;
            }
            let skip = if file == from.file { from.line } else { 0 };
            let mut shown = changes.file(file).await.map_err(|error| told(git_error(&error)))?;
            used += ENTRY_BYTES;
            if !shown.binary && query.names_only != Some(true) {
                let lines = changes.lines(file).await.map_err(|error| told(git_error(&error)))?;
                let total = lines.len();
                for line in lines.into_iter().skip(skip) {
                    // One line always fits, so that every answer goes on.
                    if used >= room && !shown.lines.is_empty() {
                        break;
                    }
                    used += LINE_BYTES + line.text.len();
                    shown.lines.push(line);
                }
                let end = skip.saturating_add(shown.lines.len());
                shown.more = end < total;
                if shown.more {
                    diff.next = Some(changes.cursor(Position { file, line: end }));
                }
            }
            let more = shown.more;
            diff.files.push(shown);
            if more {
                break;
            }
        }
        Ok(diff)
    }

    /// The row of the agent called `name`.
    pub(super) fn row_named(&self, name: &str) -> Result<Arc<AgentRow>, FleetError> {
        self.shared.store.named(name.trim()).ok_or_else(|| FleetError::no_such_agent(name))
    }

    /// Looks at what an agent has changed.
    pub(super) async fn changes(&self, agent: &AgentRow) -> Result<Changes, FleetError> {
        let (workspace, checkout) = repository_of(agent)?;
        let options = &self.shared.options;
        let kit_files = self.unchanged_kit_files(agent, &self.asker).await;
        let read = async {
            let snapshot =
                Snapshot::take(&options.git, &options.home, workspace, checkout, &kit_files, Objects::Beside)
                    .await?;
            let base = self.base_of(agent, checkout, snapshot.head.as_deref()).await?;
            Changes::read(snapshot, base, &options.limits).await
        };
        read.await.map_err(|error| git_error(&error))
    }

    /// The branch that an agent's work comes from and goes to, and what the two have in common.
    pub(super) async fn base_of(
        &self,
        agent: &AgentRow,
        checkout: &Checkout,
        head: Option<&str>,
    ) -> Result<DiffBase, GitError> {
        let git = &self.shared.options.git;
        let project = self.project_of(agent).ok();
        let repository = Place::found_from(project.map_or_else(|| checkout.common_dir.clone(), |it| it.path));
        let branch = match (&checkout.base_branch, &checkout.base_commit) {
            (Some(branch), _) => Some(branch.clone()),
            (None, Some(_)) => None,
            // It was made by a version that did not record its base.
            (None, None) => branch_of_head(git, &repository).await?,
        };
        let mut commit = checkout.base_commit.clone();
        if let (Some(branch), Some(head)) = (&branch, head) {
            let tip = format!("refs/heads/{branch}^{{commit}}");
            let tip = git.at(&repository).args(["rev-parse", "--verify", "--quiet", &tip]).lookup().await?;
            if let Some(tip) = tip.as_deref().map(one_line) {
                let common = git.at(&repository).args(["merge-base", &tip, head]).lookup().await?;
                commit = common.as_deref().map(one_line).or(commit);
            }
        }
        Ok(DiffBase { branch, commit })
    }
}

/// The workspace of an agent, if it is a worktree that can be looked at.
pub(super) fn repository_of(agent: &AgentRow) -> Result<(&Workspace, &Checkout), FleetError> {
    let workspace = agent.workspace.as_ref().filter(|_| agent.phase == Phase::Ready && agent.path.exists());
    let Some(workspace) = workspace else {
        let message =
            format!("Agent '{}' has no workspace to look at; restart_agent makes it anew", agent.name);
        return Err(FleetError::bad_request(message).with("reason", "offline"));
    };
    let Some(checkout) = &workspace.git else {
        let message = format!(
            "Agent '{}' works in a copy of a plain directory, which has no base to compare with; its files are in {}",
            agent.name,
            workspace.path.display()
        );
        return Err(FleetError::bad_request(message).with("reason", "no_repository"));
    };
    Ok((workspace, checkout))
}

fn git_error(error: &GitError) -> FleetError {
    let reason = if matches!(error, GitError::Hazard { .. }) { "hazard" } else { "git" };
    FleetError::unavailable(format!("the changes cannot be read: {error}")).with("reason", reason)
}

impl Changes {
    async fn read(
        snapshot: Snapshot,
        base: DiffBase,
        limits: &crewkit_core::Limits,
    ) -> Result<Self, GitError> {
        let base_tree = match &base.commit {
            Some(commit) => {
                snapshot.at().args(["rev-parse", "--verify", &format!("{commit}^{{tree}}")]).line().await?
            }
            None => snapshot.empty_tree().await?,
        };
        // Git takes what is larger for binary.
        let git = snapshot.git().with([format!("core.bigFileThreshold={}", limits.fleet_diff_file_bytes)]);
        let trees = [base_tree.as_str(), snapshot.tree.as_str()];
        let raw = snapshot.at_with(&git).args(listing("--raw")).args(trees).run().await?;
        let numbers = snapshot.at_with(&git).args(listing("--numstat")).args(trees).run().await?;
        let mut numbers = patch::counts(&numbers).into_iter();
        let files = patch::entries(&raw).into_iter().map(|entry| (entry, numbers.next().flatten())).collect();
        let id = patch::short_hash(&[base_tree.as_bytes(), snapshot.tree.as_bytes()]);
        let longest_line = usize::try_from(limits.fleet_diff_line_bytes).unwrap_or(usize::MAX);
        Ok(Self { id, base, snapshot, git, base_tree, files, longest_line })
    }

    fn summary(&self, agent_name: &str) -> AgentDiff {
        let sum = |which: fn((u64, u64)) -> u64| self.files.iter().filter_map(|(_, it)| it.map(which)).sum();
        let (additions, deletions): (u64, u64) = (sum(|it| it.0), sum(|it| it.1));
        let message = match self.files.len() {
            0 => format!("Agent '{agent_name}' has changed nothing"),
            files => format!("Agent '{agent_name}' has changed {files} files: +{additions} -{deletions}"),
        };
        AgentDiff {
            agent_name: agent_name.to_owned(),
            diff_id: self.id.clone(),
            base: self.base.clone(),
            head: self.snapshot.head.clone(),
            uncommitted: self.snapshot.uncommitted,
            total_files: self.files.len(),
            additions,
            deletions,
            files: Vec::new(),
            next: None,
            unreadable: self.snapshot.unreadable.clone(),
            message,
        }
    }

    /// One of the files, without its lines.
    async fn file(&self, number: usize) -> Result<FileDiff, GitError> {
        let (entry, numbers) = &self.files[number];
        let text = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
        let (old, new) = &entry.modes;
        let is_link = new == "160000" || old == "160000";
        let size = match (numbers, entry.status) {
            (None, FileStatus::Deleted) => None,
            (None, _) if !is_link => {
                let size = self.snapshot.at().args(["cat-file", "-s", &entry.blob]).line().await?;
                size.parse().ok()
            }
            _ => None,
        };
        Ok(FileDiff {
            id: patch::path_id(&entry.path),
            path: text(&entry.path),
            old_path: entry.old_path.as_deref().map(text),
            status: entry.status,
            mode: (old != new && entry.status != FileStatus::Added && entry.status != FileStatus::Deleted)
                .then(|| format!("{old} → {new}")),
            binary: numbers.is_none(),
            size,
            additions: numbers.map_or(0, |it| it.0),
            deletions: numbers.map_or(0, |it| it.1),
            lines: Vec::new(),
            more: false,
        })
    }

    /// The lines of one of the files.
    pub(super) async fn lines(&self, number: usize) -> Result<Vec<DiffLine>, GitError> {
        let (entry, _) = &self.files[number];
        let paths = entry.old_path.iter().chain([&entry.path]).map(|path| crate::sys::os_string(path));
        let command = self.snapshot.at_with(&self.git).env("GIT_LITERAL_PATHSPECS", "1");
        let command = command.args(listing("--patch")).args([&self.base_tree, &self.snapshot.tree]);
        let output = command.args(["--"]).args(paths).run().await?;
        Ok(patch::lines(&output, &entry.path, self.longest_line))
    }

    /// The file somebody means who says `word`: a path, or its id.
    pub(super) fn find(&self, word: &str) -> Result<usize, FleetError> {
        let by_path = self.files.iter().position(|(entry, _)| entry.path == word.as_bytes());
        let by_id = || self.files.iter().position(|(entry, _)| patch::path_id(&entry.path) == word);
        by_path.or_else(by_id).ok_or_else(|| {
            let message =
                format!("the agent has not changed a file `{word}`; leave `file` out to see what it has");
            FleetError::invalid("file", message)
        })
    }

    fn cursor(&self, at: Position) -> String {
        format!("{}.{}.{}", self.id, at.file, at.line)
    }

    fn position(&self, cursor: Option<&str>) -> Result<Position, FleetError> {
        let Some(cursor) = cursor else { return Ok(Position { file: 0, line: 0 }) };
        let mut parts = cursor.split('.');
        let read = |part: Option<&str>| part.and_then(|part| part.parse().ok());
        let (id, file, line) = (parts.next().unwrap_or_default(), read(parts.next()), read(parts.next()));
        let (Some(file), Some(line), None) = (file, line, parts.next()) else {
            return Err(FleetError::invalid("after", "`after` is not the `next` of an answer of agent_diff"));
        };
        if id != self.id {
            let message = "the changes are not the same any more; ask again without `after`";
            return Err(FleetError::conflict(message)
                .with("reason", "diff_moved")
                .with("diff_id", &*self.id));
        }
        Ok(Position { file, line })
    }
}

/// Compares two trees by plumbing, which follows no configuration of how diffs look; attributes of the agent are not read.
fn listing(form: &str) -> Vec<OsString> {
    let fixed =
        ["diff-tree", "-r", "-z", "-M", "--full-index", "--no-ext-diff", "--no-textconv", "--no-color"];
    fixed.into_iter().chain([form]).map(OsString::from).collect()
}
