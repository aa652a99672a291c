//! Finds workspaces and describes the agents in them.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crewkit_core::{AgentName, AgentStatus};
use futures_util::future::{FutureExt, join_all, try_join_all};
use futures_util::stream::{FuturesUnordered, StreamExt};
use serde_json::{Map, json};
use tokio::sync::mpsc;
use tokio::time::Instant;
use uuid::Uuid;

use super::agentapi::{self, Activity};
use super::capability::TasksRoute;
use super::error::CoderError;
use super::intents::Work;
use super::project::aliases;
use super::sse::Events;
use super::status::{self, Digest, Membership};
use super::wire::{NullableList, Template, User, Workspace};
use super::{CoderHandle, Inner};
use crate::backend::{AgentRecord, BackendInfo, Early};
use crate::error::FleetError;
use crate::filter::UNKNOWN_ROLE;
use crate::model::{Task, TaskStatus};

/// Time the agent itself gets to say whether it works.
pub(super) const LIVE_CHECK: Duration = Duration::from_secs(2);
/// Time after a start in which a resting agent may simply not have read its spec yet.
const SETTLING_SECONDS: i64 = 120;
/// How long the list of templates with AI tasks is believed.
const TASK_TEMPLATES_FRESH: Duration = Duration::from_mins(1);
/// Conversations that are read for one list, and how many of them at the same time.
const CONVERSATIONS: usize = 64;
const CONVERSATIONS_AT_ONCE: usize = 16;
/// Most pages of one list.
const MOST_PAGES: usize = 500;
/// Stands for a number of workspaces nobody has told yet.
pub(super) const UNKNOWN_COUNT: usize = usize::MAX;

impl Inner {
    /// The user whose workspaces are meant.
    pub(super) async fn me(&self) -> Result<&User, CoderError> {
        let path = format!("/api/v2/users/{}", self.settings.owner);
        self.me.get_or_try_init(async || self.client.get(&path, &[]).await).await
    }

    /// Every agent of the user, with role and status.
    pub(super) async fn agents(
        &self,
        early: Option<&Early<CoderHandle>>,
    ) -> Result<Vec<AgentRecord<CoderHandle>>, FleetError> {
        let (me, workspaces) = tokio::try_join!(self.me(), Box::pin(self.workspaces(early)))?;
        let mut mine = Vec::new();
        let mut undecided = Vec::new();
        let mut seen = BTreeSet::new();
        for record in workspaces {
            let workspace = &record.handle.workspace;
            // The query asks for own workspaces only; a Coder that answers with others must not be believed.
            let is_mine = workspace.owner_id == me.id && seen.insert(workspace.id);
            match status::membership(workspace) {
                _ if !is_mine => {}
                Membership::Agent => mine.push(record),
                Membership::AskTemplate { template, version } => undecided.push((record, template, version)),
                Membership::Other => {}
            }
        }
        let answers = try_join_all(
            undecided.iter().map(|(_, template, version)| self.makes_agents(*template, *version)),
        )
        .await?;
        mine.extend(
            undecided.into_iter().zip(answers).filter(|(_, yes)| *yes).map(|((record, ..), _)| record),
        );
        mine.retain(|record| self.is_allowed(record));
        self.add_roles(&mut mine).await;
        self.ask_the_silent(&mut mine).await;
        mine.sort_by_key(|agent| agent.name.to_lowercase());
        Ok(mine)
    }

    /// Reads the conversations of agents that say nothing about their tasks themselves, those at work first. Each is read
    /// once per report, so that the agents that are left out have their turn in the next lists.
    async fn ask_the_silent(&self, records: &mut [AgentRecord<CoderHandle>]) {
        let is_busy = |record: &AgentRecord<CoderHandle>| record.status == AgentStatus::Busy;
        let mut silent: Vec<_> = records
            .iter_mut()
            .filter(|record| {
                let has_reported = record.handle.workspace.latest_app_status.is_some();
                let is_nameless = record.last_task.is_none() && record.status == AgentStatus::Idle;
                (is_busy(record) && record.current_task.is_none()) || (is_nameless && has_reported)
            })
            .collect();
        silent.sort_by_key(|record| !is_busy(record));
        silent.truncate(CONVERSATIONS);
        futures_util::stream::iter(silent)
            .for_each_concurrent(CONVERSATIONS_AT_ONCE, async |record| {
                let (tasks, _) = Box::pin(self.told(record, None)).await;
                record.current_task = current_task(&tasks);
                record.last_task = last_task(&tasks);
                self.learn(record);
            })
            .await;
    }

    /// All pages of the user's workspaces, which come together.
    async fn workspaces(
        &self,
        early: Option<&Early<CoderHandle>>,
    ) -> Result<Vec<AgentRecord<CoderHandle>>, CoderError> {
        let size = usize::try_from(self.settings.limits.fleet_coder_page).unwrap_or(100).max(1);
        let owner = format!("owner:{}", self.settings.owner);
        let (found, mut arriving) = mpsc::unbounded_channel();
        let page = |number: usize| {
            let (limit, offset) = (size.to_string(), (number * size).to_string());
            let (owner, found) = (&owner, &found);
            async move {
                let query = [("q", owner.as_str()), ("limit", &limit), ("offset", &offset)];
                self.client.workspaces(&query, Digest::brief, found).await.map(Some)
            }
        };
        // As many as there were last time are asked for at once; the others as soon as one says how many there are.
        let known = match self.workspace_count.load(Ordering::Relaxed) {
            UNKNOWN_COUNT => 1,
            count => count.div_ceil(size).clamp(1, MOST_PAGES),
        };
        let mut asked = known;
        let mut count = 0;
        let mut all = Vec::new();
        let mut coming: FuturesUnordered<_> = (0..known).map(|number| page(number).left_future()).collect();
        loop {
            let some: Vec<Digest> = tokio::select! {
                Some(some) = arriving.recv() => some,
                read = coming.next() => match read {
                    // Every page was read; what was found on them may still be on its way.
                    None => match arriving.try_recv() {
                        Ok(some) => some,
                        Err(_) => break,
                    },
                    Some(read) => {
                        let Some(total) = read? else { continue };
                        let pages = total.div_ceil(size).min(MOST_PAGES);
                        coming.extend((asked..pages).map(|number| page(number).left_future()));
                        asked = asked.max(pages);
                        count = count.max(total);
                        continue;
                    }
                },
            };
            let records: Vec<_> = some.into_iter().map(|digest| self.described(digest, false)).collect();
            if let Some(early) = early {
                self.tell_early(&records, early).await;
            }
            if all.is_empty() {
                // The roles of the first agents are mostly those of the others; they are needed soon.
                coming.push(self.learn_roles(versions(&records)).right_future());
            }
            // Items move between pages while they are read; `agents` drops what came twice.
            all.extend(records);
        }
        self.workspace_count.store(count, Ordering::Relaxed);
        Ok(all)
    }

    /// Passes on those that are agents of the user for certain.
    async fn tell_early(&self, records: &[AgentRecord<CoderHandle>], early: &Early<CoderHandle>) {
        let Ok(me) = self.me().await else { return };
        for record in records {
            let workspace = &record.handle.workspace;
            let is_mine = workspace.owner_id == me.id && self.is_allowed(record);
            if is_mine && status::membership(workspace) == Membership::Agent {
                // Who no longer listens has what was needed.
                let _ = early.send(record.clone());
            }
        }
    }

    /// One workspace of the user, agent or not.
    pub(super) async fn workspace(&self, name: &AgentName) -> Result<Option<Workspace>, FleetError> {
        let path = format!("/api/v2/users/{}/workspace/{name}", self.settings.owner);
        let (me, found) = tokio::join!(self.me(), self.client.get::<Workspace>(&path, &[]));
        let workspace = match found {
            Ok(workspace) => workspace,
            Err(error) if matches!(error.status(), Some(404 | 410)) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if !name.is(&workspace.name) || workspace.owner_id != me?.id {
            return Err(CoderError::Malformed {
                reason: "it describes another workspace than the one asked for".to_owned(),
                request_id: None,
            }
            .into());
        }
        Ok(Some(workspace))
    }

    /// One agent of the user.
    pub(super) async fn agent(&self, name: &AgentName) -> Result<AgentRecord<CoderHandle>, FleetError> {
        let missing = || FleetError::no_such_agent(name.as_str());
        let workspace = self.workspace(name).await?.ok_or_else(missing)?;
        let is_agent = match status::membership(&workspace) {
            Membership::Agent => true,
            Membership::Other => false,
            Membership::AskTemplate { template, version } => self.makes_agents(template, version).await?,
        };
        let record = self.record(workspace);
        if is_agent && self.is_allowed(&record) { Ok(record) } else { Err(missing()) }
    }

    /// Whether workspaces of this template are agents, when they do not show it themselves yet.
    async fn makes_agents(&self, template: Uuid, version: Uuid) -> Result<bool, FleetError> {
        match self.prompt_parameter(version).await {
            Ok(Some(_)) => return Ok(true),
            Ok(None) => {}
            // A template the user may not look into any more says nothing, and spoils the list of the others least.
            Err(error) if matches!(error.status(), Some(403 | 404 | 410 | 425)) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(self.task_templates().await?.contains(&template))
    }

    async fn task_templates(&self) -> Result<Arc<Vec<Uuid>>, CoderError> {
        let remembered = self.task_templates.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((at, templates)) = remembered
            && at.elapsed() < TASK_TEMPLATES_FRESH
        {
            return Ok(templates);
        }
        let query = [("q", "has-ai-task:true")];
        let found = match self.client.get::<NullableList<Template>>("/api/v2/templates", &query).await {
            Ok(found) => found.into_vec(),
            // A Coder too old for the question has no such templates.
            Err(error) if error.status() == Some(400) => Vec::new(),
            Err(error) => return Err(error),
        };
        let templates = Arc::new(found.into_iter().map(|template| template.id).collect::<Vec<_>>());
        *self.task_templates.lock().unwrap_or_else(PoisonError::into_inner) =
            Some((Instant::now(), Arc::clone(&templates)));
        Ok(templates)
    }

    fn is_allowed(&self, record: &AgentRecord<CoderHandle>) -> bool {
        let allowed = &self.settings.projects;
        allowed.is_empty()
            || allowed
                .iter()
                .any(|word| record.project_aliases.iter().any(|name| name.eq_ignore_ascii_case(word)))
    }

    /// Describes the agent in a workspace; its role is not known yet.
    pub(super) fn record(&self, workspace: Workspace) -> AgentRecord<CoderHandle> {
        self.described(Digest::of(workspace), true)
    }

    fn described(&self, digest: Digest, alone: bool) -> AgentRecord<CoderHandle> {
        let Digest { workspace, reports, verdict, last, says, pull_request_url } = digest;
        let project = if workspace.template_display_name.is_empty() {
            workspace.template_name.clone()
        } else {
            workspace.template_display_name.clone()
        };
        let learned = self.learned.get(workspace.id).filter(|learned| learned.is_about(&workspace));
        let is_deleting = self.intent(&workspace.name).is_some_and(|intent| intent.work == Work::Delete);
        let status = match &learned {
            _ if is_deleting => AgentStatus::Deleting.into(),
            // The agent itself was asked after its newest report.
            Some(learned) if verdict.status.availability().is_online() => learned.status.into(),
            _ => verdict.status,
        };
        let (now, before) = learned.map(|it| (it.current_task, it.last_task)).unwrap_or_default();
        let current_task = says.or(now).filter(|_| status == AgentStatus::Busy);
        AgentRecord {
            name: workspace.name.clone(),
            workspace_id: workspace.id.to_string(),
            status,
            role: UNKNOWN_ROLE.to_owned(),
            project_aliases: aliases(
                &project,
                &workspace.template_name,
                &workspace.template_id.to_string(),
                &workspace.organization_name,
            ),
            project,
            spec: self.specs.get(workspace.id),
            current_task,
            last_task: before.or_else(|| last.map(|report| report.message)),
            pull_request_url,
            created_at: workspace.created_at,
            updated_at: status::last_change(&workspace),
            needs_attention: verdict.needs_attention,
            health: verdict.health,
            owner: workspace.owner_name.clone(),
            organization: workspace.organization_name.clone(),
            kit: None,
            url: Some(
                self.client.url(&format!("/@{}/{}", workspace.owner_name, workspace.name), &[]).to_string(),
            ),
            handle: CoderHandle { workspace: Arc::new(workspace), reports: Arc::new(reports), alone },
        }
    }

    /// Reads the presets of template versions, for later. Is no page.
    async fn learn_roles<T>(&self, versions: BTreeSet<Uuid>) -> Result<Option<T>, CoderError> {
        join_all(versions.into_iter().map(|version| self.presets(version))).await;
        Ok(None)
    }

    pub(super) async fn add_roles(&self, records: &mut [AgentRecord<CoderHandle>]) {
        let versions = versions(records);
        let presets = join_all(versions.iter().map(|version| self.presets(*version))).await;
        let known: HashMap<Uuid, _> = versions
            .into_iter()
            .zip(presets)
            .filter_map(|(version, presets)| Some((version, presets.ok()?)))
            .collect();
        for record in records {
            let build = &record.handle.workspace.latest_build;
            let preset = build
                .template_version_preset_id
                .and_then(|id| known.get(&build.template_version_id)?.iter().find(|preset| preset.id == id));
            if let Some(preset) = preset {
                record.role.clone_from(&preset.name);
            }
        }
    }

    /// Asks the agent itself whether it works; its reports may lag or stick.
    pub(super) async fn live(&self, agent: &AgentRecord<CoderHandle>) -> AgentRecord<CoderHandle> {
        let mut agent = agent.clone();
        if !agent.status.availability().is_online() {
            return agent;
        }
        let places = self.task_places(&agent.handle).await;
        let Ok(activity) = agentapi::activity(&self.client, &places, LIVE_CHECK).await else { return agent };
        match activity {
            Activity::Running => agent.status = AgentStatus::Busy.into(),
            Activity::Stable if self.may_be_unread(&agent) => return agent,
            Activity::Stable => {
                agent.status = AgentStatus::Idle.into();
                agent.current_task = None;
            }
        }
        self.learn(&agent);
        agent
    }

    /// Whether the agent may simply not have read its spec yet: AgentAPI is at rest before it has, so that rest proves
    /// nothing then.
    pub(super) fn may_be_unread(&self, agent: &AgentRecord<CoderHandle>) -> bool {
        let build = &agent.handle.workspace.latest_build;
        let age = self.clock.now().timestamp().as_second() - build.created_at.timestamp().as_second();
        let has_reported = agent.handle.reports.iter().any(|report| report.at > build.created_at);
        !has_reported && age < SETTLING_SECONDS
    }

    /// Remembers what the agent was found to do, until it reports something else.
    pub(super) fn learn(&self, agent: &AgentRecord<CoderHandle>) {
        let Some(status) = agent.status.known() else { return };
        let workspace = &agent.handle.workspace;
        let learned = Learned {
            build: workspace.latest_build.id,
            report: workspace.latest_app_status.as_ref().map(|report| report.id),
            status,
            current_task: agent.current_task.clone(),
            last_task: agent.last_task.clone(),
        };
        self.learned.put(workspace.id, learned);
    }

    /// Live status, role, spec, kit and tasks, found out together.
    pub(super) async fn complete(&self, agent: &AgentRecord<CoderHandle>) -> AgentRecord<CoderHandle> {
        let mut with_role = [agent.clone()];
        let (mut live, (), spec, kit, conversation) = tokio::join!(
            self.live(agent),
            self.add_roles(&mut with_role),
            self.spec(&agent.handle),
            Box::pin(self.shown_kit(agent)),
            self.conversation(agent),
        );
        let [with_role] = with_role;
        live.role = with_role.role;
        live.kit = kit;
        live.spec = Some(spec);
        let (tasks, _) = self.told(&live, Some(conversation)).await;
        live.current_task = current_task(&tasks);
        live.last_task = last_task(&tasks).or(live.last_task);
        self.learn(&live);
        live
    }

    /// Where the agent's own app can be reached.
    pub(super) async fn task_places(&self, handle: &CoderHandle) -> Vec<reqwest::Url> {
        let workspace = &handle.workspace;
        let mut found = status::task_app(workspace);
        if found.is_none() {
            // An app with a name of its own that has not reported yet; the task knows it.
            let id = self.task(handle).await.and_then(|task| task.workspace_app_id);
            found = workspace.apps().find(|(_, app)| Some(app.id) == id);
        }
        match found {
            Some((agent, app)) => {
                agentapi::addresses(&self.client, &self.app_host, workspace, agent, app).await
            }
            None => Vec::new(),
        }
    }

    /// Returns when Coder says that the workspace changed, or when the time is over. Some versions of Coder tell at once
    /// how it is; who took that for a change would ask without end.
    pub(super) async fn changed(&self, handle: &CoderHandle, within: Duration) {
        let until = Instant::now() + within;
        let path = format!("/api/v2/workspaces/{}/watch", handle.workspace.id);
        let most = usize::try_from(self.settings.limits.fleet_coder_answer_bytes).unwrap_or(usize::MAX);
        if let Ok(response) = self.client.events(&path, until).await {
            let mut events = Events::new(response, most);
            while let Some(event) = events.next(until).await {
                let is_as_before = || {
                    let now = serde_json::from_str::<Workspace>(&event.data).ok();
                    now.is_some_and(|now| status::signs(&now) == status::signs(&handle.workspace))
                };
                if event.name == "data" && !is_as_before() {
                    return;
                }
            }
        }
        tokio::time::sleep_until(until).await;
    }

    /// What this Coder is and can do.
    pub(super) async fn info(&self) -> BackendInfo {
        let me = self.me().await.map(|me| me.username.clone());
        let (tasks, chats) = tokio::join!(self.tasks_route(), self.has_chats());
        let tasks = match tasks {
            Some(TasksRoute::Stable) => "v2",
            Some(TasksRoute::Experimental) => "experimental",
            None => "none",
        };
        let mut facts = Map::new();
        facts.insert("url".to_owned(), self.client.base().as_str().into());
        facts.insert("version".to_owned(), json!(self.client.version().map(|version| version.to_string())));
        facts.insert("tasks".to_owned(), tasks.into());
        facts.insert("chats".to_owned(), chats.into());
        match &me {
            Ok(name) => facts.insert("user".to_owned(), name.as_str().into()),
            Err(error) => facts.insert("error".to_owned(), error.to_string().into()),
        };
        BackendInfo { backend: "coder", reachable: me.is_ok(), facts }
    }

    async fn has_chats(&self) -> bool {
        let answer = self.client.get::<serde::de::IgnoredAny>("/api/experimental/chats", &[]).await;
        match answer {
            Ok(_) => true,
            // It is there, even when this token may not use it or no organization was named.
            Err(error) => matches!(error.status(), Some(400 | 403)),
        }
    }
}

/// The template versions whose presets are the roles of agents.
fn versions(records: &[AgentRecord<CoderHandle>]) -> BTreeSet<Uuid> {
    let builds = records.iter().map(|record| &record.handle.workspace.latest_build);
    builds
        .filter(|build| build.template_version_preset_id.is_some())
        .map(|build| build.template_version_id)
        .collect()
}

/// What an agent was found to do.
#[derive(Debug, Clone)]
pub(super) struct Learned {
    build: Uuid,
    /// Its newest report then.
    report: Option<Uuid>,
    status: AgentStatus,
    current_task: Option<String>,
    last_task: Option<String>,
}

impl Learned {
    /// Whether nothing newer is known of the workspace.
    fn is_about(&self, workspace: &Workspace) -> bool {
        let report = workspace.latest_app_status.as_ref().map(|report| report.id);
        self.build == workspace.latest_build.id && self.report == report
    }
}

/// What the newest task is called while it runs.
pub(super) fn current_task(tasks: &[Task]) -> Option<String> {
    let running = tasks.first().filter(|task| task.status == TaskStatus::Running)?;
    Some(running.message.clone())
}

/// What the newest task that was begun is called.
pub(super) fn last_task(tasks: &[Task]) -> Option<String> {
    let begun = tasks.iter().find(|task| task.status != TaskStatus::Pending)?;
    Some(begun.message.clone())
}
