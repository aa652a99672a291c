//! One process per home.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;

use super::FileFault;

/// Keeps other processes away from a home, or from a file of 0.1.0, until it is dropped.
///
/// The kernel gives the lock up with the process that holds it, so it is never stale.
#[derive(Debug)]
pub struct StoreLock(File);

impl StoreLock {
    /// Takes the lock of a home, which the server holds for its life.
    pub fn of_home(home: &Path) -> Result<Self, FileFault> {
        let path = home.join("run").join("server.lock");
        let failed = |source| FileFault::io(&path, source);
        path.parent().map_or(Ok(()), crate::sys::create_private_dir).map_err(failed)?;
        let taken = Self::take(&path).map_err(failed)?;
        taken.ok_or_else(|| FileFault::Locked { path: home.to_owned() })
    }

    /// Whether the locked file is still the one at `path`.
    #[cfg(unix)]
    pub fn is_at(&self, path: &Path) -> bool {
        use std::os::unix::fs::MetadataExt as _;
        let identity = |file: &std::fs::Metadata| (file.dev(), file.ino());
        let (held, there) = (self.0.metadata(), std::fs::metadata(path));
        matches!((held, there), (Ok(held), Ok(there)) if identity(&held) == identity(&there))
    }

    /// Whether there is a file at `path`; whether it is the locked one cannot be told here.
    #[cfg(not(unix))]
    pub fn is_at(&self, path: &Path) -> bool {
        path.exists()
    }

    /// Takes the lock at `path`, a file made for nothing else; none when another process has it.
    pub fn take(path: &Path) -> io::Result<Option<Self>> {
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        Self::lock(options.open(path)?)
    }

    /// Takes the lock of the directory at `path`; none when another process has it.
    pub fn take_directory(path: &Path) -> io::Result<Option<Self>> {
        Self::lock(File::open(path)?)
    }

    fn lock(file: File) -> io::Result<Option<Self>> {
        match file.try_lock() {
            Ok(()) => Ok(Some(Self(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

impl Drop for StoreLock {
    /// Closing the file would not be enough: a child process that is just being started still has a copy of the
    /// handle, and with it the lock, until it has become its own program.
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_free_again_although_a_copy_of_the_handle_is_open() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.lock");
        let lock = StoreLock::take(&path).unwrap().unwrap();
        let copy_in_a_child = lock.0.try_clone().unwrap();
        assert!(StoreLock::take(&path).unwrap().is_none());
        drop(lock);
        assert!(StoreLock::take(&path).unwrap().is_some());
        drop(copy_in_a_child);
    }
}
