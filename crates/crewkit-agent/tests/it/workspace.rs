//! The workspace tools through a whole run: they work, and they do not get out.

use std::ffi::OsString;
use std::path::Path;

use crewkit_agent::tools::CommandPolicy;
use crewkit_agent::{EventBody, RunSpec};
use crewkit_testkit::bins;
use crewkit_testkit::model::Turn;
use serde_json::{Value, json};

use crate::support::{World, limit};

fn path_environment() -> Vec<(OsString, OsString)> {
    std::env::vars_os().filter(|(name, _)| name == "PATH").collect()
}

fn confined() -> CommandPolicy {
    CommandPolicy::Confined {
        readable: vec![],
        network: true,
        unix_sockets: false,
        environment: path_environment(),
    }
}

/// Plays tool calls one per turn and returns their results.
async fn play(
    directory: &Path,
    commands: CommandPolicy,
    calls: Vec<(&'static str, Value)>,
) -> Vec<(String, bool)> {
    let count = calls.len();
    let world = World::with(
        move |request| match calls.get(request.turn) {
            Some((name, arguments)) => Turn::call(name, arguments),
            None => Turn::complete("ok"),
        },
        |options| {
            options.settings_mut().commands = commands;
            // One port is closed; all others stay open.
            options.server_ports = vec![1];
            limit(options, |limits| limits.agent_identical_calls_stop = 0);
        },
    )
    .await;
    let spec = RunSpec { workdir: Some(directory.to_owned()), ..RunSpec::default() };
    let id = world.start_spec("work", spec).await;
    world.end_of(&id).await;
    let results: Vec<(String, bool)> = world
        .transcript(&id)
        .await
        .into_iter()
        .filter_map(|body| match body {
            EventBody::ToolResult { name, content, is_error, .. } if name != "agent_complete" => {
                Some((content, is_error))
            }
            _ => None,
        })
        .collect();
    assert_eq!(results.len(), count);
    results
}

#[tokio::test]
async fn files_are_written_read_edited_listed_and_searched() {
    let directory = tempfile::tempdir().unwrap();
    let results = play(
        directory.path(),
        CommandPolicy::Off,
        vec![
            ("write_file", json!({"path": "src/deep/a.txt", "content": "one\ntwo\nthree\n"})),
            ("read_file", json!({"path": "src/deep/a.txt"})),
            ("read_file", json!({"path": "src/deep/a.txt", "offset": 2, "limit": 1})),
            ("edit_file", json!({"path": "src/deep/a.txt", "old_text": "two", "new_text": "2"})),
            ("edit_file", json!({"path": "src/deep/a.txt", "old_text": "absent", "new_text": "x"})),
            ("edit_file", json!({"path": "src/deep/a.txt", "old_text": "e", "new_text": "E"})),
            (
                "edit_file",
                json!({"path": "src/deep/a.txt", "old_text": "e", "new_text": "E", "replace_all": true}),
            ),
            ("list_files", json!({"depth": 9})),
            ("search_files", json!({"pattern": "^t.*E$"})),
            ("search_files", json!({"pattern": "("})),
            ("read_file", json!({"path": "nothing"})),
            ("run_command", json!({"command": "true"})),
        ],
    )
    .await;
    assert_eq!(results[1].0, "one\ntwo\nthree\n");
    assert_eq!(results[2].0, "two\n(lines 2 to 2 of 3; go on with offset 3)");
    assert!(results[4].1 && results[5].1 && results[5].0.contains("3 times"), "{results:?}");
    assert_eq!(std::fs::read_to_string(directory.path().join("src/deep/a.txt")).unwrap(), "onE\n2\nthrEE\n");
    assert_eq!(results[7].0, "src/\nsrc/deep/\nsrc/deep/a.txt\n");
    assert_eq!(results[8].0, "src/deep/a.txt:3: thrEE\n");
    assert!(results[9].1 && results[10].1);
    assert!(results[11].1 && results[11].0.contains("no tool"), "commands are off without confinement");
}

#[tokio::test]
async fn nothing_outside_is_read_or_changed() {
    let outside = tempfile::tempdir().unwrap();
    let canary = outside.path().join("canary");
    std::fs::write(&canary, "secret").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let inside = directory.path();
    std::os::unix::fs::symlink(outside.path(), inside.join("door")).unwrap();
    std::os::unix::fs::symlink(&canary, inside.join("window")).unwrap();
    std::os::unix::fs::symlink("../../../../../../etc", inside.join("ladder")).unwrap();
    std::os::unix::fs::symlink("/proc/self/root", inside.join("proc")).unwrap();
    let absolute = canary.to_str().unwrap();
    let up = format!("../{}/canary", outside.path().file_name().unwrap().to_str().unwrap());
    let mut calls: Vec<(&str, Value)> = Vec::new();
    let paths = [
        absolute,
        &up,
        "door/canary",
        "window",
        "ladder/passwd",
        "proc/etc/passwd",
        "/etc/passwd",
        "./../x",
        "a\0b",
    ];
    for path in paths {
        calls.push(("read_file", json!({"path": path})));
        calls.push(("write_file", json!({"path": path, "content": "overwritten"})));
        calls.push(("edit_file", json!({"path": path, "old_text": "secret", "new_text": "x"})));
    }
    for path in ["door", "ladder", "..", "/", "proc"] {
        calls.push(("list_files", json!({"path": path})));
    }
    let results = play(inside, CommandPolicy::Off, calls).await;
    for (at, (content, is_error)) in results.iter().enumerate() {
        assert!(is_error, "call {at} was allowed: {content}");
        assert!(!content.contains("secret"), "call {at} leaked");
    }
    assert_eq!(std::fs::read_to_string(&canary).unwrap(), "secret");
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1);
    let found =
        play(inside, CommandPolicy::Off, vec![("search_files", json!({"pattern": "secret|root:"}))]).await;
    assert_eq!(found[0].0, "(no matches)", "a search does not follow links");
}

#[tokio::test]
async fn commands_run_in_the_directory_and_cannot_leave_it() {
    if !crewkit_agent::confine::available() {
        eprintln!("skipped: this kernel has no Landlock");
        return;
    }
    let outside = tempfile::tempdir().unwrap();
    let canary = outside.path().join("canary");
    std::fs::write(&canary, "secret").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = canary.display();
    let results = play(
        directory.path(),
        confined(),
        vec![
            ("run_command", json!({"command": "echo hello > a.txt; cat a.txt; echo bad >&2; exit 3"})),
            ("run_command", json!({"command": format!("cat {file}")})),
            ("run_command", json!({"command": format!("echo x > {file}")})),
            (
                "run_command",
                json!({"command": format!("rm -rf {}; ln -s {file} l; cat l", outside.path().display())}),
            ),
            ("run_command", json!({"command": "echo $HOME; echo t > $TMPDIR/t && cat $TMPDIR/t"})),
            ("run_command", json!({"command": "cat /proc/$PPID/environ; cat /proc/1/environ"})),
            ("run_command", json!({"command": "kill -9 $PPID; echo survived", "timeout_seconds": 5})),
            ("run_command", json!({"command": "sleep 100", "timeout_seconds": 1})),
            ("run_command", json!({"command": "yes | head -c 3000000"})),
            ("run_command", json!({"command": "sh -c 'sleep 300' & echo left behind"})),
        ],
    )
    .await;
    assert_eq!(results[0].0, "exit code 3\n--- stdout\nhello\n\n--- stderr\nbad\n");
    for at in 1..=3 {
        assert!(results[at].1 && !results[at].0.contains("secret"), "call {at}: {results:?}");
    }
    assert_eq!(std::fs::read_to_string(&canary).unwrap(), "secret");
    assert!(results[4].0.ends_with("t\n"), "{:?}", results[4]);
    assert!(
        results[5].1 && !results[5].0.contains("CARGO"),
        "the environment of the server is in reach: {}",
        results[5].0
    );
    assert!(results[7].0.starts_with("killed after 1 seconds"));
    assert!(results[8].0.len() < 70_000 && results[8].0.contains("bytes left out"));
    assert!(results[9].0.contains("left behind"));
}

#[tokio::test]
async fn without_the_network_no_way_out_is_open() {
    if !crewkit_agent::confine::available() {
        eprintln!("skipped: this kernel has no Landlock");
        return;
    }
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let program = bins::fake("fake-agent");
    let command = format!("{} network {}", program.display(), listener.local_addr().unwrap());
    for (network, unix_sockets, expected) in [
        (true, false, "connect open\nlisten open\ndatagram open\nlocal closed\n"),
        (true, true, "connect open\nlisten open\ndatagram open\nlocal open\n"),
        (false, false, "connect closed\nlisten closed\ndatagram closed\nlocal closed\n"),
        (false, true, "connect closed\nlisten closed\ndatagram closed\nlocal open\n"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let readable = vec![program.parent().unwrap().to_owned()];
        let environment = path_environment();
        let policy = CommandPolicy::Confined { readable, network, unix_sockets, environment };
        let results =
            play(directory.path(), policy, vec![("run_command", json!({"command": command}))]).await;
        assert_eq!(results[0].0, format!("exit code 0\n--- stdout\n{expected}"), "network {network}");
    }
}

#[tokio::test]
async fn a_stop_ends_a_running_command_with_its_children() {
    let directory = tempfile::tempdir().unwrap();
    let world = World::with(
        |_| {
            Turn::call(
                "run_command",
                &json!({"command": "setsid sleep 300 & echo $! > pid; sleep 300", "timeout_seconds": 300}),
            )
        },
        |options| {
            options.settings_mut().commands = CommandPolicy::Unconfined { environment: path_environment() }
        },
    )
    .await;
    let spec = RunSpec { workdir: Some(directory.path().to_owned()), ..RunSpec::default() };
    let id = world.start_spec("hang", spec).await;
    let file = directory.path().join("pid");
    let pid = || std::fs::read_to_string(&file).ok().and_then(|text| text.trim().parse::<u32>().ok());
    crate::support::eventually("the command runs", || pid().is_some()).await;
    world.engine.stop(&id).await.unwrap();
    let process = format!("/proc/{}", pid().unwrap());
    crate::support::eventually("the child is gone", || !Path::new(&process).exists()).await;
}
