//! What differs between operating systems: telling processes apart and ending them together with their children.

pub(crate) mod process;

use tokio::process::Command;

/// Puts the process to be started in a group of its own.
pub(crate) fn own_group(command: &mut Command) {
    #[cfg(unix)]
    command.process_group(0);
    #[cfg(not(unix))]
    let _ = command;
}

/// Ends the group that the process `leader` leads; without groups, dropping the child ends the child alone.
pub(crate) fn kill_group(leader: Option<u32>) {
    #[cfg(unix)]
    if let Some(pid) = leader.and_then(|id| i32::try_from(id).ok()).and_then(rustix::process::Pid::from_raw) {
        // The group may be gone already; then there is nothing to end.
        let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
    }
    #[cfg(not(unix))]
    let _ = leader;
}
