//! What workspaces say about themselves, kept for a moment so that lists of many agents are quick.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

use super::Local;
use super::backend::Handle;
use super::git::Place;
use crate::metadata::Metadata;
use crate::metadata::runner::{Runner, git_metadata};
use crate::metadata::taskfile::FILE_NAMES;

/// Age up to which metadata is shown in a list without being collected again.
const FRESH: Duration = Duration::from_secs(5);
/// Workspaces looked at at once.
const LOOKS: usize = 4;

/// The newest metadata of each agent.
#[derive(Debug)]
pub(super) struct MetadataCache {
    known: Mutex<HashMap<String, (Instant, Metadata)>>,
    looks: Semaphore,
}

impl Default for MetadataCache {
    fn default() -> Self {
        Self { known: Mutex::default(), looks: Semaphore::new(LOOKS) }
    }
}

impl MetadataCache {
    fn get(&self, agent: &str) -> Option<(Instant, Metadata)> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).get(agent).cloned()
    }

    fn put(&self, agent: &str, metadata: Metadata) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(agent.to_owned(), (Instant::now(), metadata));
    }

    pub(super) fn forget(&self, agent: &str) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(agent);
    }
}

impl Local {
    /// The metadata of an agent: fresh when it is looked at alone, a few seconds old at most when it is one of many, and
    /// older only while it is being collected again.
    pub(super) async fn metadata_of(&self, handle: &Handle) -> Metadata {
        let cache = &self.shared.metadata;
        if !handle.alone
            && let Some((at, known)) = cache.get(&handle.agent.id)
        {
            if at.elapsed() > FRESH {
                let (local, handle) = (self.clone(), handle.clone());
                // Marked as fresh at once, so that the next list does not start another look.
                cache.put(&handle.agent.id, known.clone());
                self.shared.tracker.spawn(async move { local.collect(&handle).await });
            }
            return known;
        }
        self.collect(handle).await
    }

    async fn collect(&self, handle: &Handle) -> Metadata {
        let _look = self.shared.metadata.looks.acquire().await;
        let path = &handle.agent.path;
        let mut found = None;
        for name in FILE_NAMES {
            if tokio::fs::try_exists(path.join(name)).await.unwrap_or(false) {
                let runner = Runner {
                    directory: path.clone(),
                    taskfile: None,
                    task_program: self.shared.options.task_program.clone(),
                    limits: self.shared.options.limits.as_ref().clone(),
                };
                found = Some(runner.collect().await);
                break;
            }
        }
        let metadata = match found {
            Some(metadata) => metadata,
            None => self.git_fields(handle).await.unwrap_or_default(),
        };
        self.shared.metadata.put(&handle.agent.id, metadata.clone());
        metadata
    }

    async fn git_fields(&self, handle: &Handle) -> Option<Metadata> {
        let place: Place = handle.agent.workspace.as_ref()?.place()?;
        let status = ["status", "--porcelain=v2", "--branch", "--ignore-submodules=dirty"];
        let git = self.shared.options.git.without_filters(&place).await.ok()?;
        let output = git.at(&place).args(status).run().await.ok()?;
        let text = String::from_utf8_lossy(&output);
        let header = |name: &str| text.lines().find_map(|line| line.strip_prefix("# ")?.strip_prefix(name));
        let branch = header("branch.head ").filter(|name| *name != "(detached)");
        let sha = header("branch.oid ").filter(|sha| *sha != "(initial)");
        let dirty = text.lines().any(|line| !line.starts_with('#'));
        Some(git_metadata(branch, sha, Some(dirty)))
    }
}
