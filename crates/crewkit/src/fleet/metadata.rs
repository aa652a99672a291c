//! `crewkit metadata serve`: the endpoint inside a workspace that says what the workspace is about.
//!
//! It asks for no token. On loopback it serves processes of its own user alone; it listens elsewhere only if it is told a
//! host name, and then serves whoever can connect. Requests that a web page made under a name of its own are refused.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use clap::{Args, Subcommand};
use crewkit_core::{Code, Limits};
use crewkit_fleet::metadata::{runner::Runner, sandbox::TaskfileCommands, server};
use crewkit_server::caller::{Caller, Evidence};
use crewkit_server::http::{Connection, Guard, HttpProblem, Listeners, Peer, PeerPolicy};
use tokio_util::sync::CancellationToken;

use crate::failure::Failure;
use crate::output;

/// `crewkit metadata …`.
#[derive(Debug, Subcommand)]
pub enum MetadataCommand {
    /// Serve `GET /metadata` and `GET /health` for the Taskfile of a directory.
    Serve(ServeArgs),
}

/// What is served, and where.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Address and port to listen on. Others than loopback need `--allow-host`.
    #[arg(long, default_value = "127.0.0.1:8000", value_name = "ADDR:PORT")]
    listen: SocketAddr,
    /// A host name requests may use besides the loopback ones and those of the Coder this workspace belongs to.
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
    /// The Taskfile; default: the one in the current directory.
    #[arg(long, env = "FLEET_MCP_TASKFILE", value_name = "FILE")]
    taskfile: Option<PathBuf>,
}

/// Serves until the process is ended.
pub fn run(command: MetadataCommand, limits: Limits) -> Result<(), Failure> {
    let MetadataCommand::Serve(arguments) = command;
    let broken = |error: std::io::Error| Failure::new(Code::StateUnusable, error.to_string());
    let listen = arguments.listen;
    if !listen.ip().is_loopback() && arguments.allow_host.is_empty() {
        let message = format!(
            "{listen} is not a loopback address. Name the host that requests will use with `--allow-host NAME`, \
             or listen on 127.0.0.1."
        );
        return Err(Failure::new(Code::ListenFailed, message));
    }
    let runner = Runner {
        directory: std::env::current_dir().map_err(broken)?,
        taskfile: arguments.taskfile,
        task_program: crate::local::installed("task"),
        commands: TaskfileCommands::Plain,
        limits,
    };
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let guard = guard(arguments.allow_host, &variable("CODER_AGENT_URL"), &variable("VSCODE_PROXY_URI"));
    let limits = Arc::new(runner.limits.clone());
    let router = server::router(runner).layer(middleware::from_fn_with_state(Arc::new(guard), admit));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(broken)?;
    runtime.block_on(async {
        let failed = |error: std::io::Error| Failure::new(Code::ListenFailed, format!("{listen}: {error}"));
        let listener = tokio::net::TcpListener::bind(listen).await.map_err(failed)?;
        output::talk(&format!("metadata at http://{}/metadata", listener.local_addr().map_err(failed)?));
        let stop = CancellationToken::new();
        let ended = stop.clone();
        tokio::spawn(async move {
            // Without a signal to wait for, the process is ended from outside.
            if tokio::signal::ctrl_c().await.is_ok() {
                ended.cancel();
            }
        });
        let listeners = Listeners { tcp: Some(listener), ..Listeners::default() };
        crewkit_server::http::serve(listeners, router, PeerPolicy::Check, limits, stop).await;
        Ok(())
    })
}

/// The names requests may use: those of `allowed`, and those of Coder, which passes on the host of the request that it was
/// asked with. `coder` is its address, `proxy` the pattern of addresses it gives to ports of this workspace.
fn guard(allowed: Vec<String>, coder: &str, proxy: &str) -> Guard {
    let host = |address: &str| {
        let rest = address.split_once("://")?.1;
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let name = rest[..end].rsplit('@').next()?;
        let name = name.rsplit_once(':').map_or(name, |(name, _)| name);
        (!name.is_empty()).then(|| name.to_ascii_lowercase())
    };
    // `https://{{port}}--main--workspace--user.apps.example`: what comes after the port is this workspace's own.
    let suffix = host(proxy).and_then(|name| name.strip_prefix("{{port}}").map(str::to_owned));
    Guard {
        allowed_hosts: allowed.into_iter().chain(host(coder)).collect(),
        allowed_host_suffix: suffix.filter(|suffix| suffix.starts_with("--") && suffix.contains('.')),
        ..Guard::default()
    }
}

async fn admit(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let connection = request.extensions().get::<Connection>();
    let local = connection.and_then(Connection::local_address);
    let evidence =
        Evidence { peer: connection.map_or(Peer::Unknown, Connection::peer), owner_token: None, token: None };
    let is_open =
        request.uri().path() == "/health" || local.is_some_and(|local| !local.to_canonical().is_loopback());
    let known = match Caller::identify(evidence, |_| None) {
        Caller::Stranger(reason) if !is_open => Err(HttpProblem::from(reason)),
        _ => Ok(()),
    };
    match guard.check_names(request.uri(), request.headers(), local).and(known) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_coder_gives_to_this_workspace_are_known() {
        let known = guard(
            vec!["given".to_owned()],
            "https://user:pass@Coder.Example:8443/path",
            "https://{{port}}--main--dev--ann.apps.example:8443",
        );
        assert_eq!(known.allowed_hosts, ["given", "coder.example"]);
        assert_eq!(known.allowed_host_suffix.as_deref(), Some("--main--dev--ann.apps.example"));
        for pattern in
            ["https://{{port}}", "https://{{port}}--x", "{{port}}--a.b", "https://x.example/{{port}}"]
        {
            let none = guard(Vec::new(), "nothing", pattern);
            assert!(none.allowed_hosts.is_empty() && none.allowed_host_suffix.is_none(), "{pattern}");
        }
    }
}
