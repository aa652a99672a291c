//! Deletes and restarts workspaces. On Coder both are builds, and a workspace has one build at a time.

use std::sync::Arc;
use std::time::Duration;

use crewkit_core::{AgentName, AgentStatus};
use reqwest::Method;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use uuid::Uuid;

use super::capability::Version;
use super::error::CoderError;
use super::intents::{Stage, Work};
use super::wire::{BuildReference, Workspace};
use super::{CoderHandle, Inner};
use crate::backend::{AgentRecord, Moved};
use crate::error::FleetError;

impl Inner {
    /// Has the workspace deleted. A build that is in the way is waited for by the owner, not by the request.
    pub(super) async fn delete(
        self: &Arc<Self>,
        agent: &AgentRecord<CoderHandle>,
    ) -> Result<Moved, FleetError> {
        if agent.status == AgentStatus::Deleting {
            let note = Some("it was being deleted already".to_owned());
            return Ok(Moved { status: AgentStatus::Deleting.into(), note });
        }
        let intent = self.new_intent(&agent.name, Some(agent.handle.workspace.id), Work::Delete);
        let (_, note) = self.order(intent).await?;
        Ok(Moved { status: AgentStatus::Deleting.into(), note: note.map(str::to_owned) })
    }

    /// Has the workspace stopped and started, or started when it is stopped; returns when Coder has taken the start.
    ///
    /// The start is not chained to the stop: Coder refuses a chained start of a task's workspace and tells nobody.
    pub(super) async fn restart(
        self: &Arc<Self>,
        agent: &AgentRecord<CoderHandle>,
    ) -> Result<Moved, FleetError> {
        let work = Work::Restart { stage: Stage::Stop };
        let intent = self.new_intent(&agent.name, Some(agent.handle.workspace.id), work);
        let wait = Duration::from_secs(self.settings.limits.fleet_restart_wait_seconds);
        match tokio::time::timeout(wait, self.order(intent)).await {
            Ok(answer) => {
                let (status, note) = answer?;
                Ok(Moved { status: status.into(), note: note.map(str::to_owned) })
            }
            Err(_) => Ok(Moved {
                status: AgentStatus::Stopping.into(),
                note: Some("it takes long to stop; it is started as soon as it has stopped".to_owned()),
            }),
        }
    }

    pub(super) async fn start(&self, agent: &AgentRecord<CoderHandle>) -> Result<(), FleetError> {
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

    pub(super) async fn build(&self, workspace: Uuid, body: &Value) -> Result<(), CoderError> {
        let path = format!("/api/v2/workspaces/{workspace}/builds");
        self.client.send::<BuildReference>(Method::POST, &path, body, self.write_time()).await.map(|_| ())
    }

    /// Asks Coder to call a build off; whether it does is seen in the workspace.
    pub(super) async fn cancel(&self, build: Uuid) {
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

pub(super) fn busy_building(error: CoderError, name: &str) -> FleetError {
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
