//! `crewkit serve` from its greeting to its end.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use crate::support::{Served, output};

fn client() -> reqwest::Client {
    crewkit_agent::http_client().build().unwrap()
}

fn initialize() -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"},
    }})
}

fn post(base: &str, session: Option<&str>, message: &Value) -> reqwest::RequestBuilder {
    let request = client()
        .post(format!("{base}/mcp"))
        .header("Accept", "application/json, text/event-stream")
        .json(message);
    match session {
        Some(session) => request.header("Mcp-Session-Id", session),
        None => request,
    }
}

#[tokio::test]
async fn the_greeting_tells_how_to_connect_and_the_address_answers() {
    let home = tempfile::tempdir().unwrap();
    let served = Served::start(home.path(), &[]);
    for word in ["claude mcp add", "[mcp_servers.crewkit]", ".vscode/mcp.json", ".cursor/mcp.json", "curl "] {
        assert!(served.greeting.contains(word), "{word} is missing in {}", served.greeting);
    }
    let health = client().get(format!("{}/api/health", served.base)).send().await.unwrap();
    assert_eq!(health.json::<Value>().await.unwrap()["status"], "ok");
    assert_eq!(served.terminate(), Some(0), "a service manager sees a good end");
}

#[tokio::test]
async fn a_session_survives_kill_and_restart() {
    let home = tempfile::tempdir().unwrap();
    let first = Served::start(home.path(), &[]);
    let answer = post(&first.base, None, &initialize()).send().await.unwrap();
    let session = answer.headers()["mcp-session-id"].to_str().unwrap().to_owned();
    answer.text().await.unwrap();
    drop(first);
    let second = Served::start(home.path(), &[]);
    let list = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"});
    let answer = post(&second.base, Some(&session), &list).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert!(answer.text().await.unwrap().contains("\"tools\""));
}

#[tokio::test]
async fn the_token_is_made_once_kept_private_and_asked_for() {
    let home = tempfile::tempdir().unwrap();
    let served = Served::start(home.path(), &["--auth"]);
    let file = home.path().join("token");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let token = std::fs::read_to_string(&file).unwrap();
    assert!(!served.greeting.contains(token.trim()), "the token itself is not printed");
    let url = format!("{}/metrics", served.base);
    assert_eq!(client().get(&url).send().await.unwrap().status(), 401);
    assert_eq!(client().get(&url).bearer_auth(token.trim()).send().await.unwrap().status(), 200);
    drop(served);
    let again = Served::start(home.path(), &["--auth"]);
    let url = format!("{}/metrics", again.base);
    assert_eq!(client().get(&url).bearer_auth(token.trim()).send().await.unwrap().status(), 200);
    drop(again);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let mut command = crate::support::crewkit(home.path());
    let (code, _, err) = output(command.args(["serve", "--listen", "127.0.0.1:0", "--auth"]));
    assert_eq!(code, 1);
    assert!(err.contains("others can read it (mode 644)"), "{err}");
}
