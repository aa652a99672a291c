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
}

/// One setting.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// The key in `crewkit.toml`, with dots.
    pub key: &'static str,
    /// What values it takes.
    pub kind: Kind,
    /// The value when nothing is said, as it would stand in the environment.
    pub default: &'static str,
    /// An environment variable other programs share.
    pub alias: Option<&'static str>,
    /// What it means.
    pub doc: &'static str,
}

const fn setting(key: &'static str, kind: Kind, default: &'static str, doc: &'static str) -> Setting {
    Setting { key, kind, default, alias: None, doc }
}

/// Every setting but the limits, which have a table of their own.
pub const SETTINGS: &[Setting] = &[
    setting("server.listen", Kind::Text, "127.0.0.1:8101", "Address and port of `crewkit serve`."),
    setting(
        "server.public_url",
        Kind::Text,
        "",
        "Base of the links handed to clients; default http://localhost:PORT.",
    ),
    setting("server.auth", Kind::Flag, "false", "Ask for the bearer token also on loopback."),
    setting("server.stateless", Kind::Flag, "false", "Serve MCP without sessions."),
    setting("server.check_peer", Kind::Flag, "true", "Refuse other users' processes on loopback (Linux)."),
    setting(
        "server.allowed_hosts",
        Kind::List,
        "",
        "Host names the server goes by, beside the loopback ones.",
    ),
    setting("server.allowed_origins", Kind::List, "", "Web origins that may call, beside the server's own."),
    Setting {
        key: "client.server",
        kind: Kind::Text,
        default: "http://localhost:8101",
        alias: Some("CREWKIT_SERVER"),
        doc: "Server that `crewkit agent` and `crewkit fleet` talk to, if not the one of this home.",
    },
    setting("mcp.toolsets", Kind::List, "", "Toolsets to show; all when empty."),
    setting("mcp.tools", Kind::List, "", "Single tools to show, beside the toolsets."),
    setting("mcp.exclude_tools", Kind::List, "", "Tools never to show."),
    setting("mcp.read_only", Kind::Flag, "false", "Show only tools that change nothing."),
    Setting {
        key: "fleet.coder.url",
        kind: Kind::Text,
        default: "",
        alias: Some("CODER_URL"),
        doc: "Address of Coder; agents run in its workspaces when it is set.",
    },
    Setting {
        key: "fleet.coder.token",
        kind: Kind::Secret,
        default: "",
        alias: Some("CODER_SESSION_TOKEN"),
        doc: "Session token for Coder.",
    },
    setting(
        "fleet.coder.token_file",
        Kind::Text,
        "",
        "File that holds the session token, when it is not set.",
    ),
    setting(
        "fleet.coder.ca_file",
        Kind::Text,
        "",
        "Certificates (PEM) to trust for Coder besides those of the system, for a private authority.",
    ),
    Setting {
        key: "fleet.coder.owner",
        kind: Kind::Text,
        default: "me",
        alias: Some("FLEET_OWNER"),
        doc: "Whose workspaces are agents: `me`, or a user name.",
    },
    setting(
        "fleet.coder.organization",
        Kind::Text,
        "",
        "Organization to prefer when a project name exists in several.",
    ),
    Setting {
        key: "fleet.coder.projects",
        kind: Kind::List,
        default: "",
        alias: Some("FLEET_PROJECTS"),
        doc: "Projects the fleet is restricted to; all when empty.",
    },
    setting(
        "fleet.coder.metadata_keys",
        Kind::List,
        "",
        "Keys of Coder's agent metadata to show, beside those that begin with `fleet_`.",
    ),
    setting("fleet.max_name_length", Kind::Number, "20", "Longest name of a new agent; at most 32."),
    setting(
        "fleet.metadata_style",
        Kind::Text,
        "taskfile",
        "What `metadata` of show_agent holds: taskfile, merged or legacy.",
    ),
    Setting {
        key: "llm.endpoint",
        kind: Kind::Text,
        default: "",
        alias: Some("LLM_ENDPOINT"),
        doc: "Complete URL of the model, path included; without one, agents are rehearsed.",
    },
    Setting {
        key: "llm.model",
        kind: Kind::Text,
        default: "",
        alias: Some("LLM_MODEL"),
        doc: "Name of the model at its server.",
    },
    Setting {
        key: "llm.api_key",
        kind: Kind::Secret,
        default: "",
        alias: Some("LLM_API_KEY"),
        doc: "Key for the model.",
    },
    setting("llm.dialect", Kind::Text, "openai", "Wire format of the endpoint: openai or anthropic."),
    setting(
        "llm.stream",
        Kind::Flag,
        "true",
        "Ask the model to stream; a server that refuses is asked without.",
    ),
    setting("llm.window", Kind::Number, "0", "Tokens that fit into one request; 0 when not known."),
    setting(
        "llm.max_output_tokens",
        Kind::Number,
        "0",
        "Longest reply asked for; 0 leaves it to the server.",
    ),
    setting("llm.proxy", Kind::Text, "", "HTTP proxy on the way to the model."),
    setting(
        "agents.mcp_config",
        Kind::Text,
        "",
        "File with the agents' tool servers; default mcp_config.json. Looked for in the home, never in the working directory.",
    ),
    setting(
        "agents.commands",
        Kind::Text,
        "confined",
        "Whether agents may run commands: confined (off where the kernel cannot), off, or unconfined.",
    ),
    setting(
        "agents.commands_network",
        Kind::Flag,
        "true",
        "Whether confined commands may use the network; the server's own ports are closed to them in any case.",
    ),
    setting(
        "agents.commands_unix_sockets",
        Kind::Flag,
        "false",
        "Whether confined commands may use Unix sockets of other programs, such as that of a container engine.",
    ),
    setting(
        "agents.commands_env",
        Kind::List,
        "",
        "Variables that commands of agents get, beside PATH, the locale and a few others; secrets of crewkit never.",
    ),
    setting(
        "agents.commands_read",
        Kind::List,
        "",
        "Directories confined commands may read, beside the system's own.",
    ),
    setting(
        "fleet.driver",
        Kind::Text,
        "",
        "What carries out tasks of agents on this machine: loop, rehearsal, claude, codex or a driver of [agents.drivers]; \
         the loop when a model is set, else the rehearsal.",
    ),
    setting("log.format", Kind::Text, "text", "Form of the log on standard error: text or json."),
];

/// Tables in `crewkit.toml` whose keys are names the user chooses.
pub const OPEN_TABLES: &[&str] = &["llm.endpoints", "agents.drivers", "fleet.projects", "fleet.roles"];

/// Every key, limits included, in the order of the documentation.
pub fn all() -> impl Iterator<Item = (String, Kind, String, &'static str, Option<&'static str>)> {
    let settings = SETTINGS.iter().map(|s| (s.key.to_owned(), s.kind, s.default.to_owned(), s.doc, s.alias));
    let limits = Limits::TABLE.iter().map(|limit| {
        (format!("limits.{}", limit.name), Kind::Number, limit.default.to_string(), limit.doc.trim(), None)
    });
    settings.chain(limits)
}

/// The environment variable of a key.
pub fn variable(key: &str) -> String {
    format!("CREWKIT_{}", key.replace('.', "_").to_ascii_uppercase())
}
