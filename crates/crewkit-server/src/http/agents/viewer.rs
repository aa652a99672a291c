//! `/ws/agent/{agent_id}`: a view of one agent, with its controls.
//!
//! Every viewer gets the replay and the live output, whoever started the run. A frame that makes no sense is answered and
//! the socket stays open.

use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Extension, Path};
use axum::response::{IntoResponse, Response};
use crewkit_agent::engine::{Subscription, output_rows};
use crewkit_agent::{Engine, Error};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};

use super::engine;
use crate::http::Connection;
use crate::http::context::{RequestContext, argument};

/// Room for a frame beyond the longest contract it may carry, escapes included.
const FRAME_OVERHEAD: u64 = 64 * 1024;

pub(super) async fn connect(
    context: RequestContext,
    Extension(connection): Extension<Connection>,
    Path(id): Path<String>,
    upgrade: WebSocketUpgrade,
) -> Result<Response, Response> {
    context.permit("run_show").map_err(IntoResponse::into_response)?;
    let engine = engine(&context).await?.clone();
    let most = context.app.limits.agent_contract_bytes * 2 + FRAME_OVERHEAD;
    Ok(upgrade
        .max_message_size(usize::try_from(most).unwrap_or(usize::MAX))
        .on_upgrade(move |socket| view(engine, id, context, socket, connection)))
}

async fn view(
    engine: Engine,
    id: String,
    context: RequestContext,
    socket: WebSocket,
    connection: Connection,
) {
    let (mut sender, mut receiver) = socket.split();
    let opened = async {
        let record = engine.record(&id)?;
        let contract = engine.contract(&record.id).await?;
        Ok::<_, Error>((record, contract, engine.subscribe(&id, 0)?))
    };
    let (record, contract, mut subscription) = match opened.await {
        Ok(opened) => opened,
        Err(error) => {
            let _ = sender.send(text(&failed(&error))).await;
            let _ = sender.send(Message::Close(None)).await;
            return;
        }
    };
    let init =
        json!({"type": "init", "id": record.id, "status": record.state.status(), "contract": contract});
    if sender.send(text(&init)).await.is_err() {
        return;
    }
    loop {
        let frames = tokio::select! {
            () = connection.stopped() => break,
            frames = next_rows(&mut subscription) => match frames {
                Some(frames) => frames,
                None => break,
            },
            message = receiver.next() => match message {
                Some(Ok(Message::Text(wish))) => vec![control(&context, &id, &wish).await],
                Some(Ok(Message::Binary(_))) => vec![said("error", "frames must be text")],
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => continue,
                Some(Ok(Message::Close(_)) | Err(_)) | None => break,
            },
        };
        for frame in frames.iter().filter(|frame| !frame.is_null()) {
            if sender.send(text(frame)).await.is_err() {
                return;
            }
        }
    }
    let _ = sender.send(Message::Close(None)).await;
}

async fn next_rows(subscription: &mut Subscription) -> Option<Vec<Value>> {
    let event = subscription.next().await.ok()??;
    let rows = output_rows(&event).into_iter().map(|row| serde_json::to_value(row).unwrap_or_default());
    Some(rows.collect())
}

/// Runs the operation that a frame asks for; the answer is null where the output itself tells.
async fn control(context: &RequestContext, id: &str, frame: &str) -> Value {
    let Ok(frame) = serde_json::from_str::<Value>(frame) else {
        return said("error", "the frame is not JSON");
    };
    let Some(kind) = frame["type"].as_str() else { return said("error", "the frame has no `type`") };
    let (operation, arguments, answer) = match kind {
        "set_contract" => match frame["contract"].as_str() {
            Some(contract) => {
                let mut arguments = argument("run_id", id);
                arguments.insert("contract".to_owned(), contract.into());
                ("run_set_contract", arguments, json!({"type": "contract_set", "contract": contract}))
            }
            None => return said("error", "set_contract needs a text `contract`"),
        },
        "start" => ("run_start", argument("run_id", id), Value::Null),
        "stop" => ("agent_stop", argument("agent_id", id), json!({"type": "stop_requested"})),
        "restart" => ("run_restart", argument("run_id", id), Value::Null),
        other => {
            let other: String = other.chars().take(40).collect();
            let text = format!("unknown type `{other}`; use set_contract, start, stop or restart");
            return said("error", &text);
        }
    };
    match context.run(operation, arguments).await {
        Ok(answered) if answered.failed() => {
            said("error", answered.body["error"].as_str().unwrap_or("the operation failed"))
        }
        Ok(_) => answer,
        Err(_) => said("error", &format!("This server does not offer `{kind}`")),
    }
}

fn failed(error: &Error) -> Value {
    said("error", &error.to_string())
}

fn said(kind: &str, content: &str) -> Value {
    json!({"type": kind, "content": content, "tool_call": null})
}

fn text(frame: &Value) -> Message {
    Message::Text(frame.to_string().into())
}
