//! The changes of an agent as people read them.

use serde_json::Value;

use crate::style::Style;
use crate::text::{Tone, field};

/// The answer of `agent_diff`.
pub(super) fn page(answer: &Value, style: Style) -> String {
    let base = [&answer["base"]["branch"], &answer["base"]["commit"]];
    let base: Vec<&str> = base.into_iter().filter_map(Value::as_str).collect();
    let mut text = format!("{}\n", field(answer, "message"));
    if !base.is_empty() {
        text.push_str(&format!("base {}\n", base.join(" ")));
    }
    for file in answer["files"].as_array().into_iter().flatten() {
        text.push_str(&heading(file, style));
        for line in file["lines"].as_array().into_iter().flatten() {
            text.push_str(&changed_line(line, style));
        }
        if file["more"] == true {
            text.push_str("  …\n");
        }
    }
    for complaint in answer["unreadable"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        text.push_str(&format!("not read: {complaint}\n"));
    }
    if let Some(next) = answer["next"].as_str() {
        let agent = field(answer, "agent_name");
        text.push_str(&format!("More: crewkit fleet diff {agent} --after {next}\n"));
    }
    text
}

fn heading(file: &Value, style: Style) -> String {
    let name = match file["old_path"].as_str() {
        Some(old) => format!("{old} → {}", field(file, "path")),
        None => field(file, "path").to_owned(),
    };
    let size = match file["size"].as_u64() {
        Some(size) if file["binary"] == true => format!(" binary or large, {size} bytes"),
        _ if file["binary"] == true => " binary or large".to_owned(),
        _ => format!(" +{} -{}", file["additions"], file["deletions"]),
    };
    let mode = file["mode"].as_str().map(|mode| format!(" mode {mode}")).unwrap_or_default();
    // A name may have line breaks in it.
    let name = style.bold(&name.replace(['\n', '\t'], "?"));
    format!("\n{} {name}{size}{mode}\n", field(file, "status").replace('_', " "))
}

fn changed_line(line: &Value, style: Style) -> String {
    let (mark, tone) = match field(line, "kind") {
        "added" => ('+', Tone::Good),
        "removed" => ('-', Tone::Bad),
        _ => (' ', Tone::Plain),
    };
    let number = line["new"].as_u64().or(line["old"].as_u64()).unwrap_or_default();
    let cut = if line["cut"] == true { "…" } else { "" };
    let text = format!("{mark}{}{cut}", field(line, "text"));
    format!("{} {number:>5} {}\n", field(line, "id"), tone.paint(style, &text))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_diff_names_files_lines_and_the_way_to_the_rest() {
        let answer = json!({"agent_name": "papi", "message": "m", "base": {"branch": "main", "commit": "abc"},
            "next": "i.0.1", "files": [
            {"path": "new\nname", "old_path": "old", "status": "renamed", "binary": false, "additions": 1, "deletions": 0,
             "more": true, "lines": [{"id": "f00d", "kind": "added", "new": 3, "text": "x", "cut": true}]},
            {"path": "b", "status": "added", "binary": true, "size": 7, "additions": 0, "deletions": 0, "more": false},
        ]});
        let expected = "m\nbase main abc\n\nrenamed old → new?name +1 -0\nf00d     3 +x…\n  …\n\n\
                        added b binary or large, 7 bytes\nMore: crewkit fleet diff papi --after i.0.1\n";
        assert_eq!(page(&answer, Style::Plain), expected);
    }
}
