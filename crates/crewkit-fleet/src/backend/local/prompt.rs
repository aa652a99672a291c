//! What an agent is told when it gets a task: the task, who it is, where it works, and what it did before.

use std::fmt::Write;

use super::record::{TaskRow, TaskState};
use super::role::RoleConfig;
use super::worktree::Workspace;

/// Earlier tasks an agent is reminded of, and how much of each.
const EARLIER: usize = 5;
const EARLIER_TEXT: usize = 400;
const EARLIER_SUMMARY: usize = 1200;

/// The words for a task. The task comes first: it is what the agent must not lose sight of.
pub(crate) fn contract(
    text: &str,
    role: &RoleConfig,
    project: &str,
    workspace: &Workspace,
    past: &[&TaskRow],
) -> String {
    let mut words = text.trim().to_owned();
    if !role.prompt.trim().is_empty() {
        let _ = write!(words, "\n\n## Your role\n\n{}", role.prompt.trim());
    }
    let _ = write!(words, "\n\n## Where you work\n\n{}", workspace.path.display());
    match &workspace.git {
        Some(checkout) => {
            let _ = write!(
                words,
                ": a git worktree of the project {project} on the branch {}. Work there and commit there.",
                checkout.branch
            );
        }
        None => {
            let _ = write!(words, ": a copy of the project {project}. Work there.");
        }
    }
    if !past.is_empty() {
        words.push_str("\n\n## What you did here before\n");
        let skipped = past.len().saturating_sub(EARLIER);
        if skipped > 0 {
            let _ = write!(words, "\n({skipped} earlier tasks are left out.)\n");
        }
        for task in &past[skipped..] {
            let outcome = match task.state {
                TaskState::Completed => "done",
                TaskState::Failed => "failed",
                TaskState::Stopped => "interrupted",
                TaskState::Queued | TaskState::Running => "not ended",
            };
            let told = task.summary.as_deref().or(task.error.as_deref()).unwrap_or("nothing was reported");
            let _ = write!(
                words,
                "\n- {} ({outcome}): {}\n",
                short(&task.text, EARLIER_TEXT),
                short(told, EARLIER_SUMMARY)
            );
        }
    }
    words
}

/// The beginning of a text on one line.
pub(crate) fn short(text: &str, longest: usize) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(longest) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    }
}

/// The first line of a text, short enough for a list.
pub(crate) fn headline(text: &str) -> String {
    short(text.trim().lines().next().unwrap_or_default(), 160)
}

#[cfg(test)]
mod tests {
    use super::super::role::built_in;
    use super::*;

    #[test]
    fn the_task_comes_first_and_the_past_is_short() {
        let workspace = Workspace { path: "/w".into(), git: None };
        let role = &built_in()[0];
        let alone = contract("Fix it", role, "api", &workspace, &[]);
        assert!(alone.starts_with("Fix it\n\n## Your role\n\nYou are a software engineer."), "{alone}");
        assert!(alone.ends_with("/w: a copy of the project api. Work there."), "{alone}");
        assert_eq!(short("a  b\nc", 3), "a b…");
        assert_eq!(headline("\n  first line\nsecond"), "first line");
    }
}
