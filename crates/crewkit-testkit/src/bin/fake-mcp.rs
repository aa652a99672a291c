//! A tool server on standard streams whose answers come late and out of order.
//!
//! Switches: `--deaf` never answers; `--wait-for FILE` answers nothing before there is such a file; `--die-after N` ends after N calls; `--noisy` floods standard error and prints lines
//! that are no messages; `--name NAME` renames its tool.

use std::io::{BufRead, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let value = |flag: &str| arguments.iter().skip_while(|argument| *argument != flag).nth(1).cloned();
    let die_after: Option<usize> = value("--die-after").and_then(|count| count.parse().ok());
    let tool = value("--name").unwrap_or_else(|| "slow_echo".to_owned());
    let out = Arc::new(Mutex::new(std::io::stdout()));
    if has("--noisy") {
        send_line(&out, "fake-mcp says hello where only messages belong");
        let filler = "x".repeat(1000);
        let mut err = std::io::stderr().lock();
        for _ in 0..500 {
            let _ = writeln!(err, "{filler}");
        }
    }
    if let Some(file) = value("--wait-for") {
        while !std::path::Path::new(&file).exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    let mut calls = 0;
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let Ok(message) = serde_json::from_str::<Value>(&line) else { continue };
        if has("--deaf") {
            continue;
        }
        let id = message["id"].clone();
        let answer = match message["method"].as_str().unwrap_or_default() {
            "initialize" => {
                json!({"protocolVersion": message["params"]["protocolVersion"], "capabilities": {"tools": {}},
                                   "serverInfo": {"name": "fake-mcp", "version": "1"}})
            }
            "tools/list" => tools(&tool),
            "tools/call" => {
                calls += 1;
                if die_after.is_some_and(|limit| calls > limit) {
                    std::process::exit(3);
                }
                later(&out, id, &message["params"]["arguments"]);
                continue;
            }
            _ => continue,
        };
        send_line(&out, &json!({"jsonrpc": "2.0", "id": id, "result": answer}).to_string());
    }
}

fn tools(name: &str) -> Value {
    json!({"tools": [{
        "name": name,
        "description": "Answers with its text and the process id, after a while.",
        "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}, "ms": {"type": "integer"}}},
    }]})
}

/// Answers on a thread of its own, so that a quick call overtakes a slow one.
fn later(out: &Arc<Mutex<std::io::Stdout>>, id: Value, arguments: &Value) {
    let (out, arguments) = (Arc::clone(out), arguments.clone());
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(arguments["ms"].as_u64().unwrap_or(0)));
        let text = format!("{} from {}", arguments["text"].as_str().unwrap_or_default(), std::process::id());
        let result = json!({"content": [{"type": "text", "text": text}], "isError": false});
        send_line(&out, &json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string());
    });
}

fn send_line(out: &Arc<Mutex<std::io::Stdout>>, line: &str) {
    let mut out = out.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}
