//! Agents over plain HTTP and WebSocket: the addresses existing clients know.

mod chat;
mod events;
mod payload;
mod rest;
mod viewer;

use std::sync::Arc;

use axum::Router;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use crewkit_agent::{Engine, Error};
use crewkit_core::{Limits, Toolset};
use http::StatusCode;
use http::header::CONTENT_TYPE;

use crate::ops::agents::failure;
use crate::ops::{Catalog, Selection};
use crate::services::Agents;

/// What these routes share.
#[derive(Clone)]
struct Door {
    agents: Arc<Agents>,
    limits: Arc<Limits>,
}

impl Door {
    async fn engine(&self) -> Result<&Engine, Refusal> {
        Ok(self.agents.engine().await?)
    }
}

/// An error in the form of this contract, with a status that tells its kind.
struct Refusal(Error);

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let failure = failure(&self.0);
        let status = StatusCode::from_u16(failure.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, [(CONTENT_TYPE, "application/json")], failure.body.to_string()).into_response()
    }
}

/// The routes this server shows: none without the toolset, only reading ones on a server that only reads.
pub fn routes(
    agents: &Arc<Agents>,
    catalog: &Catalog,
    selection: &Selection,
    limits: &Arc<Limits>,
) -> Router {
    let shown = |name: &str| {
        catalog.get(name).is_some_and(|entry| {
            entry.operation.toolset == Toolset::Agents && selection.shows(&entry.operation)
        })
    };
    let door = Door { agents: Arc::clone(agents), limits: Arc::clone(limits) };
    if !shown("agent_status") {
        return Router::new();
    }
    let reading = Router::new()
        .route("/api/tools", get(rest::tools))
        .route("/api/agents/{id}/payload", get(payload::get))
        .route("/api/agents/{id}/events", get(events::get));
    let routes = if shown("agent_start") {
        reading
            .route("/api/agents", get(rest::list).post(rest::create))
            .route("/api/agents/prune", post(rest::prune))
            .route("/api/agents/{id}", get(rest::show).delete(rest::delete))
            .route("/api/agents/{id}/stop", post(rest::stop))
            .route("/api/agents/{id}/resume", post(rest::resume))
            .route("/ws/{conversation_id}", any(chat::connect))
            .route("/ws/agent/{agent_id}", any(viewer::connect))
    } else {
        reading.route("/api/agents", get(rest::list)).route("/api/agents/{id}", get(rest::show))
    };
    routes.with_state(door)
}
