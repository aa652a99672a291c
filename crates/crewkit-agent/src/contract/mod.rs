//! The turn loop: ask the model, run the tools it calls, decide whether the goal is reached.
//!
//! The decisions (markers, caps, compaction) are functions over plain data; [`carry_out`] connects them to a model, a
//! toolbox and a transcript. Runs and chat use the same loop with different [`Goal`]s. This module knows nothing of the store.

mod completion;
mod governor;
mod history;
mod marker;
mod prompt;
#[cfg(test)]
mod tests;
mod turns;

pub use completion::{AGENT_COMPLETE, definition as completion_tool};
pub use governor::Caps;
pub use history::{estimate_tokens, rebuild};
pub use marker::{Marker, MarkerKind, find_marker};
pub(crate) use turns::cut_middle;
pub use turns::{Assignment, Contract, End, Goal, carry_out};

use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::event::{EventBody, ToolCall};
use crate::model::ToolDef;

/// The answer of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolAnswer {
    /// Text for the model.
    pub content: String,
    /// Whether the text describes a failure.
    pub is_error: bool,
}

impl ToolAnswer {
    /// A result.
    pub fn ok(content: impl Into<String>) -> Self {
        Self { content: content.into(), is_error: false }
    }

    /// A failure the model can react to.
    pub fn error(content: impl Into<String>) -> Self {
        Self { content: content.into(), is_error: true }
    }
}

/// Whether calls of a tool may run at the same time as other calls of the same reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Concurrency {
    /// The tool only reads, or does not depend on others.
    Shared,
    /// The tool changes what others read: earlier calls end first, later calls wait.
    Exclusive,
}

/// The tools of one conversation.
pub trait Toolbox: Send + Sync {
    /// Returns the tools that can be called now; more may become available between two requests.
    fn tools(&self) -> Vec<Arc<ToolDef>>;

    /// Returns whether the tool may run at the same time as others.
    fn concurrency(&self, name: &str) -> Concurrency;

    /// Runs a tool. Unknown tools and failures are answered with an error; they never end the run.
    fn call<'a>(&'a self, call: &'a ToolCall, arguments: serde_json::Value) -> BoxFuture<'a, ToolAnswer>;
}

/// When an appended entry has to be on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Before the call returns, because something with consequences follows.
    Now,
    /// In order, but without waiting.
    Soon,
}

/// Why entries were not appended to a transcript.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TranscriptError {
    /// The run was deleted, or a later attempt has begun.
    #[error("the attempt is over")]
    AttemptOver,
    /// The entries could not be stored.
    #[error("{0}")]
    Failed(String),
}

/// Where a conversation is recorded.
pub trait Transcript: Send + Sync {
    /// Appends entries in order.
    fn append(
        &self,
        entries: Vec<EventBody>,
        durability: Durability,
    ) -> BoxFuture<'_, Result<(), TranscriptError>>;
}
