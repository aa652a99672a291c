//! Bringing the work of an agent onto its base.
//!
//! Everything is merged in memory, in a throw-away directory that holds nothing but the attribute files of the base. The
//! repository gains objects that nothing leads to, until one last step moves the base or makes a branch. A server that is
//! killed at any moment leaves the base where it was or where it should be.

use std::path::{Path, PathBuf};

use super::Local;
use super::checkouts::{self, Target};
use super::git::{Git, GitError, Invocation, Place, one_line};
use super::git_output;
use super::land_commits::{Committer, Merged};
use super::patch::short_hash;
use super::prompt::headline;
use super::record::AgentRow;
use super::snapshot::{Objects, Snapshot};
use super::worktree::Checkout;
use crate::error::FleetError;
use crate::landing::{LandAgent, LandConflict, LandOutcome, Landing, Move, Strategy};

/// A landing that was worked out: everything but the commits.
struct Prepared {
    snapshot: Snapshot,
    repository: Place,
    base: Option<String>,
    /// The commit that the work goes onto.
    onto: String,
    strategy: Strategy,
    message: String,
    /// Commits of the agent that the base does not have, oldest first.
    commits: Vec<String>,
    merged: Merged,
    changed: Vec<String>,
    committer: Committer,
    target: Target,
    not_run: Vec<String>,
}

impl Local {
    /// Tells what landing an agent's work would do, or does it if the plan is still the same. What was begun is finished even
    /// if the returned future is dropped.
    pub async fn land(&self, input: LandAgent) -> Result<Landing, FleetError> {
        let local = self.clone();
        let landing = self.shared.tracker.spawn(async move { local.plan_or_land(&input).await });
        landing.await.unwrap_or_else(|_| {
            Err(FleetError::unavailable("the outcome is not known: the server failed or is shutting down")
                .with("outcome", "unknown"))
        })
    }

    async fn plan_or_land(&self, input: &LandAgent) -> Result<Landing, FleetError> {
        let agent = self.row_named(&input.agent_name)?;
        let told = |error: FleetError| error.or_with("agent_name", Some(agent.name.clone()));
        let objects = if input.plan.is_some() { Objects::InRepository } else { Objects::Beside };
        let prepared = self.prepare_landing(&agent, input, objects).await.map_err(told)?;
        let plan = prepared.plan_id();
        let mut landing = self.described(&agent, &prepared);
        let Some(wanted) = &input.plan else {
            landing.plan = (landing.outcome == LandOutcome::Planned).then_some(plan);
            return Ok(landing);
        };
        if landing.outcome == LandOutcome::Nothing {
            return Ok(landing);
        }
        if *wanted != plan {
            let message =
                "base or agent changed since the plan was made; nothing was changed. Look at a new plan";
            return Err(told(FleetError::conflict(message).with("reason", "plan_moved")));
        }
        prepared.carry_out(&agent, &mut landing).await.map_err(told)?;
        Ok(landing)
    }

    async fn prepare_landing(
        &self,
        agent: &AgentRow,
        input: &LandAgent,
        objects: Objects,
    ) -> Result<Prepared, FleetError> {
        let (workspace, checkout) = super::diff::repository_of(agent)?;
        let options = &self.shared.options;
        let kit_files = self.unchanged_kit_files(agent, &self.asker).await;
        let taken =
            Snapshot::take(&options.git, &options.home, workspace, checkout, &kit_files, objects).await;
        let snapshot = taken.map_err(|error| git_failed(&error))?;
        let Some(head) = snapshot.head.clone() else {
            let message = format!("Agent '{}' has no commit yet, so there is no base to land on", agent.name);
            return Err(FleetError::bad_request(message).with("reason", "no_base"));
        };
        let project = self.project_of(agent).ok();
        let repository = Place::found_from(project.map_or_else(|| checkout.common_dir.clone(), |it| it.path));
        let git = options.git.without_filters(&repository).await.map_err(|error| git_failed(&error))?;
        let committer = Committer::of(&git, &repository).await?;
        let diff_base =
            self.base_of(agent, checkout, Some(&head)).await.map_err(|error| git_failed(&error))?;
        let work = async {
            let tip = match &diff_base.branch {
                Some(branch) => tip_of(&git, &repository, branch).await?,
                None => None,
            };
            let Some(onto) = tip.clone().or_else(|| checkout.base_commit.clone()).or(diff_base.commit) else {
                return Ok(None);
            };
            snapshot.put_attributes(&onto).await?;
            let range = format!("{onto}..{head}");
            let listed = snapshot.at().args(["rev-list", "--reverse", "--topo-order", &range]).run().await?;
            let commits: Vec<String> = String::from_utf8_lossy(&listed).lines().map(str::to_owned).collect();
            let branch = diff_base.branch.filter(|_| tip.is_some());
            Ok(Some((onto, commits, branch)))
        };
        let found = work.await.map_err(|error: GitError| git_failed(&error))?;
        let Some((onto, commits, base)) = found else {
            let message = "the project has no commit to land on; commit something there first";
            return Err(FleetError::bad_request(message).with("reason", "no_base"));
        };
        let strategy = input.strategy.unwrap_or_default();
        let message = self.message_of(agent, input, strategy)?;
        if strategy == Strategy::Rebase {
            self.check_rebase(&snapshot, &onto, &commits, &head).await?;
        }
        let merge = Merged::make(&snapshot, &onto, &head, strategy, &commits).await;
        let merged = merge.map_err(|error| git_failed(&error))?;
        let rest = async {
            let changed = match &merged.tree {
                Some(tree) => changed_files(&snapshot, &onto, tree).await?,
                None => Vec::new(),
            };
            let workspaces = options.home.join("workspaces");
            let target =
                checkouts::target(&git, &repository, checkout, &workspaces, base.as_deref(), &changed);
            Ok((target.await?, not_run(&options.git, &repository, checkout).await?, changed))
        };
        let (target, not_run, changed) = rest.await.map_err(|error: GitError| git_failed(&error))?;
        let target = target.named(&agent.name);
        Ok(Prepared {
            snapshot,
            repository,
            base,
            onto,
            strategy,
            message,
            commits,
            merged,
            changed,
            committer,
            target,
            not_run,
        })
    }

    fn message_of(
        &self,
        agent: &AgentRow,
        input: &LandAgent,
        strategy: Strategy,
    ) -> Result<String, FleetError> {
        if let Some(message) = &input.message {
            let most = self.shared.options.limits.fleet_text_bytes;
            if message.trim().is_empty() || message.contains('\0') || message.len() as u64 > most {
                let text = format!(
                    "`message` is empty, has NUL characters or more than {most} bytes (limits.fleet_text_bytes)"
                );
                return Err(FleetError::invalid("message", text));
            }
            return Ok(message.clone());
        }
        let task = self.shared.store.newest_task(&agent.id);
        let task = headline(task.as_ref().map_or(&agent.spec, |task| &task.text));
        Ok(if strategy == Strategy::Merge { format!("Merge work of {}: {task}", agent.name) } else { task })
    }

    /// Refuses to put commits anew that cannot be: too many, or some that merge others.
    async fn check_rebase(
        &self,
        snapshot: &Snapshot,
        onto: &str,
        commits: &[String],
        head: &str,
    ) -> Result<(), FleetError> {
        let most = self.shared.options.limits.fleet_land_commits;
        if commits.len() as u64 > most {
            let message = format!(
                "The agent has {} commits; at most {most} are rebased (limits.fleet_land_commits). Use merge or squash",
                commits.len()
            );
            return Err(FleetError::invalid("strategy", message));
        }
        let range = format!("{onto}..{head}");
        let merges = snapshot.at().args(["rev-list", "--merges", "-n", "1", &range]).line().await;
        if !merges.map_err(|error| git_failed(&error))?.is_empty() {
            let message =
                "The agent has merged other commits, which a rebase would leave out. Use merge or squash";
            return Err(FleetError::invalid("strategy", message));
        }
        Ok(())
    }

    fn described(&self, agent: &AgentRow, it: &Prepared) -> Landing {
        let outcome = match (&it.merged.tree, it.changed.is_empty()) {
            (None, _) => LandOutcome::Conflicts,
            (Some(_), true) => LandOutcome::Nothing,
            (Some(_), false) => LandOutcome::Planned,
        };
        let base = it.base.as_deref().unwrap_or(&it.onto);
        let files = it.changed.len();
        let message = match (outcome, it.target.how) {
            (LandOutcome::Conflicts, _) => format!(
                "'{}' and `{base}` changed the same in {} files; nothing was changed",
                agent.name,
                it.merged.paths()
            ),
            (LandOutcome::Nothing, _) => format!("`{base}` has everything of '{}' already", agent.name),
            (_, Move::Aside) => format!(
                "Would put {files} changed files on branch `{}`; `{base}` stays where it is",
                it.target.aside
            ),
            (_, Move::Branch) => format!("Would move `{base}`: {files} files change"),
            (_, Move::Checkout) => {
                format!("Would move `{base}` and {files} files in {}", it.target.checkout.display())
            }
        };
        let is_aside = outcome == LandOutcome::Planned && it.target.how == Move::Aside;
        Landing {
            agent_name: agent.name.clone(),
            outcome,
            plan: None,
            strategy: it.strategy,
            base: it.base.clone(),
            base_commit: it.onto.clone(),
            commit: None,
            how: it.target.how,
            obstacles: it.target.obstacles.clone(),
            branch: is_aside.then(|| it.target.aside.clone()),
            command: is_aside.then(|| it.target.command()),
            changed_files: files,
            commits: it.commits.len(),
            uncommitted: it.snapshot.uncommitted,
            busy: self.open_task(&agent.id).is_some(),
            committer: it.committer.to_string(),
            signed: it.committer.signs,
            not_run: it.not_run.clone(),
            conflicts: it.merged.conflicts.clone(),
            task: (outcome == LandOutcome::Conflicts).then(|| resolving_task(base, &it.merged.conflicts)),
            unreadable: it.snapshot.unreadable.clone(),
            message,
        }
    }
}

impl Prepared {
    /// The same as long as the same would come of it.
    fn plan_id(&self) -> String {
        let how = format!("{:?}{:?}", self.target.how, self.committer);
        short_hash(&[
            self.onto.as_bytes(),
            self.base.as_deref().unwrap_or_default().as_bytes(),
            self.snapshot.head.as_deref().unwrap_or_default().as_bytes(),
            self.snapshot.tree.as_bytes(),
            self.merged.tree.as_deref().unwrap_or_default().as_bytes(),
            self.strategy.as_str().as_bytes(),
            self.message.as_bytes(),
            how.as_bytes(),
        ])
    }

    /// Makes the commits, then moves the base once or makes a branch.
    async fn carry_out(&self, agent: &AgentRow, landing: &mut Landing) -> Result<(), FleetError> {
        let commit = self.merged.commit(&self.snapshot, &self.committer, &self.onto, &self.message).await?;
        let note = format!("crewkit: landed {}", agent.name);
        let base = self.base.as_deref().unwrap_or_default();
        let moved = match self.target.how {
            Move::Aside => Ok(false),
            Move::Branch => {
                let reference = format!("refs/heads/{base}");
                let update = ["update-ref", "-m", &note, &reference, &commit, &self.onto];
                self.git_at(&self.repository).args(update).run().await.map(|_| true)
            }
            Move::Checkout => {
                let place = Place::found_from(&self.target.checkout);
                let merge = ["merge", "--quiet", "--ff-only", "--no-overwrite-ignore", "--no-stat", &commit];
                let variables = self.git_at(&place).env("GIT_REFLOG_ACTION", note);
                variables.args(merge).run().await.map(|_| true)
            }
        };
        // Git may have been ended after it moved the base: where the base is counts.
        let tip = match &self.base {
            Some(base) => tip_of(self.snapshot.git(), &self.repository, base)
                .await
                .map_err(|error| git_failed(&error))?,
            None => None,
        };
        landing.commit = Some(commit.clone());
        if tip.as_ref() == Some(&commit) {
            landing.outcome = LandOutcome::Landed;
            landing.message =
                format!("`{base}` has the work of '{}': {} files changed", agent.name, self.changed.len());
            return Ok(());
        }
        if tip.is_some() && tip.as_ref() != Some(&self.onto) {
            let message = format!("`{base}` was moved meanwhile; nothing was changed. Look at a new plan");
            return Err(FleetError::conflict(message).with("reason", "plan_moved"));
        }
        if let Err(error) = moved {
            landing.obstacles.push(error.to_string());
        }
        let branch = self.put_aside(&commit, landing).await.map_err(|error| git_failed(&error))?;
        landing.outcome = LandOutcome::KeptAside;
        landing.how = Move::Aside;
        landing.command = Some(Target { aside: branch.clone(), ..self.target.clone() }.command());
        landing.message =
            format!("The work of '{}' is on branch `{branch}`; the base was not moved", agent.name);
        landing.branch = Some(branch);
        Ok(())
    }

    /// Gives the result a branch of its own, or finds one that has the same.
    async fn put_aside(&self, commit: &str, landing: &mut Landing) -> Result<String, GitError> {
        const MOST: usize = 1000;
        let git = self.snapshot.git();
        let mut number = 1;
        loop {
            let name = match number {
                1 => self.target.aside.clone(),
                number => format!("{}-{number}", self.target.aside),
            };
            let reference = format!("refs/heads/{name}");
            // The empty old value means: only if there is no such branch.
            let update = ["update-ref", "-m", "crewkit: landed", &reference, commit, ""];
            let made = self.git_at(&self.repository).args(update).run().await;
            let Err(error) = made else { return Ok(name) };
            if let Some(tip) = tip_of(git, &self.repository, &name).await? {
                let same = format!("{tip}^{{tree}}");
                let tree = git.at(&self.repository).args(["rev-parse", &same]).line().await?;
                let onto = format!("{tip}^1");
                let onto =
                    git.at(&self.repository).args(["rev-parse", "--verify", "-q", &onto]).lookup().await?;
                if Some(&tree) == self.merged.tree.as_ref()
                    && onto.as_deref().map(one_line).as_ref() == Some(&self.onto)
                {
                    landing.commit = Some(tip);
                    return Ok(name);
                }
            }
            if number >= MOST {
                return Err(error);
            }
            number += 1;
        }
    }

    fn git_at<'a>(&'a self, place: &'a Place) -> Invocation<'a> {
        self.snapshot.git().at(place).offline()
    }
}

/// The commit a branch is at.
pub(super) async fn tip_of(git: &Git, repository: &Place, branch: &str) -> Result<Option<String>, GitError> {
    let name = format!("refs/heads/{branch}^{{commit}}");
    let tip = git.at(repository).args(["rev-parse", "--verify", "--quiet", &name]).lookup().await?;
    Ok(tip.as_deref().map(one_line))
}

/// Paths in which two trees differ.
async fn changed_files(snapshot: &Snapshot, from: &str, to: &str) -> Result<Vec<String>, GitError> {
    let listing = ["diff-tree", "-r", "-z", "--name-only", "--no-renames", from, to];
    let output = snapshot.at().args(listing).run().await?;
    Ok(String::from_utf8_lossy(&output).split('\0').filter(|it| !it.is_empty()).map(str::to_owned).collect())
}

/// Hooks that making or merging commits would run.
const HOOKS: [&str; 9] = [
    "pre-merge-commit",
    "prepare-commit-msg",
    "pre-commit",
    "commit-msg",
    "post-commit",
    "post-merge",
    "post-rewrite",
    "pre-rebase",
    "reference-transaction",
];

/// Programs of the repository that are not run.
async fn not_run(git: &Git, repository: &Place, checkout: &Checkout) -> Result<Vec<String>, GitError> {
    let mut names = git_output::foreign_programs(&git.foreign_settings(repository).await?);
    let listed = git.at(repository).args(["config", "--show-scope", "-z", "--get-all", "core.hooksPath"]);
    let set = listed.lookup().await?.and_then(|listing| git_output::last_set(&listing));
    let hooks = match set {
        Some(path) => repository.dir.join(path),
        None => checkout.common_dir.join("hooks"),
    };
    let is_program = |name: &&str| is_executable(&hooks.join(name));
    names.extend(HOOKS.iter().filter(|name| is_program(name)).map(|name| format!("hook `{name}`")));
    Ok(names)
}

#[cfg(unix)]
fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::metadata(path).is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_executable(path: &Path) -> bool {
    path.is_file()
}

/// What an agent is told to do about conflicts.
fn resolving_task(base: &str, conflicts: &[LandConflict]) -> String {
    let mut paths: Vec<&str> = conflicts.iter().map(|conflict| conflict.path.as_str()).collect();
    paths.dedup();
    format!(
        "Your work conflicts with `{base}`. Commit what you have, run `git merge {base}`, resolve the conflicts in {} \
         so that both intentions hold, run the tests and commit.",
        paths.join(", ")
    )
}

pub(super) fn git_failed(error: &GitError) -> FleetError {
    let reason = if matches!(error, GitError::Hazard { .. }) { "hazard" } else { "git" };
    FleetError::unavailable(format!("the work cannot be landed: {error}")).with("reason", reason)
}

/// Where a path is, with links resolved as far as it exists.
pub(super) fn resolved(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}
