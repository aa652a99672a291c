//! `--follow` across the end of the server: nothing is missing, nothing is shown twice.

use std::io::{BufRead as _, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};

use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::client::{DRIVERS, json_of, server, stop};
use crate::support::{crewkit, wait_until};

struct Follower {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Follower {
    fn start(home: &Path, arguments: &[&str]) -> Self {
        let mut command = crewkit(home);
        command.arg("--json").args(arguments).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn next(&mut self) -> Option<Value> {
        Some(serde_json::from_str(&self.lines.next()?.unwrap()).unwrap())
    }

    /// Everything up to the first entry that `is_last`.
    fn until(&mut self, is_last: impl Fn(&Value) -> bool) -> Vec<Value> {
        let mut seen = Vec::new();
        while let Some(entry) = self.next() {
            seen.push(entry);
            if is_last(&seen[seen.len() - 1]) {
                break;
            }
        }
        seen
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn numbers(entries: &[Value]) -> Vec<u64> {
    entries.iter().map(|entry| entry["seq"].as_u64().unwrap()).collect()
}

#[test]
fn events_and_output_are_followed_although_the_server_is_killed() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    std::fs::write(home.join("crewkit.toml"), DRIVERS).unwrap();
    let mut events = Follower::start(home, &["events", "-f"]);
    let run = ["run", "--detach", "--driver", "sleeper", "--dir", home.to_str().unwrap(), "sleep"];
    let id = json_of(home, &run)["agent_id"].as_str().unwrap().to_owned();
    wait_until("the driver's start", || home.join("ready").exists());
    let mut seen = events.until(|event| event["kind"] == "run.started");
    let mut output = Follower::start(home, &["runs", "output", "-f", &id]);
    let mut entries = vec![output.next().expect("an entry")];
    kill_process(server(home), Signal::KILL).unwrap();
    json_of(home, &["runs", "stop", &id]);
    seen.extend(events.until(|event| event["kind"] == "run.ended"));
    let numbers_of_events = numbers(&seen);
    let first = numbers_of_events[0];
    assert_eq!(numbers_of_events, (first..first + seen.len() as u64).collect::<Vec<_>>(), "{seen:?}");
    assert!(seen.iter().filter(|event| event["kind"] == "run.ended").count() == 1, "{seen:?}");
    entries.extend(output.until(|_| false));
    assert_eq!(output.child.wait().unwrap().code(), Some(0), "it ends with the run");
    let shown = numbers(&entries);
    assert_eq!(shown, (shown[0]..shown[0] + shown.len() as u64).collect::<Vec<_>>(), "{entries:?}");
    let whole = Follower::start(home, &["runs", "output", &id]).until(|_| false);
    assert_eq!(entries, whole);
    // A cursor that was never handed out is as good as one that is no longer kept.
    let mut late = Follower::start(home, &["events", "--follow", "--after", "1000000"]);
    assert_eq!(late.next().unwrap()["seq"], first);
    stop(home);
}
