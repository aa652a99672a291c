//! Conversations with the model. Over the socket their frames are seen as they come.

use crewkit_agent::Error;
use crewkit_agent::engine::ChatFrame;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::runs::{engine, row};
use super::{Call, Doors, Hints, Operation, ProgressUpdate};

/// Input of `chat_show`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct ShowChat {
    /// Name of the conversation; one that is new has no messages.
    pub conversation_id: String,
}

/// Output of `chat_show`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ChatShown {
    /// Name of the conversation.
    conversation_id: String,
    /// The model that answers.
    model: String,
    /// What was said, oldest first.
    messages: Vec<ChatFrame>,
}

/// Input of `chat_send`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct SendChat {
    /// Name of the conversation.
    pub conversation_id: String,
    /// What to say.
    pub content: String,
}

/// Output of `chat_send`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ChatAnswered {
    /// Name of the conversation.
    conversation_id: String,
    /// What was shown from the message on, its answer included.
    frames: Vec<ChatFrame>,
}

/// The rows of the table.
pub fn operations() -> Vec<Operation> {
    const START: &[&str] = &["agent_start"];
    vec![
        row(
            "chat_show",
            "Show a conversation",
            "Show the messages of a conversation with the model.",
            (Hints::READ, Doors::shown_with(START)),
            show,
        ),
        row(
            "chat_send",
            "Say something",
            "Add a message to a conversation with the model and wait for the answer, which is kept in any case.",
            (Hints::ADD.remote(), Doors::shown_with(START)),
            send,
        ),
    ]
}

async fn show(call: Call, input: ShowChat) -> Result<ChatShown, Error> {
    let engine = engine(&call).await?;
    let messages = engine.chat_history(&input.conversation_id).await?;
    let (model, _) = engine.default_model();
    Ok(ChatShown { conversation_id: input.conversation_id, model, messages })
}

/// Reports each frame as a part of the answer, in order.
async fn send(call: Call, input: SendChat) -> Result<ChatAnswered, Error> {
    let SendChat { conversation_id, content } = input;
    let frames = std::sync::Mutex::new(Vec::new());
    let take = |frame: ChatFrame| {
        let mut frames = frames.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let part = serde_json::to_value(&frame).ok();
        frames.push(frame);
        #[expect(clippy::cast_precision_loss, reason = "nobody counts that many frames")]
        let done = frames.len() as f64;
        call.progress.report(ProgressUpdate { part, ..ProgressUpdate::step(done, None, None) });
    };
    engine(&call).await?.chat_say(&conversation_id, content, &take).await?;
    let frames = frames.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    Ok(ChatAnswered { conversation_id, frames })
}
