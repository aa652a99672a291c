//! Knowing a process again.
//!
//! A process number alone says nothing: it is used again, and after a reboot it means another process. Together with
//! the moment the process began and the boot it belongs to it is unique.

use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};
use tokio::io::unix::AsyncFd;

/// One process, for as long as this machine runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessId {
    pid: u32,
    /// When it began, in ticks since boot.
    start: u64,
    /// Which boot that was.
    boot: String,
}

impl ProcessId {
    /// The process that has the number `pid` now; none when there is none, or when it has ended and waits to be collected.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let line = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The program's name comes before, in parentheses, and may contain anything.
        let (_, fields) = line.rsplit_once(") ")?;
        let mut fields = fields.split(' ');
        let is_over = matches!(fields.next()?, "Z" | "X");
        let start = fields.nth(18)?.parse().ok()?;
        (!is_over).then_some(Self { pid, start, boot: boot_id()? })
    }

    /// Whether it still runs.
    pub(crate) fn is_alive(&self) -> bool {
        Self::of(self.pid).as_ref() == Some(self)
    }

    /// Whether the machine has not been started again since.
    pub(crate) fn is_of_this_boot(&self) -> bool {
        boot_id().as_ref() == Some(&self.boot)
    }
}

fn boot_id() -> Option<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned())
}

/// Hears of the end of a process, whoever its parent is.
#[derive(Debug)]
pub(crate) struct Watch(AsyncFd<OwnedFd>);

impl Watch {
    /// Watches `process`; none when it has ended.
    pub(crate) fn new(process: &ProcessId) -> Option<Self> {
        let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw)?;
        let handle = pidfd_open(pid, PidfdFlags::NONBLOCK).ok()?;
        #[expect(
            deprecated,
            reason = "its successor is unsafe; an owned descriptor upholds what that asks for"
        )]
        let watch = AsyncFd::with_interest(handle, tokio::io::Interest::READABLE).ok()?;
        process.is_alive().then_some(Self(watch))
    }

    /// Returns when the process has ended.
    pub(crate) async fn ended(&self) {
        // An error means that there is nothing left to wait for.
        let _ = self.0.readable().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_more_than_its_number() {
        let me = ProcessId::of(std::process::id()).unwrap();
        assert!(me.is_alive() && me.is_of_this_boot());
        assert!(!ProcessId { start: me.start + 1, ..me.clone() }.is_alive());
        let other = ProcessId { boot: "another".to_owned(), ..me };
        assert!(!other.is_alive() && !other.is_of_this_boot());
    }

    #[test]
    fn a_process_that_waits_to_be_collected_is_not_alive() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        while ProcessId::of(pid).is_some() {
            std::thread::yield_now();
        }
        assert!(std::path::Path::new(&format!("/proc/{pid}")).exists(), "not collected yet");
        child.wait().unwrap();
    }
}
