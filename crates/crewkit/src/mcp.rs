//! `crewkit mcp`: the MCP server on standard input and output.

use std::sync::Arc;

use crewkit_core::{Code, Limits};
use crewkit_server::Services;
use crewkit_server::mcp::McpServer;
use crewkit_server::ops::{Catalog, Selection};

use crate::config::Config;
use crate::failure::Failure;
use crate::stdio;

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

/// Serves one client until its input ends.
pub fn serve(
    catalog: Arc<Catalog>,
    services: &Arc<Services>,
    selection: Selection,
    limits: &Limits,
) -> Result<(), Failure> {
    let broken = |error: std::io::Error| {
        Failure::new(Code::StateUnusable, format!("standard input and output: {error}"))
    };
    // One client, little to do: a single thread answers faster than several that wake each other.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(broken)?;
    runtime.block_on(async {
        let (reader, writer) = stdio::take().map_err(broken)?;
        let server = McpServer::new(catalog, Arc::clone(services), Arc::new(selection));
        server.serve_stdio(reader, writer, limits).await;
        if let Some(engine) = services.agents.opened() {
            engine.shutdown().await;
        }
        Ok::<_, Failure>(())
    })?;
    // A thread may still sit in a read of a terminal; waiting for it would keep the process.
    runtime.shutdown_background();
    Ok(())
}
