//! What workspaces say about themselves, kept for a moment so that lists of many agents are quick.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

use super::Local;
use super::backend::Handle;
use super::git::Place;
use super::git_output::WorktreeStatus;
use super::hazard;
use crate::metadata::runner::Runner;
use crate::metadata::sandbox::TaskfileCommands;
use crate::metadata::{GitFacts, Metadata};

/// Age up to which metadata is shown in a list without being collected again.
const FRESH: Duration = Duration::from_secs(5);
/// Entries of a worktree that are looked at before git is run in it.
const MOST_ENTRIES: usize = 20_000;
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
                self.shared.tracker.spawn(async move {
                    tokio::select! {
                        _ = local.collect(&handle) => {}
                        () = local.shared.shutdown.cancelled() => {}
                    }
                });
            }
            return known;
        }
        self.collect(handle).await
    }

    async fn collect(&self, handle: &Handle) -> Metadata {
        let _look = self.shared.metadata.looks.acquire().await;
        let options = &self.shared.options;
        let runner = Runner {
            directory: handle.agent.path.clone(),
            taskfile: None,
            task_program: options.task_program.clone(),
            commands: match &options.taskfile_sandbox {
                Ok(sandbox) => TaskfileCommands::Confined(sandbox.clone()),
                Err(reason) => TaskfileCommands::Off(reason.clone()),
            },
            limits: options.limits.as_ref().clone(),
        };
        let (told, git) = tokio::join!(runner.taskfile_fields(), self.git_facts(handle));
        let metadata = Metadata { at: Some(options.clock.now()), ..told.metadata(git) };
        self.shared.metadata.put(&handle.agent.id, metadata.clone());
        metadata
    }

    async fn git_facts(&self, handle: &Handle) -> Option<GitFacts> {
        let place: Place = handle.agent.workspace.as_ref()?.place()?;
        let asked = async {
            hazard::check(&place.dir, MOST_ENTRIES).await?;
            let longest = Duration::from_millis(self.shared.options.limits.fleet_metadata_agent_ms / 6 * 5);
            let git = self.shared.options.git.within(longest).without_filters(&place).await?;
            let status = ["status", "--porcelain=v2", "-z", "--branch", "--ignore-submodules=dirty"];
            git.at(&place).args(status).run().await
        };
        let output = match asked.await {
            Ok(output) => output,
            Err(error) => {
                tracing::warn!(agent = handle.agent.name, %error, "its worktree cannot be looked at");
                return None;
            }
        };
        let status = WorktreeStatus::parse(&output, &[]);
        Some(GitFacts { branch: status.branch, sha: status.head, dirty: Some(status.changed) })
    }
}
