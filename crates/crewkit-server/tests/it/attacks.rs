//! What an attacker on the network, in a browser, or on the same machine can try against the doors.

use crewkit_core::Limits;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::server::{Options, Server};
use crate::support::wire::PATIENCE;
use crate::support::{call, code, initialize, request};

const ROUTES: [(&str, &str); 8] = [
    ("POST", "/mcp"),
    ("GET", "/mcp"),
    ("POST", "/mcp/agentpack"),
    ("POST", "/api/ops/echo"),
    ("GET", "/api/openapi.json"),
    ("GET", "/metrics"),
    ("GET", "/healthz"),
    ("GET", "/no/such/route"),
];

#[tokio::test]
async fn foreign_hosts_and_origins_are_refused_on_every_route() {
    let server = Server::start(Options::default()).await;
    for (method, path) in ROUTES {
        for header in [
            ("Host", "evil.example"),
            ("Host", "localhost.evil.com:8101"),
            ("Origin", "http://evil.example"),
            ("Origin", "null"),
            ("Origin", "http://localhost:9999"),
            ("Origin", "https://localhost"),
        ] {
            let reply = server.request(method, path, &[header], b"").await;
            assert_eq!(reply.status, 403, "{method} {path} {header:?}");
            assert_eq!(reply.json()["error"], "E_HOST_REFUSED");
        }
        let twice =
            server.request(method, path, &[("Host", "localhost"), ("Host", "evil.example")], b"").await;
        assert_eq!(twice.status, 400, "{method} {path}");
    }
    let missing = server.raw(b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n").await;
    assert_eq!(missing.status, 400);
    let absolute = server
        .raw(b"GET http://evil.example/healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .await;
    assert_eq!(absolute.status, 400);
}

#[tokio::test]
async fn a_browser_gets_no_permission_and_simple_requests_run_nothing() {
    let server = Server::start(Options::default()).await;
    let preflight = [("Origin", "http://evil.example"), ("Access-Control-Request-Method", "POST")];
    let reply = server.request("OPTIONS", "/mcp", &preflight, b"").await;
    assert_eq!(reply.status, 403);
    assert!(reply.headers.iter().all(|(name, _)| !name.starts_with("access-control")), "{reply:?}");
    let body = call(1, "echo", &json!({})).to_string();
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"] {
        let headers = [("Content-Type", kind), ("Accept", "application/json, text/event-stream")];
        let reply = server.request("POST", "/mcp", &headers, body.as_bytes()).await;
        assert_eq!((reply.status, code(&reply.json())), (415, -32000), "{kind}");
        let reply = server.request("POST", "/api/ops/echo", &headers, b"{}").await;
        assert_eq!(reply.status, 415, "{kind}");
    }
    assert_eq!(server.request("POST", "/api/ops/echo", &[], b"{}").await.status, 415, "no type at all");
    let image = server.request("GET", "/mcp", &[("Accept", "image/*")], b"").await;
    assert!(matches!(image.status, 400 | 405 | 406), "{image:?}");
    assert!(image.json()["error"]["message"].is_string(), "rejections have JSON bodies");
    assert_eq!(server.request("GET", "/api/ops/echo", &[], b"").await.status, 405);
}

#[tokio::test]
async fn without_the_token_nothing_but_health_answers() {
    let server = Server::start(Options { token: Some("right-token"), ..Options::default() }).await;
    for (method, path) in ROUTES {
        let expected = if path == "/healthz" { 200 } else { 401 };
        let reply = server.request(method, path, &[], b"").await;
        assert_eq!(reply.status, expected, "{method} {path}");
        if expected == 401 {
            assert!(reply.header("www-authenticate").is_some());
        }
        let wrong = server.request(method, path, &[("Authorization", "Bearer wrong-token")], b"").await;
        assert_eq!(wrong.status, expected, "{method} {path}");
        assert!(!wrong.body.contains("right-token"));
    }
    let right = server.request("GET", "/metrics", &[("Authorization", "Bearer right-token")], b"").await;
    assert_eq!(right.status, 200);
}

#[tokio::test]
async fn guessed_sessions_are_not_found_and_cannot_name_files() {
    let records = tempfile::tempdir().unwrap();
    std::fs::write(records.path().join("secret.json"), "{}").unwrap();
    let server =
        Server::start(Options { records: Some(records.path().join("sessions")), ..Options::default() }).await;
    for session in ["x", "../secret", "..%2Fsecret", "01234567-89ab-cdef-0123-456789abcdef", "/etc/passwd"] {
        let reply = server.post("/mcp", Some(session), &request(1, "ping")).await;
        assert_eq!((reply.status, code(&reply.json())), (404, -32001), "{session}");
    }
    let missing = server.post("/mcp", None, &request(1, "ping")).await;
    assert!(missing.status >= 400 && missing.json()["error"]["code"].is_i64(), "{missing:?}");
}

#[tokio::test]
async fn bad_bodies_get_a_code_and_a_json_answer() {
    let limits = Limits { http_body_bytes: 100_000, ..Limits::default() };
    let server = Server::start(Options { limits, ..Options::default() }).await;
    let headers = [("Content-Type", "application/json"), ("Accept", "application/json, text/event-stream")];
    let deep = format!("{}1{}", "[".repeat(5000), "]".repeat(5000));
    let large = format!("\"{}\"", "x".repeat(200_000));
    for (body, status, expected) in [
        ("garbage".as_bytes(), 400, -32700),
        (b"", 400, -32700),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}", 400, -32700),
        (br#"{"jsonrpc":"2.0","id":1,"id":1,"method":"ping"}"#, 400, -32700),
        (deep.as_bytes(), 400, -32700),
        (large.as_bytes(), 413, -32000),
        (b"5", 400, -32600),
        (br#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, 400, -32600),
        (br#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":1}}"#, 200, -32602),
    ] {
        let reply = server.request("POST", "/mcp", &headers, body).await;
        let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        assert_eq!((reply.status, code(&reply.json())), (status, expected), "{shown}");
        let reply = server.request("POST", "/api/ops/echo", &headers, body).await;
        let expected = match status {
            413 => (413, "E_BODY_TOO_LARGE"),
            _ if body.is_empty() => (200, ""),
            _ if shown.contains("\"method\":\"ping\"") && shown.contains("null") => {
                (400, "E_ARGUMENT_INVALID")
            }
            200 => (400, "E_ARGUMENT_INVALID"),
            _ => (400, "E_BODY_INVALID"),
        };
        assert_eq!((reply.status, reply.json()["error"].as_str().unwrap_or("")), expected, "{shown}");
    }
    for accept in ["", "application/json", "text/html"] {
        let headers = [("Content-Type", "application/json"), ("Accept", accept)];
        let reply = server.request("POST", "/mcp", &headers, request(1, "ping").to_string().as_bytes()).await;
        assert_eq!((reply.status, code(&reply.json())), (406, -32000));
    }
}

/// Many clients send everything before they read anything.
#[tokio::test]
async fn a_body_that_is_too_large_is_heard_out() {
    let limits = Limits { http_body_bytes: 16 << 20, ..Limits::default() };
    let server = Server::start(Options { limits, ..Options::default() }).await;
    let (body, half) = (vec![b'x'; 24 << 20], 12 << 20);
    let head = "POST /api/ops/echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    let announced = format!("{head}Content-Length: {}\r\n\r\n", body.len()).into_bytes();
    let piece = [format!("{half:x}\r\n").as_bytes(), &body[..half], b"\r\n"].concat();
    let chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n").into_bytes();
    let chunked = [&chunked[..], &piece, &piece, b"0\r\n\r\n"];
    for request in [[&announced[..], &body].concat(), chunked.concat()] {
        let mut client = TcpStream::connect(server.address).await.unwrap();
        client.write_all(&request).await.unwrap();
        // The connection is as good as before.
        client
            .write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .await
            .unwrap();
        let mut answers = String::new();
        client.read_to_string(&mut answers).await.unwrap();
        assert!(answers.starts_with("HTTP/1.1 413 ") && answers.contains("E_BODY_TOO_LARGE"), "{answers}");
        assert!(answers.contains("HTTP/1.1 200 OK"), "{answers}");
    }
    let asks_first = format!("{head}Expect: 100-continue\r\nContent-Length: {}\r\n\r\n", body.len());
    assert_eq!(server.raw(asks_first.as_bytes()).await.status, 413);
}

#[tokio::test]
async fn a_body_that_lies_about_its_length_costs_only_itself() {
    let limits = Limits { http_body_bytes: 1000, ..Limits::default() };
    let server = Server::start(Options { limits, ..Options::default() }).await;
    let head = "POST /mcp HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n";
    let claims_much = server.raw(format!("{head}Content-Length: 99999999999\r\n\r\nx").as_bytes()).await;
    assert_eq!(claims_much.status, 413);
    let chunked = format!(
        "{head}Transfer-Encoding: chunked\r\n\r\n{}0\r\n\r\n",
        "400\r\n".to_owned() + &"x".repeat(1024) + "\r\n"
    );
    assert_eq!(server.raw(chunked.as_bytes()).await.status, 413);
    let huge_header =
        format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(100_000));
    assert_eq!(server.raw(huge_header.as_bytes()).await.status, 431);
    assert_eq!(server.request("GET", "/healthz", &[], b"").await.status, 200);
}

#[tokio::test]
async fn slow_and_idle_connections_are_bounded_and_others_are_served() {
    let limits = Limits { http_connections: 8, http_idle_seconds: 1, ..Limits::default() };
    let server = Server::start(Options { limits, ..Options::default() }).await;
    let mut slow = Vec::new();
    for _ in 0..8 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(b"POST /mcp HTTP/1.1\r\nHost: loc").await.unwrap();
        slow.push(stream);
    }
    // Full: the next one is turned away at once rather than left hanging.
    let mut extra = TcpStream::connect(server.address).await.unwrap();
    let mut nothing = Vec::new();
    let read = tokio::time::timeout(PATIENCE, extra.read_to_end(&mut nothing)).await.expect("left hanging");
    assert!(read.is_err() || nothing.is_empty());
    // The idle limit then frees the places.
    for stream in &mut slow {
        let mut answer = Vec::new();
        tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("kept for ever").ok();
    }
    assert_eq!(server.request("GET", "/healthz", &[], b"").await.status, 200);
}

#[tokio::test]
async fn a_connection_that_falls_silent_is_closed_at_any_point() {
    let limits = Limits { http_idle_seconds: 1, http_identify_seconds: 1, ..Limits::default() };
    for token in [None, Some("right-token")] {
        let server = Server::start(Options { limits: limits.clone(), token, ..Options::default() }).await;
        for bytes in [
            &b""[..],
            b"P",
            b"PRI * HTTP/2.0\r\n\r\nSM",
            b"GET /healthz HTTP/1.1\r\n",
            b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
        ] {
            let mut silent = TcpStream::connect(server.address).await.unwrap();
            silent.write_all(bytes).await.unwrap();
            let mut rest = Vec::new();
            let shown = String::from_utf8_lossy(bytes);
            let read = tokio::time::timeout(PATIENCE, silent.read_to_end(&mut rest)).await;
            assert!(read.is_ok(), "kept for ever after {shown:?} with token {token:?}");
        }
    }
}

#[tokio::test]
async fn a_request_that_takes_too_long_is_given_up() {
    let limits = Limits { http_request_seconds: 1, ..Limits::default() };
    let server = Server::start(Options { limits, ..Options::default() }).await;
    let reply = server.rest("hang", &json!({})).await;
    assert_eq!((reply.status, &reply.json()["error"]), (504, &json!("E_TIMED_OUT")));
}

#[tokio::test]
async fn replayed_event_ids_of_others_show_nothing() {
    let server = Server::start(Options::default()).await;
    let (mine, other) =
        (server.session("/mcp", "2025-11-25").await, server.session("/mcp", "2025-11-25").await);
    server.post("/mcp", Some(&other), &call(1, "echo", &json!({"text": "canary"}))).await;
    for event in ["0/0", "1/0", "0", "x", "999999/999999", "-1"] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let get = format!(
            "GET /mcp HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAccept: text/event-stream\r\nMcp-Session-Id: {mine}\r\nLast-Event-ID: {event}\r\n\r\n"
        );
        stream.write_all(get.as_bytes()).await.unwrap();
        let mut head = vec![0; 4096];
        let read = tokio::time::timeout(PATIENCE, stream.read(&mut head)).await.expect("no answer").unwrap();
        let text = String::from_utf8_lossy(&head[..read]).into_owned();
        assert!(text.starts_with("HTTP/1.1 ") && !text.contains("canary"), "{event}: {text}");
    }
    assert_eq!(server.post("/mcp", Some(&mine), &request(9, "ping")).await.status, 200);
}

#[tokio::test]
async fn http2_is_guarded_like_http1() {
    let server = Server::start(Options::default()).await;
    let client = crewkit_agent::http_client().http2_prior_knowledge().build().unwrap();
    let good = client.get(format!("http://{}/healthz", server.address)).send().await.unwrap();
    assert_eq!((good.status().as_u16(), good.version()), (200, reqwest::Version::HTTP_2));
    let evil = client.get(format!("http://localtest.me.evil:{}/healthz", server.address.port()));
    let evil = crewkit_agent::http_client()
        .http2_prior_knowledge()
        .resolve("localtest.me.evil", server.address)
        .build()
        .unwrap()
        .execute(evil.build().unwrap())
        .await
        .unwrap();
    assert_eq!(evil.status().as_u16(), 403);
}

#[tokio::test]
async fn initialize_with_a_header_that_differs_from_the_body_is_refused() {
    let server = Server::start(Options::default()).await;
    let reply = server
        .post_with("/mcp", None, &[("MCP-Protocol-Version", "2025-03-26")], &initialize(1, "2025-11-25"))
        .await;
    assert_eq!(reply.status, 400);
    let session = server.session("/mcp", "2025-11-25").await;
    let reply = server
        .post_with("/mcp", Some(&session), &[("MCP-Protocol-Version", "1999-01-01")], &request(1, "ping"))
        .await;
    assert_eq!(reply.status, 400);
    assert!(reply.json()["error"]["code"].is_i64());
}
