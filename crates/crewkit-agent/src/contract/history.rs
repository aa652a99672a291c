//! The conversation: built from a transcript, kept within the model's window.

use crate::event::{Event, EventBody, ToolCall};
use crate::model::Message;

use super::prompt;

/// Stands in for a tool result that was dropped to make room.
const DROPPED: &str = "(dropped to make room; call the tool again if it is needed)";

/// A conversation: the opening, which always stays, and what followed.
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

    /// Exchanges the opening, when the model turns out to take no tools.
    pub(super) fn reopen(&mut self, opening: impl IntoIterator<Item = Message>) {
        let rest = self.messages.split_off(self.opening);
        *self = Self::new(opening, rest);
    }

    /// Drops the contents of all but the newest tool results; says whether that made room.
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

    /// Where the part to keep begins: whole turns from the end, within `budget` tokens, never a result without its call.
    /// `None` when there is nothing that could be summarised away.
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

    /// The part before `kept_from`, with the wish to have it summarised.
    pub(super) fn summary_request(&self, kept_from: usize) -> Vec<Message> {
        let mut messages = self.messages[..kept_from].to_vec();
        messages.push(Message::User(prompt::SUMMARISE.to_owned()));
        messages
    }

    /// Puts `summary` in place of everything before `kept_from`; returns how many messages were kept.
    pub(super) fn replace_with_summary(&mut self, kept_from: usize, summary: &str) -> usize {
        let kept = self.messages.split_off(kept_from);
        self.messages.truncate(self.opening);
        self.messages.push(Message::User(prompt::summary_so_far(summary)));
        let count = kept.len();
        self.messages.extend(kept);
        count
    }

    /// About how many tokens the part has that could be summarised.
    pub(super) fn past_tokens(&self) -> u64 {
        self.messages.iter().skip(self.opening).map(message_tokens).sum()
    }

    /// About how many tokens the conversation has.
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

/// A cautious guess: three bytes a token, a little more than most tokenizers need for prose and code.
pub fn estimate_tokens(bytes: usize) -> u64 {
    (bytes as u64).div_ceil(3)
}

/// The messages a transcript stands for, without the opening.
///
/// A call without a result was under way when the run was interrupted. It is answered truthfully, so that it is never run
/// twice by itself and never sent without a result.
pub fn rebuild<'a>(events: impl IntoIterator<Item = &'a Event>) -> Vec<Message> {
    let mut messages: Vec<Message> = Vec::new();
    let mut open: Vec<ToolCall> = Vec::new();
    for event in events {
        match &event.body {
            EventBody::Assistant { content, tool_calls, .. } => {
                answer_open(&mut messages, &mut open);
                messages
                    .push(Message::Assistant { content: content.clone(), tool_calls: tool_calls.clone() });
                open.clone_from(tool_calls);
            }
            EventBody::ToolResult { call_id, name, content, is_error } => {
                if let Some(at) = open.iter().position(|call| call.id == *call_id) {
                    open.remove(at);
                    messages.push(Message::Tool {
                        call_id: call_id.clone(),
                        name: name.clone(),
                        content: content.clone(),
                        is_error: *is_error,
                    });
                }
            }
            EventBody::Nudge { content } => {
                answer_open(&mut messages, &mut open);
                messages.push(Message::User(content.clone()));
            }
            EventBody::Compacted { summary, kept } => {
                let kept_from = messages.len().saturating_sub(*kept);
                let kept = messages.split_off(kept_from);
                messages = vec![Message::User(prompt::summary_so_far(summary))];
                messages.extend(kept);
            }
            EventBody::Status { .. } | EventBody::Note { .. } | EventBody::Error { .. } => {}
        }
    }
    answer_open(&mut messages, &mut open);
    messages
}

fn answer_open(messages: &mut Vec<Message>, open: &mut Vec<ToolCall>) {
    for call in open.drain(..) {
        messages.push(Message::Tool {
            call_id: call.id,
            name: call.name,
            content: prompt::UNKNOWN_RESULT.to_owned(),
            is_error: true,
        });
    }
}
