//! Deletes and restarts workspaces. On Coder both are builds, and a workspace has one build at a time.

use std::time::Duration;

use crewkit_core::{AgentName, AgentStatus};
use reqwest::Method;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::time::Instant;
use uuid::Uuid;

use super::capability::Version;
use super::error::CoderError;
use super::wire::{BuildReference, Workspace};
use super::{CoderHandle, Inner};
use crate::backend::{AgentRecord, Moved};
use crate::error::FleetError;
use crate::model::StatusWord;

/// Time between two looks at a build.
const LOOK: Duration = Duration::from_millis(500);

impl Inner {
    /// Deletes the workspace, waiting for a build in progress if there is one.
    pub(super) async fn delete(&self, agent: &AgentRecord<CoderHandle>) -> Result<Moved, FleetError> {
        let workspace = &agent.handle.workspace;
        let deleting = |note: Option<&str>| {
            Ok(Moved { status: AgentStatus::Deleting.into(), note: note.map(str::to_owned) })
        };
        if agent.status == AgentStatus::Deleting {
            return deleting(Some("it was being deleted already"));
        }
        let until = Instant::now() + Duration::from_millis(self.settings.limits.fleet_delete_wait_ms);
        let mut asked_to_cancel = false;
        loop {
            let error = match self.build(workspace.id, &json!({"transition": "delete"})).await {
                Ok(()) => return deleting(None),
                Err(error) => error,
            };
            if matches!(error.status(), Some(404 | 410)) {
                return Err(FleetError::no_such_agent(&agent.name));
            }
            let is_occupied = error.status() == Some(409);
            if !is_occupied && !error.leaves_doubt() {
                return Err(error.into());
            }
            // Either another build is in the way, or the answer got lost: the workspace itself knows.
            match self.reread(&agent.name).await? {
                None => return deleting(Some("it is gone already")),
                Some(now) if now.latest_build.status == "deleting" => {
                    return deleting(is_occupied.then_some("it was being deleted already"));
                }
                Some(_) if !is_occupied => return Err(error.into()),
                Some(now) => {
                    if !asked_to_cancel && now.template_allow_user_cancel_workspace_jobs {
                        asked_to_cancel = true;
                        self.cancel(now.latest_build.id).await;
                    }
                }
            }
            if Instant::now() + LOOK >= until {
                return Err(busy_building(error, &agent.name));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Stops and starts the workspace; starts it when it is stopped.
    pub(super) async fn restart(&self, agent: &AgentRecord<CoderHandle>) -> Result<Moved, FleetError> {
        let workspace = &agent.handle.workspace;
        let moved = |status: AgentStatus, note: Option<&str>| {
            Ok(Moved { status: status.into(), note: note.map(str::to_owned) })
        };
        if matches!(agent.status.known(), Some(AgentStatus::Stopped | AgentStatus::Canceled)) {
            self.start(agent).await?;
            return moved(AgentStatus::Starting, None);
        }
        let can_chain = self.client.version().is_some_and(|version| version >= Version::BUILD_ON_SUCCESS);
        if can_chain {
            let body = json!({"transition": "stop", "on_success": {"transition": "start"}});
            self.build(workspace.id, &body).await.map_err(|error| busy_building(error, &agent.name))?;
            return moved(AgentStatus::Stopping, Some("Coder starts it again when it has stopped"));
        }
        self.build(workspace.id, &json!({"transition": "stop"}))
            .await
            .map_err(|error| busy_building(error, &agent.name))?;
        match self.wait_until_stopped(agent).await? {
            StatusWord::Known(AgentStatus::Stopped) => {
                self.start(agent).await?;
                moved(AgentStatus::Starting, None)
            }
            StatusWord::Known(AgentStatus::Stopping) => moved(
                AgentStatus::Stopping,
                Some("it takes long to stop; restart it once more when it is stopped"),
            ),
            status => Ok(Moved { status, note: Some("it could not be stopped".to_owned()) }),
        }
    }

    async fn start(&self, agent: &AgentRecord<CoderHandle>) -> Result<(), FleetError> {
        let workspace = &agent.handle.workspace;
        let start_wakes =
            self.client.version().is_none_or(|version| version >= Version::PLAIN_PROMPT_PARAMETER);
        if workspace.dormant_at.is_some() && !start_wakes {
            let path = format!("/api/v2/workspaces/{}/dormant", workspace.id);
            let time = self.write_time();
            self.client.send_bytes(Method::PUT, &path, &json!({"dormant": false}), time).await?;
        }
        self.build(workspace.id, &json!({"transition": "start"}))
            .await
            .map_err(|error| busy_building(error, &agent.name))
    }

    async fn wait_until_stopped(&self, agent: &AgentRecord<CoderHandle>) -> Result<StatusWord, FleetError> {
        let until = Instant::now() + Duration::from_secs(self.settings.limits.fleet_restart_wait_seconds);
        loop {
            let workspace =
                self.reread(&agent.name).await?.ok_or_else(|| FleetError::no_such_agent(&agent.name))?;
            let word = &workspace.latest_build.status;
            let status = word.parse().map_or_else(|_| StatusWord::Foreign(word.clone()), StatusWord::Known);
            let is_under_way = matches!(status.known(), Some(AgentStatus::Stopping | AgentStatus::Pending));
            if !is_under_way || Instant::now() >= until {
                return Ok(status);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn build(&self, workspace: Uuid, body: &Value) -> Result<(), CoderError> {
        let path = format!("/api/v2/workspaces/{workspace}/builds");
        self.client.send::<BuildReference>(Method::POST, &path, body, self.write_time()).await.map(|_| ())
    }

    /// Asks Coder to call a build off; whether it does is seen in the workspace.
    async fn cancel(&self, build: Uuid) {
        let path = format!("/api/v2/workspacebuilds/{build}/cancel");
        let asked = self.client.send::<IgnoredAny>(Method::PATCH, &path, &json!({}), self.write_time()).await;
        if let Err(error) = asked {
            tracing::debug!(%error, "the build in progress cannot be canceled");
        }
    }

    pub(super) async fn reread(&self, name: &str) -> Result<Option<Workspace>, FleetError> {
        let name =
            AgentName::lookup(name).map_err(|error| FleetError::invalid("agent_name", error.to_string()))?;
        self.workspace(&name).await
    }

    pub(super) fn write_time(&self) -> Duration {
        Duration::from_millis(self.settings.limits.fleet_coder_deadline_ms)
    }
}

fn busy_building(error: CoderError, name: &str) -> FleetError {
    match error {
        CoderError::Refused(refused) if refused.status == 409 => refused.quoted_in(
            FleetError::conflict(format!(
                "the workspace of agent '{name}' is in the middle of another build; try again when it is done"
            ))
            .with("reason", "build_active"),
        ),
        other => other.into(),
    }
}
