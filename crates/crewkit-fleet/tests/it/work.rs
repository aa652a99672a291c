//! Starting, stopping, deleting and waiting in detail.

use std::sync::Arc;

use crewkit_fleet::ErrorKind;
use crewkit_fleet::backend::coder::Intents;
use crewkit_fleet::model::{LogQuery, TaskSource, TaskStatus, WaitForAgent};
use crewkit_testkit::coder::{Profile, Reporter, Said, SimCoder, Template};

use super::support::{Fixture, detail, fixture, fleet, history, json, named, new_agent, refused, start};

#[tokio::test]
async fn the_agent_itself_has_the_last_word_on_whether_it_works() {
    let Fixture { sim, fleet } = fixture(Profile::V2_32).await;
    {
        let mut world = sim.world();
        // Reports lag: it works but has not said so.
        world.add_agent("lags").agent.running = true;
        // Reports stick: it rests but said that it works.
        world.add_agent("sticks").report(5, "working", "long done", "");
        // Nobody answers: the reports are all there is.
        let silent = world.add_agent("silent");
        silent.agent.reachable = false;
        silent.report(5, "working", "typing", "");
    }
    let shown = async |name: &str| fleet.show_agent(named(name)).await.unwrap().agent;
    assert_eq!(shown("lags").await.status.as_str(), "busy");
    let sticks = shown("sticks").await;
    assert_eq!(
        (sticks.status.as_str(), sticks.current_task, sticks.last_task.as_deref()),
        ("idle", None, Some("long done"))
    );
    assert_eq!(shown("silent").await.status.as_str(), "busy");

    refused(ErrorKind::Conflict, fleet.start_agent_task(start("lags", "x")).await);
    fleet.start_agent_task(start("sticks", "next")).await.unwrap();
}

#[tokio::test]
async fn an_agent_that_has_not_read_its_spec_yet_is_not_called_idle_by_its_rest() {
    let Fixture { sim, fleet } = fixture(Profile::V2_32).await;
    fleet.create_agent(new_agent("papi")).await.unwrap();
    {
        let mut world = sim.world();
        let workspace = world.workspace_mut("papi");
        "running".clone_into(&mut workspace.status);
        "connected".clone_into(&mut workspace.agent_status);
        "ready".clone_into(&mut workspace.lifecycle);
    }
    let shown = fleet.show_agent(named("papi")).await.unwrap().agent;
    assert_eq!(shown.status.as_str(), "idle", "no report says otherwise");
    assert!(shown.last_task.is_none());
}

#[tokio::test]
async fn a_message_that_arrived_counts_as_started_whatever_the_answer() {
    for profile in [Profile::V2_32, Profile::V2_37] {
        let Fixture { sim, fleet } = fixture(profile).await;
        sim.world().add_agent("papi").agent.takes_but_fails = true;
        let started = fleet.start_agent_task(start("papi", "do it once")).await.unwrap();
        assert_eq!(started.task.summary, "do it once");
        let told = sim.world().workspace_mut("papi").agent.messages.len();
        assert_eq!(told, 1, "{profile:?}: sent once");
    }
}

#[tokio::test]
async fn an_unreachable_agent_is_said_to_be_unreachable() {
    for profile in [Profile::V2_27, Profile::V2_32, Profile::V2_37] {
        let Fixture { sim, fleet } = fixture(profile).await;
        sim.world().add_agent("papi").agent.reachable = false;
        let error = refused(ErrorKind::Unavailable, fleet.start_agent_task(start("papi", "x")).await);
        assert_eq!(detail(&error, "outcome"), "unknown", "{error}");
        assert!(!json(&error.body()).to_string().contains("CANARY"), "no page of the proxy is quoted");
    }
}

#[tokio::test]
async fn a_started_task_is_in_the_history_before_and_after_it_is_reported() {
    let Fixture { sim, fleet } = fixture(Profile::V2_32).await;
    sim.world().add_agent("papi").agent.reporter = Reporter::Silent;
    fleet.start_agent_task(start("papi", "quiet work")).await.unwrap();
    let tasks = fleet.show_agent_task_history(history("papi")).await.unwrap().tasks;
    assert_eq!(
        (tasks[0].summary.as_str(), tasks[0].source, tasks[0].status),
        ("quiet work", TaskSource::AiController, TaskStatus::Running)
    );

    sim.world().workspace_mut("papi").report(4000, "working", "Reading code", "");
    let tasks = fleet.show_agent_task_history(history("papi")).await.unwrap().tasks;
    assert_eq!(
        (tasks[0].summary.as_str(), tasks[0].message.as_str(), tasks[0].source),
        ("quiet work", "Reading code", TaskSource::AiController)
    );
}

#[tokio::test]
async fn a_stop_that_does_not_help_is_not_called_one() {
    let Fixture { sim, fleet } = fixture(Profile::V2_32).await;
    {
        let mut world = sim.world();
        for (name, keys) in [("stubborn", None), ("obedient", Some(1))] {
            let agent = &mut world.add_agent(name).agent;
            agent.running = true;
            agent.keys_until_rest = keys;
        }
    }
    let stopped = fleet.stop_agent_task(named("stubborn")).await.unwrap();
    assert_eq!((stopped.agent_status.as_str(), stopped.details.confirmed), ("busy", false));
    let stopped = fleet.stop_agent_task(named("obedient")).await.unwrap();
    assert_eq!((stopped.agent_status.as_str(), stopped.details.confirmed), ("idle", true));
    assert_eq!((stopped.task.status, stopped.task.completed_at.is_some()), (TaskStatus::Stopped, true));
}

#[tokio::test]
async fn the_interrupt_key_is_pressed_again_when_the_first_closed_a_menu() {
    let Fixture { sim, fleet } = fixture(Profile::V2_32).await;
    {
        let mut world = sim.world();
        let agent = &mut world.add_agent("slow").agent;
        agent.running = true;
        agent.keys_until_rest = Some(2);
    }
    let stopped = fleet.stop_agent_task(named("slow")).await.unwrap();
    assert!(stopped.details.confirmed);
}

#[tokio::test]
async fn a_delete_goes_through_in_every_status() {
    let Fixture { sim, fleet } = fixture(Profile::V2_32).await;
    {
        let mut world = sim.world();
        world.add_agent("busy").report(5, "working", "x", "");
        world.add_agent("stopped").status = "stopped".to_owned();
        world.add_agent("deleting").status = "deleting".to_owned();
    }
    for name in ["busy", "stopped", "deleting"] {
        let deleted = fleet.delete_agent(named(name)).await.unwrap();
        assert_eq!(deleted.status.as_str(), "deleting", "{name}");
        assert_eq!(sim.world().workspace_mut(name).status, "deleting");
    }
    sim.world().finish_builds();
    refused(ErrorKind::NotFound, fleet.delete_agent(named("busy")).await);
}

#[tokio::test]
async fn a_delete_that_meets_a_build_is_carried_out_when_the_build_ends() {
    let Fixture { sim, fleet } = fixture(Profile::V2_36).await;
    {
        let mut world = sim.world();
        world.add_template(Template {
            name: "free".to_owned(),
            display_name: "Free".to_owned(),
            allow_cancel: true,
            ..Template::default()
        });
        world.add_agent("stuck").status = "starting".to_owned();
        world.add_workspace("cancelable", "fleetbot", "free").status = "starting".to_owned();
    }
    for name in ["stuck", "cancelable"] {
        let deleted = fleet.delete_agent(named(name)).await.unwrap();
        assert_eq!(deleted.status.as_str(), "deleting");
        assert!(deleted.message.contains("another build is under way"), "{}", deleted.message);
        let shown = fleet.show_agent(named(name)).await.unwrap().agent;
        assert_eq!(shown.status.as_str(), "deleting", "nobody may take it for an agent at work");
    }
    sim.world().finish_builds();
    fleet.backend().settled().await;
    for name in ["stuck", "cancelable"] {
        assert_eq!(sim.world().workspace_mut(name).status, "deleting", "{name}");
    }
}

/// Coder refuses a chained start of a task's workspace, and tells nobody.
#[tokio::test]
async fn a_restart_is_two_builds_and_the_answer_comes_with_the_second() {
    for profile in [Profile::V2_27, Profile::V2_36] {
        let Fixture { sim, fleet } = fixture(profile).await;
        sim.world().add_agent("papi");
        sim.world().builds_end_after_reads = Some(1);
        let restarted = fleet.restart_agent(named("papi")).await.unwrap();
        assert_eq!(restarted.status.as_str(), "starting", "{profile:?}: {}", restarted.message);
        fleet.backend().settled().await;
        assert_eq!(sim.world().workspace_mut("papi").status, "running", "{profile:?}");

        // One that is stopped is started; one in the middle of a build is refused.
        "stopped".clone_into(&mut sim.world().workspace_mut("papi").status);
        assert_eq!(fleet.restart_agent(named("papi")).await.unwrap().status.as_str(), "starting");
        fleet.backend().settled().await;
        sim.world().builds_end_after_reads = None;
        "starting".clone_into(&mut sim.world().workspace_mut("papi").status);
        let error = refused(ErrorKind::Conflict, fleet.restart_agent(named("papi")).await);
        assert_eq!(detail(&error, "reason"), "build_active");
    }
}

#[tokio::test]
async fn a_request_that_goes_away_leaves_nothing_half_done() {
    let Fixture { sim, fleet } = fixture(Profile::V2_36).await;
    sim.world().add_agent("papi");
    let asked = tokio::spawn({
        let fleet = fleet.clone();
        async move { fleet.restart_agent(named("papi")).await }
    });
    while sim.count("POST", "/api/v2/workspaces/") == 0 {
        tokio::task::yield_now().await;
    }
    asked.abort();
    let _ = asked.await;
    sim.world().finish_builds();
    sim.world().builds_end_after_reads = Some(0);
    fleet.backend().settled().await;
    assert_eq!(sim.world().workspace_mut("papi").status, "running");
}

/// A runtime that is dropped with everything on it stands for a server that was killed.
#[test]
fn what_a_killed_server_left_on_coder_is_finished_by_the_next() {
    let outer = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let home = tempfile::tempdir().unwrap();
    let (sim, engine) = outer.block_on(async {
        let options = crewkit_agent::Options::new(home.path().join("home"));
        let engine = crewkit_agent::Engine::open(options).await.unwrap();
        (SimCoder::start(Profile::V2_36).await.unwrap(), engine)
    });
    let on_record = || {
        let (intents, documents) = (Arc::new(Intents::default()), engine.documents());
        intents.keep_in(move || {
            let documents = documents.clone();
            Box::pin(async move { Ok(documents) })
        });
        fleet(&sim, |settings| settings.intents = intents)
    };
    sim.world().add_agent("papi");
    sim.world().add_agent("doomed").status = "starting".to_owned();

    let killed = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    killed.block_on(async {
        let fleet = on_record();
        fleet.delete_agent(named("doomed")).await.unwrap();
        let restart = fleet.restart_agent(named("papi"));
        let stopping = async {
            while sim.count("POST", "/api/v2/workspaces/") < 2 {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        tokio::select! { _ = restart => panic!("it has not stopped yet"), () = stopping => {} }
    });
    killed.shutdown_background();
    sim.world().finish_builds();
    assert_eq!(sim.world().workspace_mut("papi").status, "stopped");

    outer.block_on(async {
        sim.world().builds_end_after_reads = Some(0);
        let next = on_record();
        next.backend().take_up().await.unwrap();
        next.backend().settled().await;
        assert_eq!(sim.world().workspace_mut("papi").status, "running");
        assert_eq!(sim.world().workspace_mut("doomed").status, "deleting");
        let again = on_record();
        again.backend().take_up().await.unwrap();
        again.backend().settled().await;
        assert_eq!(sim.world().workspace_mut("doomed").status, "deleting", "nothing is left on record");
    });
    outer.shutdown_background();
}

#[tokio::test]
async fn waiting_ends_when_the_agent_changes() {
    let Fixture { sim, fleet } = fixture(Profile::V2_32).await;
    sim.world().add_agent("papi").agent.running = true;
    let wait = |status: &str, seconds| WaitForAgent {
        agent_name: "papi".to_owned(),
        status: Some(status.to_owned()),
        timeout_seconds: Some(seconds),
    };
    let timed_out = fleet.wait_for_agent(wait("idle", 1)).await.unwrap();
    assert_eq!((timed_out.reached, timed_out.status.as_str()), (false, "busy"));

    let change = async {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        let mut world = sim.world();
        let workspace = world.workspace_mut("papi");
        workspace.agent.running = false;
        workspace.report(100, "complete", "all done", "");
    };
    let (waited, ()) = tokio::join!(fleet.wait_for_agent(wait("idle", 60)), change);
    let waited = waited.unwrap();
    assert_eq!((waited.reached, waited.last_task.as_deref()), (true, Some("all done")));

    fleet.delete_agent(named("papi")).await.unwrap();
    let gone = async {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        sim.world().finish_builds();
    };
    let (waited, ()) = tokio::join!(fleet.wait_for_agent(wait("deleted", 60)), gone);
    assert!(waited.unwrap().reached);
}

#[tokio::test]
async fn the_log_is_paged_newest_first_and_its_entries_are_bounded() {
    for profile in [Profile::V2_32, Profile::V2_37] {
        let Fixture { sim, fleet } = fixture(profile).await;
        sim.world().add_agent("papi").agent.messages = vec![
            Said::now("user", "first"),
            Said::now("agent", &format!("\u{1b}[31m{}", "x".repeat(20_000))),
        ];
        let query = LogQuery { agent_name: "papi".to_owned(), ..LogQuery::default() };
        let log = fleet.show_agent_log(query.clone()).await.unwrap();
        assert_eq!((log.total_count, log.page_size, log.total_pages, log.has_next_page), (2, 1, 2, true));
        assert!(log.logs[0].truncated && log.logs[0].content.len() == 16 * 1024);
        assert!(log.logs[0].content.starts_with("[31m"), "control characters are gone");
        let older = fleet.show_agent_log(LogQuery { page: Some(2), ..query }).await.unwrap();
        assert_eq!(
            (older.logs[0].content.as_str(), json(&older)["logs"][0]["type"].as_str()),
            ("first", Some("input"))
        );
    }
}

#[tokio::test]
async fn apps_are_reached_by_subdomain_when_paths_are_closed() {
    let Fixture { sim, fleet } = fixture(Profile::V2_32).await;
    // Names under `localhost` need no resolver; the port is part of the pattern Coder gives.
    let port = sim.url().rsplit(':').next().unwrap().to_owned();
    let resolves = tokio::net::lookup_host(format!("x.localhost:{port}")).await.is_ok();
    {
        let mut world = sim.world();
        world.app_host = format!("*.localhost:{port}");
        world.path_apps = false;
        let workspace = world.add_agent("papi");
        workspace.subdomain = true;
        workspace.agent.running = true;
    }
    let status = fleet.show_agent(named("papi")).await.unwrap().agent.status;
    let expected = if resolves { "busy" } else { "idle" };
    assert_eq!(status.as_str(), expected);
    sim.world().path_apps = true;
    let status = fleet.show_agent(named("papi")).await.unwrap().agent.status;
    assert_eq!(status.as_str(), "busy", "the path is tried when the subdomain does not answer");
}
