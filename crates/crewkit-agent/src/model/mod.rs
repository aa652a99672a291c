//! Asking a language model.
//!
//! [`Model`] is all the loop knows. Behind it are two wire formats and the built-in rehearsal; retries, limits and the
//! oddities of servers end here.

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

use futures_util::future::BoxFuture;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::event::{ToolCall, Usage};

pub use endpoint::{Dialect, Endpoint, EndpointModel, Streaming};
pub use rehearsal::Rehearsal;
pub(crate) use sse::SseParser;

/// A tool as the model is told about it.
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
    /// Duties and circumstances.
    System(String),
    /// The person's, or crewkit's, words.
    User(String),
    /// The model's words and wishes.
    Assistant {
        /// Its words.
        content: String,
        /// The tools it wanted.
        tool_calls: Vec<ToolCall>,
    },
    /// A tool's answer; follows the message that asked for it.
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
    /// The tools it may use; none means it is asked for words only.
    pub tools: &'a [Arc<ToolDef>],
    /// Ends the waiting between attempts; a request in flight is read to its end.
    pub halt: &'a CancellationToken,
    /// Hears the words as they arrive.
    pub speaking: &'a (dyn Fn(&str) + Send + Sync),
}

/// What a model answered.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Reply {
    /// Its words, without reasoning.
    pub content: String,
    /// What it thought aloud.
    pub reasoning: Option<String>,
    /// The tools it wants; ids as the server gave them, which may be missing or double.
    pub calls: Vec<WantedCall>,
    /// What it cost, when the server says.
    pub usage: Option<Usage>,
    /// Whether the server cut the reply at its length limit.
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

/// Why there is no reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// The conversation is too long for the model.
    #[error("the conversation does not fit the model: {0}")]
    Overflow(String),
    /// The server takes no tools for this model. It is remembered: the next request should offer none.
    #[error("the model takes no tools")]
    ToolsRefused,
    /// The server refused, or every attempt failed.
    #[error("{0}")]
    Failed(String),
    /// The run ended while waiting for the next attempt.
    #[error("the run ended")]
    Halted,
}

/// Something that continues a conversation.
pub trait Model: Send + Sync {
    /// Its name, for people.
    fn name(&self) -> &str;

    /// Whether it may be offered tools; false once its server has refused them.
    fn takes_tools(&self) -> bool;

    /// Tokens that fit into one request, if known.
    fn window(&self) -> Option<u64>;

    /// Continues the conversation.
    fn ask<'a>(&'a self, ask: Ask<'a>) -> BoxFuture<'a, Result<Reply, AskError>>;
}
