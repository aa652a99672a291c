//! What the conformance suite found out about single messages, kept here so that it stays found without the suite.

use crewkit_server::mcp::message::{self, INVALID_PARAMS};
use serde_json::{Value, json};

fn refusal(params: &Value) -> Option<i32> {
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
    message::read(message).err().map(|refusal| refusal.code)
}

#[test]
fn initialize_is_unknown_to_the_stateless_revision_and_malformed_to_the_others() {
    let speaks = |version: &str| json!({"_meta": {"io.modelcontextprotocol/protocolVersion": version}});
    assert_eq!(refusal(&speaks("2026-07-28")), None, "passed on, to be answered with -32601");
    assert_eq!(refusal(&speaks("2025-11-25")), Some(INVALID_PARAMS));
    assert_eq!(refusal(&json!({})), Some(INVALID_PARAMS));
}
