//! One owner task per agent: it alone changes the agent's rows, its workspace and its work.
//!
//! A request puts a command into the owner's mailbox and awaits the outcome. The command is carried out whether or not the
//! request still waits. Commands of one agent are carried out one after the other; the end of a task is recorded between
//! them. An owner that panics is started again with the same mailbox and first finishes or undoes what was recorded, as the
//! owner of the next server does after a crash.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crewkit_core::run::StopReason;
use futures_util::FutureExt;
use tokio::sync::{mpsc, oneshot};

use super::Local;
use super::backend::check_driver;
use super::prompt::headline;
use super::record::{AgentRow, Intent, Phase, Source, TaskRow, TaskState};
use super::settings::Asker;
use super::store::{Change, StoreError};
use super::work::{MARK_TASK, Outcome, Report, lost};
use crate::backend::Moved;
use crate::equip::{EquipOrder, EquipRow};
use crate::error::FleetError;

/// Pause before a change that could not be written is written again.
const REWRITE_PAUSE: Duration = Duration::from_millis(200);
/// Longest wait for the end of a task that was stopped.
const END_PATIENCE: Duration = Duration::from_secs(30);

/// Takes the outcome of a command. The request may be gone.
pub(super) type Reply<T> = oneshot::Sender<Result<T, FleetError>>;

/// A change of one agent.
pub(super) enum Command {
    /// Records the agent with its first task and makes its workspace.
    Create { agent: Box<AgentRow>, task: Box<TaskRow>, asker: Arc<Asker>, reply: Reply<Arc<AgentRow>> },
    /// Records a task and starts it.
    Start { task: NewTask, reply: Reply<Arc<TaskRow>> },
    /// Ends the open task; answers when its end is recorded.
    Stop { reply: Reply<Arc<TaskRow>> },
    /// Ends the open task and repairs the workspace.
    Restart { asker: Arc<Asker>, reply: Reply<Moved> },
    /// Deploys a kit into the workspace, or takes it back.
    Equip { order: Arc<EquipOrder>, asker: Arc<Asker>, reply: Reply<EquipRow> },
    /// Ends the agent's work, keeps what it left, and forgets the agent.
    Delete { asker: Arc<Asker>, reply: Reply<Moved> },
}

/// A task to be recorded.
pub(super) struct NewTask {
    pub(super) text: String,
    pub(super) source: Source,
    pub(super) key: Option<String>,
}

/// Where commands of one agent go.
pub(super) type Mailbox = mpsc::UnboundedSender<Command>;

impl Local {
    /// Sends a command to the owner of `agent` and awaits its outcome. The command is carried out even if the returned
    /// future is dropped.
    pub(super) async fn command<T>(
        &self,
        agent: &AgentRow,
        command: impl FnOnce(Reply<T>) -> Command,
    ) -> Result<T, FleetError> {
        let (reply, outcome) = oneshot::channel();
        if let Some(mailbox) = self.owners().get(&agent.id) {
            // A closed mailbox drops the reply as well.
            let _ = mailbox.send(command(reply));
        }
        match outcome.await {
            Ok(outcome) => outcome,
            Err(_) if self.shared.store.agent(&agent.id).is_none() => {
                Err(FleetError::no_such_agent(&agent.name))
            }
            Err(_) => Err(FleetError::unavailable(
                "the outcome is not known: the server failed or is shutting down; show_agent tells the state",
            )
            .with("outcome", "unknown")),
        }
    }

    /// Starts the owner of agent `id`. The receiver answers once the owner has taken up the open task of the agent.
    pub(super) fn spawn_owner(&self, id: &str) -> oneshot::Receiver<()> {
        let (mailbox, commands) = mpsc::unbounded_channel();
        let (settled, is_settled) = oneshot::channel();
        self.owners().insert(id.to_owned(), mailbox);
        let owner = Owner::new(self.clone(), id.to_owned(), commands, settled);
        self.shared.tracker.spawn(owner.run());
        is_settled
    }
}

/// Everything one agent is: its commands, its work and the requests that wait for it.
pub(super) struct Owner {
    pub(super) local: Local,
    pub(super) id: String,
    commands: mpsc::UnboundedReceiver<Command>,
    report: mpsc::UnboundedSender<Report>,
    reports: mpsc::UnboundedReceiver<Report>,
    /// Whether somebody follows the run of the open task.
    is_followed: bool,
    /// Requests that wait for the end of the open task.
    stops: Vec<Reply<Arc<TaskRow>>>,
    settled: Option<oneshot::Sender<()>>,
}

impl Owner {
    fn new(
        local: Local,
        id: String,
        commands: mpsc::UnboundedReceiver<Command>,
        settled: oneshot::Sender<()>,
    ) -> Self {
        let (report, reports) = mpsc::unbounded_channel();
        Self {
            local,
            id,
            commands,
            report,
            reports,
            is_followed: false,
            stops: Vec::new(),
            settled: Some(settled),
        }
    }

    async fn run(mut self) {
        let shutdown = self.local.shared.shutdown.clone();
        loop {
            let working = AssertUnwindSafe(self.work()).catch_unwind();
            tokio::select! {
                // What is recorded stays true: the next server goes on from it.
                () = shutdown.cancelled() => return,
                ended = working => match ended {
                    Ok(()) => return,
                    Err(_) => tracing::error!(agent = self.id, "the owner of an agent failed and is started again"),
                },
            }
        }
    }

    /// Finishes what is recorded, then carries out commands until the agent is gone.
    async fn work(&mut self) {
        self.settle().await;
        loop {
            tokio::select! {
                biased;
                Some(report) = self.reports.recv() => self.note(report).await,
                command = self.commands.recv() => match command {
                    Some(command) => self.carry_out(command).await,
                    None => return,
                },
            }
            if self.local.shared.store.agent(&self.id).is_none() {
                return self.leave();
            }
        }
    }

    /// The agent is gone. Commands that came too late are dropped, which answers them.
    fn leave(&mut self) {
        self.local.owners().remove(&self.id);
        self.local.shared.run_settings.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
        self.local.shared.metadata.forget(&self.id);
    }

    async fn carry_out(&mut self, command: Command) {
        match command {
            Command::Create { agent, task, asker, reply } => self.create(*agent, *task, &asker, reply).await,
            Command::Start { task, reply } => drop(reply.send(self.start(task).await)),
            Command::Stop { reply } => self.stop(reply).await,
            Command::Restart { asker, reply } => drop(reply.send(self.restart(&asker).await)),
            Command::Equip { order, asker, reply } => drop(reply.send(Ok(self.equip(&order, &asker).await))),
            Command::Delete { asker, reply } => drop(reply.send(self.delete(&asker).await)),
        }
    }

    /// Takes up what an earlier owner left.
    async fn settle(&mut self) {
        let Some(agent) = self.local.shared.store.agent(&self.id) else {
            // Nothing is recorded yet: the first command creates the agent.
            drop(self.settled.take());
            return;
        };
        let asker = Arc::clone(&self.local.asker);
        if agent.phase == Phase::Ready {
            self.finish_kit(&agent, &asker).await;
        }
        if !self.is_followed
            && let Some(task) = self.open_task()
        {
            self.take_up(&agent, &task).await;
        }
        drop(self.settled.take());
        let finished = match (agent.phase, agent.intent) {
            (Phase::Preparing, _) => return self.prepare_again(&asker).await,
            (Phase::Deleting, _) => self.delete(&asker).await.map(drop),
            (Phase::Ready | Phase::Failed, Some(Intent::Restart)) => self.restart(&asker).await.map(drop),
            (Phase::Ready | Phase::Failed, None) => Ok(()),
        };
        if let Err(error) = finished {
            tracing::error!(agent = agent.name, %error, "a command that was cut short could not be finished");
        }
    }

    /// Goes on with an open task.
    async fn take_up(&mut self, agent: &AgentRow, task: &TaskRow) {
        if self.local.task_dir(task).join("order.json").exists() {
            // Its process was started before tasks were runs, and nothing knows how to go on with it any more.
            let id = task.id.clone();
            let ending = move || crewkit_agent::kill_marked(MARK_TASK, |mark| mark == id);
            let _ = tokio::task::spawn_blocking(ending).await;
            let why =
                "the server was replaced by a newer version while the agent was at work; give the task again";
            let outcome = Outcome::stopped(StopReason::ServerRestarted, Some(why.to_owned()));
            self.note(Report::Ended { task: task.id.clone(), outcome }).await;
        } else if agent.phase == Phase::Ready || task.run.is_some() {
            self.submit(task).await;
        }
    }

    /// Starts the run of a task, or finds it, and follows it.
    pub(super) async fn submit(&mut self, task: &TaskRow) {
        let Ok(agent) = self.agent() else { return };
        let started = self.local.run_of(task, &agent).await;
        let run = match started {
            Ok(record) => record.id.to_string(),
            Err(error) => {
                let ended = Report::Ended { task: task.id.clone(), outcome: lost(&error) };
                return self.note(ended).await;
            }
        };
        // An error cannot take back what was started.
        let _ = self.local.shared.options.faults.after("run");
        if task.run.as_ref() != Some(&run) {
            let noted = TaskRow { run: Some(run.clone()), ..task.clone() };
            self.write_firmly(vec![Change::PutTask(noted)]).await;
        }
        self.is_followed = true;
        let (local, id, report) = (self.local.clone(), task.id.clone(), self.report.clone());
        self.local.shared.tracker.spawn(async move {
            tokio::select! {
                // What is recorded stays true: the next server goes on from it.
                () = local.shared.shutdown.cancelled() => {}
                () = local.follow(id, run, report) => {}
            }
        });
    }

    async fn start(&mut self, new: NewTask) -> Result<Arc<TaskRow>, FleetError> {
        let agent = self.agent()?;
        if let Some(task) = self.local.keyed_task(&agent, new.key.as_deref()) {
            return Ok(task);
        }
        self.local.check_start(&agent)?;
        let task = self.local.new_task(&agent, new);
        let tasks = self.local.shared.store.tasks(&self.id);
        let kept =
            usize::try_from(self.local.shared.options.limits.fleet_tasks_kept).unwrap_or(usize::MAX).max(1);
        let old = &tasks[..tasks.len().saturating_sub(kept - 1)];
        let mut changes = vec![Change::PutTask(task.clone())];
        changes.extend(old.iter().map(|task| Change::DropTask(task.id.clone())));
        changes.extend(self.healed(&agent));
        if let Err(error) = self.write(changes).await
            && self.local.task(&self.id, &task.id).is_none()
        {
            return Err(error);
        }
        self.local.forget_work(old).await;
        self.submit(&task).await;
        Ok(self.local.task(&self.id, &task.id).unwrap_or_else(|| Arc::new(task)))
    }

    async fn stop(&mut self, reply: Reply<Arc<TaskRow>>) {
        let Some(task) = self.open_task() else {
            let refusal = self.agent().map_or_else(|error| error, |agent| no_task(&agent.name));
            return drop(reply.send(Err(refusal)));
        };
        match self.ask_to_end(&task).await {
            Ok(()) if self.is_followed => self.stops.push(reply),
            Ok(()) => drop(reply.send(self.local.task(&self.id, &task.id).ok_or_else(|| no_task(&self.id)))),
            Err(error) => drop(reply.send(Err(error))),
        }
    }

    /// Ends the open task and waits until its end is recorded.
    pub(super) async fn end_task(&mut self) -> Result<(), FleetError> {
        let Some(task) = self.open_task() else { return Ok(()) };
        self.ask_to_end(&task).await?;
        while self.is_followed {
            let Ok(Some(report)) = tokio::time::timeout(END_PATIENCE, self.reports.recv()).await else {
                return Err(FleetError::conflict("the task of the agent does not end; try again later")
                    .with("reason", "busy"));
            };
            self.note(report).await;
        }
        Ok(())
    }

    /// Stops the run of the open task, whose end will be reported; records the end of one that has no run yet.
    async fn ask_to_end(&mut self, task: &TaskRow) -> Result<(), FleetError> {
        let Some(run) = task.run.as_deref().filter(|_| self.is_followed) else {
            let ended = Outcome::stopped(StopReason::Requested, None).of(task, self.local.now_ms());
            return self.write(vec![Change::PutTask(ended)]).await;
        };
        match self.local.shared.engine.stop(run).await {
            // Whoever follows it tells that it is gone.
            Ok(_) | Err(crewkit_agent::Error::NotFound(_)) => {}
            Err(error) => return Err(FleetError::unavailable(error.to_string()).with("reason", "store")),
        }
        self.local.shared.options.faults.after("run")
    }

    /// Records what is reported about the open task.
    async fn note(&mut self, report: Report) {
        let now = self.local.now_ms();
        let (id, outcome) = match report {
            Report::Began { task } => (task, None),
            Report::Ended { task, outcome } => (task, Some(outcome)),
        };
        let Some(task) = self.local.task(&self.id, &id) else { return };
        let row = match outcome {
            None if task.state == TaskState::Running => return,
            None => TaskRow { state: TaskState::Running, started_ms: Some(now), ..TaskRow::clone(&task) },
            Some(outcome) => outcome.of(&task, now),
        };
        let Ok(agent) = self.agent() else { return };
        let changed = AgentRow { updated_ms: now, ..AgentRow::clone(&agent) };
        self.write_firmly(vec![Change::PutTask(row.clone()), Change::PutAgent(changed)]).await;
        if row.state.is_over() {
            self.is_followed = false;
            let row = Arc::new(row);
            for reply in self.stops.drain(..) {
                let _ = reply.send(Ok(Arc::clone(&row)));
            }
        }
    }

    /// Writes what must be recorded; tries again until the disk takes it.
    pub(super) async fn write_firmly(&self, changes: Vec<Change>) {
        while let Err(error) = self.write(changes.clone()).await {
            tracing::error!(agent = self.id, %error, "a change could not be written; trying again");
            tokio::time::sleep(REWRITE_PAUSE).await;
        }
    }

    pub(super) fn agent(&self) -> Result<Arc<AgentRow>, FleetError> {
        self.local.shared.store.agent(&self.id).ok_or_else(|| FleetError::no_such_agent(&self.id))
    }

    pub(super) fn open_task(&self) -> Option<Arc<TaskRow>> {
        self.local.open_task(&self.id)
    }

    /// Writes rows of this agent; all of them or none.
    pub(super) async fn write(&self, changes: Vec<Change>) -> Result<(), FleetError> {
        let written = self.local.shared.store.write(changes).await;
        written.map_err(|error| match error {
            StoreError::Taken => FleetError::conflict("the name is taken"),
            other => super::store_error(&other),
        })?;
        self.local.shared.options.faults.after("store")
    }

    /// Forgets what went wrong before.
    fn healed(&self, agent: &AgentRow) -> Option<Change> {
        agent.failure.as_ref()?;
        Some(Change::PutAgent(AgentRow { failure: None, updated_ms: self.local.now_ms(), ..agent.clone() }))
    }
}

pub(super) fn no_task(agent: &str) -> FleetError {
    FleetError::bad_request(format!("Agent '{agent}' has no running task")).with("reason", "no_running_task")
}

impl Local {
    /// Returns an error if the agent cannot take a task now.
    pub(super) fn check_start(&self, agent: &AgentRow) -> Result<(), FleetError> {
        if agent.phase != Phase::Ready || agent.intent.is_some() {
            return Err(FleetError::bad_request(format!("Agent '{}' is not ready", agent.name))
                .with("reason", "offline"));
        }
        if let Some(open) = self.open_task(&agent.id) {
            return Err(FleetError::conflict(format!("Agent '{}' already has a running task", agent.name))
                .with("reason", "busy")
                .with("current_task", headline(&open.text)));
        }
        self.check_budget(agent)?;
        check_driver(&self.run_settings(&agent.id), &self.driver_for(agent))
    }

    /// The task of the agent that was started with `key`.
    pub(super) fn keyed_task(&self, agent: &AgentRow, key: Option<&str>) -> Option<Arc<TaskRow>> {
        let key = key?;
        let tasks = self.shared.store.tasks(&agent.id);
        tasks.into_iter().find(|task| task.key.as_deref() == Some(key))
    }
}
