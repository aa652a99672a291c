//! Answers for people.

use std::fmt::Write as _;

use crewkit_pack::PackError;
use crewkit_pack::commands::{
    ClientView, Explained, Fetched, Health, Migrated, ModulesLocked, OverlayEdited, OverlayRebased, Planned,
    Preview, PreviewPlan, RolledBack, Snapshots, Status, UpdateDetail, Updated,
};
use crewkit_pack::plan::status::{self, Kind};
use crewkit_pack::plan::{Op, Owner, Plan, Summary};
use serde_json::Value;

use crate::style::Style;

/// More changed files than this are listed, not shown line by line, before a question.
const FEW: usize = 20;

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

/// A plan and what to do with it; `program` is how the person started the command.
pub(super) fn planned(planned: &Planned, style: Style, program: &str) -> String {
    let mut out = plan(&planned.changes, planned.summary, style);
    if planned.summary.is_empty() {
        return out;
    }
    out += &style.dim(&format!("\nNext: {program} preview --diff, then {program} deploy --apply\n"));
    out
}

pub(super) fn deployed(deployed: &Planned, style: Style) -> String {
    let shown = || plan(&deployed.changes, deployed.summary, style);
    match (&deployed.snapshot_id, deployed.reason) {
        (Some(id), _) => format!("{}Applied. Snapshot: {id}\n", shown()),
        (None, Some(_)) => "No changes\n".to_owned(),
        (None, None) => shown(),
    }
}

/// What a migration changes: files, and the config file.
pub(super) fn migrated(migrated: &Migrated, style: Style, program: &str) -> String {
    let Some(config) = &migrated.config else {
        return format!("{} is of version 2 already\n", migrated.manifest.display());
    };
    let planned = &migrated.planned;
    let mut out = plan(&planned.changes, planned.summary, style);
    match (&planned.snapshot_id, &migrated.undo) {
        (Some(id), _) => {
            let _ = writeln!(out, "Migrated {}. Snapshot: {id}", migrated.manifest.display());
            let _ = writeln!(out, "`{program} migrate --undo` takes it back.");
        }
        _ => {
            let _ = writeln!(out, "{} would become:\n\n{config}", migrated.manifest.display());
            let _ = writeln!(out, "`{program} migrate --apply` does it.");
        }
    }
    out
}

pub(super) fn preview(preview: &Preview, style: Style) -> String {
    let shown = plan(&preview.plan.changes, preview.plan.summary, style);
    shown + &preview.diff.as_ref().map_or_else(String::new, |diff| lines(diff, style))
}

/// The lines of a preview when they are few, else how to see them.
pub(super) fn few_lines(preview: &Preview, style: Style, program: &str) -> String {
    match &preview.diff {
        Some(diff) if diff.changes.changes.len() <= FEW => lines(diff, style),
        Some(diff) => {
            let count = diff.changes.changes.len();
            format!("\n{count} files change; `{program} preview --diff` shows the lines.\n")
        }
        None => String::new(),
    }
}

fn plan(plan: &Plan, summary: Summary, style: Style) -> String {
    let mut out = format!(
        "Plan: {} {} {}\n",
        style.green(&format!("+{}", summary.create)),
        style.yellow(&format!("~{}", summary.update)),
        style.red(&format!("-{}", summary.delete))
    );
    let mut group = None;
    for change in &plan.changes {
        if group != Some(change.root) {
            let root = plan.roots.get(change.root).map(|root| root.path.display().to_string());
            let _ = writeln!(out, "\n{} {}", style.bold(plan.target(change)), root.unwrap_or_default());
            group = Some(change.root);
        }
        let (sign, note) = match change.op {
            Op::Create => (style.green("+"), String::new()),
            Op::Delete => (style.red("-"), String::new()),
            Op::Update(Owner::User) => (style.red("!"), style.dim("  not managed yet: needs --adopt")),
            Op::Update(Owner::Us) => (style.yellow("~"), style.dim(&format!("  {}", change.reason))),
        };
        let _ = writeln!(out, "  {sign} {}{note}", change.path);
    }
    out
}

fn lines(diff: &PreviewPlan, style: Style) -> String {
    let mut out = String::new();
    for file in diff.files.iter().flatten() {
        let title = format!("=== {} {}/{} ===", file.target, file.root.display(), file.path);
        let _ = writeln!(out, "\n{}", style.bold(&title));
        match &file.unified {
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
            None if file.op == Op::Delete => {
                let _ = writeln!(out, "{}", style.red("(deleted)"));
            }
            None => {
                let _ = writeln!(out, "{}", style.dim("(no lines to show)"));
            }
        }
    }
    out
}

pub(super) fn status(status: &Status, style: Style) -> String {
    let counts = |summary: status::Summary| {
        format!("modified={} missing={} extra={}", summary.modified, summary.missing, summary.extra)
    };
    let mut out = if status.drift.is_empty() {
        "No drift\n".to_owned()
    } else {
        format!("Drift ({}):\nSummary: {}\n", status.drift.len(), counts(status.summary))
    };
    for row in &status.summary_by_root {
        let _ = writeln!(out, "Root: {} ({}) {}", row.root.display(), row.target, counts(row.summary));
        let is_here = |item: &&status::Drift| *item.root == *row.root && item.target == row.target;
        for item in status.drift.iter().filter(is_here) {
            let painted = match item.kind {
                Kind::Missing => style.red(item.kind.name()),
                Kind::Modified => style.yellow(item.kind.name()),
                Kind::Extra => style.cyan(item.kind.name()),
            };
            let _ = writeln!(out, "- {painted} {}", item.path.display());
        }
    }
    out + &next_actions(&status.next_actions)
}

fn next_actions(actions: &[String]) -> String {
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

pub(super) fn doctor(health: &Health, style: Style) -> String {
    let mut out = format!("Machine ID: {}\n", health.machine_id);
    for check in &health.roots {
        let state = if check.issues.is_empty() { style.green("ok") } else { style.yellow("issues") };
        let _ = writeln!(out, "- {} {} ({state})", check.target, check.root.display());
        for issue in &check.issues {
            let _ = writeln!(out, "  - issue: {issue}");
        }
        if let Some(suggestion) = &check.suggestion {
            let _ = writeln!(out, "  - suggestion: {suggestion}");
        }
    }
    for fix in &health.gitignore_fixes {
        let _ = writeln!(out, "Updated {}", fix.gitignore_path.display());
    }
    out + &next_actions(&health.next_actions)
}

pub(super) fn explained(explained: &Explained) -> String {
    let mut out = String::new();
    for change in explained.changes.iter().flatten() {
        let _ = writeln!(out, "{} {} {}", change.op.name(), change.target, change.path.display());
        for module in &change.modules {
            let path = module.module_path.as_deref().unwrap_or_default();
            let _ = writeln!(out, "  - {} ({}) {path}", module.module_id, module.layer);
        }
    }
    for item in explained.drift.iter().flatten() {
        let _ = writeln!(out, "{} {} {}", item.kind.name(), item.target, item.path.display());
        for id in item.modules.iter() {
            let _ = writeln!(out, "  - {id}");
        }
    }
    if out.is_empty() { "Nothing to explain\n".to_owned() } else { out }
}

/// What a client will see, in its order.
pub(super) fn client_view(view: &ClientView, style: Style) -> String {
    let version = view.version.map(|version| format!(" {version}")).unwrap_or_default();
    let mut out =
        format!("{}{version} in {} ({})\n", style.bold(view.title), view.dir.display(), view.evidence);
    let mut kind = "";
    for part in &view.parts {
        if part.kind != kind {
            kind = part.kind;
            let _ = writeln!(out, "\n{}", style.bold(kind));
        }
        let sign = match part.state {
            "read" => style.green("✓"),
            "cut" => style.yellow("◐"),
            _ => style.red("✕"),
        };
        let source = if part.modules.is_empty() { "yours".to_owned() } else { part.modules.join(", ") };
        let name = if part.kind == "instructions" { String::new() } else { format!("{}  ", part.name) };
        let _ = write!(out, "  {sign} {name}{}", part.path.display());
        let _ = write!(out, "{}", style.dim(&format!("  {}, {} B, {source}", part.scope, part.bytes)));
        if part.called && part.kind == "skill" {
            let _ = write!(out, "{}", style.dim(", only when you call it"));
        }
        if let Some(importer) = &part.imported_by {
            let _ = write!(out, "{}", style.dim(&format!(", imported by {}", importer.display())));
        }
        let _ = writeln!(out, "{}", part.reason.as_ref().map(|why| format!("  {why}")).unwrap_or_default());
    }
    if view.parts.is_empty() {
        out += "\nNothing\n";
    }
    for problem in &view.problems {
        let _ = writeln!(out, "\n{} {}", style.yellow("Warning:"), problem.message);
    }
    out
}

pub(super) fn rolled_back(rolled_back: &RolledBack) -> String {
    let to = &rolled_back.rolled_back_to;
    match (&rolled_back.event_snapshot_id, rolled_back.changes) {
        (Some(event), _) => format!("Rolled back to snapshot {to}. Event: {event}\n"),
        (None, Some(count)) => format!("Would roll back {count} files to snapshot {to}\n"),
        (None, None) => "No changes\n".to_owned(),
    }
}

pub(super) fn snapshots(list: &Snapshots, style: Style) -> String {
    let mut out = String::new();
    for snapshot in &list.snapshots {
        let counts = snapshot.counts;
        let _ = writeln!(
            out,
            "{}  {}  {:8} +{} ~{} -{}  {}",
            style.bold(&snapshot.id),
            snapshot.created_at,
            snapshot.kind.name(),
            counts.create,
            counts.update,
            counts.delete,
            snapshot.targets.join(", ")
        );
    }
    if out.is_empty() { "No snapshots\n".to_owned() } else { out }
}

pub(super) fn overlay_edited(edited: &OverlayEdited) -> String {
    let word = if edited.created { "Created" } else { "Overlay" };
    format!("{word} {}\n", edited.overlay_dir.display())
}

pub(super) fn rebased(rebased: &OverlayRebased) -> String {
    let summary = rebased.report.summary;
    format!(
        "Rebased {}: {} updated, {} deleted, {} unchanged\n",
        rebased.overlay_dir.display(),
        summary.updated_files,
        summary.deleted_files,
        summary.skipped_files
    )
}

pub(super) fn locked(locked: &ModulesLocked) -> String {
    format!("Locked {} modules in {}\n", locked.modules, locked.lockfile.display())
}

pub(super) fn fetched(fetched: &Fetched) -> String {
    format!("Fetched {} git modules into {}\n", fetched.git_modules_fetched, fetched.store.display())
}

pub(super) fn updated(updated: &Updated) -> String {
    let text = |detail: &UpdateDetail| match detail {
        UpdateDetail::Lock(detail) => locked(detail),
        UpdateDetail::Fetch(detail) => fetched(detail),
    };
    let out: String = updated.steps.iter().map(|step| text(&step.detail)).collect();
    if out.is_empty() { "Nothing to do\n".to_owned() } else { out }
}
