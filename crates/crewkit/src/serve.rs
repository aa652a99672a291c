//! `crewkit serve`: MCP and REST over HTTP.

use std::net::{SocketAddr, ToSocketAddrs as _};
#[cfg(unix)]
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crewkit_agent::Engine;
use crewkit_core::{Code, Secret};
use crewkit_fleet::backend::local::{Local, LocalFleet};
use crewkit_fleet::{AnyFleet, Fleet};
use crewkit_server::Services;
use crewkit_server::asker::Askers;
use crewkit_server::http::{App, Guard, Listeners, PeerPolicy, router};
use crewkit_server::mcp::McpServer;
use crewkit_server::mcp::http::{EndpointParts, McpEndpoint, SessionMode};
use crewkit_server::mcp::sessions::SessionRecords;
use crewkit_server::metrics::Metrics;
use crewkit_server::ops::{Catalog, Selection};
use crewkit_server::services::ServerControl;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio_util::sync::CancellationToken;

use crate::cli::ServedAt;
use crate::config::Config;
use crate::failure::Failure;
use crate::server::askers::{self, SharedServices};
#[cfg(unix)]
use crate::server::launch;
#[cfg(unix)]
use crate::server::log::CappedLog;
use crate::server::own::{Ownership, Taken, own_home};
use crate::server::watch::{self, Reason};
use crate::server::{self, ServerKind, ServerRecord};
use crate::{agent, clients, logging, mcp, output, socket, token};

/// Serves MCP and REST over HTTP, and the clients of the home, until a signal ends it.
pub fn run(config: &Config) -> Result<(), Failure> {
    #[cfg(feature = "conformance")]
    if config.list("mcp.toolsets") == [crewkit_server::conformance::TOOLSET] {
        return serve_fixture(config);
    }
    let catalog = mcp::catalog()?;
    let selection = mcp::selection(config, &catalog)?;
    serve(config, ServerKind::Foreground, catalog, selection, product)
}

/// Serves the clients of the home in the background, until a signal ends it or it is no longer used. Whoever started it learns
/// on standard output how the start went.
#[cfg(unix)]
pub fn run_detached(home: PathBuf) -> Result<(), Failure> {
    let served = detached(home);
    if let Err(failure) = &served {
        tracing::error!(code = %failure.code, "{}", failure.message);
        launch::report(Err(failure));
    }
    served
}

#[cfg(unix)]
fn detached(home: PathBuf) -> Result<(), Failure> {
    let config = Config::load(home, |_| None, &[])?;
    let path = server::log::path(&config.home);
    let log = server::lock::run_directory(&config.home)
        .and_then(|_| CappedLog::open(&path, config.limits().server_log_bytes))
        .map_err(|error| Failure::new(Code::StateUnusable, format!("{}: {error}", path.display())))?;
    logging::start_in(log, config.text("log.format") == Some("json"));
    let catalog = mcp::catalog()?;
    let selection = mcp::selection(&config, &catalog)?;
    serve(&config, ServerKind::Background, catalog, selection, product)
}

fn product(
    parts: EndpointParts,
    catalog: Arc<Catalog>,
    services: Arc<Services>,
    selection: Arc<Selection>,
) -> McpEndpoint {
    McpServer::new(catalog, services, selection).endpoint(parts)
}

/// Serves what the conformance suite asks for, through everything the product is served through.
#[cfg(feature = "conformance")]
fn serve_fixture(config: &Config) -> Result<(), Failure> {
    let fixture = crewkit_server::conformance::Fixture::new()
        .map_err(|error| Failure::new(Code::Internal, error.to_string()))?;
    let door = |parts, _, _, _| McpEndpoint::new(move || fixture.clone(), parts);
    serve(config, ServerKind::Foreground, mcp::catalog()?, Selection::default(), door)
}

fn serve(
    config: &Config,
    kind: ServerKind,
    catalog: Arc<Catalog>,
    selection: Selection,
    door: impl FnOnce(EndpointParts, Arc<Catalog>, Arc<Services>, Arc<Selection>) -> McpEndpoint,
) -> Result<(), Failure> {
    let selection = Arc::new(selection);
    let address = if kind == ServerKind::Foreground { Some(listen_address(config)?) } else { None };
    let auth = config.flag("server.auth");
    let token = if auth { Some(token::load_or_create(&config.home)?) } else { None };
    let limits = Arc::new(config.limits());
    agent::raise_open_files();
    let broken = |error: std::io::Error| Failure::new(Code::StateUnusable, error.to_string());
    let (answering, working) =
        (runtime("crewkit-doors").map_err(broken)?, runtime("crewkit-turns").map_err(broken)?);
    answering.block_on(async {
        let signals = Signals::new().map_err(broken)?;
        // The address comes first: a port that is taken must not cost a background server its place.
        let mut listeners = Listeners::default();
        let mut record = ServerRecord::own(kind);
        let mut base = config.text("server.public_url").unwrap_or_default().to_owned();
        let mut ports = Vec::new();
        if let Some(address) = address {
            let listener = listen(address).await?;
            let address = listener.local_addr().map_err(broken)?;
            base = base_url(config, address);
            record.http = Some(base.clone());
            ports.push(address.port());
            listeners.tcp = Some(listener);
        }
        let Taken { mut ownership, starting } = own_home(config, kind).await?;
        let control = Arc::new(ServerControl::default());
        let stop = control.stop.clone();
        let at = ServedAt {
            base: &base,
            ports: &ports,
            socket: Some(socket::path(&config.home)),
            lock: Some(ownership.store_lock()),
            intents: Arc::default(),
        };
        let intents = Arc::clone(&at.intents);
        let services = crate::cli::services(config, at)?;
        let services = Arc::new(Services { server: Some(Arc::clone(&control)), ..services });
        // Opened now, so that the work an earlier server left is found before anybody asks.
        let grace = Duration::from_secs(limits.shutdown_grace_seconds);
        let engine = open_engine(&services, &working).await?;
        let local_fleet = local_fleet(config, &services)?;
        services.fleet.iter().for_each(crate::fleet::take_up);
        crate::local::open(&local_fleet, kind == ServerKind::Foreground).await;
        #[cfg(unix)]
        {
            let (listener, path, directory) = socket::listen(&config.home).map_err(broken)?;
            listeners.unix = Some(listener);
            record.socket = Some(path);
            ownership.socket_directory = directory;
        }
        ownership.announce(&record)?;
        let _ = control.about.set(record.about());
        drop(starting);
        let shared = SharedServices {
            home: config.home.clone(),
            catalog: Arc::clone(&catalog),
            own: Arc::clone(&services),
            engine: engine.clone(),
            local_fleet: Arc::clone(&local_fleet),
            intents: Arc::clone(&intents),
        };
        let askers = Askers::new(askers::make(shared), serde_json::json!(record), limits.server_askers);
        let records = Arc::new(SessionRecords::new(config.home.join("state").join("mcp-sessions"), &limits));
        let mode =
            if config.flag("server.stateless") { SessionMode::Stateless } else { SessionMode::Sessions };
        let endpoint_parts = EndpointParts { mode, records, limits: Arc::clone(&limits), stop: stop.clone() };
        let door = door(endpoint_parts, Arc::clone(&catalog), Arc::clone(&services), Arc::clone(&selection));
        let kept = Arc::clone(&services);
        let askers = Arc::new(askers);
        let app = App { catalog, services, selection, limits: Arc::clone(&limits), mcp: door, askers };
        let router = router(app, guard(config, token));
        match kind {
            ServerKind::Foreground => {
                output::data(&clients::greeting(&base, auth.then(|| token::file(&config.home)).as_deref()));
            }
            #[cfg(unix)]
            ServerKind::Background => launch::report(Ok(())),
            _ => {}
        }
        tracing::info!(pid = record.pid, build = %record.build, "the server owns its home");
        tokio::spawn(stop_on_signal(signals, stop.clone()));
        tokio::spawn(stop_claiming(engine.clone(), stop.clone()));
        let ownership = Arc::new(ownership);
        let (runs, fleet) = (engine.clone(), Arc::clone(&local_fleet));
        let has_work = move || {
            let has_tasks = |fleet: &Fleet<Local>| !fleet.backend().agents_with_open_tasks().is_empty();
            runs.active() > 0 || intents.is_busy() || fleet.opened().is_some_and(has_tasks)
        };
        tokio::spawn(stop_by_itself(config, kind, Arc::downgrade(&ownership), has_work, stop.clone()));
        crewkit_server::http::serve(listeners, router, peer_policy(config), limits, stop).await;
        kept.finish_commands(grace).await;
        if control.ends_work.load(Ordering::Relaxed) {
            crate::local::end_work(Some(&local_fleet), Some(&engine), Duration::MAX).await;
        }
        crate::local::close(&local_fleet).await;
        engine.shutdown().await;
        tracing::info!("the server has ended");
        drop(ownership);
        Ok(())
    })
}

/// Leaves runs that wait for a slot to the next server as soon as this one is about to end.
async fn stop_claiming(engine: Engine, stop: CancellationToken) {
    stop.cancelled().await;
    engine.stop_claiming();
}

/// The fleet on this machine: the server's own, or beside it if that one is on Coder.
fn local_fleet(config: &Config, services: &Services) -> Result<Arc<LocalFleet>, Failure> {
    match (&services.fleet, &services.pack) {
        (Some(AnyFleet::Local(fleet)), _) => Ok(Arc::clone(fleet)),
        (_, Some(pack)) => crate::local::fleet(config, pack, &services.agents),
        _ => Err(Failure::new(Code::Internal, "the server has no pack service")),
    }
}

/// Ends a server that no longer owns its home, and a background server that nobody uses.
fn stop_by_itself(
    config: &Config,
    kind: ServerKind,
    ownership: Weak<Ownership>,
    has_work: impl Fn() -> bool + Send + Sync + 'static,
    stop: CancellationToken,
) -> impl Future<Output = ()> + Send + 'static {
    let idle_time = match kind {
        ServerKind::Background => watch::idle_time(config.number("server.idle_minutes")),
        ServerKind::Foreground | ServerKind::InProcess => None,
    };
    let owns_home = move || ownership.upgrade().is_none_or(|ownership| ownership.holds());
    let is_idle = move || Metrics::global().connections.load(Ordering::Relaxed) == 0 && !has_work();
    async move {
        let reason = tokio::select! {
            reason = watch::until_end(idle_time, owns_home, is_idle) => reason,
            () = stop.cancelled() => return,
        };
        match reason {
            Reason::Idle => tracing::info!("stopping: nobody uses this server (server.idle_minutes)"),
            Reason::HomeGone => {
                tracing::warn!("stopping: the home was moved, deleted or given to another server");
            }
        }
        stop.cancel();
    }
}

/// Half the cores. Calls pass through several tasks that hardly compute, as do turns of agents, and threads that wake each other
/// for them cost more than they gain; what computes belongs on a blocking thread.
fn runtime(name: &str) -> std::io::Result<Runtime> {
    let workers = std::thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(2));
    Builder::new_multi_thread().worker_threads(workers).thread_name(name).enable_all().build()
}

/// Opens the engine on the threads of the agents, so that a thousand of them hold up no answer.
async fn open_engine(services: &Arc<Services>, working: &Runtime) -> Result<Engine, Failure> {
    let services = Arc::clone(services);
    let opened = working.spawn(async move { services.agents.engine().await.cloned() });
    Ok(opened.await.map_err(|error| Failure::new(Code::Internal, error.to_string()))??)
}

/// The address to listen on. One that other machines reach needs a token.
fn listen_address(config: &Config) -> Result<SocketAddr, Failure> {
    let address = configured_address(config)?;
    if !address.ip().is_loopback() && !config.flag("server.auth") {
        let message = format!("{address} can be reached from other machines, and no token is asked for");
        return Err(Failure::new(Code::ListenRefused, message));
    }
    Ok(address)
}

async fn listen(address: SocketAddr) -> Result<TcpListener, Failure> {
    let listener = TcpListener::bind(address).await;
    listener.map_err(|error| Failure::new(Code::ListenFailed, format!("{address}: {error}")))
}

fn configured_address(config: &Config) -> Result<SocketAddr, Failure> {
    let text = config.text("server.listen").unwrap_or_default();
    let invalid =
        |why: String| Failure::new(Code::SettingInvalid, format!("`server.listen` is `{text}`: {why}"));
    text.to_socket_addrs()
        .map_err(|error| invalid(format!("{error}; give an address and a port, as in 127.0.0.1:8101")))?
        .next()
        .ok_or_else(|| invalid("it names no address".to_owned()))
}

/// The address for people on this machine, unless the settings have a better one.
fn base_url(config: &Config, address: SocketAddr) -> String {
    match config.text("server.public_url") {
        Some(url) => url.trim_end_matches('/').to_owned(),
        None if address.ip().is_loopback() || address.ip().is_unspecified() => {
            format!("http://localhost:{}", address.port())
        }
        None => format!("http://{address}"),
    }
}

fn guard(config: &Config, token: Option<Secret>) -> Guard {
    Guard {
        allowed_hosts: config.list("server.allowed_hosts"),
        allowed_host_suffix: None,
        allowed_origins: config.list("server.allowed_origins"),
        token,
    }
}

fn peer_policy(config: &Config) -> PeerPolicy {
    if config.flag("server.check_peer") { PeerPolicy::Check } else { PeerPolicy::Trust }
}

/// The first signal ends the server in good order; a second one ends the process.
async fn stop_on_signal(mut signals: Signals, stop: CancellationToken) {
    signals.next().await;
    tracing::info!("stopping; a second signal ends the process at once");
    stop.cancel();
    signals.next().await;
    #[expect(clippy::exit, reason = "the person asked twice")]
    std::process::exit(130);
}

/// The signals that end a server. They are received from the moment this is made.
#[cfg(unix)]
pub(crate) struct Signals([tokio::signal::unix::Signal; 3]);

#[cfg(unix)]
impl Signals {
    pub(crate) fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self([
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
            signal(SignalKind::hangup())?,
        ]))
    }

    pub(crate) async fn next(&mut self) {
        let [terminate, interrupt, hangup] = &mut self.0;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

#[cfg(not(unix))]
pub(crate) struct Signals;

#[cfg(not(unix))]
impl Signals {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self)
    }

    pub(crate) async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
