//! The operation table as an `OpenAPI` document.

use crewkit_core::Toolset;
use serde_json::{Map, Value, json};

use super::agents::{self, Route};
use crate::ops::{Catalog, Operation, Selection};

/// The adapter of the fleet.
const ADD_PROJECT: Route = Route {
    method: "post",
    path: "/api/fleet/projects",
    operation: "project_add",
    summary: "Register a project of this machine.",
};

/// Describes every operation `selection` shows, and the routes that are no operations.
pub fn document(catalog: &Catalog, selection: &Selection) -> Value {
    let mut paths = Map::new();
    for entry in catalog.entries().filter(|entry| selection.shows(&entry.operation)) {
        let operation = &entry.operation;
        let answer = json!({"application/json": {"schema": Value::Object((*entry.output).clone())}});
        paths.insert(
            format!("/api/ops/{}", operation.name),
            json!({"post": {
                "operationId": operation.name,
                "summary": operation.title,
                "description": operation.description,
                "tags": [tag(operation)],
                "requestBody": {
                    "required": true,
                    "content": {"application/json": {"schema": Value::Object((*entry.input).clone())}},
                },
                "responses": {
                    "200": {"description": "The operation's answer.", "content": answer},
                    "4XX": {"description": "Refused or failed, in the operation's own form.", "content": answer},
                    "5XX": {"description": "Failed, in the operation's own form.", "content": answer},
                },
            }}),
        );
    }
    for route in agents::routes().into_iter().map(|(route, _)| route).chain([ADD_PROJECT]) {
        let entry = catalog.get(route.operation).filter(|entry| selection.shows(&entry.operation));
        let Some(entry) = entry else { continue };
        let parameters: Vec<Value> = parameters(route.path)
            .map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}))
            .collect();
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method] = json!({
            "operationId": format!("{} {}", route.method, route.path),
            "summary": route.summary,
            "description": format!("The operation `{}`, in the shape existing clients know.", route.operation),
            "tags": [tag(&entry.operation)],
            "parameters": parameters,
            "responses": {
                "200": {"description": "The answer."},
                "4XX": {"description": "Refused or failed."},
                "5XX": {"description": "Failed."},
            },
        });
    }
    let plain = |summary: &str, media_type: &str| {
        let content = json!({media_type: {}});
        json!({"get": {"summary": summary, "responses": {"200": {"description": summary, "content": content}}}})
    };
    paths.insert("/healthz".to_owned(), plain("Whether the server answers.", "text/plain"));
    paths.insert(
        "/api/health".to_owned(),
        plain("Whether the server answers, with its version.", "application/json"),
    );
    paths.insert("/metrics".to_owned(), plain("Counters in the Prometheus text format.", "text/plain"));
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "crewkit",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Equips, runs and supervises coding agents. The same operations are MCP tools at /mcp.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "security": [{}, {"bearer": []}],
        "paths": paths,
        "components": {"securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}}},
    })
}

fn tag(operation: &Operation) -> &'static str {
    operation.toolset.map_or("server", Toolset::name)
}

/// The names of a path's parameters.
fn parameters(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
}
