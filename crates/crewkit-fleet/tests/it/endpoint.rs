//! The metadata endpoint inside a workspace, run for real on a directory.

use std::path::{Path, PathBuf};

use crewkit_core::Limits;
use crewkit_fleet::metadata::runner::Runner;
use crewkit_fleet::metadata::sandbox::TaskfileCommands;
use crewkit_fleet::metadata::server;
use serde_json::{Value, json};

fn runner(directory: &Path, task_program: Option<PathBuf>) -> Runner {
    let (directory, commands) = (directory.to_owned(), TaskfileCommands::Plain);
    Runner { directory, taskfile: None, task_program, commands, limits: Limits::default() }
}

fn write(path: PathBuf, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

#[tokio::test]
async fn plain_tasks_run_without_task_and_each_failure_is_its_own() {
    let home = tempfile::tempdir().unwrap();
    write(
        home.path().join("Taskfile.yml"),
        "version: '3'\nincludes: {sub: ./sub}\ntasks:\n  \
         where: {desc: Here, meta: {include_in_list: true}, cmds: ['cat marker', 'echo noise >&2']}\n  \
         object: {meta: {include_in_list: false}, cmd: 'echo ''{\"a\": [1]}'''}\n  \
         empty: {meta: {}, cmds: ['true']}\n  \
         fails: {meta: {include_in_list: true}, cmds: ['echo no >&2', 'exit 4', 'echo never']}\n  \
         silent: {meta: {include_in_list: true}, cmds: ['exit 5']}\n  \
         needs: {meta: {include_in_list: true}, deps: [where], cmds: ['echo x']}\n  \
         bad: {meta: {include_in_list: 7}, cmds: ['echo still here']}\n",
    );
    write(
        home.path().join("sub/Taskfile.yml"),
        "version: '3'\ntasks:\n  x: {meta: {include_in_list: true}, cmds: ['echo 1']}\n",
    );
    write(home.path().join("marker"), "found\n");
    let fields = runner(home.path(), None).collect().await.in_full();
    let value = |name: &str| fields[name]["value"].clone();
    let error = |name: &str| fields[name]["error"].as_str().unwrap_or_default().to_owned();
    assert_eq!(
        fields.keys().collect::<Vec<_>>(),
        ["where", "object", "empty", "fails", "silent", "needs", "bad", "sub:x"]
    );
    assert_eq!(
        (value("where"), value("object"), value("empty")),
        (json!("found"), json!({"a": [1]}), Value::Null)
    );
    assert_eq!((value("fails"), error("fails").as_str()), (Value::Null, "no"));
    assert!(error("silent").contains('5'));
    assert!(error("needs").contains("`deps`"));
    assert_eq!((value("bad"), value("sub:x")), (json!("still here"), json!(1)));
    assert!(error("bad").contains("include_in_list"));
}

#[tokio::test]
async fn a_command_that_never_ends_is_ended_with_its_children() {
    let home = tempfile::tempdir().unwrap();
    write(
        home.path().join("Taskfile.yml"),
        "version: '3'\ntasks:\n  slow: {meta: {}, cmds: ['sleep 1000 & echo $! > child; sleep 1000']}\n  \
         quick: {meta: {}, cmds: ['echo 1']}\n",
    );
    let mut runner = runner(home.path(), None);
    runner.limits.fleet_metadata_field_ms = 4_000;
    let fields = runner.collect().await.in_full();
    assert!(fields["slow"]["error"].as_str().unwrap().contains("took longer"), "{fields:?}");
    assert_eq!(fields["quick"]["value"], 1);
    let child: i32 = std::fs::read_to_string(home.path().join("child")).unwrap().trim().parse().unwrap();
    let child = rustix::process::Pid::from_raw(child).unwrap();
    for _ in 0..500 {
        if rustix::process::test_kill_process(child).is_err() {
            return;
        }
        // A killed process that nobody has reaped yet is a zombie; its state says so.
        let stat =
            std::fs::read_to_string(format!("/proc/{}/stat", child.as_raw_nonzero())).unwrap_or_default();
        if stat.is_empty() || stat.contains(") Z ") {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("the child of a command that took too long is still there");
}

/// A stand-in for `task`: prints the name of the last task it is given, or fails, or takes for ever.
const FAKE_TASK: &str = r#"#!/bin/sh
for name in "$@"; do :; done
case "$name" in
  fails) echo half >&2; exit 3 ;;
  slow) while :; do sleep 1; done ;;
  *) echo "value of $name" ;;
esac
"#;

#[tokio::test]
async fn a_field_that_fails_or_is_slow_costs_no_other() {
    use std::os::unix::fs::PermissionsExt;
    let home = tempfile::tempdir().unwrap();
    let task = home.path().join("bin/task");
    write(task.clone(), FAKE_TASK);
    std::fs::set_permissions(&task, std::fs::Permissions::from_mode(0o755)).unwrap();
    let field = |name: &str| format!("  {name}: {{meta: {{include_in_list: true}}, cmds: ['x']}}\n");
    let fields: String = ["a", "fails", "slow", "b", "a b"].map(field).concat();
    write(home.path().join("work/Taskfile.yml"), &format!("version: '3'\ntasks:\n{fields}"));
    let mut runner = runner(&home.path().join("work"), Some(task));
    runner.limits.fleet_metadata_field_ms = 60_000;
    runner.limits.fleet_metadata_agent_ms = 3_000;
    let fields = runner.collect().await.in_full();
    assert_eq!((&fields["a"]["value"], &fields["b"]["value"]), (&json!("value of a"), &json!("value of b")));
    assert_eq!(fields["fails"]["error"], "half");
    assert!(fields["slow"]["error"].as_str().unwrap().starts_with("took longer than 2500 ms"), "{fields:?}");
    assert!(fields["dropped_fields"]["error"].as_str().unwrap().contains("`a b`"), "{fields:?}");
}

#[tokio::test]
async fn the_endpoint_answers_in_the_form_fleets_read() {
    let home = tempfile::tempdir().unwrap();
    write(
        home.path().join("Taskfile.yml"),
        "version: '3'\ntasks:\n  n: {desc: Number, meta: {include_in_list: true}, cmds: ['echo x >> ran; echo 7']}\n",
    );
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = server::router(runner(home.path(), None));
    let server = tokio::spawn(async move { axum::serve(listener, router).await });
    let client = crewkit_agent::http_client().build().unwrap();
    let get = async |path: &str| client.get(format!("http://{address}{path}")).send().await.unwrap();

    assert_eq!(get("/health").await.json::<Value>().await.unwrap(), json!({"status": "ok"}));
    let many = (0..5).map(|_| async { get("/metadata").await.json::<Value>().await.unwrap() });
    for answer in futures_util::future::join_all(many).await {
        assert_eq!(
            answer,
            json!({"data": {"n": {"value": 7, "error": null, "schema": {"description": "Number", "include_in_list": true}}},
                "meta": {"version": "1.0"}, "git": {"branch": null, "sha": null, "dirty": null}})
        );
    }
    let ran = std::fs::read_to_string(home.path().join("ran")).unwrap().lines().count();
    assert_eq!(ran, 1, "requests that come together share one collection");
    assert_eq!(get("/nothing").await.status(), 404);
    server.abort();
}

#[tokio::test]
async fn a_broken_taskfile_is_no_metadata_and_none_is_git() {
    let home = tempfile::tempdir().unwrap();
    write(home.path().join("Taskfile.yml"), "tasks: [");
    assert!(runner(home.path(), None).collect().await.is_empty());
    let empty = tempfile::tempdir().unwrap();
    let fields = runner(empty.path(), None).collect().await;
    assert!(!fields.fields.iter().any(|field| field.error.is_some()));
}
