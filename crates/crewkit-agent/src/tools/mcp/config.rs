//! `mcp_config.json`: which tool servers there are.
//!
//! Both forms in use are read: a plain object of servers, and the same under `mcpServers`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crewkit_core::Secret;
use serde::{Deserialize, Serialize};

/// A tool server as configured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerConfig {
    /// Its name.
    pub name: String,
    /// How it is reached.
    pub transport: Transport,
    /// Whether every run gets a process of its own.
    pub per_agent: bool,
}

/// How a tool server is reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// A child process that speaks on its standard streams.
    Stdio {
        /// The program.
        command: String,
        /// Its arguments.
        args: Vec<String>,
        /// What is added to its environment.
        #[serde(with = "crate::settings::text::secrets")]
        env: BTreeMap<String, Secret>,
        /// Where it runs.
        cwd: Option<PathBuf>,
    },
    /// Streamable HTTP.
    Http {
        /// The endpoint, which may hold a key.
        #[serde(with = "crate::settings::text::secret")]
        url: Secret,
        /// Sent with every request.
        #[serde(with = "crate::settings::text::secrets")]
        headers: BTreeMap<String, Secret>,
    },
}

/// A configuration that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not JSON, or not of the expected shape.
    #[error("not a valid tool server configuration: {0}")]
    Json(String),
    /// One server is wrong.
    #[error("tool server `{name}`: {what}")]
    Server {
        /// Which.
        name: String,
        /// What is wrong with it.
        what: &'static str,
    },
}

#[derive(Deserialize)]
struct Entry {
    command: Option<String>,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    cwd: Option<PathBuf>,
    #[serde(alias = "serverUrl")]
    url: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    per_agent: bool,
    #[serde(default)]
    disabled: bool,
}

/// Reads the text of the file. Servers that are switched off are left out.
pub fn parse(text: &str) -> Result<Vec<ServerConfig>, ConfigError> {
    let bad = |error: serde_json::Error| ConfigError::Json(error.to_string());
    let mut value: serde_json::Value = serde_json::from_str(text).map_err(bad)?;
    let wrapped =
        value.get_mut("mcpServers").filter(|inner| inner.is_object() && inner.get("command").is_none());
    let servers = wrapped.map(serde_json::Value::take).unwrap_or(value);
    let entries: BTreeMap<String, Entry> = serde_json::from_value(servers).map_err(bad)?;
    let used = entries.into_iter().filter(|(_, entry)| !entry.disabled);
    used.map(|(name, entry)| server(name, entry)).collect()
}

fn server(name: String, entry: Entry) -> Result<ServerConfig, ConfigError> {
    let secret = |map: BTreeMap<String, String>| map.into_iter().map(|(k, v)| (k, Secret::new(v))).collect();
    let wrong = |what| Err(ConfigError::Server { name: name.clone(), what });
    let transport = match (entry.command, entry.url) {
        (Some(command), None) if !command.trim().is_empty() => {
            Transport::Stdio { command, args: entry.args, env: secret(entry.env), cwd: entry.cwd }
        }
        (None, Some(url)) if url.starts_with("http://") || url.starts_with("https://") => {
            Transport::Http { url: Secret::new(url), headers: secret(entry.headers) }
        }
        (None, Some(_)) => return wrong("its url must begin with http:// or https://"),
        (Some(_), Some(_)) => return wrong("it has both a command and a url"),
        _ => return wrong("it needs a command or a url"),
    };
    Ok(ServerConfig { name, transport, per_agent: entry.per_agent })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_mean_the_same() {
        let servers = r#"{"files": {"command": "srv", "args": ["-x"], "env": {"K": "v"}, "cwd": "/w", "per_agent": true},
                          "web": {"url": "http://localhost:1/mcp", "headers": {"A": "b"}, "type": "http"},
                          "off": {"command": "x", "disabled": true}}"#;
        let plain = parse(servers).unwrap();
        assert_eq!(parse(&format!(r#"{{"mcpServers": {servers}}}"#)).unwrap(), plain);
        let names: Vec<_> = plain.iter().map(|server| (server.name.as_str(), server.per_agent)).collect();
        assert_eq!(names, [("files", true), ("web", false)]);
        assert!(!format!("{plain:?}").contains("\"v\""), "secrets stay secret");
    }

    #[test]
    fn mistakes_are_named() {
        for (text, expected) in [
            ("{", "not a valid"),
            ("[]", "not a valid"),
            (r#"{"a": {}}"#, "`a`: it needs a command or a url"),
            (r#"{"a": {"command": " "}}"#, "`a`: it needs a command"),
            (r#"{"a": {"url": "ftp://x"}}"#, "`a`: its url must"),
            (r#"{"a": {"command": "x", "url": "http://x"}}"#, "`a`: it has both"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
