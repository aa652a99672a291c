//! Knowing a process again, and ending one with everything it started.
//!
//! A process number alone says nothing: it is used again, and after a reboot it means another process. Together with
//! the moment the process began and the boot it belongs to it is unique.

use serde::{Deserialize, Serialize};

/// One process, for as long as this machine runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// Its number.
    pub pid: u32,
    /// When it began, in ticks since boot.
    pub start: u64,
    /// Which boot that was.
    pub boot: String,
}

impl ProcessId {
    /// The process that has the number `pid` now; none when there is none.
    pub fn of(pid: u32) -> Option<Self> {
        Some(Self { pid, start: imp::start_of(pid)?, boot: imp::boot_id()? })
    }

    /// Whether it still runs.
    pub fn is_alive(&self) -> bool {
        Self::of(self.pid).as_ref() == Some(self)
    }
}

pub(crate) use imp::{
    Handle, Watch, kill_descendants, kill_marked, locks_of_group, marked, terminate_descendants,
};

#[cfg(target_os = "linux")]
mod imp {
    use std::os::fd::OwnedFd;

    use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
    use tokio::io::unix::AsyncFd;

    use super::ProcessId;

    /// Rounds of looking for processes to end; each may fork while we look.
    const ROUNDS: usize = 50;

    /// A field of `/proc/<pid>/stat`, counted from the process's state as 0.
    fn stat_field(pid: u32, number: usize) -> Option<String> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The program's name comes before, in parentheses, and may contain anything.
        let (_, fields) = stat.rsplit_once(") ")?;
        fields.split(' ').nth(number).map(str::to_owned)
    }

    pub(super) fn start_of(pid: u32) -> Option<u64> {
        // A process that has ended and waits to be collected runs no more.
        if matches!(stat_field(pid, 0)?.as_str(), "Z" | "X") {
            return None;
        }
        stat_field(pid, 19)?.parse().ok()
    }

    pub(super) fn boot_id() -> Option<String> {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        Some(id.trim().to_owned())
    }

    fn all() -> impl Iterator<Item = u32> {
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse().ok()))
    }

    /// Lock files that processes of the group led by `leader` have open.
    pub(crate) fn locks_of_group(leader: Option<u32>) -> Vec<std::path::PathBuf> {
        let Some(group) = leader.map(|leader| leader.to_string()) else { return Vec::new() };
        let members = all().filter(|pid| stat_field(*pid, 2).as_ref() == Some(&group));
        let files = members.flat_map(|pid| {
            let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
            files.filter_map(|file| std::fs::read_link(file.path()).ok())
        });
        files.filter(|file| file.extension().is_some_and(|extension| extension == "lock")).collect()
    }

    fn carries(pid: u32, setting: &str) -> bool {
        std::fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|environ| environ.split(|byte| *byte == 0).any(|entry| entry == setting.as_bytes()))
    }

    /// The value of `name` in the environment of every process that has it.
    pub(crate) fn marked(name: &str) -> Vec<(u32, String)> {
        let value_of = |pid: u32| {
            let environ = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
            environ.split(|byte| *byte == 0).find_map(|entry| {
                let value = entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
                Some(String::from_utf8_lossy(value).into_owned())
            })
        };
        all().filter_map(|pid| Some((pid, value_of(pid)?))).collect()
    }

    fn signal(pid: u32, signal: Signal, still_meant: impl Fn(u32) -> bool) -> bool {
        let Some(target) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
        // The handle pins the process: if the number was used again meanwhile, the second look sees another one.
        let Ok(handle) = pidfd_open(target, PidfdFlags::empty()) else { return false };
        still_meant(pid) && pidfd_send_signal(&handle, signal).is_ok()
    }

    /// Kills every process but `except` whose environment holds `setting`.
    pub(crate) fn kill_marked(setting: &str, except: Option<u32>) -> usize {
        let meant = |pid: u32| Some(pid) != except && carries(pid, setting) && start_of(pid).is_some();
        until_none(|| all().filter(|pid| meant(*pid)).filter(|pid| signal(*pid, Signal::KILL, meant)).count())
    }

    /// Kills every descendant of `ancestor`; those it has adopted are among them.
    pub(crate) fn kill_descendants(ancestor: u32) -> usize {
        until_none(|| signal_descendants(ancestor, Signal::KILL))
    }

    /// Asks every descendant of `ancestor` to end.
    pub(crate) fn terminate_descendants(ancestor: u32) {
        signal_descendants(ancestor, Signal::TERM);
    }

    fn signal_descendants(ancestor: u32, wanted: Signal) -> usize {
        let parents: Vec<(u32, u32)> = all()
            .filter(|pid| start_of(*pid).is_some())
            .filter_map(|pid| Some((pid, stat_field(pid, 1)?.parse().ok()?)))
            .collect();
        let mut found = vec![ancestor];
        let mut at = 0;
        while let Some(parent) = found.get(at).copied() {
            found.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
            at += 1;
        }
        let alive = |pid: u32| start_of(pid).is_some();
        found.into_iter().skip(1).filter(|pid| signal(*pid, wanted, alive)).count()
    }

    fn until_none(mut round: impl FnMut() -> usize) -> usize {
        let mut total = 0;
        for _ in 0..ROUNDS {
            let found = round();
            total += found;
            if found == 0 {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        total
    }

    /// A process that is meant by more than its number.
    #[derive(Debug)]
    pub(crate) struct Handle {
        pid: u32,
        handle: OwnedFd,
    }

    impl Handle {
        /// The process that has the number `pid` now.
        pub(crate) fn open(pid: u32) -> Option<Self> {
            let target = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
            let handle = pidfd_open(target, PidfdFlags::empty()).ok()?;
            Some(Self { pid, handle })
        }

        /// Kills everything below the process, then the process: what is below cannot be told from others once it is gone.
        pub(crate) fn kill_tree(&self) {
            // Only a process that is still there has descendants; its number may mean another one by now.
            if pidfd_send_signal(&self.handle, Signal::CONT).is_ok() {
                kill_descendants(self.pid);
            }
            let _ = pidfd_send_signal(&self.handle, Signal::KILL);
        }
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
}

#[cfg(not(target_os = "linux"))]
mod imp {
    use super::ProcessId;

    pub(super) fn start_of(_: u32) -> Option<u64> {
        None
    }

    pub(super) fn boot_id() -> Option<String> {
        None
    }

    pub(crate) fn marked(_: &str) -> Vec<(u32, String)> {
        Vec::new()
    }

    pub(crate) fn locks_of_group(_: Option<u32>) -> Vec<std::path::PathBuf> {
        Vec::new()
    }

    pub(crate) fn kill_marked(_: &str, _: Option<u32>) -> usize {
        0
    }

    pub(crate) fn kill_descendants(_: u32) -> usize {
        0
    }

    pub(crate) fn terminate_descendants(_: u32) {}

    /// Without process handles only the group that a process leads can be killed.
    #[derive(Debug)]
    pub(crate) struct Handle(u32);

    impl Handle {
        pub(crate) fn open(pid: u32) -> Option<Self> {
            Some(Self(pid))
        }

        pub(crate) fn kill_tree(&self) {
            crate::sys::kill_group(Some(self.0));
        }
    }

    /// Without process handles nothing can be adopted.
    #[derive(Debug)]
    pub(crate) struct Watch;

    impl Watch {
        pub(crate) fn new(_: &ProcessId) -> Option<Self> {
            None
        }

        pub(crate) async fn ended(&self) {}
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_more_than_its_number() {
        let me = ProcessId::of(std::process::id()).unwrap();
        assert!(me.is_alive());
        assert!(!ProcessId { start: me.start + 1, ..me.clone() }.is_alive());
        assert!(!ProcessId { boot: "another".to_owned(), ..me }.is_alive());
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
