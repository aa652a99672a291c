//! The life of an agent's workspace: made, equipped, repaired, taken away.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::Local;
use super::keep::{self, Leaving};
use super::project::LocalProject;
use super::record::{AgentRow, Phase, TaskState};
use super::store::Change;
use super::work::Begin;
use super::worktree::{self, CopyLimits, Workspace};
use crate::backend::Moved;
use crate::error::FleetError;
use crate::kit::{KitPlace, KitState};
use crewkit_core::AgentStatus;

/// Time a task has to end when its agent is deleted, before its processes are killed from outside.
const LAST_PATIENCE: Duration = Duration::from_secs(10);

impl Local {
    /// Makes the workspace of a new agent, equips it, and lets its first task begin.
    pub(super) async fn prepare(&self, id: &str) -> Result<(), FleetError> {
        let lock = self.lock(id);
        let _held = lock.lock().await;
        let Some(agent) = self.shared.store.agent(id) else {
            return Err(FleetError::unavailable("the agent is gone"));
        };
        if agent.phase != Phase::Preparing {
            return Ok(());
        }
        let project = self.project(&agent.project)?;
        let options = &self.shared.options;
        if agent.path.exists() {
            // An earlier server died while it made this; nobody has worked in it.
            worktree::undo(&options.git, &project, &agent.path)
                .await
                .map_err(|error| workspace_error(&error))?;
        }
        // Journal and snapshots of a kit are about a workspace that is no more.
        let _ = tokio::fs::remove_dir_all(self.kit_state(&agent.id)).await;
        let limits =
            CopyLimits { bytes: options.limits.fleet_copy_bytes, entries: options.limits.fleet_copy_entries };
        let made = worktree::create(&options.git, &project, &agent.name, &agent.path, limits).await;
        let workspace = made.map_err(|error| workspace_error(&error))?;
        let equipped = self.first_kit(&agent, &project).await;
        let kit = match equipped {
            Ok(kit) => kit,
            Err(error) => {
                let _ = worktree::undo(&options.git, &project, &agent.path).await;
                return Err(error);
            }
        };
        let ready = AgentRow {
            phase: Phase::Ready,
            workspace: Some(workspace),
            kit,
            failure: None,
            updated_ms: self.now_ms(),
            ..AgentRow::clone(&agent)
        };
        self.shared.store.write(vec![Change::PutAgent(ready)]).await.map_err(|error| store_error(&error))?;
        if let Some(task) = self.open_task(id).filter(|task| task.state == TaskState::Queued) {
            self.submit(&task, Begin::Queued);
        }
        Ok(())
    }

    async fn first_kit(
        &self,
        agent: &AgentRow,
        project: &LocalProject,
    ) -> Result<Option<KitState>, FleetError> {
        let Some(kit) = &self.shared.options.kit else { return Ok(None) };
        let profile =
            self.role_of(agent).profile.or_else(|| project.profile.clone()).or_else(|| kit.default_profile());
        let Some(profile) = profile else { return Ok(None) };
        let place = self.kit_place(agent, &profile);
        let equipped = kit.equip(place).await.map_err(|error| {
            FleetError::unavailable(format!("the kit `{profile}` could not be deployed: {error}"))
                .with("reason", "kit")
                .with("kit_error", error.code)
        })?;
        Ok(Some(KitState { profile, snapshot_id: equipped.snapshot_id }))
    }

    pub(super) fn kit_place(&self, agent: &AgentRow, profile: &str) -> KitPlace {
        KitPlace {
            workspace: agent.path.clone(),
            state: self.kit_state(&agent.id),
            profile: profile.to_owned(),
        }
    }

    /// Where snapshots, journal and lock of an agent's kit are kept.
    fn kit_state(&self, id: &str) -> PathBuf {
        self.shared.options.home.join("kits").join(id)
    }

    /// Notes that the workspace could not be made.
    pub(super) async fn note_failure(&self, id: &str, error: &FleetError) {
        let Some(agent) = self.shared.store.agent(id) else { return };
        let failed = AgentRow {
            phase: Phase::Failed,
            failure: Some(error.message().to_owned()),
            updated_ms: self.now_ms(),
            ..AgentRow::clone(&agent)
        };
        let mut changes = vec![Change::PutAgent(failed)];
        changes.extend(self.open_task(id).map(|task| {
            let mut task = super::record::TaskRow::clone(&task);
            task.state = TaskState::Failed;
            task.error = Some(error.message().to_owned());
            task.ended_ms = Some(self.now_ms());
            Change::PutTask(task)
        }));
        if let Err(error) = self.shared.store.write(changes).await {
            tracing::error!(%error, "a failed workspace could not be noted");
        }
    }

    /// Ends the agent's work, keeps what it left, and forgets it.
    pub(super) async fn remove(&self, id: &str) -> Result<Moved, FleetError> {
        let lock = self.lock(id);
        let _held = lock.lock().await;
        let Some(agent) = self.shared.store.agent(id) else {
            return Ok(Moved { status: AgentStatus::Deleted.into(), note: None });
        };
        let leaving =
            AgentRow { phase: Phase::Deleting, updated_ms: self.now_ms(), ..AgentRow::clone(&agent) };
        self.shared
            .store
            .write(vec![Change::PutAgent(leaving)])
            .await
            .map_err(|error| store_error(&error))?;
        for task in self.shared.store.tasks(id).iter().filter(|task| !task.state.is_over()) {
            if !self.interrupt(task, LAST_PATIENCE).await {
                self.shared.launcher.kill(&task.id).await;
                self.interrupt(task, LAST_PATIENCE).await;
            }
        }
        let note = self.take_away(&agent).await?;
        self.shared
            .store
            .write(vec![Change::DropAgent(id.to_owned())])
            .await
            .map_err(|error| store_error(&error))?;
        for rest in [self.shared.options.home.join("tasks").join(id), self.kit_state(id)] {
            let _ = tokio::fs::remove_dir_all(rest).await;
        }
        self.forget(id);
        Ok(Moved { status: AgentStatus::Deleted.into(), note: Some(note) })
    }

    async fn take_away(&self, agent: &AgentRow) -> Result<String, FleetError> {
        let project = self.project(&agent.project).ok();
        let Some(workspace) = agent.workspace.clone() else {
            // It was never finished, so nobody has worked in it.
            if let Some(project) = project {
                let undone = worktree::undo(&self.shared.options.git, &project, &agent.path).await;
                undone.map_err(|error| workspace_error(&error))?;
            }
            return Ok("it left no changes".to_owned());
        };
        let repository = project.map_or_else(|| repository_of(&workspace), |project| project.path);
        let kit_files = match (&self.shared.options.kit, &agent.kit) {
            (Some(kit), Some(state)) => {
                let drift = kit.drift(self.kit_place(agent, &state.profile)).await;
                drift.map(|drift| drift.unchanged).unwrap_or_default()
            }
            _ => Vec::new(),
        };
        let leaving = Leaving {
            agent: &agent.name,
            workspace: &workspace,
            project: &repository,
            kit_files: &kit_files,
        };
        let kept = keep::take_away(&self.shared.options.git, &self.shared.trash, leaving).await;
        let kept = kept.map_err(|error| {
            FleetError::unavailable(format!(
                "the workspace could not be taken away: {error}; delete the agent again"
            ))
        })?;
        Ok(kept.sentence(&repository))
    }

    /// Brings an agent back to where it can work: ends its task, makes a lost workspace anew, resumes an interrupted run.
    pub(super) async fn revive(&self, id: &str) -> Result<Moved, FleetError> {
        if let Some(task) = self.open_task(id) {
            self.interrupt(&task, LAST_PATIENCE).await;
        }
        let Some(agent) = self.shared.store.agent(id) else { return Err(FleetError::no_such_agent(id)) };
        if agent.phase == Phase::Failed || (agent.phase == Phase::Ready && !agent.path.exists()) {
            return self.remake(&agent).await;
        }
        let newest = self.shared.store.newest_task(id);
        let resumable = newest.filter(|task| {
            task.state == TaskState::Stopped && task.reason.as_deref() == Some("server_restarted")
        });
        let Some(task) = resumable.and_then(|task| Some((task.run.clone()?, task))) else {
            return Ok(Moved {
                status: AgentStatus::Idle.into(),
                note: Some("it is ready for a task".to_owned()),
            });
        };
        let (run, task) = task;
        self.shared.engine.resume(&run).await.map_err(|error| FleetError::conflict(error.to_string()))?;
        let mut row = super::record::TaskRow::clone(&task);
        row.state = TaskState::Starting;
        row.ended_ms = None;
        self.shared.store.write(vec![Change::PutTask(row)]).await.map_err(|error| store_error(&error))?;
        self.submit(&task, Begin::Run(run));
        let note = "it goes on with the task that the restart of the server interrupted".to_owned();
        Ok(Moved { status: AgentStatus::Busy.into(), note: Some(note) })
    }

    async fn remake(&self, agent: &Arc<AgentRow>) -> Result<Moved, FleetError> {
        {
            let lock = self.lock(&agent.id);
            let _held = lock.lock().await;
            if let Some(workspace) = &agent.workspace {
                // The directory is gone; what was committed is still on its branch.
                let project = self.project(&agent.project)?;
                let leaving =
                    Leaving { agent: &agent.name, workspace, project: &project.path, kit_files: &[] };
                let kept = keep::take_away(&self.shared.options.git, &self.shared.trash, leaving).await;
                kept.map_err(|error| FleetError::unavailable(error.to_string()))?;
            }
            let again = AgentRow {
                phase: Phase::Preparing,
                workspace: None,
                failure: None,
                updated_ms: self.now_ms(),
                ..AgentRow::clone(agent)
            };
            self.shared
                .store
                .write(vec![Change::PutAgent(again)])
                .await
                .map_err(|error| store_error(&error))?;
        }
        if let Err(error) = self.prepare(&agent.id).await {
            self.note_failure(&agent.id, &error).await;
            return Err(error);
        }
        let note = "its workspace was made anew".to_owned();
        Ok(Moved { status: AgentStatus::Idle.into(), note: Some(note) })
    }
}

/// The repository of a workspace whose project is registered no more.
fn repository_of(workspace: &Workspace) -> PathBuf {
    match &workspace.git {
        Some(checkout) => checkout.common_dir.clone(),
        None => workspace.path.clone(),
    }
}

pub(super) fn workspace_error(error: &worktree::WorkspaceError) -> FleetError {
    FleetError::unavailable(format!("the workspace could not be made: {error}")).with("reason", "workspace")
}

pub(super) fn store_error(error: &super::store::StoreError) -> FleetError {
    FleetError::unavailable(error.to_string()).with("reason", "store")
}
