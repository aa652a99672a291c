//! Tools of MCP servers: many calls in flight, each with its own answer.

use std::collections::HashSet;
use std::time::Duration;

use crewkit_agent::tools::mcp::{ServerConfig, Transport};
use crewkit_agent::{EventBody, RunSpec};
use crewkit_core::Secret;
use crewkit_core::run::RunStatus;
use crewkit_testkit::bins;
use crewkit_testkit::model::{Request, Turn};
use crewkit_testkit::tool_server::{Answers, HttpToolServer};
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
        options.settings_mut().tool_servers = vec![server("slow", &["--noisy"], false)];
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
        options.settings_mut().tool_servers = vec![server("own", &[], true)];
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
        |options| options.settings_mut().tool_servers = vec![server("mortal", &["--die-after", "1"], false)],
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
            options.settings_mut().tool_servers =
                vec![server("deaf", &["--deaf"], false), server("good", &[], false)];
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

/// Two servers hang while they start, one for all runs and one for each; nobody waits for them but their own tools.
#[tokio::test]
async fn a_server_that_starts_slowly_does_not_hold_up_runs() {
    let directory = tempfile::tempdir().unwrap();
    let ready = directory.path().join("ready");
    let wait_for = ["--wait-for", ready.to_str().unwrap(), "--name"];
    let shared = server("shared", &[&wait_for[..], &["shared_echo"]].concat(), false);
    let own = server("own", &[&wait_for[..], &["own_echo"]].concat(), true);
    let becomes_ready = ready.clone();
    let world = World::with(
        move |request| {
            let offered = |name: &str| request.body["tools"].to_string().contains(name);
            match request.turn {
                // The servers hang until the agent has worked a while.
                3 => std::fs::write(&becomes_ready, "").unwrap(),
                turn if turn > 3 && offered("shared_echo") && offered("own_echo") => {
                    return Turn::complete("both are here");
                }
                _ => {}
            }
            Turn::call("no_such_tool", &json!({"n": request.n})).after(Duration::from_millis(10))
        },
        |options| {
            options.settings_mut().tool_servers = vec![shared, own];
            limit(options, |limits| {
                limits.tool_server_start_seconds = 600;
                limits.tool_server_wait_ms = 50;
                limits.agent_turns = 0;
            });
        },
    )
    .await;
    let id = world.start("use the tools").await;
    assert_eq!(world.end_of(&id).await.summary.as_deref(), Some("both are here"));
    let notes: Vec<String> = world
        .transcript(&id)
        .await
        .into_iter()
        .filter_map(|body| match body {
            EventBody::Note { content } => Some(content),
            _ => None,
        })
        .collect();
    let note =
        |name| format!("tool server `{name}` is still starting; its tools are offered when it is ready");
    assert_eq!(notes, [note("shared"), note("own")]);
}

#[tokio::test]
async fn names_are_prefixed_only_where_they_clash() {
    let directory = tempfile::tempdir().unwrap();
    let world = World::with(
        |_| Turn::complete("ok"),
        |options| {
            options.settings_mut().tool_servers = vec![
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

fn over_http(server: &HttpToolServer, token: Option<&str>) -> Vec<ServerConfig> {
    let authorization =
        token.map(|token| ("Authorization".to_owned(), Secret::new(format!("Bearer {token}"))));
    let transport = Transport::Http {
        url: crewkit_core::Secret::new(server.url()),
        headers: authorization.into_iter().collect(),
    };
    vec![ServerConfig { name: "web".into(), transport, per_agent: false }]
}

/// Calls `echo` in each of the first turns; an argument of a call is what `arguments` says for its turn.
fn echoes(
    calls: usize,
    arguments: impl Fn(usize) -> Value + Send + Sync,
) -> impl Fn(&Request) -> Turn + Send + Sync {
    move |request| match request.turn {
        turn if turn < calls => Turn::call("echo", &arguments(turn)),
        _ => Turn::complete("ok"),
    }
}

/// What `echo` answered, in order, and whether it was an error.
async fn answers(world: &World, id: &str) -> Vec<(String, bool)> {
    let bodies = world.transcript(id).await.into_iter();
    let results = bodies.filter_map(|body| match body {
        EventBody::ToolResult { name, content, is_error, .. } if name == "echo" => Some((content, is_error)),
        _ => None,
    });
    results.collect()
}

#[tokio::test]
async fn a_server_over_http_answers_as_json_or_as_events() {
    for form in [Answers::Json, Answers::Events] {
        let server = HttpToolServer::start(form, Some("open sesame")).await;
        let world = World::with(echoes(2, |turn| json!({"text": format!("words {turn}")})), |options| {
            options.settings_mut().tool_servers = over_http(&server, Some("open sesame"));
        })
        .await;
        let id = world.start("ask").await;
        assert_eq!(world.end_of(&id).await.status, Some(RunStatus::Completed));
        let expected = [("words 0".to_owned(), false), ("words 1".to_owned(), false)];
        assert_eq!(answers(&world, &id).await, expected, "{form:?}");
        assert_eq!((server.calls(), server.complaints()), (2, vec![]), "{form:?}");
        let (opened, _, _, pongs) = server.tally();
        assert_eq!(opened, 1, "one session for all");
        assert_eq!(pongs, if form == Answers::Json { 0 } else { 2 }, "each stream asks whether we are there");
    }
}

#[tokio::test]
async fn a_token_that_is_wrong_is_told_and_harms_nobody() {
    let server = HttpToolServer::start(Answers::Json, Some("open sesame")).await;
    let world = World::with(
        |_| Turn::complete("without it"),
        |options| options.settings_mut().tool_servers = over_http(&server, Some("wrong")),
    )
    .await;
    assert_eq!(world.run("x").await.summary.as_deref(), Some("without it"));
    let (servers, _) = world.engine.tools();
    assert_eq!(servers[0].status, "broken");
    let error = servers[0].error.clone().unwrap();
    assert!(error.contains("status 401") && !error.contains("wrong"), "{error}");
}

#[tokio::test]
async fn a_server_that_was_restarted_is_met_again_and_no_call_is_made_twice() {
    let server = HttpToolServer::start(Answers::Events, None).await;
    let shared = std::sync::Arc::new(tokio::sync::Mutex::new(server));
    let config = over_http(&*shared.lock().await, None);
    let world = World::with(echoes(2, |turn| json!({"text": format!("{turn}")})), |options| {
        options.settings_mut().tool_servers = config;
    })
    .await;
    // Between the runs the server is gone and comes back without its sessions.
    let first = world.start("ask").await;
    world.end_of(&first).await;
    {
        let mut server = shared.lock().await;
        server.down().await;
        server.up().await;
    }
    let second = world.start("ask").await;
    world.end_of(&second).await;
    let expected = [("0".to_owned(), false), ("1".to_owned(), false)];
    assert_eq!(answers(&world, &second).await, expected, "the model notices nothing");
    let server = shared.lock().await;
    assert_eq!((server.calls(), server.tally().0), (4, 2), "four calls in two sessions");
    // A session that is forgotten without a restart is the same.
    server.forget_sessions();
    let third = world.start("ask").await;
    world.end_of(&third).await;
    assert_eq!(answers(&world, &third).await, expected);
    assert_eq!((server.calls(), server.complaints()), (6, vec![]));
}

#[tokio::test]
async fn a_call_over_http_that_may_have_happened_is_not_repeated() {
    for form in [Answers::Json, Answers::Events] {
        let server = HttpToolServer::start(form, None).await;
        let world = World::with(echoes(2, |turn| json!({"text": format!("{turn}")})), |options| {
            options.settings_mut().tool_servers = over_http(&server, None);
        })
        .await;
        server.cut_next();
        let id = world.start("ask").await;
        world.end_of(&id).await;
        let told = answers(&world, &id).await;
        assert!(told[0].1 && told[0].0.contains("not known whether"), "{told:?}");
        assert_eq!(told[1], ("1".to_owned(), false), "{form:?}");
        assert_eq!(server.calls(), 2, "the call that was cut ran once");
    }
}

#[tokio::test]
async fn a_call_over_http_that_takes_too_long_is_cancelled() {
    let server = HttpToolServer::start(Answers::Json, None).await;
    let slow = |turn| json!({"text": "late", "ms": if turn == 0 { 600_000 } else { 0 }});
    let world = World::with(echoes(2, slow), |options| {
        options.settings_mut().tool_servers = over_http(&server, None);
        limit(options, |limits| limits.tool_call_seconds = 1);
    })
    .await;
    let id = world.start("ask").await;
    world.end_of(&id).await;
    let told = answers(&world, &id).await;
    assert!(told[0].1 && told[0].0.contains("within 1 seconds"), "{told:?}");
    assert_eq!(told[1], ("late".to_owned(), false));
    crate::support::eventually("the server is told", || server.tally().2 == 1).await;
}

#[tokio::test]
async fn a_session_per_agent_is_ended_with_its_run() {
    let server = HttpToolServer::start(Answers::Json, None).await;
    let world = World::with(echoes(1, |_| json!({"text": "x"})), |options| {
        options.settings_mut().tool_servers =
            over_http(&server, None).into_iter().map(|one| ServerConfig { per_agent: true, ..one }).collect();
    })
    .await;
    for _ in 0..3 {
        world.run("ask").await;
    }
    crate::support::eventually("sessions are ended", || server.tally().1 == 3).await;
    assert_eq!(server.tally().0, 3);
}
