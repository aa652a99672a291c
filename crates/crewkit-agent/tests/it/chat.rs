//! Conversations: kept, replayed as they were shown, with tools.

use std::sync::Mutex;

use crewkit_agent::Engine;
use crewkit_agent::engine::ChatFrame;
use crewkit_agent::tools::mcp::{ServerConfig, Transport};
use crewkit_testkit::bins;
use crewkit_testkit::model::Turn;
use serde_json::json;

use crate::support::{World, options};

async fn say(engine: &Engine, text: &str) -> Vec<ChatFrame> {
    let frames = Mutex::new(Vec::new());
    engine.chat_say("c", text.to_owned(), &|frame| frames.lock().unwrap().push(frame)).await.unwrap();
    frames.into_inner().unwrap()
}

fn tool_server() -> ServerConfig {
    let command = bins::fake("fake-mcp").to_string_lossy().into_owned();
    let transport = Transport::Stdio { command, args: vec![], env: [].into(), cwd: None };
    ServerConfig { name: "s".into(), transport, per_agent: false }
}

fn outline(frames: &[ChatFrame]) -> Vec<String> {
    let line = |frame: &ChatFrame| match frame {
        ChatFrame::Message { role, content, tool_call, .. } => {
            format!(
                "{role}: {}{}",
                content.split(" from ").next().unwrap(),
                tool_call.as_deref().unwrap_or_default()
            )
        }
        other => serde_json::to_value(other).unwrap()["type"].as_str().unwrap().to_owned(),
    };
    frames.iter().map(line).collect()
}

#[tokio::test]
async fn a_turn_with_a_tool_and_its_replay_after_a_restart() {
    let world = World::with(
        |request| {
            if request.last_message()["role"] == "tool" {
                return Turn::say("It said so.").thinking("hm");
            }
            Turn::call("slow_echo", &json!({"text": "hello"}))
        },
        |options| options.settings_mut().tool_servers = vec![tool_server()],
    )
    .await;
    crate::support::eventually("the tools", || !world.engine.tools().1.is_empty()).await;
    let live = outline(&say(&world.engine, "ask it").await);
    assert_eq!(
        live,
        [
            "user: ask it",
            "loading",
            "tool: slow_echo text=hello",
            "system: → hello",
            "reasoning",
            "loading_done",
            "assistant: It said so.",
        ]
    );
    assert_eq!(world.model.violations(), [""; 0]);
    let World { home, engine, model } = world;
    engine.shutdown().await;
    engine.closed().await;
    let engine = Engine::open(options(&home, &model.url())).await.unwrap();
    let replayed = outline(&engine.chat_history("c").await.unwrap());
    assert_eq!(
        replayed,
        ["user: ask it", "tool: slow_echo text=hello", "system: → hello", "assistant: It said so."]
    );
    assert!(engine.chat_history("another").await.unwrap().is_empty());
}

/// A server that dies within a tool call leaves a call without a result, which models refuse.
#[tokio::test]
async fn a_conversation_goes_on_after_a_crash_within_a_tool_call() {
    let world = World::with(
        |request| match request.last_message()["content"].as_str() {
            Some("wait") => Turn::say("")
                .and_call("slow", "slow_echo", r#"{"text":"slow","ms":600000}"#)
                .and_call("quick", "slow_echo", r#"{"text":"quick"}"#),
            _ => Turn::say(request.body["messages"].to_string()),
        },
        |options| options.settings_mut().tool_servers = vec![tool_server()],
    )
    .await;
    crate::support::eventually("the tools", || !world.engine.tools().1.is_empty()).await;
    let (frames, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let engine = world.engine.clone();
    let saying = tokio::spawn(async move {
        engine.chat_say("c", "wait".to_owned(), &|frame| drop(frames.send(frame))).await
    });
    // The quick call has ended, the slow one is under way.
    while let Some(frame) = seen.recv().await {
        if outline(&[frame]) == ["system: → quick"] {
            break;
        }
    }
    saying.abort();
    let _ = saying.await;
    let frames = say(&world.engine, "go on").await;
    assert_eq!(world.model.violations(), [""; 0]);
    let Some(ChatFrame::Message { role: "assistant", content, .. }) = frames.last() else {
        panic!("no answer: {frames:?}")
    };
    assert!(content.contains("not known") && content.contains("quick from"), "{content}");
}

#[tokio::test]
async fn a_failure_is_told_and_the_conversation_goes_on() {
    let world = World::new(
        |request| if request.n == 0 { Turn::status(401, "no") } else { Turn::say("now it works") },
    )
    .await;
    assert_eq!(outline(&say(&world.engine, "one").await), ["user: one", "loading", "loading_done", "error"]);
    assert_eq!(*outline(&say(&world.engine, "two").await).last().unwrap(), "assistant: now it works");
    let blank = world.engine.chat_say("c", "  ".to_owned(), &|_| {}).await;
    assert!(blank.is_err());
}
