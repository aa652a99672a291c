//! What differs between operating systems, each with a portable fallback.

mod files;

pub(crate) use files::{create_private_dir, create_private_file};
