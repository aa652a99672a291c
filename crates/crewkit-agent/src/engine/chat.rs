//! Chat conversations: stored transcripts that the turn loop answers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use crewkit_core::Timestamp;
use crewkit_core::run::StopReason;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Engine, Error};
use crate::contract::{
    Assignment, Caps, Durability, End, Goal, Transcript, TranscriptError, carry_out, rebuild,
};
use crate::event::{EventBody, PREVIEW_CHARS, ToolCall, Usage, cut};
use crate::sync::lock;
use crate::tools::RunTools;

/// Longest name of a conversation.
const NAME_BYTES: usize = 200;

/// Locks of the conversations that are being answered.
#[derive(Debug, Default)]
pub(super) struct Chats {
    locks: Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>,
}

impl Chats {
    /// Returns the lock of a conversation; one message is answered at a time.
    fn lock_of(&self, conversation: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = lock(&self.locks);
        locks.retain(|_, lock| lock.strong_count() > 0);
        if let Some(lock) = locks.get(conversation).and_then(Weak::upgrade) {
            return lock;
        }
        let new = Arc::default();
        locks.insert(conversation.to_owned(), Arc::downgrade(&new));
        new
    }
}

/// A frame sent to a chat client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ChatFrame {
    /// A message of the conversation.
    Message {
        /// `user`, `assistant`, `tool` or `system`.
        role: &'static str,
        /// The text.
        content: String,
        /// A tool call on one line, for role `tool`.
        tool_call: Option<String>,
        /// When it was said.
        timestamp: Timestamp,
    },
    /// The model is being asked.
    Loading {
        /// In words.
        content: String,
    },
    /// It has answered.
    LoadingDone,
    /// The model's reasoning.
    Reasoning {
        /// The text.
        content: String,
    },
    /// A remark.
    System {
        /// The remark.
        content: String,
    },
    /// The message could not be answered.
    Error {
        /// Why.
        content: String,
    },
}

impl Engine {
    /// Returns the messages of a conversation.
    pub async fn chat_history(&self, conversation: &str) -> Result<Vec<ChatFrame>, Error> {
        let entries = self.chat_entries(conversation).await?;
        Ok(entries.iter().flat_map(|(at, entry)| frames_of(entry, *at)).collect())
    }

    async fn chat_entries(&self, conversation: &str) -> Result<Vec<(Timestamp, EventBody)>, Error> {
        if conversation.is_empty() || conversation.len() > NAME_BYTES {
            let what = format!("must have 1 to {NAME_BYTES} bytes");
            return Err(Error::Argument { name: "conversation_id", what });
        }
        let lines = self.shared.store.reader().chat(conversation).await?;
        Ok(lines.into_iter().filter_map(|line| Some((line.at, parse_line(&line.body)?))).collect())
    }

    /// Adds a message to a conversation and lets the model answer it. `send` receives the frames for the client, in order.
    pub async fn chat_say(
        &self,
        conversation: &str,
        content: String,
        send: &(dyn Fn(ChatFrame) + Send + Sync),
    ) -> Result<(), Error> {
        if content.trim().is_empty() {
            return Err(Error::Argument { name: "content", what: "is blank".to_owned() });
        }
        self.check_length(&content)?;
        let (model, limits) = (self.asker.default_model(), &self.shared.options.limits);
        let lock = self.shared.chats.lock_of(conversation);
        let _one_at_a_time = lock.lock().await;
        let mut entries = self.chat_entries(conversation).await?;
        let transcript = ChatTranscript { engine: self, conversation, send };
        let message = EventBody::User { content };
        transcript.write(&message).await?;
        entries.push((Timestamp::default(), message));
        self.shared.store.forget_chats(limits.chat_conversations).await?;
        send(ChatFrame::Loading { content: "Thinking...".to_owned() });
        let toolbox = RunTools::new(None, Arc::new(self.asker.servers.clone()), limits);
        let end = carry_out(Assignment {
            goal: Goal::Answer,
            caps: Caps {
                turns: limits.chat_tool_rounds + 1,
                tokens: 0,
                time: Duration::ZERO,
                ..Caps::of(limits)
            },
            used: Usage::default(),
            past: rebuild(entries.iter().map(|(_, entry)| entry)),
            model: &*model,
            toolbox: &toolbox,
            transcript: &transcript,
            halt: self.shared.shutdown.clone(),
            on_text: &|_| {},
            elapsed: &|| Duration::ZERO,
            max_result: usize::try_from(limits.tool_result_bytes).unwrap_or(usize::MAX),
            parallel: usize::try_from(limits.tool_parallel_calls).unwrap_or(usize::MAX),
        });
        let content = match end.boxed().await {
            End::Completed { .. } => return Ok(()),
            End::Stopped { reason: StopReason::TurnLimit, .. } => {
                let rounds = limits.chat_tool_rounds;
                format!("The model called tools {rounds} times without an answer.")
            }
            End::Stopped { error, .. } => error,
            End::Halted => "The server is stopping.".to_owned(),
        };
        send(ChatFrame::LoadingDone);
        send(ChatFrame::Error { content });
        Ok(())
    }
}

/// Stores the entries of a conversation and shows them to its client.
struct ChatTranscript<'a> {
    engine: &'a Engine,
    conversation: &'a str,
    send: &'a (dyn Fn(ChatFrame) + Send + Sync),
}

impl ChatTranscript<'_> {
    async fn write(&self, entry: &EventBody) -> Result<(), Error> {
        let shared = &self.engine.shared;
        let at = (shared.options.clock)();
        match entry {
            EventBody::Note { content } => {
                (self.send)(ChatFrame::System { content: content.clone() });
                return Ok(());
            }
            EventBody::Assistant { reasoning, tool_calls, .. } => {
                if let Some(content) = reasoning.clone() {
                    (self.send)(ChatFrame::Reasoning { content });
                }
                if tool_calls.is_empty() {
                    (self.send)(ChatFrame::LoadingDone);
                }
            }
            _ => {}
        }
        let body = serde_json::to_string(entry)
            .map_err(|bad| Error::Argument { name: "content", what: bad.to_string() })?;
        let keep = shared.options.limits.chat_messages;
        shared.store.chat(self.conversation.into(), at, body, keep).await?;
        frames_of(entry, at).into_iter().for_each(self.send);
        Ok(())
    }
}

impl Transcript for ChatTranscript<'_> {
    fn append(&self, entries: Vec<EventBody>, _: Durability) -> BoxFuture<'_, Result<(), TranscriptError>> {
        async move {
            for entry in &entries {
                self.write(entry).await.map_err(|error| TranscriptError::Failed(error.to_string()))?;
            }
            Ok(())
        }
        .boxed()
    }
}

/// A line of a conversation as it is stored.
#[derive(Deserialize)]
#[serde(untagged)]
enum StoredLine {
    Entry(EventBody),
    Role(RoleLine),
}

/// A line as version 0.1.0 stored it.
#[derive(Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
enum RoleLine {
    User { content: String },
    Assistant { content: String, calls: Vec<ToolCall> },
    Tool { call_id: String, name: String, content: String, is_error: bool },
}

/// Returns `None` if the line cannot be read.
fn parse_line(body: &str) -> Option<EventBody> {
    Some(match serde_json::from_str(body).ok()? {
        StoredLine::Entry(entry) => entry,
        StoredLine::Role(RoleLine::User { content }) => EventBody::User { content },
        StoredLine::Role(RoleLine::Assistant { content, calls }) => {
            EventBody::Assistant { content, reasoning: None, tool_calls: calls, usage: None }
        }
        StoredLine::Role(RoleLine::Tool { call_id, name, content, is_error }) => {
            EventBody::ToolResult { call_id, name, content, is_error }
        }
    })
}

/// Returns the messages that an entry is shown as, live and replayed.
fn frames_of(entry: &EventBody, timestamp: Timestamp) -> Vec<ChatFrame> {
    let frame = |role, content: String| ChatFrame::Message { role, content, tool_call: None, timestamp };
    match entry {
        EventBody::User { content } => vec![frame("user", content.clone())],
        EventBody::Assistant { content, tool_calls, .. } => {
            let is_shown = !content.trim().is_empty() || tool_calls.is_empty();
            let words = is_shown.then(|| frame("assistant", content.clone()));
            let tools = tool_calls.iter().map(|call| ChatFrame::Message {
                role: "tool",
                content: String::new(),
                tool_call: Some(call.line()),
                timestamp,
            });
            words.into_iter().chain(tools).collect()
        }
        EventBody::ToolResult { content, .. } => {
            vec![frame("system", format!("→ {}", cut(content, PREVIEW_CHARS)))]
        }
        EventBody::Nudge { content } => vec![frame("system", content.clone())],
        EventBody::Compacted { .. } => {
            vec![frame("system", "older turns were summarised to make room".to_owned())]
        }
        EventBody::Status { .. } | EventBody::Note { .. } | EventBody::Error { .. } => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversations_of_the_first_version_can_be_read() {
        let call = ToolCall { id: "call_2_0".into(), name: "look".into(), arguments: "{}".into() };
        for (line, expected) in [
            (r#"{"role":"user","content":"hi"}"#, Some(EventBody::User { content: "hi".into() })),
            (
                r#"{"role":"assistant","content":"","calls":[{"id":"call_2_0","name":"look","arguments":"{}"}]}"#,
                Some(EventBody::Assistant {
                    content: String::new(),
                    reasoning: None,
                    tool_calls: vec![call],
                    usage: None,
                }),
            ),
            (
                r#"{"role":"tool","call_id":"call_2_0","name":"look","content":"x","is_error":true}"#,
                Some(EventBody::ToolResult {
                    call_id: "call_2_0".into(),
                    name: "look".into(),
                    content: "x".into(),
                    is_error: true,
                }),
            ),
            (r#"{"type":"user","content":"now"}"#, Some(EventBody::User { content: "now".into() })),
            (r#"{"role":"nobody"}"#, None),
        ] {
            assert_eq!(parse_line(line), expected, "{line}");
        }
    }
}
