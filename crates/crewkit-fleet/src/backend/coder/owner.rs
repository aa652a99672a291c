//! Carries out what was begun on Coder, whoever asked for it and whether or not they still wait: one task per agent, until
//! nothing is recorded for it any more. A later server goes on from the record.

use std::sync::Arc;
use std::time::Duration;

use crewkit_core::AgentStatus;
use serde_json::json;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::agentapi::{self, Activity, Typing};
use super::intents::{Claim, Intent, Stage, Work, millis};
use super::record::LIVE_CHECK;
use super::wire::Workspace;
use super::{CoderHandle, Inner, kit};
use crate::backend::AgentRecord;
use crate::error::FleetError;

/// Longest time between two looks at a workspace that something is to be done to.
const LOOK: Duration = Duration::from_secs(3);
/// Shortest time between two looks.
const PAUSE: Duration = Duration::from_millis(200);
/// How long a new workspace may take to become ready, and a restart or deletion may be in the way of another build.
const PATIENCE: Duration = Duration::from_mins(30);

/// What one step came to.
enum Step {
    /// Nothing can be done until the workspace changes.
    Wait,
    /// Something was done; there may be more.
    Again,
    /// All is done, or cannot be.
    Done,
}

/// Tells the request how far its order has come: the status, and what it should know.
pub(super) type Answer = Result<(AgentStatus, Option<&'static str>), FleetError>;

impl Inner {
    /// Names this Coder and its user in the record.
    pub(super) fn place(&self) -> String {
        format!("{} {}", self.client.base(), self.settings.owner)
    }

    /// The intent recorded for an agent.
    pub(super) fn intent(&self, name: &str) -> Option<Intent> {
        self.settings.intents.get(&self.place(), name)
    }

    pub(super) fn new_intent(&self, name: &str, workspace: Option<uuid::Uuid>, work: Work) -> Intent {
        let since_ms = millis(self.clock.now());
        Intent { place: self.place(), name: name.to_owned(), workspace, since_ms, work }
    }

    /// Goes on with what an earlier server left.
    pub(super) async fn take_up(self: &Arc<Self>) -> Result<(), FleetError> {
        for intent in self.settings.intents.of(&self.place()).await? {
            self.carry_out(&intent.name);
        }
        Ok(())
    }

    /// Records an order and has it carried out; returns what is known once Coder has taken it.
    pub(super) async fn order(self: &Arc<Self>, intent: Intent) -> Answer {
        let name = intent.name.clone();
        let answer = self.settings.intents.await_answer(&intent);
        self.settings.intents.put(intent).await?;
        self.carry_out(&name);
        answer.await.unwrap_or_else(|_| {
            Err(FleetError::unavailable("the outcome is not known; show_agent tells the state")
                .with("outcome", "unknown"))
        })
    }

    /// Starts the task that carries out what is recorded for an agent, if there is none yet.
    pub(super) fn carry_out(self: &Arc<Self>, name: &str) {
        let (inner, name) = (Arc::clone(self), name.to_owned());
        let intents = Arc::clone(&self.settings.intents);
        intents.tasks.spawn(async move {
            let place = inner.place();
            // A task that is at work on the agent sees a new order when it looks next, unless it is about to end.
            let claim = loop {
                match inner.settings.intents.claim(&place, &name) {
                    Some(claim) => break claim,
                    None if inner.intent(&name).is_none() => return,
                    None => tokio::time::sleep(PAUSE).await,
                }
            };
            inner.work(&name, claim).await;
        });
    }

    async fn work(self: &Arc<Self>, name: &str, claim: Claim) {
        let begun = Instant::now();
        let mut reply = None;
        while let Some(intent) = self.intent(name) {
            if let Some(waiting) = self.settings.intents.take_waiting(&intent) {
                reply = Some(waiting);
            }
            let mut seen = None;
            let step = match self.intended(&intent).await {
                Ok(Some(workspace)) => {
                    let agent = self.record(workspace);
                    let step = Box::pin(self.step(&intent, &agent, &mut reply)).await;
                    seen = Some(agent);
                    step
                }
                Ok(None) => {
                    tell(&mut reply, || Ok((AgentStatus::Deleted, Some("it is gone already"))));
                    Step::Done
                }
                Err(_) => Step::Wait,
            };
            match step {
                Step::Again => {}
                Step::Done => self.settings.intents.done(&intent).await,
                Step::Wait if begun.elapsed() > PATIENCE => {
                    tracing::warn!(
                        agent = name,
                        "its workspace did not become ready for what was to be done"
                    );
                    self.settings.intents.done(&intent).await;
                }
                Step::Wait => {
                    let changed = async {
                        match &seen {
                            Some(agent) => self.changed(&agent.handle, LOOK).await,
                            None => tokio::time::sleep(LOOK).await,
                        }
                    };
                    // Some versions of Coder tell at once that there is a workspace.
                    tokio::join!(changed, tokio::time::sleep(PAUSE));
                }
            }
        }
        drop(claim);
    }

    /// The workspace an intent is about; none when it is gone, or another has its name now.
    async fn intended(&self, intent: &Intent) -> Result<Option<Workspace>, FleetError> {
        let workspace = self.reread(&intent.name).await?;
        Ok(workspace.filter(|found| match intent.workspace {
            Some(id) => found.id == id,
            // The answer of Coder was never recorded. What has the name now was made for this intent, or is older.
            None => millis(found.created_at) + 60_000 >= intent.since_ms,
        }))
    }

    async fn step(
        self: &Arc<Self>,
        intent: &Intent,
        agent: &AgentRecord<CoderHandle>,
        reply: &mut Option<oneshot::Sender<Answer>>,
    ) -> Step {
        match &intent.work {
            Work::Create { role, spec, kit } => {
                let mut agent = agent.clone();
                agent.role.clone_from(role);
                self.settle(intent, &agent, spec.as_deref(), *kit).await
            }
            Work::Restart { stage } => self.restart_step(intent, agent, *stage, reply).await,
            Work::Delete => self.delete_step(agent, reply).await,
        }
    }

    /// Puts the kit in once the start script is done, then gives the agent its spec if it has none yet; each once.
    async fn settle(
        &self,
        intent: &Intent,
        agent: &AgentRecord<CoderHandle>,
        spec: Option<&str>,
        needs_kit: bool,
    ) -> Step {
        if needs_kit {
            if !kit::is_reachable(agent) {
                return Step::Wait;
            }
            self.first_kit(agent).await;
            let Work::Create { role, spec, .. } = intent.work.clone() else { return Step::Done };
            let equipped = Intent { work: Work::Create { role, spec, kit: false }, ..intent.clone() };
            // A record that cannot be written leads to a second deployment, which changes nothing.
            if self.settings.intents.put(equipped).await.is_err() {
                return Step::Wait;
            }
            return Step::Again;
        }
        let Some(spec) = spec else { return Step::Done };
        if !agent.status.availability().is_online() {
            return Step::Wait;
        }
        let places = self.task_places(&agent.handle).await;
        if !matches!(agentapi::activity(&self.client, &places, LIVE_CHECK).await, Ok(Activity::Stable)) {
            return Step::Wait;
        }
        let Ok(said) = agentapi::messages(&self.client, &places, LIVE_CHECK).await else { return Step::Wait };
        if said.iter().any(|message| message.role == "user" && message.content.trim() == spec.trim()) {
            return Step::Done;
        }
        let time = Duration::from_millis(self.settings.limits.fleet_coder_send_ms);
        // Whether it arrived is seen in the conversation, at the next look.
        let sent = agentapi::type_in(&self.client, &places, Typing::Message, spec, time).await;
        match sent {
            Ok(()) => Step::Done,
            Err(error) => {
                tracing::warn!(agent = agent.name, %error, "the spec was not confirmed");
                Step::Wait
            }
        }
    }

    async fn restart_step(
        &self,
        intent: &Intent,
        agent: &AgentRecord<CoderHandle>,
        stage: Stage,
        reply: &mut Option<oneshot::Sender<Answer>>,
    ) -> Step {
        let at = |stage| Intent { work: Work::Restart { stage }, ..intent.clone() };
        let word = agent.handle.workspace.latest_build.word();
        match (stage, word) {
            (Stage::Stop, "stopped" | "canceled") | (Stage::Stopping, "stopped" | "canceled" | "failed") => {
                match self.start(agent).await {
                    Ok(()) => {
                        tell(reply, || Ok((AgentStatus::Starting, None)));
                        if self.settings.intents.put(at(Stage::Starting)).await.is_err() {
                            return Step::Wait;
                        }
                        Step::Again
                    }
                    Err(error) => refused(error, agent, reply),
                }
            }
            // An earlier attempt got this far, or somebody else stops it.
            (Stage::Stop, "stopping") => match self.settings.intents.put(at(Stage::Stopping)).await {
                Ok(()) => Step::Again,
                Err(_) => Step::Wait,
            },
            (Stage::Stop, _) => {
                match self.build(agent.handle.workspace.id, &json!({"transition": "stop"})).await {
                    Ok(()) => match self.settings.intents.put(at(Stage::Stopping)).await {
                        Ok(()) => Step::Again,
                        Err(_) => Step::Wait,
                    },
                    Err(error) if error.leaves_doubt() => Step::Wait,
                    Err(error) => refused(super::builds::busy_building(error, &agent.name), agent, reply),
                }
            }
            (Stage::Starting, "pending" | "starting") | (Stage::Stopping, _) => Step::Wait,
            (Stage::Starting, word) => {
                if word != "running" {
                    tracing::warn!(agent = agent.name, status = word, "it did not come back from a restart");
                }
                Step::Done
            }
        }
    }

    async fn delete_step(
        &self,
        agent: &AgentRecord<CoderHandle>,
        reply: &mut Option<oneshot::Sender<Answer>>,
    ) -> Step {
        let build = &agent.handle.workspace.latest_build;
        if build.word() == "deleting" {
            tell(reply, || Ok((AgentStatus::Deleting, None)));
            return Step::Done;
        }
        let error = match self.build(agent.handle.workspace.id, &json!({"transition": "delete"})).await {
            Ok(()) => {
                self.settings.intents.forget(agent.handle.workspace.id).await;
                tell(reply, || Ok((AgentStatus::Deleting, None)));
                return Step::Done;
            }
            Err(error) => error,
        };
        match error.status() {
            Some(404 | 410) => {
                tell(reply, || Ok((AgentStatus::Deleting, Some("it is gone already"))));
                Step::Done
            }
            Some(409) => {
                if agent.handle.workspace.template_allow_user_cancel_workspace_jobs {
                    self.cancel(build.id).await;
                }
                let why = "another build is under way; it is deleted as soon as that ends";
                tell(reply, || Ok((AgentStatus::Deleting, Some(why))));
                Step::Wait
            }
            // What the workspace says at the next look counts.
            _ if error.leaves_doubt() && reply.as_ref().is_none_or(|_| build.word() != "deleting") => {
                match self.reread(&agent.name).await {
                    Ok(Some(now)) if now.latest_build.word() == "deleting" => Step::Again,
                    Ok(None) => Step::Again,
                    _ => refused(error.into(), agent, reply),
                }
            }
            _ => refused(error.into(), agent, reply),
        }
    }
}

fn tell(reply: &mut Option<oneshot::Sender<Answer>>, answer: impl FnOnce() -> Answer) {
    if let Some(reply) = reply.take() {
        // A request that went away wants no answer; the work goes on.
        let _ = reply.send(answer());
    }
}

/// Reports a refusal to the request if it still waits; a build in the way is waited for otherwise.
fn refused(
    error: FleetError,
    agent: &AgentRecord<CoderHandle>,
    reply: &mut Option<oneshot::Sender<Answer>>,
) -> Step {
    let passes = error.detail("reason").is_some_and(|reason| reason == "build_active")
        || error.kind() == crate::ErrorKind::Unavailable;
    if passes && reply.is_none() {
        return Step::Wait;
    }
    tracing::warn!(agent = agent.name, %error, "what was to be done on Coder cannot be done");
    tell(reply, || Err(error));
    Step::Done
}
