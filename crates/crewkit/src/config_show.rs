//! `crewkit config show`: the settings in force, with their origin.

use std::fmt::Write as _;

use crewkit_core::secret::{MASK, masked_url};
use serde_json::json;

use crate::config::{Config, Effective};
use crate::settings::Kind;

/// The settings as TOML with comments, or as JSON; secrets are masked in both.
pub fn render(config: &Config, json: bool) -> String {
    if json {
        let settings: Vec<_> = config
            .values
            .iter()
            .map(|(key, effective)| {
                json!({"key": key, "value": shown(effective), "origin": effective.origin.to_string(), "doc": effective.doc})
            })
            .collect();
        let document = json!({"home": config.home.display().to_string(), "settings": settings});
        return format!("{document:#}\n");
    }
    let mut page = format!("# home: {}\n", config.home.display());
    let width =
        config.values.iter().map(|(key, effective)| key.len() + shown(effective).to_string().len()).max();
    for (key, effective) in &config.values {
        let line = format!("{key} = {}", shown(effective));
        let width = width.unwrap_or(0).min(60) + 3;
        let _ = writeln!(page, "{line:<width$}  # {}", effective.origin);
    }
    page
}

/// A value without its secrets. Addresses can hold some too: providers take keys as user info or in the query.
fn shown(effective: &Effective) -> serde_json::Value {
    match (effective.kind, &effective.value) {
        (Kind::Secret, value) if value.as_str() != Some("") => json!(MASK),
        (_, toml::Value::String(text)) => masked_url(text).into(),
        (_, toml::Value::Array(items)) => {
            items.iter().filter_map(toml::Value::as_str).map(masked_url).collect()
        }
        (_, value) => serde_json::to_value(value).unwrap_or_default(),
    }
}
