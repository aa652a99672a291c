//! The operation table as an `OpenAPI` document.

use crewkit_core::Toolset;
use serde_json::{Map, Value, json};

use super::agents::{self, RouteAnswer};
use super::problem::ProblemBody;
use super::router::Health;
use crate::ops::{Catalog, Operation, Schema, Selection};

/// Describes every operation `selection` shows, and the routes that are no operations.
pub fn document(catalog: &Catalog, selection: &Selection) -> Value {
    let mut paths = Map::new();
    for entry in catalog.entries().filter(|entry| selection.shows(&entry.operation)) {
        let operation = &entry.operation;
        let content = json!({"application/json": {"schema": Value::Object((*entry.input).clone())}});
        paths.insert(
            format!("/api/ops/{}", operation.name),
            json!({"post": {
                "operationId": operation.name,
                "summary": operation.title,
                "description": operation.description,
                "tags": [tag(operation)],
                "requestBody": {"required": true, "content": content},
                "responses": responses(operation, RouteAnswer::Same),
            }}),
        );
    }
    for route in agents::routes().into_iter().map(|(route, _)| route) {
        let entry = catalog.get(route.operation).filter(|entry| selection.shows(&entry.operation));
        let Some(entry) = entry else { continue };
        let parameters: Vec<Value> = parameters(route.path)
            .map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}))
            .collect();
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method] = json!({
            "operationId": format!("{} {}", route.method, route.path),
            "summary": entry.operation.title,
            "description": format!("The operation `{}`, in the shape existing clients know.", route.operation),
            "tags": [tag(&entry.operation)],
            "parameters": parameters,
            "responses": responses(&entry.operation, route.answer),
        });
    }
    let text = json!({"text/plain": {"schema": {"type": "string"}}});
    let health = json!({"application/json": {"schema": schema(Schema::of_output::<Health>())}});
    for (path, summary, content) in [
        ("/healthz", "Whether the server answers.", &text),
        ("/api/health", "Whether the server answers, with its version.", &health),
        ("/metrics", "Counters in the Prometheus text format.", &text),
    ] {
        let responses = json!({"200": {"description": summary, "content": content}});
        paths.insert(path.to_owned(), json!({"get": {"summary": summary, "responses": responses}}));
    }
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
        "components": {
            "schemas": {"Problem": schema(Schema::of_output::<ProblemBody>())},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    })
}

/// What a call of `operation` is answered with, through a route that answers with `answer`.
fn responses(operation: &Operation, answer: RouteAnswer) -> Value {
    let content = |media_type: &str, schema: Value| json!({media_type: {"schema": schema}});
    let told = match answer {
        RouteAnswer::Same => content("application/json", schema(operation.output)),
        RouteAnswer::Json(shape) => content("application/json", schema(shape)),
        RouteAnswer::Text(media_type) => content(media_type, json!({"type": "string"})),
        RouteAnswer::Socket => Value::Null,
    };
    let (status, success) = match told {
        Value::Null => ("101", json!({"description": "The connection is a WebSocket."})),
        told => ("200", json!({"description": "The answer.", "content": told})),
    };
    // What is refused before the operation is reached has a form of its own.
    let forms = json!({"anyOf": [schema(operation.failure), {"$ref": "#/components/schemas/Problem"}]});
    let failure = json!({"description": "Refused or failed.", "content": content("application/json", forms)});
    json!({status: success, "4XX": failure, "5XX": failure})
}

fn schema(schema: Schema) -> Value {
    Value::Object(schema.to_object().unwrap_or_default())
}

fn tag(operation: &Operation) -> &'static str {
    operation.toolset.map_or("server", Toolset::name)
}

/// The names of a path's parameters.
fn parameters(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
}
