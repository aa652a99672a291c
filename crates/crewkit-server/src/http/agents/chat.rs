//! `/ws/{conversation_id}`: a conversation with the model.

use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Extension, Path};
use axum::response::{IntoResponse, Response};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::http::Connection;
use crate::http::context::{RequestContext, argument, respond};
use crate::ops::{Progress, ProgressUpdate};

/// Messages a client may have waiting while the model is being asked.
const WAITING: usize = 16;

pub(super) async fn connect(
    context: RequestContext,
    Extension(connection): Extension<Connection>,
    Path(conversation): Path<String>,
    upgrade: WebSocketUpgrade,
) -> Result<Response, Response> {
    context.permit("chat_send").map_err(IntoResponse::into_response)?;
    // A name that cannot be is refused before the socket is open.
    let shown = context.run("chat_show", argument("conversation_id", conversation.as_str())).await;
    let shown = shown.map_err(IntoResponse::into_response)?;
    if shown.failed() {
        return Err(respond(shown));
    }
    let most = usize::try_from(context.app.limits.agent_contract_bytes * 2).unwrap_or(usize::MAX);
    Ok(upgrade
        .max_message_size(most)
        .on_upgrade(move |socket| converse(context, conversation, shown.body, socket, connection)))
}

async fn converse(
    context: RequestContext,
    conversation: String,
    mut shown: Value,
    socket: WebSocket,
    connection: Connection,
) {
    let (mut sender, mut receiver) = socket.split();
    let (frames, mut outgoing) = mpsc::unbounded_channel::<Value>();
    let (says, to_say) = mpsc::channel::<String>(WAITING);
    let model = shown["model"].as_str().unwrap_or_default();
    let greeting = json!({"type": "system", "content": format!("Connected to {model}"), "conversation_id": conversation});
    let _ = frames.send(greeting);
    if let Value::Array(messages) = shown["messages"].take() {
        for message in messages {
            drop(frames.send(message));
        }
    }
    let answering = tokio::spawn(answer(context, conversation, to_say, frames.clone()));
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

/// Has one message answered after the other, and shows the frames of each as they come.
async fn answer(
    context: RequestContext,
    conversation: String,
    mut to_say: mpsc::Receiver<String>,
    frames: mpsc::UnboundedSender<Value>,
) {
    while let Some(content) = to_say.recv().await {
        let mut arguments = argument("conversation_id", conversation.as_str());
        arguments.insert("content".to_owned(), content.into());
        let (reports, mut reported) = mpsc::unbounded_channel::<ProgressUpdate>();
        let show = async {
            while let Some(update) = reported.recv().await {
                update.part.into_iter().for_each(|part| drop(frames.send(part)));
            }
        };
        let (answer, ()) =
            tokio::join!(context.run_with("chat_send", arguments, Progress::to(reports)), show);
        let problem = match answer {
            Ok(answer) if answer.failed() => answer.body["error"].as_str().map(ToOwned::to_owned),
            Ok(_) => None,
            Err(problem) => Some(problem.message),
        };
        if let Some(content) = problem {
            let _ = frames.send(json!({"type": "error", "content": content}));
        }
    }
}
