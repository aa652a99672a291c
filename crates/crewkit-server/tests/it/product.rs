//! The operations of the product, as clients see them.

use std::sync::Arc;

use crewkit_core::Toolset;
use crewkit_server::mcp::handler::tool;
use crewkit_server::ops::pack::PackInput;
use crewkit_server::ops::{Approval, Catalog, Schema};
use serde_json::{Value, json};

/// Every client pays for the list in every conversation.
const MOST_BYTES: usize = 26 * 1024;

#[test]
fn the_whole_list_of_tools_stays_small() {
    let catalog = Catalog::product().unwrap();
    let tools: Vec<_> = catalog.entries().filter(|entry| entry.tool_output.is_some()).map(tool).collect();
    let answer = json!({"jsonrpc": "2.0", "id": 1, "result": {"tools": tools}}).to_string();
    assert!(answer.len() < MOST_BYTES, "tools/list is {} bytes", answer.len());
}

/// A changed schema changes what clients can call; the diff of these files shows it to a reviewer.
#[test]
fn the_schema_of_each_tool_is_written_down() {
    let catalog = Catalog::product().unwrap();
    for entry in catalog.entries() {
        let mut shown = tool(entry);
        if shown.output_schema.is_none() {
            shown.output_schema = Some(Arc::new(entry.operation.output.to_object().unwrap()));
        }
        let shown = serde_json::to_string_pretty(&shown).unwrap();
        insta::with_settings!({prepend_module_to_snapshot => false, omit_expression => true, snapshot_path => "../snapshots"}, {
            insta::assert_snapshot!(format!("tool-{}", entry.operation.name), shown);
        });
    }
}

#[test]
fn the_table_keeps_its_own_rules() {
    let catalog = Catalog::product().unwrap();
    for entry in catalog.entries() {
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
        let shown_with = operation.doors.shown_with;
        let is_narrowed_by_nothing = entry.tool_output.is_some() || operation.toolset.is_none();
        assert_eq!(is_narrowed_by_nothing, shown_with.is_empty(), "{name}");
        for tool in shown_with {
            let tool = &catalog.get(tool).unwrap_or_else(|| panic!("{name}: there is no {tool}")).operation;
            assert!(tool.doors.tool.is_some() && tool.toolset == operation.toolset, "{name}");
        }
        let properties = entry.input["properties"].as_object().unwrap();
        for positional in operation.doors.cli.map(|cli| cli.positional).unwrap_or_default() {
            assert!(properties.contains_key(*positional), "{name}: {positional}");
        }
        if operation.toolset != Some(Toolset::Pack) {
            for (argument, schema) in properties {
                assert!(schema["description"].is_string(), "{name}: {argument} is not described");
            }
        }
        let derived = |schema: Schema| schema.to_object().unwrap();
        for (which, schema) in [
            ("input", (*entry.input).clone()),
            ("output", derived(operation.output)),
            ("failure", derived(operation.failure)),
            (
                "output of the tool",
                entry.tool_output.as_deref().cloned().unwrap_or_else(|| derived(operation.output)),
            ),
        ] {
            assert_eq!(schema.get("type"), Some(&json!("object")), "{name} {which}");
            jsonschema::validator_for(&Value::Object(schema))
                .unwrap_or_else(|error| panic!("{name} {which}: {error}"));
        }
    }
}

/// The tools of the contracts and those that came with version 0.1; what is new does not become a tool unnoticed.
#[test]
fn the_list_of_tools_is_the_one_of_the_contracts() {
    let catalog = Catalog::product().unwrap();
    let tools: Vec<&str> = catalog
        .entries()
        .filter(|entry| entry.tool_output.is_some())
        .map(|entry| entry.operation.name)
        .collect();
    let expected = "plan diff preview status doctor deploy deploy_apply rollback explain create_agent list_agents \
                    show_agent show_agent_task_history delete_agent start_agent_task stop_agent_task \
                    cancel_agent_task list_agent_roles list_agent_projects restart_agent show_agent_log \
                    wait_for_agent equip_agents fleet_drift agent_diff land_agent agent_start agent_status agent_complete agent_stop \
                    agent_wait agent_output";
    assert_eq!(tools.join(" "), expected);
}

/// The literal output schemas of the tools and the types that their answers are written from.
#[test]
fn literal_output_schemas_fit_their_type() {
    let catalog = Catalog::product().unwrap();
    for entry in catalog.entries() {
        let derived = entry.operation.output.to_object().unwrap();
        let literal = entry.tool_output.iter().filter_map(|literal| literal.get("properties")?.as_object());
        for (field, literal) in literal.flatten() {
            let name = entry.operation.name;
            let of_type = derived["properties"].get(field);
            let of_type = of_type.unwrap_or_else(|| panic!("{name}: answers have no `{field}`"));
            for word in types(of_type) {
                assert!(types(literal).contains(&word), "{name}: `{field}` can be {word}");
            }
        }
    }
}

/// The types that a schema allows.
fn types(schema: &Value) -> Vec<&str> {
    match (&schema["type"], &schema["anyOf"]) {
        (Value::String(word), _) => vec![word],
        (Value::Array(words), _) => words.iter().filter_map(Value::as_str).collect(),
        (_, Value::Array(forms)) => forms.iter().flat_map(types).collect(),
        _ => panic!("a schema without a type: {schema}"),
    }
}

/// The literal schemas of the contract and the type that their arguments are read into.
#[test]
fn literal_schemas_fit_their_type() {
    let catalog = Catalog::product().unwrap();
    let derived = Schema::of_input::<PackInput>().to_object().unwrap();
    for entry in catalog.entries().filter(|entry| entry.operation.toolset == Some(Toolset::Pack)) {
        for (argument, literal) in entry.input["properties"].as_object().unwrap() {
            // Read before the type, for every row.
            if argument == "yes" {
                continue;
            }
            let property = &derived["properties"][argument];
            assert_eq!(literal["type"], property["type"], "{} {argument}", entry.operation.name);
            assert_eq!(
                literal["items"]["type"], property["items"]["type"],
                "{} {argument}",
                entry.operation.name
            );
        }
    }
}
