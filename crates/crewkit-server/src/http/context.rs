//! What the routes that are adapters of operations share: who asks, and the way to the table.

use std::sync::Arc;

use axum::Json;
use axum::extract::FromRequestParts;
use axum::response::{IntoResponse as _, Response};
use crewkit_core::Code;
use http::StatusCode;
use http::request::Parts;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::problem::HttpProblem;
use super::router::App;
use crate::Services;
use crate::asker::Asker;
use crate::caller::{Caller, Refused};
use crate::ops::{self, Answer, Entry, JsonObject, Progress, Selection, Source};

/// The request that is being answered.
#[derive(Clone)]
pub struct RequestContext {
    /// What the routes share.
    pub app: Arc<App>,
    caller: Caller,
    asker: Arc<Asker>,
    source: Source,
}

impl FromRequestParts<Arc<App>> for RequestContext {
    type Rejection = HttpProblem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Self::Rejection> {
        let caller = parts.extensions.get().cloned().unwrap_or(Caller::Stranger(Refused::Unknown));
        let asker = parts
            .extensions
            .get()
            .cloned()
            .ok_or_else(|| HttpProblem::internal(&"The request has no asker"))?;
        Ok(Self { app: Arc::clone(app), caller, asker, source: Source::of_request(&parts.headers) })
    }
}

impl RequestContext {
    /// What operations of this request work on.
    pub fn services(&self) -> &Arc<Services> {
        &self.asker.services
    }

    /// Which operations this request is shown.
    pub fn selection(&self) -> &Selection {
        &self.asker.selection
    }

    /// The operation `name`. Refuses one that this request is not shown.
    pub fn entry(&self, name: &str) -> Result<&Arc<Entry>, HttpProblem> {
        let shown = self.app.catalog.get(name).filter(|entry| self.selection().shows(&entry.operation));
        shown.ok_or_else(|| {
            let message = format!("This server does not offer the operation `{name}`");
            HttpProblem::new(StatusCode::NOT_FOUND, Code::NotFound, message)
        })
    }

    /// Checks that this request may use the operation `name`, whose answer is a stream or a file.
    pub fn permit(&self, name: &str) -> Result<(), HttpProblem> {
        self.entry(name)?;
        if self.caller.may(name) {
            return Ok(());
        }
        let message = format!("Agents may not call `{name}`");
        Err(HttpProblem::new(StatusCode::FORBIDDEN, Code::AgentRefused, message))
    }

    /// Runs the operation `name`. What only reads ends when the returned future is dropped.
    pub async fn run(&self, name: &str, arguments: JsonObject) -> Result<Answer, HttpProblem> {
        self.run_with(name, arguments, Progress::default()).await
    }

    /// The same, and reports to `progress` on the way.
    pub async fn run_with(
        &self,
        name: &str,
        arguments: JsonObject,
        progress: Progress,
    ) -> Result<Answer, HttpProblem> {
        let entry = Arc::clone(self.entry(name)?);
        let cancelled = CancellationToken::new();
        let _hang_up = cancelled.clone().drop_guard();
        let (caller, source) = (self.caller.clone(), self.source);
        let request = ops::Request { caller, source, arguments, progress, cancelled };
        Ok(ops::run(entry, Arc::clone(self.services()), request).await)
    }

    /// Runs the operation `name` and reads its answer as `T`, the part of it that the route's contract shows.
    pub async fn adapt<T: DeserializeOwned + Serialize>(
        &self,
        name: &str,
        arguments: JsonObject,
    ) -> Response {
        match self.run(name, arguments).await {
            Ok(answer) if answer.failed() => respond(answer),
            Ok(answer) => match serde_json::from_value::<T>(answer.body) {
                Ok(part) => Json(part).into_response(),
                Err(error) => HttpProblem::internal(&error).into_response(),
            },
            Err(problem) => problem.into_response(),
        }
    }
}

/// An answer as HTTP.
pub(super) fn respond(answer: Answer) -> Response {
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, Json(answer.body)).into_response()
}

/// One argument.
pub(super) fn argument(name: &str, value: impl Into<Value>) -> JsonObject {
    JsonObject::from_iter([(name.to_owned(), value.into())])
}
