//! What a workspace says about itself: named values with a description, such as branch or pull request.
//!
//! Values are text written by an agent or its tools. They are data: bounded, cleaned of control characters, and never
//! read as instructions.

use crewkit_core::Limits;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::time::Moment;

pub mod runner;
pub mod sandbox;
pub mod server;
pub mod taskfile;

/// Description of a field that has none.
pub const NO_DESCRIPTION: &str = "No description";

/// The field that names those that were dropped.
const DROPPED: &str = "dropped_fields";

/// Longest field name.
const LONGEST_FIELD_NAME: usize = 64;

/// One named value.
#[derive(Debug, Clone, PartialEq)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// Its value; null when there is none.
    pub value: Value,
    /// Why there is none.
    pub error: Option<String>,
    /// What it means.
    pub description: String,
    /// Whether it belongs in lists.
    pub include_in_list: bool,
}

/// What git says about a workspace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct GitFacts {
    /// The branch that is checked out.
    pub branch: Option<String>,
    /// The commit that is checked out.
    pub sha: Option<String>,
    /// Whether there are changes that are not committed.
    pub dirty: Option<bool>,
}

/// The fields of one workspace, in its own order, and what git says about it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metadata {
    /// The fields.
    pub fields: Vec<Field>,
    /// What git says; `None` if nobody asked it.
    pub git: Option<GitFacts>,
    /// When it was read; `None` if it never was.
    pub at: Option<Moment>,
}

impl Metadata {
    /// Number of fields.
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// Every field with value, error and schema.
    pub fn in_full(&self) -> Map<String, Value> {
        let shown = |field: &Field| {
            json!({
                "value": field.value,
                "error": field.error,
                "schema": {"description": field.description, "include_in_list": field.include_in_list},
            })
        };
        self.fields.iter().map(|field| (field.name.clone(), shown(field))).collect()
    }

    /// The values that belong in lists.
    pub fn for_list(&self) -> Map<String, Value> {
        let listed = self.fields.iter().filter(|field| field.include_in_list);
        listed.map(|field| (field.name.clone(), field.value.clone())).collect()
    }

    /// With a field that says why the tasks of the Taskfile were not run.
    #[must_use]
    pub(crate) fn with_taskfile_not_run(mut self, reason: String) -> Self {
        self.fields.push(Field {
            name: "taskfile".to_owned(),
            value: Value::Null,
            error: Some(reason),
            description: "Why the tasks of the Taskfile were not run".to_owned(),
            include_in_list: false,
        });
        self
    }

    /// Reads the answer of a metadata endpoint: `{"data": {…}}`, or the fields themselves.
    pub fn from_endpoint(body: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct Envelope {
            data: Map<String, Value>,
            #[serde(default)]
            git: Option<GitFacts>,
        }
        let (fields, git) = match serde_json::from_slice::<Envelope>(body) {
            Ok(envelope) => (envelope.data, envelope.git),
            Err(_) => (serde_json::from_slice::<Map<String, Value>>(body).ok()?, None),
        };
        let fields: Option<Vec<Field>> =
            fields.into_iter().map(|(name, field)| endpoint_field(name, field)).collect();
        fields.map(|fields| Self { fields, git, at: None })
    }

    /// The answer of a metadata endpoint.
    pub fn to_endpoint(&self) -> Value {
        let mut answer = json!({"data": self.in_full(), "meta": {"version": "1.0"}});
        if let Some(git) = &self.git {
            answer["git"] = json!(git);
        }
        answer
    }

    /// Drops what has no proper name, cuts what is too long, and removes control characters. Says so where it is noticed.
    #[must_use]
    pub fn cleaned(mut self, limits: &Limits) -> Self {
        let longest = usize::try_from(limits.fleet_metadata_value_bytes).unwrap_or(usize::MAX);
        let (named, unnamed): (Vec<_>, Vec<_>) =
            self.fields.drain(..).partition(|field| is_field_name(&field.name));
        self.fields = named;
        if !unnamed.is_empty() {
            let dropped: Vec<String> = unnamed
                .iter()
                .map(|field| format!("`{}`", clean_text(&field.name, LONGEST_FIELD_NAME)))
                .collect();
            self.fields.push(Field {
                name: DROPPED.to_owned(),
                value: Value::Null,
                error: Some(format!(
                    "{}: names have 1 to {LONGEST_FIELD_NAME} letters, digits and _ . : -",
                    dropped.join(", ")
                )),
                description: "Fields whose names cannot be shown".to_owned(),
                include_in_list: false,
            });
        }
        for field in &mut self.fields {
            if let Value::String(text) = &field.value
                && text.len() > longest
            {
                let told =
                    format!("cut from {} to {longest} bytes (limits.fleet_metadata_value_bytes)", text.len());
                field.error.get_or_insert(told);
            }
            clean_value(&mut field.value, longest);
            if !field.value.is_string() && field.value.to_string().len() > longest {
                field.value = Value::Null;
                field.error = Some(format!("the value is larger than {longest} bytes"));
            }
            field.error = field.error.take().map(|error| clean_text(&error, longest));
            field.description = clean_text(&field.description, longest);
        }
        self
    }
}

fn endpoint_field(name: String, field: Value) -> Option<Field> {
    #[derive(Deserialize)]
    struct Wire {
        #[serde(default)]
        value: Value,
        #[serde(default)]
        error: Option<String>,
        #[serde(default)]
        schema: Option<WireSchema>,
    }
    #[derive(Default, Deserialize)]
    struct WireSchema {
        #[serde(default)]
        description: Option<String>,
        #[serde(default)]
        include_in_list: bool,
    }
    let wire: Wire = serde_json::from_value(field).ok()?;
    let schema = wire.schema.unwrap_or_default();
    Some(Field {
        name,
        value: wire.value,
        error: wire.error,
        description: schema.description.unwrap_or_else(|| NO_DESCRIPTION.to_owned()),
        include_in_list: schema.include_in_list,
    })
}

/// Whether `name` can be a field: 1 to 64 letters, digits and `_ . : -`.
pub fn is_field_name(name: &str) -> bool {
    (1..=LONGEST_FIELD_NAME).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.:-".contains(&byte))
}

/// The value a command's output stands for: JSON as such, the rest as text.
pub fn typed_value(output: &str) -> Value {
    let text = output.trim();
    match text {
        "" => return Value::Null,
        "true" => return Value::Bool(true),
        "false" => return Value::Bool(false),
        _ => {}
    }
    let is_json = match text.as_bytes() {
        [b'{' | b'[' | b'"', ..] => true,
        // `007` and a commit such as `12e34` are text; only what reads back as it was is a number.
        _ => text.parse::<i64>().is_ok_and(|number| number.to_string() == text) || is_decimal(text),
    };
    let value = is_json.then(|| serde_json::from_str(text).ok()).flatten();
    value.unwrap_or_else(|| Value::String(text.to_owned()))
}

/// Whether `text` is a number with digits on both sides of a point.
fn is_decimal(text: &str) -> bool {
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.strip_prefix('-').unwrap_or(text);
    number.split_once('.').is_some_and(|(whole, rest)| digits(whole) && digits(rest))
}

fn clean_value(value: &mut Value, longest: usize) {
    match value {
        Value::String(text) => *text = clean_text(text, longest),
        Value::Array(items) => items.iter_mut().for_each(|item| clean_value(item, longest)),
        Value::Object(fields) => fields.values_mut().for_each(|item| clean_value(item, longest)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// `text` without control characters other than tab and newline, and of at most `longest` bytes.
pub fn clean_text(text: &str, longest: usize) -> String {
    let mut clean: String = text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect();
    if clean.len() > longest {
        clean.truncate(clean.floor_char_boundary(longest));
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_becomes_the_value_it_looks_like() {
        let cases = [
            ("810\n", json!(810)),
            ("-3", json!(-3)),
            ("007", json!("007")),
            ("1.5", json!(1.5)),
            ("-0.25", json!(-0.25)),
            ("1.2.3", json!("1.2.3")),
            ("12e4567", json!("12e4567")),
            ("\"quoted\"", json!("quoted")),
            ("true", json!(true)),
            ("True", json!("True")),
            ("  \n", Value::Null),
            ("{\"a\":1}", json!({"a": 1})),
            ("{broken", json!("{broken")),
            ("[1, \"a\"]", json!([1, "a"])),
            ("[broken", json!("[broken")),
            ("main\n", json!("main")),
        ];
        for (output, value) in cases {
            assert_eq!(typed_value(output), value, "{output:?}");
        }
    }

    #[test]
    fn an_endpoint_answer_is_read_with_and_without_envelope() {
        let field =
            json!({"value": 7, "error": null, "schema": {"description": "d", "include_in_list": true}});
        let flat = json!({"pr": field}).to_string();
        let wrapped = json!({"data": {"pr": field}, "meta": {"version": "1.0"}}).to_string();
        for body in [flat, wrapped] {
            let metadata = Metadata::from_endpoint(body.as_bytes()).unwrap();
            assert_eq!(metadata.for_list(), *json!({"pr": 7}).as_object().unwrap());
            assert_eq!(metadata.in_full(), *json!({"pr": field}).as_object().unwrap());
        }
        for body in ["null", "[]", "<html>", "{\"data\": 3}", "{\"a\": \"not a field\"}", ""] {
            assert_eq!(Metadata::from_endpoint(body.as_bytes()), None, "{body}");
        }
        assert_eq!(Metadata::from_endpoint(b"{}"), Some(Metadata::default()));
    }

    #[test]
    fn values_are_bounded_and_free_of_control_characters() {
        let field = |name: &str, value: Value| Field {
            name: name.to_owned(),
            value,
            error: None,
            description: "\u{1b}[31md".to_owned(),
            include_in_list: true,
        };
        let limits = Limits { fleet_metadata_value_bytes: 5, ..Limits::default() };
        let cleaned = Metadata {
            fields: vec![
                field("ok", json!("a\u{1b}[2Jbé€")),
                field("big", json!(vec![1; 100])),
                field("bad name", json!(1)),
                field(&"x".repeat(65), json!(1)),
            ],
            ..Metadata::default()
        }
        .cleaned(&limits);
        assert_eq!(cleaned.len(), 3);
        assert_eq!(cleaned.fields[0].value, json!("a[2Jb"));
        assert!(cleaned.fields[0].error.is_some(), "a cut is told");
        assert_eq!((cleaned.fields[2].name.as_str(), cleaned.fields[2].error.is_some()), (DROPPED, true));
        assert_eq!(cleaned.fields[0].description, "[31md");
        assert_eq!((&cleaned.fields[1].value, cleaned.fields[1].error.is_some()), (&Value::Null, true));
    }
}
