//! `crewkit serve`: MCP and REST over HTTP.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;

use crewkit_agent::Engine;
use crewkit_core::{Code, Secret};
use crewkit_server::Services;
use crewkit_server::http::{App, Guard, Listeners, PeerPolicy, router};
use crewkit_server::mcp::McpServer;
use crewkit_server::mcp::http::{DoorParts, McpDoor, SessionMode};
use crewkit_server::mcp::sessions::SessionRecords;
use crewkit_server::ops::{Catalog, Selection};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio_util::sync::CancellationToken;

use crate::agent;
use crate::cli::ServedAt;
use crate::clients;
use crate::config::Config;
use crate::failure::Failure;
use crate::mcp;
use crate::output;
use crate::socket;
use crate::token;

/// Serves until a signal ends it.
pub fn run(config: &Config) -> Result<(), Failure> {
    #[cfg(feature = "conformance")]
    if config.list("mcp.toolsets") == [crewkit_server::conformance::TOOLSET] {
        return serve_fixture(config);
    }
    let catalog = mcp::catalog()?;
    let selection = mcp::selection(config, &catalog)?;
    serve(config, catalog, selection, |door, catalog, services, selection| {
        McpServer::new(catalog, services, selection).door(door)
    })
}

/// Serves what the conformance suite asks for, through everything the product is served through.
#[cfg(feature = "conformance")]
fn serve_fixture(config: &Config) -> Result<(), Failure> {
    let fixture = crewkit_server::conformance::Fixture::new()
        .map_err(|error| Failure::new(Code::Internal, error.to_string()))?;
    serve(config, mcp::catalog()?, Selection::default(), |door, _, _, _| McpDoor::new(fixture, door))
}

fn serve(
    config: &Config,
    catalog: Arc<Catalog>,
    selection: Selection,
    door: impl FnOnce(DoorParts, Arc<Catalog>, Arc<Services>, Arc<Selection>) -> McpDoor,
) -> Result<(), Failure> {
    let selection = Arc::new(selection);
    let address = listen_address(config)?;
    let auth = config.flag("server.auth");
    if !address.ip().is_loopback() && !auth {
        let message = format!("{address} can be reached from other machines, and no token is asked for");
        return Err(Failure::new(Code::ListenRefused, message));
    }
    let token = if auth { Some(token::load_or_create(&config.home)?) } else { None };
    let limits = Arc::new(config.limits());
    agent::raise_open_files();
    let broken = |error: std::io::Error| Failure::new(Code::StateUnusable, error.to_string());
    let (answering, working) =
        (runtime("crewkit-doors").map_err(broken)?, runtime("crewkit-turns").map_err(broken)?);
    answering.block_on(async {
        let listener = TcpListener::bind(address)
            .await
            .map_err(|error| Failure::new(Code::ListenFailed, format!("{address}: {error}")))?;
        let address = listener.local_addr().map_err(broken)?;
        let stop = CancellationToken::new();
        let mode =
            if config.flag("server.stateless") { SessionMode::Stateless } else { SessionMode::Sessions };
        let base = base_url(config, address);
        let at = ServedAt { base: &base, ports: &[address.port()], socket: Some(socket::path(&config.home)) };
        let services = Arc::new(crate::cli::services(config, at)?);
        // Opened now: what the last server left running is told truthfully before anybody asks.
        let engine = open_engine(&services, &working).await?;
        crate::local::open(&services).await;
        let records = SessionRecords::new(config.home.join("state").join("mcp-sessions"), &limits);
        let parts = DoorParts { mode, records, limits: Arc::clone(&limits), stop: stop.clone() };
        let door = door(parts, Arc::clone(&catalog), Arc::clone(&services), Arc::clone(&selection));
        let kept = Arc::clone(&services);
        let app = App { catalog, services, selection, limits: Arc::clone(&limits), mcp: door };
        let router = router(app, guard(config, token));
        let mut listeners = Listeners { tcp: Some(listener), ..Listeners::default() };
        #[cfg(unix)]
        let _announced = listen_in_home(config, &mut listeners);
        output::data(&clients::greeting(&base, auth.then(|| token::file(&config.home)).as_deref()));
        tokio::spawn(stop_on_signal(stop.clone()));
        crewkit_server::http::serve(listeners, router, peer_policy(config), limits, stop).await;
        crate::local::close(&kept).await;
        engine.shutdown().await;
        Ok(())
    })
}

/// Half the cores. Calls pass through several tasks that hardly compute, as do turns of agents, and threads that wake each other
/// for them cost more than they gain; what computes belongs on a blocking thread.
fn runtime(name: &str) -> std::io::Result<Runtime> {
    let workers = std::thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(2));
    Builder::new_multi_thread().worker_threads(workers).thread_name(name).enable_all().build()
}

/// Agents work on threads of their own, so that a thousand of them hold up no answer.
async fn open_engine(services: &Arc<Services>, working: &Runtime) -> Result<Engine, Failure> {
    let services = Arc::clone(services);
    let opened = working.spawn(async move { services.agents.engine().await.cloned() });
    Ok(opened.await.map_err(|error| Failure::new(Code::Internal, error.to_string()))??)
}

fn listen_address(config: &Config) -> Result<SocketAddr, Failure> {
    let text = config.text("server.listen").unwrap_or_default();
    let invalid =
        |why: String| Failure::new(Code::SettingInvalid, format!("`server.listen` is `{text}`: {why}"));
    text.to_socket_addrs()
        .map_err(|error| invalid(format!("{error}; give an address and a port, as in 127.0.0.1:8101")))?
        .next()
        .ok_or_else(|| invalid("it names no address".to_owned()))
}

/// Opens the socket of the home. Without it the server is still of use, but commands have to be told its address.
#[cfg(unix)]
fn listen_in_home(config: &Config, listeners: &mut Listeners) -> Option<socket::Announced> {
    match socket::listen(&config.home) {
        Ok((listener, announced)) => {
            listeners.unix = Some(listener);
            Some(announced)
        }
        Err(error) => {
            let path = socket::path(&config.home);
            tracing::warn!(path = %path.display(), %error, "commands of this home need CREWKIT_SERVER: no socket");
            None
        }
    }
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
async fn stop_on_signal(stop: CancellationToken) {
    next_signal().await;
    tracing::info!("stopping; a second signal ends the process at once");
    stop.cancel();
    next_signal().await;
    #[expect(clippy::exit, reason = "the person asked twice")]
    std::process::exit(130);
}

#[cfg(unix)]
async fn next_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

#[cfg(not(unix))]
async fn next_signal() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}
