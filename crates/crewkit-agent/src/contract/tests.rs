//! The loop against a model, a toolbox and a transcript in memory.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crewkit_core::Limits;
use crewkit_core::run::{RunId, StopReason};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::event::Usage;
use crate::model::{Ask, AskError, Message, Model, Reply, WantedCall};

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

/// Answers with the call's name; tools called `exclusive_…` run alone, those called `hang` never end. Notes when calls begin and end.
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

    fn concurrency(&self, name: &str) -> Concurrency {
        if name.starts_with("exclusive") { Concurrency::Exclusive } else { Concurrency::Shared }
    }

    fn call<'a>(&'a self, call: &'a ToolCall, _: Value) -> BoxFuture<'a, ToolAnswer> {
        async move {
            if call.name == "hang" {
                std::future::pending::<()>().await;
            }
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
    ) -> BoxFuture<'_, Result<(), TranscriptError>> {
        self.0.lock().unwrap().extend(entries.into_iter().map(|entry| (entry, durability)));
        async { Ok(()) }.boxed()
    }
}

struct Stage {
    model: Scripted,
    toolbox: Watched,
    transcript: Written,
    halt: CancellationToken,
}

impl Stage {
    fn new(replies: impl IntoIterator<Item = Reply>) -> Self {
        let model = Scripted { replies: Mutex::new(replies.into_iter().collect()), asked: Mutex::default() };
        Self {
            model,
            toolbox: Watched::default(),
            transcript: Written::default(),
            halt: CancellationToken::new(),
        }
    }

    async fn play(&self, past: Vec<Message>) -> End {
        let id: RunId = "agent-1".parse().unwrap();
        carry_out(Assignment {
            goal: Goal::Contract(Contract { id: &id, text: "do", workdir: None, max_payload: 1000 }),
            caps: Caps::of(&Limits::default()),
            used: Usage::default(),
            past,
            model: &self.model,
            toolbox: &self.toolbox,
            transcript: &self.transcript,
            halt: self.halt.clone(),
            on_text: &|_| {},
            elapsed: &|| Duration::ZERO,
            max_result: 1000,
            parallel: 8,
        })
        .await
    }

    /// The transcript.
    fn entries(&self) -> Vec<EventBody> {
        self.transcript.0.lock().unwrap().iter().map(|(body, _)| body.clone()).collect()
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
    let reply = calls(&[("1", "look", "{}"), ("2", "exclusive_write", "{}"), ("3", "look_again", "{}")]);
    let stage = Stage::new([reply, complete()]);
    stage.play(vec![]).await;
    assert_eq!(stage.toolbox.together.load(Ordering::SeqCst), 1);
    assert_eq!(*stage.toolbox.log.lock().unwrap(), ["look", "exclusive_write", "look_again"]);
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
    assert_eq!(rebuild(&stage.entries()), asked[2..], "all but the opening");
}

#[tokio::test]
async fn a_call_that_was_under_way_is_answered_truthfully_and_not_repeated() {
    let stage = Stage::new([calls(&[("1", "look", "{}"), ("2", "send_mail", "{}")]), complete()]);
    stage.play(vec![]).await;
    // The crash came after the wish was written and before its results were.
    let past = rebuild(&stage.entries()[..1]);
    assert!(matches!(&past[2], Message::Tool { name, is_error: true, content, .. }
        if name == "send_mail" && content.contains("not known")));
    let resumed = Stage::new([complete()]);
    assert!(matches!(resumed.play(past).await, End::Completed { .. }));
    assert!(resumed.toolbox.log.lock().unwrap().is_empty());
    let asked = resumed.model.asked.lock().unwrap();
    assert!(matches!(asked[0].last(), Some(Message::User(text)) if text.contains("interrupted")));
}

/// The second call has ended when the run is stopped during the first one.
#[tokio::test]
async fn a_stop_keeps_the_results_of_calls_that_have_ended() {
    let stage = Stage::new([calls(&[("1", "hang", "{}"), ("2", "quick", "{}")])]);
    let stop = async {
        while stage.entries().len() < 2 {
            tokio::task::yield_now().await;
        }
        stage.halt.cancel();
    };
    let (end, ()) = tokio::join!(stage.play(vec![]), async {
        tokio::time::timeout(Duration::from_mins(1), stop).await.expect("the result was not recorded");
    });
    assert_eq!(end, End::Halted);
    let results: Vec<(String, String, bool)> = rebuild(&stage.entries())
        .into_iter()
        .filter_map(|message| match message {
            Message::Tool { call_id, content, is_error, .. } => Some((call_id, content, is_error)),
            _ => None,
        })
        .collect();
    let unknown = prompt::UNKNOWN_RESULT.to_owned();
    let expected = [("1".to_owned(), unknown, true), ("2".to_owned(), "quick".to_owned(), false)];
    assert_eq!(results, expected, "in the order of the calls");
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
        EventBody::Compacted { summary: "S".into(), kept: 1, usage: None },
        say("four"),
    ];
    let texts: Vec<String> = rebuild(&bodies)
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
