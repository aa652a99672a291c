//! Looking at many files quickly: whole trees, and lists of places below a root.
//!
//! Below the starting point no symbolic link is followed; what to do with one is the visitor's decision.

use std::path::Path;

use crewkit_core::Code;

use crate::entry::Observed;
use crate::error::PackError;
use crate::fs::DirId;

#[cfg(any(not(unix), test))]
#[cfg_attr(unix, expect(dead_code, reason = "compared with the other one in tests, used elsewhere"))]
mod portable;
#[cfg(unix)]
mod unix;

#[cfg(not(unix))]
pub(crate) use portable::{
    Base, Item, Opened, has_local_clock, into_file, observe, open_any, stat_of, walk, walk_open,
};
#[cfg(unix)]
pub(crate) use unix::{
    Base, Item, Opened, has_local_clock, into_file, observe, open_any, stat_of, walk, walk_open,
};

/// What a visitor wants done with a directory it was shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Look inside.
    Descend,
    /// Leave it alone.
    Skip,
}

/// What to do about a link or a file in the place of a directory on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InTheWay {
    /// It is an error: something shall be written there.
    Refuse,
    /// What lies behind it is not ours, so nothing of ours is there.
    IsAbsent,
}

/// What is at a place, and which place that is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) observed: Observed,
    /// The nearest directory above it that exists.
    pub(crate) above: DirId,
    /// Where in its path the way from there begins.
    pub(crate) rest: usize,
}

/// A file is where a directory is needed.
pub(crate) fn not_a_directory(place: &Path) -> PackError {
    PackError::new(
        Code::TargetNotAFile,
        format!("{} is a file, but a directory is needed there", place.display()),
    )
    .detail("path", place.display().to_string())
}

fn escape(root: &Path, place: &Path) -> PackError {
    PackError::new(
        Code::TargetEscape,
        format!("{} is a symbolic link below the target root {}", place.display(), root.display()),
    )
    .detail("path", place.display().to_string())
    .detail("root", root.display().to_string())
}

fn too_deep(place: &Path, most: u64) -> PackError {
    PackError::new(
        Code::IoInvalidPath,
        format!("{} is nested deeper than pack_tree_depth ({most}) allows", place.display()),
    )
    .detail("path", place.display().to_string())
}
