//! Bringing the work of an agent home, as it is asked for and answered.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Input of `land_agent`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
pub struct LandAgent {
    /// Name of the agent.
    pub agent_name: String,
    /// merge keeps the agent's commits, squash makes one, rebase puts them on top.
    #[schemars(extend("default" = "merge"))]
    pub strategy: Option<Strategy>,
    /// Message of the commit (merge, squash).
    pub message: Option<String>,
    /// Carry out the plan of this id; without it nothing is changed.
    pub plan: Option<String>,
}

/// How work gets onto its base.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Strategy {
    /// A commit that has base and agent as parents.
    #[default]
    Merge,
    /// One commit on top of the base.
    Squash,
    /// Each commit of the agent again, on top of the base.
    Rebase,
}

impl Strategy {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Merge => "merge",
            Self::Squash => "squash",
            Self::Rebase => "rebase",
        }
    }
}

/// How far a landing came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LandOutcome {
    /// Nothing is changed yet; `plan` carries it out.
    Planned,
    /// The base has the work.
    Landed,
    /// The work is on a branch of its own, since the base could not be moved.
    KeptAside,
    /// Base and agent changed the same; nothing is changed.
    Conflicts,
    /// The base has everything already.
    Nothing,
}

/// How the base moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Move {
    /// The branch alone: it is checked out nowhere.
    Branch,
    /// The branch with the files of the checkout that has it.
    Checkout,
    /// Not at all: the result gets a branch of its own.
    Aside,
}

/// Output of `land_agent`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Landing {
    /// Whose work it is.
    pub agent_name: String,
    /// How far it came.
    pub outcome: LandOutcome,
    /// Give it as `plan` to carry this out; it is refused when base or agent changed since.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub plan: Option<String>,
    /// How the work gets onto the base.
    pub strategy: Strategy,
    /// The branch it goes to; none if the project was on none.
    pub base: Option<String>,
    /// The commit the base is at before.
    pub base_commit: String,
    /// The newest commit of the result, once it is made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// How the base moves.
    #[serde(rename = "move")]
    pub how: Move,
    /// Why the base does not move.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub obstacles: Vec<String>,
    /// The branch that has the result, if the base does not move.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// The command that brings it home then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Files of the base that change.
    pub changed_files: usize,
    /// Commits of the agent that the base does not have.
    pub commits: usize,
    /// Whether work that the agent has not committed is part of it.
    pub uncommitted: bool,
    /// Whether the agent is at work and may change more.
    pub busy: bool,
    /// Who commits.
    pub committer: String,
    /// Whether commits are signed, because the configuration asks for it.
    pub signed: bool,
    /// Hooks, filters and merge drivers of the repository that are not run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_run: Vec<String>,
    /// Where base and agent changed the same.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conflicts: Vec<LandConflict>,
    /// A task for the agent that resolves the conflicts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// Files of the agent that could not be read and are no part of it, as git tells it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<String>,
    /// What happened, or would.
    pub message: String,
}

/// A file that base and agent both changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LandConflict {
    /// Its path.
    pub path: String,
    /// What kind of conflict, in the words of git: `contents`, `modify/delete`, …
    pub kind: String,
    /// What git tells about it.
    pub explanation: String,
    /// The commit of the agent it comes from, when each is put onto the base by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
}
