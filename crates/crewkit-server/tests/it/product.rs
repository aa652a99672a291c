//! The operations of the product, as clients see them.

use crewkit_server::mcp::handler::tool;
use crewkit_server::ops::{Approval, Catalog};
use serde_json::{Value, json};

/// Every client pays for the list in every conversation.
const MOST_BYTES: usize = 24 * 1024;

#[test]
fn the_whole_list_of_tools_stays_small() {
    let catalog = Catalog::product().unwrap();
    let tools: Vec<_> = catalog.entries().map(tool).collect();
    let answer = json!({"jsonrpc": "2.0", "id": 1, "result": {"tools": tools}}).to_string();
    assert!(answer.len() < MOST_BYTES, "tools/list is {} bytes", answer.len());
}

/// A changed schema changes what clients can call; the diff of these files shows it to a reviewer.
#[test]
fn the_schema_of_each_tool_is_written_down() {
    let catalog = Catalog::product().unwrap();
    for entry in catalog.entries() {
        let shown = serde_json::to_string_pretty(&tool(entry)).unwrap();
        insta::with_settings!({prepend_module_to_snapshot => false, omit_expression => true, snapshot_path => "../snapshots"}, {
            insta::assert_snapshot!(format!("tool-{}", entry.operation.name), shown);
        });
    }
}

#[test]
fn the_table_keeps_its_own_rules() {
    for entry in Catalog::product().unwrap().entries() {
        let operation = &entry.operation;
        let name = operation.name;
        let hints = operation.hints;
        assert!(!(hints.read_only && hints.destructive), "{name} both reads only and destroys");
        assert!(
            operation.approval == Approval::NotNeeded || !hints.read_only,
            "{name} needs approval to read"
        );
        assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
        assert!(operation.description.ends_with('.') && !operation.title.is_empty(), "{name}");
        for (which, schema) in [("input", &entry.input), ("output", &entry.output)] {
            assert_eq!(schema.get("type"), Some(&json!("object")), "{name} {which}");
            jsonschema::validator_for(&Value::Object((**schema).clone()))
                .unwrap_or_else(|error| panic!("{name} {which}: {error}"));
        }
    }
}
