//! YAML with bounds: size, depth and aliases are limited, so that a hostile file costs an error and not the machine.

use crewkit_core::Limits;
use serde::de::DeserializeOwned;
use serde_saphyr::UserMessageFormatter;

/// Parses one YAML document.
pub(crate) fn parse<T: DeserializeOwned>(text: &str, limits: &Limits) -> Result<T, String> {
    if text.len() as u64 > limits.pack_yaml_bytes {
        return Err(format!(
            "{} bytes are more than pack_yaml_bytes ({}) allows",
            text.len(),
            limits.pack_yaml_bytes
        ));
    }
    // The parser's own words are for programmers; these are for whoever wrote the file.
    let reason = |error: serde_saphyr::Error| error.render_with_formatter(&UserMessageFormatter);
    serde_saphyr::from_str_with_options(text, options(text.len())).map_err(reason)
}

fn options(length: usize) -> serde_saphyr::Options {
    // Nodes cost at least a byte each, so the length bounds honest documents and what is above it comes from aliases.
    let nodes = length.saturating_mul(2).max(1024);
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: 32,
            max_aliases: 1024,
            max_anchors: 1024,
            max_nodes: nodes,
            max_events: nodes.saturating_mul(4),
        },
        // `name: yes` is a name; YAML 1.2 knows only true and false.
        strict_booleans: true,
        emit_comments: false,
        with_snippet: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn parsed(text: &str) -> Result<Value, String> {
        parse(text, &Limits::default())
    }

    #[test]
    fn scalars_follow_yaml_1_2() {
        assert_eq!(
            parsed("a: yes\nb: true\nc: 1\nd: [x, 'y']").unwrap(),
            json!({"a": "yes", "b": true, "c": 1, "d": ["x", "y"]})
        );
    }

    #[test]
    fn mistakes_are_told_without_words_of_the_program() {
        let error =
            parse::<std::collections::BTreeMap<String, String>>(": x", &Limits::default()).unwrap_err();
        assert_eq!(error, "null is not allowed here at line 1, column 1");
    }

    #[test]
    fn bombs_are_refused() {
        let mut aliases = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n".to_owned();
        for level in 1..9 {
            let refs = vec![format!("*a{}", level - 1); 9].join(",");
            aliases.push_str(&format!("a{level}: &a{level} [{refs}]\n"));
        }
        assert!(parsed(&aliases).is_err());
        assert!(parsed(&"[".repeat(5000)).is_err());
        assert!(parsed(&format!("a: {}", "x".repeat(20 << 20))).unwrap_err().contains("pack_yaml_bytes"));
    }

    #[test]
    fn a_mistake_is_located() {
        let error = parsed("a: 1\nb: [1,\nc: }").unwrap_err();
        assert!(error.contains("line"), "{error}");
    }
}
