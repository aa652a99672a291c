//! Commands that own their home themselves, and what they leave when they end: nothing.

use std::path::Path;
use std::process::ExitStatus;

use rustix::process::Signal;
use serde_json::json;

use crate::client::{DRIVERS, Followed, Window, descendants, is_alone, json_of, stop};
use crate::hostile::is_ignored;
use crate::support::{crewkit, record, wait_until};
use crate::walk::repository;

/// What ends a command: the end of its input, or signals.
type Ends = &'static [Signal];
const INPUT: Ends = &[];

/// Everything that ends `mcp` and `run`, with what the process that it is to end does about it.
const ENDS: &[(&str, &str, Ends)] = &[
    ("mcp", "sleeper", INPUT),
    ("mcp", "stubborn", INPUT),
    ("mcp", "sleeper", &[Signal::TERM]),
    ("mcp", "sleeper", &[Signal::INT]),
    ("mcp", "sleeper", &[Signal::HUP]),
    ("mcp", "stubborn", &[Signal::TERM, Signal::TERM]),
    ("run", "sleeper", &[Signal::TERM]),
    ("run", "sleeper", &[Signal::INT]),
    ("run", "sleeper", &[Signal::HUP]),
    ("run", "stubborn", &[Signal::INT, Signal::INT]),
    ("agent", "sleeper", INPUT),
    ("agent", "stubborn", &[Signal::TERM]),
];

#[test]
fn an_owner_that_ends_leaves_no_process_and_says_so() {
    if !is_alone("in_process::an_owner_that_ends_leaves_no_process_and_says_so") {
        return;
    }
    let before = descendants();
    for (command, driver, ends) in ENDS {
        let round = format!("{ends:?} of {command} with {driver}");
        if ends.iter().any(|signal| is_ignored(*signal)) {
            eprintln!(
                "NOT TRIED: whoever started the tests has a signal ignored, and commands inherit that: {round}"
            );
            continue;
        }
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let (home, work) = (root.join("home"), repository(&root));
        std::fs::create_dir(&home).unwrap();
        let settings = format!(
            "{DRIVERS}[limits]\ndriver_stop_grace_seconds = 1\n[fleet]\ndriver = \"{driver}\"\n\
             [fleet.projects.demo]\npath = \"{}\"\n",
            work.display()
        );
        std::fs::write(home.join("crewkit.toml"), settings).unwrap();
        let (ended, code) = match *command {
            "run" => (end_run(&home, &work, driver, ends), 130),
            "mcp" => (end_mcp(&home, &work, driver, ends), 0),
            _ => (end_agent(&home, ends), 0),
        };
        assert_eq!(ended.code(), Some(code), "{round}");
        assert!(record(&home).is_none(), "{round}");
        wait_until(&format!("{round}: the end of {:#?}", descendants()), || descendants() == before);
        if *command == "agent" {
            let tasks = json_of(&home, &["fleet", "history", "papi"]);
            assert_eq!(tasks["tasks"][0]["status"], "stopped", "{round}: {tasks}");
        } else {
            let id = json_of(&home, &["runs", "list"])["runs"][0]["id"].as_str().unwrap().to_owned();
            let run = json_of(&home, &["runs", "show", &id])[0].take();
            assert_eq!(
                (&run["status"], &run["reason"]),
                (&json!("stopped"), &json!("server_stopped")),
                "{round}: {run}"
            );
        }
        stop(&home);
        wait_until(&format!("{round}: the end of the server"), || descendants() == before);
    }
}

/// A window that owns the home starts a run.
fn end_mcp(home: &Path, work: &Path, driver: &str, ends: Ends) -> ExitStatus {
    let mut window = Window::open(home, &["--in-process"]);
    window.call("agent_start", &json!({"contract": "sleep", "driver": driver, "workdir": work}));
    wait_until("the driver works", || work.join("ready").exists());
    window.end_by(ends)
}

/// A window of a job of a CI system creates an agent, whose workspace the driver works in.
fn end_agent(home: &Path, ends: Ends) -> ExitStatus {
    let mut command = crewkit(home);
    command.env("CI", "true").arg("mcp");
    let mut window = Window::with(command);
    let created = window.call("create_agent", &json!({"name": "papi", "project": "demo", "spec": "sleep"}));
    assert!(created["agent"].is_object(), "{created}");
    let workspaces = home.join("fleet/workspaces");
    let is_ready = || {
        let listed = std::fs::read_dir(&workspaces).into_iter().flatten().flatten();
        listed.into_iter().any(|workspace| workspace.path().join("ready").exists())
    };
    wait_until("the driver works", is_ready);
    window.end_by(ends)
}

/// A job of a CI system follows a run.
fn end_run(home: &Path, work: &Path, driver: &str, ends: Ends) -> ExitStatus {
    let mut command = crewkit(home);
    command.env("CI", "true");
    let mut followed = Followed::with(command, work, driver);
    followed.says("run ");
    followed.signal(ends[0]);
    followed.says("Stopping run ");
    for signal in &ends[1..] {
        followed.signal(*signal);
    }
    followed.child.wait().unwrap()
}
