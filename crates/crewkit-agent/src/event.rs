//! The entries of a transcript.
//!
//! The transcript is the only history of a run or chat: viewers replay it, and the conversation is rebuilt from it.

use std::fmt::Write as _;

use crewkit_core::Timestamp;
use crewkit_core::run::{RunStatus, StopReason};
use serde::{Deserialize, Serialize};

/// Characters of output shown as a preview.
pub(crate) const PREVIEW_CHARS: usize = 200;
/// Characters of a tool call shown on one line.
const CALL_LINE_CHARS: usize = 77;

/// One entry of a run's transcript.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Event {
    /// Position in the run, from 1, without holes, growing across restarts.
    pub seq: u64,
    /// When it was accepted.
    pub at: Timestamp,
    /// The content.
    #[serde(flatten)]
    pub body: EventBody,
}

/// The content of an entry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
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
        /// The text, without reasoning.
        content: String,
        /// The model's reasoning.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reasoning: Option<String>,
        /// The tools it calls.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<ToolCall>,
        /// The usage, if the server reports it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        usage: Option<Usage>,
    },
    /// A person said something to the model.
    User {
        /// The message.
        content: String,
    },
    /// A tool answered. Results are recorded as their calls end, which may be in another order than the calls.
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
    /// crewkit sent a message to the model.
    Nudge {
        /// The message.
        content: String,
    },
    /// Older turns were replaced by a summary to make room.
    Compacted {
        /// The summary of everything that was dropped.
        summary: String,
        /// How many of the newest messages before this entry stay part of the conversation.
        kept: usize,
        /// The usage of the summary, if the server reports it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        usage: Option<Usage>,
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

    /// Returns the beginning of its text for a preview, or `None` if it says nothing about the agent's work.
    pub fn preview(&self) -> Option<String> {
        let text = match self {
            Self::Assistant { content, tool_calls, .. } => match tool_calls.first() {
                Some(call) if content.trim().is_empty() => &call.line(),
                _ => content,
            },
            Self::ToolResult { content, .. } | Self::Error { content } | Self::Note { content } => content,
            Self::Status { .. } | Self::User { .. } | Self::Nudge { .. } | Self::Compacted { .. } => {
                return None;
            }
        };
        let text = text.trim();
        (!text.is_empty()).then(|| cut(text, PREVIEW_CHARS))
    }

    /// Returns roughly how many bytes it holds, for limits on memory.
    pub fn weight(&self) -> usize {
        match self {
            Self::Status { .. } => 16,
            Self::Assistant { content, reasoning, tool_calls, .. } => {
                let calls: usize = tool_calls.iter().map(|call| call.arguments.len() + call.name.len()).sum();
                content.len() + reasoning.as_ref().map_or(0, String::len) + calls
            }
            Self::Compacted { summary: content, .. }
            | Self::User { content }
            | Self::ToolResult { content, .. }
            | Self::Nudge { content }
            | Self::Note { content }
            | Self::Error { content } => content.len(),
        }
    }
}

/// A tool call of the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ToolCall {
    /// Unique within its conversation.
    pub id: String,
    /// The tool.
    pub name: String,
    /// The arguments as the model wrote them: usually, not certainly, a JSON object.
    pub arguments: String,
}

impl ToolCall {
    /// Returns the call as `name key=value …`, cut to the length of a line.
    pub fn line(&self) -> String {
        let arguments: serde_json::Value = serde_json::from_str(&self.arguments).unwrap_or_default();
        let mut line = self.name.clone();
        for (key, value) in arguments.as_object().into_iter().flatten() {
            if line.len() > 4 * CALL_LINE_CHARS {
                break;
            }
            let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let _ = write!(line, " {key}={}", cut(&shown, CALL_LINE_CHARS).replace('\n', " "));
        }
        cut(&line, CALL_LINE_CHARS)
    }
}

/// Returns the beginning of a text, followed by dots if there is more.
pub(crate) fn cut(text: &str, characters: usize) -> String {
    match text.char_indices().nth(characters) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.to_owned(),
    }
}

/// Tokens, as the model's server counted them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Usage {
    /// Tokens read.
    pub input_tokens: u64,
    /// Tokens written.
    pub output_tokens: u64,
}

impl Usage {
    /// Returns the sum of both directions.
    pub const fn total(self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }

    /// Returns the sum of two usages.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            input_tokens: self.input_tokens.saturating_add(other.input_tokens),
            output_tokens: self.output_tokens.saturating_add(other.output_tokens),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_fits_on_a_line() {
        let call = |arguments: &str| {
            ToolCall { id: "a".into(), name: "look".into(), arguments: arguments.into() }.line()
        };
        assert_eq!(call(r#"{"path":"a\nb","n":3}"#), "look path=a b n=3");
        assert_eq!(call("garbage"), "look");
        let long = call(&format!(r#"{{"text":"{}"}}"#, "é".repeat(500)));
        assert_eq!(long.chars().count(), CALL_LINE_CHARS + 3);
        assert!(long.ends_with("..."));
    }
}
