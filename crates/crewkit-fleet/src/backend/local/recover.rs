//! Taking up what an earlier server left: processes are adopted, ends are written down, half-made things are finished.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;

use super::Local;
use super::held::Adoption;
use super::options::{LOOP, REHEARSAL};
use super::record::{AgentRow, Phase, TaskRow, TaskState};
use super::work::Begin;

/// How often a workspace that was half made is tried again.
const PREPARE_TRIES: u32 = 10;
const PREPARE_PAUSE: Duration = Duration::from_millis(500);

impl Local {
    /// Goes through everything that was not over. Returns when the state of every process is known.
    pub(super) async fn recover(&self) {
        let agents = self.shared.store.agents();
        let recoveries: Vec<_> = agents.iter().map(|agent| self.recover_agent(agent).boxed()).collect();
        join_all(recoveries).await;
        let mut waiting: Vec<Arc<TaskRow>> = agents
            .iter()
            .filter(|agent| agent.phase == Phase::Ready)
            .filter_map(|agent| self.open_task(&agent.id))
            .filter(|task| task.state == TaskState::Queued && !self.works().contains_key(&task.id))
            .collect();
        waiting.sort_by_key(|task| task.created_ms);
        for task in &waiting {
            self.submit(task, Begin::Queued);
        }
        self.end_orphans().await;
    }

    async fn recover_agent(&self, agent: &AgentRow) {
        match agent.phase {
            Phase::Failed => {}
            Phase::Deleting => {
                let (local, id) = (self.clone(), agent.id.clone());
                // Its task may still have a process, which the deletion has to end.
                if let Some(task) = self.open_task(&id) {
                    self.recover_task(&task).await;
                }
                self.shared.tracker.spawn(async move {
                    if let Err(error) = local.remove(&id).await {
                        tracing::error!(%error, "an agent could not be deleted to the end");
                    }
                });
            }
            Phase::Preparing => {
                let (local, id) = (self.clone(), agent.id.clone());
                self.shared.tracker.spawn(async move {
                    // The git of the server that died may still be writing there; it ends soon by itself.
                    for _ in 1..PREPARE_TRIES {
                        if local.prepare(&id).await.is_ok() {
                            return;
                        }
                        tokio::time::sleep(PREPARE_PAUSE).await;
                    }
                    if let Err(error) = local.prepare(&id).await {
                        local.note_failure(&id, &error).await;
                    }
                });
            }
            Phase::Ready => {
                self.finish_kit(agent).await;
                if let Some(task) = self.open_task(&agent.id) {
                    self.recover_task(&task).await;
                }
            }
        }
    }

    async fn recover_task(&self, task: &TaskRow) {
        if task.state == TaskState::Queued {
            return;
        }
        let begin = if task.driver == LOOP || task.driver == REHEARSAL {
            // A run that was never noted is found by its key when it is started again.
            task.run.clone().map_or(Begin::Queued, Begin::Run)
        } else {
            match self.shared.launcher.adopt(&self.task_dir(task), &task.id).await {
                Some(Adoption::Alive(held)) => Begin::Adopted(held),
                Some(Adoption::Ended(exit)) => Begin::Ended(exit),
                // It ran, and nothing is left that could tell of it.
                None if task.state == TaskState::Running => Begin::Ended(self.shared.launcher.unseen()),
                // No shim ever said a word, so the command never ran.
                None => Begin::Queued,
            }
        };
        self.submit(task, begin);
    }

    /// Ends processes of this fleet that belong to no task at work.
    async fn end_orphans(&self) {
        let known: HashSet<String> = self.works().keys().cloned().collect();
        for task in self.shared.launcher.tasks_with_processes().await {
            if !known.contains(&task) {
                let killed = self.shared.launcher.kill(&task).await;
                tracing::warn!(task, killed, "processes of a task that is over were ended");
            }
        }
    }
}
