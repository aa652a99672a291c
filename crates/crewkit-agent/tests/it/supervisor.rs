//! The supervisor: who works, in which order, and what a caller that goes away leaves behind.

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crewkit_agent::driver::{Format, ProcessDriver, Stdin};
use crewkit_agent::engine::{Prune, Start, Until};
use crewkit_agent::{Engine, RunSpec};
use crewkit_core::Code;
use crewkit_core::run::{RunStatus, StopReason};
use crewkit_testkit::model::{ScriptedModel, Turn};

use crate::support::{PATIENCE, World, end_of, eventually, limit, options};

/// A driver that is a shell script.
fn shell(name: &str, script: &str) -> ProcessDriver {
    ProcessDriver {
        name: name.to_owned(),
        command: ["sh", "-c", script].map(str::to_owned).to_vec(),
        stdin: Stdin::Nothing,
        format: Format::Text,
        environment: Vec::new(),
    }
}

fn start(contract: &str) -> Start {
    Start { contract: contract.to_owned(), ..Start::default() }
}

fn phase(world: &World, id: &str) -> Option<&'static str> {
    world.engine.show(id).unwrap().phase
}

#[tokio::test]
async fn runs_beyond_the_capacity_are_queued_and_claimed_in_the_order_of_starting() {
    let world = World::with(
        |_| Turn::complete("ok"),
        |options| limit(options, |limits| limits.agent_runs_active = 1),
    )
    .await;
    let mut ids = Vec::new();
    for n in 0..20 {
        ids.push(world.start(&format!("contract {n:02}")).await);
    }
    for id in &ids {
        assert_eq!(world.end_of(id).await.status, Some(RunStatus::Completed));
    }
    let asked: Vec<String> = world
        .model
        .bodies()
        .iter()
        .map(|body| {
            let text = body["messages"][1]["content"].as_str().unwrap();
            let at = text.find("contract ").unwrap();
            text[at..at + 11].to_owned()
        })
        .collect();
    let expected: Vec<String> = (0..20).map(|n| format!("contract {n:02}")).collect();
    assert_eq!(asked, expected);
}

#[tokio::test]
async fn the_queue_is_bounded_and_a_queued_run_can_be_stopped_and_deleted() {
    let world = World::with(
        |_| Turn::complete("ok").after(Duration::from_mins(10)),
        |options| {
            limit(options, |limits| {
                limits.agent_runs_active = 1;
                limits.agent_queue = 2;
            });
        },
    )
    .await;
    let first = world.start("a").await;
    eventually("the first works", || phase(&world, &first) == Some("working")).await;
    let (second, third) = (world.start("b").await, world.start("c").await);
    assert_eq!(phase(&world, &second), Some("queued"));
    let refused = world.engine.start(start("d")).await.unwrap_err();
    assert_eq!(refused.code(), Code::AgentsBusy);
    assert_eq!(world.engine.list(None).len(), 3, "a refused run is not there");
    world.engine.stop(&second).await.unwrap();
    world.engine.delete(&third).await.unwrap();
    let fourth = world.start("e").await;
    world.engine.stop(&first).await.unwrap();
    eventually("the next works", || phase(&world, &fourth) == Some("working")).await;
    assert_eq!(world.engine.show(&second).unwrap().reason, Some(StopReason::Requested));
    assert_eq!(world.engine.stop_all(StopReason::ServerStopped).await.unwrap(), 1);
    assert_eq!(world.engine.show(&fourth).unwrap().reason, Some(StopReason::ServerStopped));
}

/// Polls a future `polls` times and drops it; returns whether it was over by then.
async fn cut_after<F: Future>(polls: usize, future: F) -> bool {
    let mut future = pin!(future);
    for _ in 0..polls {
        let polled = std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await;
        if polled.is_ready() {
            return true;
        }
        // Lets the writer and the supervisor go on, as they would while a client still listens.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    false
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_hangs_up_at_any_poll_leaves_no_ghost() {
    let world = World::new(|_| Turn::complete("ok").after(Duration::from_mins(10))).await;
    let engine = &world.engine;
    let workdir = tempfile::tempdir().unwrap();
    let spec = RunSpec { workdir: Some(workdir.path().to_owned()), ..RunSpec::default() };
    let mut over = false;
    let mut polls = 0;
    while !over {
        polls += 1;
        let keyed = Start { key: Some(format!("k{polls}")), spec: spec.clone(), ..start("x") };
        over = cut_after(polls, engine.start(keyed.clone())).await;
        // Whoever asks again with the key gets a run that is carried out.
        let id = engine.start(keyed).await.unwrap().id.to_string();
        eventually("it works", || phase(&world, &id) == Some("working")).await;
        let mut stopped = false;
        let mut resumed = false;
        let mut completed = false;
        let mut deleted = false;
        let mut step = 0;
        while !(stopped && resumed) {
            step += 1;
            stopped |= cut_after(step, engine.stop(&id)).await;
            engine.stop(&id).await.unwrap();
            resumed |= cut_after(step, engine.resume(&id)).await;
            let _ = engine.resume(&id).await;
            eventually("it works again", || phase(&world, &id) == Some("working")).await;
        }
        let payload = "p".repeat(100_000);
        let mut step = 0;
        while !completed {
            step += 1;
            completed = cut_after(step, engine.complete(&id, "s".into(), Some(payload.clone()))).await;
            let _ = engine.show(&id).unwrap();
        }
        assert_eq!(engine.show(&id).unwrap().status, Some(RunStatus::Completed));
        let mut step = 0;
        while !deleted {
            step += 1;
            deleted = cut_after(step, engine.delete(&id)).await || engine.show(&id).is_err();
        }
        eventually("it is gone", || engine.show(&id).is_err()).await;
    }
    assert!(engine.list(None).is_empty(), "{:?}", engine.list(None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_hangs_up_while_it_prepares_or_clears_away_leaves_no_ghost() {
    let world = World::new(|_| Turn::complete("ok").after(Duration::from_mins(10))).await;
    let engine = &world.engine;
    let everything = Prune { older_than: Duration::ZERO, keep: 0 };
    let mut over = [false; 5];
    let mut polls = 0;
    while over.contains(&false) {
        polls += 1;
        let keyed = Start { key: Some(format!("k{polls}")), ..start("x") };
        over[0] |= cut_after(polls, engine.create(keyed.clone())).await;
        let id = engine.create(keyed).await.unwrap().id.to_string();
        over[1] |= cut_after(polls, engine.set_contract(&id, format!("{polls}"))).await;
        // The writer has taken the order by now, whoever waits for it.
        engine.set_contract(&id, format!("{polls}!")).await.unwrap();
        assert_eq!(engine.contract(&id.parse().unwrap()).await.unwrap(), format!("{polls}!"));
        over[2] |= cut_after(polls, engine.start_ready(&id)).await;
        let _ = engine.start_ready(&id).await;
        eventually("it works", || phase(&world, &id) == Some("working")).await;
        engine.stop(&id).await.unwrap();
        over[3] |= cut_after(polls, engine.restart(&id)).await;
        let _ = engine.restart(&id).await;
        assert_eq!(engine.show(&id).unwrap().status, Some(RunStatus::Ready));
        engine.stop(&id).await.unwrap();
        over[4] |= cut_after(polls, engine.prune(everything)).await;
        engine.prune(everything).await.unwrap();
        assert!(engine.list(None).is_empty(), "{:?}", engine.list(None));
    }
}

#[tokio::test]
async fn a_resumed_run_waits_until_its_previous_process_is_gone() {
    let directory = tempfile::tempdir().unwrap();
    // Takes a while to end, and notes when it begins and ends.
    let script =
        "echo begin >> log; trap 'sleep 0.3; echo end >> log; exit 0' TERM; while :; do sleep 0.01; done";
    let world = World::with(
        |_| Turn::say("x"),
        |options| options.settings_mut().drivers = vec![shell("slow", script)],
    )
    .await;
    let spec = RunSpec {
        driver: Some("slow".into()),
        workdir: Some(directory.path().to_owned()),
        ..RunSpec::default()
    };
    let id = world.start_spec("x", spec).await;
    let log = || std::fs::read_to_string(directory.path().join("log")).unwrap_or_default();
    for round in 1..=4_usize {
        eventually("it began", || log().matches("begin").count() == round).await;
        // Within the grace of the first process, which has only been asked to end.
        world.engine.stop(&id).await.unwrap();
        world.engine.resume(&id).await.unwrap();
    }
    world.engine.stop_all(StopReason::Requested).await.unwrap();
    let lines: Vec<String> = log().lines().map(str::to_owned).collect();
    for pair in lines.chunks(2) {
        assert_eq!(pair, ["begin", "end"], "two attempts at once: {lines:?}");
    }
}

#[tokio::test]
async fn a_parent_that_waits_for_ten_children_with_two_slots_ends() {
    let directory = tempfile::tempdir().unwrap();
    let script = "echo $CREWKIT_AGENT_TOKEN > token.part; mv token.part token; while [ ! -e done ]; do sleep 0.01; done";
    let world = World::with(
        |_| Turn::complete("ok"),
        |options| {
            options.settings_mut().drivers = vec![shell("parent", script)];
            options.may = vec!["agent_wait".to_owned()];
            limit(options, |limits| limits.agent_runs_active = 2);
        },
    )
    .await;
    let engine = &world.engine;
    let spec = || RunSpec {
        driver: Some("parent".into()),
        workdir: Some(directory.path().to_owned()),
        ..RunSpec::default()
    };
    let parent = world.start_spec("x", spec()).await;
    let file = directory.path().join("token");
    eventually("the parent works", || file.exists()).await;
    let token = std::fs::read_to_string(&file).unwrap().trim().to_owned();
    let grant = engine.attempt_by_token(&token).unwrap();
    assert_eq!(grant.may, ["agent_complete", "agent_wait"]);
    // A second one holds the other slot, and waits too.
    let other = tempfile::tempdir().unwrap();
    let second = RunSpec { workdir: Some(other.path().to_owned()), ..spec() };
    let second = world.start_spec("x", second).await;
    eventually("the second works", || other.path().join("token").exists()).await;
    let other_token = std::fs::read_to_string(other.path().join("token")).unwrap().trim().to_owned();
    let other_grant = engine.attempt_by_token(&other_token).unwrap();
    let mut children = Vec::new();
    for n in 0..10 {
        children.push(world.start(&format!("child {n}")).await);
    }
    assert!(children.iter().all(|child| phase(&world, child) == Some("queued")));
    let wait = |grant| {
        let (engine, children) = (engine.clone(), children.clone());
        async move { engine.wait_as(&grant, &children, Until::All, PATIENCE, &|_, _| {}).await.unwrap() }
    };
    let seen = async {
        eventually("it says what it waits for", || {
            let status = serde_json::to_value(engine.show(&parent).unwrap()).unwrap();
            status["phase"] == "waiting" && status["waits_for"]["agents"].as_array().is_some()
        })
        .await;
    };
    let (waited, also, ()) = tokio::join!(wait(grant), wait(other_grant), seen);
    assert!(waited.done && also.done);
    eventually("the parent works again", || phase(&world, &parent) == Some("working")).await;
    std::fs::write(directory.path().join("done"), "").unwrap();
    std::fs::write(other.path().join("done"), "").unwrap();
    assert_eq!(world.end_of(&parent).await.status, Some(RunStatus::Completed));
    assert_eq!(world.end_of(&second).await.status, Some(RunStatus::Completed));
}

#[tokio::test]
async fn a_wait_that_is_abandoned_gives_the_run_its_slot_back() {
    let directory = tempfile::tempdir().unwrap();
    let script = "echo $CREWKIT_AGENT_TOKEN > token.part; mv token.part token; while :; do sleep 0.01; done";
    let world = World::with(
        |_| Turn::complete("ok").after(Duration::from_mins(10)),
        |options| {
            options.settings_mut().drivers = vec![shell("parent", script)];
            limit(options, |limits| limits.agent_runs_active = 1);
        },
    )
    .await;
    let spec = RunSpec {
        driver: Some("parent".into()),
        workdir: Some(directory.path().to_owned()),
        ..RunSpec::default()
    };
    let parent = world.start_spec("x", spec).await;
    eventually("the parent works", || directory.path().join("token").exists()).await;
    let token = std::fs::read_to_string(directory.path().join("token")).unwrap().trim().to_owned();
    let grant = world.engine.attempt_by_token(&token).unwrap();
    let child = world.start("child").await;
    {
        let ids = [child.clone()];
        let wait = world.engine.wait_as(&grant, &ids, Until::All, PATIENCE, &|_, _| {});
        let seen = eventually("the child has the slot", || phase(&world, &child) == Some("working"));
        tokio::select! {
            _ = wait => panic!("the child does not end"),
            () = seen => {}
        }
    }
    assert_eq!(phase(&world, &parent), Some("waiting"));
    world.engine.stop(&child).await.unwrap();
    eventually("the parent works again", || phase(&world, &parent) == Some("working")).await;
}

#[tokio::test]
async fn a_run_is_taken_up_again_only_so_many_times() {
    let model = ScriptedModel::start(|_| Turn::say("x").after(Duration::from_mins(10))).await;
    let home = tempfile::tempdir().unwrap();
    let open = || {
        let mut options = options(&home, &model.url());
        limit(&mut options, |limits| limits.agent_restarts = 2);
        async move { Engine::open(options).await.unwrap() }
    };
    let engine = open().await;
    let id = engine.start(start("x")).await.unwrap().id.to_string();
    let mut engine = engine;
    for restart in 0..=2 {
        eventually("it asks the model", || model.requests() == restart + 1).await;
        engine.shutdown().await;
        engine.closed().await;
        engine = open().await;
    }
    assert_eq!(engine.show(&id).unwrap().reason, Some(StopReason::ServerRestarted));
    // Somebody who wants it begins to count anew.
    engine.resume(&id).await.unwrap();
    eventually("it asks again", || model.requests() == 4).await;
    assert_eq!(engine.record(&id).unwrap().restarts, 0);
    engine.stop(&id).await.unwrap();
    end_of(&engine, &id).await;
}

#[tokio::test]
async fn pruning_never_removes_a_run_that_was_resumed() {
    let world = World::new(|_| Turn::complete("ok").after(Duration::from_mins(10))).await;
    let engine = Arc::new(world.engine.clone());
    for _ in 0..30 {
        let id = world.start("x").await;
        engine.stop(&id).await.unwrap();
        let prune = Prune { older_than: Duration::ZERO, keep: 0 };
        let (resumed, pruned) = tokio::join!(engine.resume(&id), engine.prune(prune));
        let is_pruned = pruned.unwrap().iter().any(|record| record.id.as_str() == id);
        assert_ne!(resumed.is_ok(), is_pruned, "resumed and removed");
        if resumed.is_ok() {
            assert_eq!(engine.show(&id).unwrap().status, Some(RunStatus::Running));
            engine.delete(&id).await.unwrap();
        }
    }
}
