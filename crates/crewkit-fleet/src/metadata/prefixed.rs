//! Reads what one `task -p a b c --silent --output prefixed` printed, and tells whose line is whose.
//!
//! `task` merges the error output of a command into the prefixed lines, so for a field that succeeded all lines are
//! its value, and for one that failed all lines are its error.

use std::collections::HashMap;

use super::typed_value;
use serde_json::Value;

/// What one field came to.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// It has this value.
    Value(Value),
    /// It has none, for this reason.
    Error(String),
    /// Nothing was printed although something failed: it may not have run at all.
    Unclear,
}

/// Sorts the output of one process by field.
pub fn outcomes(names: &[&str], stdout: &str, stderr: &str, succeeded: bool) -> Vec<Outcome> {
    let mut lines: HashMap<&str, String> = HashMap::new();
    for line in stdout.lines() {
        let owner = line
            .strip_prefix('[')
            .and_then(|rest| rest.split_once("] "))
            .filter(|(name, _)| names.contains(name));
        if let Some((name, text)) = owner {
            let text = text.trim_end_matches('\r');
            let all = lines.entry(name).or_default();
            all.push_str(text);
            all.push('\n');
        }
    }
    let failure_of = |name: &str| {
        let marker = format!("Failed to run task \"{name}\"");
        stderr
            .lines()
            .find_map(|line| line.split_once(&marker))
            .map(|(_, cause)| cause.trim_start_matches(": "))
    };
    let outcome_of = |name: &&str| {
        let printed = lines.get(name).map(|text| text.trim()).unwrap_or_default();
        match failure_of(name) {
            Some(cause) if printed.is_empty() => Outcome::Error(cause.to_owned()),
            Some(cause) => Outcome::Error(format!("{printed}\n{cause}")),
            None if printed.is_empty() && !succeeded => Outcome::Unclear,
            None => Outcome::Value(typed_value(printed)),
        }
    };
    names.iter().map(outcome_of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lines_go_to_the_field_whose_prefix_they_carry() {
        let stdout = "[b] 1\n[a] one\n[weird:name] [a] fake\n[a] two\n[other] x\nstray\n[fails] half\n";
        let stderr = "task: Failed to run task \"fails\": exit status 3\n";
        let names = ["a", "b", "weird:name", "fails", "empty"];
        assert_eq!(
            outcomes(&names, stdout, stderr, false),
            [
                Outcome::Value(json!("one\ntwo")),
                Outcome::Value(json!(1)),
                Outcome::Value(json!("[a] fake")),
                Outcome::Error("half\nexit status 3".to_owned()),
                Outcome::Unclear,
            ]
        );
        assert_eq!(outcomes(&["empty"], "", "", true), [Outcome::Value(Value::Null)]);
    }
}
