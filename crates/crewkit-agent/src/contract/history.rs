//! The messages of a conversation: rebuilt from a transcript, kept within the model's window.

use crate::event::{EventBody, ToolCall};
use crate::model::Message;

use super::prompt;

/// Stands in for a tool result that was dropped to make room.
const DROPPED: &str = "(dropped to make room; call the tool again if it is needed)";

/// The messages sent with a request: the opening, which always stays, and what followed.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct History {
    opening: usize,
    messages: Vec<Message>,
}

impl History {
    pub(super) fn new(opening: impl IntoIterator<Item = Message>, past: Vec<Message>) -> Self {
        let mut messages: Vec<Message> = opening.into_iter().collect();
        let opening = messages.len();
        messages.extend(past);
        Self { opening, messages }
    }

    pub(super) fn messages(&self) -> &[Message] {
        &self.messages
    }

    pub(super) fn push(&mut self, message: Message) {
        self.messages.push(message);
    }

    pub(super) fn extend(&mut self, messages: Vec<Message>) {
        self.messages.extend(messages);
    }

    /// Replaces the opening.
    pub(super) fn reopen(&mut self, opening: impl IntoIterator<Item = Message>) {
        let rest = self.messages.split_off(self.opening);
        *self = Self::new(opening, rest);
    }

    /// Drops the contents of all but the newest tool results. Returns whether that made room.
    pub(super) fn drop_old_results(&mut self) -> bool {
        const KEPT_RESULTS: usize = 4;
        let mut seen = 0;
        let mut dropped = false;
        for message in self.messages.iter_mut().rev() {
            if let Message::Tool { content, .. } = message {
                seen += 1;
                if seen > KEPT_RESULTS && content.len() > DROPPED.len() {
                    DROPPED.clone_into(content);
                    dropped = true;
                }
            }
        }
        dropped
    }

    /// Returns where the part to keep begins: whole turns from the end, within `budget` tokens, never a result without its
    /// call. Returns `None` if nothing could be summarised.
    pub(super) fn split_for_summary(&self, budget: u64) -> Option<usize> {
        let mut kept_from = self.messages.len();
        let mut tokens = 0;
        for (index, message) in self.messages.iter().enumerate().skip(self.opening).rev() {
            tokens += message_tokens(message);
            if tokens > budget {
                break;
            }
            if matches!(message, Message::Assistant { .. }) {
                kept_from = index;
            }
        }
        (kept_from > self.opening).then_some(kept_from)
    }

    /// Returns the messages before `kept_from`, followed by the request to summarise them.
    pub(super) fn summary_request(&self, kept_from: usize) -> Vec<Message> {
        let mut messages = self.messages[..kept_from].to_vec();
        messages.push(Message::User(prompt::SUMMARISE.to_owned()));
        messages
    }

    /// Replaces everything between the opening and `kept_from` by `summary`. Returns how many messages were kept.
    pub(super) fn replace_with_summary(&mut self, kept_from: usize, summary: &str) -> usize {
        let kept = self.messages.split_off(kept_from);
        self.messages.truncate(self.opening);
        self.messages.push(Message::User(prompt::summary_so_far(summary)));
        let count = kept.len();
        self.messages.extend(kept);
        count
    }

    /// Estimates the tokens of everything after the opening.
    pub(super) fn past_tokens(&self) -> u64 {
        self.messages.iter().skip(self.opening).map(message_tokens).sum()
    }

    /// Estimates the tokens of all messages.
    pub(super) fn tokens(&self) -> u64 {
        self.messages.iter().map(message_tokens).sum()
    }
}

fn message_tokens(message: &Message) -> u64 {
    let bytes = match message {
        Message::System(text) | Message::User(text) => text.len(),
        Message::Assistant { content, tool_calls } => {
            content.len()
                + tool_calls.iter().map(|call| call.arguments.len() + call.name.len() + 16).sum::<usize>()
        }
        Message::Tool { content, .. } => content.len(),
    };
    estimate_tokens(bytes) + 4
}

/// Estimates tokens at three bytes each, slightly more than most tokenizers need for prose and code.
pub fn estimate_tokens(bytes: usize) -> u64 {
    (bytes as u64).div_ceil(3)
}

/// Rebuilds the messages of a transcript, without the opening.
///
/// Results are recorded as their calls end; here they stand in the order of the calls. A call without a result was
/// interrupted: it gets an answer that says so, since models refuse calls without results and the call must not be repeated
/// without a look at its effects.
pub fn rebuild<'a>(entries: impl IntoIterator<Item = &'a EventBody>) -> Vec<Message> {
    let mut messages: Vec<Message> = Vec::new();
    let mut open: Vec<(ToolCall, Option<Message>)> = Vec::new();
    for entry in entries {
        match entry {
            EventBody::ToolResult { call_id, name, content, is_error } => {
                let call = open.iter_mut().find(|(call, result)| call.id == *call_id && result.is_none());
                if let Some((_, result)) = call {
                    *result = Some(Message::Tool {
                        call_id: call_id.clone(),
                        name: name.clone(),
                        content: content.clone(),
                        is_error: *is_error,
                    });
                }
            }
            EventBody::Assistant { content, tool_calls, .. } => {
                messages.extend(open.drain(..).map(answered));
                messages
                    .push(Message::Assistant { content: content.clone(), tool_calls: tool_calls.clone() });
                open.extend(tool_calls.iter().map(|call| (call.clone(), None)));
            }
            EventBody::User { content } | EventBody::Nudge { content } => {
                messages.extend(open.drain(..).map(answered));
                messages.push(Message::User(content.clone()));
            }
            EventBody::Compacted { summary, kept, .. } => {
                messages.extend(open.drain(..).map(answered));
                let kept = messages.split_off(messages.len().saturating_sub(*kept));
                messages = vec![Message::User(prompt::summary_so_far(summary))];
                messages.extend(kept);
            }
            EventBody::Status { .. } | EventBody::Note { .. } | EventBody::Error { .. } => {}
        }
    }
    messages.extend(open.drain(..).map(answered));
    messages
}

/// Returns the result of a call, or the answer for one that was interrupted.
fn answered((call, result): (ToolCall, Option<Message>)) -> Message {
    result.unwrap_or_else(|| Message::Tool {
        call_id: call.id,
        name: call.name,
        content: prompt::UNKNOWN_RESULT.to_owned(),
        is_error: true,
    })
}
