//! `/ws/{conversation_id}`: a conversation with the model.

use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Extension, Path};
use axum::response::{IntoResponse, Response};
use crewkit_agent::Engine;
use crewkit_agent::engine::ChatFrame;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{engine, refused};
use crate::http::Connection;
use crate::http::context::RequestContext;

/// Messages a client may have waiting while the model is being asked.
const WAITING: usize = 16;

pub(super) async fn connect(
    context: RequestContext,
    Extension(connection): Extension<Connection>,
    Path(conversation): Path<String>,
    upgrade: WebSocketUpgrade,
) -> Result<Response, Response> {
    context.permit("agent_start").map_err(IntoResponse::into_response)?;
    let engine = engine(&context).await?.clone();
    // Refuses a name that cannot be before the socket is open.
    engine.chat_history(&conversation).await.map_err(refused)?;
    let most = usize::try_from(context.app.limits.agent_contract_bytes * 2).unwrap_or(usize::MAX);
    Ok(upgrade
        .max_message_size(most)
        .on_upgrade(move |socket| converse(engine, conversation, socket, connection)))
}

async fn converse(engine: Engine, conversation: String, socket: WebSocket, connection: Connection) {
    let (mut sender, mut receiver) = socket.split();
    let (frames, mut outgoing) = mpsc::unbounded_channel::<Value>();
    let (says, to_say) = mpsc::channel::<String>(WAITING);
    let (model, _) = engine.default_model();
    let greeting = json!({"type": "system", "content": format!("Connected to {model}"), "conversation_id": conversation});
    let _ = frames.send(greeting);
    for frame in engine.chat_history(&conversation).await.unwrap_or_default() {
        let _ = frames.send(value(&frame));
    }
    let answering = tokio::spawn(answer(engine, conversation, to_say, frames.clone()));
    loop {
        tokio::select! {
            () = connection.stopped() => break,
            frame = outgoing.recv() => {
                let Some(frame) = frame else { break };
                if sender.send(Message::Text(frame.to_string().into())).await.is_err() {
                    break;
                }
            }
            message = receiver.next() => match message {
                Some(Ok(Message::Text(text))) => {
                    if let Err(problem) = take(&text, &says) {
                        let _ = frames.send(json!({"type": "error", "content": problem}));
                    }
                }
                Some(Ok(Message::Binary(_))) => {
                    let _ = frames.send(json!({"type": "error", "content": "frames must be text"}));
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(Message::Close(_)) | Err(_)) | None => break,
            },
        }
    }
    // What was asked is answered to its end and kept, also when nobody looks any more.
    drop(says);
    drop(answering);
    let _ = sender.send(Message::Close(None)).await;
}

/// Reads a frame and puts what is said in line.
fn take(text: &str, says: &mpsc::Sender<String>) -> Result<(), String> {
    let frame: Value = serde_json::from_str(text).map_err(|_| "the frame is not JSON".to_owned())?;
    match frame["type"].as_str() {
        Some("message") => {}
        Some(other) => return Err(format!("unknown type `{}`", other.chars().take(40).collect::<String>())),
        None => return Err("the frame has no `type`".to_owned()),
    }
    let content = frame["content"].as_str().ok_or_else(|| "a message needs a text `content`".to_owned())?;
    says.try_send(content.to_owned()).map_err(|_| format!("more than {WAITING} messages are waiting"))
}

async fn answer(
    engine: Engine,
    conversation: String,
    mut to_say: mpsc::Receiver<String>,
    frames: mpsc::UnboundedSender<Value>,
) {
    while let Some(content) = to_say.recv().await {
        let send = |frame: ChatFrame| drop(frames.send(value(&frame)));
        if let Err(error) = engine.chat_say(&conversation, content, &send).await {
            let _ = frames.send(json!({"type": "error", "content": error.to_string()}));
        }
    }
}

fn value(frame: &ChatFrame) -> Value {
    serde_json::to_value(frame).unwrap_or_default()
}
