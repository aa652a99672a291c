//! The fleet's questions and orders, answered on this machine.

use std::sync::Arc;
use std::time::Duration;

use crewkit_agent::EventBody;
use crewkit_core::{AgentName, AgentStatus};
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::life::store_error;
use super::options::{LOOP, REHEARSAL};
use super::project::{Kind, LocalProject};
use super::prompt::headline;
use super::record::{AgentRow, Phase, Source, TaskRow, TaskState};
use super::store::{Change, StoreError};
use super::work::Begin;
use super::{Local, output, role, status};
use crate::backend::{AgentRecord, Backend, BackendInfo, Interrupted, Made, Moved, NewAgent, Rows};
use crate::error::FleetError;
use crate::metadata::Metadata;
use crate::model::{AgentKit, HistoryScope, LogEntry, LogKind, Project, Role, RoleOrigin, Task};
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

fn task_of(agent: &AgentRow, row: &TaskRow) -> Task {
    let summary = match row.state {
        TaskState::Completed => row.summary.clone().unwrap_or_else(|| headline(&row.text)),
        TaskState::Failed => row
            .error
            .clone()
            .map_or_else(|| headline(&row.text), |error| format!("{}: {error}", headline(&row.text))),
        _ => headline(&row.text),
    };
    Task {
        id: row.id.clone(),
        agent_name: agent.name.clone(),
        message: summary.clone(),
        summary,
        status: status::task_status(row.state),
        source: row.source.into(),
        created_at: moment(row.created_ms),
        started_at: row.started_ms.map(moment),
        completed_at: row.ended_ms.map(moment),
        uri: String::new(),
        needs_user_attention: row.state == TaskState::Failed,
        state: status::state_word(row.state).to_owned(),
    }
}

fn project_of(project: &LocalProject) -> Project {
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

impl Local {
    fn record(&self, agent: Arc<AgentRow>, alone: bool) -> Record {
        let newest = self.shared.store.newest_task(&agent.id);
        let evidence = status::Evidence {
            has_directory: agent.phase != Phase::Ready || agent.path.exists(),
            is_stopping: newest.as_ref().is_some_and(|task| self.is_stopping(task)),
        };
        let (word, health) = status::derive(&agent, newest.as_deref(), evidence);
        let project = self.project(&agent.project).ok();
        let project_name =
            project.as_ref().map_or_else(|| "unknown".to_owned(), |project| project.name.clone());
        let busy = word == AgentStatus::Busy;
        let last_task = newest.as_ref().map(|task| task_of(&agent, task).summary);
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
    fn driver_for(&self, agent: &AgentRow) -> String {
        let driver = self.role_of(agent).driver.or_else(|| self.shared.options.driver.clone());
        driver.unwrap_or_else(|| {
            let has_model = self.shared.engine.default_model().1.is_some();
            if has_model { LOOP.to_owned() } else { REHEARSAL.to_owned() }
        })
    }

    fn new_task(&self, agent: &AgentRow, text: &str, source: Source) -> TaskRow {
        let number = self.shared.store.newest_task(&agent.id).map_or(1, |task| task.number + 1);
        TaskRow {
            id: format!("task-{}", uuid::Uuid::now_v7().simple()),
            agent: agent.id.clone(),
            number,
            text: text.to_owned(),
            source,
            driver: self.driver_for(agent),
            state: TaskState::Queued,
            run: None,
            summary: None,
            reason: None,
            error: None,
            tokens: 0,
            created_ms: self.now_ms(),
            started_ms: None,
            ended_ms: None,
        }
    }

    fn check_budget(&self, agent: &AgentRow) -> Result<(), FleetError> {
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

    /// Lets the workspace be made, and waits for it as long as a caller may be kept waiting.
    async fn prepare_for(&self, id: &str) -> Result<bool, FleetError> {
        let (answer, waiting) = tokio::sync::oneshot::channel();
        let (local, id) = (self.clone(), id.to_owned());
        self.shared.tracker.spawn(async move {
            let prepared = local.prepare(&id).await;
            let Err(error) = prepared else { return drop(answer.send(Ok(()))) };
            if answer.is_closed() {
                return local.note_failure(&id, &error).await;
            }
            // The caller is told that there is no agent, so there must be none.
            if let Err(unwritten) = local.shared.store.write(vec![Change::DropAgent(id.clone())]).await {
                tracing::error!(error = %unwritten, "an agent that could not be made could not be forgotten");
                local.note_failure(&id, &error).await;
            }
            drop(answer.send(Err(error)));
        });
        let patience = Duration::from_millis(self.shared.options.limits.fleet_create_wait_ms);
        match tokio::time::timeout(patience, waiting).await {
            Ok(Ok(prepared)) => prepared.map(|()| true),
            Ok(Err(_)) => Err(FleetError::unavailable("the server is shutting down")),
            Err(_) => Ok(false),
        }
    }

    /// Notes that somebody made an agent in the project, which is to trust what the project brings along. The first time
    /// returns what that means.
    async fn trust(&self, project: &Project) -> Option<String> {
        let noted = self.shared.store.write(vec![Change::TrustProject(project.id.clone())]).await;
        match noted {
            Err(StoreError::Taken) => return None,
            Ok(()) => {}
            // Better said twice than never.
            Err(error) => tracing::error!(%error, "that a project is trusted could not be noted"),
        }
        Some(format!(
            "This is the first agent in project '{}': hooks and MCP servers that the project's files configure will run \
             there as you. Delete the agent if you do not trust these files",
            project.name
        ))
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
        let Some(driver) = self.driver(&row.driver) else { return Vec::new() };
        let (dir, format) = (self.task_dir(row), driver.format);
        let read = tokio::task::spawn_blocking(move || output::entries(&dir, format)).await;
        read.unwrap_or_default().into_iter().map(|body| (body, None)).collect()
    }
}

impl Backend for Local {
    type Handle = Handle;

    const HISTORY: HistoryScope = HistoryScope::All;

    async fn info(&self) -> BackendInfo {
        let shared = &self.shared;
        let count = |number: usize| Value::from(number);
        let works = self.works().len();
        let facts: Map<String, Value> = [
            ("home", Value::from(shared.options.home.display().to_string())),
            ("agents", count(shared.store.agents().len())),
            ("tasks_open", count(works)),
            ("tasks_active_limit", shared.options.limits.fleet_tasks_active.into()),
            ("projects", count(self.projects_now().len())),
            ("driver", Value::from(shared.options.driver.clone())),
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
        if let (Some(kit), Some(shown), Some(state)) = (&self.shared.options.kit, &mut record.kit, &row.kit) {
            let drift = kit.drift(self.kit_place(&row, &state.profile)).await;
            shown.drift_count = drift.ok().map(|drift| drift.count());
        }
        Ok(record)
    }

    async fn is_taken(&self, name: &AgentName) -> Result<bool, FleetError> {
        Ok(self.shared.store.named(name.as_str()).is_some())
    }

    async fn create(&self, new: NewAgent<'_>) -> Result<Made<Handle>, FleetError> {
        let id = uuid::Uuid::now_v7();
        let mark = id.simple().to_string();
        let directory = format!("{}-{}", new.name.as_str().to_ascii_lowercase(), &mark[24..]);
        let now = self.now_ms();
        let agent = AgentRow {
            id: id.to_string(),
            name: new.name.as_str().to_owned(),
            project: new.project.id.clone(),
            role: new.role.map_or_else(|| "unknown".to_owned(), |role| role.name.clone()),
            spec: new.spec.to_owned(),
            phase: Phase::Preparing,
            path: self.shared.options.home.join("workspaces").join(directory),
            workspace: None,
            failure: None,
            kit: None,
            created_ms: now,
            updated_ms: now,
        };
        let task = self.new_task(&agent, new.spec, Source::Human);
        let written =
            self.shared.store.write(vec![Change::NewAgent(agent.clone()), Change::PutTask(task)]).await;
        written.map_err(|error| match error {
            StoreError::Taken => FleetError::already_exists(&agent.name),
            other => store_error(&other),
        })?;
        let is_ready = self.prepare_for(&agent.id).await?;
        let row = self.shared.store.agent(&agent.id).unwrap_or_else(|| Arc::new(agent));
        let place = match (&row.workspace, is_ready) {
            (Some(workspace), true) => match &workspace.git {
                Some(checkout) => {
                    format!("it works in {} on branch {}", workspace.path.display(), checkout.branch)
                }
                None => format!("it works in {}", workspace.path.display()),
            },
            _ => "its workspace is still being made".to_owned(),
        };
        let note = match self.trust(new.project).await {
            Some(notice) => format!("{place}. {notice}"),
            None => place,
        };
        let note = Some(note);
        Ok(Made { agent: self.record(row, true), note })
    }

    async fn delete(&self, agent: &Record) -> Result<Moved, FleetError> {
        self.remove(&agent.handle.agent.id).await
    }

    async fn restart(&self, agent: &Record) -> Result<Moved, FleetError> {
        self.revive(&agent.handle.agent.id).await
    }

    async fn start_task(&self, agent: &Record, text: &str) -> Result<Task, FleetError> {
        let lock = self.lock(&agent.handle.agent.id);
        let _held = lock.lock().await;
        let row = self.now(agent)?;
        if row.phase != Phase::Ready {
            return Err(FleetError::bad_request(format!("Agent '{}' is not ready", row.name))
                .with("reason", "offline"));
        }
        if let Some(open) = self.open_task(&row.id) {
            return Err(FleetError::conflict(format!("Agent '{}' already has a running task", row.name))
                .with("reason", "busy")
                .with("current_task", headline(&open.text)));
        }
        self.check_budget(&row)?;
        let task = self.new_task(&row, text, Source::AiController);
        let mut changes = vec![Change::PutTask(task.clone())];
        let tasks = self.shared.store.tasks(&row.id);
        let kept = usize::try_from(self.shared.options.limits.fleet_tasks_kept).unwrap_or(usize::MAX).max(1);
        let old = tasks.len().saturating_sub(kept - 1);
        changes.extend(tasks[..old].iter().map(|task| Change::DropTask(task.id.clone())));
        self.shared.store.write(changes).await.map_err(|error| store_error(&error))?;
        for old in &tasks[..old] {
            let _ = tokio::fs::remove_dir_all(self.task_dir(old)).await;
        }
        self.submit(&task, Begin::Queued);
        self.until_begun(&task).await;
        let newest = self.shared.store.newest_task(&row.id);
        Ok(task_of(&row, newest.as_deref().unwrap_or(&task)))
    }

    async fn stop_task(&self, agent: &Record) -> Result<Interrupted, FleetError> {
        let row = self.now(agent)?;
        let Some(task) = self.open_task(&row.id) else {
            return Err(FleetError::bad_request(format!("Agent '{}' has no running task", row.name))
                .with("reason", "no_running_task"));
        };
        let patience = Duration::from_millis(self.shared.options.limits.fleet_stop_confirm_ms);
        let confirmed = self.interrupt(&task, patience).await;
        let ended = self.shared.store.tasks(&row.id).iter().find(|known| known.id == task.id).cloned();
        Ok(Interrupted { task: task_of(&row, ended.as_deref().unwrap_or(&task)), confirmed })
    }

    async fn tasks(&self, agent: &Record, _rows: Rows) -> Result<Vec<Task>, FleetError> {
        let row = self.now(agent)?;
        let tasks = self.shared.store.tasks(&row.id);
        Ok(tasks.iter().rev().map(|task| task_of(&row, task)).collect())
    }

    async fn log(&self, agent: &Record) -> Result<Vec<LogEntry>, FleetError> {
        let row = self.now(agent)?;
        let mut entries = Vec::new();
        let mut say = |kind, content: String, time| {
            let id = i64::try_from(entries.len()).unwrap_or(i64::MAX);
            entries.push(LogEntry { id, kind, content, time, truncated: false });
        };
        for task in self.shared.store.tasks(&row.id) {
            say(LogKind::Input, task.text.clone(), Some(moment(task.created_ms)));
            for (body, time) in self.log_of_task(&task).await {
                if let Some(words) = output::words(&body) {
                    say(LogKind::Output, words, time);
                }
            }
            if let Some(error) = &task.error {
                say(LogKind::Output, error.clone(), task.ended_ms.map(moment));
            }
        }
        Ok(entries)
    }

    async fn projects(&self) -> Result<Vec<Project>, FleetError> {
        Ok(self.projects_now().iter().map(project_of).collect())
    }

    async fn roles(&self, project: &Project) -> Result<Vec<Role>, FleetError> {
        let roles = role::of_project(&self.shared.options.roles, &project.name);
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
        /// Longest time a start is waited for; afterwards the answer says that it is under way.
        const PATIENCE: Duration = Duration::from_secs(10);
        let mut version = self.shared.store.watch();
        let begun = async {
            loop {
                version.mark_unchanged();
                let newest = self.shared.store.newest_task(&task.agent);
                let state = newest.filter(|newest| newest.id == task.id).map(|newest| newest.state);
                let waits = state == Some(TaskState::Queued) && self.shared.places.available_permits() == 0;
                if waits || !matches!(state, Some(TaskState::Queued | TaskState::Starting)) {
                    return;
                }
                if version.changed().await.is_err() {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(PATIENCE, begun).await;
    }
}
