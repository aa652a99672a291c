//! What differs between operating systems: telling processes apart and ending them together with their children.

pub(crate) mod beneath;
pub(crate) mod process;

use tokio::process::Command;

/// Puts the process to be started in a group of its own.
pub(crate) fn own_group(command: &mut Command) {
    #[cfg(unix)]
    command.process_group(0);
    #[cfg(not(unix))]
    let _ = command;
}

/// Kills the group that the process `leader` leads; without groups, dropping the child ends the child alone.
pub(crate) fn kill_group(leader: Option<u32>) {
    #[cfg(unix)]
    signal_group(leader, rustix::process::Signal::KILL);
    #[cfg(not(unix))]
    let _ = leader;
}

/// Asks the group that the process `leader` leads to end.
pub(crate) fn terminate_group(leader: Option<u32>) {
    #[cfg(unix)]
    signal_group(leader, rustix::process::Signal::TERM);
    #[cfg(not(unix))]
    let _ = leader;
}

#[cfg(unix)]
fn signal_group(leader: Option<u32>, signal: rustix::process::Signal) {
    if let Some(pid) = leader.and_then(|id| i32::try_from(id).ok()).and_then(rustix::process::Pid::from_raw) {
        // The group may be gone already; then there is nothing to end.
        let _ = rustix::process::kill_process_group(pid, signal);
    }
}

/// A running process; when dropped before its end was seen, it and everything below it is killed.
#[derive(Debug)]
pub(crate) struct ProcessGuard(Option<process::Handle>);

impl ProcessGuard {
    /// Guards the process `leader`, which must not have been waited for.
    pub(crate) fn new(leader: Option<u32>) -> Self {
        Self(leader.and_then(process::Handle::open))
    }

    /// The process has ended by itself.
    pub(crate) fn ended(mut self) {
        self.0 = None;
    }
}

impl Drop for ProcessGuard {
    fn drop(&mut self) {
        let Some(leader) = self.0.take() else { return };
        // Looking for what is below it takes a moment, which whoever drops us should not wait for.
        let _ =
            std::thread::Builder::new().name("crewkit-reaper".to_owned()).spawn(move || leader.kill_tree());
    }
}

/// A path that git printed. Where paths are text, bytes that are none are replaced.
pub(crate) fn os_string(bytes: &[u8]) -> std::ffi::OsString {
    #[cfg(unix)]
    return <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(bytes).to_owned();
    #[cfg(not(unix))]
    String::from_utf8_lossy(bytes).into_owned().into()
}

/// Creates a directory only its owner can enter, unless it is there.
pub(crate) fn create_private_dir(dir: &std::path::Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)
}
