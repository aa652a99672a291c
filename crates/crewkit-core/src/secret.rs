//! A secret that cannot be printed by accident.

use std::fmt;

/// Holds a token or key; `Debug` and `Display` never show it.
///
/// The only way to the value is [`Secret::expose`], which makes every use easy to find.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a value.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// The value itself, for the one place that has to send it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What stands in for a secret wherever one would be printed.
pub const MASK: &str = "********";

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(********)")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_debug_nor_display_shows_the_value() {
        let secret = Secret::new("canary-71");
        assert!(!format!("{secret:?} {secret} {:#?}", Some(&secret)).contains("canary"));
        assert_eq!(secret.expose(), "canary-71");
    }
}
