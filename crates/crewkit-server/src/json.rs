//! Reads JSON more strictly than the parser's default: bounded depth, and no key twice in one object.
//!
//! A message with a key twice means different things to different readers; refusing it removes the question.

use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Parses `bytes` into a value nested at most `max_depth` deep.
pub fn parse(bytes: &[u8], max_depth: u64) -> Result<Value, serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = Strict { left: max_depth }.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

#[derive(Clone, Copy)]
struct Strict {
    left: u64,
}

impl Strict {
    fn deeper<E: de::Error>(self) -> Result<Self, E> {
        self.left.checked_sub(1).map(|left| Self { left }).ok_or_else(|| E::custom("nested too deeply"))
    }
}

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let inner = self.deeper()?;
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(inner)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let inner = self.deeper()?;
        let mut object = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let value = entries.next_value_seed(inner)?;
            if object.contains_key(&key) {
                return Err(de::Error::custom(format!("key `{key}` appears twice in one object")));
            }
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_ordinary_parser_reads() {
        for text in ["null", "[1,-2,3.5,\"x\",true,{}]", r#"{"b":1,"a":{"c":[]}}"#, "18446744073709551615"] {
            let ordinary: Value = serde_json::from_str(text).unwrap();
            assert_eq!(parse(text.as_bytes(), 8).unwrap(), ordinary, "{text}");
        }
    }

    #[test]
    fn refuses_what_readers_could_understand_differently() {
        for (bytes, why) in [
            (r#"{"a":1,"a":2}"#.as_bytes(), "appears twice"),
            (b"[[[[1]]]]", "nested too deeply"),
            (b"1 2", "trailing"),
            (b"{\"a\":\xff}", ""),
            (br#""\ud800""#, ""),
            (b"1e999", "out of range"),
            (b"", "EOF"),
        ] {
            let error = parse(bytes, 3).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
