//! Open files that came from whoever started this process.

/// Closes every descriptor but the three streams and those in `keep`. Only for a process that has opened nothing else yet.
#[cfg(target_os = "linux")]
pub fn close_inherited(keep: &[i32]) -> std::io::Result<()> {
    let listed = std::fs::read_dir("/proc/self/fd")?.flatten();
    let open: Vec<i32> =
        listed.filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse().ok())).collect();
    for number in open.into_iter().filter(|number| *number > 2 && !keep.contains(number)) {
        // The list itself was open while it was read, and is closed by now.
        let _ = nix::unistd::close(number);
    }
    Ok(())
}

/// Closes nothing: the open files of a process cannot be listed here.
#[cfg(not(target_os = "linux"))]
pub fn close_inherited(_keep: &[i32]) -> std::io::Result<()> {
    Ok(())
}

/// Lets go of the streams, so that the reader sees their end when those who share them close them.
#[cfg(target_os = "linux")]
pub(crate) fn hold_no_streams() {
    let Ok(null) = std::fs::File::options().read(true).write(true).open("/dev/null") else { return };
    let _ = rustix::stdio::dup2_stdin(&null);
    let _ = rustix::stdio::dup2_stdout(&null);
    let _ = rustix::stdio::dup2_stderr(&null);
}
