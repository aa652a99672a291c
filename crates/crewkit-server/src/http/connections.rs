//! Accepts connections, bounds them, and lets them finish when the server stops.
//!
//! Until the caller of a connection is identified, the connection is one of few, has little time, and is closed in favour of
//! newer ones; then it takes one of the places for known callers. So strangers cannot use up what the owner needs.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use crewkit_core::Limits;
use futures_util::future::BoxFuture;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tower::ServiceExt as _;

use super::peer::{Peer, PeerPolicy};
use crate::metrics::Metrics;

/// Pause after a failed accept, for instance when file descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where the server can be reached.
#[derive(Debug, Default)]
pub struct Listeners {
    /// A TCP address.
    pub tcp: Option<TcpListener>,
    /// A socket in the home, for commands of the same user.
    #[cfg(unix)]
    pub unix: Option<tokio::net::UnixListener>,
}

/// The way a connection came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// TCP, at this address of the server.
    Tcp(IpAddr),
    /// The socket in the home.
    Unix,
}

/// A connection, as its requests see it. A WebSocket keeps a copy, so that it counts for as long as it is open.
#[derive(Clone)]
pub struct Connection(Arc<ConnectionState>);

struct ConnectionState {
    id: u64,
    door: Door,
    peer: Peer,
    has_asked: AtomicBool,
    /// The place among the connections of known callers.
    place: Mutex<Option<OwnedSemaphorePermit>>,
    pool: Arc<ConnectionPool>,
    _tracked: TaskTrackerToken,
}

/// What all connections share.
struct ConnectionPool {
    router: Router,
    builder: Builder<TokioExecutor>,
    /// Places for callers who are known.
    places: Arc<Semaphore>,
    /// Connections whose caller is not known yet, by age, with the way to end each.
    unidentified: Mutex<BTreeMap<u64, CancellationToken>>,
    next_id: AtomicU64,
    limits: Arc<Limits>,
    tracker: TaskTracker,
    stop: CancellationToken,
}

/// There is no place left for another connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolFull;

impl Connection {
    /// The way it came in.
    pub fn door(&self) -> Door {
        self.0.door
    }

    /// The address of the server it came in at, if it came over TCP.
    pub fn local_address(&self) -> Option<IpAddr> {
        match self.0.door {
            Door::Tcp(address) => Some(address),
            Door::Unix => None,
        }
    }

    /// Who is at its other end.
    pub fn peer(&self) -> Peer {
        self.0.peer
    }

    /// Completes when the server stops; a WebSocket then closes.
    pub async fn stopped(&self) {
        self.0.pool.stop.cancelled().await;
    }

    /// Gives the connection a place among those of known callers.
    pub(super) fn admit(&self) -> Result<(), PoolFull> {
        let mut place = lock(&self.0.place);
        if place.is_none() {
            let Ok(permit) = Arc::clone(&self.0.pool.places).try_acquire_owned() else {
                Metrics::global().connections_refused.fetch_add(1, Ordering::Relaxed);
                let limit = self.0.pool.limits.http_connections;
                tracing::warn!(limit, "refused a connection: limits.http_connections is reached");
                return Err(PoolFull);
            };
            *place = Some(permit);
            lock(&self.0.pool.unidentified).remove(&self.0.id);
        }
        Ok(())
    }

    fn is_admitted(&self) -> bool {
        lock(&self.0.place).is_some()
    }

    /// Completes when the connection has used up its time without a request that identifies its caller.
    async fn out_of_time(&self) {
        let limits = &self.0.pool.limits;
        let (identify, idle) = (
            Duration::from_secs(limits.http_identify_seconds),
            Duration::from_secs(limits.http_idle_seconds),
        );
        if !self.is_admitted() {
            tokio::time::sleep(identify).await;
            if !self.is_admitted() {
                return;
            }
        }
        // The time to send a head is kept by hyper, but not until the protocol is known.
        tokio::time::sleep(idle).await;
        if self.0.has_asked.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for ConnectionState {
    fn drop(&mut self) {
        lock(&self.pool.unidentified).remove(&self.id);
        Metrics::global().connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A place among the connections whose caller is not identified yet.
struct Unidentified {
    id: u64,
    evicted: CancellationToken,
}

impl ConnectionPool {
    fn new(router: Router, limits: Arc<Limits>, stop: CancellationToken) -> Arc<Self> {
        let places = usize::try_from(limits.http_connections).unwrap_or(Semaphore::MAX_PERMITS);
        Arc::new(Self {
            router,
            builder: builder(&limits),
            places: Arc::new(Semaphore::new(places.min(Semaphore::MAX_PERMITS))),
            unidentified: Mutex::default(),
            next_id: AtomicU64::new(0),
            limits,
            tracker: TaskTracker::new(),
            stop,
        })
    }

    /// Adds a connection whose caller is not identified yet; closes the oldest such connection if there are too many.
    fn add_unidentified(&self) -> Unidentified {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let evicted = CancellationToken::new();
        let mut unidentified = lock(&self.unidentified);
        unidentified.insert(id, evicted.clone());
        if unidentified.len() as u64 > self.limits.http_unidentified_connections
            && let Some((_, oldest)) = unidentified.pop_first()
        {
            Metrics::global().connections_refused.fetch_add(1, Ordering::Relaxed);
            oldest.cancel();
        }
        Unidentified { id, evicted }
    }

    /// Serves one connection to its end.
    async fn serve_connection(
        self: Arc<Self>,
        stream: Box<dyn Stream>,
        door: Door,
        peer: Peer,
        unidentified: Unidentified,
        watcher: Watcher,
    ) {
        Metrics::global().connections.fetch_add(1, Ordering::Relaxed);
        let connection = Connection(Arc::new(ConnectionState {
            id: unidentified.id,
            door,
            peer,
            has_asked: AtomicBool::new(false),
            place: Mutex::new(None),
            pool: Arc::clone(&self),
            _tracked: self.tracker.token(),
        }));
        // Without a token the connection alone says who it is.
        if peer == Peer::Owner && connection.admit().is_err() {
            return;
        }
        let seen = connection.clone();
        let router = self.router.clone().map_request(move |mut request: Request<Incoming>| {
            seen.0.has_asked.store(true, Ordering::Relaxed);
            request.extensions_mut().insert(seen.clone());
            request
        });
        let service = TowerToHyperService::new(router);
        let served = self.builder.serve_connection_with_upgrades(TokioIo::new(stream), service).into_owned();
        tokio::select! {
            served = watcher.watch(served) => if let Err(error) = served {
                tracing::debug!(%error, "a connection ended badly");
            },
            () = connection.out_of_time() => {}
            () = unidentified.evicted.cancelled() => {}
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves `router` until `stop` fires, then lets running requests end within their grace.
pub fn serve(
    listeners: Listeners,
    router: Router,
    peers: PeerPolicy,
    limits: Arc<Limits>,
    stop: CancellationToken,
) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let graceful = GracefulShutdown::new();
        let pool = ConnectionPool::new(router, Arc::clone(&limits), stop.clone());
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                accepted = listeners.accept() => accepted,
            };
            let accepted = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "could not accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let (watcher, unidentified, pool) =
                (graceful.watcher(), pool.add_unidentified(), Arc::clone(&pool));
            tokio::spawn(async move {
                let (stream, door, peer) = accepted.identify(peers).await;
                pool.serve_connection(stream, door, peer, unidentified, watcher).await;
            });
        }
        drop(listeners);
        pool.tracker.close();
        let ended = async {
            graceful.shutdown().await;
            pool.tracker.wait().await;
        };
        let grace = Duration::from_secs(limits.shutdown_grace_seconds);
        if tokio::time::timeout(grace, ended).await.is_err() {
            tracing::warn!("some requests did not end within limits.shutdown_grace_seconds");
        }
    })
}

/// Serves one connection to its end, as [`serve`] does. For tests that bring bytes of their own.
pub async fn serve_stream(stream: Box<dyn Stream>, peer: Peer, router: Router, limits: Arc<Limits>) {
    let pool = ConnectionPool::new(router, limits, CancellationToken::new());
    let graceful = GracefulShutdown::new();
    let unidentified = pool.add_unidentified();
    pool.serve_connection(stream, Door::Unix, peer, unidentified, graceful.watcher()).await;
}

/// The bytes of a connection, whatever they travel through.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A connection that has been accepted, and nothing more.
enum Accepted {
    Tcp(TcpStream, SocketAddr),
    #[cfg(unix)]
    Unix(tokio::net::UnixStream),
}

impl Listeners {
    async fn accept(&self) -> std::io::Result<Accepted> {
        let tcp = async {
            match &self.tcp {
                Some(tcp) => tcp.accept().await.map(|(stream, peer)| Accepted::Tcp(stream, peer)),
                None => std::future::pending().await,
            }
        };
        #[cfg(unix)]
        let unix = async {
            match &self.unix {
                Some(unix) => unix.accept().await.map(|(stream, _)| Accepted::Unix(stream)),
                None => std::future::pending().await,
            }
        };
        #[cfg(not(unix))]
        let unix = std::future::pending();
        tokio::select! {
            accepted = tcp => accepted,
            accepted = unix => accepted,
        }
    }
}

impl Accepted {
    /// Looks who is at the other end, on a thread that may block.
    async fn identify(self, peers: PeerPolicy) -> (Box<dyn Stream>, Door, Peer) {
        match self {
            Self::Tcp(stream, peer) => {
                // Small answers should not wait for more to say.
                let _ = stream.set_nodelay(true);
                let Ok(local) = stream.local_addr() else {
                    return (Box::new(stream), Door::Tcp(IpAddr::from([0, 0, 0, 0])), Peer::Unknown);
                };
                let found = tokio::task::spawn_blocking(move || peers.identify(peer, local)).await;
                (Box::new(stream), Door::Tcp(local.ip()), found.unwrap_or(Peer::Unknown))
            }
            #[cfg(unix)]
            Self::Unix(stream) => {
                let looked = tokio::task::spawn_blocking(move || {
                    let peer = super::peer::unix_peer(&stream);
                    (stream, peer)
                });
                match looked.await {
                    Ok((stream, peer)) => (Box::new(stream), Door::Unix, peer),
                    Err(_) => (Box::new(tokio::io::empty()), Door::Unix, Peer::Unknown),
                }
            }
        }
    }
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
