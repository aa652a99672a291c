//! The commands as data, for `help --json` and `schema`.

use serde_json::{Value, json};

use super::Pack;
use crate::envelope::{Answer, SCHEMA_VERSION};
use crate::target::TargetKind;

/// One argument of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    /// Its name.
    pub id: String,
    /// `flag` or `option`.
    pub kind: &'static str,
    /// The long flag, without dashes.
    pub long: Option<String>,
    /// The short flag, without dash.
    pub short: Option<char>,
    /// Whether it must be given.
    pub required: bool,
}

/// One command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandRow {
    /// Its words.
    pub path: Vec<String>,
    /// Its arguments.
    pub arguments: Vec<Argument>,
}

/// The flags every command takes.
pub const GLOBAL_ARGUMENTS: [&str; 7] = ["dry_run", "json", "machine", "profile", "repo", "target", "yes"];

/// What changes something, and so needs `--yes` under `--json`.
pub const MUTATING: [&str; 12] = [
    "init",
    "add",
    "remove",
    "lock",
    "fetch",
    "update",
    "deploy --apply",
    "rollback",
    "doctor --fix",
    "overlay edit",
    "overlay rebase",
    "snapshots prune",
];

/// Commands whose output is not an envelope.
const WITHOUT_JSON: [&str; 2] = ["completions", "mcp serve"];

impl Argument {
    fn to_json(&self) -> Value {
        let mut map =
            crate::view::object(json!({"id": self.id, "kind": self.kind, "required": self.required}));
        if let Some(long) = &self.long {
            map.insert("long".to_owned(), long.as_str().into());
        }
        if let Some(short) = self.short {
            map.insert("short".to_owned(), short.to_string().into());
        }
        map.into()
    }
}

impl Pack {
    /// The commands, as data. The rows come from whoever parses the command line.
    pub fn help(&self, globals: &[Argument], rows: &[CommandRow]) -> Answer {
        let mut commands: Vec<Value> = Vec::new();
        for row in rows {
            let id = row.path.join(" ");
            let arguments: Vec<Value> = row.arguments.iter().map(Argument::to_json).collect();
            let command = |id: &str, path: Vec<&str>, mutating: bool| {
                json!({
                    "id": id,
                    "path": path,
                    "mutating": mutating,
                    "supports_json": !WITHOUT_JSON.contains(&id),
                    "args": arguments,
                })
            };
            let words: Vec<&str> = row.path.iter().map(String::as_str).collect();
            commands.push(command(&id, words.clone(), MUTATING.contains(&id.as_str())));
            // `doctor --fix` is listed beside `doctor`, since only one of them changes anything.
            if id == "doctor" {
                commands.push(command("doctor --fix", [words, vec!["--fix"]].concat(), true));
            }
        }
        Answer::new(json!({
            "global_args": globals.iter().map(Argument::to_json).collect::<Vec<_>>(),
            "commands": commands,
            "mutating_commands": MUTATING,
            "targets": TargetKind::ALL.map(TargetKind::name),
            "notes": [
                "recommended: doctor -> update -> preview -> deploy --apply",
                "in --json mode, mutating commands require --yes",
                "--dry-run writes nothing, in every command",
            ],
        }))
    }

    /// The form of answers.
    pub fn schema(&self) -> Answer {
        let fields = |names: &[&str]| json!({"data_fields": names});
        let plan = fields(&["profile", "targets", "changes", "summary"]);
        Answer::new(json!({
            "envelope": {
                "schema_version": SCHEMA_VERSION,
                "fields": {
                    "schema_version": "number",
                    "ok": "boolean",
                    "command": "string",
                    "command_id": "string",
                    "command_path": "array[string]",
                    "version": "string",
                    "data": "object",
                    "warnings": "array[string]",
                    "errors": "array[{code,message,details?}]",
                },
                "error_item": {"code": "string", "message": "string", "details": "object|null"},
            },
            "commands": {
                "plan": plan,
                "diff": plan,
                "preview": fields(&["profile", "targets", "plan", "diff?"]),
                "deploy": fields(&["applied", "profile", "targets", "changes", "summary", "snapshot_id?", "reason?"]),
                "status": fields(&[
                    "profile", "targets", "drift", "summary", "summary_by_root", "summary_total?", "next_actions?",
                    "next_actions_detailed?",
                ]),
                "doctor": fields(&["machine_id", "roots", "gitignore_fixes", "next_actions?"]),
                "rollback": fields(&["rolled_back_to", "event_snapshot_id", "reason?"]),
                "snapshots.list": fields(&["snapshots"]),
                "snapshots.show": fields(&["id", "kind", "created_at", "targets", "project", "counts", "changes"]),
                "snapshots.prune": fields(&["removed", "kept"]),
                "help": fields(&["global_args", "commands", "mutating_commands", "notes", "targets"]),
            },
            "path_conventions": {
                "native": "path-like fields use OS-native separators",
                "posix": "many payloads also include *_posix companion fields using forward slashes",
            },
        }))
    }
}
