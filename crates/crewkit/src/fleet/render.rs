//! Answers of the fleet for people: tables on a terminal. Programs get the JSON itself.

use serde_json::Value;

/// The answer of `operation`, as text for a terminal.
pub(super) fn text(operation: &str, answer: &Value) -> String {
    match operation {
        "list_agents" => table(
            &["NAME", "STATUS", "ROLE", "PROJECT", "TASK"],
            rows(answer, "agents", |agent| {
                let mark = if agent["needs_attention"] == true { " !" } else { "" };
                let task = if agent["current_task"].is_string() { "current_task" } else { "last_task" };
                vec![
                    shown(&agent["name"]),
                    format!("{}{mark}", shown(&agent["status"])),
                    shown(&agent["role"]),
                    shown(&agent["project"]),
                    first_line(&agent[task]),
                ]
            }),
        ),
        "list_agent_roles" => table(
            &["ROLE", "DESCRIPTION"],
            rows(answer, "roles", |role| vec![shown(&role["name"]), first_line(&role["description"])]),
        ),
        "list_agent_projects" => table(
            &["PROJECT", "TEMPLATE", "ORGANIZATION", "DESCRIPTION"],
            rows(answer, "projects", |project| {
                vec![
                    shown(&project["name"]),
                    shown(&project["template_name"]),
                    shown(&project["organization"]),
                    first_line(&project["description"]),
                ]
            }),
        ),
        "show_agent_task_history" => table(
            &["BEGUN", "STATUS", "SOURCE", "TASK"],
            rows(answer, "tasks", |task| {
                vec![
                    shown(&task["created_at"]),
                    shown(&task["status"]),
                    shown(&task["source"]),
                    first_line(&task["summary"]),
                ]
            }),
        ),
        "show_agent_log" => {
            let entries = answer["logs"].as_array().into_iter().flatten();
            entries
                .map(|entry| {
                    format!(
                        "── {} {}\n{}\n",
                        shown(&entry["type"]),
                        shown(&entry["time"]),
                        shown(&entry["content"]).trim_end()
                    )
                })
                .collect()
        }
        "equip_agents" => table(
            &["AGENT", "OUTCOME", "PROFILE", "CHANGED", "NOTE"],
            rows(answer, "agents", |row| {
                let count = |key: &str| row[key].as_array().map_or(0, Vec::len);
                let note = match (&row["error"], count("drifted"), count("left_alone")) {
                    (Value::String(error), ..) => error.clone(),
                    (_, 0, 0) => String::new(),
                    (_, drifted, alone) => format!("{drifted} had drifted, {alone} left alone"),
                };
                vec![
                    shown(&row["agent_name"]),
                    shown(&row["outcome"]),
                    shown(&row["profile"]),
                    shown(&row["changed"]),
                    note,
                ]
            }),
        ),
        "fleet_drift" => table(
            &["AGENT", "PROFILE", "DRIFT", "FILES"],
            rows(answer, "agents", |row| {
                let files = ["modified", "missing"]
                    .into_iter()
                    .flat_map(|key| row[key].as_array().into_iter().flatten());
                let files: Vec<String> = files.map(shown).collect();
                let error = row["error"].as_str().map(str::to_owned);
                vec![
                    shown(&row["agent_name"]),
                    shown(&row["profile"]),
                    shown(&row["drift_count"]),
                    error.unwrap_or_else(|| files.join(", ")),
                ]
            }),
        ),
        "show_agent" => fields(&answer["agent"]),
        _ => format!("{}\n", shown(&answer["message"])),
    }
}

fn rows(answer: &Value, key: &str, row: impl Fn(&Value) -> Vec<String>) -> Vec<Vec<String>> {
    answer[key].as_array().into_iter().flatten().map(row).collect()
}

/// Columns as wide as their widest cell; the last one is as long as it is.
fn table(head: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut lines = vec![head.iter().map(|&cell| cell.to_owned()).collect::<Vec<_>>()];
    lines.extend(rows);
    let width = |column: usize| {
        lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..head.len()).map(|column| width(column).unwrap_or(0)).collect();
    let line = |cells: &Vec<String>| {
        let padded = cells.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}"));
        format!("{}\n", padded.collect::<Vec<_>>().join("  ").trim_end())
    };
    lines.iter().map(line).collect()
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
                    format!("\n  {name}: {}", first_line(value))
                })
                .collect(),
            ("fleet_metadata", _) => continue,
            (_, value) => format!(" {}", shown(value)),
        };
        text.push_str(&format!("{name}:{shown}\n"));
    }
    text
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn first_line(value: &Value) -> String {
    let text = shown(value);
    let line = text.lines().next().unwrap_or_default();
    let cut: String = line.chars().take(100).collect();
    if cut.len() < text.trim_end().len() { format!("{cut}…") } else { cut }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_list_is_a_table() {
        let answer = json!({"agents": [
            {"name": "papi", "status": "busy", "role": "Coder", "project": "Setup", "current_task": "Writing\nmore",
             "last_task": "x", "needs_attention": false},
            {"name": "a", "status": "failed", "role": "unknown", "project": "Setup", "current_task": null,
             "last_task": null, "needs_attention": true},
        ]});
        assert_eq!(
            text("list_agents", &answer),
            "NAME  STATUS    ROLE     PROJECT  TASK\n\
             papi  busy      Coder    Setup    Writing…\n\
             a     failed !  unknown  Setup    -\n"
        );
        assert_eq!(text("delete_agent", &json!({"message": "gone"})), "gone\n");
    }
}
