//! The state of the simulated Coder.

use std::collections::BTreeMap;
use std::path::PathBuf;

use axum::body::Bytes;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use uuid::Uuid;

use super::Profile;

/// Everything the simulated Coder knows.
#[derive(Debug)]
pub struct World {
    pub(super) users: Vec<User>,
    pub(super) organizations: Vec<Organization>,
    /// The templates; tests add their own.
    pub templates: Vec<SimTemplate>,
    pub(super) workspaces: Vec<SimWorkspace>,
    /// Pattern of the wildcard host; empty when there is none.
    pub app_host: String,
    /// Whether apps can be reached by path.
    pub path_apps: bool,
    /// Bytes of padding in each workspace, as scripts and environment of real ones have.
    pub padding: usize,
    /// Whether start scripts of new builds take until [`World::finish_scripts`].
    pub slow_scripts: bool,
    /// Builds end by themselves after their workspace was read this often.
    pub builds_end_after_reads: Option<usize>,
    profile: Profile,
}

/// Someone with workspaces.
#[derive(Debug, Clone)]
pub struct User {
    pub(super) id: Uuid,
    pub(super) name: String,
    pub(super) token: String,
    pub(super) is_admin: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Organization {
    pub id: Uuid,
    pub name: String,
    pub is_default: bool,
}

/// What a template is made of; see [`World::add_template`].
#[derive(Debug, Clone)]
pub struct Template {
    /// Short name.
    pub name: String,
    /// Name for people; may be empty.
    pub display_name: String,
    /// Organization it belongs to.
    pub organization: String,
    /// Whether it is deprecated.
    pub deprecated: bool,
    /// Whether it has an AI task.
    pub ai_task: bool,
    /// Presets; none are answered as `null`.
    pub presets: Vec<Preset>,
    /// Rich parameters.
    pub parameters: Vec<Parameter>,
    /// Whether its users may cancel builds.
    pub allow_cancel: bool,
}

impl Default for Template {
    fn default() -> Self {
        Self {
            name: "setup-devcontainer".to_owned(),
            display_name: "Setup".to_owned(),
            organization: "coder".to_owned(),
            deprecated: false,
            ai_task: true,
            presets: vec![
                Preset::new("Coder", true),
                Preset::new("Operator", false),
                Preset::new("Manager", false),
            ],
            parameters: vec![Parameter::new("AI Prompt"), Parameter::new("system_prompt")],
            allow_cancel: false,
        }
    }
}

/// A preset.
#[derive(Debug, Clone)]
pub struct Preset {
    /// Id, unique per version.
    pub id: Uuid,
    /// Name.
    pub name: String,
    /// Whether it is marked as default.
    pub default: bool,
    /// Values it sets; none are answered as `null`.
    pub parameters: Vec<(String, String)>,
}

impl Preset {
    /// A preset that sets a system prompt.
    pub fn new(name: &str, default: bool) -> Self {
        Self {
            id: Uuid::now_v7(),
            name: name.to_owned(),
            default,
            parameters: vec![("system_prompt".to_owned(), format!("You are {name}."))],
        }
    }
}

/// A rich parameter.
#[derive(Debug, Clone)]
pub struct Parameter {
    /// Name.
    pub name: String,
    /// Options as name and value.
    pub options: Vec<(String, String)>,
    /// Value when none is given.
    pub default_value: String,
}

impl Parameter {
    /// A free text parameter.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), options: Vec::new(), default_value: String::new() }
    }
}

/// A template with its versions.
#[derive(Debug, Clone)]
pub struct SimTemplate {
    /// Id.
    pub id: Uuid,
    /// Id of the version new workspaces are made from.
    pub active_version: Uuid,
    /// The versions: id and what they are made of.
    pub versions: BTreeMap<Uuid, Template>,
}

impl SimTemplate {
    /// What the active version is made of.
    pub fn active(&self) -> &Template {
        &self.versions[&self.active_version]
    }
}

/// One report of an app.
#[derive(Debug, Clone)]
pub struct Report {
    pub(super) id: Uuid,
    /// When.
    pub at: Timestamp,
    /// `working`, `idle`, `complete` or `failure`.
    pub state: String,
    /// What the agent says.
    pub message: String,
    /// Link.
    pub uri: String,
}

/// The agent inside a workspace.
#[derive(Debug, Clone)]
pub struct AgentApi {
    /// Whether the app answers at all.
    pub reachable: bool,
    /// Whether it works.
    pub running: bool,
    /// What was said since it was started.
    pub messages: Vec<Said>,
    /// What Coder kept of the conversation when the workspace stopped; it keeps nothing unless the template sees to it.
    pub snapshot: Option<Vec<Said>>,
    /// Interrupt keys it takes until it rests; `None` for one that never does.
    pub keys_until_rest: Option<u32>,
    /// Whether it takes a message but answers with an error.
    pub takes_but_fails: bool,
    /// What it reports.
    pub reporter: Reporter,
}

/// What an agent reports about itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Reporter {
    /// Nothing.
    Silent,
    /// That it works or rests, as AgentAPI's own reporter does.
    #[default]
    States,
    /// The same with words, as agents with the reporting tool do.
    Words,
}

/// Something that was said in a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// `user` or `agent`.
    pub role: String,
    /// The text.
    pub text: String,
    /// When.
    pub at: Timestamp,
}

impl Said {
    /// Said now.
    pub fn now(role: &str, text: &str) -> Self {
        Self { role: role.to_owned(), text: text.to_owned(), at: Timestamp::now() }
    }
}

/// What the app `fleet-mcp` of a workspace does.
#[derive(Debug, Clone, Default)]
pub enum MetadataApp {
    /// There is none.
    #[default]
    Absent,
    /// Answers with this.
    Answers(Value),
    /// Answers with this text as JSON.
    AnswersText(String),
    /// Nothing listens at its port.
    Broken,
    /// Never answers.
    Hangs,
}

/// One workspace.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "switches of a fake, each on its own")]
pub struct SimWorkspace {
    pub(super) id: Uuid,
    /// Name in the case it was given.
    pub name: String,
    pub(super) owner: Uuid,
    pub(super) template: Uuid,
    /// Version of its latest build.
    pub version: Uuid,
    /// Preset of its latest build.
    pub preset: Option<Uuid>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When its latest build was made.
    pub build_at: Timestamp,
    pub(super) build_id: Uuid,
    pub(super) first_build_id: Uuid,
    pub(super) build_number: u32,
    /// `running`, `stopped` and so on.
    pub status: String,
    pub(super) reads_left: Option<usize>,
    pub(super) slow_script: bool,
    /// Status of its process.
    pub agent_status: String,
    /// Lifecycle of its process.
    pub lifecycle: String,
    /// Health of its task app.
    pub app_health: String,
    /// Slug of its task app; none when it has no such app.
    pub app_slug: Option<String>,
    /// Whether its apps want a subdomain.
    pub subdomain: bool,
    /// What the task app reported.
    pub reports: Vec<Report>,
    /// Newest report of an earlier build.
    pub stale_report: Option<Report>,
    /// Whether it waits to be claimed.
    pub is_prebuild: bool,
    /// Since when it is dormant.
    pub dormant_at: Option<Timestamp>,
    /// Whether its build made an AI task.
    pub has_ai_task: bool,
    /// Its task.
    pub task_id: Option<Uuid>,
    /// What its task was told first.
    pub prompt: Option<String>,
    /// Parameters of its first build.
    pub parameters: Vec<(String, String)>,
    /// The agent inside.
    pub agent: AgentApi,
    /// Its metadata app.
    pub metadata: MetadataApp,
    /// Coder's own agent metadata: key and value.
    pub agent_metadata: Vec<(String, String)>,
    /// Where its terminal starts; none when there is no terminal.
    pub directory: Option<PathBuf>,
    /// What `PATH` is in its terminal; that of the test when none.
    pub terminal_path: Option<String>,
    pub(super) agent_id: Uuid,
    pub(super) app_id: Uuid,
    /// Hidden by a fault.
    pub(super) hidden: bool,
    pub(super) rendered: Option<Bytes>,
}

impl SimWorkspace {
    /// Its id.
    pub fn id(&self) -> Uuid {
        self.id
    }

    /// Id of the process of Coder's in it.
    pub fn process_id(&self) -> Uuid {
        self.agent_id
    }

    /// Adds a report `seconds` after the start of the build.
    pub fn report(&mut self, seconds: i64, state: &str, message: &str, uri: &str) {
        self.reports.push(Report {
            id: Uuid::now_v7(),
            at: self.build_at + SignedDuration::from_secs(seconds),
            state: state.to_owned(),
            message: message.to_owned(),
            uri: uri.to_owned(),
        });
    }

    /// The newest report, also of an earlier build.
    pub(super) fn newest_report(&self) -> Option<&Report> {
        self.reports.iter().max_by_key(|report| report.at).or(self.stale_report.as_ref())
    }

    pub(super) fn is_building(&self) -> bool {
        matches!(self.status.as_str(), "pending" | "starting" | "stopping" | "deleting" | "canceling")
    }

    /// Begins a build.
    pub(super) fn begin(&mut self, status: &str, reads: Option<usize>) {
        self.stale_report = self.newest_report().cloned();
        self.reports.clear();
        // AgentAPI ends with its workspace, and the conversation with it.
        self.agent.messages.clear();
        self.build_at = Timestamp::now();
        self.build_id = Uuid::now_v7();
        self.build_number += 1;
        status.clone_into(&mut self.status);
        self.reads_left = reads;
        self.agent.running = false;
    }

    /// Ends the build in progress.
    pub(super) fn finish(&mut self) {
        let end = match self.status.as_str() {
            "pending" | "starting" => "running",
            "stopping" => "stopped",
            "deleting" => "deleted",
            "canceling" => "canceled",
            _ => return,
        };
        end.clone_into(&mut self.status);
        self.reads_left = None;
        if end == "running" {
            "connected".clone_into(&mut self.agent_status);
            let lifecycle = if self.slow_script { "starting" } else { "ready" };
            lifecycle.clone_into(&mut self.lifecycle);
            if self.app_slug.is_some() {
                self.read_prompt();
            }
        }
    }

    /// What the agent was made for is the first thing it is told; it is quick.
    fn read_prompt(&mut self) {
        let given = self.parameters.iter().find(|(name, _)| name == "AI Prompt").map(|(_, value)| value);
        let Some(prompt) = self.prompt.as_ref().or(given).cloned() else { return };
        self.agent.messages.push(Said::now("agent", "ready"));
        super::apps::tell(self, &prompt);
        super::apps::rest(self, &format!("done: {prompt}"));
    }

    /// Ends the work of its agent, which says so.
    pub fn rest(&mut self, words: &str) {
        super::apps::rest(self, words);
    }

    /// Tells its agent something, as a person does in Coder.
    pub fn tell(&mut self, text: &str) {
        super::apps::tell(self, text);
    }
}

impl World {
    pub(super) fn new(profile: Profile) -> Self {
        let user = |name: &str, token: &str, is_admin| User {
            id: Uuid::now_v7(),
            name: name.to_owned(),
            token: token.to_owned(),
            is_admin,
        };
        let organization =
            |name: &str, is_default| Organization { id: Uuid::now_v7(), name: name.to_owned(), is_default };
        let mut world = Self {
            users: vec![
                user("fleetbot", super::TOKEN, false),
                user("root", super::ADMIN_TOKEN, true),
                user("alice", "sim-token-CANARY-alice", false),
                user("prebuilds", "", false),
            ],
            // The default one does not come first.
            organizations: vec![organization("acme", false), organization("coder", true)],
            templates: Vec::new(),
            workspaces: Vec::new(),
            app_host: String::new(),
            path_apps: true,
            padding: 0,
            slow_scripts: false,
            builds_end_after_reads: None,
            profile,
        };
        world.add_template(Template::default());
        world
    }

    /// Adds an organization that is not the default one.
    pub fn add_organization(&mut self, name: &str) {
        self.organizations.push(Organization {
            id: Uuid::now_v7(),
            name: name.to_owned(),
            is_default: false,
        });
    }

    /// Adds a template with one version; gives its id.
    pub fn add_template(&mut self, template: Template) -> Uuid {
        let (id, version) = (Uuid::now_v7(), Uuid::now_v7());
        self.templates.push(SimTemplate {
            id,
            active_version: version,
            versions: BTreeMap::from([(version, template)]),
        });
        id
    }

    /// Adds a version to the template `name` and makes it the active one; its presets get new ids.
    pub fn push_version(&mut self, name: &str, change: impl FnOnce(&mut Template)) {
        let template = self.template_mut(name);
        let mut next = template.active().clone();
        for preset in &mut next.presets {
            preset.id = Uuid::now_v7();
        }
        change(&mut next);
        template.active_version = Uuid::now_v7();
        template.versions.insert(template.active_version, next);
    }

    /// The first template with the short name `name`.
    pub fn template_mut(&mut self, name: &str) -> &mut SimTemplate {
        let found = self.templates.iter_mut().find(|template| template.active().name == name);
        found.unwrap_or_else(|| panic!("the test names a template that is not there: {name}"))
    }

    /// Adds a running, idle agent of `fleetbot` on the first template.
    pub fn add_agent(&mut self, name: &str) -> &mut SimWorkspace {
        let template =
            self.templates.first().map(|template| template.active().name.clone()).unwrap_or_default();
        self.add_workspace(name, "fleetbot", &template)
    }

    /// Adds a running workspace of `owner` on the template with the short name `template`.
    pub fn add_workspace(&mut self, name: &str, owner: &str, template: &str) -> &mut SimWorkspace {
        let created_at = Timestamp::now() - SignedDuration::from_hours(1);
        let owner = self.user_named(owner).map(|user| user.id).unwrap_or_default();
        let template = self.template_mut(template).clone();
        let made_of = template.active();
        let preset = made_of.presets.first().map(|preset| preset.id);
        let has_task = made_of.ai_task;
        let mut workspace = self.blank(name, owner, template.id, template.active_version, preset, created_at);
        "running".clone_into(&mut workspace.status);
        "connected".clone_into(&mut workspace.agent_status);
        "ready".clone_into(&mut workspace.lifecycle);
        workspace.has_ai_task = has_task;
        workspace.app_slug = has_task.then(|| "ccw".to_owned());
        let prompt = format!("Initial spec of {name}");
        if made_of.parameters.iter().any(|parameter| parameter.name == "AI Prompt") {
            workspace.parameters.push(("AI Prompt".to_owned(), prompt.clone()));
        }
        if has_task {
            workspace.prompt = Some(prompt);
            workspace.task_id =
                (self.profile >= Profile::V2_28 && self.profile < Profile::V2_37).then(Uuid::now_v7);
        }
        self.workspaces.push(workspace);
        let index = self.workspaces.len() - 1;
        &mut self.workspaces[index]
    }

    pub(super) fn blank(
        &self,
        name: &str,
        owner: Uuid,
        template: Uuid,
        version: Uuid,
        preset: Option<Uuid>,
        created_at: Timestamp,
    ) -> SimWorkspace {
        let build = Uuid::now_v7();
        SimWorkspace {
            id: Uuid::now_v7(),
            name: name.to_owned(),
            owner,
            template,
            version,
            preset,
            created_at,
            build_at: created_at,
            build_id: build,
            first_build_id: build,
            build_number: 1,
            status: "pending".to_owned(),
            reads_left: self.builds_end_after_reads,
            slow_script: self.slow_scripts,
            agent_status: "connecting".to_owned(),
            lifecycle: "created".to_owned(),
            app_health: "healthy".to_owned(),
            app_slug: Some("ccw".to_owned()),
            subdomain: false,
            reports: Vec::new(),
            stale_report: None,
            is_prebuild: false,
            dormant_at: None,
            has_ai_task: false,
            task_id: None,
            prompt: None,
            parameters: Vec::new(),
            agent: AgentApi {
                reachable: true,
                running: false,
                messages: Vec::new(),
                keys_until_rest: Some(1),
                takes_but_fails: false,
                reporter: Reporter::default(),
                snapshot: None,
            },
            metadata: MetadataApp::Absent,
            agent_metadata: Vec::new(),
            directory: None,
            terminal_path: None,
            agent_id: Uuid::now_v7(),
            app_id: Uuid::now_v7(),
            hidden: false,
            rendered: None,
        }
    }

    /// The workspace called `name`, to change it.
    pub fn workspace_mut(&mut self, name: &str) -> &mut SimWorkspace {
        let found = self.workspaces.iter_mut().find(|workspace| workspace.name == name);
        let workspace =
            found.unwrap_or_else(|| panic!("the test names a workspace that is not there: {name}"));
        workspace.rendered = None;
        workspace
    }

    /// Workspaces that are not deleted, whoever owns them.
    pub fn workspace_count(&self) -> usize {
        self.workspaces.iter().filter(|workspace| workspace.status != "deleted").count()
    }

    /// Ends every build in progress.
    pub fn finish_builds(&mut self) {
        for workspace in &mut self.workspaces {
            workspace.rendered = None;
            workspace.finish();
        }
    }

    /// Ends every start script: the directory of its workspace is there from now on.
    pub fn finish_scripts(&mut self) {
        for workspace in self.workspaces.iter_mut().filter(|it| it.lifecycle == "starting") {
            workspace.rendered = None;
            "ready".clone_into(&mut workspace.lifecycle);
            if let Some(directory) = &workspace.directory {
                std::fs::create_dir_all(directory).unwrap_or_else(|error| panic!("{error}"));
            }
        }
    }

    pub(super) fn hide_newest(&mut self) {
        if let Some(workspace) = self.workspaces.last_mut() {
            workspace.hidden = true;
        }
    }

    pub(super) fn user_named(&self, name: &str) -> Option<&User> {
        self.users.iter().find(|user| user.name.eq_ignore_ascii_case(name))
    }

    pub(super) fn version(&self, id: Uuid) -> Option<&Template> {
        self.templates.iter().find_map(|template| template.versions.get(&id))
    }

    pub(super) fn template(&self, id: Uuid) -> Option<&SimTemplate> {
        self.templates.iter().find(|template| template.id == id)
    }
}
