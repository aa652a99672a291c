//! The settings in force: defaults, file, environment and flags put together, each value with its origin.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use crewkit_core::suggest::nearest;
use crewkit_core::{Code, Limits, Secret};
use toml::Value;

use crate::failure::Failure;
use crate::settings::{self, Kind, OPEN_TABLES, Row, Scope};

/// Where a value comes from, later beating earlier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Nobody said anything.
    Default,
    /// `crewkit.toml`.
    File(PathBuf),
    /// An environment variable.
    Environment(String),
    /// The command line.
    Flag,
    /// A client of the server.
    Client,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Environment(name) => write!(f, "${name}"),
            Self::Flag => f.write_str("flag"),
            Self::Client => f.write_str("client"),
        }
    }
}

/// One setting in force.
#[derive(Debug, Clone)]
pub struct Effective {
    /// Whose value counts.
    pub scope: Scope,
    /// What values it takes.
    pub kind: Kind,
    /// The value, of that kind.
    pub value: Value,
    /// Where it comes from.
    pub origin: Origin,
    /// What it means.
    pub doc: &'static str,
}

/// Every setting in force.
#[derive(Debug, Clone)]
pub struct Config {
    /// The directory of configuration and state.
    pub home: PathBuf,
    /// The settings, by key.
    pub values: BTreeMap<String, Effective>,
    file: toml::Table,
}

impl Config {
    /// Reads `crewkit.toml` in `home`, then the environment, then `flags` (key and value as in the environment).
    pub fn load(
        home: PathBuf,
        environment: impl Fn(&str) -> Option<String>,
        flags: &[(&str, String)],
    ) -> Result<Self, Failure> {
        let path = home.join("crewkit.toml");
        let file = read_file(&path)?;
        let mut values = BTreeMap::new();
        for Row { key, scope, kind, default, doc, alias } in settings::all() {
            let own = settings::variable(&key);
            let from_environment = std::iter::once(own.as_str()).chain(alias).find_map(|name| {
                Some((environment(name).filter(|value| !value.is_empty())?, name.to_owned()))
            });
            let from_flag = flags.iter().rev().find(|(name, _)| *name == key).map(|(_, value)| value);
            let (value, origin) = if let Some(text) = from_flag {
                (parse(&key, kind, text, "the command line")?, Origin::Flag)
            } else if let Some((text, name)) = from_environment {
                (parse(&key, kind, &text, &format!("${name}"))?, Origin::Environment(name))
            } else if let Some(value) = lookup(&file, &key) {
                let value = check(&key, kind, value, &path.display().to_string())?;
                (absolute(kind, value, |path| Some(home.join(path))), Origin::File(path.clone()))
            } else {
                (parse(&key, kind, &default, "the defaults")?, Origin::Default)
            };
            let value = absolute(kind, value, |path| std::path::absolute(path).ok());
            values.insert(key, Effective { scope, kind, value, origin, doc });
        }
        let config = Self { home, values, file };
        config.refuse_unknown(&path)?;
        Ok(config)
    }

    /// Puts the values that a client brings over these. Settings of the server cannot be brought.
    pub fn bring(&mut self, brought: &BTreeMap<String, serde_json::Value>) -> Result<(), Failure> {
        for (key, value) in brought {
            let Some(effective) = self.values.get_mut(key).filter(|known| known.scope == Scope::Asker) else {
                let message = format!("A client cannot set `{key}`");
                return Err(Failure::new(Code::SettingInvalid, message));
            };
            let wrong =
                || Failure::new(Code::SettingInvalid, format!("`{key}` of the client cannot be used"));
            let value = Value::try_from(value).map_err(|_| wrong())?;
            effective.value = check(key, effective.kind, &value, "the client")?;
            effective.origin = Origin::Client;
        }
        Ok(())
    }

    /// The settings that a client brings to the server: those of the asker that its environment or flags override.
    pub fn brought(&self) -> BTreeMap<String, serde_json::Value> {
        let is_override = |origin: &Origin| matches!(origin, Origin::Environment(_) | Origin::Flag);
        self.values
            .iter()
            .filter(|(_, known)| known.scope == Scope::Asker && is_override(&known.origin))
            .filter_map(|(key, known)| Some((key.clone(), serde_json::to_value(&known.value).ok()?)))
            .collect()
    }

    /// A whole number; 0 when there is no such setting.
    pub fn number(&self, key: &str) -> u64 {
        let value = self.values.get(key).and_then(|effective| effective.value.as_integer());
        value.and_then(|value| u64::try_from(value).ok()).unwrap_or(0)
    }

    /// A text setting; `None` when it is empty.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.values.get(key)?.value.as_str().filter(|text| !text.is_empty())
    }

    /// A flag.
    pub fn flag(&self, key: &str) -> bool {
        self.values.get(key).and_then(|effective| effective.value.as_bool()).unwrap_or(false)
    }

    /// A list.
    pub fn list(&self, key: &str) -> Vec<String> {
        let items = self.values.get(key).and_then(|effective| effective.value.as_array());
        items.into_iter().flatten().filter_map(Value::as_str).map(ToOwned::to_owned).collect()
    }

    /// A secret; `None` when it is empty.
    pub fn secret(&self, key: &str) -> Option<Secret> {
        self.text(key).map(Secret::new)
    }

    /// A table whose keys the user chose.
    pub fn table(&self, key: &str) -> Option<&toml::Table> {
        lookup(&self.file, key)?.as_table()
    }

    /// The limits.
    pub fn limits(&self) -> Limits {
        let mut limits = Limits::default();
        for row in Limits::TABLE {
            let value = self
                .values
                .get(&format!("limits.{}", row.name))
                .and_then(|effective| effective.value.as_integer());
            if let Some(value) = value.and_then(|value| u64::try_from(value).ok()) {
                limits.set(row.name, value);
            }
        }
        limits
    }

    /// A misspelt key must not be taken for a comment.
    fn refuse_unknown(&self, path: &Path) -> Result<(), Failure> {
        let mut unknown = Vec::new();
        walk(&self.file, "", &mut |key| {
            let open = OPEN_TABLES
                .iter()
                .any(|table| key.strip_prefix(table).is_some_and(|rest| rest.starts_with('.')));
            if !open && !self.values.contains_key(key) {
                unknown.push(key.to_owned());
            }
        });
        let Some(key) = unknown.first() else { return Ok(()) };
        let suggestion = nearest(key, self.values.keys().map(String::as_str))
            .map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
        let message = format!("{}: there is no setting `{key}`{suggestion}", path.display());
        Err(Failure::new(Code::SettingInvalid, message))
    }
}

fn read_file(path: &Path) -> Result<toml::Table, Failure> {
    match std::fs::read_to_string(path) {
        Ok(text) => text.parse().map_err(|error: toml::de::Error| {
            // The error quotes the line by itself, which may hold a secret.
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            let line = before.matches('\n').count() + 1;
            let message = format!("{}, line {line}: {}", path.display(), error.message());
            Failure::new(Code::SettingInvalid, message)
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(toml::Table::new()),
        Err(error) => Err(Failure::new(Code::StateUnusable, format!("{}: {error}", path.display()))),
    }
}

fn lookup<'table>(table: &'table toml::Table, key: &str) -> Option<&'table Value> {
    match key.split_once('.') {
        Some((head, rest)) => lookup(table.get(head)?.as_table()?, rest),
        None => table.get(key),
    }
}

fn walk(table: &toml::Table, at: &str, visit: &mut impl FnMut(&str)) {
    for (name, value) in table {
        let key = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
        match value {
            Value::Table(inner) => walk(inner, &key, visit),
            _ => visit(&key),
        }
    }
}

/// Reads a value as it stands in the environment or in a flag.
fn parse(key: &str, kind: Kind, text: &str, place: &str) -> Result<Value, Failure> {
    let wrong = |expected: &str| {
        // The value may be a secret that landed under the wrong name; it is not repeated.
        Failure::new(Code::SettingInvalid, format!("`{key}` from {place} must be {expected}"))
    };
    match kind {
        Kind::Text | Kind::Secret | Kind::Path => Ok(Value::String(text.to_owned())),
        Kind::Flag => match text.to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" | "on" => Ok(Value::Boolean(true)),
            "false" | "0" | "no" | "off" => Ok(Value::Boolean(false)),
            _ => Err(wrong("true or false")),
        },
        Kind::Number => text
            .parse()
            .ok()
            .filter(|number| *number >= 0)
            .map(Value::Integer)
            .ok_or_else(|| wrong("a whole number")),
        Kind::List | Kind::Paths => {
            let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
            Ok(Value::Array(items.map(|item| Value::String(item.to_owned())).collect()))
        }
    }
}

/// Makes the paths of a value absolute; other values stay as they are.
fn absolute(kind: Kind, value: Value, resolve: impl Fn(&Path) -> Option<PathBuf>) -> Value {
    let resolved = |text: String| match resolve(Path::new(&text)).filter(|_| !text.is_empty()) {
        Some(path) => path.to_string_lossy().into_owned(),
        None => text,
    };
    match (kind, value) {
        (Kind::Path, Value::String(text)) => Value::String(resolved(text)),
        (Kind::Paths, Value::Array(items)) => {
            let path =
                |item| if let Value::String(text) = item { Value::String(resolved(text)) } else { item };
            Value::Array(items.into_iter().map(path).collect())
        }
        (_, value) => value,
    }
}

/// Takes a value from `place` if it is of the right kind.
fn check(key: &str, kind: Kind, value: &Value, place: &str) -> Result<Value, Failure> {
    let (fits, expected) = match kind {
        Kind::Text | Kind::Secret | Kind::Path => (value.is_str(), "a text"),
        Kind::Flag => (value.is_bool(), "true or false"),
        Kind::Number => (value.as_integer().is_some_and(|number| number >= 0), "a whole number"),
        Kind::List | Kind::Paths => {
            (value.as_array().is_some_and(|items| items.iter().all(Value::is_str)), "a list of texts")
        }
    };
    if fits {
        return Ok(value.clone());
    }
    Err(Failure::new(Code::SettingInvalid, format!("{place}: `{key}` must be {expected}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(file: &str, environment: &[(&str, &str)], flags: &[(&str, &str)]) -> Result<Config, Failure> {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("crewkit.toml"), file).unwrap();
        let environment = |name: &str| {
            environment.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        };
        let flags: Vec<_> = flags.iter().map(|(key, value)| (*key, (*value).to_owned())).collect();
        Config::load(home.path().to_owned(), environment, &flags)
    }

    #[test]
    fn a_later_source_beats_an_earlier_one() {
        let file = "[server]\nlisten = \"127.0.0.1:1\"\n[limits]\nhttp_connections = 7\n";
        let environment = ("CREWKIT_SERVER_LISTEN", "127.0.0.1:2");
        let flag = ("server.listen", "127.0.0.1:3");
        for (expected, config) in [
            ("127.0.0.1:8101", load("", &[], &[])),
            ("127.0.0.1:1", load(file, &[], &[])),
            ("127.0.0.1:2", load(file, &[environment], &[])),
            ("127.0.0.1:3", load(file, &[environment], &[flag])),
            ("127.0.0.1:1", load(file, &[("CREWKIT_SERVER_LISTEN", "")], &[])),
        ] {
            assert_eq!(config.unwrap().text("server.listen"), Some(expected));
        }
        assert_eq!(load(file, &[], &[]).unwrap().limits().http_connections, 7);
    }

    #[test]
    fn a_client_brings_what_its_environment_overrides_and_no_setting_of_the_server() {
        let file = "[llm]\nmodel = \"of the file\"\n[fleet.coder]\nca_file = \"ca.pem\"\n";
        let environment = [
            ("LLM_ENDPOINT", "http://a"),
            ("CREWKIT_AGENTS_COMMANDS_READ", "one,/two"),
            ("CREWKIT_SERVER_AUTH", "true"),
            ("CREWKIT_LIMITS_HTTP_CONNECTIONS", "1"),
        ];
        let brought = load(file, &environment, &[("mcp.read_only", "true")]).unwrap().brought();
        let names: Vec<_> = brought.keys().map(String::as_str).collect();
        assert_eq!(names, ["agents.commands_read", "llm.endpoint", "mcp.read_only"]);
        let mut server = load(file, &[], &[]).unwrap();
        server.bring(&brought).unwrap();
        assert_eq!(server.text("llm.endpoint"), Some("http://a"));
        assert_eq!(server.text("llm.model"), Some("of the file"));
        assert!(server.flag("mcp.read_only"));
        let here = std::env::current_dir().unwrap().join("one").to_string_lossy().into_owned();
        assert_eq!(server.list("agents.commands_read"), [here, "/two".to_owned()]);
        assert_eq!(server.text("fleet.coder.ca_file"), server.home.join("ca.pem").to_str());
        for (key, value) in [
            ("server.auth", serde_json::json!(false)),
            ("limits.http_connections", serde_json::json!(9)),
            ("llm.modle", serde_json::json!("x")),
            ("llm.model", serde_json::json!(7)),
            ("llm.model", serde_json::json!(null)),
        ] {
            let refused = server.bring(&[(key.to_owned(), value)].into()).unwrap_err();
            assert!(refused.message.contains(key), "{}", refused.message);
        }
    }

    #[test]
    fn what_cannot_be_used_is_refused_by_name() {
        for (file, environment, expected) in [
            ("[server]\nlisen = \"x\"", ("", ""), "did you mean `server.listen`"),
            ("nonsense = 1", ("", ""), "`nonsense`"),
            ("[server]\nauth = \"yes\"", ("", ""), "`server.auth` must be true or false"),
            ("[server]\nallowed_hosts = [1]", ("", ""), "must be a list of texts"),
            ("[limits]\nhttp_connections = -1", ("", ""), "must be a whole number"),
            ("[server", ("", ""), "crewkit.toml"),
            ("", ("CREWKIT_LIMITS_HTTP_CONNECTIONS", "many"), "$CREWKIT_LIMITS_HTTP_CONNECTIONS"),
        ] {
            let failure = load(file, &[environment], &[]).unwrap_err();
            assert!(failure.message.contains(expected), "{}", failure.message);
            assert_eq!(failure.code, Code::SettingInvalid);
        }
    }
}
