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
use schemars::JsonSchema;

use super::context::{RequestContext, respond};
use super::rest as http_rest;
use super::router::App;
use crate::ops::{Answer, Failure, Schema};

/// A route that is an adapter of an operation, as the `OpenAPI` document shows it.
#[derive(Clone, Copy)]
pub struct Route {
    /// The method, in small letters.
    pub method: &'static str,
    /// The path, with its parameters in braces.
    pub path: &'static str,
    /// The operation.
    pub operation: &'static str,
    /// What it answers with.
    pub answer: RouteAnswer,
}

/// What a route answers with.
#[derive(Clone, Copy)]
pub enum RouteAnswer {
    /// The answer of its operation.
    Same,
    /// JSON of this schema.
    Json(Schema),
    /// Text of this media type.
    Text(&'static str),
    /// A WebSocket.
    Socket,
}

/// The routes with their handlers.
pub fn routes() -> Vec<(Route, MethodRouter<Arc<App>>)> {
    use RouteAnswer::{Same, Socket, Text};
    let route =
        |method, path, operation, answer, handler| (Route { method, path, operation, answer }, handler);
    vec![
        route("get", "/api/events", "events", Same, get(rest::events)),
        route("get", "/api/tools", "run_tools", Same, get(rest::tools)),
        route("get", "/api/agents", "run_list", json::<rest::ListedRuns>(), get(rest::list)),
        route("post", "/api/agents", "run_create", json::<rest::Created>(), post(rest::create)),
        route("get", "/api/agents/{id}", "run_show", Same, get(rest::show)),
        route("delete", "/api/agents/{id}", "run_delete", json::<rest::Deleted>(), delete(rest::delete)),
        route("get", "/api/agents/{id}/payload", "run_payload", Text("text/plain"), get(payload::get)),
        route("get", "/api/agents/{id}/events", "agent_output", Text("text/event-stream"), get(events::get)),
        route("post", "/api/agents/{id}/resume", "run_resume", Same, post(rest::resume)),
        route("post", "/api/agents/{id}/stop", "agent_stop", json::<rest::Stopping>(), post(rest::stop)),
        route("post", "/api/agents/prune", "run_prune", json::<rest::PrunedRuns>(), post(rest::prune)),
        route("get", "/ws/{conversation_id}", "chat_send", Socket, any(chat::connect)),
        route("get", "/ws/agent/{agent_id}", "run_show", Socket, any(viewer::connect)),
        route("post", "/api/fleet/projects", "project_add", Same, post(http_rest::add_project)),
    ]
}

fn json<T: JsonSchema>() -> RouteAnswer {
    RouteAnswer::Json(Schema::of_output::<T>())
}

async fn engine(context: &RequestContext) -> Result<&Engine, Response> {
    context.services().agents.engine().await.map_err(refused)
}

/// An error of the engine in the form of this contract.
fn refused(error: Error) -> Response {
    let Failure { status, body } = error.into();
    respond(Answer { body, status })
}
