//! The table as a value: operations with their schemas parsed, looked up by name.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::{Approval, JsonObject, Operation, Schema};

/// An operation ready to be served.
#[derive(Clone)]
pub struct Entry {
    /// The operation as written in the table.
    pub operation: Operation,
    /// Its input schema.
    pub input: Arc<JsonObject>,
    /// The output schema of its tool, if it is one.
    pub tool_output: Option<Arc<JsonObject>>,
}

/// Every operation of a build, in the order of the documentation.
pub struct Catalog {
    entries: Vec<Arc<Entry>>,
    by_name: HashMap<&'static str, usize>,
}

/// A table that contradicts itself; found by the first test that builds it.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// A schema is not a JSON object.
    #[error("the {which} schema of `{operation}` is not a JSON object: {reason}")]
    Schema {
        /// The operation.
        operation: &'static str,
        /// Input or output.
        which: &'static str,
        /// What the parser says.
        reason: String,
    },
    /// Two operations share a name.
    #[error("two operations are called `{0}`")]
    Duplicate(&'static str),
}

impl Catalog {
    /// Parses the schemas and indexes the names.
    pub fn new(operations: Vec<Operation>) -> Result<Self, CatalogError> {
        let mut entries = Vec::with_capacity(operations.len());
        let mut by_name = HashMap::with_capacity(operations.len());
        for operation in operations {
            let name = operation.name;
            let mut input = object(name, "input", operation.input)?;
            if operation.approval == Approval::Yes {
                ask_for_approval(&mut input);
            }
            let tool_output = operation.doors.tool.map(|text| object(name, "output", Schema::Literal(text)));
            let tool_output = tool_output.transpose()?.map(Arc::new);
            if by_name.insert(name, entries.len()).is_some() {
                return Err(CatalogError::Duplicate(name));
            }
            entries.push(Arc::new(Entry { operation, input: Arc::new(input), tool_output }));
        }
        Ok(Self { entries, by_name })
    }

    /// The operations of this build.
    pub fn product() -> Result<Self, CatalogError> {
        let rows = [
            super::pack::operations(),
            super::fleet::operations(),
            super::runs::operations(),
            super::chat::operations(),
            super::server::operations(),
        ];
        Self::new(rows.concat())
    }

    /// The operation called `name`.
    pub fn get(&self, name: &str) -> Option<&Arc<Entry>> {
        self.by_name.get(name).and_then(|&index| self.entries.get(index))
    }

    /// Every operation, in order.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().map(AsRef::as_ref)
    }
}

fn object(operation: &'static str, which: &'static str, schema: Schema) -> Result<JsonObject, CatalogError> {
    schema.to_object().map_err(|reason| CatalogError::Schema { operation, which, reason })
}

/// Adds `yes`, which is read before anything else, to a schema that does not have it.
fn ask_for_approval(input: &mut JsonObject) {
    let mut add = |key: &str, empty: Value, change: &dyn Fn(&mut Value)| {
        change(input.entry(key).or_insert(empty));
    };
    add("required", json!([]), &|required| {
        if let Value::Array(names) = required
            && !names.iter().any(|name| name == "yes")
        {
            names.push("yes".into());
        }
    });
    add("properties", json!({}), &|properties| {
        if let Value::Object(properties) = properties
            && !properties.contains_key("yes")
        {
            let yes = json!({"const": true, "description": "Required explicit approval."});
            properties.insert("yes".to_owned(), yes);
        }
    });
}
