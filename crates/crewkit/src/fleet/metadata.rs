//! `crewkit metadata serve`: the endpoint inside a workspace that says what the workspace is about.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use crewkit_core::{Code, Limits};
use crewkit_fleet::metadata::{runner::Runner, server};

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
    /// Address and port to listen on.
    #[arg(long, default_value = "127.0.0.1:8000", value_name = "ADDR:PORT")]
    listen: SocketAddr,
    /// The Taskfile; default: the one in the current directory.
    #[arg(long, env = "FLEET_MCP_TASKFILE", value_name = "FILE")]
    taskfile: Option<PathBuf>,
}

/// Serves until the process is ended.
pub fn run(command: MetadataCommand, limits: Limits) -> Result<(), Failure> {
    let MetadataCommand::Serve(arguments) = command;
    let broken = |error: std::io::Error| Failure::new(Code::StateUnusable, error.to_string());
    let directory = std::env::current_dir().map_err(broken)?;
    let runner = Runner { directory, taskfile: arguments.taskfile, task_program: installed("task"), limits };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(broken)?;
    runtime.block_on(async {
        let listen = arguments.listen;
        let failed = |error: std::io::Error| Failure::new(Code::ListenFailed, format!("{listen}: {error}"));
        let listener = tokio::net::TcpListener::bind(listen).await.map_err(failed)?;
        output::talk(&format!("metadata at http://{}/metadata", listener.local_addr().map_err(failed)?));
        let ended = async {
            // Without a signal to wait for, the process is ended from outside.
            if tokio::signal::ctrl_c().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        axum::serve(listener, server::router(runner)).with_graceful_shutdown(ended).await.map_err(failed)
    })
}

/// Where a program is, when it is installed.
fn installed(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(|file| file.is_file())
}
