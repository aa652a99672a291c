//! Carrying out tasks: each is a run of the engine. The agent's owner records how far it is.

use std::path::PathBuf;
use std::sync::Arc;

use crewkit_agent::engine::{Error, Start};
use crewkit_agent::{Pool, RunRecord, RunSpec};
use crewkit_core::run::{Phase, RunState, StopReason, WaitsFor};
use tokio::sync::mpsc;

use super::options::{LOOP, REHEARSAL};
use super::record::{AgentRow, TaskRow, TaskState};
use super::{Local, prompt};

/// Named the task in the environment of its processes before tasks were runs.
pub const MARK_TASK: &str = "CREWKIT_TASK";

/// What the owner of an agent is told about its task.
#[derive(Debug)]
pub(super) enum Report {
    /// A driver works on it.
    Began { task: String },
    /// It is over, and no process of it is left.
    Ended { task: String, outcome: Outcome },
}

/// How a task ended.
#[derive(Debug)]
pub(super) struct Outcome {
    state: TaskState,
    summary: Option<String>,
    reason: Option<String>,
    error: Option<String>,
    tokens: u64,
}

impl Outcome {
    pub(super) fn stopped(reason: StopReason, error: Option<String>) -> Self {
        let reason = Some(reason.as_str().to_owned());
        Self { state: TaskState::Stopped, summary: None, reason, error, tokens: 0 }
    }

    pub(super) fn failed(reason: &str, error: impl Into<String>) -> Self {
        let (reason, error) = (Some(reason.to_owned()), Some(error.into()));
        Self { state: TaskState::Failed, summary: None, reason, error, tokens: 0 }
    }

    fn of_run(record: &RunRecord) -> Self {
        let error = record.error.as_deref().map(str::to_owned);
        let outcome = match record.state.stop_reason() {
            Some(
                reason @ (StopReason::Requested | StopReason::ServerRestarted | StopReason::ServerStopped),
            ) => Self::stopped(reason, error),
            Some(reason) => Self::failed(reason.as_str(), error.unwrap_or_default()),
            None => Self {
                state: TaskState::Completed,
                summary: record.summary.as_deref().map(str::to_owned),
                reason: None,
                error: None,
                tokens: 0,
            },
        };
        Self { tokens: record.usage.total(), ..outcome }
    }

    /// The task with this end, at the time `now_ms`.
    pub(super) fn of(self, task: &TaskRow, now_ms: i64) -> TaskRow {
        TaskRow {
            state: self.state,
            summary: self.summary,
            reason: self.reason,
            error: self.error,
            tokens: self.tokens,
            ended_ms: Some(now_ms),
            ..task.clone()
        }
    }
}

impl Local {
    /// The run of a task. The task's id is its key, so that one that was started and not noted is found again.
    pub(super) async fn run_of(&self, task: &TaskRow, agent: &AgentRow) -> Result<Arc<RunRecord>, Error> {
        let engine = &self.shared.engine;
        if let Some(run) = &task.run {
            return engine.record(run);
        }
        let start = Start {
            contract: self.contract_of(task, agent),
            spec: self.spec_of(agent, &task.driver),
            key: Some(task.id.clone()),
            settings: Some(self.recorded_settings(&agent.id)),
        };
        engine.start(start).await
    }

    /// How `driver` carries out tasks of an agent.
    pub(super) fn spec_of(&self, agent: &AgentRow, driver: &str) -> RunSpec {
        let role = self.role_of(agent);
        let (driver, model) = match driver {
            LOOP => (None, role.model),
            REHEARSAL => (None, Some(REHEARSAL.to_owned())),
            name => (Some(name.to_owned()), None),
        };
        RunSpec {
            driver,
            model,
            workdir: Some(agent.path.clone()),
            max_turns: role.max_turns,
            max_tokens: role.max_tokens,
            max_seconds: Some(role.max_seconds.unwrap_or(self.shared.options.limits.fleet_task_seconds)),
            pool: Pool::Fleet,
        }
    }

    /// Reports when the run of a task begins and ends.
    pub(super) async fn follow(&self, task: String, run: String, report: mpsc::UnboundedSender<Report>) {
        let engine = &self.shared.engine;
        let followed = async {
            let begun = engine.until(&run, |record| !is_queued(record)).await?;
            if matches!(begun.state, RunState::Running { .. }) {
                let _ = report.send(Report::Began { task: task.clone() });
            }
            let ended = engine.until(&run, |record| record.state.status().is_terminal()).await?;
            engine.settled(&run).await?;
            Ok(Outcome::of_run(&ended))
        };
        let outcome = followed.await.unwrap_or_else(|error: Error| lost(&error));
        let _ = report.send(Report::Ended { task, outcome });
    }

    /// How far an open task is, as its run tells.
    pub(super) fn phase_of(&self, task: &TaskRow) -> Option<Phase> {
        let run = task.run.as_deref().filter(|_| !task.state.is_over())?;
        self.shared.engine.record(run).ok()?.state.phase().cloned()
    }

    /// Removes the runs of tasks that are forgotten, and what their processes printed before tasks were runs.
    pub(super) async fn forget_work(&self, tasks: &[Arc<TaskRow>]) {
        for task in tasks {
            if let Some(run) = &task.run {
                // One that is not there any more needs no removing; any other is found at the next start.
                let _ = self.shared.engine.delete(run).await;
            }
            let _ = tokio::fs::remove_dir_all(self.task_dir(task)).await;
        }
    }

    /// Removes runs whose task a server forgot before it could remove them.
    pub(super) async fn forget_lost_work(&self) {
        let engine = &self.shared.engine;
        let agents = self.shared.store.agents();
        let tasks: std::collections::HashSet<String> = agents
            .iter()
            .flat_map(|agent| self.shared.store.tasks(&agent.id))
            .map(|task| task.id.clone())
            .collect();
        for run in engine.records() {
            let is_lost = run.idempotency.as_deref().is_none_or(|key| !tasks.contains(key));
            if run.spec.pool == Pool::Fleet && is_lost {
                let _ = engine.delete(run.id.as_str()).await;
            }
        }
    }

    /// The words the agent gets, with what it did before.
    fn contract_of(&self, row: &TaskRow, agent: &AgentRow) -> String {
        let Some(workspace) = &agent.workspace else { return row.text.clone() };
        let tasks = self.shared.store.tasks(&agent.id);
        let past: Vec<&TaskRow> =
            tasks.iter().map(|task| &**task).filter(|task| task.number < row.number).collect();
        let project = self.project_name(agent);
        prompt::contract(&row.text, &self.role_of(agent), &project, workspace, &past)
    }

    /// Where server and process of a task met before tasks were runs.
    pub(super) fn task_dir(&self, row: &TaskRow) -> PathBuf {
        self.shared.options.home.join("tasks").join(&row.agent).join(&row.id)
    }

    pub(super) fn task(&self, agent: &str, id: &str) -> Option<Arc<TaskRow>> {
        self.shared.store.tasks(agent).into_iter().find(|task| task.id == id)
    }

    /// The newest task of an agent if it is not over.
    pub(super) fn open_task(&self, agent: &str) -> Option<Arc<TaskRow>> {
        self.shared.store.newest_task(agent).filter(|task| !task.state.is_over())
    }
}

/// The end of a task whose run cannot be started or found.
pub(super) fn lost(error: &Error) -> Outcome {
    Outcome::failed(StopReason::DriverFailed.as_str(), error.to_string())
}

/// Whether a run waits for a slot, or for a secret without which it cannot be carried out.
fn is_queued(record: &RunRecord) -> bool {
    matches!(record.state.phase(), Some(Phase::Queued | Phase::Waiting(WaitsFor::Secret(_))))
}
