//! Creating, listing, showing, ending and removing runs.

use axum::body::HttpBody as _;
use axum::extract::{Path, Query, Request};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::http::context::{RequestContext, argument};
use crate::http::problem::HttpProblem;
use crate::http::rest as http_rest;
use crate::ops::JsonObject;
use crate::ops::runs::cut;

/// Characters of a contract in a list.
const LISTED: usize = 50;

pub(super) async fn list(context: RequestContext) -> Response {
    let shape = |mut body: Value| json!({"agents": listed(body["runs"].take(), &["id", "status", "contract", "created_at"])});
    context.adapt("run_list", JsonObject::new(), shape).await
}

/// The runs of an answer with the given fields alone.
fn listed(mut runs: Value, fields: &[&str]) -> Value {
    for run in runs.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        run.retain(|field, _| fields.contains(&field.as_str()));
        if let Some(Value::String(contract)) = run.get_mut("contract") {
            cut(contract, LISTED);
        }
    }
    runs
}

/// Creates a run that waits. Older clients send no body.
pub(super) async fn create(context: RequestContext, request: Request) -> Response {
    let shape = |body: Value| json!({"id": body["id"], "status": body["status"]});
    match arguments(&context, request).await {
        Ok(arguments) => context.adapt("run_create", arguments, shape).await,
        Err(problem) => problem.into_response(),
    }
}

/// The arguments of a request that need not have a body. One that is there must be JSON and say so.
async fn arguments(context: &RequestContext, request: Request) -> Result<JsonObject, HttpProblem> {
    if request.body().is_end_stream() {
        return Ok(JsonObject::new());
    }
    http_rest::read_arguments(&context.app.limits, request).await
}

pub(super) async fn show(context: RequestContext, Path(id): Path<String>) -> Response {
    let mut arguments = argument("run_id", id);
    arguments.insert("output".to_owned(), true.into());
    context.adapt("run_show", arguments, |body| body).await
}

pub(super) async fn stop(context: RequestContext, Path(id): Path<String>) -> Response {
    // The first word is what existing clients look for; the second is the state that holds.
    let shape = |body: Value| {
        let ended_at =
            if body["completed_at"].is_null() { &body["stopped_at"] } else { &body["completed_at"] };
        json!({"status": "stop_requested", "agent_status": body["status"], "ended_at": ended_at})
    };
    context.adapt("agent_stop", argument("agent_id", id), shape).await
}

pub(super) async fn resume(context: RequestContext, Path(id): Path<String>) -> Response {
    context.adapt("run_resume", argument("run_id", id), |body| body).await
}

pub(super) async fn delete(context: RequestContext, Path(id): Path<String>) -> Response {
    context.adapt("run_delete", argument("run_id", id), |body| json!({"status": body["status"]})).await
}

/// Removes runs that ended long ago. What the body leaves out is what the settings say.
pub(super) async fn prune(context: RequestContext, request: Request) -> Response {
    let fields = ["id", "status", "ended_at", "contract", "payload_size"];
    let shape = |mut body: Value| {
        let agents = listed(body["runs"].take(), &fields);
        json!({"dry_run": body["dry_run"], "count": body["count"], "agents": agents})
    };
    match arguments(&context, request).await {
        Ok(arguments) => context.adapt("run_prune", arguments, shape).await,
        Err(problem) => problem.into_response(),
    }
}

pub(super) async fn tools(context: RequestContext) -> Response {
    context.adapt("run_tools", JsonObject::new(), |body| body).await
}

/// A page of the event log; the query has the arguments of the operation.
pub(super) async fn events(context: RequestContext, Query(query): Query<Vec<(String, String)>>) -> Response {
    // A number is a number in JSON; what is none is refused by the operation's schema.
    let value = |text: String| text.parse::<u64>().map_or(Value::String(text), Value::from);
    let read = |(name, text): (String, String)| {
        let value = if name == "subject" { Value::String(text) } else { value(text) };
        (name, value)
    };
    context.adapt("events", query.into_iter().map(read).collect(), |body| body).await
}
