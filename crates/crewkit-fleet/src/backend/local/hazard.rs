//! Files of a worktree that git reads by itself and would wait for, or never be done with.
//!
//! Git opens `.gitignore` and its like wherever they are. In the place of one of them an agent can put a pipe that nobody
//! writes to, or a device that never ends.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use super::git::GitError;

/// Files that git reads from a worktree without being told to.
const READ_BY_GIT: [&str; 3] = [".gitignore", ".gitattributes", ".gitmodules"];

/// Largest of them.
const LARGEST: u64 = 4 * 1024 * 1024;

/// Fails when `dir`, or one of its directories, has a file that git should not read. Looks at no more than `most` entries;
/// what is further down is left to the time git may take.
pub(crate) async fn check(dir: &Path, most: usize) -> Result<(), GitError> {
    let from = dir.to_owned();
    let looked = tokio::task::spawn_blocking(move || find(&from, most)).await;
    match looked {
        Ok(None) => Ok(()),
        Ok(Some((path, what))) => Err(GitError::Hazard { path, what }),
        Err(_) => Err(GitError::Start(std::io::ErrorKind::Other.into())),
    }
}

/// The first such file, breadth first: what is at the top is found however large the tree is.
fn find(dir: &Path, most: usize) -> Option<(PathBuf, String)> {
    let mut waiting = VecDeque::from([dir.to_owned()]);
    let mut seen = 0;
    while let Some(dir) = waiting.pop_front() {
        // A directory that cannot be read is none that git can read.
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            seen += 1;
            if seen > most {
                return None;
            }
            let Ok(kind) = entry.file_type() else { continue };
            let name = entry.file_name();
            let is_read = READ_BY_GIT.iter().any(|known| name.eq_ignore_ascii_case(known));
            if kind.is_dir() {
                if name != ".git" {
                    waiting.push_back(entry.path());
                }
            } else if is_read && kind.is_file() {
                if let Some(size) = entry.metadata().ok().map(|it| it.len()).filter(|size| *size > LARGEST) {
                    return Some((entry.path(), format!("has {size} bytes, more than {LARGEST}")));
                }
            } else if is_read && !kind.is_symlink() {
                // Links in these places git does not follow.
                return Some((entry.path(), "is a pipe, a socket or a device".to_owned()));
            }
        }
    }
    None
}
