//! Creating, looking at, ending and removing agents.

use axum::Json;
use axum::body::HttpBody as _;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use crewkit_agent::contract::completion_tool;
use crewkit_agent::engine::output_rows;
use crewkit_core::Code;
use http::StatusCode;
use serde_json::{Value, json};

use super::{AgentRoutes, Refusal};
use crate::http::problem::HttpProblem;
use crate::http::rest as http_rest;
use crate::ops::agents::{PruneWish, body, listed_contract, start_of, status_json};
use crate::ops::{JsonObject, arguments};

/// Entries of a transcript read at a time.
const PAGE: usize = 500;

pub(super) async fn list(State(state): State<AgentRoutes>) -> Result<Response, Refusal> {
    let engine = state.engine().await?;
    let agents: Vec<Value> = engine
        .records()
        .iter()
        .map(|record| {
            json!({
                "id": record.id,
                "status": record.state.status(),
                "contract": listed_contract(record),
                "created_at": record.created_at,
            })
        })
        .collect();
    Ok(Json(json!({"agents": agents})).into_response())
}

/// Creates an agent that waits. An older form has no body; what `agent_start` takes may be given with it.
pub(super) async fn create(State(state): State<AgentRoutes>, request: Request) -> Result<Response, Response> {
    let mut arguments = arguments(&state, request).await.map_err(IntoResponse::into_response)?;
    let mut schema = state.catalog.get("agent_start").map(|entry| (*entry.input).clone()).unwrap_or_default();
    schema.shift_remove("required");
    arguments::check(&schema, &mut arguments).map_err(|wrong| {
        let body = body(Code::ArgumentInvalid, &wrong.to_string());
        (StatusCode::BAD_REQUEST, Json(body)).into_response()
    })?;
    let engine = state.engine().await.map_err(IntoResponse::into_response)?;
    let created = engine.create(start_of(&arguments)).await;
    let record = created.map_err(|error| Refusal(error).into_response())?;
    Ok(Json(json!({"id": record.id, "status": record.state.status()})).into_response())
}

/// The arguments of a request that need not have a body. One that is there must be JSON and say so.
async fn arguments(state: &AgentRoutes, request: Request) -> Result<JsonObject, HttpProblem> {
    if request.body().is_end_stream() {
        return Ok(JsonObject::new());
    }
    let body = http_rest::json_body(&state.limits, request).await?;
    http_rest::arguments(&body, state.limits.json_depth)
}

pub(super) async fn show(
    State(state): State<AgentRoutes>,
    Path(id): Path<String>,
) -> Result<Response, Refusal> {
    let engine = state.engine().await?;
    let record = engine.record(&id)?;
    let mut output = Vec::new();
    let mut after = 0;
    loop {
        let page = engine.output(&id, after, PAGE).await?;
        output.extend(
            page.entries.iter().flat_map(|event| output_rows(event)).filter(|row| row.kind != "status"),
        );
        match page.next {
            Some(next) => after = next,
            None => break,
        }
    }
    let mut body = status_json(&engine.show(&id)?);
    body["id"] = json!(record.id);
    body["contract"] = (*record.contract).into();
    body["output"] = json!(output);
    Ok(Json(body).into_response())
}

pub(super) async fn stop(
    State(state): State<AgentRoutes>,
    Path(id): Path<String>,
) -> Result<Response, Refusal> {
    let record = state.engine().await?.stop(&id).await?;
    // The first word is what existing clients look for; the second is the truth.
    let body = json!({"status": "stop_requested", "agent_status": record.state.status(), "ended_at": record.state.ended_at()});
    Ok(Json(body).into_response())
}

pub(super) async fn resume(
    State(state): State<AgentRoutes>,
    Path(id): Path<String>,
) -> Result<Response, Refusal> {
    let record = state.engine().await?.resume(&id).await?;
    let body =
        json!({"id": record.id, "status": record.state.status(), "started_at": record.state.started_at()});
    Ok(Json(body).into_response())
}

pub(super) async fn delete(
    State(state): State<AgentRoutes>,
    Path(id): Path<String>,
) -> Result<Response, Refusal> {
    state.engine().await?.delete(&id).await?;
    Ok(Json(json!({"status": "deleted"})).into_response())
}

/// Removes agents that ended long ago. What the body leaves out is what the settings say; `dry_run` only tells.
pub(super) async fn prune(State(state): State<AgentRoutes>, request: Request) -> Result<Response, Response> {
    let arguments = arguments(&state, request).await.map_err(IntoResponse::into_response)?;
    let refused = |error| Refusal(error).into_response();
    let wish = PruneWish::read(&arguments, &state.limits).map_err(refused)?;
    let engine = state.engine().await.map_err(IntoResponse::into_response)?;
    Ok(Json(wish.fulfil(engine).await.map_err(refused)?).into_response())
}

pub(super) async fn tools(State(state): State<AgentRoutes>) -> Result<Response, Refusal> {
    let (servers, tools) = state.engine().await?.tools();
    let own = completion_tool();
    let mut listed: Vec<Value> = vec![json!({
        "name": own.name,
        "description": own.description,
        "inputSchema": own.input_schema,
        "_server": "_internal",
    })];
    listed.extend(tools.into_iter().map(|tool| {
        let mut raw = tool.raw;
        raw["_server"] = tool.server_name.into();
        raw
    }));
    Ok(Json(json!({"servers": servers, "tools": listed})).into_response())
}
