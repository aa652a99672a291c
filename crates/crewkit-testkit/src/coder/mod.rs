//! A simulated Coder: its REST API, app proxy and web terminal, with state, versions and faults.
//!
//! It is strict where Coder is strict (login, routes, bodies, ids, one build at a time, rate limits) and as odd where
//! Coder is odd (presets in the case of its source, `null` for empty lists, times with an offset, secrets in the
//! workspace JSON). Tests change the [`World`] directly and switch on [`Fault`]s.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

mod api;
mod apps;
mod faults;
mod render;
mod terminal;
mod tls;
mod world;

pub use faults::{Fault, Kind};
pub use terminal::Trouble;
pub use world::{
    AgentApi, MetadataApp, Parameter, Preset, Report, Reporter, Said, SimTemplate, SimWorkspace, Template,
    User, World,
};

/// Which Coder is played.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Profile {
    /// Tasks are experimental and share their id with the workspace.
    V2_27,
    /// Tasks have ids of their own.
    V2_28,
    /// Tasks are stable.
    V2_29,
    /// The prompt parameter is like any other.
    V2_30,
    /// Sending to a busy task is a conflict.
    V2_32,
    /// A build can name its successor.
    V2_36,
    /// There are no tasks.
    V2_37,
}

impl Profile {
    /// Every profile.
    pub const ALL: [Self; 7] =
        [Self::V2_27, Self::V2_28, Self::V2_29, Self::V2_30, Self::V2_32, Self::V2_36, Self::V2_37];

    /// The minor version.
    pub const fn minor(self) -> u32 {
        match self {
            Self::V2_27 => 27,
            Self::V2_28 => 28,
            Self::V2_29 => 29,
            Self::V2_30 => 30,
            Self::V2_32 => 32,
            Self::V2_36 => 36,
            Self::V2_37 => 37,
        }
    }

    /// The version as Coder words it.
    pub fn version(self) -> String {
        format!("v2.{}.0+simulated", self.minor())
    }
}

/// The token of the user the fleet belongs to.
pub const TOKEN: &str = "sim-token-CANARY-fleetbot";
/// The token of a site owner, who may see and do everything.
pub const ADMIN_TOKEN: &str = "sim-token-CANARY-admin";

/// One request that arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// `GET` and the like.
    pub method: String,
    /// Path with query.
    pub path: String,
    /// Whether it came over HTTP/2.
    pub http2: bool,
}

/// How long the simulated Coder takes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Delays {
    /// For every request.
    pub request: Duration,
    /// For `/metadata` of a workspace, instead of the above.
    pub metadata: Duration,
}

/// The certificate of who vouches for the simulated Coder, in PEM.
pub const CA: &str = tls::CA;

/// A simulated Coder, listening on a loopback port until dropped.
#[derive(Debug)]
pub struct SimCoder {
    address: SocketAddr,
    sim: Arc<Sim>,
    server: tokio::task::JoinHandle<()>,
}

#[derive(Debug)]
struct Sim {
    profile: Profile,
    address: SocketAddr,
    is_tls: bool,
    world: Mutex<World>,
    faults: Mutex<Vec<Fault>>,
    requests: Mutex<Vec<Recorded>>,
    delays: Mutex<Delays>,
    rates: Mutex<faults::Rates>,
    /// Shells in workspaces that have not ended.
    shells: AtomicUsize,
}

impl SimCoder {
    /// Starts one with the usual templates and no workspaces.
    pub async fn start(profile: Profile) -> std::io::Result<Self> {
        Self::start_on(profile, SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    /// The same, on an address of choice.
    pub async fn start_on(profile: Profile, address: SocketAddr) -> std::io::Result<Self> {
        Self::start_with(profile, address, None).await
    }

    /// The same over TLS, with HTTP/2 for who wants it; [`CA`] vouches for it.
    pub async fn start_tls(profile: Profile) -> std::io::Result<Self> {
        let acceptor = tls::acceptor()?;
        Self::start_with(profile, SocketAddr::from(([127, 0, 0, 1], 0)), Some(acceptor)).await
    }

    #[expect(clippy::unused_async, reason = "only inside a runtime can it listen")]
    async fn start_with(
        profile: Profile,
        address: SocketAddr,
        tls: Option<TlsAcceptor>,
    ) -> std::io::Result<Self> {
        let listener = listen(address)?;
        let address = listener.local_addr()?;
        let sim = Arc::new(Sim {
            profile,
            address,
            is_tls: tls.is_some(),
            world: Mutex::new(World::new(profile)),
            faults: Mutex::default(),
            requests: Mutex::default(),
            delays: Mutex::default(),
            rates: Mutex::default(),
            shells: AtomicUsize::new(0),
        });
        let server = tokio::spawn(serve(listener, Arc::clone(&sim), tls));
        Ok(Self { address, sim, server })
    }

    /// Its address, for `CODER_URL`.
    pub fn url(&self) -> String {
        format!("{}://{}", if self.sim.is_tls { "https" } else { "http" }, self.address)
    }

    /// Which Coder it plays.
    pub fn profile(&self) -> Profile {
        self.sim.profile
    }

    /// Its state, to look at and to change.
    pub fn world(&self) -> MutexGuard<'_, World> {
        lock(&self.sim.world)
    }

    /// Switches a fault on.
    pub fn fault(&self, fault: Fault) {
        lock(&self.sim.faults).push(fault);
    }

    /// Switches all faults off.
    pub fn heal(&self) {
        lock(&self.sim.faults).clear();
    }

    /// How long it takes from now on.
    pub fn delay(&self, delays: Delays) {
        *lock(&self.sim.delays) = delays;
    }

    /// Every request so far.
    pub fn requests(&self) -> Vec<Recorded> {
        lock(&self.sim.requests).clone()
    }

    /// Shells in workspaces that have not ended, whether or not anybody is connected to them.
    pub fn shells(&self) -> usize {
        self.sim.shells.load(Ordering::SeqCst)
    }

    /// Forgets the requests so far.
    pub fn forget_requests(&self) {
        lock(&self.sim.requests).clear();
    }

    /// Requests so far whose method and path begin like this.
    pub fn count(&self, method: &str, path: &str) -> usize {
        let requests = lock(&self.sim.requests);
        requests.iter().filter(|request| request.method == method && request.path.starts_with(path)).count()
    }
}

impl Drop for SimCoder {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Listens as Coder does: connections it has not accepted yet may be as many as the system allows, which is 4096.
fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(4096)
}

async fn serve(listener: TcpListener, sim: Arc<Sim>, tls: Option<TlsAcceptor>) {
    let router: Router = Router::new().fallback(api::dispatch).with_state(Arc::clone(&sim));
    // Dropping the set when the server is aborted ends the connections with it.
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok((stream, _)) = listener.accept().await else { continue };
        let (router, sim, tls) = (router.clone(), Arc::clone(&sim), tls.clone());
        let _ = stream.set_nodelay(true);
        connections.spawn(async move {
            let service =
                hyper::service::service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
                    let (router, sim) = (router.clone(), Arc::clone(&sim));
                    async move { faults::gate(&sim, router, request.map(Body::new)).await }
                });
            let builder = auto::Builder::new(TokioExecutor::new());
            // An error here is a client that went away or trusts nobody, or a fault that drops the connection.
            match tls {
                None => drop(builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await),
                Some(tls) => {
                    if let Ok(stream) = tls.accept(stream).await {
                        drop(builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await);
                    }
                }
            }
        });
    }
}
