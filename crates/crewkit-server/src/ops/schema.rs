//! The JSON Schemas of a row: literal where a contract fixes them, derived from the Rust types everywhere else.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use super::JsonObject;

/// Where a schema comes from.
#[derive(Clone, Copy)]
pub enum Schema {
    /// The text of a contract, so that its key order survives.
    Literal(&'static str),
    /// The Rust type that arguments are read into, or answers are written from.
    Derived(fn() -> JsonObject),
}

impl Schema {
    /// The schema of arguments that are read into `T`. Unknown arguments are refused.
    pub fn of_input<T: JsonSchema>() -> Self {
        Self::Derived(|| {
            let mut derived = derive::<T>(SchemaSettings::draft2020_12(), Nulls::Dropped);
            let mut schema = JsonObject::from_iter([
                ("type".to_owned(), json!("object")),
                ("additionalProperties".to_owned(), json!(false)),
            ]);
            for key in ["required", "properties"] {
                schema.extend(derived.shift_remove_entry(key));
            }
            schema.entry("properties").or_insert_with(|| json!({}));
            schema
        })
    }

    /// The schema of answers that are written from `T`.
    pub fn of_output<T: JsonSchema>() -> Self {
        Self::Derived(derive_output::<T>)
    }

    /// The schema as a value.
    pub fn to_object(self) -> Result<JsonObject, String> {
        match self {
            Self::Derived(derive) => Ok(derive()),
            Self::Literal(text) => serde_json::from_str(text).map_err(|error| error.to_string()),
        }
    }
}

pub(super) fn derive_output<T: JsonSchema>() -> JsonObject {
    derive::<T>(SchemaSettings::draft2020_12().for_serialize(), Nulls::Kept)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Nulls {
    Kept,
    /// An optional argument is left out; that `null` is accepted for it too is not advertised.
    Dropped,
}

fn derive<T: JsonSchema>(settings: SchemaSettings, nulls: Nulls) -> JsonObject {
    let settings = settings.with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    simplify(&mut schema, nulls);
    match schema {
        Value::Object(mut schema) => {
            schema.shift_remove("description");
            schema
        }
        _ => JsonObject::new(),
    }
}

/// Removes what clients do not need: every client pays for it in every conversation.
fn simplify(schema: &mut Value, nulls: Nulls) {
    let Value::Object(fields) = schema else { return };
    fields.retain(|key, value| {
        let is_noise = matches!(key.as_str(), "title" | "format") || (key == "default" && value.is_null());
        !is_noise
    });
    if let Some(Value::String(description)) = fields.get_mut("description") {
        *description = description.replace('\n', " ");
    }
    for key in ["properties", "items", "anyOf", "oneOf"] {
        match fields.get_mut(key) {
            Some(Value::Object(properties)) if key == "properties" => {
                properties.values_mut().for_each(|property| simplify(property, nulls));
            }
            Some(Value::Array(forms)) => forms.iter_mut().for_each(|form| simplify(form, nulls)),
            Some(items) => simplify(items, nulls),
            None => {}
        }
    }
    name_variants(fields);
    match nulls {
        Nulls::Kept => split_null(fields),
        Nulls::Dropped => drop_null(fields),
    }
}

/// Writes "a value or `null`" as two forms: some clients read a single `type` only.
fn split_null(fields: &mut JsonObject) {
    if !matches!(fields.get("type"), Some(Value::Array(types)) if types.iter().any(|name| name == "null")) {
        return;
    }
    let mut form = std::mem::take(fields);
    fields.extend(form.shift_remove_entry("description"));
    drop_null(&mut form);
    fields.insert("anyOf".to_owned(), json!([form, {"type": "null"}]));
}

/// Writes the variants of an enum as a list of names, without the description of each.
fn name_variants(fields: &mut JsonObject) {
    let Some(Value::Array(variants)) = fields.get("oneOf") else { return };
    let names: Option<Vec<Value>> = variants.iter().map(|variant| variant.get("const").cloned()).collect();
    if let Some(names) = names {
        fields.shift_remove("oneOf");
        fields.insert("type".to_owned(), "string".into());
        fields.insert("enum".to_owned(), names.into());
    }
}

fn drop_null(fields: &mut JsonObject) {
    if let Some(Value::Array(types)) = fields.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = types.as_mut_slice() {
            let only = only.take();
            fields.insert("type".to_owned(), only);
        }
    }
    if let Some(Value::Array(names)) = fields.get_mut("enum") {
        names.retain(|name| !name.is_null());
    }
    if let Some(Value::Array(forms)) = fields.get_mut("anyOf") {
        forms.retain(|form| *form != json!({"type": "null"}));
        if let [Value::Object(only)] = forms.as_mut_slice() {
            let only = std::mem::take(only);
            fields.shift_remove("anyOf");
            // What the field says about itself counts more than what its type says.
            for (key, value) in only {
                fields.entry(key).or_insert(value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize, JsonSchema)]
    #[expect(dead_code, reason = "only its schema is looked at")]
    struct Arguments {
        /// A name,
        /// in two lines.
        name: String,
        #[schemars(range(min = 1), extend("default" = 3))]
        count: Option<i64>,
        kind: Option<Kind>,
        /// Which one.
        described: Option<Described>,
        #[serde(flatten)]
        more: More,
    }

    #[derive(Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    enum Kind {
        One,
        Two,
    }

    /// One of two.
    #[derive(Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    enum Described {
        /// The first.
        One,
        /// The second.
        Two,
    }

    #[derive(Deserialize, JsonSchema)]
    #[expect(dead_code, reason = "only its schema is looked at")]
    struct More {
        tags: Option<Vec<String>>,
    }

    #[test]
    fn a_derived_schema_says_what_a_caller_needs_and_no_more() {
        let schema = Schema::of_input::<Arguments>().to_object().unwrap();
        let expected = json!({"type": "object", "additionalProperties": false, "required": ["name"], "properties": {
            "name": {"description": "A name, in two lines.", "type": "string"},
            "count": {"type": "integer", "minimum": 1, "default": 3},
            "kind": {"type": "string", "enum": ["one", "two"]},
            "described": {"description": "Which one.", "type": "string", "enum": ["one", "two"]},
            "tags": {"type": "array", "items": {"type": "string"}},
        }});
        assert_eq!(Value::Object(schema), expected);
    }

    #[derive(serde::Serialize, JsonSchema)]
    struct Answer {
        /// What comes next.
        next: Option<String>,
        tags: Option<Vec<String>>,
    }

    #[test]
    fn a_field_that_may_be_null_has_one_form_for_each_type() {
        let schema = Schema::of_output::<Answer>().to_object().unwrap();
        let tags = json!({"type": "array", "items": {"type": "string"}});
        let expected = json!({
            "next": {"description": "What comes next.", "anyOf": [{"type": "string"}, {"type": "null"}]},
            "tags": {"anyOf": [tags, {"type": "null"}]},
        });
        assert_eq!(schema["properties"], expected);
    }
}
