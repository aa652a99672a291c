//! The table as a value: operations with their schemas parsed, looked up by name.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use super::{JsonObject, Operation};

/// An operation ready to be served.
#[derive(Clone)]
pub struct Entry {
    /// The operation as written in the table.
    pub operation: Operation,
    /// Its input schema.
    pub input: Arc<JsonObject>,
    /// Its output schema.
    pub output: Arc<JsonObject>,
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
            let input = parse(name, "input", operation.input)?;
            let output = parse(name, "output", operation.output)?;
            if by_name.insert(name, entries.len()).is_some() {
                return Err(CatalogError::Duplicate(name));
            }
            entries.push(Arc::new(Entry { operation, input, output }));
        }
        Ok(Self { entries, by_name })
    }

    /// The operations of this build.
    pub fn product() -> Result<Self, CatalogError> {
        let toolsets = [super::pack::operations(), super::fleet::operations(), super::agents::operations()];
        Self::new(toolsets.concat())
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

fn parse(operation: &'static str, which: &'static str, text: &str) -> Result<Arc<JsonObject>, CatalogError> {
    match serde_json::from_str(text) {
        Ok(Value::Object(schema)) => Ok(Arc::new(schema)),
        Ok(_) => Err(CatalogError::Schema { operation, which, reason: "not an object".to_owned() }),
        Err(error) => Err(CatalogError::Schema { operation, which, reason: error.to_string() }),
    }
}
