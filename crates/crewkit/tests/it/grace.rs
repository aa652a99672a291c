//! Replies under way when a server is told to end: they end in good order, and no run is begun meanwhile.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::client::json_of;
use crate::support::{PATIENCE, Served, wait_until};

const SETTINGS: &str = r#"[agents.drivers.worker]
command = ["sh", "-c", "echo $$ > pid.new; mv pid.new pid; exec sleep 1000"]
[limits]
agent_runs_active = 1
"#;

/// How often the queued run is looked at while the server leaves, after its slot became free.
const LOOKS: usize = 200;

/// A request whose reply is under way: the server has begun to read its body.
struct UnderWay {
    stream: BufReader<TcpStream>,
    body: String,
}

impl UnderWay {
    fn begin(served: &Served, path: &str, headers: &str, body: &Value) -> Self {
        let (port, body) = (served.base.strip_prefix("http://localhost:").unwrap(), body.to_string());
        let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let length = body.len();
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\nExpect: 100-continue\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n{headers}\r\n"
        )
        .unwrap();
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        assert!(line.starts_with("HTTP/1.1 100 "), "{line}");
        stream.read_line(&mut line).unwrap();
        Self { stream, body }
    }

    fn operation(served: &Served, name: &str, arguments: &Value) -> Self {
        Self::begin(served, &format!("/api/ops/{name}"), "", arguments)
    }

    /// Sends the body.
    fn send(&mut self) {
        self.stream.get_mut().write_all(self.body.as_bytes()).unwrap();
    }

    /// The whole reply: its head, and the body to its end.
    fn reply(mut self) -> (String, String) {
        let mut reply = String::new();
        self.stream.read_to_string(&mut reply).unwrap();
        let (head, body) = reply.split_once("\r\n\r\n").unwrap_or_else(|| panic!("cut: {reply}"));
        (head.to_ascii_lowercase(), body.to_owned())
    }

    /// The answer of an operation, which succeeds.
    fn answer(self) -> Value {
        let (head, body) = self.reply();
        assert!(head.starts_with("http/1.1 200 "), "{head} {body}");
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"))
    }
}

/// Starts a run in a directory of its own, and returns its id.
fn run(home: &Path, directory: &str) -> String {
    let directory = home.join(directory);
    std::fs::create_dir(&directory).unwrap();
    let arguments = ["run", "--detach", "--driver", "worker", "--dir", directory.to_str().unwrap(), "work"];
    json_of(home, &arguments)["agent_id"].as_str().unwrap().to_owned()
}

#[test]
fn replies_under_way_end_in_good_order_and_no_run_is_begun_meanwhile() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    std::fs::write(home.join("crewkit.toml"), SETTINGS).unwrap();
    let mut served = Served::start(home, &[]);
    let first = run(home, "one");
    let pid_of = |directory: &str| std::fs::read_to_string(home.join(directory).join("pid")).ok();
    wait_until("the first run", || pid_of("one").is_some());
    let second = run(home, "two");
    let accept = "Accept: application/json, text/event-stream\r\n";
    let client = json!({"name": "test", "version": "1"});
    let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client});
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello});
    let mut hello = UnderWay::begin(&served, "/mcp", accept, &hello);
    hello.send();
    let (head, _) = hello.reply();
    let session = head.lines().find_map(|line| line.strip_prefix("mcp-session-id: ")).unwrap();
    let headers = format!("{accept}Mcp-Session-Id: {session}\r\n");

    let wait = json!({"agent_ids": [first], "timeout_seconds": 300});
    let call = json!({"name": "agent_wait", "arguments": wait});
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call});
    let mut newest = UnderWay::operation(&served, "events", &json!({}));
    newest.send();
    let after = newest.answer()["last"].take();
    let mut waits = [
        UnderWay::operation(&served, "agent_wait", &wait),
        UnderWay::operation(&served, "events", &json!({"after": after, "wait_seconds": 300})),
        UnderWay::begin(&served, "/mcp", &headers, &call),
    ];
    waits.iter_mut().for_each(UnderWay::send);
    let mut stop = UnderWay::operation(&served, "agent_stop", &json!({"agent_id": first}));
    let status = || UnderWay::operation(&served, "agent_status", &json!({"agent_ids": [second]}));
    let looks: Vec<UnderWay> = (0..LOOKS).map(|_| status()).collect();

    kill_process(Pid::from_child(&served.child), Signal::TERM).unwrap();
    let [rest, events, mcp] = waits;
    let waited = rest.answer();
    assert_eq!((&waited["done"], &waited["result"][0]["status"]), (&json!(false), &json!("running")));
    assert_eq!(events.answer()["events"], json!([]));
    let (_, told) = mcp.reply();
    assert!(told.contains(r#""done":false"#) && told.ends_with("0\r\n\r\n"), "cut: {told}");
    // A slot is free now, and stays so.
    stop.send();
    assert_eq!(stop.answer()["status"], "stopped");
    let worker = Path::new("/proc").join(pid_of("one").unwrap().trim());
    wait_until("the end of the first run's process", || !worker.exists());
    for mut look in looks {
        look.send();
        assert_eq!(look.answer()["result"][0]["phase"], "queued", "the server that leaves has begun a run");
    }
    assert_eq!(served.child.wait().unwrap().code(), Some(0));
    assert_eq!(pid_of("two"), None);

    let served = Served::start(home, &[]);
    wait_until("the second run at the next server", || pid_of("two").is_some());
    json_of(home, &["runs", "stop", &second]);
    assert_eq!(served.terminate(), Some(0));
}
