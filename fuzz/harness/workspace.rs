//! What an agent leaves in its workspace, read by the server: Taskfiles, and what git prints about a repository.
//!
//! Shared by the fuzz targets and by the test that replays what they found.

use std::path::Path;

use crewkit_fleet::backend::local::git_output::{
    WorktreeStatus, branch_of_worktree, links, settings_against, without_conflicts,
};
use crewkit_fleet::metadata::taskfile::{includes, meta_tasks};

/// A Taskfile of any content is tasks or an error.
pub(super) fn taskfile(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let _ = meta_tasks(&text);
    let _ = includes(&text);
}

/// Output of git is data, however odd the names in it are.
pub(super) fn git_output(data: &[u8]) {
    let kit = ["AGENTS.md".to_owned()];
    let (all, without_kit) = (WorktreeStatus::parse(data, &[]), WorktreeStatus::parse(data, &kit));
    assert_eq!((&all.head, &all.branch), (&without_kit.head, &without_kit.branch));
    assert!(all.changed || !without_kit.changed, "a file of the kit counts less, not more");
    for setting in settings_against(data) {
        assert!(setting.to_string_lossy().contains('='));
    }
    let settled = without_conflicts(data);
    assert!(settled.is_empty() || settled.ends_with(&[0]));
    assert_eq!(without_conflicts(&settled), settled, "what is settled stays so");
    let _ = links(data);
    let _ = branch_of_worktree(data, Path::new("/w/papi"));
}
