//! Processes of runs outlive the server: the next one adopts them, and nothing of what they say is lost or told twice.

use std::path::{Path, PathBuf};

use crewkit_agent::driver::{Format, ProcessDriver, Stdin};
use crewkit_agent::engine::{Start, Status};
use crewkit_agent::{Engine, EventBody, Options, RunSpec};
use crewkit_core::run::{RunStatus, StopReason};
use crewkit_testkit::bins;

use crate::support::{end_of, eventually, is_alive, limit, options, transcript};

/// A home whose server can end and be followed by another, and the directory of one run.
struct House {
    home: tempfile::TempDir,
    work: tempfile::TempDir,
    options: Options,
}

impl House {
    fn new(script: &str, format: Format, stdin: Stdin) -> Self {
        let home = tempfile::tempdir().unwrap();
        let mut options = options(&home, "http://127.0.0.1:1/");
        options.settings_mut().drivers = vec![ProcessDriver {
            name: "script".into(),
            command: vec!["sh".into(), "-c".into(), format!("{PRELUDE}\n{script}")],
            stdin,
            format,
            environment: Vec::new(),
        }];
        Self { home, work: tempfile::tempdir().unwrap(), options }
    }

    async fn open(&self) -> Engine {
        Engine::open(self.options.clone()).await.unwrap()
    }

    async fn start(&self, engine: &Engine, spec: RunSpec) -> String {
        let spec = RunSpec { driver: Some("script".into()), workdir: Some(self.work.path().into()), ..spec };
        let start = Start { contract: "the contract".into(), spec, key: None, settings: None };
        engine.start(start).await.unwrap().id.to_string()
    }

    /// Opens a gate the script waits at.
    fn open_gate(&self, name: &str) {
        std::fs::write(self.work.path().join(name), "").unwrap();
    }

    fn file(&self, name: &str) -> PathBuf {
        self.work.path().join(name)
    }

    async fn until_there(&self, name: &str) {
        eventually(name, || self.file(name).exists()).await;
    }

    fn pid(&self) -> u32 {
        std::fs::read_to_string(self.file("pid")).unwrap().trim().parse().unwrap()
    }

    /// The shim's number: it is the parent of the script.
    fn shim(&self) -> u32 {
        std::fs::read_to_string(self.file("shim")).unwrap().trim().parse().unwrap()
    }
}

/// Writes the numbers of the process and its parent; `gate NAME` waits for a file, `at NAME` makes one.
const PRELUDE: &str = r#"
    echo $PPID > shim; echo $$ >> pids; echo $$ > pid.part; mv pid.part pid
    gate() { while [ ! -e "$1" ]; do sleep 0.01; done; }
    at() { : > "$1"; }
"#;

/// Ends as a killed server does: nothing is told to anybody.
async fn close(engine: Engine) {
    engine.shutdown().await;
    engine.closed().await;
}

fn said(bodies: &[EventBody]) -> Vec<String> {
    let words = |body: &EventBody| match body {
        EventBody::Assistant { content, .. } => Some(content.clone()),
        EventBody::Note { content } => Some(format!("note: {content}")),
        _ => None,
    };
    bodies.iter().filter_map(words).collect()
}

fn ended(status: &Status) -> (Option<RunStatus>, Option<StopReason>) {
    (status.status, status.reason)
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

#[tokio::test]
async fn the_next_server_goes_on_with_the_same_process_and_the_whole_transcript() {
    let house = House::new(
        "echo one; echo two; at first; gate second; echo three; at third; gate fourth; echo four",
        Format::Text,
        Stdin::Contract,
    );
    let engine = house.open().await;
    let id = house.start(&engine, RunSpec::default()).await;
    house.until_there("first").await;
    let mut follow = engine.subscribe(&id, 0).unwrap();
    while !matches!(&follow.next().await.unwrap().unwrap().body, EventBody::Assistant { content, .. } if content == "two")
    {
    }
    drop(follow);
    close(engine).await;
    // It speaks while nobody listens.
    house.open_gate("second");
    house.until_there("third").await;
    let engine = house.open().await;
    let record = engine.record(&id).unwrap();
    assert_eq!((record.state.status(), record.attempt, record.restarts), (RunStatus::Running, 1, 0));
    // And once more, without a word in between.
    close(engine).await;
    let engine = house.open().await;
    house.open_gate("fourth");
    let status = end_of(&engine, &id).await;
    assert_eq!(ended(&status), (Some(RunStatus::Completed), None), "{status:?}");
    assert_eq!(said(&transcript(&engine, &id).await), ["one", "two", "three", "four"]);
    assert_eq!(status.summary.as_deref(), Some("one\ntwo\nthree\nfour"));
    assert_eq!(
        std::fs::read_to_string(house.file("pids")).unwrap().lines().count(),
        1,
        "a second process ran"
    );
    eventually("nothing is left", || !is_alive(house.shim()) && !left_in(house.home.path())).await;
}

/// Whether files of a process are left in the home.
fn left_in(home: &Path) -> bool {
    let runs = std::fs::read_dir(home.join("state/agents/processes")).into_iter().flatten().flatten();
    runs.flat_map(|run| std::fs::read_dir(run.path()).into_iter().flatten()).next().is_some()
}

#[tokio::test]
async fn an_end_while_no_server_runs_is_told_by_the_next() {
    let house = House::new("at ready; gate go; echo last; exit 7", Format::Text, Stdin::Nothing);
    let engine = house.open().await;
    let id = house.start(&engine, RunSpec::default()).await;
    house.until_there("ready").await;
    close(engine).await;
    house.open_gate("go");
    eventually("it has ended", || !is_alive(house.shim())).await;
    let engine = house.open().await;
    let status = end_of(&engine, &id).await;
    assert_eq!(ended(&status), (Some(RunStatus::Stopped), Some(StopReason::DriverFailed)));
    assert_eq!(status.error.as_deref(), Some("script ended with exit code 7"));
    assert_eq!(said(&transcript(&engine, &id).await), ["last"]);
}

#[tokio::test]
async fn without_its_shim_a_process_is_ended_and_that_is_told() {
    for is_server_there in [true, false] {
        let house = House::new("setsid sleep 1000 & at ready; gate never", Format::Text, Stdin::Nothing);
        let mut engine = house.open().await;
        let id = house.start(&engine, RunSpec::default()).await;
        house.until_there("ready").await;
        eventually("it runs", || engine.record(&id).unwrap().state.status() == RunStatus::Running).await;
        if is_server_there {
            kill(house.shim());
        } else {
            close(engine).await;
            kill(house.shim());
            engine = house.open().await;
        }
        let status = end_of(&engine, &id).await;
        assert_eq!(ended(&status), (Some(RunStatus::Stopped), Some(StopReason::DriverFailed)));
        assert!(status.error.as_ref().unwrap().contains("held the driver was killed"), "{status:?}");
        assert!(!is_alive(house.pid()), "it is gone before its end is told");
    }
}

#[tokio::test]
async fn adopted_runs_keep_their_slot_their_caps_and_their_token_and_can_be_stopped() {
    let mut house = House::new(
        r#"trap '' TERM; printf %s "$CREWKIT_AGENT_TOKEN" > token; at ready; gate never"#,
        Format::Text,
        Stdin::Nothing,
    );
    limit(&mut house.options, |limits| limits.agent_runs_active = 1);
    let engine = house.open().await;
    let id = house.start(&engine, RunSpec::default()).await;
    house.until_there("ready").await;
    close(engine).await;
    let engine = house.open().await;
    let other = house.start(&engine, RunSpec::default()).await;
    let token = std::fs::read_to_string(house.file("token")).unwrap();
    eventually("its token is in force", || engine.attempt_by_token(&token).is_some()).await;
    assert_eq!(engine.show(&other).unwrap().phase, Some("queued"), "it has the only slot");
    let first = house.pid();
    engine.stop(&id).await.unwrap();
    assert!(engine.attempt_by_token(&token).is_none());
    eventually("the next one runs", || house.pid() != first).await;
    assert!(!is_alive(first), "a slot is free only when the process is gone");
    // What was told to end does so also if the server ends at once.
    let second = house.pid();
    engine.stop(&other).await.unwrap();
    close(engine).await;
    let _engine = house.open().await;
    assert!(!is_alive(second));
}

#[tokio::test]
async fn time_and_turns_are_counted_across_servers() {
    let house = House::new("at ready; gate never", Format::Text, Stdin::Nothing);
    let engine = house.open().await;
    let id = house.start(&engine, RunSpec { max_seconds: Some(1), ..RunSpec::default() }).await;
    house.until_there("ready").await;
    close(engine).await;
    eventually("its time is over without a server", || !is_alive(house.shim())).await;
    let engine = house.open().await;
    assert_eq!(end_of(&engine, &id).await.reason, Some(StopReason::TimeLimit));
    close(engine).await;

    let turn = r#"turn() { echo '{"type":"assistant","message":{"id":"'$1'","content":[{"type":"text","text":"'$1'"}]}}'; }"#;
    let script = format!("{turn}\nturn a; turn b; at ready; gate go; turn c; turn d; gate never");
    let mut house = House::new(&script, Format::Claude, Stdin::Nothing);
    // So little that the first turns are not there any more when the second server counts.
    limit(&mut house.options, |limits| limits.driver_output_bytes = 100);
    let engine = house.open().await;
    let id = house.start(&engine, RunSpec { max_turns: Some(3), ..RunSpec::default() }).await;
    eventually("two turns", || engine.show(&id).unwrap().turns == Some(2)).await;
    close(engine).await;
    house.open_gate("go");
    let engine = house.open().await;
    let status = end_of(&engine, &id).await;
    assert_eq!((status.reason, status.turns), (Some(StopReason::TurnLimit), Some(4)), "{status:?}");
}

#[tokio::test]
async fn output_that_nobody_reads_loses_its_oldest_part_and_says_so() {
    let mut house = House::new(
        "echo first; at ready; gate go; i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done; at done; gate never",
        Format::Text,
        Stdin::Nothing,
    );
    limit(&mut house.options, |limits| limits.driver_output_bytes = 4000);
    let engine = house.open().await;
    let id = house.start(&engine, RunSpec::default()).await;
    eventually("the first line", || engine.show(&id).unwrap().turns == Some(1)).await;
    close(engine).await;
    house.open_gate("go");
    house.until_there("done").await;
    let engine = house.open().await;
    let mut follow = engine.subscribe(&id, 0).unwrap();
    while !matches!(&follow.next().await.unwrap().unwrap().body, EventBody::Assistant { content, .. } if content == "line 1999")
    {
    }
    engine.stop(&id).await.unwrap();
    let said = said(&transcript(&engine, &id).await);
    assert!(
        said[1].starts_with("note: ") && said[1].ends_with("output were dropped before they were read"),
        "{said:?}"
    );
    assert!(said.len() < 500 && said.len() > 10, "{}", said.len());
}

#[tokio::test]
async fn input_stays_open_across_servers_until_it_is_closed() {
    let mut house = House::new("", Format::Text, Stdin::Open);
    let fake = bins::fake("fake-agent").to_string_lossy().into_owned();
    let settings = house.options.settings_mut();
    let driver = settings.drivers.first_mut().unwrap();
    driver.command = vec![fake, "echo-input".into()];
    let engine = house.open().await;
    let id = house.start(&engine, RunSpec::default()).await;

    while engine.append_input(&id, "\nfirst answer\n".into()).await.is_err() {
        tokio::task::yield_now().await;
    }
    eventually("both are read", || engine.show(&id).unwrap().turns == Some(2)).await;
    close(engine).await;
    let engine = house.open().await;
    // More than any pipe takes at once.
    let long = "x".repeat(300_000);
    engine.append_input(&id, format!("{long}\n")).await.unwrap();
    engine.append_input(&id, "last answer\n".into()).await.unwrap();
    engine.close_input(&id).await.unwrap();
    let status = end_of(&engine, &id).await;
    assert_eq!(status.status, Some(RunStatus::Completed), "{status:?}");
    let heard = said(&transcript(&engine, &id).await);
    let expected = [
        "heard 12: the contract",
        "heard 12: first answer",
        "heard 300000: x",
        "heard 11: last answer",
        "closed",
    ];
    let short: Vec<String> = heard.iter().map(|line| line.chars().take(40).collect()).collect();
    assert_eq!(short.len(), expected.len(), "{short:?}");
    assert!(short.iter().zip(expected).all(|(line, wanted)| line.starts_with(wanted)), "{short:?}");
    let refused = engine.append_input(&id, "too late".into()).await.unwrap_err();
    assert_eq!(refused.code(), crewkit_core::Code::AgentStateInvalid);
}

#[tokio::test]
async fn what_belongs_to_runs_that_are_over_is_ended_and_removed_at_the_start() {
    let house = House::new("at ready; gate never", Format::Text, Stdin::Nothing);
    let engine = house.open().await;
    let id = house.start(&engine, RunSpec::default()).await;
    house.until_there("ready").await;
    // A process that carries the mark of a run that is not held.
    let mut ready = Options::clone(&house.options);
    ready.settings_mut().drivers[0].command = vec!["true".into()];
    let done = engine
        .start(Start {
            contract: "x".into(),
            spec: RunSpec {
                driver: Some("loop".into()),
                model: Some("rehearsal".into()),
                ..RunSpec::default()
            },
            key: None,
            settings: Some(engine.record_settings(&ready.settings)),
        })
        .await
        .unwrap();
    end_of(&engine, done.id.as_str()).await;
    let orphan = house.work.path().join("orphan");
    let started = std::process::Command::new(bins::fake("fake-agent"))
        .args(["sleeper", orphan.to_str().unwrap()])
        .env("CREWKIT_RUN", done.id.as_str())
        .spawn();
    started.unwrap().wait().unwrap();
    eventually("the orphan runs", || {
        orphan.exists() && !std::fs::read_to_string(&orphan).unwrap().is_empty()
    })
    .await;
    let orphan: u32 = std::fs::read_to_string(&orphan).unwrap().parse().unwrap();
    close(engine).await;
    let engine = house.open().await;
    assert!(!is_alive(orphan));
    assert!(is_alive(house.pid()), "the held one works on");
    engine.delete(&id).await.unwrap();
    eventually("it is gone", || !is_alive(house.pid()) && !left_in(house.home.path())).await;
}

#[tokio::test]
async fn a_stop_right_before_the_server_ends_reaches_the_process() {
    let house = House::new("at up; exec sleep 1000", Format::Text, Stdin::Nothing);
    let engine = house.open().await;
    let id = house.start(&engine, RunSpec::default()).await;
    house.until_there("up").await;
    engine.stop(&id).await.unwrap();
    close(engine).await;
    eventually("the process has ended", || !is_alive(house.pid())).await;
}

#[tokio::test]
async fn a_process_whose_home_was_deleted_ends() {
    let house = House::new("at up; exec sleep 1000", Format::Text, Stdin::Nothing);
    let engine = house.open().await;
    house.start(&engine, RunSpec::default()).await;
    house.until_there("up").await;
    close(engine).await;
    std::fs::remove_dir_all(house.home.path()).unwrap();
    eventually("the process has ended", || !is_alive(house.pid())).await;
}
