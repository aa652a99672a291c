//! Answers for people.

use std::borrow::Cow;
use std::fmt::Write as _;

use crewkit_pack::PackError;
use crewkit_pack::envelope::{Answer, CommandName};
use serde_json::Value;

use super::style::Style;

/// More changed files than this are listed, not shown line by line, before a question.
const FEW: usize = 20;

/// Whether a plan or status says that something would change.
pub(super) fn differs(data: &Value) -> bool {
    let summary = data.get("summary").or_else(|| data.get("plan")?.get("summary"));
    summary.and_then(Value::as_object).is_some_and(|counts| counts.values().any(|count| count != 0))
}

/// The text of an answer.
pub(super) fn answer(command: &CommandName, answer: &Answer, style: Style, program: &str) -> String {
    let data = &answer.data;
    match command.path.as_slice() {
        ["plan"] => plan(data, answer, style) + &hint_after_plan(data, style, program),
        ["diff" | "preview"] => plan(&data["plan"], answer, style) + &lines(&data["diff"], style),
        ["deploy"] => deploy(data, answer, style),
        ["status"] => status(data, style),
        ["doctor"] => doctor(data, style),
        ["explain", _] => explain(data),
        ["rollback"] => rollback(data),
        ["snapshots", "list"] => snapshots(data, style),
        ["overlay", "path"] => line(&data["overlay_dir"]),
        ["overlay", "rebase"] => rebase(data),
        ["overlay", "edit"] => {
            let word = if data["created"] == true { "Created" } else { "Overlay" };
            format!("{word} {}\n", text(&data["overlay_dir"]))
        }
        ["init"] => format!("Initialized {}\n", text(&data["repo"])),
        ["add"] => format!("Added {} to {}\n", text(&data["module_id"]), text(&data["manifest"])),
        ["remove"] => format!("Removed {} from {}\n", text(&data["module_id"]), text(&data["manifest"])),
        ["lock"] => format!("Locked {} modules in {}\n", data["modules"], text(&data["lockfile"])),
        ["fetch"] => {
            format!("Fetched {} git modules into {}\n", data["git_modules_fetched"], text(&data["store"]))
        }
        ["update"] => update(data),
        ["snapshots", "prune"] => format!(
            "Removed {} snapshots, kept {}\n",
            data["removed"].as_array().map_or(0, Vec::len),
            data["kept"]
        ),
        _ => format!("{data:#}\n"),
    }
}

/// What went wrong, and what to do next.
pub(super) fn error(error: &PackError, style: Style) -> String {
    let mut shown = format!("{} {error}", style.red(&format!("error[{}]:", error.code())));
    if let Some(details) = error.details() {
        for key in ["conflicts", "sample_paths"] {
            for path in details[key].as_array().into_iter().flatten().filter_map(Value::as_str) {
                let _ = write!(shown, "\n  - {path}");
            }
        }
    }
    let _ = write!(shown, "\n  {} {}", style.bold("next:"), error.advice());
    shown
}

/// The lines of a preview when they are few, else how to see them.
pub(super) fn few_lines(preview: &Answer, style: Style, program: &str) -> String {
    let count = preview.data["diff"]["files"].as_array().map_or(0, Vec::len);
    match count {
        0 => String::new(),
        count if count <= FEW => lines(&preview.data["diff"], style),
        count => format!("\n{count} files change; `{program} preview --diff` shows the lines.\n"),
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn line(value: &Value) -> String {
    format!("{}\n", text(value))
}

/// One change, as people see it.
struct Row<'a> {
    target: &'a str,
    path: Cow<'a, str>,
    op: &'a str,
    update_kind: &'a str,
    reason: &'a str,
}

/// The changes of an answer: typed where there can be many, from the data where they are part of something larger.
fn rows<'a>(data: &'a Value, answer: &'a Answer) -> Vec<Row<'a>> {
    let Some(plan) = &answer.plan else {
        let changes = data["changes"].as_array().into_iter().flatten();
        return changes
            .map(|change| Row {
                target: text(&change["target"]),
                path: text(&change["path"]).into(),
                op: text(&change["op"]),
                update_kind: text(&change["update_kind"]),
                reason: text(&change["reason"]),
            })
            .collect();
    };
    plan.changes
        .iter()
        .map(|change| Row {
            target: plan.target(change),
            path: plan.place(change).display().to_string().into(),
            op: change.op.name(),
            update_kind: change.op.update_kind().unwrap_or_default(),
            reason: change.reason,
        })
        .collect()
}

fn plan(data: &Value, answer: &Answer, style: Style) -> String {
    let summary = &data["summary"];
    let count = |key: &str| summary[key].as_u64().unwrap_or(0);
    let mut out = format!(
        "Plan: {} {} {}\n",
        style.green(&format!("+{}", count("create"))),
        style.yellow(&format!("~{}", count("update"))),
        style.red(&format!("-{}", count("delete")))
    );
    let mut group = None;
    for row in rows(data, answer) {
        let (target, path) = (row.target, &*row.path);
        let root = root_of(answer, target, path);
        if group != Some((target, root)) {
            let _ = writeln!(out, "\n{} {root}", style.bold(target));
            group = Some((target, root));
        }
        let shown = path.strip_prefix(root).map_or(path, |rest| rest.trim_start_matches('/'));
        let (sign, note) = match (row.op, row.update_kind) {
            ("create", _) => (style.green("+"), String::new()),
            ("delete", _) => (style.red("-"), String::new()),
            (_, "adopt_update") => (style.red("!"), style.dim("  not managed yet: needs --adopt")),
            _ => (style.yellow("~"), style.dim(&format!("  {}", row.reason))),
        };
        let _ = writeln!(out, "  {sign} {shown}{note}");
    }
    out
}

/// The deepest root of the target that a path lies in.
fn root_of<'a>(answer: &'a Answer, target: &str, path: &str) -> &'a str {
    answer
        .roots
        .iter()
        .filter(|(owner, root)| owner == target && path.starts_with(root.as_str()))
        .map(|(_, root)| root.as_str())
        .max_by_key(|root| root.len())
        .unwrap_or_default()
}

fn hint_after_plan(data: &Value, style: Style, program: &str) -> String {
    if differs(data) {
        style.dim(&format!("\nNext: {program} preview --diff, then {program} deploy --apply\n"))
    } else {
        String::new()
    }
}

fn deploy(data: &Value, answer: &Answer, style: Style) -> String {
    if let Some(id) = data["snapshot_id"].as_str() {
        return format!("{}Applied. Snapshot: {id}\n", plan(data, answer, style));
    }
    if data["reason"] == "no_changes" {
        return "No changes\n".to_owned();
    }
    plan(data, answer, style)
}

fn lines(diff: &Value, style: Style) -> String {
    let mut out = String::new();
    for file in diff["files"].as_array().into_iter().flatten() {
        let place = format!("{}/{}", text(&file["root"]), text(&file["path"]));
        let title = format!("=== {} {place} ===", text(&file["target"]));
        let _ = writeln!(out, "\n{}", style.bold(&title));
        match file["unified"].as_str() {
            Some(unified) => {
                for line in unified.lines() {
                    let painted = match line.as_bytes() {
                        [b'+', b'+', b'+', ..] | [b'-', b'-', b'-', ..] => style.bold(line),
                        [b'+', ..] => style.green(line),
                        [b'-', ..] => style.red(line),
                        [b'@', ..] => style.cyan(line),
                        _ => line.to_owned(),
                    };
                    let _ = writeln!(out, "{painted}");
                }
            }
            None if file["op"] == "delete" => {
                let _ = writeln!(out, "{}", style.red("(deleted)"));
            }
            None => {
                let _ = writeln!(out, "{}", style.dim("(no lines to show)"));
            }
        }
    }
    out
}

fn counts(summary: &Value) -> String {
    format!("modified={} missing={} extra={}", summary["modified"], summary["missing"], summary["extra"])
}

fn status(data: &Value, style: Style) -> String {
    let drift: Vec<&Value> = data["drift"].as_array().into_iter().flatten().collect();
    let mut out = if drift.is_empty() {
        "No drift\n".to_owned()
    } else {
        format!("Drift ({}):\nSummary: {}\n", drift.len(), counts(&data["summary"]))
    };
    for root in data["summary_by_root"].as_array().into_iter().flatten() {
        let (target, path) = (&root["target"], &root["root"]);
        let _ = writeln!(out, "Root: {} ({}) {}", text(path), text(target), counts(&root["summary"]));
        for item in drift.iter().filter(|item| item["root"] == *path && item["target"] == *target) {
            let kind = text(&item["kind"]);
            let painted = match kind {
                "missing" => style.red(kind),
                "modified" => style.yellow(kind),
                _ => style.cyan(kind),
            };
            let _ = writeln!(out, "- {painted} {}", text(&item["path"]));
        }
    }
    out + &next_actions(data)
}

fn next_actions(data: &Value) -> String {
    let actions: Vec<&str> =
        data["next_actions"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if actions.is_empty() {
        return String::new();
    }
    // The flags are for programs; a person answers questions instead.
    let shown = actions.iter().map(|action| action.trim_end_matches(" --json").trim_end_matches(" --yes"));
    shown.fold("\nNext actions:\n".to_owned(), |mut out, action| {
        let _ = writeln!(out, "- {action}");
        out
    })
}

fn doctor(data: &Value, style: Style) -> String {
    let mut out = format!("Machine ID: {}\n", text(&data["machine_id"]));
    for root in data["roots"].as_array().into_iter().flatten() {
        let issues: Vec<&str> =
            root["issues"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let state = if issues.is_empty() { style.green("ok") } else { style.yellow("issues") };
        let _ = writeln!(out, "- {} {} ({state})", text(&root["target"]), text(&root["root"]));
        for issue in issues {
            let _ = writeln!(out, "  - issue: {issue}");
        }
        if let Some(suggestion) = root["suggestion"].as_str() {
            let _ = writeln!(out, "  - suggestion: {suggestion}");
        }
    }
    for fix in data["gitignore_fixes"].as_array().into_iter().flatten() {
        let _ = writeln!(out, "Updated {}", text(&fix["gitignore_path"]));
    }
    out + &next_actions(data)
}

fn explain(data: &Value) -> String {
    let mut out = String::new();
    let items = data["changes"].as_array().or_else(|| data["drift"].as_array());
    for item in items.into_iter().flatten() {
        let what = item["op"].as_str().or_else(|| item["kind"].as_str()).unwrap_or_default();
        let _ = writeln!(out, "{what} {} {}", text(&item["target"]), text(&item["path"]));
        for module in item["modules"].as_array().into_iter().flatten() {
            match module.as_str() {
                Some(id) => {
                    let _ = writeln!(out, "  - {id}");
                }
                None => {
                    let _ = writeln!(
                        out,
                        "  - {} ({}) {}",
                        text(&module["module_id"]),
                        text(&module["layer"]),
                        text(&module["module_path"])
                    );
                }
            }
        }
    }
    if out.is_empty() { "Nothing to explain\n".to_owned() } else { out }
}

fn rollback(data: &Value) -> String {
    let to = text(&data["rolled_back_to"]);
    match data["event_snapshot_id"].as_str() {
        Some(event) => format!("Rolled back to snapshot {to}. Event: {event}\n"),
        None => match data["changes"].as_u64() {
            Some(count) => format!("Would roll back {count} files to snapshot {to}\n"),
            None => "No changes\n".to_owned(),
        },
    }
}

fn snapshots(data: &Value, style: Style) -> String {
    let mut out = String::new();
    for snapshot in data["snapshots"].as_array().into_iter().flatten() {
        let counts = &snapshot["counts"];
        let targets: Vec<&str> =
            snapshot["targets"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let _ = writeln!(
            out,
            "{}  {}  {:8} +{} ~{} -{}  {}",
            style.bold(text(&snapshot["id"])),
            text(&snapshot["created_at"]),
            text(&snapshot["kind"]),
            counts["create"],
            counts["update"],
            counts["delete"],
            targets.join(", ")
        );
    }
    if out.is_empty() { "No snapshots\n".to_owned() } else { out }
}

fn rebase(data: &Value) -> String {
    let summary = &data["report"]["summary"];
    format!(
        "Rebased {}: {} updated, {} deleted, {} unchanged\n",
        text(&data["overlay_dir"]),
        summary["updated_files"],
        summary["deleted_files"],
        summary["skipped_files"]
    )
}

fn update(data: &Value) -> String {
    let mut out = String::new();
    for step in data["steps"].as_array().into_iter().flatten() {
        let detail = &step["detail"];
        match text(&step["name"]) {
            "lock" => {
                let _ =
                    writeln!(out, "Locked {} modules in {}", detail["modules"], text(&detail["lockfile"]));
            }
            _ => {
                let _ = writeln!(
                    out,
                    "Fetched {} git modules into {}",
                    detail["git_modules_fetched"],
                    text(&detail["store"])
                );
            }
        }
    }
    if out.is_empty() { "Nothing to do\n".to_owned() } else { out }
}
