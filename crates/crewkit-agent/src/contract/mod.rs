//! Carrying out a contract: ask the model, run the tools it wants, see whether the contract is fulfilled.
//!
//! The decisions (markers, caps, compaction) are plain functions over plain data; [`carry_out`] joins them to a model, a
//! toolbox and a transcript.

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
pub use turns::{Assignment, End, carry_out};

use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::event::{EventBody, ToolCall};
use crate::model::ToolDef;
use crate::store::StoreError;

/// What a tool answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolAnswer {
    /// Text for the model.
    pub content: String,
    /// Whether it tells of a failure.
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

/// Whether a tool may run beside others of the same turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Company {
    /// It only looks, or is independent by nature.
    Any,
    /// It changes what others look at; calls before it end first, calls after it wait.
    Alone,
}

/// The tools of one run.
pub trait Toolbox: Send + Sync {
    /// What the model is told.
    fn tools(&self) -> Vec<Arc<ToolDef>>;

    /// Whether the tool may run beside others.
    fn company(&self, name: &str) -> Company;

    /// Runs a tool. A tool that does not exist, or fails, answers with an error; it never fails the run.
    fn call<'a>(&'a self, call: &'a ToolCall, arguments: serde_json::Value) -> BoxFuture<'a, ToolAnswer>;
}

/// When an appended entry has to be on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Before the call returns: something with consequences follows.
    Now,
    /// In order, but without waiting.
    Soon,
}

/// Where a run writes what it does, before it does it.
pub trait Transcript: Send + Sync {
    /// Appends entries in order.
    fn append(
        &self,
        entries: Vec<EventBody>,
        durability: Durability,
    ) -> BoxFuture<'_, Result<(), StoreError>>;
}
