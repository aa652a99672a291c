//! The operations over plain HTTP: `POST /api/ops/{name}` with the arguments as a JSON object.

use axum::extract::{Path, Request};
use axum::response::{IntoResponse, Response};
use crewkit_core::{Code, Limits};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde_json::Value;

use super::context::{RequestContext, respond};
use super::problem::{HttpProblem, read_body};
use crate::blocking;
use crate::json;
use crate::ops::{Answer, JsonObject};

/// Runs one operation; a failure has the operation's own form and a status that tells its kind.
pub async fn run_operation(context: RequestContext, Path(name): Path<String>, request: Request) -> Response {
    run(&context, &name, request).await.map_or_else(IntoResponse::into_response, respond)
}

/// Registers a project of this machine.
pub async fn add_project(context: RequestContext, request: Request) -> Response {
    run(&context, "project_add", request).await.map_or_else(IntoResponse::into_response, respond)
}

async fn run(context: &RequestContext, name: &str, request: Request) -> Result<Answer, HttpProblem> {
    // An operation that is not offered is told before its arguments are read.
    context.entry(name)?;
    let arguments = read_arguments(&context.app.limits, request).await?;
    context.run(name, arguments).await
}

/// Reads the arguments of an operation from a JSON body.
pub(super) async fn read_arguments(limits: &Limits, request: Request) -> Result<JsonObject, HttpProblem> {
    let body = json_body(limits, request).await?;
    let depth = limits.json_depth;
    blocking::by_size(body.len(), move || arguments(&body, depth)).await
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
