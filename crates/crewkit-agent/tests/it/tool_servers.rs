//! Tools of MCP servers: many calls in flight, each with its own answer.

use std::collections::HashSet;

use crewkit_agent::tools::mcp::{ServerConfig, Transport};
use crewkit_agent::{EventBody, RunSpec};
use crewkit_core::run::RunStatus;
use crewkit_testkit::bins;
use crewkit_testkit::model::{Request, Turn};
use serde_json::{Value, json};

use crate::support::{World, limit};

fn server(name: &str, args: &[&str], per_agent: bool) -> ServerConfig {
    let command = bins::fake("fake-mcp").to_string_lossy().into_owned();
    let args = args.iter().map(|arg| (*arg).to_owned()).collect();
    let transport = Transport::Stdio { command, args, env: [].into(), cwd: None };
    ServerConfig { name: name.into(), transport, per_agent }
}

/// Calls the tool once with the agent's own id, then completes with what came back.
fn echo_script(tool: &'static str) -> impl Fn(&Request) -> Turn + Send + Sync {
    move |request| match request.turn {
        0 => {
            // The longer one waits, the earlier it asked: answers come in another order than the calls.
            let ms = 200_u64.saturating_sub(10 * request.n as u64);
            Turn::call(tool, &json!({"text": request.agent_id, "ms": ms}))
        }
        _ => Turn::complete(request.last_message()["content"].as_str().unwrap_or_default()),
    }
}

#[tokio::test]
async fn twenty_runs_at_one_slow_tool_each_get_their_own_answer() {
    let world = World::with(echo_script("slow_echo"), |options| {
        options.tool_servers = vec![server("slow", &["--noisy"], false)];
    })
    .await;
    let mut ids = Vec::new();
    for _ in 0..20 {
        ids.push(world.start("ask").await);
    }
    let mut processes = HashSet::new();
    for id in &ids {
        let summary = world.end_of(id).await.summary.unwrap();
        let (text, process) = summary.split_once(" from ").unwrap_or_else(|| panic!("{summary}"));
        assert_eq!(text, id);
        processes.insert(process.to_owned());
    }
    assert_eq!(processes.len(), 1, "one shared server");
    let (servers, tools) = world.engine.tools();
    assert_eq!((servers[0].status, servers[0].tools, tools.len()), ("active", 1, 1));
}

#[tokio::test]
async fn a_server_per_agent_is_a_process_per_agent() {
    let world = World::with(echo_script("slow_echo"), |options| {
        options.tool_servers = vec![server("own", &[], true)];
    })
    .await;
    let mut processes = HashSet::new();
    for _ in 0..3 {
        let summary = world.run("ask").await.summary.unwrap();
        processes.insert(summary.split_once(" from ").unwrap().1.to_owned());
    }
    assert_eq!(processes.len(), 3);
    for process in processes {
        crate::support::eventually("its process is gone", || {
            !std::path::Path::new(&format!("/proc/{process}")).exists()
        })
        .await;
    }
}

#[tokio::test]
async fn a_server_that_dies_is_told_to_the_model_and_started_again() {
    let world = World::with(
        |request| match request.turn {
            0..3 => Turn::call("slow_echo", &json!({"text": format!("call {}", request.turn), "ms": 0})),
            _ => Turn::complete("ok"),
        },
        |options| options.tool_servers = vec![server("mortal", &["--die-after", "1"], false)],
    )
    .await;
    let id = world.start("ask").await;
    assert_eq!(world.end_of(&id).await.status, Some(RunStatus::Completed));
    let results: Vec<(String, bool)> = world
        .transcript(&id)
        .await
        .into_iter()
        .filter_map(|body| match body {
            EventBody::ToolResult { name, content, is_error, .. } if name == "slow_echo" => {
                Some((content, is_error))
            }
            _ => None,
        })
        .collect();
    assert!(results[0].0.starts_with("call 0 from"));
    assert!(results[1].1 && results[1].0.contains("not known whether"), "{results:?}");
    assert!(results[2].0.starts_with("call 2 from"), "{results:?}");
}

#[tokio::test]
async fn a_server_that_never_answers_harms_nobody() {
    let world = World::with(
        |_| Turn::complete("without it"),
        |options| {
            options.tool_servers = vec![server("deaf", &["--deaf"], false), server("good", &[], false)];
            limit(options, |limits| limits.tool_server_start_seconds = 1);
        },
    )
    .await;
    assert_eq!(world.run("x").await.summary.as_deref(), Some("without it"));
    let (servers, _) = world.engine.tools();
    let states: Vec<_> = servers.iter().map(|server| (server.name.as_str(), server.status)).collect();
    assert_eq!(states, [("deaf", "broken"), ("good", "active")]);
    assert!(servers[0].error.as_ref().unwrap().contains("within 1 seconds"));
}

#[tokio::test]
async fn names_are_prefixed_only_where_they_clash() {
    let directory = tempfile::tempdir().unwrap();
    let world = World::with(
        |_| Turn::complete("ok"),
        |options| {
            options.tool_servers = vec![
                server("one", &[], false),
                server("two", &[], false),
                server("three", &["--name", "read_file"], false),
                server("four", &["--name", "odd name!"], false),
            ];
        },
    )
    .await;
    let spec = RunSpec { workdir: Some(directory.path().to_owned()), ..RunSpec::default() };
    let id = world.start_spec("x", spec).await;
    world.end_of(&id).await;
    let names: Vec<Value> = world.model.bodies()[0]["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["function"]["name"].clone())
        .collect();
    for expected in
        ["one__slow_echo", "two__slow_echo", "three__read_file", "odd_name_", "read_file", "agent_complete"]
    {
        assert!(names.contains(&expected.into()), "{expected} is not in {names:?}");
    }
}
