//! Copying a plain directory, and moving a tree to where there is room for it.

use std::fs;
use std::io;
use std::path::Path;

use super::worktree::{CopyLimits, WorkspaceError};

/// Copies `from` to `to`, which must not exist. Links stay links; sockets, pipes and devices are left out.
pub(super) fn tree(from: &Path, to: &Path, limits: CopyLimits) -> Result<(), WorkspaceError> {
    let mut room = limits;
    fs::create_dir(to).map_err(|source| WorkspaceError::path(to, source))?;
    // A project may contain the home it is copied into; copies must not be copied.
    let copies = to.canonicalize().map_err(|source| WorkspaceError::path(to, source))?;
    let copies = copies.parent().unwrap_or(&copies);
    let outcome = below(from, to, copies, limits, &mut room);
    if outcome.is_err() {
        let _ = fs::remove_dir_all(to);
    }
    outcome
}

fn below(
    from: &Path,
    to: &Path,
    copies: &Path,
    limits: CopyLimits,
    room: &mut CopyLimits,
) -> Result<(), WorkspaceError> {
    let too_large = |limit, unit, key| WorkspaceError::TooLarge { path: from.to_owned(), limit, unit, key };
    let failed = |path: &Path, source| WorkspaceError::path(path, source);
    for entry in fs::read_dir(from).map_err(|source| failed(from, source))? {
        let entry = entry.map_err(|source| failed(from, source))?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let metadata = entry.metadata().map_err(|error| failed(&source, error))?;
        room.entries = room
            .entries
            .checked_sub(1)
            .ok_or_else(|| too_large(limits.entries, "entries", "fleet_copy_entries"))?;
        if metadata.is_dir() {
            if source == copies {
                continue;
            }
            fs::create_dir(&target).map_err(|error| failed(&target, error))?;
            below(&source, &target, copies, limits, room)?;
            fs::set_permissions(&target, metadata.permissions()).map_err(|error| failed(&target, error))?;
        } else if metadata.is_symlink() {
            link(&source, &target).map_err(|error| failed(&target, error))?;
        } else if metadata.is_file() {
            room.bytes = room
                .bytes
                .checked_sub(metadata.len())
                .ok_or_else(|| too_large(limits.bytes, "bytes", "fleet_copy_bytes"))?;
            fs::copy(&source, &target).map_err(|error| failed(&source, error))?;
        }
    }
    Ok(())
}

/// Moves `from` to `to`, copying when they are on different file systems.
pub(super) fn move_tree(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
            let everything = CopyLimits { bytes: u64::MAX, entries: u64::MAX };
            tree(from, to, everything).map_err(|error| match error {
                WorkspaceError::Path { source, .. } => source,
                other => io::Error::other(other.to_string()),
            })?;
            fs::remove_dir_all(from)
        }
        other => other,
    }
}

#[cfg(unix)]
fn link(from: &Path, to: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(fs::read_link(from)?, to)
}

#[cfg(not(unix))]
fn link(from: &Path, to: &Path) -> io::Result<()> {
    fs::copy(from, to).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOMY: CopyLimits = CopyLimits { bytes: 1 << 30, entries: 1 << 20 };

    #[test]
    fn a_directory_that_holds_its_own_copy_is_copied_once() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("home/workspaces")).unwrap();
        fs::write(dir.path().join("a"), "x").unwrap();
        let to = dir.path().join("home/workspaces/w");
        tree(dir.path(), &to, ROOMY).unwrap();
        assert_eq!(fs::read_to_string(to.join("a")).unwrap(), "x");
        assert!(to.join("home").exists() && !to.join("home/workspaces").exists());
    }

    #[test]
    fn what_is_too_large_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("from");
        fs::create_dir(&from).unwrap();
        fs::write(from.join("a"), "12345").unwrap();
        let small = CopyLimits { bytes: 4, ..ROOMY };
        let error = tree(&from, &dir.path().join("to"), small).unwrap_err();
        assert!(error.to_string().contains("limits.fleet_copy_bytes"), "{error}");
        assert!(!dir.path().join("to").exists());
    }
}
