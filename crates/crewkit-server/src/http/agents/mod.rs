//! Agents over plain HTTP and WebSocket: the addresses existing clients know.

mod chat;
mod events;
mod payload;
mod rest;
mod viewer;

use std::sync::Arc;

use axum::Router;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, delete, get, post};
use crewkit_agent::{Engine, Error};
use crewkit_core::{Limits, Toolset};
use http::StatusCode;
use http::header::CONTENT_TYPE;

use super::router::App;
use crate::ops::agents::failure;
use crate::ops::{Catalog, Selection};
use crate::services::Agents;

/// What these routes share.
#[derive(Clone)]
struct AgentRoutes {
    agents: Arc<Agents>,
    catalog: Arc<Catalog>,
    selection: Arc<Selection>,
    limits: Arc<Limits>,
}

impl AgentRoutes {
    async fn engine(&self) -> Result<&Engine, Refusal> {
        Ok(self.agents.engine().await?)
    }

    /// Whether this server shows the operation that a route stands for.
    fn shows(&self, operation: &str) -> bool {
        self.catalog.get(operation).is_some_and(|entry| {
            entry.operation.toolset == Toolset::Agents && self.selection.shows(&entry.operation)
        })
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

/// The routes this server shows: each stands for an operation and is there when the operation is.
pub fn routes(app: &App) -> Router {
    let state = AgentRoutes {
        agents: Arc::clone(&app.services.agents),
        catalog: Arc::clone(&app.catalog),
        selection: Arc::clone(&app.selection),
        limits: Arc::clone(&app.limits),
    };
    let (status, output) = (state.shows("agent_status"), state.shows("agent_output"));
    let (start, stop) = (state.shows("agent_start"), state.shows("agent_stop"));
    let mut routes = Router::new();
    for (is_shown, path, handlers) in [
        (status, "/api/tools", get(rest::tools)),
        (status, "/api/agents", get(rest::list)),
        (start, "/api/agents", post(rest::create)),
        (status && output, "/api/agents/{id}", get(rest::show)),
        (status, "/api/agents/{id}/payload", get(payload::get)),
        (output, "/api/agents/{id}/events", get(events::get)),
        (start, "/api/agents/{id}/resume", post(rest::resume)),
        (stop, "/api/agents/{id}/stop", post(rest::stop)),
        // Removing a run ends it.
        (stop, "/api/agents/{id}", delete(rest::delete)),
        (stop, "/api/agents/prune", post(rest::prune)),
        (start, "/ws/{conversation_id}", any(chat::connect)),
        (status && output, "/ws/agent/{agent_id}", any(viewer::connect)),
    ] {
        if is_shown {
            routes = routes.route(path, handlers);
        }
    }
    routes.with_state(state)
}
