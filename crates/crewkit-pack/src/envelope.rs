//! The answer every command gives under `--json` and over MCP.
//!
//! The order of the outer members and the alphabetical order inside `data` and `details` are fixed: people diff and
//! hash this text.

use std::io;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::error::PackError;

/// Version of the envelope's own shape.
pub const SCHEMA_VERSION: u32 = 1;

/// Names a command in the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandName {
    /// The path of words, e.g. `["overlay", "edit"]`.
    pub path: Vec<&'static str>,
    /// A flag that is part of the id because it turns the command into a mutating one.
    pub variant: Option<&'static str>,
}

impl CommandName {
    /// A command of these words.
    pub fn new(path: &[&'static str]) -> Self {
        Self { path: path.to_vec(), variant: None }
    }

    /// The same command in the variant a flag makes of it.
    #[must_use]
    pub fn with_variant(mut self, flag: &'static str) -> Self {
        self.variant = Some(flag);
        self
    }

    /// The dotted name of a success.
    pub fn dotted(&self) -> String {
        // `explain diff` explains the same plan and has always answered under its name.
        if self.path == ["explain", "diff"] { "explain.plan".to_owned() } else { self.path.join(".") }
    }

    /// The id: words and variant, joined by spaces.
    pub fn id(&self) -> String {
        self.words().join(" ")
    }

    fn words(&self) -> Vec<&'static str> {
        self.path.iter().copied().chain(self.variant).collect()
    }

    fn first_word(&self) -> &'static str {
        self.path.first().copied().unwrap_or("help")
    }
}

/// What a command found or did, before it is put into an envelope.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Answer<T> {
    /// The `data` member; its members are in alphabetical order.
    pub data: T,
    /// What a person should know though it did not stop the command.
    pub warnings: Vec<String>,
}

impl<T: Serialize> Answer<T> {
    /// The `data` member as JSON.
    pub fn json(&self) -> Value {
        serde_json::to_value(&self.data).unwrap_or_default()
    }
}

/// The envelope of a success.
pub fn success<T: Serialize>(command: &CommandName, version: &str, answer: &Answer<T>) -> Value {
    serde_json::to_value(Envelope::success(command, version, answer)).unwrap_or_default()
}

/// The envelope of a failure. Here `command` is the first word alone, which is what clients match on.
pub fn failure(command: &CommandName, version: &str, error: &PackError) -> Value {
    serde_json::to_value(Envelope::failure(command, version, error)).unwrap_or_default()
}

/// Writes the envelope of a result, indented, piece by piece: a long plan never exists as one text.
pub fn write<T: Serialize>(
    out: impl io::Write,
    command: &CommandName,
    version: &str,
    result: &Result<Answer<T>, PackError>,
) -> io::Result<()> {
    match result {
        Ok(answer) => serde_json::to_writer_pretty(out, &Envelope::success(command, version, answer))?,
        Err(error) => serde_json::to_writer_pretty(out, &Envelope::failure(command, version, error))?,
    }
    Ok(())
}

/// The members in the order clients know.
#[derive(Serialize, schemars::JsonSchema)]
pub struct Envelope<'a, T> {
    schema_version: u32,
    ok: bool,
    command: String,
    command_id: String,
    command_path: Vec<&'static str>,
    version: &'a str,
    data: T,
    warnings: &'a [String],
    errors: Vec<Value>,
}

impl<'a, T> Envelope<'a, &'a T> {
    fn success(command: &CommandName, version: &'a str, answer: &'a Answer<T>) -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            ok: true,
            command: command.dotted(),
            command_id: command.id(),
            command_path: command.words(),
            version,
            data: &answer.data,
            warnings: &answer.warnings,
            errors: Vec::new(),
        }
    }
}

impl<'a> Envelope<'a, Map<String, Value>> {
    fn failure(command: &CommandName, version: &'a str, error: &'a PackError) -> Self {
        let mut item = Map::new();
        item.insert("code".to_owned(), error.code().as_str().into());
        item.insert("message".to_owned(), error.message().into());
        if let Some(details) = error.details() {
            item.insert("details".to_owned(), sorted(details));
        }
        Self {
            schema_version: SCHEMA_VERSION,
            ok: false,
            command: command.first_word().to_owned(),
            command_id: command.id(),
            command_path: command.words(),
            version,
            data: Map::new(),
            warnings: error.warnings(),
            errors: vec![item.into()],
        }
    }
}

/// The same value with the members of every object in alphabetical order.
pub fn sorted(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut members: Vec<_> = map.into_iter().collect();
            members.sort_by(|a, b| a.0.cmp(&b.0));
            Value::Object(members.into_iter().map(|(key, value)| (key, sorted(value))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crewkit_core::Code;
    use serde_json::json;

    #[test]
    fn a_failure_has_the_members_in_the_order_clients_know() {
        let error = PackError::new(Code::ConfirmRequired, "not approved").detail("command", "init");
        let text = failure(&CommandName::new(&["init"]), "0.9.1", &error).to_string();
        assert_eq!(
            text,
            r#"{"schema_version":1,"ok":false,"command":"init","command_id":"init","command_path":["init"],"version":"0.9.1","data":{},"warnings":[],"errors":[{"code":"E_CONFIRM_REQUIRED","message":"not approved","details":{"command":"init","next_actions":["retry_with_yes"],"reason_code":"confirm_required"}}]}"#
        );
    }

    #[test]
    fn names_of_commands() {
        for (path, variant, ok, err, id) in [
            (&["deploy"][..], Some("--apply"), "deploy", "deploy", "deploy --apply"),
            (&["overlay", "edit"][..], None, "overlay.edit", "overlay", "overlay edit"),
            (&["explain", "diff"][..], None, "explain.plan", "explain", "explain diff"),
        ] {
            let name = CommandName { path: path.to_vec(), variant };
            let good = success(&name, "1", &Answer::<()>::default());
            let bad = failure(&name, "1", &PackError::bug("x"));
            assert_eq!((good["command"].as_str(), good["command_id"].as_str()), (Some(ok), Some(id)));
            assert_eq!(bad["command"].as_str(), Some(err));
        }
    }

    #[test]
    fn warnings_survive_a_failure() {
        let error = PackError::bug("x").with_warnings(vec!["seen before".into()]);
        assert_eq!(failure(&CommandName::new(&["plan"]), "1", &error)["warnings"], json!(["seen before"]));
    }
}
