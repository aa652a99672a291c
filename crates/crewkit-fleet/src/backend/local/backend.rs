//! The fleet's questions and orders, answered on this machine.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crewkit_agent::{EventBody, RunSettings};
use crewkit_core::run::{MissingSecret, Phase as RunPhase, WaitsFor};
use crewkit_core::{AgentName, AgentStatus};
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::options::{LOOP, REHEARSAL};
use super::owner::{Command, NewTask, no_task};
use super::project::{Kind, LocalProject};
use super::prompt::headline;
use super::record::{AgentRow, AgentSettings, Phase, TaskRow, TaskState};
use super::worktree::Workspace;
use super::{Local, output, role, settings, status};
use crate::backend::{
    AgentRecord, Backend, BackendInfo, Interrupted, Made, Moved, NewAgent, Rows, TaskOrder,
};
use crate::error::FleetError;
use crate::metadata::Metadata;
use crate::model::{AgentKit, Health, HistoryScope, LogEntry, LogKind, Project, Role, RoleOrigin, Task};
use crate::time::Moment;

/// Entries of one run's transcript that are read at once.
const TRANSCRIPT_PAGE: usize = 500;

/// What is needed to act on an agent.
#[derive(Debug, Clone)]
pub struct Handle {
    pub(super) agent: Arc<AgentRow>,
    /// Whether somebody looks at this agent alone, rather than at a list.
    pub(super) alone: bool,
}

type Record = AgentRecord<Handle>;

fn moment(ms: i64) -> Moment {
    Moment::new(Timestamp::from_millisecond(ms).unwrap_or(Timestamp::UNIX_EPOCH))
}

fn task_of(agent: &AgentRow, row: &TaskRow, state: TaskState) -> Task {
    let said = match state {
        TaskState::Completed => row.summary.clone(),
        TaskState::Failed => row.error.clone(),
        _ => None,
    };
    Task {
        id: row.id.clone(),
        agent_name: agent.name.clone(),
        message: said.unwrap_or_else(|| headline(&row.text)),
        summary: headline(&row.text),
        status: status::task_status(state),
        source: row.source.into(),
        created_at: moment(row.created_ms),
        started_at: row.started_ms.map(moment),
        completed_at: row.ended_ms.map(moment),
        uri: String::new(),
        needs_user_attention: state == TaskState::Failed,
        state: status::state_word(state).to_owned(),
        phase: status::phase(state),
        waits_for: None,
    }
}

fn listed(project: &LocalProject) -> Project {
    let directory = project.path.file_name().map(|name| name.to_string_lossy().into_owned());
    let what = match project.kind {
        Kind::Repository { .. } => "git repository",
        Kind::Directory => "directory",
    };
    Project {
        name: project.name.clone(),
        display_name: project.name.clone(),
        description: if project.description.is_empty() {
            format!("{what} {}", project.path.display())
        } else {
            project.description.clone()
        },
        template_id: project.id.clone(),
        template_name: directory.unwrap_or_else(|| project.name.clone()),
        id: project.id.clone(),
        organization: String::new(),
        active_version_id: String::new(),
        preferred: false,
    }
}

/// Returns an error if there is no such driver, or its program is not installed.
pub(super) fn check_driver(run: &RunSettings, name: &str) -> Result<(), FleetError> {
    let refused = |message: String| FleetError::bad_request(message).with("reason", "driver");
    let driver = settings::driver(run, name).map_err(refused)?;
    let Some(program) = driver.and_then(|driver| driver.command.first()) else { return Ok(()) };
    let path = run.environment.iter().find(|(variable, _)| variable == "PATH");
    let mut directories = path.map(|(_, path)| std::env::split_paths(path)).into_iter().flatten();
    let is_installed = if program.contains('/') {
        std::path::Path::new(program).is_file()
    } else {
        directories.any(|directory| directory.join(program).is_file())
    };
    if is_installed {
        return Ok(());
    }
    Err(refused(format!(
        "Driver `{name}` needs the program `{program}`, which is not in PATH. Install it or use another driver"
    )))
}

impl Local {
    /// The task as it is shown: how far it is, its run tells.
    fn shown_task(&self, agent: &AgentRow, row: &TaskRow) -> Task {
        let phase = self.phase_of(row);
        let state = match phase {
            Some(RunPhase::Queued | RunPhase::Waiting(WaitsFor::Secret(_))) => TaskState::Queued,
            Some(RunPhase::Working | RunPhase::Waiting(_)) => TaskState::Running,
            None => row.state,
        };
        let task = task_of(agent, row, state);
        let Some(RunPhase::Waiting(waits_for)) = phase else { return task };
        let waiting = Task { phase: Some("waiting"), waits_for: Some(waits_for.clone()), ..task };
        match waits_for {
            WaitsFor::Secret(missing) => {
                Task { message: MissingSecret::explain(&missing), needs_user_attention: true, ..waiting }
            }
            WaitsFor::Agents(_) => waiting,
        }
    }

    fn record(&self, agent: Arc<AgentRow>, alone: bool) -> Record {
        let newest = self.shared.store.newest_task(&agent.id);
        let has_directory = agent.phase != Phase::Ready || agent.path.exists();
        let (word, health) = status::derive(&agent, newest.as_deref(), has_directory);
        let project_name = self.project_name(&agent);
        let busy = word == AgentStatus::Busy;
        let shown = newest.as_ref().map(|task| self.shown_task(&agent, task));
        let waits = shown.as_ref().is_some_and(|task| task.needs_user_attention && task.waits_for.is_some());
        let last_task = shown.map(|task| task.message);
        let health = if waits { Health::bad(last_task.clone().unwrap_or_default()) } else { health };
        AgentRecord {
            name: agent.name.clone(),
            workspace_id: agent.id.clone(),
            status: word.into(),
            role: agent.role.clone(),
            project_aliases: vec![project_name.clone(), agent.project.clone()],
            project: project_name,
            spec: Some(agent.spec.clone()),
            current_task: newest.as_ref().filter(|_| busy).map(|task| headline(&task.text)),
            last_task: last_task.map(|task| headline(&task)),
            pull_request_url: None,
            created_at: moment(agent.created_ms),
            updated_at: moment(agent.updated_ms),
            needs_attention: !health.healthy
                || newest.is_some_and(|task| task.reason.as_deref() == Some("server_restarted")),
            health,
            owner: self.shared.options.owner.clone(),
            organization: String::new(),
            url: None,
            kit: agent.kit.as_ref().map(|kit| AgentKit {
                profile: Some(kit.profile.clone()),
                snapshot_id: kit.snapshot_id.clone(),
                error: None,
                drift_count: None,
            }),
            handle: Handle { agent, alone },
        }
    }

    fn now(&self, record: &Record) -> Result<Arc<AgentRow>, FleetError> {
        let id = &record.handle.agent.id;
        self.shared.store.agent(id).ok_or_else(|| FleetError::no_such_agent(&record.name))
    }

    /// What carries out the tasks of an agent.
    pub(super) fn driver_for(&self, agent: &AgentRow) -> String {
        self.driver_with(agent, &self.run_settings(&agent.id))
    }

    fn driver_with(&self, agent: &AgentRow, run: &RunSettings) -> String {
        let fixed = agent.settings.as_ref().map(|settings| settings.driver.clone());
        let default = || fixed.unwrap_or_else(|| self.asker.settings.driver.clone());
        self.role_of(agent)
            .driver
            .or_else(default)
            .unwrap_or_else(|| if run.models.is_empty() { REHEARSAL.to_owned() } else { LOOP.to_owned() })
    }

    pub(super) fn new_task(&self, agent: &AgentRow, new: NewTask) -> TaskRow {
        let number = self.shared.store.newest_task(&agent.id).map_or(1, |task| task.number + 1);
        TaskRow {
            id: format!("task-{}", uuid::Uuid::now_v7().simple()),
            agent: agent.id.clone(),
            number,
            text: new.text,
            source: new.source,
            driver: self.driver_for(agent),
            state: TaskState::Queued,
            run: None,
            summary: None,
            reason: None,
            error: None,
            tokens: 0,
            key: new.key,
            created_ms: self.now_ms(),
            started_ms: None,
            ended_ms: None,
        }
    }

    pub(super) fn check_budget(&self, agent: &AgentRow) -> Result<(), FleetError> {
        let budget = self.shared.options.limits.fleet_agent_tokens;
        let used: u64 = self.shared.store.tasks(&agent.id).iter().map(|task| task.tokens).sum();
        if budget > 0 && used >= budget {
            return Err(FleetError::bad_request(format!(
                "Agent '{}' has used {used} of its {budget} tokens (limits.fleet_agent_tokens); \
                 raise the limit or make a new agent",
                agent.name
            ))
            .with("reason", "budget"));
        }
        Ok(())
    }

    async fn log_of_task(&self, row: &TaskRow) -> Vec<(EventBody, Option<Moment>)> {
        if let Some(run) = &row.run {
            let mut found = Vec::new();
            let mut after = 0;
            while let Ok(page) = self.shared.engine.output(run, after, TRANSCRIPT_PAGE).await {
                let bodies = page.entries.iter().map(|event| {
                    let ms = i64::try_from(event.at.millis()).ok();
                    (event.body.clone(), ms.map(moment))
                });
                found.extend(bodies);
                let Some(next) = page.next else { break };
                after = next;
            }
            return found;
        }
        let run_settings = self.run_settings(&row.agent);
        let Ok(Some(driver)) = settings::driver(&run_settings, &row.driver) else { return Vec::new() };
        let (dir, format) = (self.task_dir(row), driver.format);
        let read = tokio::task::spawn_blocking(move || output::entries(&dir, format)).await;
        read.unwrap_or_default().into_iter().map(|body| (body, None)).collect()
    }
}

type LogText = (LogKind, String, Option<Moment>);

impl Local {
    /// What the agent was told and said about one task, oldest first.
    async fn texts_of(&self, task: &TaskRow) -> Vec<LogText> {
        let told = (LogKind::Input, task.text.clone(), Some(moment(task.created_ms)));
        let said = self.log_of_task(task).await;
        let said =
            said.iter().filter_map(|(body, time)| Some((LogKind::Output, output::words(body)?, *time)));
        let error = task.error.clone().map(|error| (LogKind::Output, error, task.ended_ms.map(moment)));
        [told].into_iter().chain(said).chain(error).collect()
    }
}

impl Backend for Local {
    type Handle = Handle;

    const HISTORY: HistoryScope = HistoryScope::All;

    async fn info(&self) -> BackendInfo {
        let shared = &self.shared;
        let count = |number: usize| Value::from(number);
        let is_busy = |agent: &Arc<AgentRow>| self.open_task(&agent.id).is_some();
        let busy = shared.store.agents().iter().filter(|agent| is_busy(agent)).count();
        let facts: Map<String, Value> = [
            ("home", Value::from(shared.options.home.display().to_string())),
            ("agents", count(shared.store.agents().len())),
            ("tasks_open", count(busy)),
            ("tasks_active_limit", shared.options.limits.fleet_tasks_active.into()),
            ("projects", count(self.projects().await.len())),
            ("driver", Value::from(self.asker.settings.driver.clone())),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
        BackendInfo { backend: "local", reachable: true, facts }
    }

    async fn agents(&self) -> Result<Vec<Record>, FleetError> {
        let mut agents = self.shared.store.agents();
        agents.sort_by(|a, b| (a.created_ms, &a.id).cmp(&(b.created_ms, &b.id)));
        Ok(agents.into_iter().map(|agent| self.record(agent, false)).collect())
    }

    async fn agent(&self, name: &AgentName) -> Result<Record, FleetError> {
        let agent = self.shared.store.named(name.as_str());
        let agent = agent.ok_or_else(|| FleetError::no_such_agent(name.as_str()))?;
        Ok(self.record(agent, true))
    }

    async fn live(&self, agent: &Record) -> Record {
        // What is shown is what is: there is nobody else to ask.
        match self.now(agent) {
            Ok(row) => self.record(row, true),
            Err(_) => agent.clone(),
        }
    }

    async fn complete(&self, agent: &Record) -> Result<Record, FleetError> {
        let row = self.now(agent)?;
        let mut record = self.record(Arc::clone(&row), true);
        if let (Some(kit), Some(shown), Some(state)) = (&self.asker.settings.kit, &mut record.kit, &row.kit) {
            let drift = kit.drift(self.kit_place(&row, &state.profile)).await;
            shown.drift_count = drift.ok().map(|drift| drift.count());
        }
        Ok(record)
    }

    async fn is_taken(&self, name: &AgentName) -> Result<bool, FleetError> {
        Ok(self.shared.store.named(name.as_str()).is_some())
    }

    async fn created_with(&self, key: &str) -> Result<Option<Record>, FleetError> {
        let agents = self.shared.store.agents();
        let found = agents.into_iter().find(|agent| agent.key.as_deref() == Some(key));
        Ok(found.map(|agent| self.record(agent, true)))
    }

    async fn create(&self, new: NewAgent<'_>) -> Result<Made<Handle>, FleetError> {
        let projects = self.projects().await;
        let project = projects.into_iter().find(|project| project.id == new.project.id);
        let project = project.ok_or_else(|| FleetError::unavailable("the project is gone"))?;
        let role = new.role.map_or_else(|| "unknown".to_owned(), |role| role.name.clone());
        let roles = role::of_project(&self.asker.settings.roles, &project.name);
        let id = uuid::Uuid::now_v7();
        let mark = id.simple().to_string();
        let directory = format!("{}-{}", new.name.as_str().to_ascii_lowercase(), &mark[24..]);
        let now = self.now_ms();
        let run_settings = self.shared.engine.record_settings(&self.asker.settings.run);
        let agent = AgentRow {
            id: id.to_string(),
            name: new.name.as_str().to_owned(),
            project: project.id.clone(),
            spec: new.spec.to_owned(),
            phase: Phase::Preparing,
            path: self.shared.options.home.join("workspaces").join(directory),
            workspace: None,
            failure: None,
            kit: None,
            settings: Some(AgentSettings {
                role: roles.into_iter().find(|known| known.name == role).unwrap_or_default(),
                driver: self.asker.settings.driver.clone(),
                project: project.clone(),
                run: Some(run_settings.id().to_owned()),
            }),
            role,
            intent: None,
            key: new.key.map(str::to_owned),
            created_ms: now,
            updated_ms: now,
        };
        let run = &self.asker.settings.run;
        check_driver(run, &self.driver_with(&agent, run))?;
        if self.asker.configured_now().iter().all(|known| known.id != project.id) {
            self.add_project(&project.path, None).await?;
        }
        self.fix_run_settings(&agent.id, &run_settings);
        let first = NewTask { text: new.spec.to_owned(), source: new.source.into(), key: None };
        let task = Box::new(self.new_task(&agent, first));
        let is_first = self.shared.store.is_first_in(&project.id);
        drop(self.spawn_owner(&agent.id));
        let (recorded, asker) = (Box::new(agent.clone()), Arc::clone(&self.asker));
        let create = |reply| Command::Create { agent: recorded, task, asker, reply };
        let row = self.command(&agent, create).await.inspect_err(|_| {
            if is_first {
                self.shared.store.is_still_first_in(&project.id);
            }
        })?;
        let place = match (&row.workspace, row.phase) {
            (Some(Workspace { path, git: Some(checkout) }), Phase::Ready) => {
                format!("it works in {} on branch {}", path.display(), checkout.branch)
            }
            (Some(workspace), Phase::Ready) => format!("it works in {}", workspace.path.display()),
            _ => "its workspace is still being made".to_owned(),
        };
        let note = if is_first {
            format!(
                "{place}. This is the first agent in project '{}': hooks and MCP servers that the project's files \
                 configure will run there as you. Delete the agent if you do not trust these files",
                project.name
            )
        } else {
            place
        };
        Ok(Made { agent: self.record(row, true), note: Some(note) })
    }

    async fn delete(&self, agent: &Record) -> Result<Moved, FleetError> {
        let asker = Arc::clone(&self.asker);
        self.command(&agent.handle.agent, |reply| Command::Delete { asker, reply }).await
    }

    async fn restart(&self, agent: &Record) -> Result<Moved, FleetError> {
        let asker = Arc::clone(&self.asker);
        self.command(&agent.handle.agent, |reply| Command::Restart { asker, reply }).await
    }

    async fn started_with(&self, agent: &Record, key: &str) -> Result<Option<Task>, FleetError> {
        let row = self.now(agent)?;
        Ok(self.keyed_task(&row, Some(key)).map(|task| self.shown_task(&row, &task)))
    }

    async fn start_task(&self, agent: &Record, new: TaskOrder<'_>) -> Result<Task, FleetError> {
        let row = self.now(agent)?;
        // A refusal must not wait for its turn in the mailbox.
        self.check_start(&row)?;
        let task =
            NewTask { text: new.text.to_owned(), source: new.source.into(), key: new.key.map(str::to_owned) };
        let task = self.command(&row, |reply| Command::Start { task, reply }).await?;
        self.until_begun(&task).await;
        Ok(self.shown_task(&row, &self.task(&row.id, &task.id).unwrap_or(task)))
    }

    async fn stop_task(&self, agent: &Record) -> Result<Interrupted, FleetError> {
        let row = self.now(agent)?;
        let open = self.open_task(&row.id).ok_or_else(|| no_task(&row.name))?;
        let patience = Duration::from_millis(self.shared.options.limits.fleet_stop_confirm_ms);
        let stopping = self.command(&row, |reply| Command::Stop { reply });
        let (task, confirmed) = match tokio::time::timeout(patience, stopping).await {
            Ok(stopped) => (stopped?, true),
            Err(_) => (open, false),
        };
        Ok(Interrupted { task: task_of(&row, &task, task.state), confirmed })
    }

    async fn tasks(&self, agent: &Record, _rows: Rows) -> Result<(Vec<Task>, Option<String>), FleetError> {
        let row = self.now(agent)?;
        let tasks = self.shared.store.tasks(&row.id);
        Ok((tasks.iter().rev().map(|task| self.shown_task(&row, task)).collect(), None))
    }

    async fn log(
        &self,
        agent: &Record,
        skip: usize,
        take: usize,
    ) -> Result<(Vec<LogEntry>, usize), FleetError> {
        let row = self.now(agent)?;
        let tasks = self.shared.store.tasks(&row.id);
        // Entries are numbered from the oldest, so how many each task has must be known; the texts of most are not needed.
        let mut counted = Vec::new();
        let mut total = 0;
        for task in tasks {
            let counts = &self.shared.log_lengths;
            let known = counts.lock().unwrap_or_else(PoisonError::into_inner).get(&task.id).copied();
            let (count, texts) = match known {
                Some(count) => (count, None),
                None => {
                    let texts = self.texts_of(&task).await;
                    if task.state.is_over() {
                        let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
                        counts.insert(task.id.clone(), texts.len());
                    }
                    (texts.len(), Some(texts))
                }
            };
            counted.push((task, total, texts));
            total += count;
        }
        let (first, end) = (total.saturating_sub(skip.saturating_add(take)), total.saturating_sub(skip));
        let mut entries = Vec::new();
        for (position, (task, from, texts)) in counted.iter().enumerate() {
            let until = counted.get(position + 1).map_or(total, |(_, from, _)| *from);
            if *from >= end || until <= first {
                continue;
            }
            let read = match texts {
                Some(_) => None,
                None => Some(self.texts_of(task).await),
            };
            let texts = texts.as_ref().or(read.as_ref()).into_iter().flatten();
            for (number, (kind, content, time)) in texts.enumerate() {
                let id = from + number;
                if (first..end).contains(&id) {
                    let id = i64::try_from(id).unwrap_or(i64::MAX);
                    let (kind, time) = (*kind, *time);
                    entries.push(LogEntry { id, kind, content: content.clone(), time, truncated: false });
                }
            }
        }
        entries.reverse();
        Ok((entries, total))
    }

    async fn projects(&self) -> Result<Vec<Project>, FleetError> {
        Ok(self.projects().await.iter().map(listed).collect())
    }

    async fn roles(&self, project: &Project) -> Result<Vec<Role>, FleetError> {
        let roles = role::of_project(&self.asker.settings.roles, &project.name);
        Ok(roles
            .into_iter()
            .map(|role| Role {
                id: format!("{}/{}", project.id, role.name),
                default: role.name == "coder",
                name: role.name,
                display_name: role.display_name,
                description: role.description,
                template_id: project.id.clone(),
                project_id: project.id.clone(),
                project_name: project.name.clone(),
                origin: RoleOrigin::Named,
            })
            .collect())
    }

    async fn metadata(&self, agent: &Record) -> Metadata {
        self.metadata_of(&agent.handle).await
    }

    async fn changed(&self, _agent: &Record, within: Duration) {
        let mut version = self.shared.store.watch();
        version.mark_unchanged();
        let _ = tokio::time::timeout(within, version.changed()).await;
    }
}

impl Local {
    /// Waits until a task has begun, ended, or is known to wait for its turn.
    async fn until_begun(&self, task: &TaskRow) {
        /// Longest wait; afterwards the answer says that the task is queued.
        const PATIENCE: Duration = Duration::from_secs(1);
        let mut version = self.shared.store.watch();
        let begun = async {
            loop {
                version.mark_unchanged();
                let newest = self.shared.store.newest_task(&task.agent);
                let queued =
                    newest.filter(|newest| newest.id == task.id && newest.state == TaskState::Queued);
                let Some(queued) = queued else { return };
                let waits = matches!(self.phase_of(&queued), Some(RunPhase::Waiting(_)));
                if waits || self.is_full() {
                    return;
                }
                if version.changed().await.is_err() {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(PATIENCE, begun).await;
    }

    /// Whether as many tasks work as may.
    fn is_full(&self) -> bool {
        let agents = self.shared.store.agents();
        let open = agents.iter().filter_map(|agent| self.open_task(&agent.id));
        let working = open.filter(|task| task.state == TaskState::Running).count() as u64;
        working >= self.shared.options.limits.fleet_tasks_active.max(1)
    }
}
