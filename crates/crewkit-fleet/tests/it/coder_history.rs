//! The tasks of an agent on Coder are the messages it was given, in every answer and in every process.

use std::sync::Arc;

use crewkit_fleet::ErrorKind;
use crewkit_fleet::backend::coder::Intents;
use crewkit_fleet::model::{CreateAgent, LogQuery, StartTask, Task, TaskSource, TaskStatus};
use crewkit_testkit::coder::{Profile, Reporter, Said};

use super::support::{
    CoderFleet, Fixture, checked, detail, fixture, fleet, history, named, new_agent, refused, start,
    without_metadata,
};

async fn tasks(fleet: &CoderFleet) -> Vec<Task> {
    checked("show_agent_task_history", fleet.show_agent_task_history(history("papi")).await.unwrap()).tasks
}

fn rows(tasks: &[Task]) -> Vec<(&str, TaskStatus)> {
    tasks.iter().map(|task| (task.summary.as_str(), task.status)).collect()
}

/// What the list and the full answer call the task at hand and the last one.
async fn names_of_tasks(fleet: &CoderFleet) -> [Option<String>; 4] {
    let listed = fleet.list_agents(without_metadata()).await.unwrap().agents.remove(0);
    let shown = fleet.show_agent(named("papi")).await.unwrap().agent;
    [listed.current_task, shown.current_task, shown.last_task, listed.last_task]
}

/// The usual reporter says that the agent works or rests, and not a word more.
#[tokio::test]
async fn every_answer_names_the_same_task_on_every_version() {
    use TaskStatus::{Completed, Running, Stopped};
    for profile in Profile::ALL {
        let Fixture { sim, fleet: ours } = fixture(profile).await;
        ours.create_agent(CreateAgent { source: TaskSource::Human, ..new_agent("papi") }).await.unwrap();
        sim.world().finish_builds();
        ours.backend().settled().await;
        sim.world().workspace_mut("papi").rest("built");
        assert_eq!(rows(&tasks(&ours).await), [("Build the thing", Completed)], "{profile:?}");

        let started = ours.start_agent_task(start("papi", "Write a test\nfor it")).await.unwrap().task;
        let stranger = fleet(&sim, |_| {});
        for fleet in [&ours, &stranger] {
            let [listed, shown, last, _] = names_of_tasks(fleet).await;
            let name = Some("Write a test");
            assert_eq!(
                (listed.as_deref(), shown.as_deref(), last.as_deref()),
                (name, name, name),
                "{profile:?}"
            );
            let all = tasks(fleet).await;
            assert_eq!(
                rows(&all),
                [("Write a test", Running), ("Build the thing", Completed)],
                "{profile:?}"
            );
            assert_eq!((&all[0].id, all[0].created_at), (&started.id, started.created_at), "{profile:?}");
        }
        let before = tasks(&ours).await;
        assert_eq!((before[0].source, before[1].source), (TaskSource::AiController, TaskSource::Human));

        let stopped = ours.stop_agent_task(named("papi")).await.unwrap().task;
        assert_eq!((stopped.id, stopped.summary.as_str()), (started.id, "Write a test"), "{profile:?}");
        let after = tasks(&ours).await;
        assert_eq!(rows(&after), [("Write a test", Stopped), ("Build the thing", Completed)], "{profile:?}");
        assert_eq!(
            after.iter().map(|task| &task.id).collect::<Vec<_>>(),
            before.iter().map(|task| &task.id).collect::<Vec<_>>()
        );
        assert!(after.iter().all(|task| task.completed_at.is_some()), "{profile:?}");
        let name = Some("Write a test".to_owned());
        assert_eq!(names_of_tasks(&ours).await, [None, None, name.clone(), name], "{profile:?}");
    }
}

#[tokio::test]
async fn what_a_person_types_in_coder_is_a_task_of_a_person() {
    let Fixture { sim, fleet } = fixture(Profile::V2_36).await;
    sim.world().add_agent("papi").tell("typed in Coder");
    let all = tasks(&fleet).await;
    assert_eq!((all[0].summary.as_str(), all[0].source), ("typed in Coder", TaskSource::Human));
    sim.world().workspace_mut("papi").rest("done");
    let person = StartTask { source: TaskSource::Human, ..start("papi", "from the command line") };
    assert_eq!(fleet.start_agent_task(person).await.unwrap().task.source, TaskSource::Human);
    assert_eq!(tasks(&fleet).await[0].source, TaskSource::Human);
}

/// A report may be stamped before the send returns.
#[tokio::test]
async fn a_finished_task_is_not_running_and_stands_there_once() {
    for reporter in [Reporter::Silent, Reporter::States, Reporter::Words] {
        let Fixture { sim, fleet } = fixture(Profile::V2_32).await;
        sim.world().add_agent("papi").agent.reporter = reporter;
        fleet.start_agent_task(start("papi", "quick")).await.unwrap();
        sim.world().workspace_mut("papi").rest("that was quick");
        let all = tasks(&fleet).await;
        assert_eq!(rows(&all)[0], ("quick", TaskStatus::Completed), "{reporter:?}");
        assert!(all[0].completed_at >= all[0].started_at && all[0].completed_at.is_some(), "{reporter:?}");
        assert_eq!(all.iter().filter(|task| task.summary == "quick").count(), 1, "{reporter:?}");
        let said = if reporter == Reporter::Words { "that was quick" } else { "quick" };
        assert_eq!(all[0].message, said, "{reporter:?}");
    }
}

#[tokio::test]
async fn the_spec_of_an_agent_that_never_reports_does_not_stay_pending() {
    let Fixture { sim, fleet } = fixture(Profile::V2_32).await;
    sim.world().add_agent("papi").agent.reporter = Reporter::Silent;
    assert_eq!(rows(&tasks(&fleet).await), [("Initial spec of papi", TaskStatus::Completed)]);
    sim.world().workspace_mut("papi").agent.running = true;
    assert_eq!(rows(&tasks(&fleet).await), [("Initial spec of papi", TaskStatus::Running)]);
}

#[tokio::test]
async fn a_restart_leaves_what_coder_keeps_and_the_rest_is_named() {
    let Fixture { sim, fleet } = fixture(Profile::V2_36).await;
    sim.world().builds_end_after_reads = Some(0);
    fleet.create_agent(new_agent("papi")).await.unwrap();
    sim.world().finish_builds();
    fleet.start_agent_task(start("papi", "second")).await.unwrap();
    fleet.restart_agent(named("papi")).await.unwrap();
    fleet.backend().settled().await;
    let after = fleet.show_agent_task_history(history("papi")).await.unwrap();
    assert!(after.tasks.iter().all(|task| task.summary == "Build the thing"), "{after:?}");
    let missing = after.details.missing.unwrap();
    assert!(missing.contains("before"), "{missing}");
}

#[tokio::test]
async fn a_stopped_agent_tells_from_its_snapshot_or_says_why_it_cannot() {
    let Fixture { sim, fleet } = fixture(Profile::V2_36).await;
    {
        let mut world = sim.world();
        let workspace = world.add_agent("papi");
        "stopped".clone_into(&mut workspace.status);
    }
    let log = || LogQuery { agent_name: "papi".to_owned(), page_size: Some(10), ..LogQuery::default() };
    let error = refused(ErrorKind::BadRequest, fleet.show_agent_log(log()).await);
    assert_eq!(detail(&error, "reason"), "no_snapshot");
    let without = fleet.show_agent_task_history(history("papi")).await.unwrap();
    assert!(without.details.missing.unwrap().contains("no snapshot"));

    let kept =
        vec![Said::now("user", "Initial spec of papi"), Said::now("agent", "ok"), Said::now("user", "more")];
    sim.world().workspace_mut("papi").agent.snapshot = Some(kept);
    assert_eq!(fleet.show_agent_log(log()).await.unwrap().total_count, 3);
    assert_eq!(tasks(&fleet).await[0].summary, "more");
}

/// Who gave a task is on record: a later server of the same home says the same.
#[tokio::test]
async fn who_gave_a_task_is_known_to_the_next_server() {
    let home = tempfile::tempdir().unwrap();
    let options = crewkit_agent::Options::new(home.path().join("home"));
    let engine = crewkit_agent::Engine::open(options).await.unwrap();
    let Fixture { sim, .. } = fixture(Profile::V2_36).await;
    let server = || {
        let (intents, documents) = (Arc::new(Intents::default()), engine.documents());
        intents.keep_in(move || {
            let documents = documents.clone();
            Box::pin(async move { Ok(documents) })
        });
        fleet(&sim, |settings| settings.intents = intents)
    };
    sim.world().add_agent("papi");
    let first = server();
    first.start_agent_task(start("papi", "by a tool")).await.unwrap();
    first.stop_agent_task(named("papi")).await.unwrap();
    let (before, after) = (tasks(&first).await, tasks(&server()).await);
    assert_eq!(before, after);
    assert_eq!((after[0].source, after[0].status), (TaskSource::AiController, TaskStatus::Stopped));
    first.delete_agent(named("papi")).await.unwrap();
    first.backend().settled().await;
    let kept = engine.documents();
    let left = tokio::task::spawn_blocking(move || kept.all("coder_tasks")).await.unwrap().unwrap();
    assert_eq!(left, [], "nothing stays of an agent that is gone");
}
