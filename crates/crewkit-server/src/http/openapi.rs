//! The operation table as an `OpenAPI` document.

use serde_json::{Map, Value, json};

use crate::ops::{Catalog, Selection};

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
                "tags": [operation.toolset.name()],
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
