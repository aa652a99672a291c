//! Which operations a door shows.

use crewkit_core::Toolset;
use crewkit_core::suggest::nearest;

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
#[error("Unknown tool `{name}`. {hint}")]
pub struct UnknownTool {
    /// The name as given.
    pub name: String,
    /// The nearest name, or all there are.
    pub hint: String,
}

impl Selection {
    /// Only the operations of one toolset.
    pub fn of(toolset: Toolset) -> Self {
        Self { toolsets: vec![toolset], ..Self::default() }
    }

    /// Whether `operation` is shown.
    pub fn shows(&self, operation: &Operation) -> bool {
        let names = |list: &[String], name: &str| list.iter().any(|listed| listed == name);
        let with = operation.doors.shown_with;
        let is_named = names(&self.tools, operation.name)
            || (!with.is_empty() && with.iter().all(|tool| names(&self.tools, tool)));
        let is_excluded =
            names(&self.exclude, operation.name) || with.iter().any(|tool| names(&self.exclude, tool));
        let everything = self.toolsets.is_empty() && self.tools.is_empty();
        let Some(toolset) = &operation.toolset else { return !is_excluded };
        (everything || is_named || self.toolsets.contains(toolset))
            && !is_excluded
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
                let hint = match nearest(name, known.iter().copied()) {
                    Some(near) => format!("Did you mean `{near}`?"),
                    None => format!("Use one of {}", known.join(", ")),
                };
                Err(UnknownTool { name: name.clone(), hint })
            }
        }
    }
}
