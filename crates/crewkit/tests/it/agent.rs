//! `crewkit agent`, alone and with a server.

use std::path::Path;

use serde_json::Value;

use crate::support::{Served, crewkit, output};

fn agent(home: &Path, arguments: &[&str]) -> (i32, String, String) {
    let mut command = crewkit(home);
    command.arg("agent").args(arguments);
    output(&mut command)
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn without_a_server_or_a_model_a_contract_is_rehearsed_here() {
    let home = tempfile::tempdir().unwrap();
    let project = tempfile::tempdir().unwrap();
    std::fs::write(project.path().join("README.md"), "# A project\n").unwrap();
    let directory = project.path().to_str().unwrap();
    let (code, out, talk) = agent(home.path(), &["start", "tidy up", "--dir", directory]);
    assert_eq!(code, 0, "{talk}");
    assert!(out.contains("completed: Rehearsal only"), "{out}");
    assert!(talk.contains("[rehearsal]") && talk.contains("read_file"), "{talk}");
    let (_, list, _) = agent(home.path(), &["list", "--json"]);
    let id = json(&list)["agents"][0]["id"].as_str().unwrap().to_owned();
    let (code, payload, _) = agent(home.path(), &["payload", &id]);
    assert_eq!(code, 0);
    assert!(payload.starts_with("# Rehearsal report"), "{payload}");
    let (_, entries, _) = agent(home.path(), &["output", &id]);
    assert!(entries.contains("I am done"), "{entries}");
    let (code, status, _) = agent(home.path(), &["status", &id, "--json"]);
    assert_eq!((code, &json(&status)[0]["rehearsal"]), (0, &Value::Bool(true)));
    let (_, would, _) = agent(home.path(), &["prune", "--older-than", "0", "-n", "--json"]);
    assert_eq!((&json(&would)["count"], &json(&would)["dry_run"]), (&1.into(), &Value::Bool(true)));
    let (code, _, _) = agent(home.path(), &["status", "agent-nobody"]);
    assert_eq!(code, 1);
    let (code, _, talk) = agent(home.path(), &["start", " "]);
    assert!(code == 1 && talk.contains("E_CONTRACT_INVALID") && talk.contains("next:"), "{talk}");
    let (code, _, talk) = agent(home.path(), &["start"]);
    assert!(code == 2 && talk.contains("standard input"), "{talk}");
}

#[test]
fn with_a_server_the_commands_talk_to_it() {
    let home = tempfile::tempdir().unwrap();
    let served = Served::start(home.path(), &[]);
    std::fs::write(home.path().join("crewkit.toml"), format!("[client]\nserver = \"{}\"\n", served.base))
        .unwrap();
    let (code, out, talk) = agent(home.path(), &["start", "tidy up"]);
    assert_eq!(code, 0, "{talk}");
    let id = out.trim();
    let (code, out, talk) = agent(home.path(), &["wait", id]);
    assert!(code == 0 && out.contains("(rehearsal)"), "{out} {talk}");
    assert!(agent(home.path(), &["payload", id]).1.starts_with("# Rehearsal report"));
    assert!(agent(home.path(), &["list", "--status", "completed"]).1.contains(id));
    assert!(agent(home.path(), &["stop", id]).1.contains("completed"));
    let (code, _, talk) = agent(home.path(), &["payload", "agent-nobody"]);
    assert!(code == 1 && talk.contains("E_AGENT_NOT_FOUND"), "{talk}");
    let failing = agent(home.path(), &["start", "--wait", "x\nrehearse: fail"]);
    assert_eq!(failing.0, 1, "{failing:?}");
    forgets(home.path(), id);
}

/// Ended agents are removed when that is said, and not before.
fn forgets(home: &Path, id: &str) {
    let (code, _, talk) = agent(home, &["prune"]);
    assert!(code == 1 && talk.contains("--older-than"), "{talk}");
    let (code, out, _) = agent(home, &["prune", "--older-than", "0", "--dry-run"]);
    assert!(code == 0 && out.contains(id) && out.contains("2 agents would be removed"), "{out}");
    assert!(agent(home, &["prune", "--older-than", "1"]).1.contains("0 agents removed"));
    assert!(agent(home, &["delete", id]).1.contains("deleted"));
    let (code, _, talk) = agent(home, &["delete", id]);
    assert!(code == 1 && talk.contains("E_AGENT_NOT_FOUND"), "{talk}");
    assert!(agent(home, &["prune", "--older-than", "0"]).1.contains("1 agent removed"));
    assert_eq!(agent(home, &["list"]).1.trim(), "");
}

#[test]
fn a_model_that_is_configured_is_the_one_that_is_asked() {
    let home = tempfile::tempdir().unwrap();
    let mut command = crewkit(home.path());
    command.env("LLM_ENDPOINT", "http://127.0.0.1:9/v1/chat/completions").env("LLM_MODEL", "m");
    command.env("CREWKIT_LIMITS_LLM_RETRY_MILLIS", "1").args(["agent", "start", "x", "--json"]);
    let (code, out, _) = output(&mut command);
    assert_eq!((code, &json(&out)["reason"]), (1, &Value::String("model_failed".into())));
    let mut command = crewkit(home.path());
    command.env("LLM_ENDPOINT", "http://127.0.0.1:9/").args(["agent", "list"]);
    let (code, _, talk) = output(&mut command);
    assert!(code == 1 && talk.contains("`llm.model` must be set"), "{talk}");
}

/// Every client that speaks MCP on stdio starts a process of its own; they share the agents of a running server.
#[test]
fn stdio_processes_reach_the_agents_of_a_running_server() {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::process::Stdio;

    let home = tempfile::tempdir().unwrap();
    let served = Served::start(home.path(), &[]);
    let mut child =
        crewkit(home.path()).arg("mcp").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut answers = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut ask = |message: Value| {
        writeln!(input, "{message}").unwrap();
        json(&answers.next().unwrap().unwrap())
    };
    let client = serde_json::json!({"name": "test", "version": "1"});
    ask(serde_json::json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}}));
    let params = serde_json::json!({"name": "agent_start", "arguments": {"contract": "from stdio"}});
    let started =
        ask(serde_json::json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}));
    let id =
        started["result"]["structuredContent"]["agent_id"].as_str().unwrap_or_else(|| panic!("{started}"));
    assert!(agent(home.path(), &["list"]).1.contains(id));
    drop(input);
    child.wait().unwrap();
    assert_eq!(served.terminate(), Some(0));
}
