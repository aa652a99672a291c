//! A coding agent's command line that plays a scene: `fake-agent SCENE [ARGUMENT]`.
//!
//! The scenes replay the output of Claude Code and Codex, well-behaved and ugly, and the tricks processes play when they
//! are to end.

use std::io::{Read, Write};
use std::time::Duration;

use serde_json::{Value, json};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let scene = arguments.next().unwrap_or_default();
    let argument = arguments.next().unwrap_or_default();
    match scene.as_str() {
        "claude-ok" => {
            claude(&json!({"subtype": "success", "is_error": false, "result": format!("did: {}", stdin())}));
        }
        "claude-error" => {
            claude(&json!({"subtype": "success", "is_error": true, "result": "Credit balance is too low"}));
            exit(1);
        }
        "claude-max-turns" => claude(&json!({"subtype": "error_max_turns", "is_error": true})),
        "claude-no-result" => claude_turns(),
        "claude-refused" => claude_refused(&argument),
        "claude-endless" => claude_endless(),
        "codex-endless" => codex_endless(),
        "codex-ok" => codex(true),
        "codex-failed" => codex(false),
        "text-ok" => println(&format!("working\nall done: {}", stdin())),
        "text-failed" => println("I could not\n[CONTRACT FAILED]"),
        "exit" => {
            let _ = writeln!(std::io::stderr(), "something broke: {argument}");
            exit(argument.parse().unwrap_or(1));
        }
        "echo-input" => echo_input(),
        "flood" => flood(argument.parse().unwrap_or(1)),
        "long-line" => {
            println(&format!("{{\"type\":\"assistant\",\"message\":\"{}\"}}", "x".repeat(8 << 20)));
            claude(&json!({"subtype": "success", "is_error": false, "result": "after a long line"}));
        }
        "stubborn" => stubborn(&argument),
        "daemon" => daemon(&argument),
        "sleeper" => sleeper(&argument),
        "network" => network(&argument),
        _ => {
            let _ = writeln!(std::io::stderr(), "unknown scene `{scene}`");
            exit(64);
        }
    }
}

/// Says what it hears, line by line, until there is no more; a line has ended when another begins.
fn echo_input() {
    for line in std::io::stdin().lines().map_while(Result::ok) {
        println(&format!("heard {}: {line}", line.len()));
    }
    println("closed");
}

/// Tries every way out and says which are open.
fn network(listener: &str) {
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::unix::net::UnixDatagram;
    let word = |is_open: bool| if is_open { "open" } else { "closed" };
    println(&format!("connect {}", word(TcpStream::connect(listener).is_ok())));
    println(&format!("listen {}", word(TcpListener::bind("127.0.0.1:0").is_ok())));
    let datagram = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.send_to(b"x", listener));
    println(&format!("datagram {}", word(datagram.is_ok())));
    println(&format!("local {}", word(UnixDatagram::unbound().is_ok())));
}

#[expect(clippy::exit, reason = "a fake program plays exit codes")]
fn exit(code: i32) -> ! {
    std::process::exit(code)
}

fn stdin() -> String {
    let mut text = String::new();
    let _ = std::io::stdin().read_to_string(&mut text);
    text
}

fn println(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}");
    let _ = out.flush();
}

fn claude_turns() {
    println(
        &json!({"type": "system", "subtype": "init", "session_id": "s", "tools": ["Bash"], "model": "fake"})
            .to_string(),
    );
    println("(node:1) Warning: a line that is no message");
    let usage = json!({"input_tokens": 3, "cache_read_input_tokens": 4, "output_tokens": 5});
    // One message arrives in several lines, each with the same usage.
    for block in [
        json!({"type": "thinking", "thinking": "let me see"}),
        json!({"type": "text", "text": "I look around."}),
        json!({"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls"}}),
    ] {
        let message = json!({"id": "msg_1", "role": "assistant", "content": [block], "usage": usage});
        println(&json!({"type": "assistant", "message": message, "session_id": "s"}).to_string());
    }
    let result = json!({"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "a.txt"}]});
    println(&json!({"type": "user", "message": {"role": "user", "content": [result]}}).to_string());
    println(&json!({"type": "rate_limit_event", "rate_limit_info": {}}).to_string());
    println("{\"type\":\"assistant\",\"message\":{\"content\":[{\"type\":\"te");
}

/// Is refused by its model, tries again, and then hangs (`hang`), dies (`die`) or gives up.
fn claude_refused(then: &str) {
    println(&json!({"type": "system", "subtype": "init", "session_id": "s", "model": "fake"}).to_string());
    let _ = writeln!(std::io::stderr(), "no such key");
    for attempt in 1..=2 {
        let retry = json!({"type": "system", "subtype": "api_retry", "attempt": attempt, "max_retries": 10,
                           "retry_delay_ms": 1_156.299_357_991_317, "error_status": 401, "error": "authentication_failed",
                           "session_id": "s"});
        println(&retry.to_string());
    }
    match then {
        "hang" => std::thread::sleep(Duration::from_hours(1)),
        "die" => exit(3),
        _ => {
            let text = "Failed to authenticate. API Error: 401";
            let result = json!({"type": "result", "subtype": "success", "is_error": true, "result": text});
            println(&result.to_string());
            exit(1);
        }
    }
}

fn claude(result: &Value) {
    claude_turns();
    let mut event = json!({"type": "result", "duration_ms": 5, "num_turns": 1, "session_id": "s", "total_cost_usd": 0.1,
                           "usage": {"input_tokens": 3, "cache_read_input_tokens": 4, "output_tokens": 25}});
    for (key, value) in result.as_object().into_iter().flatten() {
        event[key] = value.clone();
    }
    println(&event.to_string());
}

fn codex(succeeds: bool) {
    let contract = stdin();
    println(&json!({"type": "thread.started", "thread_id": "t"}).to_string());
    println(&json!({"type": "turn.started"}).to_string());
    println(&json!({"type": "error", "message": "Reconnecting... 1/5"}).to_string());
    println(&json!({"type": "item.completed", "item": {"id": "item_0", "type": "reasoning", "text": "**Looking**"}}).to_string());
    let mut command = json!({"id": "item_1", "type": "command_execution", "command": "bash -lc ls", "aggregated_output": "",
                             "exit_code": null, "status": "in_progress"});
    println(&json!({"type": "item.started", "item": command}).to_string());
    command["aggregated_output"] = "a.txt\n".into();
    command["exit_code"] = 0.into();
    command["status"] = "completed".into();
    println(&json!({"type": "item.completed", "item": command}).to_string());
    let change = json!({"id": "item_2", "type": "file_change", "changes": [{"path": "a.txt", "kind": "update"}], "status": "completed"});
    println(&json!({"type": "item.completed", "item": change}).to_string());
    if succeeds {
        let text = format!("did: {contract}");
        println(&json!({"type": "item.completed", "item": {"id": "item_3", "type": "agent_message", "text": text}}).to_string());
        let usage = json!({"input_tokens": 100, "cached_input_tokens": 50, "output_tokens": 7});
        println(&json!({"type": "turn.completed", "usage": usage}).to_string());
    } else {
        println(&json!({"type": "turn.failed", "error": {"message": "stream disconnected"}}).to_string());
        exit(1);
    }
}

/// Works turn after turn and never finishes.
fn claude_endless() {
    for turn in 1.. {
        let call = json!({"type": "tool_use", "id": format!("toolu_{turn}"), "name": "Bash", "input": {"command": "ls"}});
        let usage = json!({"input_tokens": 40, "output_tokens": 10});
        let message =
            json!({"id": format!("msg_{turn}"), "role": "assistant", "content": [call], "usage": usage});
        println(&json!({"type": "assistant", "message": message}).to_string());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Works command after command and never finishes.
fn codex_endless() {
    for turn in 1.. {
        let command = json!({"id": format!("item_{turn}"), "type": "command_execution", "command": "ls",
                             "aggregated_output": "x".repeat(90), "exit_code": 0, "status": "completed"});
        println(&json!({"type": "item.completed", "item": command}).to_string());
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn flood(megabytes: usize) {
    let line = "x".repeat(1023);
    let mut out = std::io::stdout().lock();
    for _ in 0..megabytes * 1024 {
        if writeln!(out, "{line}").is_err() {
            return;
        }
    }
}

/// Does not end when asked to; writes its process id to a file so that a test can look for it.
fn stubborn(file: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime else { exit(70) };
    runtime.block_on(async {
        let Ok(mut signals) = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
        else {
            exit(70)
        };
        let _ = std::fs::write(file, std::process::id().to_string());
        println("I will not go");
        loop {
            signals.recv().await;
            println("asked to go, and staying");
        }
    });
}

/// Starts a process that leaves the group and the parent behind, holding the pipes.
fn daemon(file: &str) {
    let Ok(own) = std::env::current_exe() else { exit(70) };
    let _ = std::process::Command::new(own).args(["sleeper", file]).spawn();
    while !std::path::Path::new(file).exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    println("my child has left home");
    std::thread::sleep(Duration::from_mins(10));
}

fn sleeper(file: &str) {
    if std::env::var_os("FAKE_AGENT_FORKED").is_none() {
        let _ = rustix::process::setsid();
        let Ok(own) = std::env::current_exe() else { exit(70) };
        let _ = std::process::Command::new(own).args(["sleeper", file]).env("FAKE_AGENT_FORKED", "1").spawn();
        exit(0);
    }
    let _ = std::fs::write(file, std::process::id().to_string());
    std::thread::sleep(Duration::from_mins(10));
}
