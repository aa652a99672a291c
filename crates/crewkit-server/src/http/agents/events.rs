//! `GET /api/agents/{id}/events`: a run's transcript as server-sent events, resumable.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::{Extension, Path};
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt as _;
use http::HeaderMap;

use super::{engine, refused};
use crate::http::Connection;
use crate::http::context::RequestContext;

const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Replays from `Last-Event-ID` (or the beginning), goes on live, and ends when the run has.
pub(super) async fn get(
    context: RequestContext,
    Extension(connection): Extension<Connection>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Response> {
    context.permit("agent_output").map_err(IntoResponse::into_response)?;
    let after = headers.get("last-event-id").and_then(|value| value.to_str().ok());
    let after = after.and_then(|value| value.trim().parse().ok()).unwrap_or(0);
    let subscription = engine(&context).await?.subscribe(&id, after).map_err(refused)?;
    let stream = futures_util::stream::unfold(subscription, |mut subscription| async move {
        // A store that cannot be read ends the stream; the client comes back with the last id it has.
        let event = subscription.next_until_end().await.ok()??;
        let data = serde_json::to_string(&*event).unwrap_or_default();
        let message = SseEvent::default().id(event.seq.to_string()).data(data);
        Some((Ok::<_, Infallible>(message), subscription))
    });
    // A server that ends keeps nobody waiting: the client comes back with the last id here too.
    let stream = stream.take_until(async move { connection.stopped().await });
    Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response())
}
