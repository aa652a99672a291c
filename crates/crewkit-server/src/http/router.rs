//! The routes, and what surrounds every one of them: guard, clock and counter.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Extension, Path, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{any, get, post};
use axum::{Json, Router};
use crewkit_core::secret::masked_url;
use crewkit_core::{Code, Limits, Toolset};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::agents;
use super::guard::{Guard, GuardState, guard_request};
use super::hello::{self, AskerState};
use super::openapi;
use super::problem::HttpProblem;
use super::rest;
use crate::Services;
use crate::asker::Askers;
use crate::caller::Caller;
use crate::mcp::http::McpEndpoint;
use crate::metrics::Metrics;
use crate::ops::{Catalog, Selection};

/// What the routes share.
pub struct App {
    /// The operations.
    pub catalog: Arc<Catalog>,
    /// What they work on.
    pub services: Arc<Services>,
    /// Which of them this server shows.
    pub selection: Arc<Selection>,
    /// The bounds.
    pub limits: Arc<Limits>,
    /// The MCP endpoint.
    pub mcp: McpEndpoint,
    /// Whose settings requests are carried out with.
    pub askers: Arc<Askers>,
}

/// Every route of the server.
pub fn router(app: App, guard: Guard) -> Router {
    let limits = Arc::clone(&app.limits);
    let askers = Arc::new(AskerState::new(&app));
    let state = GuardState { guard, agents: Arc::clone(&app.services.agents) };
    let mut adapters = Router::new();
    for (route, handlers) in agents::routes() {
        adapters = adapters.route(route.path, handlers);
    }
    adapters
        .route("/", get(signpost))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/api/health", get(health))
        .route("/metrics", get(metrics))
        .route("/api/openapi.json", get(openapi_document))
        .route("/api/hello", post(hello::hello))
        .route("/api/server/stop", post(hello::stop))
        .route("/api/ops/{name}", post(rest::run_operation))
        .route("/mcp", any(mcp))
        .route("/mcp/", any(mcp))
        .route("/mcp/{toolset}", any(mcp_toolset))
        .fallback(|request: Request| async move {
            HttpProblem::new(
                StatusCode::NOT_FOUND,
                Code::NotFound,
                format!("there is nothing at {}", request.uri().path()),
            )
        })
        .method_not_allowed_fallback(|request: Request| async move {
            let message = format!("{} does not take {}", request.uri().path(), request.method());
            HttpProblem::new(StatusCode::METHOD_NOT_ALLOWED, Code::MethodNotAllowed, message)
        })
        .with_state(Arc::new(app))
        .layer(middleware::from_fn_with_state(askers, hello::find_asker))
        .layer(middleware::from_fn_with_state(limits, keep_time))
        .layer(middleware::from_fn_with_state(Arc::new(state), guard_request))
        .layer(middleware::from_fn(count))
}

async fn mcp(State(app): State<Arc<App>>, request: Request) -> Response {
    app.mcp.handle(None, request).await
}

async fn mcp_toolset(State(app): State<Arc<App>>, Path(segment): Path<String>, request: Request) -> Response {
    let Some(toolset) = Toolset::ALL.into_iter().find(|toolset| toolset.path_segment() == segment) else {
        let message = format!("Unknown toolset `{segment}`. Use agentpack, fleet or minifram");
        return HttpProblem::new(StatusCode::NOT_FOUND, Code::NotFound, message).into_response();
    };
    app.mcp.handle(Some(toolset), request).await
}

/// What a person finds who opens the address in a browser.
async fn signpost() -> String {
    format!(
        "crewkit {}\n\n  /mcp                 MCP, all toolsets\n  /api/openapi.json    the operations over REST\n  \
         /healthz             whether the server answers\n  /metrics             counters for Prometheus\n",
        env!("CARGO_PKG_VERSION")
    )
}

/// Answer of `/api/health`: all of it for the owner, for anybody else only that the server answers.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(super) struct Health {
    /// `ok`.
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<&'static str>,
    /// The model that runs use, and where it is.
    #[serde(flatten)]
    model: Option<DefaultModel>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct DefaultModel {
    model: String,
    endpoint: Option<String>,
}

async fn health(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>) -> Json<Health> {
    let status = "ok";
    if !matches!(caller, Caller::Owner) {
        return Json(Health { status, ..Health::default() });
    }
    let model = app.services.agents.opened().map(|engine| {
        let (model, endpoint) = engine.default_model();
        DefaultModel { model, endpoint: endpoint.as_deref().map(masked_url) }
    });
    Json(Health { status, name: Some("crewkit"), version: Some(env!("CARGO_PKG_VERSION")), model })
}

async fn metrics() -> Response {
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], Metrics::global().render()).into_response()
}

async fn openapi_document(State(app): State<Arc<App>>) -> Json<Value> {
    Json(openapi::document(&app.catalog, &app.selection))
}

/// Bounds the time until an answer begins; a stream that has begun may go on.
async fn keep_time(State(limits): State<Arc<Limits>>, request: Request, next: Next) -> Response {
    let most = Duration::from_secs(limits.http_request_seconds);
    tokio::time::timeout(most, next.run(request)).await.unwrap_or_else(|_| {
        let message = format!("no answer within {} seconds (limits.http_request_seconds)", most.as_secs());
        HttpProblem::new(StatusCode::GATEWAY_TIMEOUT, Code::TimedOut, message).into_response()
    })
}

async fn count(request: Request, next: Next) -> Response {
    let door = door(request.uri().path());
    let response = next.run(request).await;
    Metrics::global().request(door, response.status().as_u16());
    response
}

/// The group a path is counted under; a client cannot make up labels.
fn door(path: &str) -> &'static str {
    match path {
        "/healthz" | "/api/health" => "health",
        "/metrics" => "metrics",
        path if path == "/mcp" || path.starts_with("/mcp/") => "mcp",
        path if path.starts_with("/api/") => "rest",
        path if path.starts_with("/ws/") => "websocket",
        _ => "other",
    }
}
