//! Runs as people read them.

use crewkit_core::run::RunId;
use serde_json::Value;

use crate::style::Style;
use crate::text::{Cell, Tone, age, count, duration, field, shorten, table};

/// Fewest characters by which an id is shown and may be given.
const ID_CHARACTERS: usize = 4;
/// Characters of a contract in a list.
const CONTRACT_CHARACTERS: usize = 50;

/// The last characters of an id.
pub(super) fn short(id: &str) -> &str {
    tail(id, ID_CHARACTERS)
}

fn tail(id: &str, characters: usize) -> &str {
    let id = id.strip_prefix(RunId::PREFIX).unwrap_or(id);
    let start = id.char_indices().rev().nth(characters - 1).map_or(0, |(at, _)| at);
    &id[start..]
}

/// How many of the last characters tell all of the ids apart.
fn characters_to_tell_apart(ids: &[&str]) -> usize {
    (ID_CHARACTERS..64)
        .find(|&characters| {
            let mut seen = std::collections::HashSet::new();
            ids.iter().all(|id| seen.insert(tail(id, characters)))
        })
        .unwrap_or(64)
}

/// The run that `given` names: by its id, or by its last characters if they are those of one run alone.
pub(super) fn find<'a>(given: &str, ids: &[&'a str]) -> Result<&'a str, String> {
    let matches: Vec<&str> =
        ids.iter().copied().filter(|id| !given.is_empty() && id.ends_with(given)).collect();
    match matches.as_slice() {
        [only] => Ok(only),
        [] => Err(format!("There is no run `{given}`")),
        several => match several.iter().find(|id| **id == given) {
            Some(exact) => Ok(exact),
            None => {
                let shown =
                    several.iter().take(5).map(|id| format!("`{}`", tail(id, given.chars().count() + 4)));
                let shown = shown.collect::<Vec<_>>().join(", ");
                Err(format!("`{given}` is the end of {} ids: {shown}", several.len()))
            }
        },
    }
}

/// The status of a run with its mark.
fn standing(run: &Value) -> (String, Tone) {
    let reason = || match field(run, "reason") {
        "" | "requested" => String::new(),
        reason => format!(" ({})", reason.replace('_', " ")),
    };
    match (field(run, "status"), field(run, "phase")) {
        ("completed", _) => ("✓ completed".to_owned(), Tone::Good),
        ("stopped", _) => (format!("✕ stopped{}", reason()), Tone::Bad),
        ("running", "waiting") => (format!("◆ waits for {}", waits_for(&run["waits_for"])), Tone::Waits),
        ("running", "queued") => ("▸ queued".to_owned(), Tone::Plain),
        ("running", _) => ("▸ working".to_owned(), Tone::Plain),
        (other, _) => (format!("○ {other}"), Tone::Plain),
    }
}

/// What a run waits for, in short.
fn waits_for(reason: &Value) -> String {
    let names = |items: &Value| {
        let items = items.as_array().into_iter().flatten();
        let name = |item: &Value| item.as_str().unwrap_or_else(|| field(item, "name")).to_owned();
        items.map(name).collect::<Vec<_>>().join(", ")
    };
    match (&reason["secret"], &reason["agents"]) {
        (Value::Null, Value::Null) => crate::text::shown(reason),
        (Value::Null, agents) => format!("runs {}", names(agents)),
        (secrets, _) => format!("secret {}", names(secrets)),
    }
}

/// A list of runs.
pub(super) fn list(runs: &[Value], style: Style) -> String {
    let ids: Vec<&str> = runs.iter().map(|run| field(run, "id")).collect();
    let characters = characters_to_tell_apart(&ids);
    let rows = runs.iter().map(|run| {
        let (text, tone) = standing(run);
        vec![
            tail(field(run, "id"), characters).to_owned().into(),
            Cell::toned(text, tone),
            age(&run["created_at"]).into(),
            shorten(field(run, "contract"), CONTRACT_CHARACTERS).into(),
        ]
    });
    table(style, &["RUN", "STATUS", "AGE", "CONTRACT"], rows.collect())
}

/// Everything about runs.
pub(super) fn details(statuses: &[Value], style: Style) -> String {
    let mut page = String::new();
    for status in statuses {
        let mut line = |name: &str, text: String| page.push_str(&format!("{name:<9} {text}\n"));
        let id = field(status, "agent_id");
        if status["status"].is_null() {
            line("run", id.to_owned());
            line("error", field(status, "error").to_owned());
            continue;
        }
        let (text, tone) = standing(status);
        let label = if status["rehearsal"] == true { " (rehearsal)" } else { "" };
        line("run", id.to_owned());
        line("status", format!("{}{label}", tone.paint(style, &text)));
        line("started", age(&status["started_at"]));
        for key in ["driver", "model", "turns", "tokens", "payload_size", "payload_url", "payload_resource"] {
            if !status[key].is_null() {
                line(key.trim_start_matches("payload_").trim(), crate::text::shown(&status[key]));
            }
        }
        for (key, name) in [("summary", "summary"), ("error", "error"), ("recent_output", "output")] {
            if let Some(text) = status[key].as_str() {
                line(name, text.trim_end().replace('\n', "\n          "));
            }
        }
        page.push('\n');
    }
    page
}

/// One line per run: id, status, and what it said last.
pub(super) fn lines(statuses: &[Value], style: Style) -> String {
    let rows = statuses.iter().map(|status| {
        let said = ["summary", "error", "recent_output"].iter().find_map(|key| status[*key].as_str());
        let (text, tone) = standing(status);
        vec![
            short(field(status, "agent_id")).to_owned().into(),
            Cell::toned(text, tone),
            shorten(said.unwrap_or_default(), 100).into(),
        ]
    });
    table(style, &["RUN", "STATUS", "RESULT"], rows.collect())
}

/// What was removed, or would be.
pub(super) fn pruned(body: &Value, style: Style) -> String {
    let runs = body["runs"].as_array().map(Vec::as_slice).unwrap_or_default();
    let verb = if body["dry_run"] == true { "would be removed" } else { "removed" };
    let listed = if runs.is_empty() { String::new() } else { list(runs, style) };
    format!("{listed}{} {verb}", count(runs.len() as u64, "run"))
}

/// The first line about a run that is followed.
pub(super) fn header(status: &Value) -> String {
    let what = if status["rehearsal"] == true {
        "rehearsal (no model is configured)".to_owned()
    } else {
        let model = ["model", "driver"].iter().find_map(|key| status[*key].as_str());
        model.unwrap_or("started").to_owned()
    };
    format!("run {} · {what}", short(field(status, "agent_id")))
}

/// The last line about a run that is followed.
pub(super) fn result_line(status: &Value, style: Style) -> String {
    let (text, tone) = standing(status);
    let ended = ["completed_at", "stopped_at"].iter().find(|key| status[**key].is_string());
    let time = ended.and_then(|key| duration(&status["started_at"], &status[*key]));
    let turns = status["turns"].as_u64().map(|turns| format!(" in {}", count(turns, "turn")));
    let time = time.map(|time| format!(", {time}"));
    let line = format!("{text}{}{}", turns.unwrap_or_default(), time.unwrap_or_default());
    format!("  {}", tone.paint(style, &line))
}

/// What a run does, as short lines; `turn` counts the model's replies.
pub(super) fn progress_lines(entry: &Value, turn: &mut u64, style: Style) -> Vec<String> {
    let content = || shorten(field(entry, "content"), 100);
    match field(entry, "type") {
        "assistant" => {
            *turn += 1;
            let calls: Vec<String> = entry["tool_calls"].as_array().into_iter().flatten().map(call).collect();
            let said = (!content().is_empty()).then(content);
            said.into_iter().chain(calls).map(|line| format!("  ▸ turn {turn}  {line}")).collect()
        }
        "tool_result" if entry["is_error"] == true => {
            vec![format!("           {}", Tone::Bad.paint(style, &content()))]
        }
        "error" => vec![format!("  {}", Tone::Bad.paint(style, &format!("✕ {}", content())))],
        "note" => vec![format!("  {}", content())],
        _ => Vec::new(),
    }
}

/// A tool call as one line: its name, and the first argument if that is a short text.
fn call(call: &Value) -> String {
    let arguments: Value = serde_json::from_str(field(call, "arguments")).unwrap_or_default();
    let first = arguments.as_object().and_then(|arguments| arguments.values().find_map(Value::as_str));
    format!("{} {}", field(call, "name"), shorten(first.unwrap_or_default(), 60)).trim_end().to_owned()
}

/// An entry of a transcript in full.
pub(super) fn entry_lines(entry: &Value) -> Vec<String> {
    let content = field(entry, "content");
    match field(entry, "type") {
        "assistant" => {
            let calls = entry["tool_calls"].as_array().into_iter().flatten();
            let calls = calls.map(|call| {
                format!("  > {} {}", field(call, "name"), shorten(field(call, "arguments"), 100))
            });
            (!content.trim().is_empty()).then(|| content.to_owned()).into_iter().chain(calls).collect()
        }
        "tool_result" => vec![format!("  < {}", shorten(content, 200))],
        "status" => Vec::new(),
        "error" => vec![format!("error: {content}")],
        "compacted" => vec!["(older turns were summarised)".to_owned()],
        _ => vec![format!("({content})")],
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_run_is_found_by_the_end_of_its_id() {
        let ids = ["agent-01a7f3a", "agent-02b7f3a", "agent-03c0001"];
        assert_eq!(find("0001", &ids), Ok("agent-03c0001"));
        assert_eq!(find("agent-01a7f3a", &ids), Ok("agent-01a7f3a"));
        assert_eq!(find("b7f3a", &ids), Ok("agent-02b7f3a"));
        assert!(find("7f3a", &ids).unwrap_err().contains("the end of 2 ids"));
        assert!(find("", &ids).is_err() && find("zzzz", &ids).is_err());
        assert_eq!(find("1", &["1", "x1"]), Ok("1"));
    }

    #[test]
    fn ids_are_shown_as_long_as_needed() {
        let run = |id: &str| json!({"id": id, "status": "running", "contract": "x"});
        let page = list(&[run("agent-01a7f3a"), run("agent-02b7f3a")], Style::Plain);
        assert!(page.contains("\na7f3a  ▸ working") && page.contains("\nb7f3a"), "{page}");
        let page = list(&[run("agent-01a7f3a"), run("agent-02b7f3b")], Style::Plain);
        assert!(page.contains("\n7f3a  ") && page.contains("\n7f3b  "), "{page}");
    }

    #[test]
    fn a_run_that_waits_says_for_what() {
        let run = json!({"status": "running", "phase": "waiting", "waits_for": {"secret": [{"name": "llm.api_key", "of": "http://m"}]}});
        assert_eq!(standing(&run), ("◆ waits for secret llm.api_key".to_owned(), Tone::Waits));
        let stopped = json!({"status": "stopped", "reason": "turn_limit"});
        assert_eq!(standing(&stopped).0, "✕ stopped (turn limit)");
    }

    #[test]
    fn progress_is_one_line_per_step() {
        let entry = json!({"type": "assistant", "content": "", "tool_calls": [
            {"name": "write_file", "arguments": "{\"path\":\"HAIKU.md\",\"content\":\"x\"}"}]});
        let mut turn = 0;
        assert_eq!(progress_lines(&entry, &mut turn, Style::Plain), ["  ▸ turn 1  write_file HAIKU.md"]);
        let status = json!({"agent_id": "agent-7f3a", "status": "completed", "turns": 2,
            "started_at": "2026-01-01T00:00:00.000Z", "completed_at": "2026-01-01T00:00:00.300Z"});
        assert_eq!(result_line(&status, Style::Plain), "  ✓ completed in 2 turns, 0.3 s");
    }
}
