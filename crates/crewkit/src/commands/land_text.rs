//! A landing as people read it.

use serde_json::Value;

use crate::text::{count, field};

/// The answer of `land_agent`.
pub(super) fn page(answer: &Value) -> String {
    let mut lines = vec![format!("{}.", field(answer, "message"))];
    let texts = |key: &str| answer[key].as_array().into_iter().flatten().filter_map(Value::as_str);
    let commits = count(answer["commits"].as_u64().unwrap_or(0), "commit");
    let uncommitted = if answer["uncommitted"] == true { " and work that is not committed" } else { "" };
    let signed = if answer["signed"] == true { ", signed" } else { "" };
    if answer["outcome"] != "nothing" {
        let (strategy, committer) = (field(answer, "strategy"), field(answer, "committer"));
        lines.push(format!("  {strategy} of {commits}{uncommitted}, by {committer}{signed}"));
    }
    if answer["busy"] == true {
        lines.push("  The agent is at work and may change more.".to_owned());
    }
    lines.extend(texts("obstacles").map(|why| format!("  The base stays where it is: {why}")));
    let not_run: Vec<&str> = texts("not_run").collect();
    if !not_run.is_empty() {
        lines.push(format!("  Not run: {}", not_run.join(", ")));
    }
    lines.extend(texts("unreadable").map(|what| format!("  Left out: {what}")));
    for conflict in answer["conflicts"].as_array().into_iter().flatten() {
        let (path, explanation) = (field(conflict, "path"), field(conflict, "explanation"));
        lines.push(format!("  ✕ {path}: {explanation}"));
    }
    let agent = field(answer, "agent_name");
    if let Some(task) = answer["task"].as_str() {
        lines.push(format!("Let the agent resolve it:\n  crewkit fleet start {agent} {}", quoted(task)));
    }
    if let Some(plan) = answer["plan"].as_str() {
        let strategy = field(answer, "strategy");
        lines
            .push(format!("Carry it out:\n  crewkit fleet land {agent} --strategy {strategy} --plan {plan}"));
    } else if let Some(command) = answer["command"].as_str() {
        lines.push(format!("Bring it home:\n  {command}"));
    }
    lines.join("\n")
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_plan_says_what_would_happen_and_how_to_go_on() {
        let plan = json!({
            "agent_name": "papi", "outcome": "planned", "plan": "ab12", "strategy": "squash", "commits": 2,
            "uncommitted": true, "committer": "Ada <a@b>", "signed": false, "not_run": ["hook `pre-commit`"],
            "message": "Would move `main`: 3 files change",
        });
        assert_eq!(
            page(&plan),
            "Would move `main`: 3 files change.\n  squash of 2 commits and work that is not committed, by Ada <a@b>\n  \
             Not run: hook `pre-commit`\nCarry it out:\n  crewkit fleet land papi --strategy squash --plan ab12"
        );
        let conflict = json!({
            "agent_name": "papi", "outcome": "conflicts", "strategy": "merge", "commits": 1, "committer": "Ada",
            "message": "m", "task": "it's yours", "conflicts": [{"path": "a", "explanation": "both"}],
        });
        assert!(
            page(&conflict).ends_with(
                "✕ a: both\nLet the agent resolve it:\n  crewkit fleet start papi 'it'\\''s yours'"
            )
        );
    }
}
