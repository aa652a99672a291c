//! `POST /api/hello`, and the asker of every request.

use std::path::PathBuf;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use crewkit_core::Code;
use http::StatusCode;
use serde_json::Value;

use super::connections::{Connection, Door};
use super::context::RequestContext;
use super::problem::HttpProblem;
use super::rest;
use super::router::App;
use crate::asker::{ASKER_HEADER, Asker, Askers, Hello, PROTOCOL};
use crate::caller::Caller;
use crate::ops::Catalog;

/// Registers the settings of a client of the home's socket, and answers with the id of its asker.
pub(super) async fn hello(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Extension(connection): Extension<Connection>,
    request: Request,
) -> Response {
    match answer(&app, &caller, &connection, request).await {
        Ok(response) => response,
        Err(problem) => problem.into_response(),
    }
}

async fn answer(
    app: &Arc<App>,
    caller: &Caller,
    connection: &Connection,
    request: Request,
) -> Result<Response, HttpProblem> {
    // Settings name programs that run as the owner.
    if connection.door() != Door::Unix || !matches!(caller, Caller::Owner) {
        let message = "A hello is taken from the owner, over the socket of the home";
        return Err(HttpProblem::new(StatusCode::FORBIDDEN, Code::PeerRefused, message));
    }
    let body = rest::json_body(&app.limits, request).await?;
    let invalid = |message: String| HttpProblem::new(StatusCode::BAD_REQUEST, Code::BodyInvalid, message);
    // The error of the parser can quote values, which can be secrets.
    let hello: Hello = serde_json::from_slice(&body)
        .map_err(|error| invalid(format!("The hello is malformed at column {}", error.column())))?;
    if hello.protocol != PROTOCOL {
        let message = format!(
            "This server speaks protocol {PROTOCOL}, the client (build {}) protocol {}",
            hello.build, hello.protocol
        );
        return Err(HttpProblem::new(StatusCode::CONFLICT, Code::ProtocolDiffers, message));
    }
    if !hello.directory.is_absolute() {
        return Err(invalid("`directory` must be an absolute path".to_owned()));
    }
    let of_app = Arc::clone(app);
    let answered = tokio::task::spawn_blocking(move || of_app.askers.hello(&hello)).await;
    let answered = answered.map_err(|error| HttpProblem::internal(&error))?;
    let Some(answered) = answered else {
        return Err(HttpProblem::new(StatusCode::NOT_FOUND, Code::NotFound, "This server takes no hellos"));
    };
    let body = answered.map_err(|problem| {
        let status =
            StatusCode::from_u16(problem.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        HttpProblem::new(status, problem.code, problem.message)
    })?;
    Ok(Json(body).into_response())
}

/// Ends the server. A client of any protocol can ask for it: no hello is needed, and the address stays.
pub(super) async fn stop(context: RequestContext, request: Request) -> Response {
    match rest::read_arguments(&context.app.limits, request).await {
        Ok(arguments) => context.adapt::<Value>("server_stop", arguments).await,
        Err(problem) => problem.into_response(),
    }
}

/// What finds the asker of a request.
pub(super) struct AskerState {
    own: Arc<Asker>,
    askers: Arc<Askers>,
    catalog: Arc<Catalog>,
}

impl AskerState {
    pub(super) fn new(app: &App) -> Self {
        let own = Asker {
            services: Arc::clone(&app.services),
            selection: Arc::clone(&app.selection),
            directory: PathBuf::from("/"),
        };
        Self { own: Arc::new(own), askers: Arc::clone(&app.askers), catalog: Arc::clone(&app.catalog) }
    }

    /// Whether a request can be sent again, to the next server.
    fn may_be_repeated(&self, request: &Request) -> bool {
        let operation =
            request.uri().path().strip_prefix("/api/ops/").and_then(|name| self.catalog.get(name));
        operation.is_some_and(|entry| entry.operation.hints.read_only)
    }
}

/// Leaves the `Arc<Asker>` with the request: the one its header names, else the server's own. When the server is about to end it
/// knows no askers any more, so that what a client of the home waits for goes on at the next server.
pub(super) async fn find_asker(
    State(state): State<Arc<AskerState>>,
    mut request: Request,
    next: Next,
) -> Response {
    let asker = match request.headers().get(ASKER_HEADER) {
        None => Some(Arc::clone(&state.own)),
        Some(id) => id.to_str().ok().and_then(|id| state.askers.get(id)),
    };
    let unknown = || {
        let message = "This server does not know the asker of the request; say hello again";
        HttpProblem::new(StatusCode::CONFLICT, Code::AskerUnknown, message).into_response()
    };
    let Some(asker) = asker else { return unknown() };
    let comes_again = request.headers().contains_key(ASKER_HEADER) && state.may_be_repeated(&request);
    request.extensions_mut().insert(Arc::clone(&asker));
    tokio::select! {
        biased;
        () = asker.services.leaving(), if comes_again => unknown(),
        response = next.run(request) => response,
    }
}
