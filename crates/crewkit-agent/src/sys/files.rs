//! Files that belong to one user alone.

use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::path::Path;

/// Creates a directory (and its parents) that only its owner can enter; one that exists is left as it is.
pub(crate) fn create_private_dir(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt;
        builder.mode(0o700);
    }
    builder.create(path)
}

/// Creates an empty file that only its owner can read; one that exists is left as it is.
pub(crate) fn create_private_file(path: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).write(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    options.open(path).map(drop)
}
