//! Command lines as drivers: their output becomes the transcript, and nothing of them survives a stop.

use std::path::Path;

use crewkit_agent::driver::{Format, ProcessDriver, Stdin};
use crewkit_agent::{EventBody, RunSpec};
use crewkit_core::run::{RunStatus, StopReason};
use crewkit_testkit::bins;
use crewkit_testkit::model::Turn;

use crate::support::{World, eventually, is_alive};

fn driver(scene: &str, argument: &str, format: Format) -> ProcessDriver {
    ProcessDriver {
        name: "fake".into(),
        command: vec![bins::fake("fake-agent").to_string_lossy().into_owned(), scene.into(), argument.into()],
        stdin: Stdin::Contract,
        format,
        environment: Vec::new(),
    }
}

async fn world(driver: ProcessDriver) -> World {
    World::with(|_| Turn::say("not asked"), |options| options.settings_mut().drivers = vec![driver]).await
}

fn spec() -> RunSpec {
    RunSpec { driver: Some("fake".into()), ..RunSpec::default() }
}

#[tokio::test]
async fn every_scene_has_its_end() {
    use Format::{Claude, Codex, Text};
    for (scene, argument, format, expected) in [
        ("claude-ok", "", Claude, Ok("did: the contract")),
        ("claude-error", "", Claude, Err("Credit balance is too low")),
        ("claude-max-turns", "", Claude, Err("error_max_turns")),
        ("claude-no-result", "", Claude, Err("ended without a result")),
        ("claude-refused", "", Claude, Err("Failed to authenticate. API Error: 401")),
        ("claude-refused", "die", Claude, Err("(authentication_failed, status 401); retry 2 of 10 in 1.2 s")),
        ("codex-ok", "", Codex, Ok("did: the contract")),
        ("codex-failed", "", Codex, Err("stream disconnected")),
        ("text-ok", "", Text, Ok("working\nall done: the contract")),
        ("text-failed", "", Text, Err("I could not")),
        ("exit", "7", Text, Err("fake ended with exit code 7: something broke: 7")),
        ("exit", "7", Claude, Err("exit code 7")),
        ("exit", "7", Codex, Err("exit code 7")),
        ("long-line", "", Claude, Ok("after a long line")),
        ("flood", "5", Text, Ok("xxx")),
    ] {
        let world = world(driver(scene, argument, format)).await;
        let id = world.start_spec("the contract", spec()).await;
        let status = world.end_of(&id).await;
        match expected {
            Ok(summary) => {
                assert_eq!(status.status, Some(RunStatus::Completed), "{scene}: {status:?}");
                assert!(status.summary.as_ref().unwrap().contains(summary), "{scene}: {status:?}");
            }
            Err(error) => {
                assert_eq!(status.status, Some(RunStatus::Stopped), "{scene}: {status:?}");
                assert!(status.error.as_ref().unwrap().contains(error), "{scene}: {status:?}");
            }
        }
        assert_eq!(world.model.requests(), 0);
    }
}

fn outline(bodies: &[EventBody]) -> Vec<String> {
    let line = |body: &EventBody| match body {
        EventBody::Status { status, .. } => format!("status {status}"),
        EventBody::Assistant { content, reasoning, tool_calls, usage } => {
            let calls: Vec<String> =
                tool_calls.iter().map(|call| format!("{}{}", call.name, call.arguments)).collect();
            let thought = reasoning.as_deref().unwrap_or("-");
            format!(
                "assistant {content:?} {thought} {calls:?} {}",
                usage.map_or(0, crewkit_agent::Usage::total)
            )
        }
        EventBody::ToolResult { call_id, content, is_error, .. } => {
            format!("result {call_id} {content:?} {is_error}")
        }
        EventBody::Note { content } => format!("note {content}"),
        EventBody::Error { content } => format!("error {content}"),
        other => format!("{other:?}"),
    };
    bodies.iter().map(line).collect()
}

#[tokio::test]
async fn the_streams_become_the_same_kind_of_transcript() {
    let claude = world(driver("claude-ok", "", Format::Claude)).await;
    let id = claude.start_spec("c", spec()).await;
    let status = claude.end_of(&id).await;
    assert_eq!((status.tokens, status.turns), (Some(32), Some(3)), "usage that is repeated counts once");
    assert_eq!(
        outline(&claude.transcript(&id).await),
        [
            "status running",
            "note claude started with fake",
            "note (node:1) Warning: a line that is no message",
            "assistant \"\" let me see [] 12",
            "assistant \"I look around.\" - [] 0",
            "assistant \"\" - [\"Bash{\\\"command\\\":\\\"ls\\\"}\"] 0",
            "result toolu_1 \"a.txt\" false",
            "note {\"type\":\"assistant\",\"message\":{\"content\":[{\"type\":\"te",
            "assistant \"\" - [] 20",
            "status completed",
        ]
    );
    let codex = world(driver("codex-ok", "", Format::Codex)).await;
    let id = codex.start_spec("c", spec()).await;
    assert_eq!(codex.end_of(&id).await.tokens, Some(107));
    assert_eq!(
        outline(&codex.transcript(&id).await),
        [
            "status running",
            "note codex started",
            "error Reconnecting... 1/5",
            "assistant \"\" **Looking** [] 0",
            "assistant \"\" - [\"command{\\\"command\\\":\\\"bash -lc ls\\\"}\"] 0",
            "result item_1 \"a.txt\\n\" false",
            "assistant \"\" - [\"file_change{\\\"changes\\\":[{\\\"path\\\":\\\"a.txt\\\",\\\"kind\\\":\\\"update\\\"}]}\"] 0",
            "result item_2 \"completed\" false",
            "assistant \"did: c\" - [] 0",
            "assistant \"\" - [] 107",
            "status completed",
        ]
    );
}

/// A person who looks at a run that gets nowhere sees why while it tries.
#[tokio::test]
async fn trouble_is_told_while_it_lasts() {
    let world = world(driver("claude-refused", "hang", Format::Claude)).await;
    let id = world.start_spec("c", spec()).await;
    let noted = |wanted: &'static str| move |body: &EventBody| matches!(body, EventBody::Note { content } if content == wanted);
    let retry = "a request to the model failed (authentication_failed, status 401); retry 2 of 10 in 1.2 s";
    world.until(&id, noted(retry)).await;
    world.until(&id, noted("on standard error: no such key")).await;
    assert_eq!(world.engine.show(&id).unwrap().status, Some(RunStatus::Running));
    world.engine.stop(&id).await.unwrap();
}

fn pid_in(file: &Path) -> Option<u32> {
    std::fs::read_to_string(file).ok().and_then(|text| text.parse().ok())
}

#[tokio::test]
async fn a_stop_leaves_nothing_behind() {
    for scene in ["stubborn", "daemon"] {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pid");
        let world = world(driver(scene, file.to_str().unwrap(), Format::Text)).await;
        let id = world.start_spec("stay", spec()).await;
        world.until(&id, |body| matches!(body, EventBody::Assistant { .. })).await;
        let pid = pid_in(&file).unwrap();
        assert!(is_alive(pid), "{scene}");
        world.engine.stop(&id).await.unwrap();
        eventually(scene, || !is_alive(pid)).await;
    }
}

#[tokio::test]
async fn the_wall_time_of_a_driver_is_capped() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("pid");
    let world = world(driver("stubborn", file.to_str().unwrap(), Format::Text)).await;
    let id = world.start_spec("stay", RunSpec { max_seconds: Some(1), ..spec() }).await;
    assert_eq!(world.end_of(&id).await.reason, Some(StopReason::TimeLimit));
    eventually("it is gone", || !is_alive(pid_in(&file).unwrap())).await;
}

#[tokio::test]
async fn the_turns_and_tokens_of_a_driver_are_capped() {
    for (scene, format) in [("claude-endless", Format::Claude), ("codex-endless", Format::Codex)] {
        for (max_turns, max_tokens, reason, error) in [
            (Some(3), None, StopReason::TurnLimit, "the cap of 3 turns is reached"),
            (None, Some(190), StopReason::TokenLimit, "the cap of 190 tokens is reached"),
        ] {
            let world = world(driver(scene, "", format)).await;
            let id = world.start_spec("work", RunSpec { max_turns, max_tokens, ..spec() }).await;
            let status = world.end_of(&id).await;
            assert_eq!((status.reason, status.error.as_deref()), (Some(reason), Some(error)), "{scene}");
            // The reply that is one too many is in the transcript.
            assert_eq!(status.turns, Some(4), "{scene}, {reason}");
        }
    }
}

/// A driver that writes its environment to `env` in its working directory and stays, whatever it is asked.
fn tells_its_environment() -> ProcessDriver {
    let script = "trap '' TERM; env > env.part; mv env.part env; echo told; while :; do sleep 0.05; done";
    ProcessDriver {
        command: ["sh", "-c", script].map(Into::into).to_vec(),
        // What a driver's settings say does not change who it is.
        environment: vec![("CREWKIT_AGENT_TOKEN".into(), "chosen".into())],
        ..driver("", "", Format::Text)
    }
}

fn variable(file: &Path, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
}

#[tokio::test]
async fn an_attempt_has_a_token_that_dies_with_it() {
    let world = World::with(
        |_| Turn::say("not asked"),
        |options| {
            options.settings_mut().drivers = vec![tells_its_environment()];
            options.server_socket = Some("/run/crewkit.sock".into());
        },
    )
    .await;
    let mut seen = Vec::new();
    for how in ["stop", "complete", "delete", "time", "resume"] {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("env");
        let workdir = Some(directory.path().to_owned());
        let max_seconds = (how == "time").then_some(1);
        let id = world.start_spec("stay", RunSpec { workdir, max_seconds, ..spec() }).await;
        eventually("it told its environment", || file.exists()).await;
        let token = variable(&file, "CREWKIT_AGENT_TOKEN").unwrap();
        assert_eq!(token.len(), 64, "{how}");
        assert_eq!(variable(&file, "CREWKIT_AGENT_ID").as_deref(), Some(&*id), "{how}");
        assert_eq!(variable(&file, "CREWKIT_SERVER_SOCKET").as_deref(), Some("/run/crewkit.sock"), "{how}");
        if how != "time" {
            let grant = world.engine.attempt_by_token(&token).unwrap();
            assert_eq!((grant.run.as_str(), grant.may), (&*id, vec!["agent_complete"]), "{how}");
        }
        for other in ["", "chosen", &token[1..], &token.to_uppercase(), &id] {
            assert!(world.engine.attempt_by_token(other).is_none(), "{other}");
        }
        // The process does not leave when it is asked to: it is over at once all the same.
        match how {
            "complete" => drop(world.engine.complete(&id, "done".into(), None).await.unwrap()),
            "delete" => world.engine.delete(&id).await.unwrap(),
            "time" => drop(world.end_of(&id).await),
            _ => drop(world.engine.stop(&id).await.unwrap()),
        }
        assert!(world.engine.attempt_by_token(&token).is_none(), "{how}");
        if how == "resume" {
            std::fs::remove_file(&file).unwrap();
            world.engine.resume(&id).await.unwrap();
            eventually("it told its environment again", || file.exists()).await;
            let next = variable(&file, "CREWKIT_AGENT_TOKEN").unwrap();
            assert!(
                world.engine.attempt_by_token(&token).is_none(),
                "the old token is not the new attempt's"
            );
            assert!(world.engine.attempt_by_token(&next).is_some());
            seen.push(next);
            world.engine.stop(&id).await.unwrap();
        }
        seen.push(token);
    }
    let all = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), all, "every attempt has a token of its own");
    world.engine.shutdown().await;
    for token in &seen {
        assert!(!holds(world.home.path(), token.as_bytes()), "a token was written to the home");
    }
}

/// Whether any file below the directory holds the bytes.
fn holds(directory: &Path, bytes: &[u8]) -> bool {
    std::fs::read_dir(directory).unwrap().flatten().any(|entry| {
        let path = entry.path();
        if path.is_dir() {
            return holds(&path, bytes);
        }
        path.is_file()
            && std::fs::read(&path).is_ok_and(|found| found.windows(bytes.len()).any(|part| part == bytes))
    })
}

#[tokio::test]
async fn a_program_that_is_not_there_is_named() {
    let missing = ProcessDriver { command: vec!["/no/such/program".into()], ..driver("x", "", Format::Text) };
    let world = world(missing).await;
    let id = world.start_spec("x", spec()).await;
    let status = world.end_of(&id).await;
    assert_eq!(status.reason, Some(StopReason::DriverFailed));
    assert!(status.error.unwrap().starts_with("/no/such/program: "));
}
