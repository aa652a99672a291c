//! Where directories of deleted agents go, and for how long.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::copy::move_tree;
use crate::sys::create_private_dir;
use crate::time::{Clock, Moment};

/// A directory that was moved to the trash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trashed {
    /// Where it is now.
    pub path: PathBuf,
    /// When it will be removed; never when absent.
    pub until: Option<Moment>,
}

/// The trash of one home. Each directory in it carries the second it came in at the end of its name.
#[derive(Debug, Clone)]
pub struct Trash {
    dir: PathBuf,
    /// How long things are kept; zero means for ever.
    keep: Duration,
    clock: Clock,
}

/// Names of directories that are to be removed as soon as possible begin with this.
const DOOMED: &str = "doomed-";

impl Trash {
    /// The trash at `dir`.
    pub fn new(dir: PathBuf, keep: Duration, clock: Clock) -> Self {
        Self { dir, keep, clock }
    }

    /// Moves `path` here; none when there is nothing at `path`.
    pub(crate) async fn take(&self, agent: &str, path: &Path) -> io::Result<Option<Trashed>> {
        let now = self.clock.now();
        let seconds = now.timestamp().as_second();
        let (dir, from, agent) = (self.dir.clone(), path.to_owned(), agent.to_owned());
        let moved = blocking(move || {
            if !from.try_exists()? {
                return Ok(None);
            }
            create_private_dir(&dir)?;
            for number in 0.. {
                let mark = if number == 0 { String::new() } else { format!("-{number}") };
                let to = dir.join(format!("{agent}{mark}-{seconds}"));
                if !to.try_exists()? {
                    move_tree(&from, &to)?;
                    return Ok(Some(to));
                }
            }
            Ok(None)
        });
        let until = (!self.keep.is_zero())
            .then(|| now.timestamp().checked_add(self.keep).ok().map(Moment::new))
            .flatten();
        Ok(moved.await?.map(|path| Trashed { path, until }))
    }

    /// Takes `path` out of the way at once and removes it in its own time.
    pub(crate) async fn discard(&self, path: &Path) -> io::Result<()> {
        let to = self.dir.join(format!("{DOOMED}{}", uuid::Uuid::now_v7().simple()));
        let (dir, from, doomed) = (self.dir.clone(), path.to_owned(), to.clone());
        blocking(move || {
            create_private_dir(&dir)?;
            move_tree(&from, &doomed)
        })
        .await?;
        // Removing a large tree takes a while, and nobody waits for it; what a crash leaves is swept up later.
        tokio::task::spawn_blocking(move || std::fs::remove_dir_all(to));
        Ok(())
    }

    /// Removes what has been here long enough; returns how many directories went.
    pub(crate) async fn sweep(&self) -> io::Result<usize> {
        let (dir, keep) = (self.dir.clone(), self.keep);
        let now = self.clock.now().timestamp().as_second();
        blocking(move || {
            let entries = match std::fs::read_dir(&dir) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
                entries => entries?,
            };
            let mut removed = 0;
            for entry in entries {
                let entry = entry?;
                let name = entry.file_name();
                if is_over(&name.to_string_lossy(), now, keep) {
                    std::fs::remove_dir_all(entry.path())?;
                    removed += 1;
                }
            }
            Ok(removed)
        })
        .await
    }
}

/// Whether a directory of this name has been kept long enough. Names that are not ours are left alone.
fn is_over(name: &str, now: i64, keep: Duration) -> bool {
    if name.starts_with(DOOMED) {
        return true;
    }
    let stem = name.strip_suffix(".git").unwrap_or(name);
    let came_in = stem.rsplit_once('-').and_then(|(_, seconds)| seconds.parse::<i64>().ok());
    let keep = i64::try_from(keep.as_secs()).unwrap_or(i64::MAX);
    keep > 0 && came_in.is_some_and(|came_in| now.saturating_sub(came_in) >= keep)
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_ours_and_old_is_removed() {
        let day = Duration::from_hours(24);
        let over = |name: &str| is_over(name, 100_000, day);
        assert!(over("papi-1000") && over("papi-2-13600") && over("papi-1000.git"));
        assert!(!over("papi-13601") && !over("papi") && !over("notes.txt") && !over("papi-99999999"));
        assert!(over("doomed-0190b6a2"));
        assert!(!is_over("papi-1000", 100_000, Duration::ZERO));
    }
}
