//! `/ws/agent/{agent_id}`: a view of one agent, with its controls.
//!
//! Every viewer gets the replay and the live output, whoever started the run. A frame that makes no sense is answered and
//! the socket stays open.

use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Extension, Path, State};
use axum::response::Response;
use crewkit_agent::engine::{Subscription, output_rows};
use crewkit_agent::{Engine, Error};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};

use super::{AgentRoutes, Refusal};
use crate::http::Connection;

/// Room for a frame beyond the longest contract it may carry, escapes included.
const FRAME_OVERHEAD: u64 = 64 * 1024;

pub(super) async fn connect(
    State(state): State<AgentRoutes>,
    Extension(connection): Extension<Connection>,
    Path(id): Path<String>,
    upgrade: WebSocketUpgrade,
) -> Result<Response, Refusal> {
    let engine = state.engine().await?.clone();
    let controls = Controls { start: state.shows("agent_start"), stop: state.shows("agent_stop") };
    let most = usize::try_from(state.limits.agent_contract_bytes * 2 + FRAME_OVERHEAD).unwrap_or(usize::MAX);
    Ok(upgrade
        .max_message_size(most)
        .on_upgrade(move |socket| view(engine, id, controls, socket, connection)))
}

/// Which controls this server shows.
#[derive(Clone, Copy)]
struct Controls {
    start: bool,
    stop: bool,
}

async fn view(engine: Engine, id: String, controls: Controls, socket: WebSocket, connection: Connection) {
    let (mut sender, mut receiver) = socket.split();
    let (record, mut subscription) = match (engine.record(&id), engine.subscribe(&id, 0)) {
        (Ok(record), Ok(subscription)) => (record, subscription),
        (Err(error), _) | (_, Err(error)) => {
            let _ = sender.send(text(&failed(&error))).await;
            let _ = sender.send(Message::Close(None)).await;
            return;
        }
    };
    let init = json!({"type": "init", "id": record.id, "status": record.state.status(), "contract": &*record.contract});
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
                Some(Ok(Message::Text(wish))) => vec![control(&engine, &id, controls, &wish).await],
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

/// Does what a frame asks for; the answer is null where the output itself tells.
async fn control(engine: &Engine, id: &str, controls: Controls, frame: &str) -> Value {
    let Ok(frame) = serde_json::from_str::<Value>(frame) else {
        return said("error", "the frame is not JSON");
    };
    let done = match frame["type"].as_str() {
        Some(hidden @ ("set_contract" | "start" | "restart")) if !controls.start => {
            return said("error", &format!("This server does not offer `{hidden}`"));
        }
        Some("stop") if !controls.stop => return said("error", "This server does not offer `stop`"),
        Some("set_contract") => match frame["contract"].as_str() {
            Some(contract) => {
                let set = engine.set_contract(id, contract.to_owned()).await;
                set.map(|record| json!({"type": "contract_set", "contract": &*record.contract}))
            }
            None => return said("error", "set_contract needs a text `contract`"),
        },
        Some("start") => engine.start_ready(id).await.map(|_| Value::Null),
        Some("stop") => engine.stop(id).await.map(|_| json!({"type": "stop_requested"})),
        Some("restart") => engine.restart(id).await.map(|_| Value::Null),
        Some(other) => {
            let other: String = other.chars().take(40).collect();
            return said(
                "error",
                &format!("unknown type `{other}`; known are set_contract, start, stop and restart"),
            );
        }
        None => return said("error", "the frame has no `type`"),
    };
    done.unwrap_or_else(|error| failed(&error))
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
