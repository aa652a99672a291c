//! The web terminal of the simulated Coder: runs commands for real, on a terminal of this machine, in the directory a
//! test gives a workspace.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::extract::ws::{Message, WebSocket};
use futures_util::{SinkExt as _, StreamExt as _};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use super::render::SECRET;
use super::world::User;
use super::{Sim, lock};
use crate::pty::Pty;

/// A shell in a workspace. Coder keeps one for five minutes after its connection ended, unless it ends by itself.
struct OpenShell(Arc<Sim>);

impl OpenShell {
    fn new(sim: Arc<Sim>) -> Self {
        sim.shells.fetch_add(1, Ordering::SeqCst);
        Self(sim)
    }
}

impl Drop for OpenShell {
    fn drop(&mut self) {
        self.0.shells.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Where a terminal opens.
#[derive(Debug)]
pub(super) struct Place {
    directory: PathBuf,
    path: Option<String>,
}

/// What goes wrong with a terminal that was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// It never prints anything.
    Silent,
    /// Its workspace ends once this many bytes were typed.
    EndsAfter(usize),
    /// The connection ends once this many bytes were typed; what was started goes on.
    LosesConnectionAfter(usize),
}

/// The place of the process `agent`, if it has a terminal and the user may use it.
pub(super) fn place(sim: &Sim, user: &User, agent: &str) -> Option<Place> {
    let world = lock(&sim.world);
    let workspace = world.workspaces.iter().find(|workspace| {
        workspace.agent_id.to_string() == agent && workspace.owner == user.id && workspace.status == "running"
    })?;
    Some(Place { directory: workspace.directory.clone()?, path: workspace.terminal_path.clone() })
}

/// Runs `command` as the login shell would, types what the client sends and sends what is printed.
pub(super) async fn run(
    sim: Arc<Sim>,
    socket: WebSocket,
    place: Place,
    command: String,
    trouble: Option<Trouble>,
) {
    let Some((mut child, terminal)) = start(&place, &command) else { return };
    let shell = OpenShell::new(sim);
    let (Ok(mut screen), Ok(mut keyboard)) = (terminal.try_clone(), terminal.try_clone()) else { return };
    let (print, mut printed) = mpsc::channel::<Vec<u8>>(16);
    std::thread::spawn(move || {
        let mut buffer = [0; 1024];
        // The end of the last process that has the terminal shows as an error.
        while let Ok(count @ 1..) = screen.read(&mut buffer) {
            if print.blocking_send(buffer[..count].to_vec()).is_err() {
                return;
            }
        }
    });
    let (key, mut keys) = mpsc::channel::<Vec<u8>>(16);
    std::thread::spawn(move || {
        while let Some(bytes) = keys.blocking_recv() {
            if keyboard.write_all(&bytes).is_err() {
                return;
            }
        }
    });
    let (mut out, mut typed) = socket.split();
    // Some greet with more than they should.
    let greet = Message::Binary(format!("Welcome to your workspace, {SECRET}\r\n").into());
    if trouble != Some(Trouble::Silent) && out.send(greet).await.is_err() {
        return;
    }
    let mut count = 0;
    loop {
        tokio::select! {
            bytes = printed.recv() => match bytes {
                _ if trouble == Some(Trouble::Silent) => std::future::pending().await,
                Some(bytes) => {
                    if out.send(Message::Binary(bytes.into())).await.is_err() {
                        break;
                    }
                }
                None => {
                    let _ = out.send(Message::Close(None)).await;
                    break;
                }
            },
            message = typed.next() => {
                // Coder reads JSON from frames of bytes, and ends the session on any other.
                let Some(Ok(Message::Binary(bytes))) = message else { break };
                let Ok(request) = serde_json::from_slice::<serde_json::Value>(&bytes) else { break };
                let data = request["data"].as_str().unwrap_or_default().as_bytes().to_vec();
                count += data.len();
                match trouble {
                    Some(Trouble::EndsAfter(most)) if count > most => {
                        let _ = child.kill().await;
                        drop(shell);
                        return;
                    }
                    Some(Trouble::LosesConnectionAfter(most)) if count > most => {
                        let _ = key.send(data).await;
                        break;
                    }
                    _ => {
                        let _ = key.send(data).await;
                    }
                }
            }
        }
    }
    // What was started goes on without anybody looking, as in a workspace; it ends with the test at the latest.
    drop((out, typed));
    tokio::spawn(async move {
        while printed.recv().await.is_some() {}
        drop(key);
        let _ = child.wait().await;
        drop(shell);
    });
}

/// Starts the command on a terminal of its own.
fn start(place: &Place, command: &str) -> Option<(Child, File)> {
    let terminal = Pty::open().ok()?;
    let mut shell = Command::new("/bin/sh");
    // Before the start script has made the directory, a terminal opens at home.
    let home = place.directory.parent().unwrap_or(&place.directory);
    let directory = if place.directory.exists() { &place.directory } else { home };
    shell.arg("-c").arg(command).current_dir(directory).env_clear();
    let path = place.path.clone().or_else(|| std::env::var("PATH").ok()).unwrap_or_default();
    shell
        .env("PATH", path)
        .env("HOME", &place.directory)
        .env("TERM", "xterm-256color")
        .env("GH_TOKEN", SECRET);
    let side = || terminal.side().ok();
    shell.stdin(side()?).stdout(side()?).stderr(side()?).kill_on_drop(true);
    Some((shell.spawn().ok()?, terminal.screen))
}
