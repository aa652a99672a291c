//! One process per store.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;

/// Keeps other processes away from a store until it is dropped.
///
/// The kernel gives the lock up with the process that holds it, so it is never stale.
#[derive(Debug)]
pub struct StoreLock(File);

impl StoreLock {
    /// Takes the lock at `path`, a file made for nothing else; none when another process has it.
    pub fn take(path: &Path) -> io::Result<Option<Self>> {
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(path)?;
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
