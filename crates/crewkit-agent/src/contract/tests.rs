//! The loop against a model, a toolbox and a transcript in memory.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crewkit_core::run::{RunId, StopReason};
use crewkit_core::{Limits, Timestamp};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::event::{Event, Usage};
use crate::model::{Ask, AskError, Message, Model, Reply, WantedCall};
use crate::store::RunSpec;

struct Scripted {
    replies: Mutex<VecDeque<Reply>>,
    asked: Mutex<Vec<Vec<Message>>>,
}

impl Model for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn takes_tools(&self) -> bool {
        true
    }

    fn window(&self) -> Option<u64> {
        None
    }

    fn ask<'a>(&'a self, ask: Ask<'a>) -> BoxFuture<'a, Result<Reply, AskError>> {
        self.asked.lock().unwrap().push(ask.messages.to_vec());
        let reply = self.replies.lock().unwrap().pop_front();
        async move { reply.ok_or_else(|| AskError::Failed("the script is over".into())) }.boxed()
    }
}

/// Answers with the call's name; tools called `alone_…` want no company. Notes when calls begin and end.
#[derive(Default)]
struct Watched {
    log: Mutex<Vec<String>>,
    running: AtomicUsize,
    together: AtomicUsize,
}

impl Toolbox for Watched {
    fn tools(&self) -> Vec<Arc<ToolDef>> {
        Vec::new()
    }

    fn company(&self, name: &str) -> Company {
        if name.starts_with("alone") { Company::Alone } else { Company::Any }
    }

    fn call<'a>(&'a self, call: &'a ToolCall, _: Value) -> BoxFuture<'a, ToolAnswer> {
        async move {
            let now = self.running.fetch_add(1, Ordering::SeqCst) + 1;
            self.together.fetch_max(now, Ordering::SeqCst);
            // Later calls finish first.
            let pause = if call.id.ends_with('1') { 30 } else { 1 };
            tokio::time::sleep(Duration::from_millis(pause)).await;
            self.running.fetch_sub(1, Ordering::SeqCst);
            self.log.lock().unwrap().push(call.name.clone());
            ToolAnswer::ok(call.name.clone())
        }
        .boxed()
    }
}

#[derive(Default)]
struct Written(Mutex<Vec<(EventBody, Durability)>>);

impl Transcript for Written {
    fn append(
        &self,
        entries: Vec<EventBody>,
        durability: Durability,
    ) -> BoxFuture<'_, Result<(), StoreError>> {
        self.0.lock().unwrap().extend(entries.into_iter().map(|entry| (entry, durability)));
        async { Ok(()) }.boxed()
    }
}

struct Stage {
    model: Scripted,
    toolbox: Watched,
    transcript: Written,
}

impl Stage {
    fn new(replies: impl IntoIterator<Item = Reply>) -> Self {
        let model = Scripted { replies: Mutex::new(replies.into_iter().collect()), asked: Mutex::default() };
        Self { model, toolbox: Watched::default(), transcript: Written::default() }
    }

    async fn play(&self, past: Vec<Message>) -> End {
        let id: RunId = "agent-1".parse().unwrap();
        carry_out(Assignment {
            id: &id,
            contract: "do",
            workdir: None,
            caps: Caps::of(&Limits::default(), &RunSpec::default()),
            used: Usage::default(),
            past,
            model: &self.model,
            toolbox: &self.toolbox,
            transcript: &self.transcript,
            halt: CancellationToken::new(),
            speaking: &|_| {},
            elapsed: Arc::new(|| Duration::ZERO),
            max_payload: 1000,
            max_result: 1000,
            parallel: 8,
        })
        .await
    }

    /// The transcript as stored events.
    fn events(&self) -> Vec<Event> {
        let written = self.transcript.0.lock().unwrap();
        let events = written.iter().zip(1..);
        events.map(|((body, _), seq)| Event { seq, at: Timestamp::default(), body: body.clone() }).collect()
    }
}

fn calls(calls: &[(&str, &str, &str)]) -> Reply {
    let wanted = calls.iter().map(|(id, name, arguments)| WantedCall {
        id: (*id).into(),
        name: (*name).into(),
        arguments: (*arguments).into(),
        oversized: false,
    });
    Reply { calls: wanted.collect(), ..Reply::default() }
}

fn complete() -> Reply {
    calls(&[("end", AGENT_COMPLETE, r#"{"summary":"done"}"#)])
}

#[tokio::test]
async fn calls_run_side_by_side_and_answer_in_order() {
    let stage =
        Stage::new([calls(&[("1", "slow", "{}"), ("2", "quick", "{}"), ("3", "third", "{}")]), complete()]);
    assert!(matches!(stage.play(vec![]).await, End::Completed { .. }));
    assert_eq!(stage.toolbox.together.load(Ordering::SeqCst), 3);
    assert_eq!(stage.toolbox.log.lock().unwrap().last().unwrap(), "slow", "the slow one really ended last");
    let asked = stage.model.asked.lock().unwrap();
    let results: Vec<&str> = asked[1]
        .iter()
        .filter_map(|message| match message {
            Message::Tool { content, .. } => Some(content.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(results, ["slow", "quick", "third"]);
}

#[tokio::test]
async fn a_tool_that_changes_things_runs_alone_and_in_its_place() {
    let reply = calls(&[("1", "look", "{}"), ("2", "alone_write", "{}"), ("3", "look_again", "{}")]);
    let stage = Stage::new([reply, complete()]);
    stage.play(vec![]).await;
    assert_eq!(stage.toolbox.together.load(Ordering::SeqCst), 1);
    assert_eq!(*stage.toolbox.log.lock().unwrap(), ["look", "alone_write", "look_again"]);
}

#[tokio::test]
async fn nothing_runs_after_the_completion_in_the_same_reply() {
    let reply =
        calls(&[("1", "before", "{}"), ("2", AGENT_COMPLETE, r#"{"summary":"s"}"#), ("3", "after", "{}")]);
    let stage = Stage::new([reply]);
    assert_eq!(stage.play(vec![]).await, End::Completed { summary: "s".into(), payload: None });
    assert_eq!(*stage.toolbox.log.lock().unwrap(), ["before"]);
}

#[tokio::test]
async fn what_is_wanted_is_on_disk_before_it_is_done() {
    let stage = Stage::new([calls(&[("1", "look", "{}")]), complete()]);
    stage.play(vec![]).await;
    for (body, durability) in stage.transcript.0.lock().unwrap().iter() {
        if let EventBody::Assistant { tool_calls, .. } = body {
            assert!(tool_calls.is_empty() || *durability == Durability::Now);
        }
    }
}

#[tokio::test]
async fn a_marker_beside_tool_calls_waits_for_their_results() {
    let eager = Reply { content: "[CONTRACT COMPLETE]".into(), ..calls(&[("1", "look", "{}")]) };
    let stage = Stage::new([eager, complete()]);
    assert_eq!(stage.play(vec![]).await, End::Completed { summary: "done".into(), payload: None });
}

#[tokio::test]
async fn a_transcript_rebuilds_the_conversation() {
    let words = Reply { content: "hm".into(), ..Reply::default() };
    let same = || calls(&[("x", "look", "{}")]);
    let stage = Stage::new([words, same(), same(), same(), calls(&[("y", "a", "{}"), ("y", "b", "[]")])]);
    assert!(matches!(stage.play(vec![]).await, End::Stopped { reason: StopReason::ModelFailed, .. }));
    let asked = stage.model.asked.lock().unwrap().last().unwrap().clone();
    assert_eq!(rebuild(&stage.events()), asked[2..], "all but the opening");
}

#[tokio::test]
async fn a_call_that_was_under_way_is_answered_truthfully_and_not_repeated() {
    let stage = Stage::new([calls(&[("1", "look", "{}"), ("2", "send_mail", "{}")]), complete()]);
    stage.play(vec![]).await;
    // The crash came after the wish was written and before its results were.
    let events: Vec<Event> = stage.events().into_iter().take(1).collect();
    let past = rebuild(&events);
    assert!(matches!(&past[2], Message::Tool { name, is_error: true, content, .. }
        if name == "send_mail" && content.contains("not known")));
    let resumed = Stage::new([complete()]);
    assert!(matches!(resumed.play(past).await, End::Completed { .. }));
    assert!(resumed.toolbox.log.lock().unwrap().is_empty());
    let asked = resumed.model.asked.lock().unwrap();
    assert!(matches!(asked[0].last(), Some(Message::User(text)) if text.contains("interrupted")));
}

#[test]
fn a_summary_in_the_transcript_replaces_what_it_stands_for() {
    let say = |text: &str| EventBody::Assistant {
        content: text.into(),
        reasoning: None,
        tool_calls: vec![],
        usage: None,
    };
    let bodies = [
        say("one"),
        say("two"),
        say("three"),
        EventBody::Compacted { summary: "S".into(), kept: 1 },
        say("four"),
    ];
    let events: Vec<Event> = bodies
        .into_iter()
        .zip(1..)
        .map(|(body, seq)| Event { seq, at: Timestamp::default(), body })
        .collect();
    let texts: Vec<String> = rebuild(&events)
        .into_iter()
        .map(|message| match message {
            Message::User(text) => text,
            Message::Assistant { content, .. } => content,
            other => format!("{other:?}"),
        })
        .collect();
    assert!(texts[0].contains("summarised:\n\nS"));
    assert_eq!(texts[1..], ["three", "four"]);
}
