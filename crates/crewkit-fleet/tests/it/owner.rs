//! Work belongs to the owner of an agent: requests that go away and owners that fail leave nothing stuck and lose nothing.
//!
//! The short form drops each request after a few polls and fails each effect once. `CREWKIT_FLEET_SWEEP=N` goes on to N.

use std::future::Future;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use crewkit_fleet::backend::local::{Faults, FleetSettings, Local};
use crewkit_fleet::equip::{Choice, EquipOrder};
use crewkit_fleet::kit::Kit;
use crewkit_fleet::model::{CreateAgent, StartTask, TaskSource, TaskStatus};
use crewkit_fleet::{ErrorKind, Fleet};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::local::{OneFile, World, git};
use super::support::{detail, history, named, refused, start};

/// How far the sweeps go.
fn sweep(short: usize) -> usize {
    std::env::var("CREWKIT_FLEET_SWEEP").ok().and_then(|number| number.parse().ok()).unwrap_or(short)
}

/// Polls `request` `polls` times at most and drops it; returns whether it was done by then.
async fn hang_up<T>(request: impl Future<Output = T>, polls: usize) -> bool {
    let mut request = Box::pin(request);
    for _ in 0..polls {
        let polled = std::future::poll_fn(|context: &mut Context<'_>| {
            Poll::Ready(request.as_mut().poll(context).is_ready())
        });
        if polled.await {
            return true;
        }
        // Whatever the request waits for may happen meanwhile.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    false
}

fn new_agent(name: &str) -> CreateAgent {
    CreateAgent {
        name: name.to_owned(),
        project: "Project One".to_owned(),
        spec: Some("work slowly".to_owned()),
        ..CreateAgent::default()
    }
}

/// Every mutating operation on the agent called `papi`.
const OPERATIONS: [&str; 7] = ["create", "start", "stop", "restart", "equip", "delete", "add_project"];

fn request<'a>(
    fleet: &'a Fleet<Local>,
    operation: &str,
    other: &'a Path,
) -> BoxFuture<'a, Result<(), String>> {
    let order = EquipOrder { choice: Choice::All, profile: None, canary: None, rollback: false };
    let told = |error: crewkit_fleet::FleetError| error.to_string();
    match operation {
        "create" => {
            async move { fleet.create_agent(new_agent("papi")).await.map(drop).map_err(told) }.boxed()
        }
        "start" => {
            async move { fleet.start_agent_task(start("papi", "slowly")).await.map(drop).map_err(told) }
                .boxed()
        }
        "stop" => async move { fleet.stop_agent_task(named("papi")).await.map(drop).map_err(told) }.boxed(),
        "restart" => async move { fleet.restart_agent(named("papi")).await.map(drop).map_err(told) }.boxed(),
        "equip" => async move { fleet.backend().equip(order).await.map(drop).map_err(told) }.boxed(),
        "delete" => async move { fleet.delete_agent(named("papi")).await.map(drop).map_err(told) }.boxed(),
        _ => async move { fleet.backend().add_project(other, None).await.map(drop).map_err(told) }.boxed(),
    }
}

/// A world in which `operation` can be asked for.
async fn prepared(operation: &str, faults: Faults) -> World {
    let kit: Arc<dyn Kit> = Arc::new(OneFile::default());
    let world = World::with(|options| {
        options.settings.driver = Some("fake".to_owned());
        options.settings.kit = Some(kit);
        options.faults = faults;
    })
    .await;
    std::fs::create_dir_all(world.repository().with_file_name("other")).unwrap();
    if !matches!(operation, "create" | "add_project") {
        let spec =
            if matches!(operation, "stop" | "restart" | "delete") { "work slowly" } else { "be quick" };
        let new = CreateAgent { spec: Some(spec.to_owned()), ..new_agent("papi") };
        world.fleet.create_agent(new).await.unwrap();
        world.until("papi", if spec == "be quick" { "idle" } else { "busy" }).await;
    }
    world
}

/// The agent can be stopped, given a task and deleted, and nothing of it is left afterwards. What was accepted may still be
/// under way, so a refusal is tried again; an agent that is stuck refuses for ever.
async fn usable_and_gone(world: &World, what: &str) {
    const TRIES: usize = 1000;
    let fleet = &world.fleet;
    let mut last = String::new();
    let mut tries = 0;
    while let Ok(shown) = fleet.show_agent(named("papi")).await {
        tries += 1;
        assert!(tries < TRIES, "{what}: stuck at {}: {last}", shown.agent.status);
        let told = match shown.agent.status.as_str() {
            "busy" => fleet.stop_agent_task(named("papi")).await.map(drop),
            "failed" => fleet.restart_agent(named("papi")).await.map(drop),
            "idle" => match fleet.start_agent_task(start("papi", "slowly again")).await {
                Ok(started) => {
                    assert_eq!(started.agent_status.as_str(), "busy", "{what}");
                    let stopped = fleet.stop_agent_task(named("papi")).await;
                    let stopped = stopped.unwrap_or_else(|error| panic!("{what}: {error}"));
                    assert_eq!(stopped.task.id, started.task.id, "{what}");
                    fleet.delete_agent(named("papi")).await.map(drop)
                }
                Err(error) => Err(error),
            },
            _ => Ok(()),
        };
        last = told.err().map(|error| error.to_string()).unwrap_or_default();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    refused(ErrorKind::NotFound, fleet.show_agent(named("papi")).await);
    assert_eq!(world.processes(), Vec::<String>::new(), "{what}");
    assert!(!git(&world.repository(), &["worktree", "list"]).contains("papi"), "{what}");
    // The name is free again, unless what was cut short is carried out only now.
    match fleet.create_agent(new_agent("papi")).await {
        Ok(_) => {
            fleet.delete_agent(named("papi")).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        Err(error) => {
            assert_eq!(detail(&error, "reason"), "already_exists", "{what}: {error}");
            Box::pin(usable_and_gone(world, what)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_hangs_up_at_any_poll_leaves_no_agent_stuck() {
    for operation in OPERATIONS {
        for polls in 1..=sweep(3) {
            let world = prepared(operation, Faults::default()).await;
            let other = world.repository().with_file_name("other");
            let done = hang_up(request(&world.fleet, operation, &other), polls).await;
            let what = format!("{operation} dropped after {polls} polls");
            usable_and_gone(&world, &what).await;
            world.fleet.backend().add_project(&other, None).await.unwrap();
            if done {
                break;
            }
        }
    }
}

/// Fails the owner once, after the `at`-th effect of a kind.
fn fail_at(
    kind: &'static str,
    at: usize,
    panics: bool,
    armed: &Arc<Mutex<bool>>,
) -> (Faults, Arc<AtomicUsize>) {
    let (seen, armed) = (Arc::new(AtomicUsize::new(0)), Arc::clone(armed));
    let count = Arc::clone(&seen);
    let faults = Faults::new(move |effect| {
        if effect != kind || !*armed.lock().unwrap() || count.fetch_add(1, Ordering::SeqCst) != at {
            return Ok(());
        }
        assert!(!panics, "the owner is told to fail");
        Err("told to fail".to_owned())
    });
    (faults, seen)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_fails_after_any_effect_leaves_its_agent_usable() {
    for operation in OPERATIONS.into_iter().filter(|operation| *operation != "add_project") {
        for kind in ["store", "git", "pack", "run"] {
            for panics in [false, true] {
                for at in 0..sweep(1) {
                    let armed = Arc::new(Mutex::new(false));
                    let (faults, seen) = fail_at(kind, at, panics, &armed);
                    let world = prepared(operation, faults).await;
                    *armed.lock().unwrap() = true;
                    let what = format!("{operation} failing after {kind} {at}, panic {panics}");
                    let answer = request(&world.fleet, operation, Path::new("")).await;
                    if seen.load(Ordering::SeqCst) <= at {
                        answer.unwrap_or_else(|error| panic!("{what}: {error}"));
                        *armed.lock().unwrap() = false;
                        break;
                    }
                    *armed.lock().unwrap() = false;
                    usable_and_gone(&world, &what).await;
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queued_task_can_be_stopped_and_a_start_says_that_it_waits() {
    let world = World::with(|options| {
        options.settings.driver = Some("fake".to_owned());
        options.limits =
            Arc::new(crewkit_core::Limits { fleet_tasks_active: 1, ..crewkit_core::Limits::default() });
    })
    .await;
    world.create("second", "be quick").await;
    world.until("second", "idle").await;
    world.create("first", "work slowly").await;
    world.until_held("first").await;
    let started = world.fleet.start_agent_task(start("second", "be quick")).await.unwrap();
    let told = serde_json::to_value(&started).unwrap();
    assert_eq!((started.task.status, started.agent_status.as_str()), (TaskStatus::Running, "busy"));
    assert_eq!(told["task"]["phase"], "queued");
    assert!(started.task.started_at.is_some());
    let waiting = world.fleet.show_agent_task_history(history("second")).await.unwrap().tasks.remove(0);
    assert_eq!((waiting.status, waiting.id.as_str()), (TaskStatus::Pending, started.task.id.as_str()));
    // A refusal is no wait.
    let error = refused(ErrorKind::Conflict, world.fleet.start_agent_task(start("second", "more")).await);
    assert_eq!(detail(&error, "reason"), "busy");
    let stopped = world.fleet.stop_agent_task(named("second")).await.unwrap();
    assert_eq!((stopped.task.status, stopped.task.id), (TaskStatus::Stopped, started.task.id));
    assert_eq!(stopped.agent_status.as_str(), "idle");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_ends_the_open_task_for_good() {
    let world = World::new().await;
    world.create("papi", "work slowly").await;
    world.until_held("papi").await;
    world.fleet.restart_agent(named("papi")).await.unwrap();
    world.until("papi", "idle").await;
    let world = world.reopen().await;
    let tasks = world.fleet.show_agent_task_history(history("papi")).await.unwrap().tasks;
    assert_eq!((tasks.len(), tasks[0].status), (1, TaskStatus::Stopped));
    assert_eq!(world.fleet.show_agent(named("papi")).await.unwrap().agent.status.as_str(), "idle");
    assert_eq!(world.processes(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_again_answers_with_the_same_agent_and_the_same_task() {
    let world = World::new().await;
    let new =
        CreateAgent { key: Some("k1".to_owned()), spec: Some("be quick".to_owned()), ..new_agent("papi") };
    let first = world.fleet.create_agent(new.clone()).await.unwrap().agent.workspace_id;
    assert_eq!(world.fleet.create_agent(new.clone()).await.unwrap().agent.workspace_id, first);
    let other = CreateAgent { name: "sony".to_owned(), ..new };
    let error = refused(ErrorKind::BadRequest, world.fleet.create_agent(other).await);
    assert_eq!(detail(&error, "field"), "key");
    world.until("papi", "idle").await;
    let order =
        StartTask { key: Some("k2".to_owned()), source: TaskSource::Human, ..start("papi", "slowly") };
    let task = world.fleet.start_agent_task(order.clone()).await.unwrap().task;
    let again = world.fleet.start_agent_task(order).await.unwrap().task;
    assert_eq!((again.id.as_str(), again.source), (task.id.as_str(), TaskSource::Human));
    let tasks = world.fleet.show_agent_task_history(history("papi")).await.unwrap().tasks;
    let sources: Vec<_> = tasks.iter().map(|task| task.source).collect();
    assert_eq!(sources, [TaskSource::Human, TaskSource::AiController]);
    // What was asked stays what it is about; what the agent said is the message.
    assert_eq!((tasks[1].summary.as_str(), tasks[1].message.as_str()), ("be quick", "all done: be quick"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_whose_program_is_missing_is_refused_and_nothing_is_recorded() {
    let world = World::with(|options| {
        options.settings.driver = Some("absent".to_owned());
        let drivers = &mut Arc::make_mut(&mut options.settings.run).drivers;
        let mut absent = drivers.iter().find(|driver| driver.name == "fake").unwrap().clone();
        absent.name = "absent".to_owned();
        absent.command[0] = "no-such-program-here".to_owned();
        drivers.push(absent);
    })
    .await;
    let error = refused(ErrorKind::BadRequest, world.fleet.create_agent(new_agent("papi")).await);
    assert_eq!(detail(&error, "reason"), "driver");
    assert!(error.message().contains("no-such-program-here"), "{error}");
    refused(ErrorKind::NotFound, world.fleet.show_agent(named("papi")).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_askers_repository_is_offered_and_registered_by_the_first_agent_in_it() {
    let world = World::new().await;
    let beside = world.repository().with_file_name("beside");
    std::fs::create_dir_all(beside.join("deep")).unwrap();
    git(&beside, &["init", "-q", "-b", "main"]);
    let names = async |fleet: &Fleet<Local>| {
        let listed = fleet.list_agent_projects().await.unwrap().projects;
        listed.into_iter().map(|project| project.name).collect::<Vec<_>>()
    };
    let local = world.fleet.backend().for_asker(FleetSettings {
        driver: Some("fake".to_owned()),
        directory: Some(beside.join("deep")),
        run: world.run_settings(),
        ..FleetSettings::default()
    });
    let asked = Fleet::new(local, crewkit_fleet::FleetOptions::default());
    assert_eq!(names(&asked).await, ["beside"]);
    assert_eq!(names(&world.fleet).await, ["Project One"], "a list registers nothing");
    let new = CreateAgent { project: "beside".to_owned(), ..new_agent("papi") };
    asked.create_agent(new).await.unwrap();
    assert_eq!(names(&world.fleet).await, ["Project One", "beside"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_use_the_environment_that_their_agent_was_created_with() {
    let world = World::new().await;
    let asked = |word: &str| {
        let mut run = world.run_settings().as_ref().clone();
        run.environment.push(("WORD".into(), word.into()));
        let fake = run.drivers.iter_mut().find(|driver| driver.name == "fake").unwrap();
        fake.command = ["sh", "-c", "echo \"said $WORD\""].map(Into::into).into();
        let settings =
            FleetSettings { driver: Some("fake".to_owned()), run: Arc::new(run), ..world.settings() };
        Fleet::new(world.fleet.backend().for_asker(settings), crewkit_fleet::FleetOptions::default())
    };
    let (one, two) = (asked("one"), asked("two"));
    one.create_agent(new_agent("papi")).await.unwrap();
    two.create_agent(new_agent("sony")).await.unwrap();
    world.until("papi", "idle").await;
    world.until("sony", "idle").await;
    // Whoever asks for the next task, it is carried out with the agent's own settings.
    two.start_agent_task(start("papi", "again")).await.unwrap();
    world.until("papi", "idle").await;
    let said = async |name: &str| {
        let tasks = world.fleet.show_agent_task_history(history(name)).await.unwrap().tasks;
        tasks.into_iter().map(|task| task.message).collect::<Vec<_>>()
    };
    assert_eq!(said("papi").await, ["said one", "said one"]);
    assert_eq!(said("sony").await, ["said two"]);
}
