//! Carrying out tasks: waiting for a place, starting a driver, hearing of its end. The agent's owner records it.

use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crewkit_agent::contract::End;
use crewkit_agent::driver::Stdin;
use crewkit_agent::engine::{Start, Until};
use crewkit_agent::{Pool, RunRecord, RunSpec};
use crewkit_core::run::RunState;
use futures_util::FutureExt;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::held::{Adoption, Ending, Exit, Held, Order, Parcel};
use super::options::{LOOP, REHEARSAL};
use super::record::{AgentRow, TaskRow, TaskState};
use super::{Local, output, prompt, settings};

/// How long one wait for a run lasts before it is waited for again.
const WAIT: Duration = Duration::from_mins(4);

/// A task that something carries out.
#[derive(Debug)]
pub(super) struct Work {
    /// Cancelled when the task is to end.
    pub(super) stop: CancellationToken,
}

/// What the owner of an agent is told about its task.
#[derive(Debug)]
pub(super) enum Report {
    /// It has come this far.
    Began { task: String, state: TaskState, run: Option<String> },
    /// It is over, and no process of it is left.
    Ended { task: String, outcome: Outcome },
}

impl Report {
    /// The task it is about.
    pub(super) fn task(&self) -> &str {
        match self {
            Self::Began { task, .. } | Self::Ended { task, .. } => task,
        }
    }
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
    pub(super) fn stopped() -> Self {
        Self {
            state: TaskState::Stopped,
            summary: None,
            reason: Some("requested".to_owned()),
            error: None,
            tokens: 0,
        }
    }

    pub(super) fn failed(reason: &str, error: impl Into<String>) -> Self {
        Self {
            state: TaskState::Failed,
            summary: None,
            reason: Some(reason.to_owned()),
            error: Some(error.into()),
            tokens: 0,
        }
    }

    /// The task with this end; when it ended is still to be noted.
    pub(super) fn of(self, task: &TaskRow) -> TaskRow {
        TaskRow {
            state: self.state,
            summary: self.summary,
            reason: self.reason,
            error: self.error,
            tokens: self.tokens,
            ..task.clone()
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
                use crewkit_core::run::StopReason::{Requested, ServerRestarted, ServerStopped};
                let interrupted = matches!(reason, Requested | ServerRestarted | ServerStopped);
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

impl Work {
    /// Carries out `row` in a task of its own, which tells `report` how far it is and how it ended.
    pub(super) fn spawn(
        local: &Local,
        row: TaskRow,
        begin: Begin,
        report: mpsc::UnboundedSender<Report>,
    ) -> Self {
        let stop = CancellationToken::new();
        let work = Self { stop: stop.clone() };
        let (local, tracker) = (local.clone(), local.shared.tracker.clone());
        tracker.spawn(async move {
            let id = row.id.clone();
            let working = AssertUnwindSafe(local.work(row, begin, &stop, &report)).catch_unwind();
            let outcome = tokio::select! {
                // What is recorded stays true: the next server goes on from it.
                () = local.shared.shutdown.cancelled() => return,
                worked = working => match worked {
                    Ok(outcome) => outcome,
                    Err(_) => {
                        local.shared.launcher.kill(&id).await;
                        Outcome::failed("internal", "the server failed while it worked; its log has the details")
                    }
                },
            };
            let _ = report.send(Report::Ended { task: id, outcome });
        });
        work
    }
}

impl Local {
    async fn work(
        &self,
        row: TaskRow,
        begin: Begin,
        stop: &CancellationToken,
        report: &mpsc::UnboundedSender<Report>,
    ) -> Outcome {
        if matches!(begin, Begin::Queued | Begin::Run(_)) {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = self.until_secrets(&row) => {}
            }
        }
        let _place = match &begin {
            // Work that is under way has its place already, whatever the limit says now.
            Begin::Adopted(_) | Begin::Ended(_) | Begin::Run(_) => self.shared.places.try_acquire().ok(),
            Begin::Queued => tokio::select! {
                biased;
                () = stop.cancelled() => return Outcome::stopped(),
                place = self.shared.places.acquire() => place.ok(),
            },
        };
        let worked = self.carry_out(&row, begin, stop, report).await;
        worked.unwrap_or_else(|error| Outcome::failed("driver_failed", error))
    }

    async fn carry_out(
        &self,
        row: &TaskRow,
        begin: Begin,
        stop: &CancellationToken,
        report: &mpsc::UnboundedSender<Report>,
    ) -> Result<Outcome, String> {
        let report_state = |row: &TaskRow, state, run: Option<&str>| {
            let run = run.map(str::to_owned);
            let _ = report.send(Report::Began { task: row.id.clone(), state, run });
        };
        match begin {
            Begin::Ended(exit) => Ok(self.outcome_of_process(row, exit).await),
            Begin::Adopted(held) => {
                report_state(row, TaskState::Running, None);
                Ok(self.attend(row, held, stop).await)
            }
            Begin::Run(run) => {
                let record = self.shared.engine.record(&run).map_err(|error| error.to_string())?;
                if let Some(outcome) = Outcome::of_run(&record) {
                    return Ok(outcome);
                }
                report_state(row, TaskState::Running, Some(&run));
                self.attend_run(&run, stop).await
            }
            Begin::Queued => {
                report_state(row, TaskState::Starting, None);
                let agent = self.shared.store.agent(&row.agent).ok_or("the agent is gone")?;
                let running = |run: Option<&str>| report_state(row, TaskState::Running, run);
                if row.driver == LOOP || row.driver == REHEARSAL {
                    self.carry_out_run(row, &agent, stop, &running).await
                } else {
                    self.carry_out_process(row, &agent, stop, &running).await
                }
            }
        }
    }

    async fn carry_out_run(
        &self,
        row: &TaskRow,
        agent: &AgentRow,
        stop: &CancellationToken,
        running: &(impl Fn(Option<&str>) + Sync),
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
            pool: Pool::Fleet,
        };
        // The key makes a second start of the same task find the first.
        let start = Start {
            contract: self.contract_of(row, agent),
            spec,
            key: Some(row.id.clone()),
            settings: Some(self.recorded_settings(&agent.id)),
        };
        let record = self.shared.engine.start(start).await.map_err(|error| error.to_string())?;
        let run = record.id.to_string();
        running(Some(&run));
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
        row: &TaskRow,
        agent: &AgentRow,
        stop: &CancellationToken,
        running: &(impl Fn(Option<&str>) + Sync),
    ) -> Result<Outcome, String> {
        let run_settings = self.shared.engine.fill_settings(&self.recorded_settings(&agent.id));
        let driver = settings::driver(&run_settings, &row.driver)?.ok_or("the loop is no command line")?;
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
        let environment = [run_settings.environment.as_slice(), &driver.environment].concat();
        let parcel = Parcel { order: &order, stdin, environment: &environment };
        match self.shared.launcher.launch(&dir, parcel).await {
            Ok(Adoption::Alive(held)) => {
                running(None);
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
        let run_settings = self.run_settings(&row.agent);
        let Ok(Some(driver)) = settings::driver(&run_settings, &row.driver) else {
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
        let project = self.project_name(agent);
        prompt::contract(&row.text, &self.role_of(agent), &project, workspace, &past)
    }

    /// Seconds a task of the agent may take; 0 is as long as it likes.
    fn seconds_for(&self, agent: &AgentRow) -> u64 {
        self.role_of(agent).max_seconds.unwrap_or(self.shared.options.limits.fleet_task_seconds)
    }

    pub(super) fn task_dir(&self, row: &TaskRow) -> PathBuf {
        self.shared.options.home.join("tasks").join(&row.agent).join(&row.id)
    }

    pub(super) fn task(&self, agent: &str, id: &str) -> Option<Arc<TaskRow>> {
        self.shared.store.tasks(agent).into_iter().find(|task| task.id == id)
    }

    /// Where the work on a task that is not over begins after a restart of the server.
    pub(super) async fn begin_of(&self, task: &TaskRow) -> Begin {
        if task.driver == LOOP || task.driver == REHEARSAL {
            // A run that was never noted is found by its key when it is started again.
            return task.run.clone().map_or(Begin::Queued, Begin::Run);
        }
        match self.shared.launcher.adopt(&self.task_dir(task), &task.id).await {
            Some(Adoption::Alive(held)) => Begin::Adopted(held),
            Some(Adoption::Ended(exit)) => Begin::Ended(exit),
            // It ran, and nothing is left that could tell of it.
            None if task.state == TaskState::Running => Begin::Ended(self.shared.launcher.unseen()),
            // No shim ever said a word, so the command never ran.
            None => Begin::Queued,
        }
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
