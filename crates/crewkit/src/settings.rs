//! Every setting there is: its key, its kind, its default, and what it means.
//!
//! A setting comes from, in rising order, its default, `crewkit.toml`, the environment, and a flag. The environment
//! variable is `CREWKIT_` and the key in capitals, dots as underscores; a few settings have an older name as well.

use crewkit_core::Limits;

/// What values a setting takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Any text.
    Text,
    /// `true` or `false`.
    Flag,
    /// A whole number.
    Number,
    /// A list; comma-separated in the environment.
    List,
    /// Text that is never shown.
    Secret,
    /// A path. A relative one is taken from the home in `crewkit.toml`, else from the working directory.
    Path,
    /// A list of paths.
    Paths,
}

/// Whose value of a setting counts when a client and the server of its home are different processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The server's: `crewkit.toml`, and the environment and flags of `crewkit serve`.
    Server,
    /// The client's: its environment and flags go before `crewkit.toml`, for what it asks for and nothing else.
    Asker,
}

/// One setting.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// The key in `crewkit.toml`, with dots.
    pub key: &'static str,
    /// Whose value counts.
    pub scope: Scope,
    /// What values it takes.
    pub kind: Kind,
    /// The value when nothing is said, as it would stand in the environment.
    pub default: &'static str,
    /// An environment variable other programs share.
    pub alias: Option<&'static str>,
    /// What it means.
    pub doc: &'static str,
}

/// A setting of the server.
const fn server(key: &'static str, kind: Kind, default: &'static str, doc: &'static str) -> Setting {
    Setting { key, scope: Scope::Server, kind, default, alias: None, doc }
}

/// A setting of whoever asks.
const fn asker(key: &'static str, kind: Kind, default: &'static str, doc: &'static str) -> Setting {
    Setting { key, scope: Scope::Asker, kind, default, alias: None, doc }
}

/// Every setting but the limits, which have a table of their own.
pub const SETTINGS: &[Setting] = &[
    server("server.listen", Kind::Text, "127.0.0.1:8101", "Address and port of `crewkit serve`."),
    server(
        "server.public_url",
        Kind::Text,
        "",
        "Base of the links handed to clients; default http://localhost:PORT.",
    ),
    server(
        "server.idle_minutes",
        Kind::Number,
        "30",
        "A server that a command started in the background ends after this time without clients and work; 0 for never.",
    ),
    server("server.auth", Kind::Flag, "false", "Ask for the bearer token also on loopback."),
    server("server.stateless", Kind::Flag, "false", "Serve MCP without sessions."),
    server("server.check_peer", Kind::Flag, "true", "Refuse other users' processes on loopback (Linux)."),
    server(
        "server.allowed_hosts",
        Kind::List,
        "",
        "Host names the server goes by, beside the loopback ones.",
    ),
    server("server.allowed_origins", Kind::List, "", "Web origins that may call, beside the server's own."),
    Setting {
        key: "client.server",
        scope: Scope::Asker,
        kind: Kind::Text,
        default: "http://localhost:8101",
        alias: Some("CREWKIT_SERVER"),
        doc: "Server that `crewkit agent` and `crewkit fleet` talk to, if not the one of this home.",
    },
    asker("mcp.toolsets", Kind::List, "", "Toolsets to show; all when empty."),
    asker("mcp.tools", Kind::List, "", "Single tools to show, beside the toolsets."),
    asker("mcp.exclude_tools", Kind::List, "", "Tools never to show."),
    asker("mcp.read_only", Kind::Flag, "false", "Show only tools that change nothing."),
    Setting {
        key: "fleet.coder.url",
        scope: Scope::Asker,
        kind: Kind::Text,
        default: "",
        alias: Some("CODER_URL"),
        doc: "Address of Coder; agents run in its workspaces when it is set.",
    },
    Setting {
        key: "fleet.coder.token",
        scope: Scope::Asker,
        kind: Kind::Secret,
        default: "",
        alias: Some("CODER_SESSION_TOKEN"),
        doc: "Session token for Coder.",
    },
    asker("fleet.coder.token_file", Kind::Path, "", "File that holds the session token, when it is not set."),
    Setting {
        key: "fleet.coder.ca_file",
        scope: Scope::Asker,
        kind: Kind::Path,
        default: "",
        // The server does not have the client's environment.
        alias: Some("SSL_CERT_FILE"),
        doc: "Certificates (PEM) to trust for Coder besides those of the system, for a private authority.",
    },
    Setting {
        key: "fleet.coder.owner",
        scope: Scope::Asker,
        kind: Kind::Text,
        default: "me",
        alias: Some("FLEET_OWNER"),
        doc: "Whose workspaces are agents: `me`, or a user name.",
    },
    asker(
        "fleet.coder.organization",
        Kind::Text,
        "",
        "Organization to prefer when a project name exists in several.",
    ),
    Setting {
        key: "fleet.coder.projects",
        scope: Scope::Asker,
        kind: Kind::List,
        default: "",
        alias: Some("FLEET_PROJECTS"),
        doc: "Projects the fleet is restricted to; all when empty.",
    },
    asker(
        "fleet.coder.metadata_keys",
        Kind::List,
        "",
        "Keys of Coder's agent metadata to show, beside those that begin with `fleet_`.",
    ),
    asker(
        "fleet.coder.metadata_seconds",
        Kind::Number,
        "60",
        "Seconds between two reads of metadata and kit through the terminal of a workspace, which Coder counts as use.",
    ),
    asker(
        "fleet.coder.list_metadata",
        Kind::Text,
        "last",
        "What lists show of metadata that is read through a terminal: last (what was read last) or full (read it, too).",
    ),
    asker("fleet.max_name_length", Kind::Number, "20", "Longest name of a new agent; at most 32."),
    asker(
        "fleet.metadata_style",
        Kind::Text,
        "taskfile",
        "What `metadata` of show_agent holds: taskfile, merged or legacy.",
    ),
    Setting {
        key: "llm.endpoint",
        scope: Scope::Asker,
        kind: Kind::Text,
        default: "",
        alias: Some("LLM_ENDPOINT"),
        doc: "Complete URL of the model, path included; without one, agents are rehearsed.",
    },
    Setting {
        key: "llm.model",
        scope: Scope::Asker,
        kind: Kind::Text,
        default: "",
        alias: Some("LLM_MODEL"),
        doc: "Name of the model at its server.",
    },
    Setting {
        key: "llm.api_key",
        scope: Scope::Asker,
        kind: Kind::Secret,
        default: "",
        alias: Some("LLM_API_KEY"),
        doc: "Key for the model.",
    },
    asker("llm.dialect", Kind::Text, "openai", "Wire format of the endpoint: openai or anthropic."),
    asker(
        "llm.stream",
        Kind::Flag,
        "true",
        "Ask the model to stream; a server that refuses is asked without.",
    ),
    asker("llm.window", Kind::Number, "0", "Tokens that fit into one request; 0 when not known."),
    asker("llm.max_output_tokens", Kind::Number, "0", "Longest reply asked for; 0 leaves it to the server."),
    asker("llm.proxy", Kind::Text, "", "HTTP proxy on the way to the model."),
    asker(
        "agents.mcp_config",
        Kind::Text,
        "",
        "File with the agents' tool servers; default mcp_config.json. Looked for in the home, never in the working directory.",
    ),
    asker(
        "agents.commands",
        Kind::Text,
        "confined",
        "Whether agents may run commands: confined (off where the kernel cannot), off, or unconfined.",
    ),
    asker(
        "agents.commands_network",
        Kind::Flag,
        "true",
        "Whether confined commands may use the network; the server's own ports are closed to them in any case.",
    ),
    asker(
        "agents.commands_unix_sockets",
        Kind::Flag,
        "false",
        "Whether confined commands may use Unix sockets of other programs, such as that of a container engine.",
    ),
    server(
        "agents.may",
        Kind::List,
        "",
        "What processes of runs may ask of the server beside completing their run: agent_start, agent_wait, agent_status.",
    ),
    asker(
        "agents.commands_env",
        Kind::List,
        "",
        "Variables that commands of agents get, beside PATH, the locale and a few others; secrets of crewkit never.",
    ),
    asker(
        "agents.commands_read",
        Kind::Paths,
        "",
        "Directories confined commands may read, beside the system's own.",
    ),
    asker(
        "fleet.driver",
        Kind::Text,
        "",
        "What carries out tasks of agents on this machine: loop, rehearsal, claude, codex or a driver of [agents.drivers]; \
         the loop when a model is set, else the rehearsal.",
    ),
    server("log.format", Kind::Text, "text", "Form of the log on standard error: text or json."),
];

/// Tables in `crewkit.toml` whose keys are names the user chooses.
pub const OPEN_TABLES: &[&str] = &["llm.endpoints", "agents.drivers", "fleet.projects", "fleet.roles"];

/// A setting or a limit, as a row of one table.
#[derive(Debug, Clone)]
pub struct Row {
    /// The key in `crewkit.toml`, with dots.
    pub key: String,
    /// Whose value counts.
    pub scope: Scope,
    /// What values it takes.
    pub kind: Kind,
    /// The value when nothing is said.
    pub default: String,
    /// An environment variable other programs share.
    pub alias: Option<&'static str>,
    /// What it means.
    pub doc: &'static str,
}

/// Every key, limits included, in the order of the documentation.
pub fn all() -> impl Iterator<Item = Row> {
    let settings = SETTINGS.iter().map(|setting| Row {
        key: setting.key.to_owned(),
        scope: setting.scope,
        kind: setting.kind,
        default: setting.default.to_owned(),
        alias: setting.alias,
        doc: setting.doc,
    });
    let limits = Limits::TABLE.iter().map(|limit| Row {
        key: format!("limits.{}", limit.name),
        scope: Scope::Server,
        kind: Kind::Number,
        default: limit.default.to_string(),
        alias: None,
        doc: limit.doc.trim(),
    });
    settings.chain(limits)
}

/// The environment variable of a key.
pub fn variable(key: &str) -> String {
    format!("CREWKIT_{}", key.replace('.', "_").to_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A new section of settings has to say here whose it is.
    #[test]
    fn every_setting_belongs_to_the_server_or_to_the_asker() {
        for row in all() {
            let expected = match row.key.split('.').next().unwrap() {
                "server" | "log" | "limits" => Scope::Server,
                // A client must not widen what the processes of other clients' runs may do.
                _ if row.key == "agents.may" => Scope::Server,
                "client" | "mcp" | "fleet" | "llm" | "agents" => Scope::Asker,
                section => panic!("`{section}` belongs to nobody"),
            };
            assert_eq!(row.scope, expected, "{}", row.key);
        }
    }
}
