//! The web terminal of the simulated Coder: runs commands for real, in the directory a test gives a workspace.

use std::path::PathBuf;
use std::process::Stdio;

use axum::extract::ws::{Message, WebSocket};
use tokio::io::AsyncReadExt;
use tokio::process::Command;

use super::world::User;
use super::{Sim, lock};

/// Where a terminal opens.
#[derive(Debug)]
pub(super) struct Place {
    directory: PathBuf,
    path: Option<String>,
}

/// The place of the process `agent`, if it has a terminal and the user may use it.
pub(super) fn place(sim: &Sim, user: &User, agent: &str) -> Option<Place> {
    let world = lock(&sim.world);
    let workspace = world.workspaces.iter().find(|workspace| {
        workspace.agent_id.to_string() == agent && workspace.owner == user.id && workspace.status == "running"
    })?;
    Some(Place { directory: workspace.directory.clone()?, path: workspace.terminal_path.clone() })
}

/// Runs `command` as the login shell would, and sends what it prints as a terminal would.
pub(super) async fn run(mut socket: WebSocket, place: Place, command: String) {
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(&command).current_dir(&place.directory).env_clear();
    let path = place.path.or_else(|| std::env::var("PATH").ok()).unwrap_or_default();
    shell.env("PATH", path).env("HOME", &place.directory);
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    let Ok(mut child) = shell.spawn() else { return };
    let Some(mut output) = child.stdout.take() else { return };
    let _ = socket.send(Message::Binary("Welcome to your workspace\r\n".into())).await;
    let mut buffer = vec![0; 1000];
    while let Ok(count @ 1..) = output.read(&mut buffer).await {
        // A terminal turns line ends into carriage return and line feed.
        let mut bytes = Vec::with_capacity(count);
        for byte in buffer.iter().take(count) {
            if *byte == b'\n' {
                bytes.push(b'\r');
            }
            bytes.push(*byte);
        }
        if socket.send(Message::Binary(bytes.into())).await.is_err() {
            return;
        }
    }
    let _ = child.wait().await;
    let _ = socket.send(Message::Close(None)).await;
}
