//! A run from its start to its end, and everything that may come between.

use std::time::Duration;

use crewkit_agent::engine::{Prune, Start, Until};
use crewkit_agent::model::Endpoint;
use crewkit_agent::{Engine, Error, EventBody, RunSettings, RunSpec};
use crewkit_core::Code;
use crewkit_core::run::{RunStatus, StopReason};
use crewkit_testkit::model::{ScriptedModel, Turn};
use serde_json::json;

use crate::support::{World, end_of, eventually, limit, options, transcript};

#[tokio::test]
async fn an_agent_completes_with_summary_and_payload() {
    let world = World::new(|_| Turn::deliver("all done", "the work")).await;
    let status = serde_json::to_value(world.run("do it").await).unwrap();
    let id = status["agent_id"].as_str().unwrap();
    assert_eq!(status["status"], "completed");
    assert_eq!(status["summary"], "all done");
    assert_eq!(status["payload_size"], 8);
    assert_eq!(status["payload_url"], format!("http://localhost:8101/api/agents/{id}/payload"));
    for time in ["started_at", "completed_at"] {
        let text = status[time].as_str().unwrap();
        assert!(text.len() == 24 && text.ends_with('Z'), "{text}");
    }
    for absent in ["stopped_at", "error", "recent_output", "reason"] {
        assert!(status.get(absent).is_none(), "{absent}");
    }
    let payload = world.engine.payload(id).await.unwrap();
    assert_eq!(gunzip(&payload.gzip), "the work");
    assert_eq!(world.model.violations(), [""; 0]);
}

fn gunzip(bytes: &[u8]) -> String {
    let mut text = String::new();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(bytes), &mut text).unwrap();
    text
}

#[test]
fn an_agent_works_where_its_engine_was_opened() {
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (opener, starter) = (runtime(), runtime());
    let world = opener.block_on(World::new(|_| Turn::complete("ok").after(Duration::from_millis(50))));
    let id = starter.block_on(world.start("go on without me"));
    drop(starter);
    let status = opener.block_on(world.end_of(&id));
    assert_eq!(status.status, Some(RunStatus::Completed), "{:?}", status.error);
}

#[tokio::test]
async fn the_prompt_tells_id_and_duties() {
    let world = World::new(|_| Turn::complete("ok")).await;
    let status = world.run("count the stars").await;
    let body = &world.model.bodies()[0];
    let system = body["messages"][0]["content"].as_str().unwrap();
    assert!(system.contains(&status.agent_id) && system.contains("agent_complete"));
    assert!(body["messages"][1]["content"].as_str().unwrap().contains("count the stars"));
    assert_eq!(body["tools"][0]["function"]["name"], "agent_complete");
}

#[tokio::test]
async fn markers_complete_and_fail() {
    let world = World::new(|request| {
        let contract = request.body["messages"][1]["content"].as_str().unwrap().to_owned();
        if contract.contains("impossible") {
            Turn::say("There is no way.\n[CONTRACT FAILED]")
        } else {
            Turn::say("<think>[CONTRACT FAILED]</think>The work is [CONTRACT COMPLETE] and tested.")
        }
    })
    .await;
    let done = world.run("possible").await;
    assert_eq!(
        (done.status, done.summary.as_deref()),
        (Some(RunStatus::Completed), Some("The work is and tested."))
    );
    let failed = world.run("impossible").await;
    assert_eq!((failed.status, failed.reason), (Some(RunStatus::Stopped), Some(StopReason::ContractFailed)));
    assert_eq!(failed.error.as_deref(), Some("There is no way."));
}

#[tokio::test]
async fn plain_replies_are_nudged_and_then_stopped() {
    let world =
        World::with(|_| Turn::say("hmm"), |options| limit(options, |limits| limits.agent_plain_replies = 3))
            .await;
    let status = world.run("talk").await;
    assert_eq!(status.reason, Some(StopReason::PlainReplies));
    assert_eq!(world.model.requests(), 3);
    assert_eq!(world.model.violations(), [""; 0], "a request never ends with the assistant's turn");
}

#[tokio::test]
async fn caps_end_a_run_with_their_reason() {
    let busy = |_: &_| Turn::call("no_such_tool", &json!({"n": std::process::id()}));
    let world = World::new(busy).await;
    let spec = |max_turns, max_tokens| RunSpec {
        max_turns,
        max_tokens,
        max_seconds: Some(u64::MAX),
        ..RunSpec::default()
    };
    for (spec, reason) in [
        (spec(Some(2), None), StopReason::TurnLimit),
        (spec(None, Some(10)), StopReason::TokenLimit),
        (spec(None, None), StopReason::RepeatedCalls),
    ] {
        let id = world.start_spec("busy", spec).await;
        assert_eq!(world.end_of(&id).await.reason, Some(reason));
    }
    assert_eq!(world.model.requests(), 2 + 6, "the token cap is checked before the first request");
}

#[tokio::test]
async fn bad_input_creates_nothing() {
    let world = World::new(|_| Turn::complete("ok")).await;
    let engine = &world.engine;
    let start = |contract: &str, spec: RunSpec| {
        engine.start(Start { contract: contract.to_owned(), spec, key: None, settings: None })
    };
    let code = |result: Result<_, Error>| result.map(drop).unwrap_err().code();
    assert_eq!(code(start("", RunSpec::default()).await), Code::ContractInvalid);
    assert_eq!(code(start(" \n\t", RunSpec::default()).await), Code::ContractInvalid);
    assert_eq!(code(start(&"x".repeat((1 << 20) + 1), RunSpec::default()).await), Code::ContractInvalid);
    let driver = RunSpec { driver: Some("nobody".into()), ..RunSpec::default() };
    assert_eq!(code(start("x", driver).await), Code::DriverUnknown);
    let model = RunSpec { model: Some("nobody".into()), ..RunSpec::default() };
    assert_eq!(code(start("x", model).await), Code::DriverUnknown);
    for workdir in ["relative", "/no/such/directory", "/etc/passwd"] {
        let spec = RunSpec { workdir: Some(workdir.into()), ..RunSpec::default() };
        assert_eq!(code(start("x", spec).await), Code::WorkdirInvalid, "{workdir}");
    }
    assert!(engine.list(None).is_empty());
    assert_eq!(code(engine.stop("agent-nobody").await), Code::AgentNotFound);
    assert_eq!(code(engine.complete("../etc", "x".into(), None).await), Code::AgentNotFound);
    assert_eq!(code(engine.resume("").await), Code::AgentNotFound);
    let ids = vec!["agent-x"; 10_001];
    assert_eq!(engine.status(&ids).unwrap_err().code(), Code::ArgumentInvalid);
    let unknown = serde_json::to_value(engine.status(&ids[..2]).unwrap()).unwrap();
    assert_eq!(unknown[1]["agent_id"], "agent-x");
    assert_eq!(unknown[0].as_object().unwrap().len(), 2, "{unknown}");
    assert!(engine.status::<&str>(&[]).unwrap().is_empty());
}

#[tokio::test]
async fn a_payload_over_the_limit_is_refused_and_the_agent_goes_on() {
    let world = World::new(|_| Turn::complete("ok").after(Duration::from_mins(10))).await;
    let id = world.start("wait").await;
    let refused = world.engine.complete(&id, "big".into(), Some("x".repeat(65 << 20))).await;
    assert_eq!(refused.unwrap_err().code(), Code::PayloadTooLarge);
    assert_eq!(world.engine.show(&id).unwrap().status, Some(RunStatus::Running));
    let done = world.engine.complete(&id, "small".into(), Some(String::new())).await.unwrap();
    assert_eq!(done.payload.as_ref().map(|payload| payload.size), Some(0), "an empty payload is a payload");
}

#[tokio::test]
async fn large_payloads_come_back_whole_also_from_disk() {
    let world = World::with(
        |_| Turn::complete("ok").after(Duration::from_mins(10)),
        |options| limit(options, |limits| limits.agent_payload_cache_bytes = 0),
    )
    .await;
    let id = world.start("wait").await;
    // Hard to compress, so that it takes several chunks.
    let mut seed = 1_u64;
    let text: String = (0..2_000_000)
        .map(|_| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            char::from(b' ' + u8::try_from(seed >> 58).unwrap())
        })
        .collect();
    world.engine.complete(&id, "big".into(), Some(text.clone())).await.unwrap();
    let payload = world.engine.payload(&id).await.unwrap();
    assert!(payload.gzip.len() > 3 * 256 * 1024);
    assert!(gunzip(&payload.gzip) == text);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_end_wins_every_race() {
    let world = World::new(|_| Turn::complete("by the agent").after(Duration::from_mins(10))).await;
    for _ in 0..20 {
        let id = world.start("race").await;
        let wishes = (0..8).map(|n| {
            let (engine, id) = (world.engine.clone(), id.clone());
            tokio::spawn(async move {
                if n % 2 == 0 {
                    engine.stop(&id).await
                } else {
                    engine.complete(&id, format!("by {n}"), None).await
                }
            })
        });
        let mut answers = Vec::new();
        for wish in wishes.collect::<Vec<_>>() {
            answers.push(wish.await.unwrap().unwrap());
        }
        for answer in &answers {
            assert_eq!(answer.state, answers[0].state);
            assert_eq!(answer.summary, answers[0].summary);
        }
        assert_eq!(world.engine.record(&id).unwrap().state, answers[0].state);
    }
}

#[tokio::test]
async fn after_stop_or_complete_no_request_and_no_tool_call_follows() {
    let directory = tempfile::tempdir().unwrap();
    for complete in [false, true] {
        let late_reply = |_: &_| {
            Turn::say("I write")
                .and_call("w", "write_file", r#"{"path":"late.txt","content":"x"}"#)
                .after(Duration::from_millis(300))
        };
        let world =
            World::with(late_reply, |options| limit(options, |limits| limits.llm_stop_grace_seconds = 30))
                .await;
        let spec = RunSpec { workdir: Some(directory.path().to_owned()), ..RunSpec::default() };
        let id = world.start_spec("write", spec).await;
        eventually("the request is in flight", || world.model.in_flight() == 1).await;
        let ended = if complete {
            world.engine.complete(&id, "enough".into(), None).await.unwrap()
        } else {
            world.engine.stop(&id).await.unwrap()
        };
        // The reply that was in flight is read to its end and kept.
        world
            .until(&id, |body| matches!(body, EventBody::Assistant { content, .. } if content == "I write"))
            .await;
        world.engine.shutdown().await;
        assert_eq!(world.model.requests(), 1);
        assert!(!directory.path().join("late.txt").exists(), "the tool of a late reply ran");
        assert_eq!(world.engine.record(&id).unwrap().state, ended.state, "a late reply changes no state");
    }
}

#[tokio::test]
async fn a_completion_that_comes_too_late_is_kept_as_output() {
    let world = World::new(|_| Turn::complete("x").after(Duration::from_mins(10))).await;
    let id = world.start("wait").await;
    let stopped = world.engine.stop(&id).await.unwrap();
    let late = world.engine.complete(&id, "I was nearly there".into(), None).await.unwrap();
    assert_eq!(late.state, stopped.state);
    assert_eq!(late.summary, None);
    let kept = world.transcript(&id).await;
    assert!(
        kept.iter()
            .any(|body| matches!(body, EventBody::Note { content } if content.contains("nearly there")))
    );
}

#[tokio::test]
async fn one_key_gives_one_run() {
    let world = World::new(|_| Turn::complete("ok")).await;
    let start =
        || world.engine.start(Start { contract: "x".into(), key: Some("k".into()), ..Start::default() });
    let (first, second) = tokio::join!(start(), start());
    assert_eq!(first.unwrap().id, second.unwrap().id);
    assert_eq!(world.engine.list(None).len(), 1);
}

#[tokio::test]
async fn waiting_for_any_and_for_all() {
    let world = World::new(|request| {
        let slow = request.body["messages"][1]["content"].as_str().unwrap().contains("slow");
        Turn::complete("ok").after(if slow { Duration::from_mins(10) } else { Duration::ZERO })
    })
    .await;
    let ids = [world.start("slow").await, world.start("quick").await];
    let any = world.engine.wait(&ids, Until::Any, Duration::from_mins(1), &|_, _| {}).await.unwrap();
    assert!(any.done);
    assert_eq!(any.agents[1].status, Some(RunStatus::Completed));
    let all = world.engine.wait(&ids, Until::All, Duration::from_millis(20), &|_, _| {}).await.unwrap();
    assert!(!all.done);
    world.engine.stop(&ids[0]).await.unwrap();
    let heard = std::sync::Mutex::new(Vec::new());
    let all = world
        .engine
        .wait(&ids, Until::All, Duration::from_mins(1), &|ended, total| {
            heard.lock().unwrap().push((ended, total));
        })
        .await;
    assert!(all.unwrap().done);
    assert_eq!(*heard.lock().unwrap(), [(1, 2), (2, 2)]);
}

#[tokio::test]
async fn every_viewer_sees_everything_once_and_in_order() {
    let world = World::new(|request| match request.turn {
        30.. => Turn::complete("ok"),
        turn => Turn::call("no_such_tool", &json!({"turn": turn, "filler": "x".repeat(2000)})),
    })
    .await;
    let id = world.start("talk a lot").await;
    let early = transcript(&world.engine, &id);
    let (early, status) = tokio::join!(early, world.end_of(&id));
    assert_eq!(status.status, Some(RunStatus::Completed));
    let late = world.transcript(&id).await;
    assert_eq!(early, late, "live and replayed are the same");
    // Paged reading gives the same again.
    let (mut paged, mut after) = (Vec::new(), 0);
    loop {
        let page = world.engine.output(&id, after, 7).await.unwrap();
        paged.extend(page.entries.iter().map(|event| event.body.clone()));
        match page.next {
            Some(next) => after = next,
            None => break,
        }
    }
    assert_eq!(paged, late);
    let mut resumed = world.engine.subscribe(&id, 10).unwrap();
    assert_eq!(resumed.next().await.unwrap().unwrap().seq, 11);
}

#[tokio::test]
async fn running_agents_show_what_they_do() {
    let world = World::new(|request| match request.turn {
        0 => Turn::say("I begin.").and_call("a", "no_such_tool", "{}"),
        _ => Turn::complete("ok").after(Duration::from_mins(10)),
    })
    .await;
    let id = world.start("x").await;
    eventually("the second request", || world.model.requests() == 2).await;
    let preview = || world.engine.show(&id).unwrap().recent_output.unwrap_or_default();
    eventually("a preview", || preview().contains("there is no tool")).await;
    let status = world.engine.show(&id).unwrap();
    assert_eq!(status.turns, Some(1));
    assert_eq!(status.tokens, Some(15));
}

/// A long reply is not kept in memory; its beginning is.
#[tokio::test]
async fn a_long_reply_has_a_preview_too() {
    let world = World::new(|request| match request.turn {
        0 => Turn::say(format!("It begins. {}", "x".repeat(100_000))),
        _ => Turn::complete("ok").after(Duration::from_mins(10)),
    })
    .await;
    let id = world.start("x").await;
    eventually("the second request", || world.model.requests() == 2).await;
    world.until(&id, |body| matches!(body, EventBody::Nudge { .. })).await;
    let preview = world.engine.show(&id).unwrap().recent_output.unwrap();
    assert!(preview.starts_with("It begins. xxx") && preview.ends_with("..."), "{preview}");
    assert_eq!(preview.chars().count(), 203);
}

#[tokio::test]
async fn an_interrupted_run_goes_on_by_itself_without_repeating() {
    let directory = tempfile::tempdir().unwrap();
    let model = ScriptedModel::start(|request| {
        let last = request.last_message();
        match request.turn {
            0 => Turn::call("write_file", &json!({"path": "a.txt", "content": "one"})),
            1 if last["role"] == "tool" => Turn::say("I think").after(Duration::from_mins(10)),
            _ => Turn::complete("scripted end"),
        }
    })
    .await;
    let home = tempfile::tempdir().unwrap();
    let engine = Engine::open(options(&home, &model.url())).await.unwrap();
    let spec = RunSpec { workdir: Some(directory.path().to_owned()), ..RunSpec::default() };
    let run = engine.start(Start { contract: "x".into(), spec, key: None, settings: None }).await.unwrap();
    let id = run.id.to_string();
    eventually("the second request", || model.requests() == 2).await;
    engine.shutdown().await;
    engine.closed().await;

    std::fs::remove_file(directory.path().join("a.txt")).unwrap();
    let engine = Engine::open(options(&home, &model.url())).await.unwrap();
    let status = end_of(&engine, &id).await;
    assert_eq!(engine.record(&id).unwrap().restarts, 1);
    assert_eq!(status.summary.as_deref(), Some("scripted end"));
    assert!(!directory.path().join("a.txt").exists(), "a call with a known result was repeated");
    assert_eq!(model.violations(), [""; 0]);
}

#[tokio::test]
async fn deleting_a_running_agent_ends_it() {
    let world = World::new(|_| Turn::call("no_such_tool", &json!({})).after(Duration::from_millis(50))).await;
    let id = world.start("x").await;
    eventually("a request", || world.model.requests() == 1).await;
    world.engine.delete(&id).await.unwrap();
    assert_eq!(world.engine.show(&id).unwrap_err().code(), Code::AgentNotFound);
    world.engine.shutdown().await;
    assert_eq!(world.model.requests(), 1);
}

#[tokio::test]
async fn a_run_is_prepared_started_and_begun_anew() {
    let world = World::new(|_| Turn::complete("ok")).await;
    let engine = &world.engine;
    let id = engine.create(Start::default()).await.unwrap().id.to_string();
    assert_eq!(engine.start_ready(&id).await.unwrap_err().code(), Code::ContractInvalid);
    engine.set_contract(&id, "now I know".into()).await.unwrap();
    engine.start_ready(&id).await.unwrap();
    let first = world.end_of(&id).await;
    assert_eq!(engine.start_ready(&id).await.unwrap_err().code(), Code::AgentStateInvalid);
    assert_eq!(engine.set_contract(&id, "x".into()).await.unwrap_err().code(), Code::AgentStateInvalid);
    let seen = engine.record(&id).unwrap().last_seq;
    let ready = engine.restart(&id).await.unwrap();
    assert_eq!((ready.state.status(), ready.summary.as_deref()), (RunStatus::Ready, None));
    assert!(ready.last_seq > seen, "positions never go back");
    assert_eq!(world.engine.output(&id, 0, 100).await.unwrap().entries.len(), 1, "the past is gone");
    engine.start_ready(&id).await.unwrap();
    let second = world.end_of(&id).await;
    assert!(second.completed_at >= first.completed_at);
    let events = engine.events(0, 100).await.unwrap().events;
    let kinds: Vec<_> =
        events.iter().map(|event| event.kind.as_str()).filter(|kind| *kind != "run.output").collect();
    let begun = ["run.queued", "run.started", "run.ended"];
    let expected =
        ["run.created", "run.changed"].into_iter().chain(begun).chain(["run.changed"]).chain(begun);
    assert_eq!(kinds, expected.collect::<Vec<_>>());
}

#[tokio::test]
async fn pruning_removes_what_has_ended() {
    let world = World::new(|request| {
        let slow = request.body["messages"][1]["content"].as_str().unwrap().contains("slow");
        Turn::complete("ok").after(if slow { Duration::from_mins(10) } else { Duration::ZERO })
    })
    .await;
    let slow = world.start("slow").await;
    for _ in 0..3 {
        world.run("quick").await;
    }
    let old = world.engine.prune(Prune { older_than: Duration::from_hours(1), keep: 0 }).await.unwrap();
    assert!(old.is_empty());
    assert_eq!(world.engine.prune(Prune { older_than: Duration::ZERO, keep: 1 }).await.unwrap().len(), 2);
    let left: Vec<_> = world.engine.list(None).into_iter().map(|status| status.status.unwrap()).collect();
    assert_eq!(left, [RunStatus::Running, RunStatus::Completed]);
    assert_eq!(world.engine.list(Some(RunStatus::Running))[0].agent_id, slow);
}

#[tokio::test]
async fn without_a_model_a_rehearsal_is_played_and_labelled() {
    let home = tempfile::tempdir().unwrap();
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("README.md"), "# A project\n").unwrap();
    let mut options = options(&home, "http://127.0.0.1:1/");
    options.settings_mut().models.clear();
    let engine = Engine::open(options).await.unwrap();
    let play = async |contract: &str| {
        let spec = RunSpec { workdir: Some(directory.path().to_owned()), ..RunSpec::default() };
        let run =
            engine.start(Start { contract: contract.into(), spec, key: None, settings: None }).await.unwrap();
        let status = end_of(&engine, run.id.as_str()).await;
        (status, transcript(&engine, run.id.as_str()).await)
    };
    let (status, first) = play("tidy up").await;
    assert!(status.rehearsal && status.model.as_deref() == Some("rehearsal"));
    assert!(status.summary.unwrap().starts_with("Rehearsal only"));
    assert!(status.payload.unwrap().payload_size > 0);
    assert!(matches!(&first[1], EventBody::Note { content } if content.contains("rehearsal")));
    let used: Vec<_> = first
        .iter()
        .filter_map(|body| match body {
            EventBody::ToolResult { name, is_error: false, .. } => Some(name.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(used, ["list_files", "read_file", "agent_complete"]);
    let (_, second) = play("tidy up").await;
    assert_eq!(first, second, "a rehearsal is always the same");
    let (failed, _) = play("tidy up\nrehearse: fail").await;
    assert_eq!(failed.reason, Some(StopReason::ContractFailed));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing was changed");
}

#[tokio::test]
async fn a_configured_model_is_never_replaced_by_the_rehearsal() {
    let home = tempfile::tempdir().unwrap();
    let url = crewkit_testkit::model::refusing_url().await;
    let engine = Engine::open(options(&home, &url)).await.unwrap();
    let run = engine.start(Start { contract: "x".into(), ..Start::default() }).await.unwrap();
    let status = end_of(&engine, run.id.as_str()).await;
    assert_eq!(status.reason, Some(StopReason::ModelFailed));
    assert!(!status.rehearsal);
}

#[tokio::test]
async fn two_processes_cannot_share_a_store() {
    let world = World::new(|_| Turn::complete("ok")).await;
    let second = Engine::open(options(&world.home, &world.model.url())).await;
    assert_eq!(second.unwrap_err().code(), Code::StoreLocked);
}

#[tokio::test]
async fn two_askers_use_their_own_models_and_a_resumed_run_those_of_its_start() {
    let world = World::new(|_| Turn::complete("from the server's model")).await;
    let other = ScriptedModel::start(|request| {
        let resumed = request.body["messages"].as_array().unwrap().len() > 2;
        if resumed { Turn::complete("from the asker's model") } else { Turn::say("[CONTRACT FAILED]") }
    })
    .await;
    let settings = std::sync::Arc::new(RunSettings {
        models: vec![Endpoint::new("other", other.url(), "other-1")],
        ..RunSettings::default()
    });
    let asker = world.engine.with_settings(&settings).unwrap();
    let run = asker.start(Start { contract: "x".into(), ..Start::default() }).await.unwrap();
    let id = run.id.to_string();
    assert_eq!(world.end_of(&id).await.reason, Some(StopReason::ContractFailed));
    assert_eq!(world.run("y").await.summary.as_deref(), Some("from the server's model"));
    drop(asker);
    // Whoever resumes it: the settings are those of its start.
    world.engine.resume(&id).await.unwrap();
    let status = world.end_of(&id).await;
    assert_eq!(status.summary.as_deref(), Some("from the asker's model"));
    assert_eq!(status.model.as_deref(), Some("other-1"));
    assert_eq!((world.model.requests(), other.requests()), (1, 2));
    let settings = Some(world.engine.record_settings(&settings));
    let start = Start { contract: "z".into(), settings, ..Start::default() };
    let run = world.engine.start(start).await.unwrap();
    assert_eq!(world.end_of(run.id.as_str()).await.reason, Some(StopReason::ContractFailed));
}
