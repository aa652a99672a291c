//! Conversations with the model: words and tools, no contract.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crewkit_core::Timestamp;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::view::{call_line, cut};
use super::{Engine, Error};
use crate::contract::{ToolAnswer, Toolbox};
use crate::event::ToolCall;
use crate::model::{Ask, AskError, Message, Model, Reply};
use crate::sync::lock;
use crate::tools::RunTools;

/// Longest name of a conversation.
const NAME_BYTES: usize = 200;
const DUTIES: &str = "You are a helpful assistant. Use the tools you are offered when they help.";

/// Conversations in which somebody is being answered right now.
#[derive(Debug, Default)]
pub(super) struct Chats {
    turns: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

/// One message of a conversation as it is kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
enum Kept {
    User { content: String },
    Assistant { content: String, calls: Vec<ToolCall> },
    Tool { call_id: String, name: String, content: String, is_error: bool },
}

/// What a chat client is sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
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
    /// What it thought aloud.
    Reasoning {
        /// The thoughts.
        content: String,
    },
    /// A remark.
    System {
        /// The remark.
        content: String,
    },
    /// It went wrong; the conversation is as it was before.
    Error {
        /// What.
        content: String,
    },
}

impl Engine {
    /// What was said so far.
    pub async fn chat_history(&self, conversation: &str) -> Result<Vec<ChatFrame>, Error> {
        check_name(conversation)?;
        let lines = self.shared.store.reader().chat(conversation).await?;
        let frames = lines.iter().flat_map(|line| match serde_json::from_str::<Kept>(&line.body) {
            Ok(kept) => frames_of(&kept, line.at),
            Err(_) => Vec::new(),
        });
        Ok(frames.collect())
    }

    /// Says something and lets the model answer; `send` hears everything a client is shown, in order.
    pub async fn chat_say(
        &self,
        conversation: &str,
        content: String,
        send: &(dyn Fn(ChatFrame) + Send + Sync),
    ) -> Result<(), Error> {
        check_name(conversation)?;
        if content.trim().is_empty() {
            return Err(Error::Argument { name: "content", what: "is blank".to_owned() });
        }
        self.check_length(&content)?;
        let turn = Arc::clone(lock(&self.shared.chats.turns).entry(conversation.to_owned()).or_default());
        let one_at_a_time = turn.lock().await;
        let mut messages = vec![Message::System(DUTIES.to_owned())];
        for line in self.shared.store.reader().chat(conversation).await? {
            messages.extend(serde_json::from_str::<Kept>(&line.body).ok().map(message_of));
        }
        self.keep(conversation, Kept::User { content: content.clone() }, &mut messages, send).await?;
        self.shared.store.forget_chats(self.shared.options.limits.chat_conversations).await?;
        send(ChatFrame::Loading { content: "Thinking...".to_owned() });
        let answered = self.answer(conversation, &mut messages, send).await;
        if let Ok(Err(failed)) = &answered {
            send(ChatFrame::LoadingDone);
            send(ChatFrame::Error { content: failed.to_string() });
        }
        drop(one_at_a_time);
        let mut turns = lock(&self.shared.chats.turns);
        if Arc::strong_count(&turn) == 2 {
            turns.remove(conversation);
        }
        answered.map(drop)
    }

    /// Asks until the model answers in words. The outer error is the store's, the inner one the model's.
    async fn answer(
        &self,
        conversation: &str,
        messages: &mut Vec<Message>,
        send: &(dyn Fn(ChatFrame) + Send + Sync),
    ) -> Result<Result<(), AskError>, Error> {
        let model = self.model(None)?;
        let limits = &self.shared.options.limits;
        let toolbox = RunTools::new(None, Arc::new(self.shared.servers.clone()), limits);
        for _ in 0..=limits.chat_tool_rounds {
            let reply = match self.ask(&*model, messages, &toolbox, send).await {
                Ok(reply) => reply,
                Err(failed) => return Ok(Err(failed)),
            };
            if let Some(thoughts) = &reply.reasoning {
                send(ChatFrame::Reasoning { content: thoughts.clone() });
            }
            let calls: Vec<ToolCall> = reply
                .calls
                .iter()
                .enumerate()
                .map(|(n, call)| ToolCall {
                    id: format!("call_{}_{n}", messages.len()),
                    name: call.name.clone(),
                    arguments: call.arguments.clone(),
                })
                .collect();
            if calls.is_empty() {
                send(ChatFrame::LoadingDone);
            }
            let kept = Kept::Assistant { content: reply.content, calls: calls.clone() };
            self.keep(conversation, kept, messages, send).await?;
            if calls.is_empty() {
                return Ok(Ok(()));
            }
            for call in calls {
                let answer = match serde_json::from_str(&call.arguments) {
                    Ok(arguments) => toolbox.call(&call, arguments).await,
                    Err(bad) => ToolAnswer::error(format!("the arguments are not valid JSON: {bad}")),
                };
                let room = usize::try_from(limits.tool_result_bytes).unwrap_or(usize::MAX);
                let content = crate::contract::cut_middle(answer.content, room);
                let kept =
                    Kept::Tool { call_id: call.id, name: call.name, content, is_error: answer.is_error };
                self.keep(conversation, kept, messages, send).await?;
            }
        }
        let rounds = limits.chat_tool_rounds;
        Ok(Err(AskError::Failed(format!("the model used tools {rounds} times without an answer"))))
    }

    async fn ask(
        &self,
        model: &dyn Model,
        messages: &[Message],
        toolbox: &RunTools,
        send: &(dyn Fn(ChatFrame) + Send + Sync),
    ) -> Result<Reply, AskError> {
        let halt: CancellationToken = self.shared.shutdown.clone();
        let tools = if model.takes_tools() { toolbox.tools() } else { Vec::new() };
        let ask = |tools| Ask { messages, tools, halt: &halt, speaking: &|_| {} };
        match model.ask(ask(&tools)).await {
            Err(AskError::ToolsRefused) => {
                send(ChatFrame::System {
                    content: "The model takes no tools; it is asked without.".to_owned(),
                });
                model.ask(ask(&[])).await
            }
            other => other,
        }
    }

    async fn keep(
        &self,
        conversation: &str,
        kept: Kept,
        messages: &mut Vec<Message>,
        send: &(dyn Fn(ChatFrame) + Send + Sync),
    ) -> Result<(), Error> {
        let at = (self.shared.options.clock)();
        let body = serde_json::to_string(&kept)
            .map_err(|bad| Error::Argument { name: "content", what: bad.to_string() })?;
        let keep = self.shared.options.limits.chat_messages;
        self.shared.store.chat(conversation.into(), at, body, keep).await?;
        frames_of(&kept, at).into_iter().for_each(send);
        messages.push(message_of(kept));
        Ok(())
    }
}

fn check_name(conversation: &str) -> Result<(), Error> {
    if conversation.is_empty() || conversation.len() > NAME_BYTES {
        return Err(Error::Argument {
            name: "conversation_id",
            what: format!("must have 1 to {NAME_BYTES} bytes"),
        });
    }
    Ok(())
}

fn message_of(kept: Kept) -> Message {
    match kept {
        Kept::User { content } => Message::User(content),
        Kept::Assistant { content, calls } => Message::Assistant { content, tool_calls: calls },
        Kept::Tool { call_id, name, content, is_error } => Message::Tool { call_id, name, content, is_error },
    }
}

/// Live and replayed messages are made here, so that they never differ.
fn frames_of(kept: &Kept, timestamp: Timestamp) -> Vec<ChatFrame> {
    let frame = |role, content: &str| ChatFrame::Message {
        role,
        content: content.to_owned(),
        tool_call: None,
        timestamp,
    };
    match kept {
        Kept::User { content } => vec![frame("user", content)],
        Kept::Assistant { content, calls } => {
            let words = (!content.trim().is_empty() || calls.is_empty()).then(|| frame("assistant", content));
            let tools = calls.iter().map(|call| ChatFrame::Message {
                role: "tool",
                content: String::new(),
                tool_call: Some(call_line(call)),
                timestamp,
            });
            words.into_iter().chain(tools).collect()
        }
        Kept::Tool { content, .. } => vec![frame("system", &format!("→ {}", cut(content, 200)))],
    }
}
