//! Real processes that do not want to end, held by a real shim.
//!
//! The shim is this test binary, started again with one hidden test: no other program has to be built for it.

use std::path::Path;
use std::time::Duration;

use super::*;
use crate::time::Clock;

const SHIM_DIR: &str = "CREWKIT_TEST_SHIM_DIR";

/// Not a test: becomes a shim when a test starts it as one.
#[test]
fn be_a_shim() {
    let Some(dir) = std::env::var_os(SHIM_DIR) else { return };
    run_shim(Path::new(&dir), &mut std::io::stdout(), || 7).unwrap();
}

struct World {
    dir: tempfile::TempDir,
    launcher: Launcher,
    task: String,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let task = format!("task-{}", uuid::Uuid::now_v7().simple());
        let this = std::env::current_exe().unwrap();
        let test = "backend::local::held::tests::be_a_shim";
        // The directory comes last on the command line; it is passed by name here, because the test harness would take it for
        // a filter. A shell in between turns the one into the other.
        let script = format!("{SHIM_DIR}=\"$1\" exec '{}' --exact {test} --nocapture", this.display());
        let launcher = Launcher {
            command: ["sh", "-c", &script, "sh"].map(Into::into).into(),
            environment: vec![("PATH".into(), std::env::var_os("PATH").unwrap())],
            fleet: format!("fleet-{task}"),
            clock: Clock::system(),
        };
        Self { dir, launcher, task }
    }

    fn order(&self, script: &str) -> Order {
        Order {
            command: ["sh", "-c", script].map(Into::into).into(),
            directory: self.dir.path().to_owned(),
            task: self.task.clone(),
            output_bytes: 1000,
            seconds: 0,
            grace_ms: 100,
        }
    }

    async fn launch(&self, order: &Order, stdin: Option<&str>) -> Adoption {
        let parcel = Parcel { order, stdin, environment: &[] };
        self.launcher.launch(self.dir.path(), parcel).await.unwrap()
    }

    async fn hold(&self, script: &str) -> Held {
        match self.launch(&self.order(script), None).await {
            Adoption::Alive(held) => held,
            Adoption::Ended(exit) => panic!("{exit:?}"),
        }
    }

    fn output(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("stdout")).unwrap_or_default()
    }

    async fn until_it_says(&self, words: &str) {
        while !self.output().contains(words) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn assert_nothing_is_left(&self) {
        assert_eq!(self.launcher.tasks_with_processes().await, Vec::<String>::new());
    }
}

async fn end_of(adoption: Adoption) -> Exit {
    match adoption {
        Adoption::Alive(held) => held.ended().await,
        Adoption::Ended(exit) => exit,
    }
}

#[tokio::test]
async fn output_input_and_exit_code_are_kept() {
    let world = World::new();
    let order = world.order("cat; echo oops >&2; exit 3");
    let exit = end_of(world.launch(&order, Some("hello")).await).await;
    assert_eq!((exit.ending, exit.code, exit.how.as_str()), (Ending::Exited, Some(3), "exit code 3"));
    assert_eq!(world.output(), "hello");
    assert_eq!(std::fs::read_to_string(world.dir.path().join("stderr")).unwrap(), "oops\n");
}

#[tokio::test]
async fn a_program_that_is_not_there_is_told() {
    let world = World::new();
    let order = Order { command: vec!["no-such-program-here".to_owned()], ..world.order("") };
    let exit = end_of(world.launch(&order, None).await).await;
    assert_eq!(exit.ending, Ending::NotStarted);
    assert!(exit.how.starts_with("no-such-program-here: "), "{}", exit.how);
}

#[tokio::test]
async fn output_beyond_the_limit_is_dropped() {
    let world = World::new();
    let exit = end_of(world.launch(&world.order("yes | head -c 100000"), None).await).await;
    assert_eq!(exit.code, Some(0));
    let output = world.output();
    assert!(output.len() < 1100 && output.contains("was dropped"), "{} bytes", output.len());
}

#[tokio::test]
async fn time_ends() {
    let world = World::new();
    let order = Order { seconds: 1, ..world.order("exec sleep 1000") };
    let exit = end_of(world.launch(&order, None).await).await;
    assert_eq!(exit.ending, Ending::OutOfTime);
    world.assert_nothing_is_left().await;
}

/// Everything that tries to survive: ignores the polite signal, leaves its group and session, loses its parent, hides its
/// environment, keeps the pipes open.
const STUBBORN: &str = "
    trap '' TERM
    setsid sh -c 'trap \"\" TERM; echo one; while :; do sleep 1; done' &
    (setsid sh -c '(trap \"\" TERM; echo two; while :; do sleep 1; done) & exit 0' &)
    setsid env -i /bin/sh -c 'trap \"\" TERM; echo three; while :; do sleep 1; done' &
    while :; do sleep 1; done
";

#[tokio::test]
async fn a_stop_leaves_nothing_behind() {
    let world = World::new();
    let held = world.hold(STUBBORN).await;
    for word in ["one", "two", "three"] {
        world.until_it_says(word).await;
    }
    held.stop().await;
    let exit = held.ended().await;
    assert_eq!(exit.ending, Ending::Stopped);
    assert!(exit.leftovers >= 3, "{exit:?}");
    world.assert_nothing_is_left().await;
}

#[tokio::test]
async fn what_a_child_left_running_goes_with_it() {
    let world = World::new();
    let exit = end_of(world.launch(&world.order("setsid sleep 1000 & exit 0"), None).await).await;
    assert_eq!((exit.ending, exit.code), (Ending::Exited, Some(0)));
    world.assert_nothing_is_left().await;
}

#[tokio::test]
async fn a_new_server_finds_a_living_process_and_stops_it() {
    let world = World::new();
    drop(world.hold("echo up; exec sleep 1000").await);
    world.until_it_says("up").await;
    let Some(Adoption::Alive(found)) = world.launcher.adopt(world.dir.path(), &world.task).await else {
        panic!("not found again");
    };
    found.stop().await;
    assert_eq!(found.ended().await.ending, Ending::Stopped);
    let Some(Adoption::Ended(exit)) = world.launcher.adopt(world.dir.path(), &world.task).await else {
        panic!("the end is not known");
    };
    assert_eq!(exit.ending, Ending::Stopped);
}

#[tokio::test]
async fn a_process_whose_shim_was_killed_is_ended_and_told_truthfully() {
    let world = World::new();
    let held = world.hold("echo up; exec sleep 1000").await;
    world.until_it_says("up").await;
    let shim = i32::try_from(held.shim().pid).ok().and_then(rustix::process::Pid::from_raw).unwrap();
    rustix::process::kill_process(shim, rustix::process::Signal::KILL).unwrap();
    assert_eq!(held.ended().await.ending, Ending::Unseen);
    world.assert_nothing_is_left().await;
}

#[tokio::test]
async fn a_number_that_was_used_again_is_not_mistaken_for_the_shim() {
    let world = World::new();
    let me = ProcessId::of(std::process::id()).unwrap();
    let stranger = ProcessId { start: me.start + 1, ..me };
    write_whole(&Files::in_dir(world.dir.path()).identity(), &Identity { shim: stranger, child: 1 }).unwrap();
    let Some(Adoption::Ended(exit)) = world.launcher.adopt(world.dir.path(), &world.task).await else {
        panic!("a stranger was adopted");
    };
    assert_eq!(exit.ending, Ending::Unseen);
}
