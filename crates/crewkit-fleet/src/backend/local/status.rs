//! The status of an agent, from what is known of its workspace and its newest task.

use crewkit_core::AgentStatus;

use super::record::{AgentRow, Phase, TaskRow, TaskState};
use crate::model::{Health, TaskStatus};

/// What can be seen of an agent besides its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Evidence {
    /// Whether the directory of its workspace is there.
    pub(crate) has_directory: bool,
    /// Whether its newest task is being interrupted.
    pub(crate) is_stopping: bool,
}

/// The status and what is wrong.
pub(crate) fn derive(
    agent: &AgentRow,
    newest: Option<&TaskRow>,
    evidence: Evidence,
) -> (AgentStatus, Health) {
    let healthy = |status| (status, Health::good());
    match agent.phase {
        Phase::Deleting => healthy(AgentStatus::Deleting),
        Phase::Preparing => healthy(AgentStatus::Starting),
        Phase::Failed => {
            let reason =
                agent.failure.clone().unwrap_or_else(|| "its workspace could not be made".to_owned());
            (AgentStatus::Failed, Health::bad(reason))
        }
        Phase::Ready if !evidence.has_directory => {
            let reason = format!("its workspace {} is gone", agent.path.display());
            (AgentStatus::Failed, Health::bad(reason))
        }
        Phase::Ready => match newest {
            Some(task) if !task.state.is_over() && evidence.is_stopping => {
                let waits = task.state == TaskState::Queued;
                healthy(if waits { AgentStatus::Canceling } else { AgentStatus::Busy })
            }
            Some(task) => match task.state {
                TaskState::Queued => healthy(AgentStatus::Pending),
                TaskState::Starting => healthy(AgentStatus::Starting),
                TaskState::Running => healthy(AgentStatus::Busy),
                TaskState::Failed => {
                    let reason = task.error.clone().unwrap_or_else(|| "its last task failed".to_owned());
                    (AgentStatus::Idle, Health::bad(reason))
                }
                TaskState::Completed | TaskState::Stopped => healthy(AgentStatus::Idle),
            },
            None => healthy(AgentStatus::Idle),
        },
    }
}

/// The state of a task in the words of the contract.
pub(crate) fn task_status(state: TaskState) -> TaskStatus {
    match state {
        TaskState::Queued => TaskStatus::Pending,
        TaskState::Starting | TaskState::Running => TaskStatus::Running,
        TaskState::Completed => TaskStatus::Completed,
        TaskState::Failed => TaskStatus::Failed,
        TaskState::Stopped => TaskStatus::Stopped,
    }
}

/// The same in the words agents report themselves with.
pub(crate) fn state_word(state: TaskState) -> &'static str {
    match state {
        TaskState::Queued | TaskState::Starting => "pending",
        TaskState::Running => "working",
        TaskState::Completed => "complete",
        TaskState::Failed => "failure",
        TaskState::Stopped => "idle",
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::Source;
    use super::*;

    fn agent(phase: Phase) -> AgentRow {
        AgentRow {
            id: "1".to_owned(),
            name: "papi".to_owned(),
            project: "p".to_owned(),
            role: "coder".to_owned(),
            spec: "s".to_owned(),
            phase,
            path: "/w".into(),
            workspace: None,
            failure: None,
            kit: None,
            created_ms: 1,
            updated_ms: 1,
        }
    }

    fn task(state: TaskState) -> TaskRow {
        TaskRow {
            id: "t".to_owned(),
            agent: "1".to_owned(),
            number: 1,
            text: "x".to_owned(),
            source: Source::Human,
            driver: "loop".to_owned(),
            state,
            run: None,
            summary: None,
            reason: None,
            error: None,
            tokens: 0,
            created_ms: 1,
            started_ms: None,
            ended_ms: None,
        }
    }

    #[test]
    fn every_status_follows_from_evidence() {
        let there = Evidence { has_directory: true, is_stopping: false };
        let gone = Evidence { has_directory: false, ..there };
        let stopping = Evidence { is_stopping: true, ..there };
        let cases = [
            (Phase::Preparing, None, gone, "starting"),
            (Phase::Failed, None, there, "failed"),
            (Phase::Deleting, Some(TaskState::Running), there, "deleting"),
            (Phase::Ready, None, there, "idle"),
            (Phase::Ready, Some(TaskState::Queued), there, "pending"),
            (Phase::Ready, Some(TaskState::Queued), stopping, "canceling"),
            (Phase::Ready, Some(TaskState::Starting), there, "starting"),
            (Phase::Ready, Some(TaskState::Running), there, "busy"),
            (Phase::Ready, Some(TaskState::Running), stopping, "busy"),
            (Phase::Ready, Some(TaskState::Running), gone, "failed"),
            (Phase::Ready, Some(TaskState::Completed), there, "idle"),
            (Phase::Ready, Some(TaskState::Failed), there, "idle"),
            (Phase::Ready, Some(TaskState::Stopped), stopping, "idle"),
        ];
        for (phase, state, evidence, expected) in cases {
            let task = state.map(task);
            let (status, _) = derive(&agent(phase), task.as_ref(), evidence);
            assert_eq!(status.as_str(), expected, "{phase:?} {state:?} {evidence:?}");
        }
    }
}
