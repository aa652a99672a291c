//! One changing command at a time per home.
//!
//! The lock is the kernel's (`flock` where there is one), so it vanishes with the process that holds it, however that ends. The file's
//! content only serves the message: who holds it, doing what, since when.

use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// How often a waiting command looks again.
const POLL: Duration = Duration::from_millis(20);
/// How long whoever has just got the lock is given to say who it is.
const INTRODUCTION: Duration = Duration::from_secs(1);

/// Who wants the lock, and for how long it waits.
#[derive(Debug, Clone)]
pub struct LockRequest {
    /// What the command is called in the message others see.
    pub command: String,
    /// The time, for that message.
    pub since: jiff::Timestamp,
    /// How long to wait for another command to finish.
    pub wait: Duration,
    /// The roots the command is about: where a directory that was moved may be found again.
    pub roots: Vec<PathBuf>,
}

/// Who holds the lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Its process.
    pub pid: u32,
    /// What it does.
    pub command: String,
    /// Since when.
    pub since: String,
}

impl Holder {
    fn unknown() -> Self {
        Self { pid: 0, command: String::new(), since: String::new() }
    }

    /// Whether it can still be the one who holds the lock.
    #[cfg(unix)]
    fn is_alive(&self) -> bool {
        let pid = i32::try_from(self.pid).ok().and_then(rustix::process::Pid::from_raw);
        pid.is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
    }

    /// Whether it has said who it is; whether it lives cannot be told.
    #[cfg(not(unix))]
    fn is_alive(&self) -> bool {
        self.pid != 0
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.pid == 0 {
            return f.write_str("another command that has not said who it is");
        }
        write!(f, "`{}` (pid {}) since {}", self.command, self.pid, self.since)
    }
}

/// The lock, held until it is dropped.
#[derive(Debug)]
pub struct StateLock {
    file: File,
    holder: Holder,
    /// Whether the file says who holds it.
    is_introduced: AtomicBool,
}

/// Why the lock was not taken.
#[derive(Debug)]
pub enum LockError {
    /// Somebody else kept it for as long as we waited.
    Held(Holder),
    /// The lock file could not be used.
    Io(io::Error),
}

impl StateLock {
    /// Takes the lock at `path`, waiting as long as `request` allows.
    pub fn acquire(path: &Path, request: &LockRequest) -> Result<Self, LockError> {
        let file = open(path, true).map_err(LockError::Io)?;
        let began = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if began.elapsed() >= request.wait => {
                    let holder = read_holder(&file);
                    if holder.is_alive() || began.elapsed() >= request.wait + INTRODUCTION {
                        return Err(LockError::Held(holder));
                    }
                    std::thread::sleep(POLL);
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(POLL),
                Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(TryLockError::Error(error)) => return Err(LockError::Io(error)),
            }
        }
        let lock = Self::new(file, request);
        lock.introduce();
        Ok(lock)
    }

    /// Takes the lock at `path` if there is such a file and nobody holds it. Nothing is written.
    pub(crate) fn try_acquire(path: &Path, request: &LockRequest) -> Option<Self> {
        let file = open(path, false).ok()?;
        file.try_lock().ok()?;
        Some(Self::new(file, request))
    }

    fn new(file: File, request: &LockRequest) -> Self {
        let (command, since) = (request.command.clone(), request.since.to_string());
        let holder = Holder { pid: std::process::id(), command, since };
        Self { file, holder, is_introduced: AtomicBool::new(false) }
    }

    /// Leaves a note for those who wait; a disk too full for it is no reason to stop.
    pub(crate) fn introduce(&self) {
        if !self.is_introduced.swap(true, Ordering::Relaxed) {
            self.note(&self.holder);
        }
    }

    /// Never leaves the file empty, not even for a moment: the note is a line, what follows it is cut off after.
    fn note(&self, holder: &Holder) {
        if let Ok(mut note) = serde_json::to_vec(holder) {
            note.push(b'\n');
            let mut file = &self.file;
            let written = file.rewind().and_then(|()| file.write_all(&note));
            let _ = written.and_then(|()| file.set_len(note.len() as u64));
        }
    }
}

impl Drop for StateLock {
    /// Closing the file would not be enough: a child process that is just being started still has a copy of the
    /// handle, and with it the lock, until it has become its own program.
    fn drop(&mut self) {
        // So that the next holder is not taken for this one before it has said who it is.
        if *self.is_introduced.get_mut() {
            self.note(&Holder::unknown());
        }
        let _ = self.file.unlock();
    }
}

fn read_holder(mut file: &File) -> Holder {
    let mut note = Vec::new();
    // What cannot be read says nothing of its holder.
    let _ = file.rewind().and_then(|()| file.take(4096).read_to_end(&mut note));
    let line = note.split(|byte| *byte == b'\n').next().unwrap_or_default();
    serde_json::from_slice(line).unwrap_or_else(|_| Holder::unknown())
}

/// Opens the lock file. A new one is its owner's alone, and a link in its place is not followed.
fn open(path: &Path, create: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(create).truncate(false);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt as _;
        let no_link = rustix::fs::OFlags::NOFOLLOW.bits();
        options.mode(0o600).custom_flags(no_link.cast_signed());
    }
    options.open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(command: &str) -> LockRequest {
        LockRequest {
            command: command.to_owned(),
            since: jiff::Timestamp::UNIX_EPOCH,
            wait: Duration::ZERO,
            roots: Vec::new(),
        }
    }

    #[test]
    fn the_second_one_learns_who_the_first_is_and_gets_its_turn() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let first = StateLock::acquire(&path, &request("deploy --apply")).unwrap();
        let Err(LockError::Held(holder)) = StateLock::acquire(&path, &request("rollback")) else {
            panic!("the lock was given twice");
        };
        assert_eq!(holder.pid, std::process::id());
        assert_eq!(
            holder.to_string(),
            format!("`deploy --apply` (pid {}) since 1970-01-01T00:00:00Z", holder.pid)
        );
        drop(first);
        StateLock::acquire(&path, &request("rollback")).unwrap();
    }

    #[test]
    fn a_free_lock_is_taken_without_writing_anything() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        assert!(StateLock::try_acquire(&path, &request("deploy")).is_none());
        assert!(!path.exists());
        let first = StateLock::acquire(&path, &request("rollback")).unwrap();
        assert!(StateLock::try_acquire(&path, &request("deploy")).is_none());
        drop(first);
        let before = std::fs::metadata(&path).unwrap().modified().unwrap();
        let second = StateLock::try_acquire(&path, &request("deploy")).unwrap();
        let Err(LockError::Held(holder)) = StateLock::acquire(&path, &request("rollback")) else {
            panic!("the lock was given twice");
        };
        assert_eq!(holder.pid, 0, "it has not said who it is");
        drop(second);
        assert_eq!(std::fs::metadata(&path).unwrap().modified().unwrap(), before);
    }

    #[test]
    fn it_is_free_again_although_a_copy_of_the_handle_is_open() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let first = StateLock::acquire(&path, &request("deploy")).unwrap();
        let copy_in_a_child = first.file.try_clone().unwrap();
        drop(first);
        StateLock::acquire(&path, &request("status")).unwrap();
        drop(copy_in_a_child);
    }

    #[test]
    fn waiting_ends_when_the_holder_does() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let first = StateLock::acquire(&path, &request("deploy")).unwrap();
        let patient = LockRequest { wait: Duration::from_mins(1), ..request("status") };
        std::thread::scope(|scope| {
            let second = scope.spawn(|| StateLock::acquire(&path, &patient).map(drop));
            drop(first);
            second.join().unwrap().unwrap();
        });
    }
}
