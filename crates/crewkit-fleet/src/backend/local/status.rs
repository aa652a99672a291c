//! The status of an agent, from what is known of its workspace and its newest task.

use crewkit_core::AgentStatus;

use super::record::{AgentRow, Intent, Phase, TaskRow, TaskState};
use crate::model::{Health, TaskStatus};

/// The status and what is wrong. `has_directory` says whether the directory of the workspace is there.
pub(crate) fn derive(
    agent: &AgentRow,
    newest: Option<&TaskRow>,
    has_directory: bool,
) -> (AgentStatus, Health) {
    let failure = agent.failure.clone();
    match agent.phase {
        Phase::Deleting => (AgentStatus::Deleting, Health::good()),
        Phase::Preparing => (AgentStatus::Starting, Health::good()),
        Phase::Ready if agent.intent == Some(Intent::Restart) => (AgentStatus::Starting, Health::good()),
        Phase::Failed => {
            let reason = failure.unwrap_or_else(|| "its workspace could not be made".to_owned());
            (AgentStatus::Failed, Health::bad(reason))
        }
        Phase::Ready if !has_directory => {
            let reason = format!("its workspace {} is gone", agent.path.display());
            (AgentStatus::Failed, Health::bad(reason))
        }
        Phase::Ready => {
            let is_open = newest.is_some_and(|task| !task.state.is_over());
            let failed = newest.filter(|task| task.state == TaskState::Failed);
            let reason = failure.or_else(|| {
                failed.map(|task| task.error.clone().unwrap_or_else(|| "its last task failed".to_owned()))
            });
            let status = if is_open { AgentStatus::Busy } else { AgentStatus::Idle };
            (status, reason.map_or_else(Health::good, Health::bad))
        }
    }
}

/// The phase of an open task; `None` once it is over.
pub(crate) fn phase(state: TaskState) -> Option<&'static str> {
    match state {
        TaskState::Queued => Some("queued"),
        TaskState::Running => Some("working"),
        TaskState::Completed | TaskState::Failed | TaskState::Stopped => None,
    }
}

/// The state of a task in the words of the contract.
pub(crate) fn task_status(state: TaskState) -> TaskStatus {
    match state {
        TaskState::Queued => TaskStatus::Pending,
        TaskState::Running => TaskStatus::Running,
        TaskState::Completed => TaskStatus::Completed,
        TaskState::Failed => TaskStatus::Failed,
        TaskState::Stopped => TaskStatus::Stopped,
    }
}

/// The same in the words agents report themselves with.
pub(crate) fn state_word(state: TaskState) -> &'static str {
    match state {
        TaskState::Queued => "pending",
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
            settings: None,
            intent: None,
            key: None,
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
            key: None,
            created_ms: 1,
            started_ms: None,
            ended_ms: None,
        }
    }

    #[test]
    fn every_status_follows_from_evidence() {
        let cases = [
            (Phase::Preparing, None, false, "starting"),
            (Phase::Failed, None, true, "failed"),
            (Phase::Deleting, Some(TaskState::Running), true, "deleting"),
            (Phase::Ready, None, true, "idle"),
            (Phase::Ready, Some(TaskState::Queued), true, "busy"),
            (Phase::Ready, Some(TaskState::Running), true, "busy"),
            (Phase::Ready, Some(TaskState::Running), false, "failed"),
            (Phase::Ready, Some(TaskState::Completed), true, "idle"),
            (Phase::Ready, Some(TaskState::Failed), true, "idle"),
            (Phase::Ready, Some(TaskState::Stopped), true, "idle"),
        ];
        for (phase, state, has_directory, expected) in cases {
            let task = state.map(task);
            let (status, _) = derive(&agent(phase), task.as_ref(), has_directory);
            assert_eq!(status.as_str(), expected, "{phase:?} {state:?} {has_directory}");
        }
        let restarting = AgentRow { intent: Some(Intent::Restart), ..agent(Phase::Ready) };
        assert_eq!(derive(&restarting, None, true).0.as_str(), "starting");
    }
}
