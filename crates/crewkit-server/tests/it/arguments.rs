//! The argument validator, held against a full JSON Schema validator.

use crewkit_server::ops::arguments::check;
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
        let schemas = schemas();
        let schema = pick.get(&schemas);
        let names = names(schema);
        let mut arguments: JsonObject = chosen.into_iter().map(|(name, value)| (name.get(&names).clone(), value)).collect();
        let oracle = jsonschema::validator_for(&Value::Object(schema.clone())).unwrap();
        let expected = oracle.is_valid(&Value::Object(arguments.clone()));
        let given = arguments.clone();
        let verdict = check(schema, &mut arguments);
        prop_assert_eq!(verdict.is_ok(), expected, "{:?} {:?}", given, verdict);
        if verdict.is_ok() {
            // What was given stays; defaults only fill gaps and fit the schema themselves.
            for (name, value) in &given {
                prop_assert_eq!(arguments.get(name), Some(value));
            }
            prop_assert!(oracle.is_valid(&Value::Object(arguments)));
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
        (json!({}), "argument `to` is required"),
        (json!({"to": 5}), "argument `to` must be a string, not a number"),
        (json!({"to": "x"}), "argument `to` must be at least 2 characters long"),
        (
            json!({"to": "xx", "only": ["missing", "odd"]}),
            "argument `only[1]` must be one of \"missing\", \"extra\"",
        ),
        (json!({"to": "xx", "page": 0}), "argument `page` must be at least 1"),
        (json!({"to": "xx", "page": 1.5}), "argument `page` must be an integer, not a number"),
        (json!({"to": "xx", "page": 101}), "argument `page` must be at most 100"),
        (json!({"to": "xx", "yes": false}), "argument `yes` must be true"),
        (json!({"to": "xx", "form": 1}), "argument `form` is unknown; known are to, only, page, yes"),
    ] {
        let mut given = arguments.as_object().unwrap().clone();
        assert_eq!(check(schema, &mut given).unwrap_err().to_string(), expected);
    }
}
