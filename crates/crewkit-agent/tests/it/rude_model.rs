//! Models that are down, slow or rude: bounded retries, a typed reason, other runs unaffected.

use std::time::Duration;

use crewkit_agent::Engine;
use crewkit_agent::engine::Start;
use crewkit_agent::model::{Dialect, Endpoint, Streaming};
use crewkit_core::Secret;
use crewkit_core::run::{RunStatus, StopReason};
use crewkit_testkit::model::{EndMark, Request, ScriptedModel, Turn, refusing_url};
use serde_json::json;

use crate::support::{World, end_of, eventually, limit, options};

/// What a fault leads to: requests made, and how the run ends.
struct Case {
    name: &'static str,
    fault: fn() -> Turn,
    /// How many times the fault is played before the model behaves.
    times: usize,
    requests: usize,
    ends: Result<&'static str, (StopReason, &'static str)>,
}

const CASES: [Case; 14] = [
    Case { name: "500 once", fault: || Turn::status(500, "oops"), times: 1, requests: 2, ends: Ok("fine") },
    Case {
        name: "503 for ever",
        fault: || Turn::status(503, "down"),
        times: 99,
        requests: 5,
        ends: Err((StopReason::ModelFailed, "status 503: down (5 attempts)")),
    },
    Case {
        name: "429 with Retry-After",
        fault: || Turn::slow_down("0"),
        times: 2,
        requests: 3,
        ends: Ok("fine"),
    },
    Case {
        name: "429 with a date",
        fault: || Turn::slow_down("Sun, 06 Nov 1994 08:49:37 GMT"),
        times: 2,
        requests: 3,
        ends: Ok("fine"),
    },
    Case {
        name: "401",
        fault: || Turn::status(401, "bad key sk-canary"),
        times: 99,
        requests: 1,
        ends: Err((StopReason::ModelFailed, "status 401: bad key ********")),
    },
    Case {
        name: "404",
        fault: || Turn::status(404, r#"{"error":{"message":"no such model"}}"#),
        times: 99,
        requests: 1,
        ends: Err((StopReason::ModelFailed, "no such model")),
    },
    Case { name: "cut stream", fault: Turn::cut, times: 2, requests: 3, ends: Ok("fine") },
    Case {
        name: "cut stream for ever",
        fault: Turn::cut,
        times: 99,
        requests: 5,
        ends: Err((StopReason::ModelFailed, "cut off")),
    },
    Case {
        name: "endless stream",
        fault: Turn::endless,
        times: 99,
        requests: 1,
        ends: Err((StopReason::ModelFailed, "larger than")),
    },
    Case { name: "invalid UTF-8", fault: Turn::invalid_utf8, times: 1, requests: 2, ends: Ok("fine") },
    Case { name: "invalid JSON", fault: Turn::invalid_json, times: 1, requests: 2, ends: Ok("fine") },
    Case { name: "empty choices", fault: Turn::empty_choices, times: 1, requests: 2, ends: Ok("fine") },
    Case {
        name: "overflow for ever",
        fault: || Turn::status(400, r#"{"error":{"code":"context_length_exceeded"}}"#),
        times: 99,
        requests: 1,
        ends: Err((StopReason::ContextOverflow, "the conversation does not fit the model: status 400")),
    },
    Case {
        name: "silence",
        fault: || Turn::say("x").after(Duration::from_mins(10)),
        times: 99,
        requests: 5,
        ends: Err((StopReason::ModelFailed, "nothing heard for 1 seconds")),
    },
];

#[tokio::test]
async fn every_fault_has_an_end() {
    let cases = CASES.iter().map(|case| async move {
        let (fault, times) = (case.fault, case.times);
        let world = World::with(
            move |request: &Request| if request.n < times { fault() } else { Turn::complete("fine") },
            |options| {
                limit(options, |limits| {
                    limits.llm_reply_bytes = 1 << 20;
                    limits.llm_idle_seconds = if case.name == "silence" { 1 } else { 60 };
                });
                options.settings_mut().models[0].api_key = Some(Secret::new("sk-canary"));
            },
        )
        .await;
        let status = world.run(case.name).await;
        match case.ends {
            Ok(summary) => assert_eq!(status.summary.as_deref(), Some(summary), "{}: {status:?}", case.name),
            Err((reason, error)) => {
                assert_eq!(status.reason, Some(reason), "{}: {status:?}", case.name);
                assert!(status.error.as_ref().unwrap().contains(error), "{}: {status:?}", case.name);
            }
        }
        assert_eq!(world.model.requests(), case.requests, "{}", case.name);
    });
    futures_util::future::join_all(cases).await;
}

#[tokio::test]
async fn a_model_that_is_not_there() {
    let home = tempfile::tempdir().unwrap();
    let engine = Engine::open(options(&home, &refusing_url().await)).await.unwrap();
    let run = engine.start(Start { contract: "x".into(), ..Start::default() }).await.unwrap();
    let status = end_of(&engine, run.id.as_str()).await;
    assert_eq!(status.reason, Some(StopReason::ModelFailed));
    let error = status.error.unwrap();
    assert!(error.contains("cannot connect") && error.contains("(5 attempts)"), "{error}");
}

#[tokio::test]
async fn one_rude_model_does_not_harm_others() {
    let world = World::new(|request| {
        let contract = request.body["messages"][1]["content"].as_str().unwrap().to_owned();
        if contract.contains("rude") { Turn::endless() } else { Turn::complete("fine") }
    })
    .await;
    let rude = world.start("rude").await;
    for _ in 0..5 {
        assert_eq!(world.run("kind").await.status, Some(RunStatus::Completed));
    }
    world.engine.stop(&rude).await.unwrap();
}

#[tokio::test]
async fn odd_tool_calls_are_answered_as_errors() {
    let world = World::with(
        |request| match request.turn {
            0 => Turn::say("")
                .and_call("same", "unknown_tool", "{}")
                .and_call("same", "agent_complete", "{broken")
                .and_call("", "agent_complete", "[]")
                .and_call("big", "agent_complete", &json!({"summary": "x".repeat(10 << 20)}).to_string()),
            1 => {
                let messages = request.body["messages"].as_array().unwrap();
                let results: Vec<String> =
                    messages[3..7].iter().map(|m| m["content"].as_str().unwrap().to_owned()).collect();
                Turn::complete(&results.join(" | "))
            }
            _ => Turn::complete("too far"),
        },
        |_| {},
    )
    .await;
    let summary = world.run("x").await.summary.unwrap();
    let expected =
        ["there is no tool `unknown_tool`", "not valid JSON", "must be a JSON object", "longer than allowed"];
    for (found, expected) in summary.split(" | ").zip(expected) {
        assert!(found.starts_with("Error: ") && found.contains(expected), "{found} / {expected}");
    }
    assert_eq!(world.model.violations(), [""; 0], "ids are unique and every call has its result, in order");
}

#[tokio::test]
async fn a_model_without_tools_is_asked_once_and_told_about_markers() {
    let world = World::new(|request| {
        if request.has_tools() {
            Turn::status(400, "this model does not support tools")
        } else {
            Turn::say("done without tools\n[CONTRACT COMPLETE]")
        }
    })
    .await;
    assert_eq!(world.run("first").await.summary.as_deref(), Some("done without tools"));
    assert_eq!(world.run("second").await.status, Some(RunStatus::Completed));
    assert_eq!(world.model.requests(), 3, "it is remembered");
    let last = world.model.bodies().pop().unwrap();
    assert!(last["messages"][0]["content"].as_str().unwrap().contains("[CONTRACT COMPLETE]"));
}

#[tokio::test]
async fn nothing_is_learned_from_an_error_of_the_server() {
    for words in ["cloud function timed out", "this model does not support tools"] {
        let world = World::new(move |request| match request.n {
            0 => Turn::status(500, words),
            _ if request.has_tools() => Turn::complete("with tools"),
            _ => Turn::say("without\n[CONTRACT COMPLETE]"),
        })
        .await;
        assert_eq!(world.run("first").await.status, Some(RunStatus::Completed), "{words}");
        assert_eq!(world.run("second").await.summary.as_deref(), Some("with tools"), "{words}");
    }
}

/// A server may announce the end of its reply and keep the connection open.
#[tokio::test]
async fn a_reply_counts_when_its_stream_is_over() {
    for dialect in [Dialect::OpenAi, Dialect::Anthropic] {
        for end_mark in [EndMark::Sent, EndMark::Missing] {
            let model = ScriptedModel::start(move |_| Turn::complete("held").held(end_mark)).await;
            let url = if dialect == Dialect::OpenAi { model.url() } else { model.anthropic_url() };
            let home = tempfile::tempdir().unwrap();
            let mut options = options(&home, &url);
            options.settings_mut().models[0].dialect = dialect;
            let engine = Engine::open(options).await.unwrap();
            let run = engine.start(Start { contract: "x".into(), ..Start::default() }).await.unwrap();
            let status = end_of(&engine, run.id.as_str()).await;
            assert_eq!(status.summary.as_deref(), Some("held"), "{dialect:?}, {end_mark:?}");
            assert_eq!((model.requests(), status.tokens), (1, Some(15)), "{dialect:?}, {end_mark:?}");
        }
    }
}

#[tokio::test]
async fn a_server_that_does_not_stream_is_asked_without() {
    let world = World::new(|request| {
        if request.body["stream"] == true {
            Turn::status(400, "stream is not supported")
        } else {
            Turn::complete("whole")
        }
    })
    .await;
    assert_eq!(world.run("first").await.summary.as_deref(), Some("whole"));
    world.run("second").await;
    assert_eq!(world.model.requests(), 3);
}

#[tokio::test]
async fn whole_replies_and_reasoning() {
    let world = World::with(
        |_| Turn::complete("whole").thinking("[CONTRACT FAILED]"),
        |options| options.settings_mut().models[0].streaming = Streaming::Off,
    )
    .await;
    assert_eq!(world.run("x").await.summary.as_deref(), Some("whole"));
}

#[tokio::test]
async fn the_anthropic_dialect_runs_the_same_life() {
    for streaming in [Streaming::Auto, Streaming::Off] {
        let model = ScriptedModel::start(|request| match request.turn {
            0 => Turn::say("I look").thinking("hm").and_call("a", "no_such_tool", "{}").and_call(
                "b",
                "no_such_tool",
                r#"{"x":1}"#,
            ),
            1 => Turn::say("just words"),
            _ => Turn::deliver("from anthropic", "p"),
        })
        .await;
        let home = tempfile::tempdir().unwrap();
        let mut options = options(&home, "http://127.0.0.1:1/");
        let endpoint = Endpoint::new("a", model.anthropic_url(), "m");
        options.settings_mut().models = vec![Endpoint { dialect: Dialect::Anthropic, streaming, ..endpoint }];
        let engine = Engine::open(options).await.unwrap();
        let run = engine.start(Start { contract: "x".into(), ..Start::default() }).await.unwrap();
        let status = end_of(&engine, run.id.as_str()).await;
        assert_eq!(status.summary.as_deref(), Some("from anthropic"), "{status:?}");
        assert_eq!(status.tokens, Some(45));
        assert_eq!(model.violations(), [""; 0]);
    }
}

#[tokio::test]
async fn an_overflowing_conversation_is_compacted_and_goes_on() {
    // The server takes 6 messages at most; a summary makes room.
    let world = World::new(|request| {
        let messages = request.body["messages"].as_array().unwrap();
        if messages.last().unwrap()["content"].as_str().is_some_and(|text| text.contains("Summarise")) {
            return Turn::say("SUMMARY OF THE PAST");
        }
        if messages.len() > 8 {
            return Turn::status(400, r#"{"error":{"type":"exceed_context_size_error"}}"#);
        }
        let summarised = messages
            .iter()
            .any(|m| m["content"].as_str().is_some_and(|text| text.contains("SUMMARY OF THE PAST")));
        if summarised {
            Turn::complete("with a summary")
        } else {
            Turn::call("no_such_tool", &json!({"n": request.n}))
        }
    })
    .await;
    let status = world.run("long").await;
    assert_eq!(status.summary.as_deref(), Some("with a summary"));
    // Every request but the one that was refused costs 15 tokens; the one for the summary counts too.
    assert_eq!(status.tokens, Some(15 * (world.model.requests() as u64 - 1)));
    assert_eq!(world.model.violations(), [""; 0], "no call is ever sent without its result");
}

#[tokio::test]
async fn a_known_window_is_respected_before_every_request() {
    const WINDOW: u64 = 4000;
    let world = World::with(
        |request| {
            let last = request.last_message()["content"].as_str().unwrap_or_default();
            if last.contains("Summarise") {
                return Turn::say("short");
            }
            match request.n {
                0..12 => Turn::call("no_such_tool", &json!({"n": request.n, "filler": "x".repeat(1500)})),
                _ => Turn::complete("within the window"),
            }
        },
        |options| options.settings_mut().models[0].window = Some(WINDOW),
    )
    .await;
    assert_eq!(world.run("long").await.summary.as_deref(), Some("within the window"));
    for body in world.model.bodies() {
        let tokens = body["messages"].to_string().len() as u64 / 4;
        assert!(tokens <= WINDOW, "a request of about {tokens} tokens");
    }
    assert_eq!(world.model.violations(), [""; 0]);
}

#[tokio::test]
async fn stop_wakes_a_pause_between_attempts() {
    let world = World::with(
        |_| Turn::slow_down("100"),
        |options| limit(options, |limits| limits.llm_retry_millis = 100_000),
    )
    .await;
    let id = world.start("x").await;
    eventually("the first attempt", || world.model.requests() == 1).await;
    world.engine.stop(&id).await.unwrap();
    // Ends at once; the pause would take a minute and a half.
    tokio::time::timeout(Duration::from_secs(20), world.engine.shutdown()).await.unwrap();
    assert_eq!(world.model.requests(), 1);
}

#[tokio::test]
async fn the_queue_of_an_endpoint_is_bounded_and_visible() {
    let world = World::with(
        |_| Turn::complete("ok").after(Duration::from_millis(200)),
        |options| options.settings_mut().models[0].concurrency = Some(2),
    )
    .await;
    let mut ids = Vec::new();
    for _ in 0..6 {
        ids.push(world.start("x").await);
    }
    eventually("a queue", || world.engine.queued() == [("scripted".to_owned(), 4)]).await;
    for id in &ids {
        world.end_of(id).await;
    }
    assert_eq!(world.model.peak_in_flight(), 2);
}
