//! The fleet on this machine: an agent is a workspace, a driver and a kit.

mod copy;
pub mod git;
#[cfg(test)]
mod git_states_tests;
pub mod held;
pub mod keep;
pub mod project;
pub mod trash;
pub mod worktree;
