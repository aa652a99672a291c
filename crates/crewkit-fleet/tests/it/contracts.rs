//! The contracts as JSON Schemas, written from their text: what each document asks of an answer at least.

use serde_json::{Value, json};

use super::support::valid;

/// Checks an answer against every contract document that speaks of its tool.
#[track_caller]
pub(crate) fn check(tool: &str, answer: &Value) {
    for schema in schemas(tool) {
        valid(&schema, answer);
    }
}

fn timestamp() -> Value {
    json!({"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z$"})
}

fn object(properties: Value) -> Value {
    let required: Vec<&String> = properties.as_object().unwrap().keys().collect();
    json!({"type": "object", "required": required, "properties": properties})
}

fn text() -> Value {
    json!({"type": "string"})
}

fn text_or_null() -> Value {
    json!({"type": ["string", "null"]})
}

/// The eleven statuses of the data model.
fn status() -> Value {
    json!({"enum": ["pending", "starting", "busy", "idle", "stopping", "stopped", "failed", "canceling", "canceled",
        "deleting", "deleted"]})
}

/// An agent as the tools contract and the data model describe it.
fn full_agent(metadata: Value) -> Value {
    object(json!({
        "name": text(), "workspace_id": text(), "status": status(), "role": text(), "project": text(), "spec": text(),
        "current_task": text_or_null(), "created_at": timestamp(), "updated_at": timestamp(), "metadata": metadata,
    }))
}

fn tools_task() -> Value {
    object(json!({
        "id": text(), "agent_name": text(), "summary": text(),
        "status": {"enum": ["pending", "running", "completed", "failed", "stopped"]},
        "source": {"enum": ["agent", "human", "ai_controller"]},
        "created_at": timestamp(), "started_at": {"type": ["string", "null"]}, "completed_at": {"type": ["string", "null"]},
    }))
}

fn model_task() -> Value {
    object(
        json!({"message": text(), "uri": text(), "needs_user_attention": {"type": "boolean"}, "created_at": timestamp()}),
    )
}

fn schemas(tool: &str) -> Vec<Value> {
    let count = json!({"type": "integer", "minimum": 0});
    match tool {
        "create_agent" => {
            let metadata = json!({"type": "object", "required": ["fleet_mcp_agent_spec"],
                "additionalProperties": {"type": "string"}});
            vec![
                object(json!({"agent": full_agent(metadata), "message": text()})),
                object(json!({"agent": {"properties": {"current_task": {"type": "null"}}}})),
            ]
        }
        "show_agent" => {
            let field = object(json!({
                "value": {}, "error": text_or_null(),
                "schema": object(json!({"description": text(), "include_in_list": {"type": "boolean"}})),
            }));
            let metadata = json!({"type": "object", "additionalProperties": field});
            let documented = object(json!({
                "name": text(), "workspace_id": text(), "status": status(), "role": text(), "project": text(),
                "last_task": text_or_null(), "created_at": timestamp(), "updated_at": timestamp(),
                "metadata_count": count, "metadata": metadata,
            }));
            vec![
                object(json!({"agent": full_agent(json!({"type": "object"}))})),
                object(json!({"agent": documented})),
            ]
        }
        "list_agents" => {
            let short = object(json!({"name": text(), "status": status(), "current_task": text_or_null()}));
            let long = object(json!({
                "name": text(), "status": status(), "role": text(), "project": text(), "last_task": text_or_null(),
                "created_at": timestamp(), "metadata_count": count, "metadata": {"type": "object"},
            }));
            let list = |item: Value| {
                object(json!({"agents": {"type": "array", "items": item}, "total_count": count}))
            };
            let small = json!({"not": {"anyOf": [{"required": ["spec"]}, {"required": ["workspace_id"]}]}});
            vec![list(short), list(long), list(small)]
        }
        "show_agent_task_history" => {
            let page = |task: Value| {
                object(json!({
                    "tasks": {"type": "array", "items": task}, "total_count": count, "page": {"type": "integer", "minimum": 1},
                    "page_size": {"type": "integer", "minimum": 1, "maximum": 100}, "total_pages": count,
                }))
            };
            vec![page(tools_task()), page(model_task())]
        }
        "delete_agent" => {
            vec![object(json!({
                "message": text(), "deleted_agent": object(json!({"name": text(), "workspace_id": text()})),
            }))]
        }
        "start_agent_task" => {
            let task = json!({"allOf": [tools_task(), model_task(), {"properties": {
                "status": {"const": "running"}, "started_at": timestamp()}}]});
            vec![object(json!({"task": task, "agent_status": {"const": "busy"}, "message": text()}))]
        }
        "stop_agent_task" => {
            let task = json!({"allOf": [tools_task(), model_task(), {"properties": {
                "status": {"const": "stopped"}, "started_at": timestamp(), "completed_at": timestamp()}}]});
            vec![object(json!({"task": task, "agent_status": {"const": "idle"}, "message": text()}))]
        }
        "list_agent_roles" => {
            let role = object(
                json!({"name": text(), "display_name": text(), "description": text(), "template_id": text()}),
            );
            vec![object(json!({"roles": {"type": "array", "items": role}}))]
        }
        "list_agent_projects" => {
            let project = object(json!({
                "name": text(), "display_name": text(), "description": text(), "template_id": text(), "template_name": text(),
            }));
            vec![object(json!({"projects": {"type": "array", "items": project}}))]
        }
        other => panic!("no contract speaks of {other}"),
    }
}

#[test]
fn every_published_schema_is_one() {
    assert_eq!(crate::schema::TOOLS.len(), 13);
    for schema in crate::schema::TOOLS {
        let value: Value =
            serde_json::from_str(schema.output).unwrap_or_else(|error| panic!("{}: {error}", schema.tool));
        jsonschema::validator_for(&value).unwrap();
    }
}
