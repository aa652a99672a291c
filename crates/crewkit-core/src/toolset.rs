//! The three systems crewkit unites, as names that doors and configuration use.

use std::fmt;
use std::str::FromStr;

/// A group of operations that share a contract and an error form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Toolset {
    /// Declarative deployment of agent assets.
    Pack,
    /// Named agents with a role, working in workspaces.
    Fleet,
    /// Agents with a text contract.
    Agents,
}

impl Toolset {
    /// Every toolset, in the order the doors list them.
    pub const ALL: [Self; 3] = [Self::Pack, Self::Fleet, Self::Agents];

    /// The name in flags and configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pack => "pack",
            Self::Fleet => "fleet",
            Self::Agents => "agents",
        }
    }

    /// The MCP server name when this toolset is served alone; fixed by the contracts.
    pub const fn server_name(self) -> &'static str {
        match self {
            Self::Pack => "agentpack",
            Self::Fleet => "fleet-mcp",
            Self::Agents => "minifram",
        }
    }

    /// The last segment of `/mcp/…` that serves this toolset alone.
    pub const fn path_segment(self) -> &'static str {
        match self {
            Self::Pack => "agentpack",
            Self::Fleet => "fleet",
            Self::Agents => "minifram",
        }
    }
}

impl fmt::Display for Toolset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A toolset name that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown toolset `{0}`; known are pack, fleet and agents")]
pub struct UnknownToolset(pub String);

impl FromStr for Toolset {
    type Err = UnknownToolset;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|toolset| toolset.name() == text)
            .ok_or_else(|| UnknownToolset(text.to_owned()))
    }
}
