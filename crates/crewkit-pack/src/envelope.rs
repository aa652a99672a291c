//! The answer every command gives under `--json` and over MCP.
//!
//! The order of the outer members and the alphabetical order inside `data` and `details` are fixed: people diff and
//! hash this text.

use std::io;

use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use crate::error::PackError;
use crate::plan::Plan;
use crate::view::Changes;

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
pub struct Answer {
    /// The `data` member.
    pub data: Value,
    /// The plan whose changes are the member `changes` of `data`; they stay apart, because they can be many.
    pub plan: Option<Plan>,
    /// What a person should know though it did not stop the command.
    pub warnings: Vec<String>,
    /// The roots that paths in `data` lie below, by target, so that people see them grouped; not part of the envelope.
    pub roots: Vec<(String, String)>,
}

impl Answer {
    /// An answer without warnings.
    pub fn new(data: Value) -> Self {
        Self { data, ..Self::default() }
    }

    /// The `data` member, whole.
    pub fn into_data(self) -> Value {
        let mut data = self.data;
        if let (Some(plan), Value::Object(members)) = (&self.plan, &mut data) {
            members.insert("changes".to_owned(), json!(Changes(plan)));
        }
        data
    }
}

impl From<Value> for Answer {
    fn from(data: Value) -> Self {
        Self::new(data)
    }
}

/// The envelope of a success.
pub fn success(command: &CommandName, version: &str, mut answer: Answer) -> Value {
    let warnings = std::mem::take(&mut answer.warnings);
    let data = sorted(answer.into_data());
    to_value(&Envelope::new(command, version, Ok(Data::Whole(data)), warnings))
}

/// The envelope of a failure. Here `command` is the first word alone, which is what clients match on.
pub fn failure(command: &CommandName, version: &str, error: &PackError) -> Value {
    to_value(&Envelope::new(command, version, Err(error), error.warnings().to_vec()))
}

/// Writes the envelope of a result, indented; a long plan is written row by row.
pub fn write(
    out: impl io::Write,
    command: &CommandName,
    version: &str,
    result: &Result<Answer, PackError>,
) -> io::Result<()> {
    let envelope = match result {
        Ok(answer) => {
            let data = Data::Apart(sorted(answer.data.clone()), answer.plan.as_ref());
            Envelope::new(command, version, Ok(data), answer.warnings.clone())
        }
        Err(error) => Envelope::new(command, version, Err(error), error.warnings().to_vec()),
    };
    Ok(serde_json::to_writer_pretty(out, &envelope)?)
}

fn to_value(envelope: &Envelope<'_>) -> Value {
    serde_json::to_value(envelope).unwrap_or_default()
}

/// The members in the order clients know.
#[derive(Serialize)]
struct Envelope<'a> {
    schema_version: u32,
    ok: bool,
    command: String,
    command_id: String,
    command_path: Vec<&'static str>,
    version: &'a str,
    data: Data<'a>,
    warnings: Vec<String>,
    errors: Vec<Value>,
}

impl<'a> Envelope<'a> {
    fn new(
        command: &CommandName,
        version: &'a str,
        result: Result<Data<'a>, &PackError>,
        warnings: Vec<String>,
    ) -> Self {
        let (ok, name, data, errors) = match result {
            Ok(data) => (true, command.dotted(), data, Vec::new()),
            Err(error) => {
                let nothing = Data::Whole(Value::Object(Map::new()));
                (false, command.first_word().to_owned(), nothing, vec![error_item(error)])
            }
        };
        Self {
            schema_version: SCHEMA_VERSION,
            ok,
            command: name,
            command_id: command.id(),
            command_path: command.words(),
            version,
            data,
            warnings,
            errors,
        }
    }
}

fn error_item(error: &PackError) -> Value {
    let mut item = Map::new();
    item.insert("code".to_owned(), error.code().as_str().into());
    item.insert("message".to_owned(), error.message().into());
    if let Some(details) = error.details() {
        item.insert("details".to_owned(), sorted(details));
    }
    item.into()
}

/// The `data` member, in alphabetical order.
enum Data<'a> {
    Whole(Value),
    Apart(Value, Option<&'a Plan>),
}

impl Serialize for Data<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Data::Apart(Value::Object(members), Some(plan)) => {
                let (before, after): (Vec<_>, Vec<_>) =
                    members.iter().partition(|(key, _)| key.as_str() < "changes");
                let mut map = serializer.serialize_map(Some(members.len() + 1))?;
                before.into_iter().try_for_each(|(key, value)| map.serialize_entry(key, value))?;
                map.serialize_entry("changes", &Changes(plan))?;
                after.into_iter().try_for_each(|(key, value)| map.serialize_entry(key, value))?;
                map.end()
            }
            Data::Whole(value) | Data::Apart(value, _) => value.serialize(serializer),
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
            let good = success(&name, "1", Answer::default());
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
