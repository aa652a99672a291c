//! The argument validator, held against a full JSON Schema validator.

use std::sync::LazyLock;

use crewkit_server::ops::arguments::{check, normalize};
use crewkit_server::ops::{Catalog, JsonObject};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::operations;

/// Values that are near the borders of what schemas allow.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3_i64..120).prop_map(Value::from),
        prop_oneof![Just(0.5), Just(1.0), Just(9.0), Just(1e15)].prop_map(Value::from),
        prop_oneof!["", "a", "calm", "loud", "all", "codex", "missing", "extra", "ü{64}", "[a-z]{0,70}"]
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::hash_map("[a-c]", inner, 0..3)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// The names a schema knows, and one it does not.
fn names(schema: &JsonObject) -> Vec<String> {
    let known = schema.get("properties").and_then(Value::as_object);
    known.into_iter().flat_map(JsonObject::keys).cloned().chain(["stranger".to_owned()]).collect()
}

/// Made once: deriving them for every case would take most of the time.
static SCHEMAS: LazyLock<Vec<JsonObject>> = LazyLock::new(schemas);

fn schemas() -> Vec<JsonObject> {
    let nested = json!({"type": "object", "required": ["a"], "additionalProperties": {"type": "integer"}, "properties": {
        "a": {"type": ["string", "null"], "minLength": 1},
        "b": {"type": "object", "additionalProperties": false, "properties": {"c": {"type": "number", "maximum": 5}}},
        "d": {"type": "array", "minItems": 1, "items": {"enum": [1, "x", null]}},
        "e": {"const": 1},
        "f": {"anyOf": [{"type": "integer", "minimum": 3}, {"type": "null"}]},
    }});
    let product = Catalog::product().unwrap();
    let tests = operations::catalog();
    let entries = product.entries().chain(tests.entries());
    entries.map(|entry| (*entry.input).clone()).chain([nested.as_object().unwrap().clone()]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn agrees_with_a_full_validator(
        pick in any::<prop::sample::Index>(),
        chosen in prop::collection::vec((any::<prop::sample::Index>(), value()), 0..5),
    ) {
        let schema = pick.get(&SCHEMAS);
        let names = names(schema);
        let mut arguments: JsonObject = chosen.into_iter().map(|(name, value)| (name.get(&names).clone(), value)).collect();
        let oracle = jsonschema::validator_for(&Value::Object(schema.clone())).unwrap();
        let expected = oracle.is_valid(&Value::Object(arguments.clone()));
        let verdict = check(schema, &arguments);
        prop_assert_eq!(verdict.is_ok(), expected, "{:?} {:?}", arguments, verdict);
        // What fits still fits when it is normalized, and nothing but nulls is taken away.
        let given = arguments.clone();
        normalize(schema, &mut arguments);
        if expected {
            prop_assert!(oracle.is_valid(&Value::Object(arguments.clone())), "{:?}", arguments);
        }
        for (name, value) in given.iter().filter(|(_, value)| !value.is_null()) {
            prop_assert_eq!(arguments.get(name).and_then(Value::as_f64), value.as_f64());
        }
    }
}

#[test]
fn messages_say_where_and_what_is_allowed() {
    let schema = json!({"type": "object", "additionalProperties": false, "required": ["to"], "properties": {
        "to": {"type": "string", "minLength": 2},
        "only": {"type": "array", "items": {"type": "string", "enum": ["missing", "extra"]}},
        "page": {"type": "integer", "minimum": 1, "maximum": 100},
        "yes": {"const": true},
    }});
    let schema = schema.as_object().unwrap();
    for (arguments, expected) in [
        (json!({}), "Argument `to` is required"),
        (json!({"to": 5}), "Argument `to` must be a string, not a number"),
        (json!({"to": "x"}), "Argument `to` must be at least 2 characters long"),
        (
            json!({"to": "xx", "only": ["missing", "odd"]}),
            "Argument `only[1]` must be one of \"missing\", \"extra\"",
        ),
        (json!({"to": "xx", "page": 0}), "Argument `page` must be at least 1"),
        (json!({"to": "xx", "page": 1.5}), "Argument `page` must be an integer, not a number"),
        (json!({"to": "xx", "page": 101}), "Argument `page` must be at most 100"),
        (json!({"to": "xx", "yes": false}), "Argument `yes` must be true"),
        (json!({"to": "xx", "form": 1}), "Unknown argument `form`. Use to, only, page, yes"),
        (json!({"to": "xx", "pag": 1}), "Unknown argument `pag`. Did you mean `page`?"),
    ] {
        assert_eq!(check(schema, arguments.as_object().unwrap()).unwrap_err().to_string(), expected);
    }
}

#[test]
fn a_whole_number_is_an_integer_and_null_leaves_an_optional_argument_out() {
    let schema = json!({"type": "object", "required": ["to"], "properties": {
        "to": {"type": "string"}, "page": {"type": "integer"}, "share": {"type": "number"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    }});
    for (given, expected) in [
        (json!({"to": "x", "page": 1.0, "share": 1.0}), json!({"to": "x", "page": 1, "share": 1.0})),
        (json!({"to": "x", "page": 1.5}), json!({"to": "x", "page": 1.5})),
        (json!({"to": "x", "page": 1e300}), json!({"to": "x", "page": 1e300})),
        (json!({"to": null, "page": null, "note": null}), json!({"to": null, "note": null})),
    ] {
        let mut arguments = given.as_object().unwrap().clone();
        normalize(schema.as_object().unwrap(), &mut arguments);
        assert_eq!(Value::Object(arguments), expected, "{given}");
    }
}
