//! Answers of the fleet as people read them.

use serde_json::Value;

use super::{diff_text, land_text};
use crate::style::Style;
use crate::text::{Cell, Tone, age, count, field, shorten, shown, table};

/// Characters of a task or description in a table.
const LINE_CHARACTERS: usize = 60;

/// The answer of `operation`.
pub(super) fn page(operation: &str, answer: &Value, style: Style) -> String {
    let line = |value: &Value| Cell::from(shorten(&shown(value), LINE_CHARACTERS));
    let cell = |value: &Value| Cell::from(shown(value));
    match operation {
        "list_agents" => list(answer, style),
        "list_agent_roles" => table(
            style,
            &["ROLE", "DESCRIPTION"],
            rows(answer, "roles", |role| vec![cell(&role["name"]), line(&role["description"])]),
        ),
        "list_agent_projects" if items(answer, "projects").is_empty() => {
            "No projects. Register one:\n  crewkit fleet project add DIR".to_owned()
        }
        "list_agent_projects" => table(
            style,
            &["PROJECT", "TEMPLATE", "ORGANIZATION", "DESCRIPTION"],
            rows(answer, "projects", |project| {
                vec![
                    cell(&project["name"]),
                    cell(&project["template_name"]),
                    cell(&project["organization"]),
                    line(&project["description"]),
                ]
            }),
        ),
        "show_agent_task_history" => table(
            style,
            &["AGE", "STATUS", "SOURCE", "TASK"],
            rows(answer, "tasks", |task| {
                vec![
                    age(&task["created_at"]).into(),
                    cell(&task["status"]),
                    cell(&task["source"]),
                    line(&task["summary"]),
                ]
            }),
        ),
        "show_agent_log" => {
            items(answer, "logs").iter().map(|entry| format!("{}\n", log_entry(entry))).collect()
        }
        "equip_agents" => table(
            style,
            &["AGENT", "OUTCOME", "PROFILE", "CHANGED", "NOTE"],
            rows(answer, "agents", |row| {
                let count = |key: &str| row[key].as_array().map_or(0, Vec::len);
                let note = match (&row["error"], count("drifted"), count("left_alone")) {
                    (Value::String(error), ..) => error.clone(),
                    (_, 0, 0) => String::new(),
                    (_, drifted, alone) => format!("{drifted} had drifted, {alone} left alone"),
                };
                let tone = if row["error"].is_string() { Tone::Bad } else { Tone::Plain };
                vec![
                    cell(&row["agent_name"]),
                    Cell::toned(shown(&row["outcome"]), tone),
                    cell(&row["profile"]),
                    cell(&row["changed"]),
                    note.into(),
                ]
            }),
        ),
        "fleet_drift" => table(
            style,
            &["AGENT", "PROFILE", "DRIFT", "FILES"],
            rows(answer, "agents", |row| {
                let files = ["modified", "missing"]
                    .into_iter()
                    .flat_map(|key| row[key].as_array().into_iter().flatten());
                let files: Vec<String> = files.map(shown).collect();
                let error = row["error"].as_str().map(str::to_owned);
                vec![
                    cell(&row["agent_name"]),
                    cell(&row["profile"]),
                    cell(&row["drift_count"]),
                    error.unwrap_or_else(|| files.join(", ")).into(),
                ]
            }),
        ),
        "agent_diff" => diff_text::page(answer, style),
        "land_agent" => land_text::page(answer),
        "show_agent" => fields(&answer["agent"]),
        _ => shown(&answer["message"]),
    }
}

/// One entry of an agent's log.
pub(super) fn log_entry(entry: &Value) -> String {
    format!("── {} {}\n{}", field(entry, "type"), field(entry, "time"), field(entry, "content").trim_end())
}

fn items<'a>(answer: &'a Value, key: &str) -> &'a [Value] {
    answer[key].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn rows(answer: &Value, key: &str, row: impl Fn(&Value) -> Vec<Cell>) -> Vec<Vec<Cell>> {
    items(answer, key).iter().map(row).collect()
}

fn list(answer: &Value, style: Style) -> String {
    let agents = items(answer, "agents");
    if agents.is_empty() {
        return "No agents yet. Create one:\n  crewkit fleet create hello \"Say hello in HELLO.md\" --project NAME\n\
                Projects: crewkit fleet projects"
            .to_owned();
    }
    let row = |agent: &Value| {
        let (status, tone) = standing(agent);
        let task = if agent["current_task"].is_string() { "current_task" } else { "last_task" };
        vec![
            Cell::from(shown(&agent["name"])),
            Cell::toned(status, tone),
            shorten(&shown(&agent[task]), LINE_CHARACTERS).into(),
            shown(&agent["role"]).into(),
            shown(&agent["project"]).into(),
        ]
    };
    let listed =
        table(style, &["AGENT", "STATUS", "TASK", "ROLE", "PROJECT"], agents.iter().map(row).collect());
    let waiting = agents.iter().filter(|agent| agent["needs_attention"] == true).count();
    let total = answer["total_count"].as_u64().unwrap_or(agents.len() as u64);
    match waiting {
        0 => format!("{listed}{}.", count(total, "agent")),
        1 => format!("{listed}{}. 1 needs attention.", count(total, "agent")),
        waiting => format!("{listed}{}. {waiting} need attention.", count(total, "agent")),
    }
}

/// The status of an agent with its mark.
fn standing(agent: &Value) -> (String, Tone) {
    let status = field(agent, "status");
    let needs_attention = agent["needs_attention"] == true;
    let (mark, tone) = match status {
        "failed" | "canceled" | "offline" => ("✕", Tone::Bad),
        _ if needs_attention => ("◆", Tone::Waits),
        "busy" | "pending" | "starting" | "stopping" | "canceling" | "deleting" => ("▸", Tone::Plain),
        _ => ("○", Tone::Plain),
    };
    (format!("{mark} {}", if status == "busy" { "working" } else { status }), tone)
}

/// One line per field, nested ones below each other.
fn fields(agent: &Value) -> String {
    let mut text = String::new();
    for (name, value) in agent.as_object().into_iter().flatten() {
        let shown = match (name.as_str(), value) {
            ("metadata", Value::Object(fields)) => fields
                .iter()
                .map(|(name, field)| {
                    let value = if field["error"].is_string() {
                        &field["error"]
                    } else {
                        field.get("value").unwrap_or(field)
                    };
                    format!("\n  {name}: {}", shorten(&shown(value), LINE_CHARACTERS))
                })
                .collect(),
            ("fleet_metadata", _) => continue,
            (_, value) => format!(" {}", shown(value)),
        };
        text.push_str(&format!("{name}:{shown}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_list_is_a_table_with_a_last_line() {
        let answer = json!({"total_count": 2, "agents": [
            {"name": "papi", "status": "busy", "role": "Coder", "project": "Setup", "current_task": "Writing\nmore",
             "last_task": "x", "needs_attention": false},
            {"name": "a", "status": "failed", "role": "unknown", "project": "Setup", "current_task": null,
             "last_task": null, "needs_attention": true},
        ]});
        assert_eq!(
            page("list_agents", &answer, Style::Plain),
            "AGENT  STATUS     TASK          ROLE     PROJECT\n\
             papi   ▸ working  Writing more  Coder    Setup\n\
             a      ✕ failed   –             unknown  Setup\n\
             2 agents. 1 needs attention."
        );
        assert!(page("list_agents", &json!({"agents": []}), Style::Plain).contains("crewkit fleet create"));
        assert_eq!(page("delete_agent", &json!({"message": "gone"}), Style::Plain), "gone");
    }
}
