//! What differs between operating systems, each with a portable fallback.

mod beneath;
pub mod confine;
#[cfg(target_os = "linux")]
pub(crate) mod descendants;
mod descriptors;
mod files;
#[cfg(target_os = "linux")]
mod identity;
mod process;
#[cfg(target_os = "linux")]
mod seccomp;
pub mod supervisor;

pub(crate) use beneath::{Kind, Root};
pub use descriptors::close_inherited;
#[cfg(target_os = "linux")]
pub(crate) use descriptors::hold_no_streams;
pub(crate) use files::{create_private_dir, create_private_file};
#[cfg(target_os = "linux")]
pub(crate) use identity::{ProcessId, Watch};
#[cfg(target_os = "linux")]
pub(crate) use process::is_marked;
pub(crate) use process::{Launch, ProcessTree};
pub use process::{MARK_RUN, kill_marked};
#[cfg(target_os = "linux")]
pub(crate) use supervisor::HOLD;

/// Lets every other thread go first from now on; where the system has no such thing, nothing changes.
pub(crate) fn give_way() {
    // On Linux a priority belongs to the thread that sets it, elsewhere to the whole process.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::setpriority_process(None, 10);
}
