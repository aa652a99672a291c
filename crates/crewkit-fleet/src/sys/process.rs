//! Ending a process with everything it started, and finding the locks that git leaves when it is killed.

pub(crate) use imp::{Handle, locks_of_group};

#[cfg(target_os = "linux")]
mod imp {
    use std::os::fd::OwnedFd;
    use std::path::PathBuf;

    use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

    /// Rounds of looking for processes to end; each may fork while we look.
    const ROUNDS: usize = 50;

    /// A field of `/proc/<pid>/stat`, counted from the process's state as 0.
    fn stat_field(pid: u32, number: usize) -> Option<String> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The program's name comes before, in parentheses, and may contain anything.
        let (_, fields) = stat.rsplit_once(") ")?;
        fields.split(' ').nth(number).map(str::to_owned)
    }

    /// Whether a process runs, rather than waits to be collected.
    fn is_alive(pid: u32) -> bool {
        stat_field(pid, 0).is_some_and(|state| !matches!(state.as_str(), "Z" | "X"))
    }

    fn all() -> impl Iterator<Item = u32> {
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse().ok()))
    }

    /// Lock files that processes of the group led by `leader` have open.
    pub(crate) fn locks_of_group(leader: Option<u32>) -> Vec<PathBuf> {
        let Some(group) = leader.map(|leader| leader.to_string()) else { return Vec::new() };
        let members = all().filter(|pid| stat_field(*pid, 2).as_ref() == Some(&group));
        let files = members.flat_map(|pid| {
            let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
            files.filter_map(|file| std::fs::read_link(file.path()).ok())
        });
        files.filter(|file| file.extension().is_some_and(|extension| extension == "lock")).collect()
    }

    /// Kills every process below `ancestor` that is there now; returns how many there were.
    fn kill_below(ancestor: u32) -> usize {
        let alive = all().filter(|pid| is_alive(*pid));
        let parents: Vec<(u32, u32)> =
            alive.filter_map(|pid| Some((pid, stat_field(pid, 1)?.parse().ok()?))).collect();
        let mut found = vec![ancestor];
        let mut at = 0;
        while let Some(parent) = found.get(at).copied() {
            found.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
            at += 1;
        }
        let kill = |pid: &u32| {
            Handle::open(*pid).is_some_and(|process| is_alive(*pid) && process.send(Signal::KILL))
        };
        found.iter().skip(1).filter(|pid| kill(pid)).count()
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

        fn send(&self, signal: Signal) -> bool {
            pidfd_send_signal(&self.handle, signal).is_ok()
        }

        /// Kills everything below the process, then the process: what is below cannot be told from others once it is gone.
        pub(crate) fn kill_tree(&self) {
            // Only a process that is still there has descendants; its number may mean another one by now.
            if self.send(Signal::CONT) {
                for _ in 0..ROUNDS {
                    if kill_below(self.pid) == 0 {
                        break;
                    }
                    std::thread::sleep(std::time::Duration::from_millis(2));
                }
            }
            self.send(Signal::KILL);
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod imp {
    pub(crate) fn locks_of_group(_: Option<u32>) -> Vec<std::path::PathBuf> {
        Vec::new()
    }

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
}
