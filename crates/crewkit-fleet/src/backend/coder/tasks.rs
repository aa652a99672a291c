//! Gives an agent work, interrupts it, and tells what it has done.

use std::time::Duration;

use crewkit_core::AgentStatus;
use reqwest::Method;
use serde_json::json;
use tokio::time::Instant;

use super::agentapi::{self, Activity, AppError, ESCAPE, Typing};
use super::capability::Version;
use super::error::CoderError;
use super::journal::Note;
use super::record::LIVE_CHECK;
use super::wire::TaskLogs;
use super::{CoderHandle, Inner};
use crate::backend::local::headline;
use crate::backend::{AgentRecord, Interrupted, Rows, TaskOrder};
use crate::conversation;
use crate::error::FleetError;
use crate::history::{self, Context, Doing, Intervention};
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
        task: TaskOrder<'_>,
    ) -> Result<Task, FleetError> {
        let TaskOrder { text, source, .. } = task;
        let workspace = agent.handle.workspace.id;
        let intents = &self.settings.intents;
        let sent_at = self.clock.now();
        let note = Note::started(sent_at, text, source);
        // Noted before it is sent: whoever hangs up meanwhile is still the one who gave it.
        intents.note(workspace, note.clone(), self.settings.limits.fleet_journal_entries).await;
        if let Err(error) = self.send(agent, text).await {
            if error.detail("outcome").is_none() {
                intents.correct(workspace, &note, None).await;
            }
            return Err(error);
        }
        // The time of the message is what the task is known by in every process.
        let entries = self.conversation(agent).await.unwrap_or_default();
        let arrived = entries
            .iter()
            .rev()
            .find(|entry| entry.kind == LogKind::Input && conversation::is_same(&entry.content, text));
        let at = arrived.and_then(|entry| entry.time).unwrap_or(sent_at);
        let id = history::unreported_id(&agent.workspace_id, at);
        if arrived.is_none() {
            intents.correct(workspace, &note, Some(note.clone().with_id(&id))).await;
        }
        let summary = headline(text);
        let mut busy = agent.clone();
        busy.status = AgentStatus::Busy.into();
        (busy.current_task, busy.last_task) = (Some(summary.clone()), Some(summary.clone()));
        self.learn(&busy);
        Ok(Task {
            id,
            agent_name: agent.name.clone(),
            message: summary.clone(),
            summary,
            status: TaskStatus::Running,
            source,
            created_at: at,
            started_at: Some(at),
            completed_at: None,
            uri: String::new(),
            needs_user_attention: false,
            state: "working".to_owned(),
            phase: None,
            waits_for: None,
        })
    }

    async fn send(&self, agent: &AgentRecord<CoderHandle>, text: &str) -> Result<(), FleetError> {
        let sent = match self.send_to_task(&agent.handle, text).await? {
            Sent::NoSuchWay => self.send_to_app(&agent.handle, text).await?,
            Sent::Taken => Sent::Taken,
        };
        match sent {
            Sent::Taken => Ok(()),
            Sent::NoSuchWay => Err(FleetError::unavailable(format!(
                "Agent '{}' has no app that takes messages; its template needs an AgentAPI app",
                agent.name
            ))
            .with("reason", "no_task_app")),
        }
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
        let most = self.settings.limits.fleet_journal_entries;
        self.settings.intents.note(agent.handle.workspace.id, Note::stopped(at), most).await;

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
        let (tasks, _) = self.told(agent, None).await;
        let task = tasks.into_iter().next().unwrap_or_else(|| unnamed_task(agent));
        let mut rested = agent.clone();
        if confirmed {
            rested.status = AgentStatus::Idle.into();
        }
        rested.last_task = Some(task.message.clone());
        rested.current_task = (!confirmed).then(|| task.message.clone());
        self.learn(&rested);
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

    /// The tasks of an agent, newest first, and what they do not tell.
    pub(super) async fn history(
        &self,
        agent: &AgentRecord<CoderHandle>,
        rows: Rows,
    ) -> (Vec<Task>, Option<String>) {
        if rows == Rows::Raw {
            let context = self.context(agent, "", &[]);
            return (history::raw(&agent.handle.reports, &context), None);
        }
        let (live, conversation) = tokio::join!(self.live(agent), self.conversation(agent));
        self.told(&live, Some(conversation)).await
    }

    /// The tasks of an agent whose status is known: from the conversation; without one from what the agent said in reports.
    pub(super) async fn told(
        &self,
        agent: &AgentRecord<CoderHandle>,
        conversation: Option<Result<Vec<LogEntry>, FleetError>>,
    ) -> (Vec<Task>, Option<String>) {
        let conversation = match conversation {
            Some(conversation) => conversation,
            None => self.conversation(agent).await,
        };
        let spec = self.spec(&agent.handle).await;
        let interventions = self.settings.intents.done_to(agent.handle.workspace.id).await;
        let context = self.context(agent, &spec, &interventions);
        let missing = match &conversation {
            Err(error) => Some(format!("the conversation cannot be read: {}", error.message())),
            Ok(entries) => {
                let since = context.since;
                let reaches_back = entries.iter().any(|entry| entry.time.is_some_and(|time| time < since));
                let is_cut = !context.is_first_build && !reaches_back;
                is_cut.then(|| format!("Coder kept nothing of what was said before {since}"))
            }
        };
        let entries = conversation.unwrap_or_default();
        let reports = &agent.handle.reports;
        let says_what_it_does = reports.iter().any(|report| !report.message.is_empty());
        let tasks = if !conversation::has_tasks(&entries) && says_what_it_does {
            history::tidy(reports, &context)
        } else {
            conversation::tasks(&entries, reports, &context)
        };
        (tasks, missing)
    }

    /// The conversation, from the tasks API where it keeps one, else from the agent itself.
    pub(super) async fn conversation(
        &self,
        agent: &AgentRecord<CoderHandle>,
    ) -> Result<Vec<LogEntry>, FleetError> {
        let is_online = agent.status.availability().is_online();
        let is_stopped = agent.status == AgentStatus::Stopped;
        if (is_online || is_stopped)
            && let Some(logs) = self.log_of_task(&agent.handle).await
        {
            if logs.snapshot && logs.snapshot_at.is_none() {
                return Err(FleetError::bad_request(format!(
                    "Agent '{}' is {} and Coder kept no snapshot of its conversation; start it with restart_agent",
                    agent.name, agent.status
                ))
                .with("reason", "no_snapshot"));
            }
            return Ok(logs.logs.into_iter().map(super::wire::TaskLog::entry).collect());
        }
        if !is_online {
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

    fn context<'a>(
        &self,
        agent: &'a AgentRecord<CoderHandle>,
        spec: &'a str,
        interventions: &'a [Intervention],
    ) -> Context<'a> {
        let build = &agent.handle.workspace.latest_build;
        let doing = match agent.status.known() {
            Some(AgentStatus::Busy) => Doing::Works,
            Some(AgentStatus::Idle) if !self.may_be_unread(agent) => Doing::Rests,
            Some(AgentStatus::Idle | AgentStatus::Pending | AgentStatus::Starting) => Doing::MayNotHaveBegun,
            _ => Doing::Nothing,
        };
        Context {
            agent_name: &agent.name,
            workspace_id: &agent.workspace_id,
            created_at: agent.created_at,
            spec,
            since: build.created_at,
            is_first_build: build.number <= 1,
            doing,
            interventions,
        }
    }

    async fn log_of_task(&self, handle: &CoderHandle) -> Option<TaskLogs> {
        let version = self.client.version();
        let task = self.task_id(handle).filter(|_| version.is_none_or(|it| it >= Version::TASK_SEND))?;
        for route in self.tasks_routes.candidates(version) {
            let path = format!("{}/{}/{task}/logs", route.path(), self.settings.owner);
            match self.client.get::<TaskLogs>(&path, &[]).await {
                Ok(logs) => return Some(logs),
                Err(CoderError::RouteMissing { .. }) => self.tasks_routes.is_missing(route),
                Err(_) => return None,
            }
        }
        None
    }
}

/// A task that nothing is known of but that the agent worked on it.
fn unnamed_task(agent: &AgentRecord<CoderHandle>) -> Task {
    let at = agent.handle.workspace.latest_build.created_at;
    let text = agent.current_task.clone().unwrap_or_default();
    Task {
        id: history::unreported_id(&agent.workspace_id, at),
        agent_name: agent.name.clone(),
        message: text.clone(),
        summary: text,
        status: TaskStatus::Running,
        source: TaskSource::Human,
        created_at: at,
        started_at: Some(at),
        completed_at: None,
        uri: String::new(),
        needs_user_attention: false,
        state: String::new(),
        phase: None,
        waits_for: None,
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
