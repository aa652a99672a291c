//! Ending a process with everything it started.
//!
//! A child gets a process group of its own and a mark in its environment. The group is asked to end, then killed; what left
//! the group (`setsid`, double fork) still carries the mark and is found by it where `/proc` exists.

use std::time::Duration;

use tokio::process::{Child, Command};

/// Names the run in the environment of everything it starts.
const MARK_RUN: &str = "CREWKIT_RUN";
/// Names one spawned tree within a run.
const MARK_TREE: &str = "CREWKIT_TREE";

/// A child process and everything below it; killed when dropped.
#[derive(Debug)]
pub(crate) struct ProcessTree {
    child: Option<Child>,
    group: Option<u32>,
    mark: String,
}

impl ProcessTree {
    /// Starts `command` as the leader of a group of its own, marked for `run`.
    pub(crate) fn spawn(mut command: Command, run: &str) -> std::io::Result<Self> {
        let mark = uuid::Uuid::now_v7().simple().to_string();
        command.env(MARK_RUN, run).env(MARK_TREE, &mark).kill_on_drop(true);
        #[cfg(unix)]
        command.process_group(0);
        let child = command.spawn()?;
        let group = child.id();
        Ok(Self { child: Some(child), group, mark })
    }

    pub(crate) fn child(&mut self) -> Option<&mut Child> {
        self.child.as_mut()
    }

    /// Waits for the leader to end.
    pub(crate) async fn wait(&mut self) -> std::io::Result<std::process::ExitStatus> {
        match &mut self.child {
            Some(child) => child.wait().await,
            None => Err(std::io::ErrorKind::NotFound.into()),
        }
    }

    /// Asks the group to end, gives it `grace`, then kills the whole tree.
    pub(crate) async fn stop(mut self, grace: Duration) {
        if let Some(group) = self.group {
            signal_group(group, Ending::Ask);
        }
        let _ = tokio::time::timeout(grace, self.wait()).await;
        self.kill_tree().await;
    }

    /// Kills whatever is left of the tree; the leader is reaped.
    pub(crate) async fn kill_tree(&mut self) {
        let Some(group) = self.group.take() else { return };
        let mark = self.mark.clone();
        let _ = tokio::task::spawn_blocking(move || end_tree(group, &mark)).await;
        if let Some(child) = &mut self.child {
            let _ = child.wait().await;
        }
    }
}

impl Drop for ProcessTree {
    fn drop(&mut self) {
        let Some(group) = self.group.take() else { return };
        let mark = std::mem::take(&mut self.mark);
        signal_group(group, Ending::Force);
        // Looking through the process table takes a moment; whoever drops us should not wait for it.
        let _ = std::thread::Builder::new()
            .name("crewkit-reaper".to_owned())
            .spawn(move || end_tree(group, &mark));
    }
}

fn end_tree(group: u32, mark: &str) {
    signal_group(group, Ending::Force);
    kill_by(&format!("{MARK_TREE}={mark}"));
}

/// Kills everything a run of an earlier server process left behind.
pub(crate) fn kill_marked(run: &str) -> usize {
    kill_by(&format!("{MARK_RUN}={run}"))
}

#[derive(Clone, Copy)]
enum Ending {
    Ask,
    Force,
}

#[cfg(unix)]
fn signal_group(group: u32, ending: Ending) {
    use rustix::process::{Pid, Signal, kill_process_group};
    let signal = match ending {
        Ending::Ask => Signal::TERM,
        Ending::Force => Signal::KILL,
    };
    if let Some(pid) = i32::try_from(group).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(pid, signal);
    }
}

#[cfg(not(unix))]
fn signal_group(_: u32, _: Ending) {}

/// Kills every process whose environment holds `setting`. Rounds are repeated because a process may fork while we look.
#[cfg(target_os = "linux")]
fn kill_by(setting: &str) -> usize {
    use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
    const ROUNDS: usize = 20;
    let own = std::process::id();
    let mut killed = 0;
    for _ in 0..ROUNDS {
        let mut found = 0;
        for pid in all_pids().filter(|pid| *pid != own && carries(*pid, setting)) {
            let Some(target) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { continue };
            // The handle pins the process: if the number was reused meanwhile, the second look sees another environment.
            let Ok(handle) = pidfd_open(target, PidfdFlags::empty()) else { continue };
            if carries(pid, setting) && pidfd_send_signal(&handle, Signal::KILL).is_ok() {
                found += 1;
            }
        }
        killed += found;
        if found == 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    killed
}

#[cfg(not(target_os = "linux"))]
fn kill_by(_: &str) -> usize {
    0
}

#[cfg(target_os = "linux")]
fn all_pids() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse().ok()))
}

/// Whether the environment of `pid` has the setting. A process that is already dead has none.
#[cfg(target_os = "linux")]
fn carries(pid: u32, setting: &str) -> bool {
    std::fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|environ| environ.split(|byte| *byte == 0).any(|entry| entry == setting.as_bytes()))
}
