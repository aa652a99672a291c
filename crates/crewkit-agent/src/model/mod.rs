//! Language models.
//!
//! The loop only knows [`Model`]. Its implementations are an HTTP client with two wire formats, which handles retries, limits
//! and the differences between servers, and the built-in rehearsal.

mod anthropic;
mod endpoint;
mod failure;
mod http;
mod openai;
mod reasoning;
mod rehearsal;
mod retry;
mod sse;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::event::{ToolCall, Usage};

pub use endpoint::{Dialect, Endpoint, EndpointModel, Streaming};
pub use rehearsal::Rehearsal;
pub(crate) use sse::SseParser;

/// The definition of a tool that is sent to the model.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolDef {
    /// Its name, unique among the tools of a run.
    pub name: String,
    /// What it does.
    pub description: String,
    /// JSON schema of its arguments.
    pub input_schema: Value,
}

/// One message of a conversation, in the order it happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// Instructions.
    System(String),
    /// A message of a person or of crewkit.
    User(String),
    /// A reply of the model.
    Assistant {
        /// The text.
        content: String,
        /// The tools it called.
        tool_calls: Vec<ToolCall>,
    },
    /// The result of a tool call; follows the reply that made the call.
    Tool {
        /// Which call it answers.
        call_id: String,
        /// The tool.
        name: String,
        /// Its answer.
        content: String,
        /// Whether it is an error.
        is_error: bool,
    },
}

/// A request to a model.
pub struct Ask<'a> {
    /// The conversation so far.
    pub messages: &'a [Message],
    /// The tools the model may call; without any, the reply is text.
    pub tools: &'a [Arc<ToolDef>],
    /// Ends the pause between attempts; the reply of a request in flight is read to its end.
    pub halt: &'a CancellationToken,
    /// Time a request in flight has to end after `halt`.
    pub stop_grace: Duration,
    /// Receives text as it arrives.
    pub on_text: &'a (dyn Fn(&str) + Send + Sync),
}

/// A reply of a model.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Reply {
    /// The text, without reasoning.
    pub content: String,
    /// The model's reasoning.
    pub reasoning: Option<String>,
    /// The tools it calls; the server's ids may be missing or duplicate.
    pub calls: Vec<WantedCall>,
    /// The usage, if the server reports it.
    pub usage: Option<Usage>,
    /// Whether the reply was cut at the server's length limit.
    pub cut: bool,
}

/// A tool call as it arrived.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct WantedCall {
    /// The server's id for it, possibly empty.
    pub id: String,
    /// The tool.
    pub name: String,
    /// The arguments, up to the limit.
    pub arguments: String,
    /// Whether the arguments were longer than the limit.
    pub oversized: bool,
}

/// Why a request got no reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// The conversation is too long for the model.
    #[error("the conversation does not fit the model: {0}")]
    Overflow(String),
    /// The server refuses tools for this model; the next request should offer none.
    #[error("the model takes no tools")]
    ToolsRefused,
    /// The server refused, or every attempt failed.
    #[error("{0}")]
    Failed(String),
    /// The run ended during the pause before the next attempt.
    #[error("the run ended")]
    Halted,
}

/// A language model.
pub trait Model: Send + Sync {
    /// Returns the name shown to people.
    fn name(&self) -> &str;

    /// Returns whether tools may be offered; false for a while after its server has refused them.
    fn takes_tools(&self) -> bool;

    /// Returns the tokens that fit into one request, if known.
    fn window(&self) -> Option<u64>;

    /// Sends a request and returns the reply.
    fn ask<'a>(&'a self, ask: Ask<'a>) -> BoxFuture<'a, Result<Reply, AskError>>;
}
