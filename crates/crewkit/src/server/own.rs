//! Becoming the owner of a home.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crewkit_agent::StoreLock;
use crewkit_core::{Code, Limits};

use super::lock::{HomeLock, StartLock};
use super::record::{ServerKind, ServerRecord};
use crate::config::Config;
use crate::failure::Failure;

/// The ownership of a home, announced in it until this is dropped.
#[derive(Debug)]
pub struct Ownership {
    home: PathBuf,
    lock: HomeLock,
    /// A directory made for the socket alone, where the home's path is too long for one.
    pub(crate) socket_directory: Option<PathBuf>,
}

impl Ownership {
    /// Whether the home is still the one that was taken.
    pub fn holds(&self) -> bool {
        self.lock.is_of_home()
    }

    /// The lock of the home, for its store.
    pub fn store_lock(&self) -> Arc<StoreLock> {
        self.lock.store_lock()
    }

    /// Writes down who owns the home.
    pub fn announce(&self, record: &ServerRecord) -> Result<(), Failure> {
        record.write(&self.home).map_err(|error| unusable(&self.home, &error))
    }
}

impl Drop for Ownership {
    /// Takes the announcement back, unless the home belongs to somebody else by now.
    fn drop(&mut self) {
        if let Some(directory) = &self.socket_directory {
            let _ = std::fs::remove_dir_all(directory);
        }
        if self.holds() {
            ServerRecord::remove(&self.home);
            let _ = std::fs::remove_file(crate::socket::path(&self.home));
        }
    }
}

/// The ownership of a home together with the right to replace its server, which is kept until the new one can be reached.
#[derive(Debug)]
pub struct Taken {
    /// The ownership.
    pub ownership: Ownership,
    /// Keeps other starters away.
    pub starting: Option<StartLock>,
}

/// Owns the home from now on. A background server leaves for a `crewkit serve`, and its work goes on; any other owner stays,
/// and is named in the failure.
pub async fn own_home(config: &Config, kind: ServerKind) -> Result<Taken, Failure> {
    let home = &config.home;
    let limits = config.limits();
    let starting = match kind {
        // The client that starts a background server has the right already, and waits for it.
        ServerKind::Background => None,
        ServerKind::Foreground | ServerKind::InProcess => Some(start_lock(home, &limits).await?),
    };
    if kind == ServerKind::Foreground
        && let Some(starting) = &starting
    {
        replace_background_server(config, starting).await?;
    }
    let lock = HomeLock::take(home).map_err(|error| unusable(home, &error))?;
    let lock = lock.ok_or_else(|| in_use(home))?;
    let ownership = Ownership { home: home.clone(), lock, socket_directory: None };
    ownership.announce(&ServerRecord::own(kind))?;
    Ok(Taken { ownership, starting })
}

/// The right to start a server, once nobody else is about to.
pub async fn start_lock(home: &Path, limits: &Limits) -> Result<StartLock, Failure> {
    let patience = Duration::from_secs(limits.server_start_seconds);
    let lock = StartLock::wait(home, patience).await.map_err(|error| unusable(home, &error))?;
    lock.ok_or_else(|| {
        let message = format!(
            "Another process has been starting a server for {} for {} seconds (limits.server_start_seconds)",
            home.display(),
            patience.as_secs()
        );
        Failure::new(Code::HomeInUse, message)
    })
}

#[cfg(unix)]
async fn replace_background_server(config: &Config, starting: &StartLock) -> Result<(), Failure> {
    match super::connect::find(&config.home).await? {
        Some(found) if found.record().kind == ServerKind::Background => {
            found.leave(config, starting, super::connect::Work::GoesOn).await
        }
        _ => Ok(()),
    }
}

#[cfg(not(unix))]
async fn replace_background_server(_: &Config, _: &StartLock) -> Result<(), Failure> {
    std::future::ready(Ok(())).await
}

/// The failure that names who owns the home.
pub fn in_use(home: &Path) -> Failure {
    let owner =
        ServerRecord::read(home).map_or_else(|| "another process".to_owned(), |owner| owner.describe());
    let http = ServerRecord::read(home).and_then(|owner| owner.http);
    let at = http.map(|address| format!(" at {address}")).unwrap_or_default();
    Failure::new(Code::HomeInUse, format!("{} is owned by {owner}{at}", home.display()))
}

/// The failure of a home whose files cannot be used.
pub fn unusable(home: &Path, error: &io::Error) -> Failure {
    Failure::new(Code::StateUnusable, format!("{}: {error}", home.join("run").display()))
}
