//! The life of an agent's workspace: made, equipped, repaired, taken away. Carried out by the agent's owner.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crewkit_core::AgentStatus;

use super::Local;
use super::keep::{self, Leaving};
use super::owner::{Owner, Reply};
use super::project::LocalProject;
use super::record::{AgentRow, Intent, Phase, TaskRow, TaskState};
use super::settings::Asker;
use super::store::Change;
use super::work::Outcome;
use super::worktree::{self, CopyLimits, Workspace};
use crate::backend::Moved;
use crate::error::{ErrorKind, FleetError};
use crate::kit::{KitPlace, KitState};

/// How often a workspace that was half made, or half taken away, is tried again.
const TRIES: u32 = 10;
const TRY_PAUSE: Duration = Duration::from_millis(500);

impl Owner {
    /// Records a new agent and makes its workspace. Answers when it is made, or after `fleet_create_wait_ms` while it is
    /// still being made. A caller that is told of a failure leaves no agent behind.
    pub(super) async fn create(
        &mut self,
        agent: AgentRow,
        task: TaskRow,
        asker: &Asker,
        reply: Reply<Arc<AgentRow>>,
    ) {
        let name = agent.name.clone();
        let trusted = Change::TrustProject(agent.project.clone());
        let settings = Change::PutSettings(self.local.recorded_settings(&self.id));
        let changes = vec![Change::NewAgent(agent), Change::PutTask(task), trusted, settings];
        if let Err(error) = self.write(changes).await {
            if self.agent().is_ok() {
                self.write_firmly(vec![Change::DropAgent(self.id.clone())]).await;
            }
            let is_taken = error.kind() == ErrorKind::Conflict;
            return drop(reply.send(Err(if is_taken { FleetError::already_exists(&name) } else { error })));
        }
        let mut reply = Some(reply);
        let patience = Duration::from_millis(self.local.shared.options.limits.fleet_create_wait_ms);
        let prepared = {
            let preparing = self.prepare(asker);
            tokio::pin!(preparing);
            match tokio::time::timeout(patience, &mut preparing).await {
                Ok(prepared) => prepared,
                Err(_) => {
                    if let (Some(reply), Ok(agent)) = (reply.take(), self.agent()) {
                        let _ = reply.send(Ok(agent));
                    }
                    preparing.await
                }
            }
        };
        match (prepared, reply) {
            (Ok(()), reply) => {
                self.begin_queued().await;
                if let Some(reply) = reply {
                    let _ = reply.send(self.agent());
                }
            }
            (Err(error), Some(reply)) => {
                self.write_firmly(vec![Change::DropAgent(self.id.clone())]).await;
                let _ = reply.send(Err(error));
            }
            (Err(error), None) => self.note_failure(&error).await,
        }
    }

    /// Makes a workspace that an earlier owner left half made.
    pub(super) async fn prepare_again(&mut self, asker: &Asker) {
        let mut tries = 1;
        loop {
            match self.prepare(asker).await {
                Ok(()) => return self.begin_queued().await,
                Err(error) if tries >= TRIES => return self.note_failure(&error).await,
                // The git of a server that died may still be writing there; it ends soon by itself.
                Err(_) => tokio::time::sleep(TRY_PAUSE).await,
            }
            tries += 1;
        }
    }

    async fn begin_queued(&mut self) {
        if let Some(task) = self.open_task() {
            self.submit(&task).await;
        }
    }

    /// Makes the workspace of a recorded agent and equips it. What fails is taken back.
    async fn prepare(&self, asker: &Asker) -> Result<(), FleetError> {
        let agent = self.agent()?;
        let project = self.local.project_of(&agent)?;
        let options = &self.local.shared.options;
        if agent.path.exists() {
            // Nobody has worked in what an earlier owner half made.
            let undone = worktree::undo(&options.git, &project, &agent.path).await;
            undone.map_err(|error| workspace_error(&error))?;
        }
        // Journal and snapshots of a kit belong to a workspace that is gone.
        let _ = tokio::fs::remove_dir_all(self.local.kit_state(&agent.id)).await;
        let limits =
            CopyLimits { bytes: options.limits.fleet_copy_bytes, entries: options.limits.fleet_copy_entries };
        let made = worktree::create(&options.git, &project, &agent.name, &agent.path, limits).await;
        let workspace = made.map_err(|error| workspace_error(&error))?;
        let ready = self.equip_and_record(&agent, &project, workspace, asker).await;
        if ready.is_err() {
            let _ = worktree::undo(&options.git, &project, &agent.path).await;
        }
        ready
    }

    async fn equip_and_record(
        &self,
        agent: &AgentRow,
        project: &LocalProject,
        workspace: Workspace,
        asker: &Asker,
    ) -> Result<(), FleetError> {
        self.local.shared.options.faults.after("git")?;
        let kit = self.first_kit(agent, project, asker).await?;
        let ready = AgentRow {
            phase: Phase::Ready,
            workspace: Some(workspace),
            kit,
            failure: None,
            intent: None,
            updated_ms: self.local.now_ms(),
            ..agent.clone()
        };
        self.write(vec![Change::PutAgent(ready)]).await
    }

    async fn first_kit(
        &self,
        agent: &AgentRow,
        project: &LocalProject,
        asker: &Asker,
    ) -> Result<Option<KitState>, FleetError> {
        let Some(kit) = &asker.settings.kit else { return Ok(None) };
        let role = self.local.role_of(agent);
        let profile = role.profile.or_else(|| project.profile.clone()).or_else(|| kit.default_profile());
        let Some(profile) = profile else { return Ok(None) };
        let place = self.local.kit_place(agent, &profile);
        let equipped = kit.equip(place).await.map_err(|error| {
            FleetError::unavailable(format!("the kit `{profile}` could not be deployed: {error}"))
                .with("reason", "kit")
                .with("kit_error", error.code)
        })?;
        self.local.shared.options.faults.after("pack")?;
        Ok(Some(KitState { profile, snapshot_id: equipped.snapshot_id }))
    }

    /// Records that the workspace could not be made.
    async fn note_failure(&self, error: &FleetError) {
        let Ok(agent) = self.agent() else { return };
        let failed = AgentRow {
            phase: Phase::Failed,
            failure: Some(error.message().to_owned()),
            intent: None,
            updated_ms: self.local.now_ms(),
            ..AgentRow::clone(&agent)
        };
        let mut changes = vec![Change::PutAgent(failed)];
        changes.extend(self.open_task().map(|task| {
            Change::PutTask(Outcome::failed("workspace", error.message()).of(&task, self.local.now_ms()))
        }));
        self.write_firmly(changes).await;
    }

    /// Ends the agent's work, keeps what it left, and forgets it. If that cannot be done the agent stays as it was.
    pub(super) async fn delete(&mut self, asker: &Asker) -> Result<Moved, FleetError> {
        let agent = self.agent()?;
        let leaving =
            AgentRow { phase: Phase::Deleting, updated_ms: self.local.now_ms(), ..AgentRow::clone(&agent) };
        if let Err(error) = self.write(vec![Change::PutAgent(leaving)]).await {
            self.keep_after_all(&agent, &error).await;
            return Err(error);
        }
        let mut tries = 1;
        let note = loop {
            let removed = match self.end_task().await {
                Ok(()) => self.take_away(&agent, asker).await,
                Err(error) => Err(error),
            };
            match removed {
                Ok(note) => break note,
                Err(error) if tries >= TRIES => {
                    self.keep_after_all(&agent, &error).await;
                    return Err(error);
                }
                Err(error) => tracing::warn!(agent = agent.name, %error, "deleting is tried again"),
            }
            tries += 1;
            tokio::time::sleep(TRY_PAUSE).await;
        };
        let tasks = self.local.shared.store.tasks(&self.id);
        self.write_firmly(vec![Change::DropAgent(self.id.clone())]).await;
        self.local.forget_work(&tasks).await;
        for rest in
            [self.local.shared.options.home.join("tasks").join(&self.id), self.local.kit_state(&self.id)]
        {
            let _ = tokio::fs::remove_dir_all(rest).await;
        }
        Ok(Moved { status: AgentStatus::Deleted.into(), note: Some(note) })
    }

    /// Records that the agent could not be deleted and can be used again.
    async fn keep_after_all(&self, agent: &AgentRow, error: &FleetError) {
        if self.agent().is_ok_and(|now| now.phase != Phase::Deleting) {
            return;
        }
        let phase = if agent.workspace.is_some() { Phase::Ready } else { Phase::Failed };
        let failure = Some(format!("it could not be deleted: {error}"));
        let kept = AgentRow { phase, failure, updated_ms: self.local.now_ms(), ..agent.clone() };
        self.write_firmly(vec![Change::PutAgent(kept)]).await;
    }

    async fn take_away(&self, agent: &AgentRow, asker: &Asker) -> Result<String, FleetError> {
        let options = &self.local.shared.options;
        let project = self.local.project_of(agent).ok();
        let Some(workspace) = agent.workspace.clone() else {
            // It was never finished, so nobody has worked in it.
            if let Some(project) = project {
                let undone = worktree::undo(&options.git, &project, &agent.path).await;
                undone.map_err(|error| workspace_error(&error))?;
            }
            return Ok("it left no changes".to_owned());
        };
        let repository = project.map_or_else(|| repository_of(&workspace), |project| project.path);
        let kit_files = self.local.unchanged_kit_files(agent, asker).await;
        let leaving = Leaving {
            agent: &agent.name,
            workspace: &workspace,
            project: &repository,
            kit_files: &kit_files,
        };
        let kept = keep::take_away(&options.git, &self.local.shared.trash, leaving).await;
        let kept = kept.map_err(|error| {
            FleetError::unavailable(format!("the workspace could not be taken away: {error}"))
        })?;
        options.faults.after("git")?;
        Ok(kept.sentence(&repository))
    }

    /// Brings an agent back to where it can work: ends its task, makes a lost workspace anew, resumes an interrupted run.
    pub(super) async fn restart(&mut self, asker: &Asker) -> Result<Moved, FleetError> {
        let agent = self.agent()?;
        let wanted = AgentRow { intent: Some(Intent::Restart), ..AgentRow::clone(&agent) };
        let revived = match self.write(vec![Change::PutAgent(wanted)]).await {
            Ok(()) => self.revive(asker).await,
            Err(error) => Err(error),
        };
        if let Ok(agent) = self.agent()
            && agent.intent.is_some()
        {
            let done = AgentRow {
                intent: None,
                failure: revived.as_ref().err().map(|error| error.message().to_owned()),
                updated_ms: self.local.now_ms(),
                ..AgentRow::clone(&agent)
            };
            self.write_firmly(vec![Change::PutAgent(done)]).await;
        }
        revived
    }

    async fn revive(&mut self, asker: &Asker) -> Result<Moved, FleetError> {
        if let Some(moved) = self.take_settings(asker).await? {
            return Ok(moved);
        }
        self.end_task().await?;
        let agent = self.agent()?;
        if agent.phase == Phase::Failed || !agent.path.exists() {
            return self.remake(&agent, asker).await;
        }
        let newest = self.local.shared.store.newest_task(&self.id);
        let resumable = newest.filter(|task| {
            task.state == TaskState::Stopped && task.reason.as_deref() == Some("server_restarted")
        });
        let Some((run, task)) = resumable.and_then(|task| Some((task.run.clone()?, task))) else {
            let note = Some("it is ready for a task".to_owned());
            return Ok(Moved { status: AgentStatus::Idle.into(), note });
        };
        let engine = &self.local.shared.engine;
        engine.resume(&run).await.map_err(|error| FleetError::conflict(error.to_string()))?;
        let row = TaskRow {
            state: TaskState::Queued,
            reason: None,
            error: None,
            ended_ms: None,
            ..TaskRow::clone(&task)
        };
        self.write_firmly(vec![Change::PutTask(row.clone())]).await;
        self.submit(&row).await;
        let note = "it goes on with the task that the restart of the server interrupted".to_owned();
        Ok(Moved { status: AgentStatus::Busy.into(), note: Some(note) })
    }

    async fn remake(&mut self, agent: &AgentRow, asker: &Asker) -> Result<Moved, FleetError> {
        if let Some(workspace) = &agent.workspace {
            // The directory is gone; what was committed is still on its branch.
            let project = self.local.project_of(agent)?;
            let leaving = Leaving { agent: &agent.name, workspace, project: &project.path, kit_files: &[] };
            let shared = &self.local.shared;
            let kept = keep::take_away(&shared.options.git, &shared.trash, leaving).await;
            kept.map_err(|error| FleetError::unavailable(error.to_string()))?;
        }
        let again = AgentRow {
            phase: Phase::Preparing,
            workspace: None,
            failure: None,
            updated_ms: self.local.now_ms(),
            ..agent.clone()
        };
        self.write(vec![Change::PutAgent(again)]).await?;
        if let Err(error) = self.prepare(asker).await {
            self.note_failure(&error).await;
            return Err(error);
        }
        let note = "its workspace was made anew".to_owned();
        Ok(Moved { status: AgentStatus::Idle.into(), note: Some(note) })
    }
}

impl Local {
    pub(super) fn kit_place(&self, agent: &AgentRow, profile: &str) -> KitPlace {
        KitPlace {
            workspace: agent.path.clone(),
            state: self.kit_state(&agent.id),
            profile: profile.to_owned(),
        }
    }

    /// Files of the kit that nobody has changed, relative to the workspace: they are no work.
    pub(super) async fn unchanged_kit_files(&self, agent: &AgentRow, asker: &Asker) -> Vec<String> {
        let (Some(kit), Some(state)) = (&asker.settings.kit, &agent.kit) else { return Vec::new() };
        let drift = kit.drift(self.kit_place(agent, &state.profile)).await;
        drift.map(|drift| drift.unchanged).unwrap_or_default()
    }

    /// Where snapshots, journal and lock of an agent's kit are kept.
    fn kit_state(&self, id: &str) -> PathBuf {
        self.shared.options.home.join("kits").join(id)
    }
}

/// The repository of a workspace whose project is registered no more.
fn repository_of(workspace: &Workspace) -> PathBuf {
    match &workspace.git {
        Some(checkout) => checkout.common_dir.clone(),
        None => workspace.path.clone(),
    }
}

fn workspace_error(error: &worktree::WorkspaceError) -> FleetError {
    FleetError::unavailable(format!("the workspace could not be made: {error}")).with("reason", "workspace")
}
