//! Runs over plain HTTP and WebSocket, at the addresses and in the shapes that existing clients know.
//!
//! Each route is an adapter: it runs the operation it stands for, or asks for permission in its name, and turns the answer
//! into the shape of the contract.

mod chat;
mod events;
mod payload;
mod rest;
mod viewer;

use std::sync::Arc;

use axum::response::Response;
use axum::routing::{MethodRouter, any, delete, get, post};
use crewkit_agent::{Engine, Error};

use super::context::{RequestContext, respond};
use super::router::App;
use crate::ops::{Answer, Failure};

/// A route that is an adapter of an operation, as the `OpenAPI` document shows it.
#[derive(Debug, Clone, Copy)]
pub struct Route {
    /// The method, in small letters.
    pub method: &'static str,
    /// The path, with its parameters in braces.
    pub path: &'static str,
    /// The operation.
    pub operation: &'static str,
    /// What it answers with, in one line.
    pub summary: &'static str,
}

/// The routes with their handlers.
pub fn routes() -> Vec<(Route, MethodRouter<Arc<App>>)> {
    let route = |method, path, operation, summary| Route { method, path, operation, summary };
    vec![
        (route("get", "/api/events", "events", "Show what happened after a cursor."), get(rest::events)),
        (route("get", "/api/tools", "run_tools", "List the tools of runs."), get(rest::tools)),
        (route("get", "/api/agents", "run_list", "List runs."), get(rest::list)),
        (route("post", "/api/agents", "run_create", "Create a run that waits."), post(rest::create)),
        (route("get", "/api/agents/{id}", "run_show", "Show a run with its output."), get(rest::show)),
        (route("delete", "/api/agents/{id}", "run_delete", "Delete a run."), delete(rest::delete)),
        (
            route("get", "/api/agents/{id}/payload", "run_payload", "Get the payload, gzip-compressed."),
            get(payload::get),
        ),
        (
            route("get", "/api/agents/{id}/events", "agent_output", "Follow a run as server-sent events."),
            get(events::get),
        ),
        (route("post", "/api/agents/{id}/resume", "run_resume", "Resume a run."), post(rest::resume)),
        (route("post", "/api/agents/{id}/stop", "agent_stop", "Stop a run."), post(rest::stop)),
        (
            route("post", "/api/agents/prune", "run_prune", "Remove runs that ended long ago."),
            post(rest::prune),
        ),
        (
            route("get", "/ws/{conversation_id}", "agent_start", "Talk with the model over a WebSocket."),
            any(chat::connect),
        ),
        (
            route("get", "/ws/agent/{agent_id}", "run_show", "View and control a run over a WebSocket."),
            any(viewer::connect),
        ),
    ]
}

async fn engine(context: &RequestContext) -> Result<&Engine, Response> {
    context.services().agents.engine().await.map_err(refused)
}

/// An error of the engine in the form of this contract.
fn refused(error: Error) -> Response {
    let Failure { status, body } = error.into();
    respond(Answer { body, status })
}
