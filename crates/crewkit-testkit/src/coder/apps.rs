//! The app proxy of the simulated Coder, and what runs behind it: AgentAPI and the metadata endpoint.

use axum::body::Body;
use axum::http::{Method, Response, StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::api::good;
use super::faults::{json as json_text, page};
use super::world::{MetadataApp, Reporter, Said, SimWorkspace, User};
use super::{Sim, lock, render};

/// An app that is asked for, and the path within it.
#[derive(Debug)]
pub(super) struct App {
    owner: String,
    workspace: String,
    slug: String,
    path: String,
    by_path: bool,
}

impl App {
    /// The app a request is for, if it is for one.
    pub(super) fn of(sim: &Sim, host: &str, path: &str) -> Option<Self> {
        let pattern = lock(&sim.world).app_host.clone();
        if let Some((_, suffix)) = pattern.split_once('*')
            && let Some(label) = host.strip_suffix(suffix)
        {
            let mut parts = label.split("--");
            let (slug, _, workspace, owner) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
            return Some(Self {
                owner: owner.to_owned(),
                workspace: workspace.to_owned(),
                slug: slug.to_owned(),
                path: path.to_owned(),
                by_path: false,
            });
        }
        let rest = path.strip_prefix("/@")?;
        let mut parts = rest.splitn(5, '/');
        let (owner, workspace, apps, slug) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        (apps == "apps").then(|| Self {
            owner: owner.to_owned(),
            // The process after the dot may be left out.
            workspace: workspace.split('.').next().unwrap_or_default().to_owned(),
            slug: slug.to_owned(),
            path: format!("/{}", parts.next().unwrap_or_default()),
            by_path: true,
        })
    }
}

/// Answers for an app.
pub(super) async fn answer(
    sim: &Sim,
    user: &User,
    app: &App,
    method: &Method,
    body: &[u8],
) -> Response<Body> {
    let metadata = {
        let mut world = lock(&sim.world);
        if app.by_path && !world.path_apps {
            return page(StatusCode::FORBIDDEN, "Path-based applications are disabled");
        }
        let owner = world.user_named(&app.owner).map(|owner| owner.id);
        let found = world.workspaces.iter_mut().find(|workspace| {
            Some(workspace.owner) == owner
                && workspace.name.eq_ignore_ascii_case(&app.workspace)
                && workspace.status != "deleted"
                && (workspace.owner == user.id || user.is_admin)
        });
        let Some(workspace) = found else { return page(StatusCode::NOT_FOUND, "Application Not Found") };
        if workspace.status != "running" {
            return page(StatusCode::BAD_REQUEST, "Workspace Offline");
        }
        if workspace.agent_status != "connected" {
            return page(StatusCode::NOT_FOUND, "Application Unavailable");
        }
        if app.slug != "fleet-mcp" {
            if workspace.app_slug.as_deref() != Some(app.slug.as_str()) {
                return page(StatusCode::NOT_FOUND, "Application Not Found");
            }
            return agent_api(workspace, app, method, body);
        }
        workspace.metadata.clone()
    };
    match metadata {
        MetadataApp::Absent => page(StatusCode::NOT_FOUND, "Application Not Found"),
        MetadataApp::Broken => page(StatusCode::BAD_GATEWAY, "Bad Gateway"),
        MetadataApp::Hangs => std::future::pending().await,
        MetadataApp::Answers(value) if app.path == "/metadata" => good(&value),
        MetadataApp::AnswersText(text) if app.path == "/metadata" => json_text(StatusCode::OK, text),
        MetadataApp::Answers(_) | MetadataApp::AnswersText(_) => good(&json!({"status": "ok"})),
    }
}

fn agent_api(workspace: &mut SimWorkspace, app: &App, method: &Method, body: &[u8]) -> Response<Body> {
    if !workspace.agent.reachable {
        return page(StatusCode::BAD_GATEWAY, "Bad Gateway");
    }
    match (method.as_str(), app.path.as_str()) {
        ("GET", "/status") => {
            let status = if workspace.agent.running { "running" } else { "stable" };
            good(&json!({"$schema": "x", "status": status, "agent_type": "claude"}))
        }
        ("GET", "/messages") => {
            let message = |(id, said): (usize, &Said)| json!({"id": id, "role": said.role, "content": said.text, "time": render::time(said.at)});
            good(
                &json!({"messages": workspace.agent.messages.iter().enumerate().map(message).collect::<Value>()}),
            )
        }
        ("POST", "/message") => message(workspace, body),
        _ => problem(StatusCode::NOT_FOUND, "Not Found"),
    }
}

fn message(workspace: &mut SimWorkspace, body: &[u8]) -> Response<Body> {
    let fields: Value = serde_json::from_slice(body).unwrap_or_default();
    let content = fields["content"].as_str().unwrap_or_default();
    match fields["type"].as_str() {
        Some("user") if workspace.agent.running => problem(
            StatusCode::INTERNAL_SERVER_ERROR,
            "message can only be sent when the agent is waiting for user input",
        ),
        Some("user") if content.trim().is_empty() => {
            problem(StatusCode::INTERNAL_SERVER_ERROR, "message must not be empty")
        }
        Some("user") => {
            tell(workspace, content);
            if workspace.agent.takes_but_fails {
                return problem(StatusCode::INTERNAL_SERVER_ERROR, "failed to wait for screen to stabilize");
            }
            good(&json!({"$schema": "x", "ok": true}))
        }
        Some("raw") => {
            if content.contains('\u{1b}') {
                interrupt(workspace);
            }
            good(&json!({"$schema": "x", "ok": true}))
        }
        _ => problem(StatusCode::UNPROCESSABLE_ENTITY, "validation failed"),
    }
}

/// Gives the agent something to do.
pub(super) fn tell(workspace: &mut SimWorkspace, text: &str) {
    workspace.rendered = None;
    workspace.agent.running = true;
    workspace.agent.messages.push(Said::now("user", text));
    report_now(workspace, "working", text);
}

/// Ends the work of the agent.
pub(super) fn rest(workspace: &mut SimWorkspace, words: &str) {
    workspace.rendered = None;
    workspace.agent.running = false;
    workspace.agent.messages.push(Said::now("agent", words));
    report_now(workspace, "idle", words);
}

fn interrupt(workspace: &mut SimWorkspace) {
    let Some(keys) = &mut workspace.agent.keys_until_rest else { return };
    *keys = keys.saturating_sub(1);
    if *keys == 0 && workspace.agent.running {
        workspace.agent.keys_until_rest = Some(1);
        workspace.agent.running = false;
        workspace.rendered = None;
        report_now(workspace, "idle", "");
    }
}

fn report_now(workspace: &mut SimWorkspace, state: &str, words: &str) {
    let now = Timestamp::now();
    let message: String = match workspace.agent.reporter {
        Reporter::Silent => return,
        Reporter::States => String::new(),
        Reporter::Words => words.chars().take(160).collect(),
    };
    workspace.report(0, state, &message, "");
    if let Some(report) = workspace.reports.last_mut() {
        report.at = now;
    }
}

fn problem(status: StatusCode, detail: &str) -> Response<Body> {
    let body = json!({"$schema": "x", "title": "Problem", "status": status.as_u16(), "detail": detail});
    let mut answer = json_text(status, body.to_string());
    let kind = axum::http::HeaderValue::from_static("application/problem+json");
    answer.headers_mut().insert(axum::http::header::CONTENT_TYPE, kind);
    answer
}
