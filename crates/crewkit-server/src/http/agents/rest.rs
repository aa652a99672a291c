//! Creating, listing, showing, ending and removing runs.

use axum::body::HttpBody as _;
use axum::extract::{Path, Query, Request};
use axum::response::{IntoResponse, Response};
use crewkit_core::run::RunStatus;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::http::context::{RequestContext, argument};
use crate::http::rest as http_rest;
use crate::ops::JsonObject;
use crate::ops::runs::cut;

/// Characters of a contract in a list.
const LISTED: usize = 50;

/// Runs as `GET /api/agents` shows them, out of the answer of `run_list`.
#[derive(Serialize, Deserialize, JsonSchema)]
pub(super) struct ListedRuns {
    #[serde(rename(deserialize = "runs"))]
    agents: Vec<ListedRun>,
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct ListedRun {
    id: String,
    status: RunStatus,
    #[serde(deserialize_with = "beginning")]
    contract: String,
    created_at: String,
}

fn beginning<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let mut contract = String::deserialize(deserializer)?;
    cut(&mut contract, LISTED);
    Ok(contract)
}

/// A run that waits, out of the answer of `run_create`.
#[derive(Serialize, Deserialize, JsonSchema)]
pub(super) struct Created {
    id: String,
    status: RunStatus,
}

/// A run that is gone, out of the answer of `run_delete`.
#[derive(Serialize, Deserialize, JsonSchema)]
pub(super) struct Deleted {
    /// `deleted`.
    status: String,
}

/// A run that was to be stopped, out of the answer of `agent_stop`.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(from = "Value")]
pub(super) struct Stopping {
    /// `stop_requested`, which is what existing clients look for.
    status: String,
    /// The state that holds.
    #[schemars(with = "RunStatus")]
    agent_status: Value,
    #[schemars(with = "Option<String>")]
    ended_at: Value,
}

impl From<Value> for Stopping {
    fn from(mut body: Value) -> Self {
        let ended = if body["completed_at"].is_null() { "stopped_at" } else { "completed_at" };
        let (agent_status, ended_at) = (body["status"].take(), body[ended].take());
        Self { status: "stop_requested".to_owned(), agent_status, ended_at }
    }
}

/// Runs that were removed, out of the answer of `run_prune`.
#[derive(Serialize, Deserialize, JsonSchema)]
pub(super) struct PrunedRuns {
    /// Whether nothing was removed.
    dry_run: bool,
    count: usize,
    #[serde(rename(deserialize = "runs"))]
    agents: Vec<PrunedRun>,
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct PrunedRun {
    id: String,
    status: RunStatus,
    #[serde(deserialize_with = "beginning")]
    contract: String,
    ended_at: Option<String>,
    payload_size: Option<u64>,
}

pub(super) async fn list(context: RequestContext) -> Response {
    context.adapt::<ListedRuns>("run_list", JsonObject::new()).await
}

pub(super) async fn create(context: RequestContext, request: Request) -> Response {
    with_body::<Created>(context, "run_create", request).await
}

/// Runs an operation whose arguments need not be there: older clients send no body. One that is there must be JSON and say so.
async fn with_body<T: DeserializeOwned + Serialize>(
    context: RequestContext,
    operation: &str,
    request: Request,
) -> Response {
    let arguments = if request.body().is_end_stream() {
        Ok(JsonObject::new())
    } else {
        http_rest::read_arguments(&context.app.limits, request).await
    };
    match arguments {
        Ok(arguments) => context.adapt::<T>(operation, arguments).await,
        Err(problem) => problem.into_response(),
    }
}

pub(super) async fn show(context: RequestContext, Path(id): Path<String>) -> Response {
    let mut arguments = argument("run_id", id);
    arguments.insert("output".to_owned(), true.into());
    context.adapt::<Value>("run_show", arguments).await
}

pub(super) async fn stop(context: RequestContext, Path(id): Path<String>) -> Response {
    context.adapt::<Stopping>("agent_stop", argument("agent_id", id)).await
}

pub(super) async fn resume(context: RequestContext, Path(id): Path<String>) -> Response {
    context.adapt::<Value>("run_resume", argument("run_id", id)).await
}

pub(super) async fn delete(context: RequestContext, Path(id): Path<String>) -> Response {
    context.adapt::<Deleted>("run_delete", argument("run_id", id)).await
}

/// Removes runs that ended long ago. What the body leaves out is what the settings say.
pub(super) async fn prune(context: RequestContext, request: Request) -> Response {
    with_body::<PrunedRuns>(context, "run_prune", request).await
}

pub(super) async fn tools(context: RequestContext) -> Response {
    context.adapt::<Value>("run_tools", JsonObject::new()).await
}

/// A page of the event log; the query has the arguments of the operation.
pub(super) async fn events(context: RequestContext, Query(query): Query<Vec<(String, String)>>) -> Response {
    // A number is a number in JSON; what is none is refused by the operation's schema.
    let value = |text: String| text.parse::<u64>().map_or(Value::String(text), Value::from);
    let read = |(name, text): (String, String)| {
        let value = if name == "subject" { Value::String(text) } else { value(text) };
        (name, value)
    };
    context.adapt::<Value>("events", query.into_iter().map(read).collect()).await
}
