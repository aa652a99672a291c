//! `crewkit config show`: the settings in force, with their origin.

use std::fmt::Write as _;

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

fn shown(effective: &Effective) -> serde_json::Value {
    match effective.kind {
        Kind::Secret if effective.value.as_str() != Some("") => json!(crewkit_core::secret::MASK),
        _ => serde_json::to_value(&effective.value).unwrap_or_default(),
    }
}
