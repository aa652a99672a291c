//! Checks arguments against an operation's input schema.
//!
//! Knows the part of JSON Schema that the table uses and nothing else: `type`, `enum`, `const`, `anyOf`,
//! `required`, `properties`, `additionalProperties`, `items`, `minimum`, `maximum`, `minLength`, `maxLength`, `minItems` and
//! `maxItems`. A full validator would double the binary; the tests hold this one against such a validator.

use std::fmt;

use crewkit_core::suggest::nearest;
use serde_json::Value;

use super::JsonObject;

/// An argument that does not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrongArgument {
    /// Where: `only[2]`, `repo`.
    pub argument: String,
    /// What is wrong with it.
    pub problem: Wrong,
}

/// What is wrong with an argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wrong {
    /// There is no such argument; the text says which there are.
    Unknown(String),
    /// Its value; the text says what is allowed.
    Value(String),
}

/// Whole numbers below this are the same as a float and as an integer.
const LARGEST_EXACT: f64 = 9_007_199_254_740_992.0;

impl fmt::Display for WrongArgument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.problem {
            Wrong::Unknown(hint) => write!(f, "Unknown argument `{}`. {hint}", self.argument),
            Wrong::Value(problem) => write!(f, "Argument `{}` {problem}", self.argument),
        }
    }
}

/// Drops `null` where an optional argument is meant to be left out, and writes whole numbers as integers (`1.0` is `1`).
pub fn normalize(schema: &JsonObject, arguments: &mut JsonObject) {
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return };
    let is_required = |name: &str| {
        let required = schema.get("required").and_then(Value::as_array);
        required.is_some_and(|required| required.iter().any(|required| required == name))
    };
    arguments.retain(|name, value| {
        let Some(property) = properties.get(name) else { return true };
        if let (Some("integer"), Some(number)) =
            (property.get("type").and_then(Value::as_str), value.as_f64())
            && value.is_f64()
            && number.fract() == 0.0
            && number.abs() < LARGEST_EXACT
        {
            #[expect(clippy::cast_possible_truncation, reason = "whole and within the range just checked")]
            let whole = number as i64;
            *value = whole.into();
        }
        !value.is_null() || is_required(name) || check_value(property, value, name).is_ok()
    });
}

/// Checks `arguments` against `schema`.
pub fn check(schema: &JsonObject, arguments: &JsonObject) -> Result<(), WrongArgument> {
    check_object(schema, arguments, "")
}

fn check_object(schema: &JsonObject, object: &JsonObject, at: &str) -> Result<(), WrongArgument> {
    let properties = schema.get("properties").and_then(Value::as_object);
    if let Some(required) = schema.get("required").and_then(Value::as_array) {
        for name in required.iter().filter_map(Value::as_str) {
            if !object.contains_key(name) {
                return Err(wrong(join(at, name), "is required".to_owned()));
            }
        }
    }
    for (name, value) in object {
        match properties.and_then(|properties| properties.get(name)) {
            Some(property) => check_value(property, value, &join(at, name))?,
            None => match schema.get("additionalProperties") {
                Some(Value::Bool(false)) => {
                    let known = properties.into_iter().flat_map(JsonObject::keys).map(String::as_str);
                    let known: Vec<&str> = known.collect();
                    let hint = match nearest(name, known.iter().copied()) {
                        Some(near) => format!("Did you mean `{near}`?"),
                        None if known.is_empty() => "There are none".to_owned(),
                        None => format!("Use {}", known.join(", ")),
                    };
                    return Err(WrongArgument { argument: join(at, name), problem: Wrong::Unknown(hint) });
                }
                Some(rest @ Value::Object(_)) => check_value(rest, value, &join(at, name))?,
                _ => {}
            },
        }
    }
    Ok(())
}

fn check_value(schema: &Value, value: &Value, at: &str) -> Result<(), WrongArgument> {
    let Some(schema) = schema.as_object() else { return Ok(()) };
    if let Some(expected) = schema.get("type")
        && !type_matches(expected, value)
    {
        return Err(wrong(at.to_owned(), format!("must be {}, not {}", type_names(expected), kind(value))));
    }
    if let Some(forms) = schema.get("anyOf").and_then(Value::as_array)
        && !forms.iter().any(|form| check_value(form, value, at).is_ok())
    {
        let forms: Vec<_> = forms.iter().filter_map(|form| form.get("type")).map(type_names).collect();
        return Err(wrong(at.to_owned(), format!("must be {}, not {}", forms.join(" or "), kind(value))));
    }
    if let Some(only) = schema.get("const")
        && !equal(only, value)
    {
        return Err(wrong(at.to_owned(), format!("must be {only}")));
    }
    if let Some(allowed) = schema.get("enum").and_then(Value::as_array)
        && !allowed.iter().any(|candidate| equal(candidate, value))
    {
        let allowed: Vec<_> = allowed.iter().map(ToString::to_string).collect();
        return Err(wrong(at.to_owned(), format!("must be one of {}", allowed.join(", "))));
    }
    check_bounds(schema, value, at)?;
    match value {
        Value::Object(object) => check_object(schema, object, at),
        Value::Array(items) => match schema.get("items") {
            Some(item_schema) => items
                .iter()
                .enumerate()
                .try_for_each(|(index, item)| check_value(item_schema, item, &format!("{at}[{index}]"))),
            None => Ok(()),
        },
        _ => Ok(()),
    }
}

fn check_bounds(schema: &JsonObject, value: &Value, at: &str) -> Result<(), WrongArgument> {
    let (least, most, unit) = match value {
        Value::Number(_) => ("minimum", "maximum", ""),
        Value::String(_) => ("minLength", "maxLength", " characters long"),
        Value::Array(_) => ("minItems", "maxItems", " items long"),
        _ => return Ok(()),
    };
    let bound = |name: &str| schema.get(name).and_then(Value::as_f64);
    let (least, most) = (bound(least), bound(most));
    // Looked at last: counting the characters of a long text takes its time.
    let Some(size) = (least.is_some() || most.is_some()).then(|| size(value)).flatten() else {
        return Ok(());
    };
    if let Some(least) = least.filter(|least| size < *least) {
        return Err(wrong(at.to_owned(), format!("must be at least {least}{unit}")));
    }
    if let Some(most) = most.filter(|most| size > *most) {
        return Err(wrong(at.to_owned(), format!("must be at most {most}{unit}")));
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "no text or list here has 2^52 elements")]
fn size(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => Some(text.chars().count() as f64),
        Value::Array(items) => Some(items.len() as f64),
        _ => None,
    }
}

/// Equality as JSON Schema has it: `1` and `1.0` are the same number.
fn equal(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => left == right || left.as_f64() == right.as_f64(),
        _ => left == right,
    }
}

fn type_matches(expected: &Value, value: &Value) -> bool {
    match expected {
        Value::String(name) => is_type(name, value),
        Value::Array(names) => names.iter().filter_map(Value::as_str).any(|name| is_type(name, value)),
        _ => true,
    }
}

fn is_type(name: &str, value: &Value) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "number" => value.is_number(),
        // A number without a fraction is an integer, however it is written.
        "integer" => {
            value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0)
        }
        _ => false,
    }
}

fn type_names(expected: &Value) -> String {
    match expected {
        Value::Array(names) => {
            names.iter().filter_map(Value::as_str).map(article).collect::<Vec<_>>().join(" or ")
        }
        name => name.as_str().map(article).unwrap_or_default(),
    }
}

fn article(name: &str) -> String {
    match name {
        "array" | "integer" | "object" => format!("an {name}"),
        "null" => "null".to_owned(),
        _ => format!("a {name}"),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

fn join(at: &str, name: &str) -> String {
    if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") }
}

fn wrong(argument: String, problem: String) -> WrongArgument {
    WrongArgument { argument, problem: Wrong::Value(problem) }
}
