//! Accepts connections, bounds them, and lets them finish when the server stops.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::response::IntoResponse as _;
use crewkit_core::{Code, Limits};
use futures_util::future::BoxFuture;
use http::StatusCode;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::peer::PeerPolicy;
use super::problem::HttpProblem;
use crate::metrics::Metrics;

/// Pause after a failed accept, for instance when file descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves `router` until `stop` fires, then lets running requests end within their grace.
pub fn serve(
    listener: TcpListener,
    router: Router,
    peers: PeerPolicy,
    limits: Arc<Limits>,
    stop: CancellationToken,
) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let graceful = GracefulShutdown::new();
        let places = Arc::new(Semaphore::new(
            usize::try_from(limits.http_connections).unwrap_or(Semaphore::MAX_PERMITS),
        ));
        let builder = Arc::new(builder(&limits));
        let stranger = stranger();
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                accepted = listener.accept() => accepted,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "could not accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
                Metrics::global().connections_refused.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(%peer, limit = limits.http_connections, "refused a connection: limits.http_connections reached");
                continue;
            };
            let watcher = graceful.watcher();
            let (builder, router, stranger) = (Arc::clone(&builder), router.clone(), stranger.clone());
            tokio::spawn(async move {
                let _open = OpenConnection::begin();
                let router = if admitted(&stream, peer, peers) { router } else { stranger };
                let service = TowerToHyperService::new(router);
                let connection =
                    builder.serve_connection_with_upgrades(TokioIo::new(stream), service).into_owned();
                if let Err(error) = watcher.watch(connection).await {
                    tracing::debug!(%peer, %error, "a connection ended badly");
                }
                drop(place);
            });
        }
        drop(listener);
        let grace = Duration::from_secs(limits.shutdown_grace_seconds);
        if tokio::time::timeout(grace, graceful.shutdown()).await.is_err() {
            tracing::warn!("some requests did not end within limits.shutdown_grace_seconds");
        }
    })
}

fn builder(limits: &Limits) -> Builder<TokioExecutor> {
    let idle = Duration::from_secs(limits.http_idle_seconds);
    let header_bytes = usize::try_from(limits.http_header_bytes).unwrap_or(usize::MAX).max(8192);
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(idle).max_buf_size(header_bytes);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(idle)
        .max_header_list_size(u32::try_from(header_bytes).unwrap_or(u32::MAX));
    builder
}

fn admitted(stream: &TcpStream, peer: SocketAddr, peers: PeerPolicy) -> bool {
    // Small answers should not wait for more to say.
    let _ = stream.set_nodelay(true);
    let admitted = stream.local_addr().is_ok_and(|local| peers.admits(peer, local));
    if !admitted {
        Metrics::global().connections_refused.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(%peer, "refused a connection from another user's process");
    }
    admitted
}

/// What another user's process gets to see, whatever it asks.
fn stranger() -> Router {
    Router::new().fallback(|| async {
        HttpProblem::new(
            StatusCode::FORBIDDEN,
            Code::PeerRefused,
            "this connection comes from another user's process",
        )
        .into_response()
    })
}

struct OpenConnection;

impl OpenConnection {
    fn begin() -> Self {
        Metrics::global().connections.fetch_add(1, Ordering::Relaxed);
        Self
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        Metrics::global().connections.fetch_sub(1, Ordering::Relaxed);
    }
}
