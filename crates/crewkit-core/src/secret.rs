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

/// An address that may be shown: user info and the values of its query are replaced by [`MASK`].
///
/// Providers take keys in either place, and a query parameter does not tell by its name whether it is one. What is no
/// address comes back as it is.
pub fn masked_url(address: &str) -> String {
    let (scheme, rest) = match address.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), address),
    };
    let (rest, fragment) = rest.split_once('#').map_or((rest, ""), |(rest, _)| (rest, "#********"));
    let (place, query) = rest.split_once('?').map_or((rest, None), |(place, query)| (place, Some(query)));
    let (authority, path) = place.split_at(place.find('/').unwrap_or(place.len()));
    let host = match authority.rsplit_once('@') {
        Some((_, host)) => format!("{MASK}@{host}"),
        None => authority.to_owned(),
    };
    let masked = |pair: &str| match pair.split_once('=') {
        Some((name, _)) => format!("{name}={MASK}"),
        None if pair.is_empty() => String::new(),
        None => MASK.to_owned(),
    };
    let query = query.map(|query| query.split('&').map(masked).collect::<Vec<_>>().join("&"));
    let query = query.map_or_else(String::new, |query| format!("?{query}"));
    format!("{scheme}{host}{path}{query}{fragment}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_shown_without_their_secrets() {
        for (address, shown) in [
            ("https://api.example/v1/chat", "https://api.example/v1/chat"),
            ("http://user:canary@host:8080/v1", "http://********@host:8080/v1"),
            ("http://canary@host", "http://********@host"),
            ("http://a@canary:p@host/x@y", "http://********@host/x@y"),
            ("https://host/v1?key=canary&v=2", "https://host/v1?key=********&v=********"),
            ("https://host?canary", "https://host?********"),
            ("https://host/#canary", "https://host/#********"),
            ("user:canary@host:80/v1", "********@host:80/v1"),
            ("127.0.0.1:8101", "127.0.0.1:8101"),
            ("claude", "claude"),
            ("", ""),
        ] {
            assert_eq!(masked_url(address), shown, "{address}");
        }
    }

    #[test]
    fn neither_debug_nor_display_shows_the_value() {
        let secret = Secret::new("canary-71");
        assert!(!format!("{secret:?} {secret} {:#?}", Some(&secret)).contains("canary"));
        assert_eq!(secret.expose(), "canary-71");
    }
}
