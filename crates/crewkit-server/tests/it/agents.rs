//! The agents through every door.

use std::io::Read as _;
use std::sync::Arc;
use std::time::Duration;

use crewkit_agent::Options as AgentOptions;
use crewkit_agent::engine::Start;
use crewkit_agent::model::Endpoint;
use crewkit_core::Limits;
use crewkit_server::Services;
use crewkit_server::ops::{Catalog, Selection};
use crewkit_server::services::Agents;
use crewkit_testkit::model::{Request, ScriptedModel, Turn};
use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::support::server::{Options, Reply, Server};
use crate::support::{call, tool_result};

struct Doors {
    server: Server,
    model: ScriptedModel,
    agents: Arc<Agents>,
    _home: tempfile::TempDir,
}

const SLOW: Duration = Duration::from_mins(10);

impl Doors {
    async fn open(script: impl Fn(&Request) -> Turn + Send + Sync + 'static) -> Self {
        Self::open_with(Options::default(), script).await
    }

    async fn open_with(options: Options, script: impl Fn(&Request) -> Turn + Send + Sync + 'static) -> Self {
        let model = ScriptedModel::start(script).await;
        let home = tempfile::tempdir().unwrap();
        let mut agents = AgentOptions::new(home.path());
        agents.settings_mut().models = vec![Endpoint::new("scripted", model.url(), "scripted-1")];
        let services = Services { agents: Arc::new(Agents::lazy(agents)), ..Services::default() };
        services.agents.engine().await.unwrap();
        let agents = Arc::clone(&services.agents);
        let server = Server::start_with(options, Catalog::product().unwrap(), services).await;
        Self { server, model, agents, _home: home }
    }

    async fn tool(&self, name: &str, arguments: &Value) -> (bool, Value) {
        let session = self.server.session("/mcp", "2025-11-25").await;
        tool_result(&self.server.post("/mcp", Some(&session), &call(1, name, arguments)).await.message())
    }

    async fn start(&self, contract: &str) -> String {
        let (failed, body) = self.tool("agent_start", &json!({"contract": contract})).await;
        assert!(!failed, "{body}");
        body["agent_id"].as_str().unwrap().to_owned()
    }

    async fn run(&self, contract: &str) -> String {
        let id = self.start(contract).await;
        let (_, body) = self.tool("agent_wait", &json!({"agent_ids": [id]})).await;
        assert_eq!(body["done"], true, "{body}");
        id
    }

    async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Reply {
        self.server.request("GET", path, headers, b"").await
    }

    async fn socket(&self, path: &str) -> Socket {
        let url = format!("ws://{}{path}", self.server.address);
        Socket(tokio_tungstenite::connect_async(url).await.unwrap().0)
    }
}

struct Socket(tokio_tungstenite::WebSocketStream<tokio_tungstenite::MaybeTlsStream<tokio::net::TcpStream>>);

impl Socket {
    async fn send(&mut self, text: &str) {
        self.0.send(Message::Text(text.to_owned().into())).await.unwrap();
    }

    /// The next frame; null when the server closed.
    async fn frame(&mut self) -> Value {
        let next = tokio::time::timeout(Duration::from_mins(1), self.0.next()).await.expect("no frame came");
        match next {
            Some(Ok(Message::Text(text))) => serde_json::from_str(&text).unwrap(),
            _ => Value::Null,
        }
    }

    async fn until(&mut self, kind: &str, content: &str) -> Vec<Value> {
        let mut frames = Vec::new();
        loop {
            let frame = self.frame().await;
            assert!(!frame.is_null(), "closed before {kind} {content}: {frames:?}");
            let found = frame["type"] == kind && (content.is_empty() || frame["content"] == content);
            frames.push(frame);
            if found {
                return frames;
            }
        }
    }
}

#[tokio::test]
async fn the_contracts_shapes_over_mcp() {
    let doors = Doors::open(|request| {
        let slow = request.body["messages"][1]["content"].as_str().unwrap().contains("slow");
        Turn::deliver("done", "work").after(if slow { SLOW } else { Duration::ZERO })
    })
    .await;
    let (failed, started) = doors.tool("agent_start", &json!({"contract": "slow"})).await;
    assert!(!failed);
    assert_eq!(started["status"], "running");
    let slow = started["agent_id"].as_str().unwrap();
    let quick = doors.run("quick").await;
    let (_, body) =
        doors.tool("agent_status", &json!({"agent_ids": [quick, "agent-nobody", slow, quick]})).await;
    let states: Vec<_> =
        body["result"].as_array().unwrap().iter().map(|status| status["status"].clone()).collect();
    assert_eq!(states, [json!("completed"), Value::Null, json!("running"), json!("completed")]);
    assert!(body["result"][1]["error"].as_str().unwrap().contains("agent-nobody"));
    assert_eq!(body["result"][0]["started_at"].as_str().unwrap().len(), 24);

    let (failed, stopped) = doors.tool("agent_stop", &json!({"agent_id": slow})).await;
    assert!(!failed && stopped["status"] == "stopped" && stopped["stopped_at"].is_string(), "{stopped}");
    let (failed, again) = doors.tool("agent_stop", &json!({"agent_id": slow})).await;
    assert!(!failed);
    assert_eq!(again, stopped, "idempotent");
    let (failed, late) = doors.tool("agent_complete", &json!({"agent_id": slow, "summary": "late"})).await;
    assert!(!failed && late["status"] == "stopped" && late["stopped_at"] == stopped["stopped_at"], "{late}");
    let (failed, done) = doors.tool("agent_stop", &json!({"agent_id": quick})).await;
    assert!(!failed && done["status"] == "completed" && done["completed_at"].is_string(), "{done}");
    assert!(done.get("stopped_at").is_some_and(Value::is_null), "{done}");

    for (tool, arguments) in [
        ("agent_start", json!({"contract": " "})),
        ("agent_start", json!({})),
        ("agent_stop", json!({"agent_id": "agent-nobody"})),
        ("agent_complete", json!({"agent_id": "agent-nobody", "summary": "x"})),
        ("agent_status", json!({"agent_ids": vec!["agent-x"; 10_001]})),
        ("agent_output", json!({"agent_id": "nobody"})),
    ] {
        let (failed, body) = doors.tool(tool, &arguments).await;
        assert!(failed && body["error"].is_string() && body["code"].is_string(), "{tool}: {body}");
    }
    let (_, output) = doors.tool("agent_output", &json!({"agent_id": quick, "limit": 1})).await;
    assert_eq!(
        (output["entries"].as_array().unwrap().len(), output["next"].as_u64()),
        (1, Some(1)),
        "{output}"
    );
    assert_eq!(doors.model.violations(), [""; 0]);
}

#[tokio::test]
async fn the_payload_is_served_by_the_rules_of_http() {
    let doors = Doors::open(|_| Turn::deliver("done", "the work")).await;
    let id = doors.run("x").await;
    let path = format!("/api/agents/{id}/payload");
    let gzip = [("Accept-Encoding", "gzip")];
    for (path, headers, status) in [
        ("/api/agents/agent-nobody/payload", &gzip[..], 404),
        ("/api/agents/agent-nobody/payload", &[], 404),
        ("/api/agents/..%2f..%2fetc/payload", &gzip, 404),
        (&path, &[], 406),
        (&path, &[("Accept-Encoding", "gzip;q=0")], 406),
        (&path, &[("Accept-Encoding", "*")], 200),
    ] {
        assert_eq!(doors.get(path, headers).await.status, status, "{path} {headers:?}");
    }
    let response = crewkit_agent::http_client()
        .build()
        .unwrap()
        .get(format!("http://{}{path}", doors.server.address))
        .header("Accept-Encoding", "gzip")
        .send()
        .await
        .unwrap();
    let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
    assert_eq!(
        (header("content-encoding"), header("vary")),
        ("gzip".to_owned(), "Accept-Encoding".to_owned())
    );
    let (tag, length) = (header("etag"), header("content-length"));
    let mut text = String::new();
    flate2::read::GzDecoder::new(&response.bytes().await.unwrap()[..]).read_to_string(&mut text).unwrap();
    assert_eq!(text, "the work");
    let known = doors.get(&path, &[gzip[0], ("If-None-Match", &tag)]).await;
    assert_eq!((known.status, known.body.len()), (304, 0));
    let head = doors.server.request("HEAD", &path, &gzip, b"").await;
    assert_eq!(
        (head.status, head.header("content-length"), head.body.len()),
        (200, Some(length.as_str()), 0)
    );
}

#[tokio::test]
async fn the_rest_addresses_existing_clients_know() {
    let doors = Doors::open(|_| Turn::complete("done").after(SLOW)).await;
    let created = doors.server.request("POST", "/api/agents", &[], b"").await.json();
    assert_eq!(created["status"], "ready");
    let id = created["id"].as_str().unwrap();
    assert!(id.starts_with("agent-"));
    let running = doors.start("a contract of more than fifty characters, so that the list cuts it off").await;
    let list = doors.get("/api/agents", &[]).await.json();
    assert_eq!(list["agents"][1]["contract"], "a contract of more than fifty characters, so that ...");
    let shown = doors.get(&format!("/api/agents/{running}"), &[]).await.json();
    assert!(shown["output"].is_array() && shown["contract"].as_str().unwrap().ends_with("off"));
    let stopped = doors.server.request("POST", &format!("/api/agents/{running}/stop"), &[], b"").await.json();
    assert_eq!((&stopped["status"], &stopped["agent_status"]), (&json!("stop_requested"), &json!("stopped")));
    let resumed = doors.server.request("POST", &format!("/api/agents/{running}/resume"), &[], b"").await;
    assert_eq!((resumed.status, &resumed.json()["status"]), (200, &json!("running")));
    let again = doors.server.request("POST", &format!("/api/agents/{running}/resume"), &[], b"").await;
    assert_eq!(again.status, 409);
    let deleted = doors.server.request("DELETE", &format!("/api/agents/{id}"), &[], b"").await;
    assert_eq!((deleted.status, &deleted.json()["status"]), (200, &json!("deleted")));
    for (method, path) in [
        ("GET", "/api/agents/agent-nobody".to_owned()),
        ("DELETE", format!("/api/agents/{id}")),
        ("POST", "/api/agents/agent-nobody/stop".to_owned()),
        ("POST", "/api/agents/agent-nobody/resume".to_owned()),
        ("GET", "/api/agents/agent-nobody/events".to_owned()),
    ] {
        let reply = doors.server.request(method, &path, &[], b"").await;
        assert_eq!(reply.status, 404, "{method} {path}");
        assert!(reply.json()["error"].is_string(), "{method} {path}");
    }
    for (kind, body, expected) in [
        ("application/json", "not json", 400),
        ("application/json", r#"{"contract": "x", "max_turns": "abc"}"#, 400),
        ("application/json", r#"{"contract": "x", "max_turms": 3}"#, 400),
        ("application/json", r#"{"contract": 5}"#, 400),
        ("text/plain", r#"{"contract": "x"}"#, 415),
        ("application/x-www-form-urlencoded", r#"{"contract": "x"}"#, 415),
        ("application/json; charset=utf-8", r#"{"contract": "x"}"#, 200),
    ] {
        let reply =
            doors.server.request("POST", "/api/agents", &[("Content-Type", kind)], body.as_bytes()).await;
        assert_eq!(reply.status, expected, "{kind} {body}: {reply:?}");
    }
    let health = doors.get("/api/health", &[]).await.json();
    assert_eq!((&health["status"], &health["model"]), (&json!("ok"), &json!("scripted-1")));
    let tools = doors.get("/api/tools", &[]).await.json();
    let own = &tools["tools"][0];
    assert_eq!((&own["_server"], &own["name"]), (&json!("_internal"), &json!("agent_complete")));
    assert_eq!(own["inputSchema"]["required"], json!(["summary"]));
    let foreign = doors.get("/api/agents", &[("Origin", "http://evil.example")]).await;
    assert_eq!(foreign.status, 403);
}

#[tokio::test]
async fn events_replay_and_go_on_where_they_were() {
    let doors = Doors::open(|request| match request.turn {
        0 => Turn::say("first").and_call("a", "no_such_tool", "{}"),
        _ => Turn::complete("done"),
    })
    .await;
    let id = doors.start("x").await;
    let path = format!("/api/agents/{id}/events");
    let all = doors.get(&path, &[]).await;
    assert_eq!(all.header("content-type"), Some("text/event-stream"));
    let ids = |reply: &Reply| -> Vec<u64> {
        reply.body.lines().filter_map(|line| line.strip_prefix("id: ")?.parse().ok()).collect()
    };
    let seen = ids(&all);
    assert!(seen.iter().copied().eq(1..=seen.len() as u64) && seen.len() >= 5, "{seen:?}");
    assert!(all.body.contains("\"status\":\"completed\""), "the stream ends with the run: {}", all.body);
    let rest = doors.get(&path, &[("Last-Event-ID", "3")]).await;
    assert_eq!(ids(&rest), seen[3..]);
}

#[tokio::test]
async fn every_viewer_sees_the_run_and_bad_frames_do_no_harm() {
    let doors = Doors::open(|request| match request.turn {
        0 => Turn::say("first").and_call("a", "no_such_tool", r#"{"x":1}"#),
        _ => Turn::complete("done"),
    })
    .await;
    let id =
        doors.server.request("POST", "/api/agents", &[], b"").await.json()["id"].as_str().unwrap().to_owned();
    let path = format!("/ws/agent/{id}");
    let mut one = doors.socket(&path).await;
    let mut two = doors.socket(&path).await;
    assert_eq!(one.frame().await, json!({"type": "init", "id": id, "status": "ready", "contract": ""}));
    assert_eq!(two.frame().await["type"], "init");
    for (bad, expected) in [
        ("not json", "not JSON"),
        ("{}", "no `type`"),
        ("[1]", "no `type`"),
        (r#"{"type":"dance"}"#, "unknown type `dance`"),
        (r#"{"type":"set_contract"}"#, "needs a text"),
        (r#"{"type":"start"}"#, "blank"),
    ] {
        one.send(bad).await;
        let frame = one.frame().await;
        assert!(
            frame["type"] == "error" && frame["content"].as_str().unwrap().contains(expected),
            "{bad}: {frame}"
        );
    }
    one.0.send(Message::Binary(vec![1, 2, 3].into())).await.unwrap();
    assert_eq!(one.frame().await["type"], "error");
    one.send(r#"{"type":"set_contract","contract":"go"}"#).await;
    assert_eq!(one.frame().await, json!({"type": "contract_set", "contract": "go"}));
    one.send(r#"{"type":"start"}"#).await;
    let live = one.until("status", "completed").await;
    assert_eq!(two.until("status", "completed").await, live, "whoever started the run");
    let mut late = doors.socket(&path).await;
    assert_eq!(late.frame().await["status"], "completed");
    assert_eq!(late.until("status", "completed").await, live, "and whenever one looks");
    let kinds: Vec<&str> = live.iter().map(|frame| frame["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["status", "assistant", "tool", "system", "tool", "system", "status"]);
    assert_eq!(live[2]["tool_call"], "no_such_tool x=1");
    one.send(r#"{"type":"start"}"#).await;
    assert!(one.frame().await["content"].as_str().unwrap().contains("completed"));
    one.send(r#"{"type":"restart"}"#).await;
    one.until("status", "ready").await;
    let mut nobody = doors.socket("/ws/agent/agent-nobody").await;
    assert_eq!(nobody.frame().await["type"], "error");
    assert!(nobody.frame().await.is_null());
}

#[tokio::test]
async fn stop_over_the_socket_works_during_a_run() {
    let doors = Doors::open(|_| Turn::complete("x").after(SLOW)).await;
    let id = doors.start("x").await;
    let mut socket = doors.socket(&format!("/ws/agent/{id}")).await;
    socket.until("status", "running").await;
    socket.send(r#"{"type":"stop"}"#).await;
    socket.until("stop_requested", "").await;
    let (_, body) = doors.tool("agent_status", &json!({"agent_ids": [id]})).await;
    assert_eq!(body["result"][0]["status"], "stopped");
}

#[tokio::test]
async fn a_conversation_over_the_socket() {
    let doors = Doors::open(|_| Turn::say("hello yourself")).await;
    let mut socket = doors.socket("/ws/conv-1").await;
    let greeting = socket.frame().await;
    assert_eq!((&greeting["type"], &greeting["conversation_id"]), (&json!("system"), &json!("conv-1")));
    for bad in
        ["nonsense", "{}", r#"{"type":"message"}"#, r#"{"type":"message","content":" "}"#, r#"{"type":"x"}"#]
    {
        socket.send(bad).await;
        assert_eq!(socket.frame().await["type"], "error", "{bad}");
    }
    socket.send(r#"{"type":"message","content":"hello"}"#).await;
    let frames = socket.until("message", "hello yourself").await;
    let kinds: Vec<&str> = frames.iter().map(|frame| frame["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["message", "loading", "loading_done", "message"]);
    let mut again = doors.socket("/ws/conv-1").await;
    assert_eq!(again.frame().await["type"], "system");
    assert_eq!(again.frame().await, frames[0], "the replay is what was shown");
    assert_eq!(again.frame().await, frames[3]);
}

#[tokio::test]
async fn pruning_tells_what_goes_and_removes_nothing_by_mistake() {
    let doors = Doors::open(|request| {
        let slow = request.body["messages"][1]["content"].as_str().unwrap().contains("slow");
        Turn::complete("ok").after(if slow { SLOW } else { Duration::ZERO })
    })
    .await;
    let slow = doors.start("slow").await;
    let (first, second) = (doors.run("first").await, doors.run("second").await);
    let prune = async |body: &str| {
        let json = [("Content-Type", "application/json")];
        let reply = doors.server.request("POST", "/api/agents/prune", &json, body.as_bytes()).await;
        (reply.status, reply.json())
    };
    for (body, expected) in [
        ("", "older_than_seconds: must be given"),
        (r#"{"older_than_seconds": "1"}"#, "`older_than_seconds` must be an integer, not a string"),
        (r#"{"older_than_seconds": 0, "keep": -1}"#, "`keep` must be at least 0"),
        (r#"{"older_than_seconds": 0, "dry_run": 1}"#, "`dry_run` must be a boolean, not a number"),
        (
            r#"{"older_than_seconds": 0, "dryrun": true}"#,
            "Unknown argument `dryrun`. Did you mean `dry_run`?",
        ),
    ] {
        let (status, told) = prune(body).await;
        assert_eq!((status, &told["code"]), (400, &"E_ARGUMENT_INVALID".into()), "{told}");
        assert!(told["error"].as_str().unwrap().contains(expected), "{told}");
    }
    let ids = |told: &Value| -> Vec<String> {
        told["agents"]
            .as_array()
            .unwrap()
            .iter()
            .map(|agent| agent["id"].as_str().unwrap().to_owned())
            .collect()
    };
    let (_, told) = prune(r#"{"older_than_seconds": 3600}"#).await;
    assert_eq!(told, json!({"dry_run": false, "count": 0, "agents": []}));
    let (_, told) = prune(r#"{"older_than_seconds": 0, "dry_run": true}"#).await;
    assert_eq!((ids(&told), &told["count"]), (vec![first.clone(), second.clone()], &2.into()));
    assert_eq!(
        doors.get(&format!("/api/agents/{first}"), &[]).await.status,
        200,
        "a rehearsal removes nothing"
    );
    let (_, told) = prune(r#"{"older_than_seconds": 0, "keep": 1}"#).await;
    assert_eq!(ids(&told), [first.as_str()]);
    for (id, status) in [(first, 404), (second, 200), (slow, 200)] {
        assert_eq!(doors.get(&format!("/api/agents/{id}"), &[]).await.status, status);
    }
}

#[tokio::test]
async fn web_sockets_count_as_connections_and_close_with_the_server() {
    let limits = Limits { http_connections: 2, ..Limits::default() };
    let doors = Doors::open_with(Options { limits, ..Options::default() }, |_| Turn::say("x")).await;
    let mut sockets = [doors.socket("/ws/one").await, doors.socket("/ws/two").await];
    let mut extra = tokio::net::TcpStream::connect(doors.server.address).await.unwrap();
    let mut nothing = Vec::new();
    let read = tokio::io::AsyncReadExt::read_to_end(&mut extra, &mut nothing).await;
    assert!(read.is_err() || nothing.is_empty(), "both places are taken");
    let Doors { server, .. } = doors;
    let stopping = tokio::spawn(server.stop());
    for socket in &mut sockets {
        loop {
            let next =
                tokio::time::timeout(Duration::from_mins(1), socket.0.next()).await.expect("left open");
            match next {
                Some(Ok(Message::Close(_))) => break,
                Some(Ok(_)) => {}
                other => panic!("closed without a word: {other:?}"),
            }
        }
    }
    drop(sockets);
    stopping.await.unwrap();
}

#[tokio::test]
async fn a_viewer_controls_only_what_the_server_shows() {
    for (excluded, frame, allowed) in [
        ("agent_stop", "stop", false),
        ("agent_stop", "start", true),
        ("agent_start", "start", false),
        ("agent_start", "restart", false),
        ("agent_start", "set_contract", false),
        ("agent_start", "stop", true),
    ] {
        let selection = Selection { exclude: vec![excluded.to_owned()], ..Selection::default() };
        let options = Options { selection, ..Options::default() };
        let doors = Doors::open_with(options, |_| Turn::say("x").after(SLOW)).await;
        let engine = doors.agents.engine().await.unwrap();
        let start = Start { contract: "wait".to_owned(), ..Start::default() };
        let id = engine.start(start).await.unwrap().id.clone();
        let mut socket = doors.socket(&format!("/ws/agent/{id}")).await;
        socket.send(&json!({"type": frame, "contract": "other"}).to_string()).await;
        let offered = loop {
            let told = socket.frame().await;
            match told["type"].as_str() {
                Some("error") => break !told["content"].as_str().unwrap().contains("does not offer"),
                Some("stop_requested") => break true,
                Some(_) => {}
                None => panic!("closed"),
            }
        };
        assert_eq!(offered, allowed, "{frame} without {excluded}");
    }
}

/// Narrowing holds at every address: `path` is there only when the tools it is shown with are.
#[tokio::test]
async fn a_narrowed_server_is_narrow_at_every_address() {
    let exclude = |tool: &str| Selection { exclude: vec![tool.to_owned()], ..Selection::default() };
    let only = |tool: &str| Selection { tools: vec![tool.to_owned()], ..Selection::default() };
    let read_only = Selection { read_only: true, ..Selection::default() };
    let changing: &[(&str, &str)] =
        &[("POST", "/api/agents"), ("POST", "/api/agents/x/resume"), ("POST", "/api/ops/run_start")];
    let ending: &[(&str, &str)] = &[
        ("POST", "/api/agents/x/stop"),
        ("DELETE", "/api/agents/x"),
        ("POST", "/api/agents/prune"),
        ("POST", "/api/ops/run_delete"),
    ];
    let reading: &[(&str, &str)] = &[
        ("GET", "/api/agents"),
        ("GET", "/api/tools"),
        ("GET", "/api/agents/x/payload"),
        ("POST", "/api/ops/run_list"),
    ];
    for (selection, hidden, shown) in [
        (exclude("agent_stop"), ending, reading),
        (exclude("agent_start"), changing, ending),
        (exclude("agent_status"), reading, ending),
        (only("agent_status"), ending, reading),
        (read_only.clone(), ending, reading),
        (read_only, changing, reading),
        (Selection::of(crewkit_core::Toolset::Fleet), ending, &[]),
        (Selection::of(crewkit_core::Toolset::Fleet), reading, &[("POST", "/api/fleet/projects")]),
    ] {
        let options = Options { selection: selection.clone(), ..Options::default() };
        let doors = Doors::open_with(options, |_| Turn::say("x")).await;
        let json = [("Content-Type", "application/json")];
        for (paths, expected) in [(hidden, true), (shown, false)] {
            for (method, path) in paths {
                let reply = doors.server.request(method, path, &json, b"").await;
                let is_hidden = reply.status == 404 && reply.json()["error"] == "E_NOT_FOUND";
                assert_eq!(is_hidden, expected, "{selection:?}: {method} {path}: {reply:?}");
            }
        }
    }
    for (excluded, path) in [("agent_start", "/ws/conv-1"), ("agent_output", "/ws/agent/x")] {
        let options = Options { selection: exclude(excluded), ..Options::default() };
        let doors = Doors::open_with(options, |_| Turn::say("x")).await;
        let url = format!("ws://{}{path}", doors.server.address);
        let refused = tokio_tungstenite::connect_async(url).await.unwrap_err().to_string();
        assert!(refused.contains("404"), "{refused}");
    }
}

#[tokio::test]
async fn the_openapi_document_has_every_route_of_runs() {
    let doors = Doors::open(|_| Turn::say("x")).await;
    let document = doors.get("/api/openapi.json", &[]).await.json();
    let mut count = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            count += 1;
            let address = path.replace("{id}", "agent-nobody").replace("{agent_id}", "agent-nobody");
            let reply = doors.server.request(&method.to_uppercase(), &address, &[], b"").await;
            let is_there = reply.status != 405 && !reply.body.contains("E_NOT_FOUND");
            assert!(is_there, "{method} {path}: {reply:?}");
        }
    }
    let rows = Catalog::product().unwrap().entries().count();
    // Every row, thirteen routes of runs and events, one of the fleet, and three that are no operations.
    assert_eq!(count, rows + 13 + 1 + 3);
}

#[tokio::test]
async fn events_are_read_from_a_cursor_on_and_waited_for() {
    let doors = Doors::open(|_| Turn::complete("done")).await;
    let id = doors.run("x").await;
    let of_run = format!("/api/events?subject={id}");
    let page = doors.get(&of_run, &[]).await.json();
    let kinds: Vec<&str> =
        page["events"].as_array().unwrap().iter().map(|event| event["kind"].as_str().unwrap()).collect();
    assert!(kinds.first() == Some(&"run.queued") || kinds.first() == Some(&"run.started"), "{kinds:?}");
    assert_eq!(kinds.last(), Some(&"run.ended"), "{kinds:?}");
    let last = page["last"].as_u64().unwrap();
    let rest = doors.get(&format!("{of_run}&after={last}"), &[]).await.json();
    assert_eq!((&rest["events"], &rest["next"]), (&json!([]), &json!(last)));
    // The wait ends with the event, long before its time.
    let arguments = json!({"after": last, "wait_seconds": 300});
    let waiting = doors.server.rest("events", &arguments);
    let (waited, started) = tokio::join!(waiting, doors.start("y"));
    let waited = waited.json();
    assert!(
        waited["events"].as_array().unwrap().iter().all(|event| event["subject"] == *started),
        "{waited}"
    );
    assert!(waited["next"].as_u64().unwrap() > last, "{waited}");
    for (query, status, code) in [
        (format!("after={}", last + 1000), 410, "E_CURSOR_EXPIRED"),
        ("after=x".to_owned(), 400, "E_ARGUMENT_INVALID"),
        ("afte=1".to_owned(), 400, "E_ARGUMENT_INVALID"),
    ] {
        let reply = doors.get(&format!("/api/events?{query}"), &[]).await;
        assert_eq!((reply.status, &reply.json()["code"]), (status, &json!(code)), "{query}: {reply:?}");
    }
}
