//! What differs between operating systems, each with a portable fallback.

mod beneath;
pub mod confine;
mod files;
mod process;

pub(crate) use beneath::{Kind, Root};
pub(crate) use files::{create_private_dir, create_private_file};
pub(crate) use process::{ProcessTree, kill_marked};

/// Lets every other thread go first from now on; where the system has no such thing, nothing changes.
pub(crate) fn give_way() {
    // On Linux a priority belongs to the thread that sets it, elsewhere to the whole process.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::setpriority_process(None, 10);
}
