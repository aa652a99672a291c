//! Runs as MCP resources over HTTP: who sees them, pages of long lists, and listeners of the stateless revision.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crewkit_agent::driver::{Format, ProcessDriver, Stdin};
use crewkit_agent::engine::Start;
use crewkit_agent::model::Endpoint;
use crewkit_agent::{Engine, Options as AgentOptions, RunSpec};
use crewkit_server::Services;
use crewkit_server::ops::Catalog;
use crewkit_server::services::Agents;
use crewkit_testkit::model::{ScriptedModel, Turn};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::TcpStream;

use crate::support::server::{Options, Server};
use crate::support::wire::PATIENCE;
use crate::support::{code, initialize, notification};

/// Runs more than two pages of resources and events have room for.
const MANY: usize = 250;
const PAGE: usize = 100;

/// A driver that writes down the token of its attempt and stays.
const TELLS_ITS_TOKEN: &str =
    "printf %s \"$CREWKIT_AGENT_TOKEN\" > token.new; mv token.new token; exec sleep 1000";

struct World {
    server: Server,
    engine: Engine,
    _model: ScriptedModel,
    home: tempfile::TempDir,
}

impl World {
    async fn open() -> Self {
        let model = ScriptedModel::start(|_| Turn::say("x").after(Duration::from_mins(10))).await;
        let home = tempfile::tempdir().unwrap();
        let mut options = AgentOptions::new(home.path());
        options.settings_mut().models = vec![Endpoint::new("scripted", model.url(), "scripted-1")];
        options.settings_mut().drivers = vec![ProcessDriver {
            name: "talker".to_owned(),
            command: ["sh", "-c", TELLS_ITS_TOKEN].map(Into::into).into(),
            stdin: Stdin::Contract,
            format: Format::Text,
            environment: Vec::new(),
        }];
        let services = Services { agents: Arc::new(Agents::lazy(options)), ..Services::default() };
        let engine = services.agents.engine().await.unwrap().clone();
        let server = Server::start_with(Options::default(), Catalog::product().unwrap(), services).await;
        Self { server, engine, _model: model, home }
    }

    async fn start(&self, spec: RunSpec) -> String {
        let start = Start { contract: "wait".to_owned(), spec, ..Start::default() };
        self.engine.start(start).await.unwrap().id.to_string()
    }

    /// A run whose process has told its token, and the token.
    async fn attempt(&self) -> (String, String) {
        let driver = Some("talker".to_owned());
        let workdir = Some(self.home.path().to_owned());
        let id = self.start(RunSpec { driver, workdir, ..RunSpec::default() }).await;
        let told = async {
            loop {
                match std::fs::read_to_string(self.home.path().join("token")) {
                    Ok(token) => return token,
                    Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
        };
        (id, tokio::time::timeout(PATIENCE, told).await.unwrap())
    }

    /// Opens a session with these headers.
    async fn session<'a>(&'a self, headers: &'a [(&'a str, &'a str)]) -> Session<'a> {
        let reply = self.server.post_with("/mcp", None, headers, &initialize(0, "2025-11-25")).await;
        let id = reply.header("mcp-session-id").unwrap().to_owned();
        let capabilities = reply.message()["result"]["capabilities"].clone();
        let session = Session { world: self, headers, id, capabilities };
        let initialized = notification("notifications/initialized");
        assert_eq!(self.server.post_with("/mcp", Some(&session.id), headers, &initialized).await.status, 202);
        session
    }
}

struct Session<'a> {
    world: &'a World,
    headers: &'a [(&'a str, &'a str)],
    id: String,
    capabilities: Value,
}

impl Session<'_> {
    async fn ask(&self, method: &str, params: &Value) -> Value {
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        self.world.server.post_with("/mcp", Some(&self.id), self.headers, &message).await.message()
    }
}

fn uris(page: &Value) -> Vec<String> {
    let resources = page["result"]["resources"].as_array().unwrap_or_else(|| panic!("{page}"));
    resources.iter().map(|resource| resource["uri"].as_str().unwrap().to_owned()).collect()
}

/// The stream that answers `subscriptions/listen`, after its head.
async fn listen(world: &World, uris: &[&str], more: &str) -> Lines<BufReader<TcpStream>> {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let wanted = json!({"resourceSubscriptions": uris, "resourcesListChanged": true});
    let params = json!({"notifications": wanted, "_meta": meta});
    let body =
        json!({"jsonrpc": "2.0", "id": 7, "method": "subscriptions/listen", "params": params}).to_string();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n\
         Mcp-Method: subscriptions/listen\r\n{more}\r\n",
        world.server.address,
        body.len()
    );
    let mut stream = TcpStream::connect(world.server.address).await.unwrap();
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    BufReader::new(stream).lines()
}

/// The next message of a stream.
async fn message(stream: &mut Lines<BufReader<TcpStream>>) -> Value {
    let next = async {
        let mut seen = String::new();
        loop {
            let line =
                stream.next_line().await.unwrap().unwrap_or_else(|| panic!("the stream ended: {seen}"));
            let data = line.strip_prefix("data: ").unwrap_or(&line);
            if let Ok(message @ Value::Object(_)) = serde_json::from_str::<Value>(data) {
                return message;
            }
            seen.push_str(&line);
        }
    };
    tokio::time::timeout(PATIENCE, next).await.expect("no message came")
}

#[tokio::test]
async fn an_attempt_reaches_no_resource_that_its_list_does_not_allow() {
    let world = World::open().await;
    let other = world.start(RunSpec::default()).await;
    let (own, token) = world.attempt().await;
    let bearer = format!("Bearer {token}");
    let header = [("Authorization", bearer.as_str())];
    let (owner, attempt) = (world.session(&[]).await, world.session(&header).await);
    assert!(owner.capabilities["resources"].is_object(), "{}", owner.capabilities);
    assert!(attempt.capabilities["resources"].is_null(), "{}", attempt.capabilities);
    for method in ["resources/list", "resources/templates/list"] {
        assert!(owner.ask(method, &json!({})).await["result"].is_object(), "{method}");
        assert_eq!(code(&attempt.ask(method, &json!({})).await), -32601, "{method}");
    }
    for uri in [
        format!("crewkit://runs/{own}"),
        format!("crewkit://runs/{other}"),
        format!("crewkit://runs/{other}/payload"),
        "crewkit://agents/local/papi".to_owned(),
    ] {
        let asked = json!({"uri": uri});
        for method in ["resources/read", "resources/subscribe"] {
            assert_eq!(code(&attempt.ask(method, &asked).await), -32002, "{method} {uri}");
        }
    }
    let shown = json!({"uri": format!("crewkit://runs/{other}")});
    for method in ["resources/read", "resources/subscribe"] {
        assert!(owner.ask(method, &shown).await["result"].is_object(), "{method}");
    }
    // Whoever may not read a run does not hear of it either.
    let uri = format!("crewkit://runs/{other}");
    let mut refused = listen(&world, &[&uri], &format!("Authorization: {bearer}\r\n")).await;
    let answer = loop {
        let message = message(&mut refused).await;
        if message["id"] == 7 {
            break message;
        }
        assert_eq!(message["method"], "notifications/subscriptions/acknowledged");
    };
    assert_eq!(code(&answer), -32601);
    world.engine.stop(&own).await.unwrap();
}

#[tokio::test]
async fn a_listener_hears_of_what_it_named_and_of_nothing_else() {
    let world = World::open().await;
    let (named, other) = (world.start(RunSpec::default()).await, world.start(RunSpec::default()).await);
    let uri = format!("crewkit://runs/{named}");
    let payload = format!("{uri}/payload");
    let mut stream = listen(&world, &[&uri, &payload], "").await;
    let acknowledged = message(&mut stream).await;
    assert_eq!(acknowledged["method"], "notifications/subscriptions/acknowledged", "{acknowledged}");
    assert_eq!(acknowledged["params"]["notifications"]["resourceSubscriptions"], json!([uri, payload]));
    // The listener reads the log from now on; what it hears tells that it does.
    let mut heard = BTreeSet::new();
    while heard.is_empty() {
        world.start(RunSpec::default()).await;
        let next = tokio::time::timeout(Duration::from_millis(100), message(&mut stream)).await;
        heard.extend(next.ok().map(|message| message["method"].as_str().unwrap().to_owned()));
    }
    assert_eq!(heard, BTreeSet::from(["notifications/resources/list_changed".to_owned()]));
    world.engine.stop(&other).await.unwrap();
    world.engine.stop(&named).await.unwrap();
    let mut updated = BTreeSet::new();
    while updated.len() < 2 {
        let message = message(&mut stream).await;
        if message["method"] == "notifications/resources/updated" {
            updated.insert(message["params"]["uri"].as_str().unwrap().to_owned());
        }
    }
    assert_eq!(updated, BTreeSet::from([uri, payload]), "the other run ended before");
}

#[tokio::test]
async fn long_lists_are_read_page_by_page_with_every_row_once() {
    let world = World::open().await;
    let mut ids = BTreeSet::new();
    for _ in 0..MANY {
        ids.insert(world.engine.create(Start::default()).await.unwrap().id.to_string());
    }
    let session = world.session(&[]).await;
    let (mut pages, mut params) = (Vec::new(), json!({}));
    loop {
        let mut page = session.ask("resources/list", &params).await;
        pages.push(uris(&page));
        params = json!({"cursor": page["result"]["nextCursor"].take()});
        if params["cursor"].is_null() {
            break;
        }
        // A run that comes between two pages neither repeats nor hides another.
        world.engine.create(Start::default()).await.unwrap();
    }
    let sizes: Vec<usize> = pages.iter().map(Vec::len).collect();
    assert_eq!((sizes.len(), sizes[0], sizes[1]), (3, PAGE, PAGE), "{sizes:?}");
    let listed: Vec<String> = pages.concat();
    let distinct: BTreeSet<&String> = listed.iter().collect();
    assert_eq!(distinct.len(), listed.len(), "a resource was listed twice");
    assert!(ids.iter().all(|id| distinct.contains(&format!("crewkit://runs/{id}"))), "one is missing");
    let unknown = session.ask("resources/list", &json!({"cursor": "nonsense"})).await;
    assert_eq!(code(&unknown), -32602);

    let all = world.server.rest("run_list", &json!({})).await.json();
    let newest = world.server.rest("run_list", &json!({"limit": PAGE})).await.json();
    let rows = |list: &Value| list["runs"].as_array().unwrap().clone();
    assert_eq!((rows(&all).len(), all["total_count"].as_u64()), (MANY + 2, Some(MANY as u64 + 2)));
    assert_eq!(rows(&newest), rows(&all)[MANY + 2 - PAGE..]);
    assert_eq!(newest["total_count"], all["total_count"]);
    let distinct: BTreeSet<String> = rows(&all).iter().map(|run| run["id"].to_string()).collect();
    assert_eq!(distinct.len(), MANY + 2, "a run was listed twice");
}

#[tokio::test]
async fn the_event_log_is_read_page_by_page_with_every_event_once() {
    let world = World::open().await;
    for _ in 0..MANY {
        let id = world.start(RunSpec::default()).await;
        world.engine.stop(&id).await.unwrap();
    }
    let (mut seen, mut after) = (Vec::new(), 0);
    loop {
        let page = world.server.rest("events", &json!({"after": after})).await.json();
        let events = page["events"].as_array().unwrap();
        assert!(events.len() <= PAGE, "{}", events.len());
        seen.extend(events.iter().map(|event| event["seq"].as_u64().unwrap()));
        after = page["next"].as_u64().unwrap();
        if page["next"] == page["last"] {
            break;
        }
        assert_eq!(events.len(), PAGE, "a page before the last is full");
    }
    assert!(seen.len() > 2 * PAGE);
    assert!(seen.iter().copied().eq(1..=after), "{seen:?}");
}
