//! Values that files write as text, read without a copy of the text.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserializer;
use serde::de::{self, Visitor};

/// Reads a text and parses it.
pub(crate) fn parsed<'de, D, T, E>(
    deserializer: D,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    E: fmt::Display,
{
    deserializer.deserialize_str(Text { parse, made: PhantomData })
}

struct Text<P, T> {
    parse: P,
    made: PhantomData<T>,
}

impl<P, T, E> Visitor<'_> for Text<P, T>
where
    P: FnOnce(&str) -> Result<T, E>,
    E: fmt::Display,
{
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_str<F: de::Error>(self, text: &str) -> Result<T, F> {
        (self.parse)(text).map_err(F::custom)
    }
}
