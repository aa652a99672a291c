//! The operations over plain HTTP: `POST /api/ops/{name}` with the arguments as a JSON object.

use std::sync::Arc;

use axum::extract::{Extension, Path, Request, State};
use axum::response::{IntoResponse as _, Response};
use crewkit_agent::pace;
use crewkit_core::{Code, Limits};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::problem::{HttpProblem, read_body};
use super::router::App;
use crate::aside;
use crate::caller::Caller;
use crate::json;
use crate::ops::{self, JsonObject, Progress};

/// Runs one operation; a failure has the operation's own form and a status that tells its kind.
pub async fn run_operation(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    request: Request,
) -> Response {
    let shown = app.catalog.get(&name).filter(|entry| app.selection.shows(&entry.operation));
    let Some(entry) = shown else {
        let message = format!("there is no operation `{name}`");
        return HttpProblem::new(StatusCode::NOT_FOUND, Code::NotFound, message).into_response();
    };
    let body = match json_body(&app.limits, request).await {
        Ok(body) => body,
        Err(problem) => return problem.into_response(),
    };
    // When the client hangs up, axum drops this future; the guard then tells the work.
    let cancelled = CancellationToken::new();
    let _hang_up = cancelled.clone().drop_guard();
    let (size, depth) = (body.len(), app.limits.json_depth);
    let reading = move || {
        let read = arguments(&body, depth);
        pace::give_back(body);
        read
    };
    let arguments = match aside::compute(size, reading).await {
        Ok(arguments) => arguments,
        Err(problem) => return problem.into_response(),
    };
    let services = Arc::clone(&app.services);
    let answer =
        ops::run(Arc::clone(entry), services, caller, arguments, Progress::default(), cancelled).await;
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, [(CONTENT_TYPE, "application/json")], answer.body.to_string()).into_response()
}

/// Registers a project of this machine: a chore of the command line. It is no row of the table, because every client would
/// pay for it in every conversation.
pub async fn add_project(State(app): State<Arc<App>>, request: Request) -> Response {
    let may_create =
        app.catalog.get("create_agent").is_some_and(|entry| app.selection.shows(&entry.operation));
    let Some(fleet) = app.services.fleet.clone().filter(|_| may_create) else {
        let message = "this server makes no agents";
        return HttpProblem::new(StatusCode::NOT_FOUND, Code::NotFound, message).into_response();
    };
    let arguments =
        json_body(&app.limits, request).await.and_then(|body| arguments(&body, app.limits.json_depth));
    let arguments = match arguments {
        Ok(arguments) => arguments,
        Err(problem) => return problem.into_response(),
    };
    let (status, body) = match fleet.call("add_agent_project", arguments).await {
        Ok(body) => (200, body),
        Err(error) => (error.kind().status(), serde_json::to_value(error.body()).unwrap_or_default()),
    };
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, [(CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

/// The body of a request, which must be announced as JSON.
pub(super) async fn json_body(limits: &Limits, request: Request) -> Result<Vec<u8>, HttpProblem> {
    let content_type =
        request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let is_json = content_type
        .split(';')
        .next()
        .is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"));
    // A form or text body is what a foreign web page can send without asking; it is never taken for JSON.
    if !is_json {
        let message = "Content-Type must be application/json";
        return Err(HttpProblem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, Code::BodyInvalid, message));
    }
    let (parts, body) = request.into_parts();
    read_body(&parts.headers, body, limits.http_body_bytes).await
}

/// The arguments in a body; none when it is empty.
pub(super) fn arguments(bytes: &[u8], depth: u64) -> Result<JsonObject, HttpProblem> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(JsonObject::new());
    }
    let bad = |message: String| HttpProblem::new(StatusCode::BAD_REQUEST, Code::BodyInvalid, message);
    match json::parse(bytes, depth) {
        Ok(Value::Object(arguments)) => Ok(arguments),
        Ok(_) => Err(bad("the body must be a JSON object with the operation's arguments".to_owned())),
        Err(error) => Err(bad(format!("the body is not JSON: {error}"))),
    }
}
