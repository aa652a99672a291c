//! `crewkit run` and `crewkit runs`.

use std::path::Path;

use serde_json::Value;

use crate::support::{Served, crewkit, output};

fn runs(home: &Path, arguments: &[&str]) -> (i32, String, String) {
    output(crewkit(home).arg("runs").args(arguments))
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn without_a_model_a_contract_is_rehearsed_by_the_server_that_the_command_starts() {
    let home = tempfile::tempdir().unwrap();
    let project = tempfile::tempdir().unwrap();
    std::fs::write(project.path().join("README.md"), "# A project\n").unwrap();
    let directory = project.path().to_str().unwrap();
    let (code, out, talk) = output(crewkit(home.path()).args(["run", "tidy up", "--dir", directory]));
    assert_eq!(code, 0, "{talk}");
    assert!(out.starts_with("Rehearsal only"), "{out}");
    assert!(talk.contains("· rehearsal (no model is configured)") && talk.contains("▸ turn 1"), "{talk}");
    assert!(talk.contains("✓ completed in ") && talk.contains("Output: crewkit runs output "), "{talk}");
    let (_, list, _) = runs(home.path(), &["list", "--json"]);
    let id = json(&list)["runs"][0]["id"].as_str().unwrap().to_owned();
    let short = &id[id.len() - 4..];
    let (code, list, _) = runs(home.path(), &["list"]);
    assert!(code == 0 && list.starts_with("RUN   STATUS       AGE"), "{list}");
    assert!(list.contains(&format!("\n{short}  ✓ completed")), "{list}");
    let (code, payload, _) = runs(home.path(), &["payload", short]);
    assert_eq!(code, 0);
    assert!(payload.starts_with("# Rehearsal report"), "{payload}");
    let (_, entries, _) = runs(home.path(), &["output", short]);
    assert!(entries.contains("I am done"), "{entries}");
    let (code, status, _) = runs(home.path(), &["show", short, "--json"]);
    assert_eq!((code, &json(&status)[0]["rehearsal"]), (0, &Value::Bool(true)));
    let (_, would, _) = runs(home.path(), &["prune", "--older-than", "0", "-n", "--json"]);
    assert_eq!((&json(&would)["count"], &json(&would)["dry_run"]), (&1.into(), &Value::Bool(true)));
    let (code, _, talk) = runs(home.path(), &["show", "agent-nobody"]);
    assert!(code == 1 && talk.contains("next: crewkit runs list"), "{talk}");
    let (code, _, talk) = output(crewkit(home.path()).args(["run", " "]));
    assert!(code == 1 && talk.contains("E_CONTRACT_INVALID") && talk.contains("next:"), "{talk}");
    let (code, _, talk) = output(crewkit(home.path()).arg("run"));
    assert!(code == 2 && talk.contains("standard input"), "{talk}");
}

#[test]
fn the_earlier_spelling_still_works() {
    let home = tempfile::tempdir().unwrap();
    let agent = |arguments: &[&str]| output(crewkit(home.path()).arg("agent").args(arguments));
    let (code, out, talk) = agent(&["start", "tidy up", "--wait", "--json"]);
    assert_eq!(code, 0, "{talk}");
    let id = json(&out)["agent_id"].as_str().unwrap().to_owned();
    for arguments in [&["status", &id][..], &["list"], &["wait", &id], &["output", &id], &["stop", &id]] {
        let (code, _, talk) = agent(arguments);
        assert_eq!(code, 0, "{arguments:?}: {talk}");
    }
    let (code, _, talk) = agent(&["list", "--status", "bogus"]);
    assert!(code == 2 && talk.contains("there is no status `bogus`; use ready, running"), "{talk}");
}

#[test]
fn with_a_server_the_commands_talk_to_it() {
    let home = tempfile::tempdir().unwrap();
    let served = Served::start(home.path(), &[]);
    std::fs::write(home.path().join("crewkit.toml"), format!("[client]\nserver = \"{}\"\n", served.base))
        .unwrap();
    let (code, out, talk) = output(crewkit(home.path()).args(["run", "--detach", "tidy up"]));
    assert_eq!(code, 0, "{talk}");
    let id = out.trim();
    let (code, out, talk) = runs(home.path(), &["wait", id]);
    assert!(code == 0 && out.contains("✓ completed"), "{out} {talk}");
    assert!(runs(home.path(), &["show", id]).1.contains("✓ completed (rehearsal)"));
    assert!(runs(home.path(), &["payload", id]).1.starts_with("# Rehearsal report"));
    assert!(runs(home.path(), &["list", "--status", "completed"]).1.contains(&id[id.len() - 4..]));
    assert!(runs(home.path(), &["stop", id]).1.contains("completed"));
    let (code, _, talk) = runs(home.path(), &["payload", "agent-nobody"]);
    assert!(code == 1 && talk.contains("E_AGENT_NOT_FOUND"), "{talk}");
    let failing = output(crewkit(home.path()).args(["run", "x\nrehearse: fail"]));
    assert!(failing.0 == 1 && failing.2.contains("✕ stopped (contract failed)"), "{failing:?}");
    forgets(home.path(), id);
}

/// Ended runs are deleted when that is asked for, and not before.
fn forgets(home: &Path, id: &str) {
    let short = &id[id.len() - 4..];
    let (code, _, talk) = runs(home, &["prune"]);
    assert!(code == 1 && talk.contains("--older-than"), "{talk}");
    let (code, out, _) = runs(home, &["prune", "--older-than", "0", "--dry-run"]);
    assert!(code == 0 && out.contains(short) && out.contains("2 runs would be removed"), "{out}");
    assert!(runs(home, &["prune", "--older-than", "1"]).1.contains("0 runs removed"));
    assert!(runs(home, &["delete", id]).1.contains("deleted"));
    let (code, _, talk) = runs(home, &["delete", id]);
    assert!(code == 1 && talk.contains("E_AGENT_NOT_FOUND"), "{talk}");
    assert!(runs(home, &["prune", "--older-than", "0"]).1.contains("1 run removed"));
    assert!(runs(home, &["list"]).1.starts_with("No runs. Start one:\n  crewkit run "));
}

#[test]
fn a_model_that_is_configured_is_the_one_that_is_asked() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("crewkit.toml"), "[limits]\nllm_retry_millis = 1\n").unwrap();
    let mut command = crewkit(home.path());
    command.env("LLM_ENDPOINT", "http://127.0.0.1:9/v1/chat/completions").env("LLM_MODEL", "m");
    command.args(["run", "x", "--json"]);
    let (code, out, _) = output(&mut command);
    assert_eq!((code, &json(&out)["reason"]), (1, &Value::String("model_failed".into())));
    let mut command = crewkit(home.path());
    command.env("LLM_ENDPOINT", "http://127.0.0.1:9/").args(["runs", "list"]);
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
    assert!(runs(home.path(), &["list", "--json"]).1.contains(id));
    drop(input);
    child.wait().unwrap();
    assert_eq!(served.terminate(), Some(0));
}
