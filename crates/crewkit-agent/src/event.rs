//! What a run leaves behind, entry by entry: its transcript.
//!
//! The transcript is the only history: viewers replay it, and a resumed run rebuilds its conversation from it.

use crewkit_core::Timestamp;
use crewkit_core::run::{RunStatus, StopReason};
use serde::{Deserialize, Serialize};

/// One entry of a run's transcript.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Event {
    /// Position in the run, from 1, without holes, growing across restarts.
    pub seq: u64,
    /// When it was accepted.
    pub at: Timestamp,
    /// What happened.
    #[serde(flatten)]
    pub body: EventBody,
}

/// What an entry says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum EventBody {
    /// The run moved to another state.
    Status {
        /// The new state.
        status: RunStatus,
        /// Why, when it stopped.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<StopReason>,
    },
    /// The model (or the driven command line) said something.
    Assistant {
        /// Its words, without reasoning.
        content: String,
        /// What it thought aloud.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reasoning: Option<String>,
        /// The tools it wants to use.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<ToolCall>,
        /// What the reply cost.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        usage: Option<Usage>,
    },
    /// A tool answered.
    ToolResult {
        /// Which call it answers.
        call_id: String,
        /// The tool.
        name: String,
        /// Its answer, cut to the limit.
        content: String,
        /// Whether the answer is an error.
        #[serde(default)]
        is_error: bool,
    },
    /// crewkit spoke to the model.
    Nudge {
        /// The message.
        content: String,
    },
    /// Older turns were replaced by a summary to make room.
    Compacted {
        /// Stands for everything that was dropped.
        summary: String,
        /// How many of the newest messages before this entry stay part of the conversation.
        kept: usize,
    },
    /// A remark for people.
    Note {
        /// The remark.
        content: String,
    },
    /// Something went wrong.
    Error {
        /// What.
        content: String,
    },
}

impl EventBody {
    /// A remark for people.
    pub fn note(content: impl Into<String>) -> Self {
        Self::Note { content: content.into() }
    }

    /// Something that went wrong.
    pub fn error(content: impl Into<String>) -> Self {
        Self::Error { content: content.into() }
    }

    /// The bytes it holds, roughly; what memory bounds count.
    pub fn weight(&self) -> usize {
        match self {
            Self::Status { .. } => 16,
            Self::Assistant { content, reasoning, tool_calls, .. } => {
                let calls: usize = tool_calls.iter().map(|call| call.arguments.len() + call.name.len()).sum();
                content.len() + reasoning.as_ref().map_or(0, String::len) + calls
            }
            Self::Compacted { summary: content, .. }
            | Self::ToolResult { content, .. }
            | Self::Nudge { content }
            | Self::Note { content }
            | Self::Error { content } => content.len(),
        }
    }
}

/// A tool the model wants to use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Unique within its conversation.
    pub id: String,
    /// The tool.
    pub name: String,
    /// The arguments as the model wrote them: usually, not certainly, a JSON object.
    pub arguments: String,
}

/// Tokens, as the model's server counted them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens read.
    pub input_tokens: u64,
    /// Tokens written.
    pub output_tokens: u64,
}

impl Usage {
    /// Both directions together.
    pub const fn total(self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }

    /// The sum of two.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            input_tokens: self.input_tokens.saturating_add(other.input_tokens),
            output_tokens: self.output_tokens.saturating_add(other.output_tokens),
        }
    }
}
