//! What the facts Coder gives about a workspace say about the agent in it. Pure.
//!
//! `running` in Coder only means that Terraform finished; whether somebody answers is told by the processes in the
//! workspace, and whether it works by what its app reported since the last start.

use crewkit_core::AgentStatus;
use uuid::Uuid;

use super::wire::{App, AppStatus, Workspace, WorkspaceAgent};
use crate::history::{self, Report};
use crate::model::{Health, StatusWord};
use crate::time::Moment;

/// Slugs of apps that speak AgentAPI.
const TASK_SLUGS: [&str; 2] = ["ccw", "agentapi"];
const TASK_SLUG_PREFIX: &str = "claude-code";
const TASK_DISPLAY_NAME: &str = "Claude Code";

/// What was concluded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) status: StatusWord,
    pub(super) health: Health,
    pub(super) needs_attention: bool,
}

/// A workspace and what it says about its agent.
#[derive(Debug, Clone)]
pub(super) struct Digest {
    /// With one report for each app that reports, as the sign that it does.
    pub(super) workspace: Workspace,
    pub(super) reports: Vec<Report>,
    pub(super) verdict: Verdict,
    /// The newest report that says something.
    pub(super) last: Option<Report>,
    /// What the agent says about what it does right now.
    pub(super) says: Option<String>,
    pub(super) pull_request_url: Option<String>,
}

impl Digest {
    /// Draws the conclusions.
    pub(super) fn of(mut workspace: Workspace) -> Self {
        let mut reports = reports(&workspace);
        reports.sort_by(|a, b| (a.at, &a.id).cmp(&(b.at, &b.id)));
        let verdict = judge(&workspace, &reports);
        for resource in &mut workspace.latest_build.resources {
            resource
                .agents
                .iter_mut()
                .flat_map(|agent| &mut agent.apps)
                .for_each(|app| app.statuses.truncate(1));
        }
        Self {
            verdict,
            last: history::newest_message(&reports).cloned(),
            says: says(&reports, workspace.latest_build.created_at),
            pull_request_url: history::pull_request_url(&reports).map(str::to_owned),
            workspace,
            reports,
        }
    }

    /// The same without the reports, of which there can be hundreds.
    pub(super) fn brief(workspace: Workspace) -> Self {
        Self { reports: Vec::new(), ..Self::of(workspace) }
    }
}

/// Whether a workspace is an agent of the fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Membership {
    Agent,
    Other,
    /// Only the template can tell: this version of it, with this id.
    AskTemplate {
        template: Uuid,
        version: Uuid,
    },
}

/// Judges by what the workspace itself shows.
pub(super) fn membership(workspace: &Workspace) -> Membership {
    let build = &workspace.latest_build;
    if workspace.is_prebuild || build.status == "deleted" {
        return Membership::Other;
    }
    let shows_a_task = workspace.task_id.is_some()
        || build.has_ai_task == Some(true)
        || workspace.latest_app_status.is_some()
        || workspace.apps().any(|(_, app)| !app.statuses.is_empty() || has_task_slug(app));
    if shows_a_task {
        Membership::Agent
    } else {
        Membership::AskTemplate { template: workspace.template_id, version: build.template_version_id }
    }
}

fn has_task_slug(app: &App) -> bool {
    // `ccw-cli` and the like open a terminal; they do not speak AgentAPI.
    let is_terminal = app.slug.ends_with("-cli");
    TASK_SLUGS.contains(&app.slug.as_str()) || (app.slug.starts_with(TASK_SLUG_PREFIX) && !is_terminal)
}

/// The app through which the agent is spoken to, with the process it runs under.
pub(super) fn task_app(workspace: &Workspace) -> Option<(&WorkspaceAgent, &App)> {
    let by_id = |id: Option<Uuid>| workspace.apps().find(|(_, app)| Some(app.id) == id);
    by_id(workspace.latest_build.ai_task_sidebar_app_id)
        .or_else(|| by_id(workspace.latest_app_status.as_ref().map(|status| status.app_id)))
        .or_else(|| workspace.apps().find(|(_, app)| has_task_slug(app)))
        .or_else(|| workspace.apps().find(|(_, app)| app.display_name == TASK_DISPLAY_NAME))
        .or_else(|| {
            let mut reporting = workspace.apps().filter(|(_, app)| !app.statuses.is_empty());
            reporting.next().filter(|_| reporting.next().is_none())
        })
}

/// The newest words of an agent since it last was at rest; `reports` are sorted.
fn says(reports: &[Report], since: Moment) -> Option<String> {
    let mut words = None;
    let mut at_rest = true;
    for report in reports.iter().filter(|report| report.at > since) {
        if at_rest {
            words = None;
        }
        at_rest = report.state != "working";
        if !report.message.is_empty() {
            words = Some(report.message.clone());
        }
    }
    words
}

/// Everything the apps of the workspace reported, in no order.
pub(super) fn reports(workspace: &Workspace) -> Vec<Report> {
    let mut seen = std::collections::HashSet::new();
    workspace
        .apps()
        .flat_map(|(_, app)| &app.statuses)
        // After a restart the rows are gone, but the newest one is still named here.
        .chain(&workspace.latest_app_status)
        .filter(|status| seen.insert(status.id))
        .map(report)
        .collect()
}

fn report(status: &AppStatus) -> Report {
    Report {
        id: status.id.to_string(),
        at: status.created_at,
        state: status.state.clone(),
        message: status.message.trim().to_owned(),
        uri: status.uri.clone(),
        needs_attention: status.needs_user_attention,
    }
}

/// What a status is concluded from, to tell whether anything changed.
pub(super) fn signs(workspace: &Workspace) -> Vec<String> {
    let build = &workspace.latest_build;
    let report = workspace.latest_app_status.as_ref().map(|status| status.id);
    let mut signs = vec![format!("{} {} {report:?}", build.id, build.status)];
    signs.extend(
        workspace
            .all_agents()
            .map(|agent| format!("{} {} {}", agent.id, agent.status, agent.lifecycle_state)),
    );
    signs.extend(workspace.apps().map(|(_, app)| format!("{} {}", app.id, app.health)));
    signs
}

/// When something about the workspace last changed; Coder's own `updated_at` does not move with builds or reports.
pub(super) fn last_change(workspace: &Workspace) -> Moment {
    let reported = workspace.latest_app_status.as_ref().map(|status| status.created_at);
    workspace.updated_at.max(workspace.latest_build.updated_at).max(reported.unwrap_or(workspace.updated_at))
}

/// The status of the agent, from build, processes and reports.
pub(super) fn judge(workspace: &Workspace, reports: &[Report]) -> Verdict {
    let build = &workspace.latest_build;
    if build.status != "running" {
        return not_running(workspace);
    }
    let fresh = reports.iter().filter(|report| report.at > build.created_at).max_by_key(|report| report.at);
    let state = fresh.map(|report| report.state.as_str()).unwrap_or_default();
    let trouble = workspace.top_agents().find_map(|agent| trouble_of(agent, task_app(workspace)));
    let asks = state == "failure" || fresh.is_some_and(|report| report.needs_attention);

    let is_starting = workspace.top_agents().next().is_none()
        || workspace.top_agents().any(|agent| match agent.status.as_str() {
            "connecting" => true,
            "connected" => matches!(agent.lifecycle_state.as_str(), "created" | "starting"),
            // A process that is gone, or never came, is not on its way.
            _ => false,
        });
    if is_starting {
        return Verdict {
            status: AgentStatus::Starting.into(),
            health: Health::good(),
            needs_attention: asks,
        };
    }
    match trouble {
        Some(Trouble::Fatal(reason)) => {
            Verdict { status: AgentStatus::Failed.into(), health: Health::bad(reason), needs_attention: true }
        }
        trouble => {
            let status = if state == "working" { AgentStatus::Busy } else { AgentStatus::Idle };
            let health = match &trouble {
                Some(Trouble::Bearable(reason)) => Health::bad(reason.clone()),
                Some(Trouble::Harmless(reason)) => Health { healthy: true, reason: Some(reason.clone()) },
                _ => Health::good(),
            };
            let is_trouble = matches!(trouble, Some(Trouble::Bearable(_)));
            Verdict { status: status.into(), health, needs_attention: asks || is_trouble }
        }
    }
}

fn not_running(workspace: &Workspace) -> Verdict {
    let build = &workspace.latest_build;
    let status =
        build.word().parse().map_or_else(|_| StatusWord::Foreign(build.status.clone()), StatusWord::Known);
    let failed = status == AgentStatus::Failed;
    let health = if failed {
        let said = build.job.error.clone().filter(|error| !error.is_empty());
        Health::bad(said.unwrap_or_else(|| "the workspace build failed".to_owned()))
    } else {
        Health::good()
    };
    Verdict { status, health, needs_attention: failed }
}

enum Trouble {
    /// Nobody can be talked to.
    Fatal(String),
    /// It works, but a person should know.
    Bearable(String),
    /// It works, and what was wrong did no harm.
    Harmless(String),
}

fn trouble_of(agent: &WorkspaceAgent, task_app: Option<(&WorkspaceAgent, &App)>) -> Option<Trouble> {
    let app_is_unhealthy = task_app.is_some_and(|(_, app)| app.health == "unhealthy");
    let app_is_healthy = task_app.is_some_and(|(_, app)| app.health == "healthy");
    let fatal = |reason: String| Some(Trouble::Fatal(reason));
    let bearable = |reason: String| Some(Trouble::Bearable(reason));
    match (agent.status.as_str(), agent.lifecycle_state.as_str()) {
        ("disconnected", _) => fatal(format!("the workspace process '{}' is disconnected", agent.name)),
        ("timeout", _) => fatal(format!("the workspace process '{}' never connected", agent.name)),
        (_, state @ ("shutting_down" | "shutdown_timeout" | "shutdown_error" | "off")) => {
            fatal(format!("the workspace process '{}' is {}", agent.name, state.replace('_', " ")))
        }
        (_, "start_error") if app_is_unhealthy => {
            fatal(format!("the start script of '{}' failed and its app does not answer", agent.name))
        }
        // Coder says so too of a script that is done and left something running behind it, as most do.
        (_, "start_error") if app_is_healthy => Some(Trouble::Harmless(format!(
            "Coder says that the start script of '{}' ended with an error; its app is healthy",
            agent.name
        ))),
        (_, "start_error") => bearable(format!("the start script of '{}' failed", agent.name)),
        (_, "start_timeout") => bearable(format!("the start script of '{}' takes too long", agent.name)),
        _ if app_is_unhealthy => bearable("the agent's app does not answer its health check".to_owned()),
        _ => None,
    }
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
