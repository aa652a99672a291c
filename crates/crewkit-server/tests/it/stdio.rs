//! The front on stdio: whatever a client sends, the server answers in kind and lives on.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crewkit_core::Limits;
use crewkit_server::mcp::McpServer;
use serde_json::{Value, json};

use crate::support::operations::{self, DROPPED, GATE, SIGNALS, WAITING, WRITES};
use crate::support::wire::{PATIENCE, Wire};
use crate::support::{call, code, initialize, notification, request, tool_result};

#[tokio::test]
async fn initialize_answers_the_revision_the_contract_names() {
    for (requested, answered) in [
        ("2025-11-25", "2025-11-25"),
        ("2025-03-26", "2025-03-26"),
        ("2025-06-18", "2025-11-25"),
        ("2024-11-05", "2025-11-25"),
        ("2026-07-28", "2025-11-25"),
        ("1999-01-01", "2025-11-25"),
        ("zzz", "2025-11-25"),
    ] {
        let mut wire = Wire::open(Limits::default());
        let answer = wire.ask(&initialize(1, requested)).await;
        assert_eq!(answer["result"]["protocolVersion"], answered, "{requested}");
        assert!(answer["result"]["capabilities"]["tools"].is_object());
    }
}

#[tokio::test]
async fn no_line_ends_the_server() {
    let mut wire = Wire::open(Limits::default());
    // Not answered: nothing was asked.
    for line in [
        "",
        "   \t",
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
        r#"{"jsonrpc":"2.0","method":"x"}"#,
        r#"{"jsonrpc":"2.0","id":9,"result":{}}"#,
    ] {
        wire.send_raw(line.as_bytes()).await;
    }
    assert_eq!(
        wire.ask(&request(1, "ping")).await,
        json!({"jsonrpc": "2.0", "id": 1, "result": {}}),
        "ping before initialize"
    );
    let deep = format!("{}1{}", "[".repeat(5000), "]".repeat(5000));
    for (line, expected, id) in [
        ("garbage".as_bytes(), -32700, Value::Null),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,", -32700, Value::Null),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}", -32700, Value::Null),
        (br#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#, -32700, Value::Null),
        (br#"{"jsonrpc":"2.0","id":1,"method":"\ud800"}"#, -32700, Value::Null),
        (deep.as_bytes(), -32700, Value::Null),
        (b"42", -32600, Value::Null),
        (b"\"text\"", -32600, Value::Null),
        (br#"{"id":3,"method":"ping"}"#, -32600, json!(3)),
        (br#"{"jsonrpc":"1.0","id":3,"method":"ping"}"#, -32600, json!(3)),
        (br#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, -32600, Value::Null),
        (br#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#, -32600, Value::Null),
        (br#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#, -32600, Value::Null),
        (br#"{"jsonrpc":"2.0","id":99999999999999999999,"method":"ping"}"#, -32600, Value::Null),
        (br#"{"jsonrpc":"2.0","id":3,"method":7}"#, -32600, json!(3)),
        (br#"{"jsonrpc":"2.0","id":3}"#, -32600, json!(3)),
        (br#"{"jsonrpc":"2.0"}"#, -32600, Value::Null),
        (b"[]", -32600, Value::Null),
    ] {
        wire.send_raw(line).await;
        let answer = wire.receive().await;
        let shown = String::from_utf8_lossy(&line[..line.len().min(80)]).into_owned();
        assert_eq!((code(&answer), &answer["id"]), (expected, &id), "{shown}");
        assert!(answer.as_object().unwrap().contains_key("id"), "an id is always there: {shown}");
    }
    wire.handshake("2025-11-25").await;
    let (failed, echoed) = tool_result(&wire.ask(&call(5, "echo", &json!({"text": "still here"}))).await);
    assert!(!failed);
    assert_eq!(echoed, json!({"text": "still here"}));
    assert_eq!(wire.finish().await, Vec::<Value>::new());
}

#[tokio::test]
async fn malformed_parameters_of_known_methods_are_told_apart_from_unknown_methods() {
    let mut wire = Wire::initialized("2025-11-25").await;
    for (method, params, expected) in [
        ("tools/call", json!({}), -32602),
        ("tools/call", json!({"name": 5}), -32602),
        ("tools/call", json!({"name": "echo", "arguments": [1]}), -32602),
        ("tools/call", json!({"name": "echo", "arguments": "x"}), -32602),
        ("tools/call", json!([1]), -32602),
        ("tools/call", json!({"name": "no_such_tool"}), -32602),
        ("tools/list", json!({"cursor": 5}), -32602),
        ("tools/list", json!({"cursor": "made-up"}), -32602),
        ("no/such/method", json!({}), -32601),
        ("prompts/list", json!({}), -32601),
        ("resources/list", json!({}), -32601),
        ("resources/templates/list", json!({}), -32601),
        (
            "completion/complete",
            json!({"ref": {"type": "ref/prompt", "name": "x"}, "argument": {"name": "a", "value": "b"}}),
            -32601,
        ),
        ("logging/setLevel", json!({"level": "info"}), -32601),
    ] {
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let answer = wire.ask(&message).await;
        assert_eq!((code(&answer), &answer["id"]), (expected, &json!(1)), "{message} {answer}");
    }
    let refused = wire.ask(&initialize(7, "2025-11-25")).await;
    assert_eq!(code(&refused), -32600, "a second initialize");
}

#[tokio::test]
async fn malformed_initialize_is_refused_and_a_good_one_still_taken() {
    let mut wire = Wire::open(Limits::default());
    let answer = wire
        .ask(&json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}))
        .await;
    assert_eq!(code(&answer), -32602);
    wire.handshake("2025-11-25").await;
}

#[tokio::test]
async fn an_overlong_line_is_dropped_to_its_end() {
    let limits = Limits { mcp_line_bytes: 1000, ..Limits::default() };
    let mut wire = Wire::open(limits);
    // The tail of the long line is a complete message; it must not be taken for one.
    let tail = request(66, "ping").to_string();
    wire.send_raw(format!("{}{tail}", "x".repeat(3_000_000)).as_bytes()).await;
    assert_eq!(code(&wire.receive().await), -32700);
    assert_eq!(wire.ask(&request(2, "ping")).await["id"], 2);
    assert!(wire.finish().await.is_empty());
}

#[tokio::test]
async fn the_last_line_may_lack_its_newline() {
    use tokio::io::AsyncReadExt as _;
    const LINE: &[u8] = br#"{"jsonrpc":"2.0","id":3,"method":"ping"}"#;
    let server = McpServer::new(operations::catalog(), Arc::default(), Arc::default());
    let (mut ours, theirs) = tokio::io::duplex(1 << 16);
    crewkit_server::mcp::stdio::serve(server, LINE, theirs, &Limits::default()).await;
    let mut text = String::new();
    ours.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "{\"jsonrpc\":\"2.0\",\"id\":3,\"result\":{}}\n");
}

#[tokio::test]
async fn batches_are_answered_whole_and_only_in_their_revision() {
    let mut modern = Wire::initialized("2025-11-25").await;
    assert_eq!(code(&modern.ask(&json!([request(1, "ping")])).await), -32600);

    let mut wire = Wire::initialized("2025-03-26").await;
    let batch = json!([
        call(1, "echo", &json!({"text": "a"})),
        notification("notifications/whatever"),
        request(2, "no/such/method"),
        request(3, "ping"),
        initialize(4, "2025-03-26"),
        [request(5, "ping")],
        17,
        request(3, "ping"),
    ]);
    let answer = wire.ask(&batch).await;
    let answers = answer.as_array().expect("one array for the batch");
    let with_id = |id: u64| answers.iter().filter(|answer| answer["id"] == id).collect::<Vec<_>>();
    assert_eq!(tool_result(with_id(1)[0]).1["text"], "a");
    assert_eq!(code(with_id(2)[0]), -32601);
    assert_eq!(with_id(3).len(), 2, "one answer, one refusal of the duplicate");
    assert_eq!(code(with_id(4)[0]), -32600);
    assert_eq!(answers.iter().filter(|answer| answer["id"].is_null()).count(), 2);
    assert_eq!(answers.len(), 7);

    wire.send(&json!([notification("notifications/a"), notification("notifications/b")])).await;
    assert_eq!(wire.ask(&request(9, "ping")).await["id"], 9, "a batch of notifications is not answered");
    let long: Vec<_> = (0..100_000).map(|id| request(id, "ping")).collect();
    let refused = wire.ask(&Value::from(long)).await;
    assert_eq!(code(&refused), -32600);
    assert_eq!(code(&wire.ask(&json!([])).await), -32600);
}

#[tokio::test]
async fn an_id_in_use_is_refused_and_the_first_call_is_answered() {
    let _one_at_a_time = SIGNALS.lock().await;
    let mut wire = Wire::initialized("2025-11-25").await;
    wire.send(&call(1, "gated", &json!({"n": 1}))).await;
    WAITING.notified().await;
    assert_eq!(code(&wire.ask(&call(1, "echo", &json!({}))).await), -32600);
    GATE.notify_one();
    let (_, first) = tool_result(&wire.receive().await);
    assert_eq!(first, json!({"n": 1}));
    assert_eq!(
        tool_result(&wire.ask(&call(1, "echo", &json!({"times": 1}))).await).1["times"],
        1,
        "the id is free again"
    );
}

#[tokio::test]
async fn calls_in_flight_are_bounded() {
    let _one_at_a_time = SIGNALS.lock().await;
    let mut wire = Wire::open(Limits { mcp_calls_in_flight: 2, ..Limits::default() });
    wire.handshake("2025-11-25").await;
    for id in [1, 2] {
        wire.send(&call(id, "gated", &json!({}))).await;
        WAITING.notified().await;
    }
    let refused = wire.ask(&call(3, "echo", &json!({}))).await;
    assert_eq!((code(&refused), &refused["id"]), (-32000, &json!(3)));
    GATE.notify_one();
    wire.receive().await;
    assert_eq!(wire.ask(&call(3, "echo", &json!({}))).await["id"], 3);
    GATE.notify_one();
}

#[tokio::test]
async fn cancelling_drops_the_work_and_nobody_answers() {
    let _one_at_a_time = SIGNALS.lock().await;
    let mut wire = Wire::initialized("2025-03-26").await;
    wire.send(&call(1, "wait", &json!({}))).await;
    WAITING.notified().await;
    wire.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1, "reason": "enough"}})).await;
    tokio::time::timeout(PATIENCE, DROPPED.notified()).await.expect("the work goes on");
    assert_eq!(wire.ask(&request(2, "ping")).await["id"], 2);

    // A cancelled member does not hold up its batch.
    wire.send(&json!([call(3, "wait", &json!({})), request(4, "ping")])).await;
    WAITING.notified().await;
    wire.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 3}}))
        .await;
    let answers = wire.receive().await;
    assert_eq!(answers.as_array().unwrap().len(), 1);
    assert_eq!(answers[0]["id"], 4);
    tokio::time::timeout(PATIENCE, DROPPED.notified()).await.expect("the work goes on");
}

#[tokio::test]
async fn progress_goes_to_whoever_asked_and_comes_before_the_answer() {
    let mut wire = Wire::initialized("2025-11-25").await;
    let mut message = call(1, "count", &json!({}));
    message["params"]["_meta"] = json!({"progressToken": "t"});
    wire.send(&message).await;
    for step in 1..=3_u8 {
        let update = wire.receive().await;
        assert_eq!(update["method"], "notifications/progress");
        assert_eq!(
            update["params"],
            json!({"progressToken": "t", "progress": f64::from(step), "total": 3.0, "message": format!("step {step}")})
        );
    }
    assert_eq!(tool_result(&wire.receive().await).1, json!({"steps": 3}));
    assert_eq!(
        tool_result(&wire.ask(&call(2, "count", &json!({}))).await).1,
        json!({"steps": 3}),
        "no token, no progress"
    );
}

#[tokio::test]
async fn an_answer_is_the_same_whichever_way_it_took() {
    let mut wire = Wire::initialized("2025-11-25").await;
    let arguments = json!({"text": "x", "tags": ["a"], "times": 2});
    let at_once = wire.ask(&call(1, "echo", &arguments)).await;
    let later = wire.ask(&call(2, "later", &arguments)).await;
    assert_eq!((&at_once["id"], &later["id"]), (&json!(1), &json!(2)));
    assert_eq!(at_once["result"], later["result"]);
    // With a token for progress too.
    for name in ["echo", "later"] {
        let mut message = call(3, name, &arguments);
        message["params"]["_meta"] = json!({"progressToken": 1});
        assert_eq!(wire.ask(&message).await["result"], later["result"], "{name}");
    }
}

#[tokio::test]
async fn a_panicking_operation_is_answered_and_the_server_lives() {
    let mut wire = Wire::initialized("2025-11-25").await;
    let (failed, body) = tool_result(&wire.ask(&call(1, "panic", &json!({}))).await);
    assert!(failed);
    assert_eq!(body["error"], "E_INTERNAL");
    assert!(!body.to_string().contains("canary"), "the panic's text stays in the log");
    assert_eq!(wire.ask(&request(2, "ping")).await["id"], 2);
}

#[tokio::test]
async fn approval_is_asked_for_before_anything_else() {
    let mut wire = Wire::initialized("2025-11-25").await;
    for arguments in [
        json!({}),
        json!({"to": "x"}),
        json!({"to": "x", "yes": false}),
        json!({"to": "x", "yes": "true"}),
        json!({"to": "x", "yes": 1}),
        json!({"to": "x", "yes": [true]}),
        json!({"to": "x", "options": {"yes": true}}),
        json!({"unknown": 1}),
        Value::Null,
    ] {
        let (failed, body) = tool_result(&wire.ask(&call(1, "write", &arguments)).await);
        assert!(failed, "{arguments}");
        assert_eq!(body["error"], "E_CONFIRM_REQUIRED", "{arguments}");
    }
    let without = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "write"}});
    assert_eq!(tool_result(&wire.ask(&without).await).1["error"], "E_CONFIRM_REQUIRED");
    assert_eq!(WRITES.load(Ordering::SeqCst), 0);
    let (failed, body) = tool_result(&wire.ask(&call(1, "write", &json!({"yes": true}))).await);
    assert!(failed);
    assert_eq!((&body["error"], &body["argument"]), (&json!("E_ARGUMENT_INVALID"), &json!("to")));
    assert_eq!(WRITES.load(Ordering::SeqCst), 0);
    let (failed, _) = tool_result(&wire.ask(&call(1, "write", &json!({"yes": true, "to": "x"}))).await);
    assert!(!failed);
    assert_eq!(WRITES.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn failures_are_results_not_protocol_errors() {
    let mut wire = Wire::initialized("2025-11-25").await;
    let (failed, body) = tool_result(&wire.ask(&call(1, "fail", &json!({}))).await);
    assert!(failed);
    assert_eq!(body, json!({"error": "not_found"}));
    let (failed, body) = tool_result(&wire.ask(&call(2, "echo", &json!({"txet": "x"}))).await);
    assert!(failed);
    assert_eq!(body["message"], "Unknown argument `txet`. Use text, times, tone, tags");
}

#[tokio::test]
async fn the_stateless_revision_is_served_beside_the_others() {
    let mut wire = Wire::open(Limits::default());
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}});
    let discover = json!({"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": meta}});
    let answer = wire.ask(&discover).await;
    assert_eq!(answer["result"]["supportedVersions"], json!(["2025-03-26", "2025-11-25", "2026-07-28"]));
    let mut message = call(2, "echo", &json!({"text": "x"}));
    message["params"]["_meta"] = meta.clone();
    let answer = wire.ask(&message).await;
    assert_eq!(answer["result"]["resultType"], "complete");
    assert_eq!(tool_result(&answer).1["text"], "x");
    let list = json!({"jsonrpc": "2.0", "id": 3, "method": "tools/list", "params": {"_meta": meta}});
    let answer = wire.ask(&list).await;
    assert!(answer["result"]["ttlMs"].is_u64(), "{answer}");
}

#[tokio::test]
async fn every_tool_says_all_four_hints() {
    let mut wire = Wire::initialized("2025-11-25").await;
    let answer = wire.ask(&request(1, "tools/list")).await;
    let tools = answer["result"]["tools"].as_array().unwrap();
    assert_eq!(tools.len(), 9);
    for tool in tools {
        for hint in ["readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"] {
            assert!(tool["annotations"][hint].is_boolean(), "{tool}");
        }
    }
    let schema = tools[1]["inputSchema"].as_object().unwrap();
    let keys: Vec<_> = schema.keys().collect();
    assert_eq!(keys, ["type", "additionalProperties", "required", "properties"], "key order as written");
}
