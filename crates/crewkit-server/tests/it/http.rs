//! MCP and REST over HTTP, as clients use them.

use crewkit_core::{Limits, Toolset};
use crewkit_server::mcp::http::SessionMode;
use crewkit_server::ops::Selection;
use serde_json::{Value, json};

use crate::support::operations::{GATE, SIGNALS, WAITING};
use crate::support::server::{Options, Server};
use crate::support::{call, code, initialize, notification, request, tool_result};

#[tokio::test]
async fn a_session_lives_from_initialize_to_delete() {
    let server = Server::start(Options::default()).await;
    let session = server.session("/mcp", "2025-11-25").await;
    let reply = server.post("/mcp", Some(&session), &call(1, "echo", &json!({"text": "x"}))).await;
    assert_eq!(tool_result(&reply.message()).1["text"], "x");
    let again = server.post("/mcp", Some(&session), &initialize(2, "2025-11-25")).await;
    assert_eq!((again.status, code(&again.json())), (400, -32600), "a second initialize in one session");
    let deleted = server.request("DELETE", "/mcp", &[("Mcp-Session-Id", &session)], b"").await;
    assert_eq!(deleted.status, 204);
    let gone = server.post("/mcp", Some(&session), &request(3, "ping")).await;
    assert_eq!((gone.status, code(&gone.json())), (404, -32001));
}

/// `echo` is answered by the front, `later` has to be carried through rmcp.
#[tokio::test]
async fn an_answer_is_the_same_whichever_way_it_took() {
    for mode in [SessionMode::Sessions, SessionMode::Stateless] {
        let server = Server::start(Options { mode, ..Options::default() }).await;
        let session = match mode {
            SessionMode::Sessions => Some(server.session("/mcp", "2025-11-25").await),
            SessionMode::Stateless => None,
        };
        let arguments = json!({"text": "x", "tags": ["a"], "times": 2});
        let answer = async |id: u64, name: &str| {
            let reply = server.post("/mcp", session.as_deref(), &call(id, name, &arguments)).await;
            (reply.status, reply.message()["result"].clone())
        };
        let at_once = answer(1, "echo").await;
        assert_eq!(at_once.1["structuredContent"], arguments);
        assert_eq!(at_once, answer(2, "later").await, "{mode:?}");
        let unknown = server.post("/mcp", session.as_deref(), &call(3, "nothing", &json!({}))).await;
        assert_eq!(code(&unknown.message()), -32602);
        let narrow =
            server.post("/mcp?toolsets=agents", session.as_deref(), &call(4, "echo", &arguments)).await;
        assert_eq!(code(&narrow.message()), -32602, "the front hides what rmcp hides");
    }
}

#[tokio::test]
async fn a_client_does_not_notice_a_restart_of_the_server() {
    let records = tempfile::tempdir().unwrap();
    let options = || Options { records: Some(records.path().to_owned()), ..Options::default() };
    let first = Server::start(options()).await;
    let session = first.session("/mcp", "2025-03-26").await;
    first.stop().await;
    let second = Server::start(options()).await;
    let reply = second.post("/mcp", Some(&session), &call(1, "echo", &json!({"text": "again"}))).await;
    assert_eq!(tool_result(&reply.message()).1["text"], "again");
    let batch = second.post("/mcp", Some(&session), &json!([request(2, "ping"), request(3, "ping")])).await;
    assert_eq!(batch.json().as_array().map(Vec::len), Some(2), "the agreed revision is remembered too");
    second.request("DELETE", "/mcp", &[("Mcp-Session-Id", &session)], b"").await;
    second.stop().await;
    let third = Server::start(options()).await;
    assert_eq!(
        third.post("/mcp", Some(&session), &request(4, "ping")).await.status,
        404,
        "deleted is deleted"
    );
}

#[tokio::test]
async fn session_files_can_only_be_read_by_their_owner() {
    use std::os::unix::fs::PermissionsExt as _;
    let records = tempfile::tempdir().unwrap();
    let server =
        Server::start(Options { records: Some(records.path().to_owned()), ..Options::default() }).await;
    let session = server.session("/mcp", "2025-11-25").await;
    let file = records.path().join(format!("{session}.json"));
    assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn sessions_are_capped_and_those_that_wait_make_no_room() {
    let _one_at_a_time = SIGNALS.lock().await;
    let server = Server::start(Options {
        limits: Limits { mcp_sessions: 2, ..Limits::default() },
        ..Options::default()
    })
    .await;
    let sessions = [server.session("/mcp", "2025-11-25").await, server.session("/mcp", "2025-11-25").await];
    let hang = call(1, "wait", &json!({}));
    let new_client = async {
        WAITING.notified().await;
        server.post("/mcp", None, &initialize(9, "2025-11-25")).await
    };
    let first = server.post("/mcp", Some(&sessions[0]), &hang);
    let refused = async {
        WAITING.notified().await;
        let second = server.post("/mcp", Some(&sessions[1]), &hang);
        tokio::select! {
            _ = second => panic!("a call that hangs was answered"),
            refused = new_client => refused,
        }
    };
    let refused = tokio::select! {
        _ = first => panic!("a call that hangs was answered"),
        refused = refused => refused,
    };
    assert_eq!(refused.status, 503, "{refused:?}");
    assert!(refused.header("retry-after").is_some());
    assert!(refused.json()["error"]["message"].as_str().unwrap().contains("limits.mcp_sessions"));
}

#[tokio::test]
async fn a_new_client_is_not_kept_out_by_idle_sessions() {
    let server = Server::start(Options {
        limits: Limits { mcp_sessions: 3, ..Limits::default() },
        ..Options::default()
    })
    .await;
    let first = server.session("/mcp", "2025-11-25").await;
    for _ in 0..10 {
        server.session("/mcp", "2025-11-25").await;
    }
    let reply = server.post("/mcp", Some(&first), &request(1, "ping")).await;
    assert_eq!(reply.status, 200, "the client of a session that made room does not notice: {reply:?}");
}

#[tokio::test]
async fn a_flood_of_initialize_cannot_pass_the_cap() {
    let server = Server::start(Options {
        limits: Limits { mcp_sessions: 5, ..Limits::default() },
        ..Options::default()
    })
    .await;
    let attempts = (0..40).map(|id| {
        let server = &server;
        async move { server.post("/mcp", None, &initialize(id, "2025-11-25")).await.status }
    });
    let statuses = futures_util::future::join_all(attempts).await;
    assert!(statuses.iter().filter(|status| **status == 200).count() >= 5, "{statuses:?}");
    assert!(statuses.iter().all(|status| matches!(status, 200 | 503)), "{statuses:?}");
}

#[tokio::test]
async fn batches_over_http() {
    let server = Server::start(Options::default()).await;
    let old = server.session("/mcp", "2025-03-26").await;
    let batch = json!([
        call(1, "echo", &json!({"text": "a"})),
        notification("notifications/x"),
        request(2, "nope"),
        initialize(3, "2025-03-26"),
        7,
        call(4, "echo", &json!({"text": 5})),
    ]);
    let reply = server.post("/mcp", Some(&old), &batch).await;
    assert_eq!(reply.status, 200);
    let answers = reply.json();
    let find =
        |id: Value| answers.as_array().unwrap().iter().find(|answer| answer["id"] == id).cloned().unwrap();
    assert_eq!(tool_result(&find(json!(1))).1["text"], "a");
    assert_eq!(code(&find(json!(2))), -32601);
    assert_eq!(code(&find(json!(3))), -32600);
    assert_eq!(code(&find(Value::Null)), -32600);
    assert!(tool_result(&find(json!(4))).0);
    assert_eq!(answers.as_array().unwrap().len(), 5);
    let only_notifications = server.post("/mcp", Some(&old), &json!([notification("notifications/x")])).await;
    assert_eq!(only_notifications.status, 202);
    let long: Vec<_> = (0..1000).map(|id| request(id, "ping")).collect();
    for (session, body) in [(old.as_str(), json!([])), (old.as_str(), Value::from(long))] {
        let reply = server.post("/mcp", Some(session), &body).await;
        assert_eq!((reply.status, code(&reply.json())), (400, -32600));
    }
    let new = server.session("/mcp", "2025-11-25").await;
    let reply = server.post("/mcp", Some(&new), &json!([request(1, "ping")])).await;
    assert_eq!((reply.status, code(&reply.json())), (400, -32600));
    let foreign =
        server.post("/mcp", Some("01234567-89ab-cdef-0123-456789abcdef"), &json!([request(1, "ping")])).await;
    assert!(matches!(foreign.status, 400 | 404), "{foreign:?}");
}

#[tokio::test]
async fn an_id_in_use_is_refused_over_http_too() {
    let server = Server::start(Options::default()).await;
    let session = server.session("/mcp", "2025-11-25").await;
    let _one_at_a_time = SIGNALS.lock().await;
    let first = call(1, "gated", &json!({"n": 1}));
    let second = call(1, "echo", &json!({}));
    let (first, second) = tokio::join!(server.post("/mcp", Some(&session), &first), async {
        WAITING.notified().await;
        let reply = server.post("/mcp", Some(&session), &second).await;
        GATE.notify_one();
        reply
    });
    assert_eq!(code(&second.message()), -32600);
    assert_eq!(tool_result(&first.message()).1, json!({"n": 1}));
    let after = server.post("/mcp", Some(&session), &call(1, "echo", &json!({"text": "free again"}))).await;
    assert_eq!(tool_result(&after.message()).1["text"], "free again");
}

#[tokio::test]
async fn toolsets_narrow_by_path_and_query_but_never_widen() {
    let server = Server::start(Options {
        selection: Selection { exclude: vec!["panic".to_owned()], ..Selection::default() },
        ..Options::default()
    })
    .await;
    for (path, name, tools) in [
        ("/mcp", "crewkit", vec!["echo", "write", "fail", "wait", "hang", "gated", "later", "count"]),
        ("/mcp/agentpack", "agentpack", vec!["echo", "write"]),
        ("/mcp/fleet", "fleet-mcp", vec!["fail"]),
        ("/mcp/minifram", "minifram", vec!["wait", "hang", "gated", "later", "count"]),
        ("/mcp?toolsets=pack", "agentpack", vec!["echo", "write"]),
        ("/mcp?toolsets=pack,fleet", "crewkit", vec!["echo", "write", "fail"]),
        ("/mcp?toolsets=pack%2Cfleet", "crewkit", vec!["echo", "write", "fail"]),
    ] {
        let reply = server.post(path, None, &initialize(1, "2025-11-25")).await;
        assert_eq!(reply.message()["result"]["serverInfo"]["name"], name, "{path}");
        let session = reply.header("mcp-session-id").unwrap().to_owned();
        server.post(path, Some(&session), &notification("notifications/initialized")).await;
        let listed = server.post(path, Some(&session), &request(2, "tools/list")).await.message();
        let names: Vec<_> = listed["result"]["tools"]
            .as_array()
            .unwrap()
            .iter()
            .map(|tool| tool["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, tools, "{path}");
        let hidden = server.post(path, Some(&session), &call(3, "panic", &json!({}))).await.message();
        assert_eq!(code(&hidden), -32602, "{path}");
    }
    assert_eq!(server.post("/mcp/nope", None, &initialize(1, "2025-11-25")).await.status, 404);
    let unknown = server.post("/mcp?toolsets=nope", None, &initialize(1, "2025-11-25")).await;
    assert_eq!(unknown.status, 400);
    assert!(unknown.body.contains("known are pack, fleet and agents"));
    assert_eq!(server.rest("panic", &json!({})).await.status, 404, "REST shows no more than MCP");
}

#[tokio::test]
async fn read_only_hides_what_writes() {
    let selection = Selection {
        read_only: true,
        tools: vec!["write".to_owned()],
        toolsets: vec![Toolset::Pack],
        ..Selection::default()
    };
    let server = Server::start(Options { selection, ..Options::default() }).await;
    let session = server.session("/mcp", "2025-11-25").await;
    let listed = server.post("/mcp", Some(&session), &request(2, "tools/list")).await.message();
    assert_eq!(listed["result"]["tools"].as_array().unwrap().len(), 1);
    assert_eq!(server.rest("write", &json!({"yes": true, "to": "x"})).await.status, 404);
}

#[tokio::test]
async fn stateless_mode_answers_plain_json_without_sessions() {
    let server = Server::start(Options { mode: SessionMode::Stateless, ..Options::default() }).await;
    let reply = server.post("/mcp", None, &initialize(1, "2025-11-25")).await;
    assert_eq!(reply.header("mcp-session-id"), None);
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert_eq!(reply.json()["result"]["protocolVersion"], "2025-11-25");
    let reply = server.post("/mcp", None, &call(2, "echo", &json!({"text": "x"}))).await;
    assert_eq!(tool_result(&reply.json()).1["text"], "x");
    let modern = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}});
    let mut message = call(3, "echo", &json!({"text": "x"}));
    message["params"]["_meta"] = modern;
    let headers =
        [("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", "tools/call"), ("Mcp-Name", "echo")];
    let reply = server.post_with("/mcp", None, &headers, &message).await;
    assert_eq!(reply.json()["result"]["resultType"], "complete");
    for (headers, why) in [
        (
            [("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", "tools/list"), ("Mcp-Name", "echo")],
            "method",
        ),
        (
            [("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", "tools/call"), ("Mcp-Name", "write")],
            "name",
        ),
    ] {
        assert_eq!(
            server.post_with("/mcp", None, &headers, &message).await.status,
            400,
            "{why} differs from the body"
        );
    }
}

#[tokio::test]
async fn rest_runs_the_same_operations() {
    let server = Server::start(Options::default()).await;
    for (operation, arguments, status, field, expected) in [
        ("echo", json!({"text": "x"}), 200, "text", json!("x")),
        ("echo", json!({"times": 99}), 400, "error", json!("E_ARGUMENT_INVALID")),
        ("write", json!({"to": "x"}), 409, "error", json!("E_CONFIRM_REQUIRED")),
        ("fail", json!({}), 404, "error", json!("not_found")),
        ("panic", json!({}), 500, "error", json!("E_INTERNAL")),
        ("nope", json!({}), 404, "error", json!("E_NOT_FOUND")),
        ("echo", json!([1]), 400, "error", json!("E_BODY_INVALID")),
    ] {
        let reply = server.rest(operation, &arguments).await;
        assert_eq!((reply.status, &reply.json()[field]), (status, &expected), "{operation} {arguments}");
    }
    let wrong_method = server.request("GET", "/api/ops/echo", &[], b"").await;
    assert_eq!((wrong_method.status, wrong_method.header("allow")), (405, Some("POST")));
    let metrics = server.request("GET", "/metrics", &[], b"").await;
    assert!(metrics.body.contains("crewkit_operations_total{operation=\"echo\",outcome=\"ok\"}"));
    assert!(metrics.body.contains("crewkit_http_requests_total{door=\"rest\",status=\"200\"}"));
    assert_eq!(server.request("GET", "/healthz", &[], b"").await.body, "ok\n");
    assert!(server.request("GET", "/", &[], b"").await.body.contains("/mcp"), "a browser finds a signpost");
    assert_eq!(server.request("GET", "/api/health", &[], b"").await.json()["status"], "ok");
}

#[tokio::test]
async fn the_openapi_document_lists_every_operation() {
    let server = Server::start(Options::default()).await;
    let document = server.request("GET", "/api/openapi.json", &[], b"").await.json();
    let paths = document["paths"].as_object().unwrap();
    for name in ["echo", "write", "fail", "panic", "wait", "hang", "gated", "later", "count"] {
        let post = &paths[&format!("/api/ops/{name}")]["post"];
        assert_eq!(post["operationId"], name);
        assert!(post["requestBody"]["content"]["application/json"]["schema"].is_object());
    }
}

#[tokio::test]
async fn stopping_ends_idle_connections_and_open_streams() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let server = Server::start(Options::default()).await;
    let session = server.session("/mcp", "2025-11-25").await;
    let mut stream = tokio::net::TcpStream::connect(server.address).await.unwrap();
    let get = format!(
        "GET /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\nMcp-Session-Id: {session}\r\n\r\n"
    );
    stream.write_all(get.as_bytes()).await.unwrap();
    let mut first = [0; 16];
    stream.read_exact(&mut first).await.unwrap();
    assert!(first.starts_with(b"HTTP/1.1 200"));
    let idle = tokio::net::TcpStream::connect(server.address).await.unwrap();
    server.stop().await;
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.unwrap();
    drop(idle);
}
