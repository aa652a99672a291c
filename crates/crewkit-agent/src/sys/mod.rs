//! What differs between operating systems, each with a portable fallback.

mod beneath;
pub mod confine;
#[cfg(target_os = "linux")]
mod descendants;
mod descriptors;
mod files;
mod process;
#[cfg(target_os = "linux")]
mod seccomp;
pub mod supervisor;

pub(crate) use beneath::{Kind, Root};
pub use descriptors::close_inherited;
pub(crate) use files::{create_private_dir, create_private_file};
pub use process::MARK_RUN;
pub(crate) use process::{Launch, ProcessTree, kill_marked};

/// Lets every other thread go first from now on; where the system has no such thing, nothing changes.
pub(crate) fn give_way() {
    // On Linux a priority belongs to the thread that sets it, elsewhere to the whole process.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::setpriority_process(None, 10);
}
