//! What a workspace says about itself: named values with a description, such as branch or pull request.
//!
//! Values are text written by an agent or its tools. They are data: bounded, cleaned of control characters, and never
//! read as instructions.

use crewkit_core::Limits;
use serde::Deserialize;
use serde_json::{Map, Value, json};

pub mod prefixed;
pub mod runner;
pub mod sandbox;
pub mod server;
pub mod taskfile;

/// Description of a field that has none.
pub const NO_DESCRIPTION: &str = "No description";

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

/// The fields of one workspace, in its own order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metadata {
    /// The fields.
    pub fields: Vec<Field>,
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
        }
        let fields = match serde_json::from_slice::<Envelope>(body) {
            Ok(envelope) => envelope.data,
            Err(_) => serde_json::from_slice::<Map<String, Value>>(body).ok()?,
        };
        let fields: Option<Vec<Field>> =
            fields.into_iter().map(|(name, field)| endpoint_field(name, field)).collect();
        fields.map(|fields| Self { fields })
    }

    /// The answer of a metadata endpoint.
    pub fn to_endpoint(&self) -> Value {
        json!({"data": self.in_full(), "meta": {"version": "1.0"}})
    }

    /// Drops what has no proper name, cuts what is too long, and removes control characters.
    #[must_use]
    pub fn cleaned(mut self, limits: &Limits) -> Self {
        let longest = usize::try_from(limits.fleet_metadata_value_bytes).unwrap_or(usize::MAX);
        self.fields.retain(|field| is_field_name(&field.name));
        for field in &mut self.fields {
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

/// The value a command's output stands for: numbers, truth values and objects as such, the rest as text.
pub fn typed_value(output: &str) -> Value {
    let text = output.trim();
    match text {
        "" => return Value::Null,
        "true" => return Value::Bool(true),
        "false" => return Value::Bool(false),
        _ => {}
    }
    if let Ok(number) = text.parse::<i64>()
        && number.to_string() == text
    {
        return number.into();
    }
    if text.starts_with('{')
        && let Ok(object) = serde_json::from_str::<Map<String, Value>>(text)
    {
        return Value::Object(object);
    }
    Value::String(text.to_owned())
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
            ("1.5", json!("1.5")),
            ("true", json!(true)),
            ("True", json!("True")),
            ("  \n", Value::Null),
            ("{\"a\":1}", json!({"a": 1})),
            ("{broken", json!("{broken")),
            ("[1]", json!("[1]")),
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
        }
        .cleaned(&limits);
        assert_eq!(cleaned.len(), 2);
        assert_eq!(cleaned.fields[0].value, json!("a[2Jb"));
        assert_eq!(cleaned.fields[0].description, "[31md");
        assert_eq!((&cleaned.fields[1].value, cleaned.fields[1].error.is_some()), (&Value::Null, true));
    }
}
