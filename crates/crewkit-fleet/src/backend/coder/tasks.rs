//! Gives an agent work, interrupts it, and tells what it has done.

use std::time::Duration;

use crewkit_core::AgentStatus;
use reqwest::Method;
use serde_json::json;
use tokio::time::Instant;

use super::agentapi::{self, Activity, AppError, ESCAPE, Typing};
use super::capability::Version;
use super::error::CoderError;
use super::record::LIVE_CHECK;
use super::wire::TaskLogs;
use super::{CoderHandle, Inner};
use crate::backend::{AgentRecord, Interrupted, Rows};
use crate::error::FleetError;
use crate::history::{self, Context, Intervention};
use crate::model::{LogEntry, LogKind, Task, TaskSource, TaskStatus};

/// Time between two looks at an agent that is being interrupted.
const LOOK: Duration = Duration::from_millis(200);
/// Time after which the interrupt key is pressed once more.
const PRESS_AGAIN: Duration = Duration::from_secs(1);

/// How AgentAPI words that it takes no message because the agent works; any other failure leaves doubt.
const REFUSED_WHILE_WORKING: &str = "can only be sent when";

/// What became of a message.
enum Sent {
    Taken,
    /// The way is not there at all; nothing was delivered.
    NoSuchWay,
}

impl Inner {
    /// Sends a task to an agent that was found idle a moment ago.
    pub(super) async fn start_task(
        &self,
        agent: &AgentRecord<CoderHandle>,
        text: &str,
    ) -> Result<Task, FleetError> {
        let handle = &agent.handle;
        let sent = match self.send_to_task(handle, text).await? {
            Sent::NoSuchWay => self.send_to_app(handle, text).await?,
            Sent::Taken => Sent::Taken,
        };
        if let Sent::NoSuchWay = sent {
            return Err(FleetError::unavailable(format!(
                "Agent '{}' has no app that takes messages; its template needs an AgentAPI app",
                agent.name
            ))
            .with("reason", "no_task_app"));
        }
        let at = self.clock.now();
        self.journal.note(handle.workspace.id, Intervention::Started { at, text: text.to_owned() });
        Ok(Task {
            id: history::unreported_id(&agent.workspace_id, at),
            agent_name: agent.name.clone(),
            summary: text.to_owned(),
            status: TaskStatus::Running,
            source: TaskSource::AiController,
            created_at: at,
            started_at: Some(at),
            completed_at: None,
            message: text.to_owned(),
            uri: String::new(),
            needs_user_attention: false,
            state: "working".to_owned(),
            phase: None,
            waits_for: None,
        })
    }

    /// Through the tasks API, where there is one and it knows this workspace.
    async fn send_to_task(&self, handle: &CoderHandle, text: &str) -> Result<Sent, FleetError> {
        let version = self.client.version();
        let (Some(task), false) = (self.task_id(handle), version.is_some_and(|it| it < Version::TASK_SEND))
        else {
            return Ok(Sent::NoSuchWay);
        };
        let time = Duration::from_millis(self.settings.limits.fleet_coder_send_ms);
        for route in self.tasks_routes.candidates(version) {
            let path = format!("{}/{}/{task}/send", route.path(), self.settings.owner);
            match self.client.send_bytes(Method::POST, &path, &json!({"input": text}), time).await {
                Ok(_) => return Ok(Sent::Taken),
                Err(CoderError::RouteMissing { .. }) => self.tasks_routes.is_missing(route),
                // The tasks API does not know it; the app may.
                Err(error) if error.status() == Some(404) => return Ok(Sent::NoSuchWay),
                Err(error) if is_not_ready(&error) => return Err(not_at_rest(&error.to_string())),
                Err(error) if error.leaves_doubt() => {
                    return self.settle_doubt(handle, text, &error.to_string()).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Sent::NoSuchWay)
    }

    /// Through the agent's own app.
    async fn send_to_app(&self, handle: &CoderHandle, text: &str) -> Result<Sent, FleetError> {
        let places = self.task_places(handle).await;
        if places.is_empty() {
            return Ok(Sent::NoSuchWay);
        }
        let time = Duration::from_millis(self.settings.limits.fleet_coder_send_ms);
        match agentapi::type_in(&self.client, &places, Typing::Message, text, time).await {
            Ok(()) => Ok(Sent::Taken),
            Err(AppError::Refused(reason)) if reason.contains(REFUSED_WHILE_WORKING) => {
                Err(not_at_rest(&reason))
            }
            Err(error) => self.settle_doubt(handle, text, &error.to_string()).await,
        }
    }

    /// Looks whether a message arrived although no good answer came; it is never sent a second time.
    async fn settle_doubt(&self, handle: &CoderHandle, text: &str, reason: &str) -> Result<Sent, FleetError> {
        let places = self.task_places(handle).await;
        let told = agentapi::messages(&self.client, &places, LIVE_CHECK).await.ok().and_then(|messages| {
            messages.into_iter().rev().find(|message| message.role == "user").map(|message| message.content)
        });
        if told.is_some_and(|told| told.trim() == text.trim()) {
            return Ok(Sent::Taken);
        }
        Err(FleetError::unavailable(format!(
            "the agent did not confirm the task ({reason}); look at its log before sending it again"
        ))
        .with("reason", "not_confirmed")
        .with("outcome", "unknown"))
    }

    /// Presses the interrupt key and watches the agent come to rest.
    pub(super) async fn stop_task(
        &self,
        agent: &AgentRecord<CoderHandle>,
    ) -> Result<Interrupted, FleetError> {
        let places = self.task_places(&agent.handle).await;
        let press = || agentapi::type_in(&self.client, &places, Typing::Keys, ESCAPE, LIVE_CHECK);
        press().await.map_err(|error| {
            FleetError::unavailable(format!("Agent '{}' cannot be interrupted: {error}", agent.name))
                .with("reason", "app_unreachable")
        })?;
        let at = self.clock.now();
        self.journal.note(agent.handle.workspace.id, Intervention::Stopped { at });

        let pressed = Instant::now();
        let until = pressed + Duration::from_millis(self.settings.limits.fleet_stop_confirm_ms);
        let mut pressed_again = false;
        let mut confirmed = false;
        while !confirmed && Instant::now() < until {
            tokio::time::sleep(LOOK).await;
            confirmed =
                matches!(agentapi::activity(&self.client, &places, LIVE_CHECK).await, Ok(Activity::Stable));
            if !confirmed && !pressed_again && pressed.elapsed() >= PRESS_AGAIN {
                pressed_again = true;
                // The first key may have closed a menu only. Whether this one helps is seen at the next look.
                let _ = press().await;
            }
        }
        let newest = self.history(agent, Rows::Tidy).await.into_iter().next();
        let task = newest.unwrap_or_else(|| unreported_task(agent));
        Ok(Interrupted {
            task: Task {
                status: TaskStatus::Stopped,
                started_at: task.started_at.or(Some(task.created_at)),
                completed_at: Some(at),
                ..task
            },
            confirmed,
        })
    }

    /// The tasks of an agent, newest first.
    pub(super) async fn history(&self, agent: &AgentRecord<CoderHandle>, rows: Rows) -> Vec<Task> {
        let interventions = self.journal.of(agent.handle.workspace.id);
        let context = context(agent, &interventions);
        let tasks = match rows {
            Rows::Tidy => history::tidy(&agent.handle.reports, &context),
            Rows::Raw => history::raw(&agent.handle.reports, &context),
        };
        if !tasks.is_empty() || rows == Rows::Raw {
            return tasks;
        }
        let spec = self.spec(&agent.handle).await;
        let initial = history::initial_task(&spec, agent.created_at, &context);
        if spec.is_empty() { Vec::new() } else { vec![initial] }
    }

    /// The conversation, from the tasks API where it keeps one, else from the agent itself.
    pub(super) async fn log(&self, agent: &AgentRecord<CoderHandle>) -> Result<Vec<LogEntry>, FleetError> {
        if let Some(entries) = self.log_of_task(&agent.handle).await {
            return Ok(entries);
        }
        if !agent.status.availability().is_online() {
            return Err(FleetError::bad_request(format!(
                "Agent '{}' is {}; its log can be read while it runs",
                agent.name, agent.status
            ))
            .with("reason", "offline"));
        }
        let places = self.task_places(&agent.handle).await;
        let time = Duration::from_millis(self.settings.limits.fleet_coder_request_ms);
        let messages = agentapi::messages(&self.client, &places, time).await.map_err(|error| {
            FleetError::unavailable(format!("the log of agent '{}' cannot be read: {error}", agent.name))
                .with("reason", "app_unreachable")
        })?;
        let entry = |message: agentapi::Message| LogEntry {
            id: message.id,
            kind: if message.role == "user" { LogKind::Input } else { LogKind::Output },
            content: message.content,
            time: message.time,
            truncated: false,
        };
        Ok(messages.into_iter().map(entry).collect())
    }

    async fn log_of_task(&self, handle: &CoderHandle) -> Option<Vec<LogEntry>> {
        let version = self.client.version();
        let task = self.task_id(handle).filter(|_| version.is_none_or(|it| it >= Version::TASK_SEND))?;
        for route in self.tasks_routes.candidates(version) {
            let path = format!("{}/{}/{task}/logs", route.path(), self.settings.owner);
            match self.client.get::<TaskLogs>(&path, &[]).await {
                Ok(logs) => {
                    let entry = |log: super::wire::TaskLog| LogEntry {
                        id: log.id,
                        kind: if log.kind == "input" { LogKind::Input } else { LogKind::Output },
                        content: log.content,
                        time: log.time,
                        truncated: false,
                    };
                    return Some(logs.logs.into_iter().map(entry).collect());
                }
                Err(CoderError::RouteMissing { .. }) => self.tasks_routes.is_missing(route),
                Err(_) => return None,
            }
        }
        None
    }
}

/// A task the agent has not reported anything about.
fn unreported_task(agent: &AgentRecord<CoderHandle>) -> Task {
    let text = agent.current_task.clone().unwrap_or_default();
    let begun = agent.handle.workspace.latest_build.created_at;
    history::initial_task(&text, begun, &context(agent, &[]))
}

fn context<'a>(agent: &'a AgentRecord<CoderHandle>, interventions: &'a [Intervention]) -> Context<'a> {
    Context {
        agent_name: &agent.name,
        workspace_id: &agent.workspace_id,
        since: agent.handle.workspace.latest_build.created_at,
        busy: agent.status == AgentStatus::Busy,
        online: agent.status.availability().is_online(),
        interventions,
    }
}

/// Whether Coder looked at the agent before it sent anything and found it at work; up to 2.31 it says so with the status
/// of an app that cannot be reached.
fn is_not_ready(error: &CoderError) -> bool {
    match error {
        CoderError::Refused(refused) => {
            refused.status == 409
                || (refused.status == 502 && refused.message.contains("not ready to accept input"))
        }
        _ => false,
    }
}

fn not_at_rest(reason: &str) -> FleetError {
    FleetError::conflict(format!("the agent is not ready for a task: {reason}")).with("reason", "busy")
}
