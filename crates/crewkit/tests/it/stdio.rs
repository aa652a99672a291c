//! Standard output belongs to the protocol.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use crate::support::{crewkit, text};

const PLAY: &str = "CREWKIT_TEST_PLAY_STDIO_SERVER";

fn initialize(version: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"},
    }})
}

/// Sends `lines` and returns what came back on each stream.
fn converse(command: &mut Command, lines: &[String]) -> (Vec<Value>, String, Option<i32>) {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    for line in lines {
        writeln!(input, "{line}").unwrap();
    }
    drop(input);
    let output = child.wait_with_output().unwrap();
    let messages = text(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("not protocol: {line:?}")))
        .collect();
    (messages, text(&output.stderr), output.status.code())
}

#[test]
fn the_server_name_tells_the_toolset_and_logs_stay_off_the_protocol() {
    let home = tempfile::tempdir().unwrap();
    for (arguments, name) in [
        (vec!["mcp"], "crewkit"),
        (vec!["mcp", "--toolsets", "pack"], "agentpack"),
        (vec!["mcp", "--toolsets", "fleet"], "fleet-mcp"),
        (vec!["mcp", "--toolsets", "agents"], "minifram"),
        (vec!["mcp", "--toolsets", "pack,agents"], "crewkit"),
    ] {
        let lines = [String::new(), "garbage".to_owned(), initialize("2025-11-25").to_string()];
        let (messages, _, code) = converse(crewkit(home.path()).args(["-vv"]).args(&arguments), &lines);
        assert_eq!(code, Some(0), "the end of the input is a good end");
        assert_eq!(messages.len(), 2);
        assert_eq!(messages[0]["error"]["code"], -32700);
        assert_eq!(messages[1]["result"]["serverInfo"]["name"], name, "{arguments:?}");
    }
}

/// Plays a server that is surrounded by noise; does nothing unless the test below starts it.
#[test]
fn noisy_server() {
    if std::env::var_os(PLAY).is_none() {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (_reader, mut writer) = crewkit::stdio::take().unwrap();
        println!("noise from a library");
        // A child inherits the streams: it must neither be heard nor read what the client sends.
        let heard = Command::new("sh").args(["-c", "echo noise from a child; cat"]).status().unwrap();
        assert!(heard.success());
        writer.write_all(b"{\"protocol\":true}\n").await.unwrap();
        writer.flush().await.unwrap();
    });
    runtime.shutdown_background();
    // The test harness has its own last words; they are noise too.
}

#[test]
fn noise_never_reaches_the_protocol() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(PLAY, "1").args(["--exact", "stdio::noisy_server", "--nocapture", "--test-threads", "1"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"a message of the client\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(out.contains("{\"protocol\":true}\n"), "{out}");
    assert!(!out.contains("noise") && err.contains("noise from a child"), "{out} / {err}");
    assert!(!out.contains("a message of the client") && !err.contains("a message of the client"));
}
