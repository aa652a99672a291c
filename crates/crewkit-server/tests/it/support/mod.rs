//! What the tests of the doors share: a table of operations, a client on stdio, a server on loopback.

pub(crate) mod operations;
pub(crate) mod server;
pub(crate) mod wire;

use serde_json::{Value, json};

/// An `initialize` request for one revision.
pub(crate) fn initialize(id: u64, version: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "initialize", "params": {
        "protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"},
    }})
}

/// A `tools/call` request.
pub(crate) fn call(id: u64, name: &str, arguments: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": name, "arguments": arguments}})
}

/// A request without parameters.
pub(crate) fn request(id: u64, method: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method})
}

/// A notification without parameters.
pub(crate) fn notification(method: &str) -> Value {
    json!({"jsonrpc": "2.0", "method": method})
}

/// The JSON-RPC error code of an answer.
pub(crate) fn code(answer: &Value) -> i64 {
    answer["error"]["code"].as_i64().unwrap_or_else(|| panic!("not an error: {answer}"))
}

/// Checks what must hold for every tool result and returns its JSON.
pub(crate) fn tool_result(answer: &Value) -> (bool, Value) {
    let result = &answer["result"];
    let text = result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text block: {answer}"));
    let from_text: Value = serde_json::from_str(text).unwrap();
    assert_eq!(from_text, result["structuredContent"], "text and structured content differ");
    (result["isError"].as_bool().expect("isError is always said"), from_text)
}
