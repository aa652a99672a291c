//! The endpoint inside a workspace: `GET /metadata` and `GET /health`.
//!
//! Requests that arrive while metadata is being collected share its result, so that many watchers cost one collection.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::json;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::Metadata;
use super::runner::Runner;

/// How long a result answers further requests.
const FRESH: Duration = Duration::from_secs(1);

struct Endpoint {
    runner: Runner,
    last: Mutex<Option<(Instant, Arc<Metadata>)>>,
}

impl Endpoint {
    async fn current(&self) -> Arc<Metadata> {
        let mut last = self.last.lock().await;
        if let Some((at, metadata)) = last.as_ref()
            && at.elapsed() < FRESH
        {
            return Arc::clone(metadata);
        }
        let metadata = Arc::new(self.runner.collect().await);
        *last = Some((Instant::now(), Arc::clone(&metadata)));
        metadata
    }
}

/// Serves the metadata `runner` collects.
pub fn router(runner: Runner) -> Router {
    let endpoint = Arc::new(Endpoint { runner, last: Mutex::new(None) });
    Router::new()
        .route("/", get(metadata))
        .route("/metadata", get(metadata))
        .route("/health", get(async || Json(json!({"status": "ok"}))))
        .with_state(endpoint)
}

async fn metadata(State(endpoint): State<Arc<Endpoint>>) -> Response {
    let body = endpoint.current().await.to_endpoint();
    ([(header::CACHE_CONTROL, "no-store")], Json(body)).into_response()
}
