//! Runs and agents as MCP resources, over both transports and across the end of the server.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::mpsc;

use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use crate::client::{DRIVERS, Window, json_of, server, stop};
use crate::support::{PATIENCE, Served};

const UPDATED: &str = "notifications/resources/updated";
const LIST_CHANGED: &str = "notifications/resources/list_changed";

fn sleeper(home: &Path) -> String {
    let run =
        json_of(home, &["run", "--detach", "--driver", "sleeper", "--dir", home.to_str().unwrap(), "sleep"]);
    run["agent_id"].as_str().unwrap().to_owned()
}

fn uris(page: &Value) -> Vec<String> {
    page["resources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["uri"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn a_window_reads_runs_and_hears_of_them_although_the_server_is_killed() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    std::fs::write(home.join("crewkit.toml"), DRIVERS).unwrap();
    let mut window = Window::open(home, &[]);
    assert_eq!(uris(&window.ask("resources/list", &json!({}))), Vec::<String>::new());
    let id = sleeper(home);
    window.notified(LIST_CHANGED);
    let uri = format!("crewkit://runs/{id}");
    assert_eq!(uris(&window.ask("resources/list", &json!({}))), [uri.as_str()]);
    let read = window.ask("resources/read", &json!({"uri": uri}));
    let run: Value = serde_json::from_str(read["contents"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!((&run["status"], &run["contract"]), (&json!("running"), &json!("sleep")), "{read}");
    let templates = window.ask("resources/templates/list", &json!({}));
    assert_eq!(templates["resourceTemplates"].as_array().unwrap().len(), 3, "{templates}");
    window.ask("resources/subscribe", &json!({"uri": uri}));
    kill_process(server(home), Signal::KILL).unwrap();
    // The next server ends the run, and the window hears of it from the same cursor.
    json_of(home, &["runs", "stop", &id]);
    assert_eq!(window.notified(UPDATED)["uri"], uri.as_str());
    let done = &sleeper(home);
    let payload = format!("crewkit://runs/{done}/payload");
    window.call("agent_complete", &json!({"agent_id": done, "summary": "s", "payload": "the product"}));
    let read = window.ask("resources/read", &json!({"uri": payload}));
    assert_eq!(read["contents"][0]["text"], "the product", "{read}");
    // A server without an address names none.
    let status = window.call("agent_status", &json!({"agent_ids": [done]}))["result"][0].take();
    assert_eq!(status["payload_resource"], payload.as_str(), "{status}");
    assert!(status.as_object().unwrap().contains_key("payload_url") && status["payload_url"].is_null());
    window.ask("resources/unsubscribe", &json!({"uri": uri}));
    for wrong in ["crewkit://runs/agent-none", "crewkit://runs", "file:///etc/passwd"] {
        window.send("resources/read", &json!({"uri": wrong}));
        assert_eq!(window.answer()["error"]["code"], -32002, "{wrong}");
    }
    window.send("resources/subscribe", &json!({"uri": "crewkit://runs/agent-none"}));
    assert!(window.answer()["error"].is_object());
    // Who watches starts no server that somebody stopped. It finds one that hangs up at once, twice: who would start another
    // then waits with the right to do so, since the home is not free.
    let announced = std::fs::read(home.join("run/server.json")).unwrap();
    stop(home);
    assert_eq!(crate::support::record(home), None);
    let lock =
        |name: &str| std::fs::OpenOptions::new().write(true).open(home.join("run").join(name)).unwrap();
    let (owner, starter) = (lock("server.lock"), lock("start.lock"));
    owner.try_lock().expect("a server was started");
    for _ in 0..2 {
        be_looked_for(home, &announced);
    }
    starter.try_lock().expect("a server is about to be started");
}

/// Listens in the place of a server until somebody connects, which must not take longer than `PATIENCE`.
fn be_looked_for(home: &Path, announced: &[u8]) {
    let record: Value = serde_json::from_slice(announced).unwrap();
    let socket = record["socket"].as_str().unwrap().to_owned();
    let listener = UnixListener::bind(&socket).unwrap();
    std::fs::write(home.join("run/server.json"), announced).unwrap();
    let (tell, connected) = mpsc::channel();
    std::thread::spawn(move || {
        let accepted = listener.accept().map(drop);
        std::fs::remove_file(socket).unwrap();
        tell.send(accepted)
    });
    connected.recv_timeout(PATIENCE).unwrap().unwrap();
}

#[test]
fn narrowing_hides_resources_and_their_number_is_bounded() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let config = format!("{DRIVERS}\n[limits]\nmcp_subscriptions = 1\n");
    std::fs::write(home.join("crewkit.toml"), config).unwrap();
    let ids = [sleeper(home), sleeper(home)];
    let mut pack = Window::open(home, &["--toolsets", "pack"]);
    pack.send("resources/list", &json!({}));
    assert_eq!(pack.answer()["error"]["code"], -32601);
    let mut fleet = Window::open(home, &["--toolsets", "fleet"]);
    assert_eq!(uris(&fleet.ask("resources/list", &json!({}))), Vec::<String>::new());
    fleet.send("resources/read", &json!({"uri": format!("crewkit://runs/{}", ids[0])}));
    assert!(fleet.answer()["error"].is_object());
    let mut window = Window::open(home, &[]);
    for (index, id) in ids.iter().enumerate() {
        window.send("resources/subscribe", &json!({"uri": format!("crewkit://runs/{id}")}));
        assert_eq!(window.answer()["error"].is_object(), index == 1);
    }
    stop(home);
}

/// Sends one request and returns the head and the body of the answer.
fn http(served: &Served, method: &str, session: Option<&str>, body: &str) -> (String, BufReader<TcpStream>) {
    let address = served.base.strip_prefix("http://localhost:").unwrap();
    let mut stream = TcpStream::connect(format!("127.0.0.1:{address}")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let session = session.map(|id| format!("Mcp-Session-Id: {id}\r\n")).unwrap_or_default();
    let accept = if method == "GET" { "text/event-stream" } else { "application/json, text/event-stream" };
    write!(
        stream,
        "{method} /mcp HTTP/1.1\r\nHost: localhost:{address}\r\nConnection: close\r\nAccept: {accept}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n{session}\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(reader.read_line(&mut head).unwrap() > 0, "{head}");
    }
    (head, reader)
}

fn post(served: &Served, session: &str, message: &Value) -> String {
    let (head, mut body) = http(served, "POST", Some(session), &message.to_string());
    assert!(head.starts_with("HTTP/1.1 20"), "{head}");
    let mut text = String::new();
    body.read_to_string(&mut text).unwrap();
    text
}

/// Reads a stream up to the notification that a resource was updated.
fn updated(stream: &mut BufReader<TcpStream>) -> Value {
    loop {
        let mut line = String::new();
        assert!(stream.read_line(&mut line).unwrap() > 0, "the stream ended");
        let message = line.strip_prefix("data: ").and_then(|text| serde_json::from_str::<Value>(text).ok());
        if let Some(mut message) = message.filter(|message| message["method"] == UPDATED) {
            return message["params"]["uri"].take();
        }
    }
}

#[test]
fn a_session_over_http_is_notified_again_after_the_server_was_killed() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    std::fs::write(home.join("crewkit.toml"), DRIVERS).unwrap();
    let mut served = Served::start(home, &[]);
    let client = json!({"name": "test", "version": "1"});
    let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client});
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello});
    let (head, _) = http(&served, "POST", None, &hello.to_string());
    let header = head.lines().find_map(|line| line.strip_prefix("mcp-session-id: "));
    let session = header.unwrap_or_else(|| panic!("{head}")).to_owned();
    post(&served, &session, &json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    let id = sleeper(home);
    let uri = format!("crewkit://runs/{id}");
    let subscribe =
        json!({"jsonrpc": "2.0", "id": 1, "method": "resources/subscribe", "params": {"uri": uri}});
    let answer = post(&served, &session, &subscribe);
    assert!(answer.contains("\"result\""), "{answer}");
    let (_, mut stream) = http(&served, "GET", Some(&session), "");
    json_of(home, &["runs", "stop", &id]);
    assert_eq!(updated(&mut stream), uri.as_str());
    served.child.kill().unwrap();
    served.child.wait().unwrap();
    let served = Served::start(home, &[]);
    // The client only opens its stream again; what it subscribed to is remembered.
    let (head, mut stream) = http(&served, "GET", Some(&session), "");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert_eq!(updated(&mut stream), uri.as_str(), "what happened meanwhile is not known, so it is told");
    json_of(home, &["runs", "delete", &id]);
    assert_eq!(updated(&mut stream), uri.as_str());
    drop(stream);
    assert_eq!(served.terminate(), Some(0));
}
