//! What differs between operating systems, each with a portable fallback.

mod beneath;
pub mod confine;
mod files;
mod process;

pub(crate) use beneath::{Kind, Root};
pub(crate) use files::{create_private_dir, create_private_file};
pub(crate) use process::{ProcessTree, kill_marked};
