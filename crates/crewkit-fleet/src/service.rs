//! The fleet tools: checks what is asked, lets the backend do it, and words the answer.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::time::Duration;

use crewkit_core::agent::LONGEST_NEW_NAME;
use crewkit_core::{AgentName, AgentStatus, Availability, Limits};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde_json::{Map, Value};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, timeout, timeout_at};

use crate::backend::{AgentRecord, Backend, BackendInfo, NewAgent, Rows, TaskOrder};
use crate::error::{ErrorKind, FleetError};
use crate::filter::{Choice, StatusFilter, choose_project, choose_role};
use crate::history::Page;
use crate::metadata::{Metadata, clean_text};
use crate::model::{
    Agent, AgentList, AgentLog, AgentSummary, ByName, CreateAgent, Created, Deleted, DeletedAgent,
    HistoryDetails, ListAgents, ListRoles, LogQuery, Project, ProjectList, Restarted, RoleList, Shown,
    StartTask, Started, StopDetails, Stopped, Task, TaskHistory, TaskHistoryQuery, TaskStatus, WaitForAgent,
    Waited,
};

/// Items per page unless asked otherwise, and at most.
const TASKS_PER_PAGE: usize = 20;
const LOGS_PER_PAGE: usize = 1;
const LARGEST_PAGE: usize = 100;
/// Seconds `wait_for_agent` waits unless asked otherwise.
const USUAL_WAIT: u64 = 60;
/// Longest time between two looks at an agent that is waited for.
const LOOK: Duration = Duration::from_secs(3);

/// What `metadata` of `show_agent` holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MetadataStyle {
    /// The fields of the workspace, each with value, error and schema.
    #[default]
    Taskfile,
    /// The same, with the `fleet_mcp_*` texts among them.
    Merged,
    /// The `fleet_mcp_*` texts alone.
    Legacy,
}

impl std::str::FromStr for MetadataStyle {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "taskfile" => Ok(Self::Taskfile),
            "merged" => Ok(Self::Merged),
            "legacy" => Ok(Self::Legacy),
            other => Err(format!("`{other}` is no metadata style; use taskfile, merged or legacy")),
        }
    }
}

/// How the service behaves.
#[derive(Debug, Clone)]
pub struct FleetOptions {
    /// Longest name of a new agent.
    pub max_name_length: usize,
    /// What `metadata` of `show_agent` holds.
    pub metadata_style: MetadataStyle,
    /// Limits on time and size.
    pub limits: Limits,
}

impl Default for FleetOptions {
    fn default() -> Self {
        Self {
            max_name_length: LONGEST_NEW_NAME,
            metadata_style: MetadataStyle::default(),
            limits: Limits::default(),
        }
    }
}

/// The fleet tools over one backend.
#[derive(Debug, Clone)]
pub struct Fleet<B> {
    backend: B,
    options: FleetOptions,
}

type Record<B> = AgentRecord<<B as Backend>::Handle>;

impl<B: Backend> Fleet<B> {
    /// The tools over `backend`.
    pub fn new(backend: B, options: FleetOptions) -> Self {
        Self { backend, options }
    }

    /// The backend itself.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// What the backend is and whether it answers.
    pub async fn info(&self) -> BackendInfo {
        self.backend.info().await
    }

    /// Makes an agent that begins to work on its spec by itself.
    pub async fn create_agent(&self, input: CreateAgent) -> Result<Created, FleetError> {
        let result = self.create(&input).await;
        during("create_agent", Some(&input.name), result)
    }

    /// Every agent, or those that pass the filters.
    pub async fn list_agents(&self, input: ListAgents) -> Result<AgentList, FleetError> {
        during("list_agents", None, self.list(&input).await)
    }

    /// Everything about one agent.
    pub async fn show_agent(&self, input: ByName) -> Result<Shown, FleetError> {
        during("show_agent", Some(&input.agent_name), self.show(&input).await)
    }

    /// What an agent has done, newest first.
    pub async fn show_agent_task_history(&self, input: TaskHistoryQuery) -> Result<TaskHistory, FleetError> {
        during("show_agent_task_history", Some(&input.agent_name), self.history(&input).await)
    }

    /// What an agent was told and said, newest first.
    pub async fn show_agent_log(&self, input: LogQuery) -> Result<AgentLog, FleetError> {
        during("show_agent_log", Some(&input.agent_name), self.log(&input).await)
    }

    /// Deletes an agent in whatever status it is.
    pub async fn delete_agent(&self, input: ByName) -> Result<Deleted, FleetError> {
        during("delete_agent", Some(&input.agent_name), self.delete(&input).await)
    }

    /// Gives an idle agent a task.
    pub async fn start_agent_task(&self, input: StartTask) -> Result<Started, FleetError> {
        during("start_agent_task", Some(&input.agent_name), self.start(&input).await)
    }

    /// Interrupts a busy agent.
    pub async fn stop_agent_task(&self, input: ByName) -> Result<Stopped, FleetError> {
        during("stop_agent_task", Some(&input.agent_name), self.stop(&input).await)
    }

    /// Stops and starts the workspace of an agent.
    pub async fn restart_agent(&self, input: ByName) -> Result<Restarted, FleetError> {
        during("restart_agent", Some(&input.agent_name), self.restart(&input).await)
    }

    /// Waits until an agent has a status.
    pub async fn wait_for_agent(&self, input: WaitForAgent) -> Result<Waited, FleetError> {
        during("wait_for_agent", Some(&input.agent_name), self.wait(&input).await)
    }

    /// The roles agents of a project can have.
    pub async fn list_agent_roles(&self, input: ListRoles) -> Result<RoleList, FleetError> {
        during("list_agent_roles", None, self.roles(&input).await)
    }

    /// The projects agents can work on.
    pub async fn list_agent_projects(&self) -> Result<ProjectList, FleetError> {
        let list = self
            .backend
            .projects()
            .await
            .map(|projects| ProjectList { total_count: projects.len(), projects });
        during("list_agent_projects", None, list)
    }

    async fn create(&self, input: &CreateAgent) -> Result<Created, FleetError> {
        let name = AgentName::new(&input.name, self.options.max_name_length)
            .map_err(|error| FleetError::invalid("name", error.to_string()))?;
        let spec = self.spec(input)?;
        if input.project.trim().is_empty() {
            return Err(FleetError::invalid(
                "project",
                "`project` is empty; list_agent_projects shows what there is",
            ));
        }
        if let Some(key) = check_key(input.key.as_deref())?
            && let Some(made) = self.backend.created_with(key).await?
        {
            if !made.name.eq_ignore_ascii_case(name.as_str()) {
                let message = format!("`key` was used to create agent '{}'; use another key", made.name);
                return Err(FleetError::invalid("key", message));
            }
            return Ok(created(&made, &spec, None));
        }
        // Asked together: most requests fail on neither, and the answers do not depend on each other.
        let (taken, projects) = tokio::join!(self.backend.is_taken(&name), self.backend.projects());
        let projects = projects?;
        let project = match choose_project(&projects, &input.project) {
            Choice::One(project) => project,
            other => return Err(no_project(other, &input.project, &projects, FleetError::bad_request)),
        };
        if taken? {
            return Err(B::taken(&name));
        }
        let roles = self.backend.roles(project).await?;
        let role = choose_role(&roles, input.role.as_deref())?;
        let new = NewAgent {
            name: &name,
            project,
            role,
            spec: &spec,
            source: input.source,
            key: input.key.as_deref(),
        };
        let made = self.backend.create(new).await?;
        Ok(created(&made.agent, &spec, made.note))
    }

    fn spec(&self, input: &CreateAgent) -> Result<String, FleetError> {
        let spec = match (given(input.spec.as_deref()), given(input.task.as_deref())) {
            (Some(spec), Some(task)) if spec != task => {
                return Err(FleetError::invalid(
                    "spec",
                    "`spec` and `task` mean the same and differ; give one of them",
                ));
            }
            (Some(spec), _) | (None, Some(spec)) => spec,
            (None, None) => {
                return Err(FleetError::invalid("spec", "`spec` is empty; say what the agent is to do"));
            }
        };
        self.check_length("spec", spec)?;
        Ok(spec.to_owned())
    }

    fn check_length(&self, field: &str, text: &str) -> Result<(), FleetError> {
        let most = self.options.limits.fleet_text_bytes;
        if u64::try_from(text.len()).unwrap_or(u64::MAX) > most {
            return Err(FleetError::invalid(
                field,
                format!(
                    "`{field}` has {} bytes; at most {most} are allowed (limits.fleet_text_bytes)",
                    text.len()
                ),
            ));
        }
        Ok(())
    }

    async fn list(&self, input: &ListAgents) -> Result<AgentList, FleetError> {
        let status = input
            .status_filter
            .as_deref()
            .map(|word| StatusFilter::parse("status_filter", word))
            .transpose()?;
        let (limit, offset) = (not_negative("limit", input.limit)?, not_negative("offset", input.offset)?);
        let passes = |agent: &Record<B>| {
            let same = |a: &str, b: &str| a.trim().to_lowercase() == b.to_lowercase();
            status.is_none_or(|filter| filter.accepts(&agent.status))
                && input.role_filter.as_deref().is_none_or(|role| same(role, &agent.role))
                && input
                    .project_filter
                    .as_deref()
                    .is_none_or(|word| agent.project_aliases.iter().any(|name| same(word, name)))
        };
        let with_metadata = input.include_metadata.unwrap_or(true);
        let shows_all = limit.is_none() && offset.is_none() && input.role_filter.is_none();
        let at_once = usize::try_from(self.options.limits.fleet_metadata_parallel).unwrap_or(usize::MAX);
        let places = Semaphore::new(at_once.clamp(1, Semaphore::MAX_PERMITS));
        let mut asked = HashSet::new();
        let mut found = HashMap::new();
        let mut waiting = FuturesUnordered::new();
        let mut ask = |agent: Cow<'_, Record<B>>, waiting: &FuturesUnordered<_>| {
            if agent.status.availability().is_online() && asked.insert(agent.workspace_id.clone()) {
                waiting.push(self.metadata_in_turn(agent.into_owned(), &places));
            }
        };
        let listed = if with_metadata && shows_all {
            // Agents that are known early are asked while the others are still being listed.
            let (early, mut arriving) = mpsc::unbounded_channel();
            let mut listing = pin!(self.backend.agents_early(early));
            loop {
                tokio::select! {
                    listed = &mut listing => break listed,
                    Some(agent) = arriving.recv() => if passes(&agent) { ask(Cow::Owned(agent), &waiting) },
                    Some((id, metadata)) = waiting.next() => drop(found.insert(id, metadata)),
                }
            }
        } else {
            self.backend.agents().await
        };
        let mut agents: Vec<Record<B>> = listed?.into_iter().filter(passes).collect();
        let total_count = agents.len();
        agents = agents.into_iter().skip(offset.unwrap_or(0)).take(limit.unwrap_or(usize::MAX)).collect();
        if with_metadata {
            for agent in &agents {
                ask(Cow::Borrowed(agent), &waiting);
            }
            let until = Instant::now() + Duration::from_millis(self.options.limits.fleet_metadata_list_ms);
            // What is late or broken is empty; it costs nobody else anything.
            while let Ok(Some((id, metadata))) = timeout_at(until, waiting.next()).await {
                found.insert(id, metadata);
            }
        }
        let none = Metadata::default();
        let shown = |agent: &Record<B>| summary(agent, found.get(&agent.workspace_id).unwrap_or(&none));
        Ok(AgentList { agents: agents.iter().map(shown).collect(), total_count })
    }

    /// The metadata of one of many agents, and its workspace.
    async fn metadata_in_turn(&self, agent: Record<B>, places: &Semaphore) -> (String, Metadata) {
        let _place = places.acquire().await;
        let metadata = self.metadata(&agent).await;
        (agent.workspace_id, metadata)
    }

    async fn metadata(&self, agent: &Record<B>) -> Metadata {
        let own = Duration::from_millis(self.options.limits.fleet_metadata_agent_ms);
        match timeout(own, self.backend.metadata(agent)).await {
            Ok(metadata) => metadata.cleaned(&self.options.limits),
            Err(_) => {
                tracing::debug!(agent = agent.name, "its metadata took too long");
                Metadata::default()
            }
        }
    }

    async fn show(&self, input: &ByName) -> Result<Shown, FleetError> {
        let seen = self.backend.agent(&lookup(&input.agent_name)?).await?;
        let metadata = async {
            if seen.status.availability().is_online() {
                self.metadata(&seen).await
            } else {
                Metadata::default()
            }
        };
        let (complete, metadata) = tokio::join!(self.backend.complete(&seen), metadata);
        let complete = complete?;
        let mut fleet = fleet_metadata(&complete, &metadata);
        if let Some(spec) = &complete.spec {
            fleet.insert("fleet_mcp_agent_spec".to_owned(), spec.as_str().into());
        }
        let shown = match self.options.metadata_style {
            MetadataStyle::Taskfile => metadata.in_full(),
            MetadataStyle::Merged => fleet.clone().into_iter().chain(metadata.in_full()).collect(),
            MetadataStyle::Legacy => fleet.clone(),
        };
        let (git, metadata_at) = (metadata.git.clone(), metadata.at);
        Ok(Shown { agent: Agent { metadata_at, git, ..agent(&complete, shown, metadata.len(), fleet) } })
    }

    async fn history(&self, input: &TaskHistoryQuery) -> Result<TaskHistory, FleetError> {
        let (page, page_size) = paging(input.page, input.page_size, TASKS_PER_PAGE)?;
        let raw = input.raw.unwrap_or(false);
        let agent = self.backend.agent(&lookup(&input.agent_name)?).await?;
        let rows = if raw { Rows::Raw } else { Rows::Tidy };
        let (tasks, missing) = self.backend.tasks(&agent, rows).await?;
        let page = Page::of(tasks, page, page_size);
        Ok(TaskHistory {
            total_count: page.total_count,
            page: page.page,
            page_size: page.page_size,
            total_pages: page.total_pages,
            agent_name: agent.name,
            has_next_page: page.has_next(),
            has_previous_page: page.has_previous(),
            details: HistoryDetails { scope: B::HISTORY, raw, missing },
            tasks: page.items,
        })
    }

    async fn log(&self, input: &LogQuery) -> Result<AgentLog, FleetError> {
        let (page, page_size) = paging(input.page, input.page_size, LOGS_PER_PAGE)?;
        let agent = self.backend.agent(&lookup(&input.agent_name)?).await?;
        let skip = (page - 1).saturating_mul(page_size);
        let (entries, total) = self.backend.log(&agent, skip, page_size).await?;
        let mut page = Page::part(entries, total, page, page_size);
        let longest = usize::try_from(self.options.limits.fleet_log_entry_bytes).unwrap_or(usize::MAX);
        for entry in &mut page.items {
            let clean = clean_text(&entry.content, usize::MAX);
            entry.truncated |= clean.len() > longest;
            entry.content = clean_text(&clean, longest);
        }
        Ok(AgentLog {
            agent_name: agent.name,
            total_count: page.total_count,
            page: page.page,
            page_size: page.page_size,
            total_pages: page.total_pages,
            has_next_page: page.has_next(),
            has_previous_page: page.has_previous(),
            logs: page.items,
        })
    }

    async fn delete(&self, input: &ByName) -> Result<Deleted, FleetError> {
        let agent = self.backend.agent(&lookup(&input.agent_name)?).await?;
        let moved = self.backend.delete(&agent).await?;
        let note = moved.note.map(|note| format!("; {note}")).unwrap_or_default();
        Ok(Deleted {
            message: format!("Agent '{}' deleted successfully{note}", agent.name),
            deleted_agent: DeletedAgent { name: agent.name.clone(), workspace_id: agent.workspace_id },
            agent_name: agent.name,
            status: moved.status,
        })
    }

    async fn start(&self, input: &StartTask) -> Result<Started, FleetError> {
        let text = input.task_description.trim();
        let name = lookup(&input.agent_name)?;
        if text.is_empty() {
            return Err(FleetError::invalid(
                "task_description",
                "`task_description` is empty; say what the agent is to do",
            ));
        }
        self.check_length("task_description", text)?;
        if let Some(key) = check_key(input.key.as_deref())? {
            let agent = self.backend.agent(&name).await?;
            if let Some(task) = self.backend.started_with(&agent, key).await? {
                return Ok(started(agent.name, task, text));
            }
        }
        let agent = self.live(&name, "wait until it is idle, then start the task").await?;
        if agent.status.availability() == Availability::Busy {
            return Err(FleetError::conflict(format!(
                "Agent '{}' already has a running task; wait for it with wait_for_agent or stop it first",
                agent.name
            ))
            .with("reason", "busy")
            .or_with("current_task", agent.current_task));
        }
        let order = TaskOrder { text, source: input.source, key: input.key.as_deref() };
        let task = self.backend.start_task(&agent, order).await?;
        Ok(started(agent.name, task, text))
    }

    async fn stop(&self, input: &ByName) -> Result<Stopped, FleetError> {
        let agent =
            self.live(&lookup(&input.agent_name)?, "there is no task to stop").await.map_err(|error| {
                match error.kind() {
                    ErrorKind::BadRequest => error.with("reason", "no_running_task"),
                    _ => error,
                }
            })?;
        if agent.status.availability() != Availability::Busy {
            return Err(FleetError::bad_request(format!(
                "Agent '{}' is {} and has no running task",
                agent.name, agent.status
            ))
            .with("reason", "no_running_task"));
        }
        let stopped = self.backend.stop_task(&agent).await?;
        let (agent_status, message) = if stopped.confirmed {
            (AgentStatus::Idle, "Task stopped successfully".to_owned())
        } else {
            (
                AgentStatus::Busy,
                format!("Agent '{}' was interrupted but has not come to rest yet", agent.name),
            )
        };
        Ok(Stopped {
            task: stopped.task,
            agent_status: agent_status.into(),
            message,
            agent_name: agent.name,
            details: StopDetails { confirmed: stopped.confirmed },
        })
    }

    /// An agent that can be talked to, with its status checked; `otherwise` says what to do when it cannot.
    async fn live(&self, name: &AgentName, otherwise: &str) -> Result<Record<B>, FleetError> {
        let agent = self.backend.agent(name).await?;
        if !agent.status.availability().is_online() {
            let is_stopped = agent.status == AgentStatus::Stopped;
            let otherwise = if is_stopped { "start it with restart_agent" } else { otherwise };
            return Err(FleetError::bad_request(format!(
                "Agent '{}' is offline (status {}); {otherwise}",
                agent.name, agent.status
            ))
            .with("reason", "offline")
            .with("agent_status", agent.status.as_str()));
        }
        Ok(self.backend.live(&agent).await)
    }

    async fn restart(&self, input: &ByName) -> Result<Restarted, FleetError> {
        let agent = self.backend.agent(&lookup(&input.agent_name)?).await?;
        let moved = self.backend.restart(&agent).await?;
        let note = moved.note.map(|note| format!("; {note}")).unwrap_or_default();
        Ok(Restarted {
            message: format!("Agent '{}' is being restarted{note}", agent.name),
            agent_name: agent.name,
            status: moved.status,
        })
    }

    async fn wait(&self, input: &WaitForAgent) -> Result<Waited, FleetError> {
        let name = lookup(&input.agent_name)?;
        let wanted =
            StatusFilter::parse("status", input.status.as_deref().unwrap_or(AgentStatus::Idle.as_str()))?;
        let longest = self.options.limits.fleet_wait_seconds;
        let seconds = match input.timeout_seconds {
            None => USUAL_WAIT.min(longest),
            Some(given) => u64::try_from(given)
                .ok()
                .filter(|seconds| (1..=longest).contains(seconds))
                .ok_or_else(|| {
                    FleetError::invalid(
                        "timeout_seconds",
                        format!(
                            "`timeout_seconds` is {given}; use 1 to {longest} (limits.fleet_wait_seconds)"
                        ),
                    )
                })?,
        };
        let begun = Instant::now();
        let until = begun + Duration::from_secs(seconds);
        let mut last_seen: Option<Record<B>> = None;
        loop {
            let agent = match self.backend.agent(&name).await {
                Ok(seen) => self.backend.live(&seen).await,
                // An agent that is waited for until it is deleted ends by not being there.
                Err(error) => match last_seen {
                    Some(mut gone) if error.kind() == ErrorKind::NotFound => {
                        gone.status = AgentStatus::Deleted.into();
                        gone
                    }
                    _ => return Err(error),
                },
            };
            let reached = wanted.accepts(&agent.status);
            let is_gone = agent.status == AgentStatus::Deleted;
            let left = until.saturating_duration_since(Instant::now());
            if reached || is_gone || left.is_zero() {
                let message = if reached {
                    format!("Agent '{}' is {}", agent.name, agent.status)
                } else {
                    format!("Agent '{}' is {}, not {wanted}, after {seconds} s", agent.name, agent.status)
                };
                return Ok(Waited {
                    agent_name: agent.name,
                    status: agent.status,
                    reached,
                    last_task: agent.last_task,
                    needs_attention: agent.needs_attention,
                    waited_seconds: begun.elapsed().as_secs(),
                    message,
                });
            }
            self.backend.changed(&agent, left.min(LOOK)).await;
            last_seen = Some(agent);
        }
    }

    async fn roles(&self, input: &ListRoles) -> Result<RoleList, FleetError> {
        if input.project.trim().is_empty() {
            return Err(FleetError::invalid(
                "project",
                "`project` is empty; list_agent_projects shows what there is",
            ));
        }
        let projects = self.backend.projects().await?;
        let project = match choose_project(&projects, &input.project) {
            Choice::One(project) => project,
            other => {
                let not_found = |message| FleetError::new(ErrorKind::NotFound, message);
                return Err(no_project(other, &input.project, &projects, not_found));
            }
        };
        let roles = self.backend.roles(project).await?;
        Ok(RoleList { total_count: roles.len(), roles, project_name: project.name.clone() })
    }
}

/// The answer about an agent that was created.
fn created<H>(record: &AgentRecord<H>, spec: &str, note: Option<String>) -> Created {
    let mut fleet_metadata = fleet_metadata(record, &Metadata::default());
    fleet_metadata.insert("fleet_mcp_agent_spec".to_owned(), spec.into());
    fleet_metadata.insert("fleet_mcp_current_task".to_owned(), spec.into());
    let note = note.map(|note| format!("; {note}")).unwrap_or_default();
    let message = format!("Agent '{}' created successfully{note}", record.name);
    let mut agent = agent(record, Map::new(), 0, fleet_metadata.clone());
    spec.clone_into(&mut agent.spec);
    agent.current_task = None;
    agent.last_task = None;
    agent.metadata = fleet_metadata;
    Created { agent, message }
}

/// The answer about a task that was accepted. The contract has it running at once; `phase` says whether it waits.
fn started(agent_name: String, task: Task, text: &str) -> Started {
    let message = if task.phase == Some("queued") {
        format!("Task of agent '{agent_name}' is queued and starts when another task ends")
    } else {
        format!("Task started on agent '{agent_name}'")
    };
    let status = if task.status == TaskStatus::Pending { TaskStatus::Running } else { task.status };
    let started_at = task.started_at.or(Some(task.created_at));
    let agent_status = if task.completed_at.is_none() { AgentStatus::Busy } else { AgentStatus::Idle };
    Started {
        task: Task { status, started_at, ..task },
        agent_status: agent_status.into(),
        message,
        agent_name,
        task_description: text.to_owned(),
    }
}

/// An idempotency key that can be used.
fn check_key(key: Option<&str>) -> Result<Option<&str>, FleetError> {
    const LONGEST: usize = 200;
    match key {
        Some(key) if key.is_empty() || key.len() > LONGEST => {
            Err(FleetError::invalid("key", format!("`key` must have 1 to {LONGEST} bytes")))
        }
        key => Ok(key),
    }
}

/// Says which operation failed, and on which agent.
fn during<T>(
    operation: &str,
    agent_name: Option<&str>,
    result: Result<T, FleetError>,
) -> Result<T, FleetError> {
    result.map_err(|error| error.with("operation", operation).or_with("agent_name", agent_name))
}

/// A text that says something.
fn given(text: Option<&str>) -> Option<&str> {
    text.map(str::trim).filter(|text| !text.is_empty())
}

fn lookup(name: &str) -> Result<AgentName, FleetError> {
    AgentName::lookup(name.trim()).map_err(|error| FleetError::invalid("agent_name", error.to_string()))
}

fn no_project(
    choice: Choice<'_>,
    word: &str,
    projects: &[Project],
    missing: impl FnOnce(String) -> FleetError,
) -> FleetError {
    if let Choice::Several(candidates) = choice {
        let message = format!("project '{word}' exists more than once; use {}", candidates.join(" or "));
        return FleetError::invalid("project", message).with("candidates", candidates);
    }
    let known: Vec<&str> = projects.iter().map(|project| project.name.as_str()).collect();
    let hint = if known.is_empty() {
        "there are no projects".to_owned()
    } else {
        format!("there are {}", known.join(", "))
    };
    missing(format!("project '{word}' does not exist; {hint}")).with("field", "project")
}

/// A page number and size; a size that is too large is cut, one that makes no sense is refused.
fn paging(page: Option<i64>, size: Option<i64>, usual: usize) -> Result<(usize, usize), FleetError> {
    let positive = |field: &str, value: i64| {
        usize::try_from(value)
            .ok()
            .filter(|number| *number >= 1)
            .ok_or_else(|| FleetError::invalid(field, format!("`{field}` is {value}; it counts from 1")))
    };
    let page = page.map_or(Ok(1), |page| positive("page", page))?;
    let size = size.map_or(Ok(usual), |size| positive("page_size", size))?;
    Ok((page, size.min(LARGEST_PAGE)))
}

fn not_negative(field: &str, value: Option<i64>) -> Result<Option<usize>, FleetError> {
    value
        .map(|value| {
            usize::try_from(value).map_err(|_| {
                FleetError::invalid(field, format!("`{field}` is {value}; it cannot be negative"))
            })
        })
        .transpose()
}

/// The `fleet_mcp_*` fields that can be told without the spec.
fn fleet_metadata<H>(agent: &AgentRecord<H>, metadata: &Metadata) -> Map<String, Value> {
    let field = |names: [&str; 2]| {
        let found = metadata.fields.iter().find(|field| names.contains(&field.name.as_str()))?;
        match &found.value {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        }
    };
    let url = field(["pull_request_url", "pr_url"]).or_else(|| agent.pull_request_url.clone());
    let texts = [
        ("fleet_mcp_agent_name", Some(agent.name.clone())),
        ("fleet_mcp_role", Some(agent.role.clone())),
        ("fleet_mcp_project", Some(agent.project.clone())),
        ("fleet_mcp_current_task", agent.current_task.clone()),
        ("fleet_mcp_pull_request_url", url),
        ("fleet_mcp_pull_request_status", field(["pull_request_status", "pull_request_state"])),
        (
            "fleet_mcp_pull_request_check_status",
            field(["pull_request_check_status", "pull_request_ci_status"]),
        ),
    ];
    texts.into_iter().filter_map(|(key, text)| Some((key.to_owned(), text?.into()))).collect()
}

fn agent<H>(
    record: &AgentRecord<H>,
    metadata: Map<String, Value>,
    metadata_count: usize,
    fleet_metadata: Map<String, Value>,
) -> Agent {
    let availability = record.status.availability();
    Agent {
        name: record.name.clone(),
        workspace_id: record.workspace_id.clone(),
        status: record.status.clone(),
        role: record.role.clone(),
        project: record.project.clone(),
        spec: record.spec.clone().unwrap_or_default(),
        current_task: record.current_task.clone(),
        last_task: record.last_task.clone(),
        created_at: record.created_at,
        updated_at: record.updated_at,
        metadata_count,
        metadata,
        metadata_at: None,
        fleet_metadata,
        git: None,
        online: availability.is_online(),
        availability,
        needs_attention: record.needs_attention,
        health: record.health.clone(),
        owner: record.owner.clone(),
        organization: record.organization.clone(),
        url: record.url.clone(),
        kit: record.kit.clone(),
    }
}

fn summary<H>(record: &AgentRecord<H>, metadata: &Metadata) -> AgentSummary {
    let availability = record.status.availability();
    AgentSummary {
        name: record.name.clone(),
        status: record.status.clone(),
        role: record.role.clone(),
        project: record.project.clone(),
        current_task: record.current_task.clone(),
        last_task: record.last_task.clone(),
        created_at: record.created_at,
        updated_at: record.updated_at,
        metadata_count: metadata.len(),
        metadata: metadata.for_list(),
        metadata_at: metadata.at,
        fleet_metadata: fleet_metadata(record, metadata),
        git: metadata.git.clone(),
        online: availability.is_online(),
        availability,
        needs_attention: record.needs_attention,
    }
}
