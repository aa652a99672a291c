//! `crewkit mcp`: the MCP server on standard input and output.

use std::sync::Arc;

use crewkit_core::{Code, Limits};
use crewkit_server::Services;
use crewkit_server::mcp::McpServer;
use crewkit_server::ops::{Catalog, Selection, Source};

use crate::commands::{Owner, Session};
use crate::config::Config;
use crate::failure::Failure;
use crate::{serve, stdio};

/// The operations of this build.
pub fn catalog() -> Result<Arc<Catalog>, Failure> {
    let catalog = Catalog::product().map_err(|error| Failure::new(Code::Internal, error.to_string()))?;
    Ok(Arc::new(catalog))
}

/// Which operations the settings show.
pub fn selection(config: &Config, catalog: &Catalog) -> Result<Selection, Failure> {
    let toolsets: Result<_, _> = config.list("mcp.toolsets").iter().map(|name| name.parse()).collect();
    let selection = Selection {
        toolsets: toolsets
            .map_err(|error: crewkit_core::toolset::UnknownToolset| Failure::usage(error.to_string()))?,
        tools: config.list("mcp.tools"),
        exclude: config.list("mcp.exclude_tools"),
        read_only: config.flag("mcp.read_only"),
    };
    selection.check(catalog).map_err(|error| Failure::usage(error.to_string()))?;
    Ok(selection)
}

/// Serves one client until its input ends. Every operation but pack's is carried out by the server of the home, or by this
/// process if it owns the home: then the end of its input, or a signal, ends all work.
pub fn run(config: &Config, in_process: bool) -> Result<(), Failure> {
    let catalog = catalog()?;
    let selection = selection(config, &catalog)?;
    with_runtime(async {
        let owner = Owner::of_long_command(config, in_process);
        let session = Session::open(config, owner, Source::Tool).await?;
        let services = Arc::clone(session.services());
        let limits = config.limits();
        let serving = serve_stdio(catalog, Arc::clone(&services), selection, &limits);
        let served = if session.is_in_process() {
            let mut signals = serve::Signals::new().map_err(broken)?;
            // Work that an earlier owner left goes on before anybody asks for it.
            let opening = tokio::spawn(async move {
                if let Err(error) = services.agents.engine().await {
                    tracing::error!(%error, "the run store could not be opened; its tools will say so");
                }
            });
            let served = tokio::select! {
                served = serving => served,
                () = signals.next() => {
                    tracing::info!("stopping");
                    Ok(())
                }
            };
            // What it takes up while it opens has to be ended too.
            let _ = opening.await;
            served
        } else {
            serving.await
        };
        session.close().await;
        served
    })
}

/// Serves one client with services of this process alone, until its input ends.
pub fn serve(
    catalog: Arc<Catalog>,
    services: Arc<Services>,
    selection: Selection,
    limits: &Limits,
) -> Result<(), Failure> {
    with_runtime(serve_stdio(catalog, services, selection, limits))
}

fn with_runtime(serving: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    // One client, little to do: a single thread answers faster than several that wake each other.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(broken)?;
    runtime.block_on(serving)?;
    // A thread may still sit in a read of a terminal; waiting for it would keep the process.
    runtime.shutdown_background();
    Ok(())
}

async fn serve_stdio(
    catalog: Arc<Catalog>,
    services: Arc<Services>,
    selection: Selection,
    limits: &Limits,
) -> Result<(), Failure> {
    let (reader, writer) = stdio::take().map_err(broken)?;
    McpServer::new(catalog, services, Arc::new(selection)).serve_stdio(reader, writer, limits).await;
    Ok(())
}

#[expect(clippy::needless_pass_by_value, reason = "it is the argument of map_err")]
fn broken(error: std::io::Error) -> Failure {
    Failure::new(Code::StateUnusable, format!("standard input and output: {error}"))
}
