//! Which operations a door shows.

use crewkit_core::Toolset;

use super::{Catalog, Operation};

/// A choice of operations. Excluding beats including, and read-only beats both.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// Toolsets to show; with `tools` empty too, everything.
    pub toolsets: Vec<Toolset>,
    /// Single operations to show, beside the toolsets.
    pub tools: Vec<String>,
    /// Operations never to show.
    pub exclude: Vec<String>,
    /// Whether to show only what changes nothing.
    pub read_only: bool,
}

/// A tool name in a flag that no operation has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown tool `{name}`; known are {known}")]
pub struct UnknownTool {
    /// The name as given.
    pub name: String,
    /// The names there are.
    pub known: String,
}

impl Selection {
    /// Only the operations of one toolset.
    pub fn of(toolset: Toolset) -> Self {
        Self { toolsets: vec![toolset], ..Self::default() }
    }

    /// Whether `operation` is shown.
    pub fn shows(&self, operation: &Operation) -> bool {
        let everything = self.toolsets.is_empty() && self.tools.is_empty();
        let included = everything
            || self.toolsets.contains(&operation.toolset)
            || self.tools.iter().any(|name| name == operation.name);
        included
            && !self.exclude.iter().any(|name| name == operation.name)
            && (!self.read_only || operation.hints.read_only)
    }

    /// The MCP server name: a toolset served alone goes by its own name.
    pub fn server_name(&self) -> &'static str {
        match (self.toolsets.as_slice(), self.tools.is_empty()) {
            ([only], true) => only.server_name(),
            _ => "crewkit",
        }
    }

    /// Refuses names no operation has: a misspelt `--exclude-tools` must not go unnoticed.
    pub fn check(&self, catalog: &Catalog) -> Result<(), UnknownTool> {
        match self.tools.iter().chain(&self.exclude).find(|name| catalog.get(name).is_none()) {
            None => Ok(()),
            Some(name) => {
                let known: Vec<_> = catalog.entries().map(|entry| entry.operation.name).collect();
                Err(UnknownTool { name: name.clone(), known: known.join(", ") })
            }
        }
    }
}
