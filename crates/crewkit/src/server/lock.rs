//! The locks of a home: who owns it, and who is about to.

use std::fs::DirBuilder;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crewkit_agent::StoreLock;

/// How often a lock that somebody else holds is tried again.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// The ownership of a home, from being taken until it is dropped.
///
/// The kernel releases it with the process, so it is never stale.
#[derive(Debug)]
pub struct HomeLock {
    lock: Arc<StoreLock>,
    path: PathBuf,
    /// The home itself is locked too: a server whose lock file was deleted keeps others away until it has noticed.
    _home: StoreLock,
}

impl HomeLock {
    /// Takes the ownership of `home`. Returns `None` if another process has it.
    pub fn take(home: &Path) -> io::Result<Option<Self>> {
        let path = run_directory(home)?.join("server.lock");
        loop {
            let Some(lock) = StoreLock::take(&path)? else { return Ok(None) };
            // Between opening and locking, the file can have been removed with the home.
            if lock.is_at(&path) {
                let Some(directory) = StoreLock::take_directory(home)? else { return Ok(None) };
                return Ok(Some(Self { lock: Arc::new(lock), path, _home: directory }));
            }
        }
    }

    /// Whether the locked file is still the one at its path: a home that was moved or deleted is no longer owned.
    pub fn is_of_home(&self) -> bool {
        self.lock.is_at(&self.path)
    }

    /// The lock, for the store of the home.
    pub fn store_lock(&self) -> Arc<StoreLock> {
        Arc::clone(&self.lock)
    }
}

/// The right to start or replace the server of a home. Whoever has it is the only one who does, and so the only one who may
/// look whether the home is owned by trying.
#[derive(Debug)]
pub struct StartLock(#[expect(dead_code, reason = "held for its effect")] StoreLock);

impl StartLock {
    /// Waits for the right, at most `patience`. Returns `None` if somebody else still has it then.
    pub async fn wait(home: &Path, patience: Duration) -> io::Result<Option<Self>> {
        let path = run_directory(home)?.join("start.lock");
        let began = Instant::now();
        loop {
            match StoreLock::take(&path)? {
                Some(lock) => return Ok(Some(Self(lock))),
                None if began.elapsed() >= patience => return Ok(None),
                None => tokio::time::sleep(RETRY_INTERVAL).await,
            }
        }
    }

    /// Waits until nobody owns `home`, at most `patience`, and returns whether that is so.
    pub async fn wait_until_free(&self, home: &Path, patience: Duration) -> io::Result<bool> {
        let began = Instant::now();
        loop {
            if HomeLock::take(home)?.is_some() {
                return Ok(true);
            }
            if began.elapsed() >= patience {
                return Ok(false);
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }
}

/// The directory of what belongs to a running server, made if need be. Only its owner can enter it.
pub fn run_directory(home: &Path) -> io::Result<PathBuf> {
    let directory = home.join("run");
    std::fs::create_dir_all(home)?;
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    match builder.create(&directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        if std::fs::metadata(&directory)?.permissions().mode() & 0o777 != 0o700 {
            std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o700))?;
        }
    }
    Ok(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_has_one_owner_until_it_is_gone_or_moved() {
        let home = tempfile::tempdir().unwrap();
        let lock = HomeLock::take(home.path()).unwrap().unwrap();
        assert!(HomeLock::take(home.path()).unwrap().is_none());
        assert!(lock.is_of_home());
        std::fs::remove_file(home.path().join("run/server.lock")).unwrap();
        assert!(!lock.is_of_home());
        assert!(HomeLock::take(home.path()).unwrap().is_none(), "its owner has not noticed yet");
        assert!(!lock.is_of_home(), "another file has its name now");
        drop(lock);
        let next = HomeLock::take(home.path()).unwrap().unwrap();
        assert!(next.is_of_home());
    }
}
