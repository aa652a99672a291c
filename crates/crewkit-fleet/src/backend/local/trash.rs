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

/// The trash of one home. What is kept is named `AGENT-SECOND`, with what git administered beside it in
/// `AGENT-SECOND.git`; the second is when it came in. Names of agents have no dots, so what begins with a dot is none of
/// them.
#[derive(Debug, Clone)]
pub struct Trash {
    dir: PathBuf,
    /// How long things are kept; zero means for ever.
    keep: Duration,
    clock: Clock,
}

/// Names of directories that are to be removed as soon as possible begin with this.
const REMOVED: &str = ".removed-";

impl Trash {
    /// The trash at `dir`.
    pub fn new(dir: PathBuf, keep: Duration, clock: Clock) -> Self {
        Self { dir, keep, clock }
    }

    /// A free place for the workspace of `agent`.
    pub(crate) async fn place_for(&self, agent: &str) -> io::Result<Trashed> {
        let now = self.clock.now();
        let seconds = now.timestamp().as_second();
        let (dir, agent) = (self.dir.clone(), agent.to_owned());
        let free = blocking(move || {
            create_private_dir(&dir)?;
            let names = (0..).map(|number| match number {
                0 => format!("{agent}-{seconds}"),
                number => format!("{agent}-{number}-{seconds}"),
            });
            for name in names {
                let to = dir.join(name);
                if !to.try_exists()? && !to.with_extension("git").try_exists()? {
                    return Ok(to);
                }
            }
            Err(io::ErrorKind::AlreadyExists.into())
        });
        let until = (!self.keep.is_zero())
            .then(|| now.timestamp().checked_add(self.keep).ok().map(Moment::new))
            .flatten();
        Ok(Trashed { path: free.await?, until })
    }

    /// Moves `path` to `place`.
    pub(crate) async fn take(&self, path: &Path, place: &Trashed) -> io::Result<()> {
        let (from, to) = (path.to_owned(), place.path.clone());
        blocking(move || move_tree(&from, &to)).await
    }

    /// Takes `path` out of the way at once and removes it in its own time.
    pub(crate) async fn discard(&self, path: &Path) -> io::Result<()> {
        let to = self.dir.join(format!("{REMOVED}{}", uuid::Uuid::now_v7().simple()));
        let (dir, from, removed) = (self.dir.clone(), path.to_owned(), to.clone());
        blocking(move || {
            create_private_dir(&dir)?;
            move_tree(&from, &removed)
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
    let is_id = |text: &str| text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    // 0.1.0 began such names with `doomed-`, which is also how the trash of an agent called `doomed` begins.
    if name.strip_prefix(REMOVED).or_else(|| name.strip_prefix("doomed-")).is_some_and(is_id) {
        return true;
    }
    let stem = name.strip_suffix(".git").unwrap_or(name);
    let came_in = stem.rsplit_once('-').and_then(|(_, seconds)| seconds.parse::<i64>().ok());
    let keep = i64::try_from(keep.as_secs()).unwrap_or(i64::MAX);
    keep > 0 && !stem.contains('.') && came_in.is_some_and(|came_in| now.saturating_sub(came_in) >= keep)
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
        assert!(!over("doomed-99999") && !over("doomed-99999.git") && !over("my.notes-1000"));
        let id = "0190b6a20190b6a20190b6a20190b6a2";
        assert!(over(&format!(".removed-{id}")) && over(&format!("doomed-{id}")));
        assert!(!is_over("papi-1000", 100_000, Duration::ZERO));
    }
}
