//! Creating, looking at, ending and removing agents.

use axum::Json;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use crewkit_agent::contract::completion_tool;
use crewkit_agent::engine::output_rows;
use crewkit_core::Code;
use http::StatusCode;
use serde_json::{Value, json};

use super::{Door, Refusal};
use crate::http::problem::{HttpProblem, read_body};
use crate::json;
use crate::ops::JsonObject;
use crate::ops::agents::{PruneWish, listed_contract, start_of, status_json};

/// Entries of a transcript read at a time.
const PAGE: usize = 500;

pub(super) async fn list(State(door): State<Door>) -> Result<Response, Refusal> {
    let engine = door.engine().await?;
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

/// Creates an agent that waits. An older form has no body; a contract and more may be given with it.
pub(super) async fn create(State(door): State<Door>, request: Request) -> Result<Response, Response> {
    let arguments = arguments(&door, request).await.map_err(IntoResponse::into_response)?;
    let engine = door.engine().await.map_err(IntoResponse::into_response)?;
    let created = engine.create(start_of(&arguments)).await;
    let record = created.map_err(|error| Refusal(error).into_response())?;
    Ok(Json(json!({"id": record.id, "status": record.state.status()})).into_response())
}

async fn arguments(door: &Door, request: Request) -> Result<JsonObject, HttpProblem> {
    let (parts, body) = request.into_parts();
    let bytes = read_body(&parts.headers, body, door.limits.http_body_bytes).await?;
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(JsonObject::new());
    }
    let bad = |message: String| HttpProblem::new(StatusCode::BAD_REQUEST, Code::BodyInvalid, message);
    match json::parse(&bytes, door.limits.json_depth) {
        Ok(Value::Object(arguments)) => Ok(arguments),
        Ok(_) => Err(bad("the body must be a JSON object, or empty".to_owned())),
        Err(error) => Err(bad(format!("the body is not JSON: {error}"))),
    }
}

pub(super) async fn show(State(door): State<Door>, Path(id): Path<String>) -> Result<Response, Refusal> {
    let engine = door.engine().await?;
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

pub(super) async fn stop(State(door): State<Door>, Path(id): Path<String>) -> Result<Response, Refusal> {
    let record = door.engine().await?.stop(&id).await?;
    // The first word is what existing clients look for; the second is the truth.
    let body = json!({"status": "stop_requested", "agent_status": record.state.status(), "ended_at": record.state.ended_at()});
    Ok(Json(body).into_response())
}

pub(super) async fn resume(State(door): State<Door>, Path(id): Path<String>) -> Result<Response, Refusal> {
    let record = door.engine().await?.resume(&id).await?;
    let body =
        json!({"id": record.id, "status": record.state.status(), "started_at": record.state.started_at()});
    Ok(Json(body).into_response())
}

pub(super) async fn delete(State(door): State<Door>, Path(id): Path<String>) -> Result<Response, Refusal> {
    door.engine().await?.delete(&id).await?;
    Ok(Json(json!({"status": "deleted"})).into_response())
}

/// Removes agents that ended long ago. What the body leaves out is what the settings say; `dry_run` only tells.
pub(super) async fn prune(State(door): State<Door>, request: Request) -> Result<Response, Response> {
    let arguments = arguments(&door, request).await.map_err(IntoResponse::into_response)?;
    let refused = |error| Refusal(error).into_response();
    let wish = PruneWish::read(&arguments, &door.limits).map_err(refused)?;
    let engine = door.engine().await.map_err(IntoResponse::into_response)?;
    Ok(Json(wish.fulfil(engine).await.map_err(refused)?).into_response())
}

pub(super) async fn tools(State(door): State<Door>) -> Result<Response, Refusal> {
    let (servers, tools) = door.engine().await?.tools();
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
