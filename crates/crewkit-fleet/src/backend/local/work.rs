//! Carrying out tasks: waiting for a place, starting a driver, hearing of its end, writing it down.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crewkit_agent::contract::End;
use crewkit_agent::driver::{ProcessDriver, Stdin};
use crewkit_agent::engine::{Start, Until};
use crewkit_agent::{RunRecord, RunSpec};
use crewkit_core::run::RunState;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::held::{Adoption, Ending, Exit, Held, Order, Parcel};
use super::options::{LOOP, REHEARSAL};
use super::record::{AgentRow, TaskRow, TaskState};
use super::store::{Change, StoreError};
use super::{Local, output, prompt};

/// Pause before an end that could not be written is written again.
const REWRITE: Duration = Duration::from_secs(1);
/// How long one wait for a run lasts before it is waited for again.
const WAIT: Duration = Duration::from_mins(4);

/// A task that is under way in this process.
#[derive(Debug, Clone)]
pub(super) struct Work {
    /// Cancelled when somebody wants it to end.
    pub(super) stop: CancellationToken,
    done: watch::Receiver<bool>,
}

impl Work {
    /// Returns when the end of the task is on disk.
    pub(super) async fn done(&mut self) {
        // An error means that the worker is gone, which is an end as well.
        let _ = self.done.wait_for(|done| *done).await;
    }
}

/// How a task ended.
#[derive(Debug)]
struct Outcome {
    state: TaskState,
    summary: Option<String>,
    reason: Option<String>,
    error: Option<String>,
    tokens: u64,
}

impl Outcome {
    fn stopped() -> Self {
        Self {
            state: TaskState::Stopped,
            summary: None,
            reason: Some("requested".to_owned()),
            error: None,
            tokens: 0,
        }
    }

    fn failed(reason: &str, error: impl Into<String>) -> Self {
        Self {
            state: TaskState::Failed,
            summary: None,
            reason: Some(reason.to_owned()),
            error: Some(error.into()),
            tokens: 0,
        }
    }

    /// How a run of the engine ended; none while it has not.
    fn of_run(record: &RunRecord) -> Option<Self> {
        let tokens = record.usage.total();
        match &record.state {
            RunState::Ready | RunState::Running { .. } => None,
            RunState::Completed { .. } => Some(Self {
                state: TaskState::Completed,
                summary: record.summary.as_deref().map(str::to_owned),
                reason: None,
                error: None,
                tokens,
            }),
            RunState::Stopped { reason, .. } => {
                use crewkit_core::run::StopReason::{Requested, ServerRestarted};
                let interrupted = matches!(reason, Requested | ServerRestarted);
                Some(Self {
                    state: if interrupted { TaskState::Stopped } else { TaskState::Failed },
                    summary: None,
                    reason: Some(reason.as_str().to_owned()),
                    error: record.error.as_deref().map(str::to_owned),
                    tokens,
                })
            }
        }
    }
}

/// Where a worker begins.
pub(super) enum Begin {
    /// With nothing.
    Queued,
    /// With a process an earlier server started.
    Adopted(Held),
    /// With the end of such a process.
    Ended(Exit),
    /// With a run of the engine that is at work again.
    Run(String),
}

impl Local {
    /// Lets a worker carry out the task.
    pub(super) fn submit(&self, task: &TaskRow, begin: Begin) {
        let stop = CancellationToken::new();
        let (finished, done) = watch::channel(false);
        let work = Work { stop: stop.clone(), done };
        self.works().insert(task.id.clone(), work);
        let (local, id) = (self.clone(), task.id.clone());
        let agent = task.agent.clone();
        self.shared.tracker.spawn(async move {
            tokio::select! {
                () = local.work(&agent, &id, begin, &stop) => {}
                // What is recorded stays true: the next server goes on from it.
                () = local.shared.shutdown.cancelled() => {}
            }
            local.works().remove(&id);
            let _ = finished.send(true);
        });
    }

    async fn work(&self, agent: &str, task: &str, begin: Begin, stop: &CancellationToken) {
        let place = match &begin {
            // Work that is under way has its place already, whatever the limit says now.
            Begin::Adopted(_) | Begin::Ended(_) | Begin::Run(_) => self.shared.places.try_acquire().ok(),
            Begin::Queued => tokio::select! {
                biased;
                () = stop.cancelled() => None,
                place = self.shared.places.acquire() => place.ok(),
            },
        };
        let Some(mut row) = self.task(agent, task) else { return };
        let outcome = if stop.is_cancelled() && row.state == TaskState::Queued {
            Outcome::stopped()
        } else {
            match self.carry_out(&mut row, begin, stop).await {
                Ok(outcome) => outcome,
                Err(error) => Outcome::failed("driver_failed", error),
            }
        };
        row.state = outcome.state;
        row.summary = outcome.summary;
        row.reason = outcome.reason;
        row.error = outcome.error;
        row.tokens = outcome.tokens;
        row.ended_ms = Some(self.now_ms());
        self.write_end(row).await;
        drop(place);
    }

    async fn carry_out(
        &self,
        row: &mut TaskRow,
        begin: Begin,
        stop: &CancellationToken,
    ) -> Result<Outcome, String> {
        match begin {
            Begin::Ended(exit) => Ok(self.outcome_of_process(row, exit).await),
            Begin::Adopted(held) => {
                self.note_running(row, None).await.map_err(|error| error.to_string())?;
                Ok(self.attend(row, held, stop).await)
            }
            Begin::Run(run) => {
                let record = self.shared.engine.record(&run).map_err(|error| error.to_string())?;
                if let Some(outcome) = Outcome::of_run(&record) {
                    return Ok(outcome);
                }
                self.note_running(row, Some(run.clone())).await.map_err(|error| error.to_string())?;
                self.attend_run(&run, stop).await
            }
            Begin::Queued => {
                row.state = TaskState::Starting;
                self.put_task(row).await.map_err(|error| error.to_string())?;
                let agent = self.shared.store.agent(&row.agent).ok_or("the agent is gone")?;
                if row.driver == LOOP || row.driver == REHEARSAL {
                    self.carry_out_run(row, &agent, stop).await
                } else {
                    self.carry_out_process(row, &agent, stop).await
                }
            }
        }
    }

    async fn carry_out_run(
        &self,
        row: &mut TaskRow,
        agent: &AgentRow,
        stop: &CancellationToken,
    ) -> Result<Outcome, String> {
        let role = self.role_of(agent);
        let seconds = self.seconds_for(agent);
        let spec = RunSpec {
            driver: None,
            model: if row.driver == REHEARSAL { Some(REHEARSAL.to_owned()) } else { role.model.clone() },
            workdir: Some(agent.path.clone()),
            max_turns: role.max_turns,
            max_tokens: role.max_tokens,
            max_seconds: (seconds > 0).then_some(seconds),
        };
        // The key makes a second start of the same task find the first.
        let start = Start { contract: self.contract_of(row, agent), spec, key: Some(row.id.clone()) };
        let record = self.shared.engine.start(start).await.map_err(|error| error.to_string())?;
        let run = record.id.to_string();
        self.note_running(row, Some(run.clone())).await.map_err(|error| error.to_string())?;
        self.attend_run(&run, stop).await
    }

    async fn attend_run(&self, run: &str, stop: &CancellationToken) -> Result<Outcome, String> {
        let engine = &self.shared.engine;
        let runs = [run];
        loop {
            let waiting = engine.wait(&runs, Until::All, WAIT, &|_, _| {});
            tokio::select! {
                biased;
                () = stop.cancelled() => drop(engine.stop(run).await.map_err(|error| error.to_string())?),
                waited = waiting => drop(waited.map_err(|error| error.to_string())?),
            }
            let record = engine.record(run).map_err(|error| error.to_string())?;
            if let Some(outcome) = Outcome::of_run(&record) {
                return Ok(outcome);
            }
        }
    }

    async fn carry_out_process(
        &self,
        row: &mut TaskRow,
        agent: &AgentRow,
        stop: &CancellationToken,
    ) -> Result<Outcome, String> {
        let driver =
            self.driver(&row.driver).ok_or_else(|| format!("there is no driver `{}`", row.driver))?;
        let dir = self.task_dir(row);
        tokio::fs::create_dir_all(&dir).await.map_err(|error| format!("{}: {error}", dir.display()))?;
        let contract = self.contract_of(row, agent);
        let limits = &self.shared.options.limits;
        let order = Order {
            command: driver.filled(&row.id, &contract, &agent.path),
            directory: agent.path.clone(),
            task: row.id.clone(),
            output_bytes: limits.fleet_output_bytes,
            seconds: self.seconds_for(agent),
            grace_ms: limits.fleet_stop_confirm_ms * 2 / 3,
        };
        let stdin = (driver.stdin == Stdin::Contract).then_some(contract.as_str());
        let parcel = Parcel { order: &order, stdin, environment: &driver.environment };
        match self.shared.launcher.launch(&dir, parcel).await {
            Ok(Adoption::Alive(held)) => {
                self.note_running(row, None).await.map_err(|error| error.to_string())?;
                Ok(self.attend(row, held, stop).await)
            }
            Ok(Adoption::Ended(exit)) => Ok(self.outcome_of_process(row, exit).await),
            Err(error) => {
                self.shared.launcher.kill(&row.id).await;
                Err(error.to_string())
            }
        }
    }

    async fn attend(&self, row: &TaskRow, held: Held, stop: &CancellationToken) -> Outcome {
        let exit = {
            let ended = held.ended();
            tokio::pin!(ended);
            tokio::select! {
                biased;
                exit = &mut ended => exit,
                () = stop.cancelled() => {
                    held.stop().await;
                    ended.await
                }
            }
        };
        self.outcome_of_process(row, exit).await
    }

    async fn outcome_of_process(&self, row: &TaskRow, exit: Exit) -> Outcome {
        let Some(driver) = self.driver(&row.driver) else {
            return Outcome::failed("driver_failed", format!("there is no driver `{}` any more", row.driver));
        };
        let (dir, format, name) = (self.task_dir(row), driver.format, driver.name.clone());
        let (success, how) = (exit.code == Some(0), exit.how.clone());
        let read = tokio::task::spawn_blocking(move || output::end(&dir, format, &name, success, &how)).await;
        let (end, tokens) = read.unwrap_or((End::Halted, 0));
        let outcome = match exit.ending {
            Ending::Stopped => Outcome::stopped(),
            Ending::OutOfTime => {
                let agent = self.shared.store.agent(&row.agent);
                let time = agent
                    .map_or_else(String::new, |agent| format!(" of {} seconds", self.seconds_for(&agent)));
                Outcome::failed("time_limit", format!("its time{time} was over"))
            }
            Ending::NotStarted => Outcome::failed("driver_failed", exit.how),
            Ending::Unseen => Outcome::failed(
                "exited_unknown",
                "its process ended while nobody was looking; how is not known",
            ),
            Ending::Exited => match end {
                End::Completed { summary, .. } => Outcome {
                    state: TaskState::Completed,
                    summary: Some(prompt_summary(summary)),
                    reason: None,
                    error: None,
                    tokens,
                },
                End::Stopped { reason, error } => Outcome::failed(reason.as_str(), error),
                End::Halted => Outcome::failed("driver_failed", format!("it ended with {}", exit.how)),
            },
        };
        Outcome { tokens, ..outcome }
    }

    /// The words the agent gets, with what it did before.
    fn contract_of(&self, row: &TaskRow, agent: &AgentRow) -> String {
        let Some(workspace) = &agent.workspace else { return row.text.clone() };
        let tasks = self.shared.store.tasks(&agent.id);
        let past: Vec<&TaskRow> =
            tasks.iter().map(|task| &**task).filter(|task| task.number < row.number).collect();
        let project = self.project_name(&agent.project);
        prompt::contract(&row.text, &self.role_of(agent), &project, workspace, &past)
    }

    /// Seconds a task of the agent may take; 0 is as long as it likes.
    fn seconds_for(&self, agent: &AgentRow) -> u64 {
        self.role_of(agent).max_seconds.unwrap_or(self.shared.options.limits.fleet_task_seconds)
    }

    pub(super) fn task_dir(&self, row: &TaskRow) -> PathBuf {
        self.shared.options.home.join("tasks").join(&row.agent).join(&row.id)
    }

    pub(super) fn driver(&self, name: &str) -> Option<&ProcessDriver> {
        self.shared.options.drivers.iter().find(|driver| driver.name == name)
    }

    fn task(&self, agent: &str, id: &str) -> Option<TaskRow> {
        let tasks = self.shared.store.tasks(agent);
        tasks.iter().find(|task| task.id == id).map(|task| TaskRow::clone(task))
    }

    async fn note_running(&self, row: &mut TaskRow, run: Option<String>) -> Result<(), StoreError> {
        row.state = TaskState::Running;
        row.run = run.or(row.run.take());
        row.started_ms.get_or_insert(self.now_ms());
        self.put_task(row).await
    }

    async fn put_task(&self, row: &TaskRow) -> Result<(), StoreError> {
        self.shared.store.write(vec![Change::PutTask(row.clone())]).await
    }

    /// Writes the end of a task; tries again for as long as the disk does not take it.
    async fn write_end(&self, row: TaskRow) {
        loop {
            let mut changes = vec![Change::PutTask(row.clone())];
            let Some(agent) = self.shared.store.agent(&row.agent) else { return };
            changes.push(Change::PutAgent(AgentRow { updated_ms: self.now_ms(), ..AgentRow::clone(&agent) }));
            match self.shared.store.write(changes).await {
                Ok(()) | Err(StoreError::Closed) => return,
                Err(error) => {
                    tracing::error!(task = row.id, %error, "the end of a task could not be written; trying again");
                }
            }
            tokio::time::sleep(REWRITE).await;
        }
    }

    /// Interrupts the task and waits until its end is written, at most for `patience`. Tells whether it was.
    pub(super) async fn interrupt(&self, task: &TaskRow, patience: Duration) -> bool {
        let work = self.works().get(&task.id).cloned();
        let Some(mut work) = work else { return true };
        work.stop.cancel();
        tokio::time::timeout(patience, work.done()).await.is_ok()
    }

    pub(super) fn is_stopping(&self, task: &TaskRow) -> bool {
        self.works().get(&task.id).is_some_and(|work| work.stop.is_cancelled())
    }

    /// The newest task of an agent if it is not over.
    pub(super) fn open_task(&self, agent: &str) -> Option<Arc<TaskRow>> {
        self.shared.store.newest_task(agent).filter(|task| !task.state.is_over())
    }
}

/// A summary that fits into a record.
fn prompt_summary(summary: String) -> String {
    const LONGEST: usize = 16 * 1024;
    if summary.len() <= LONGEST {
        return summary;
    }
    format!("{}…", &summary[..summary.floor_char_boundary(LONGEST)])
}
