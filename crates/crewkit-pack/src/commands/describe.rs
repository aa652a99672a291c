//! The commands as data, for `help --json` and `schema`.

use serde::Serialize;
use serde_json::{Value, json};

use super::Pack;
use crate::desired::target::TargetKind;
use crate::envelope::{Answer, SCHEMA_VERSION, sorted};

/// One argument of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Argument {
    /// Its name.
    pub id: String,
    /// `flag` or `option`.
    pub kind: &'static str,
    /// The long flag, without dashes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub long: Option<String>,
    /// Whether it must be given.
    pub required: bool,
    /// The short flag, without dash.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub short: Option<char>,
}

/// One command of the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandRow {
    /// Its words.
    pub path: Vec<String>,
    pub arguments: Vec<Argument>,
}

/// The answer of `help`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Help {
    pub commands: Vec<HelpRow>,
    /// The flags every command takes.
    pub global_args: Vec<Argument>,
    /// What changes something.
    pub mutating_commands: [&'static str; MUTATING.len()],
    /// What else there is to know.
    pub notes: [&'static str; 3],
    /// Every target.
    pub targets: [&'static str; TargetKind::ALL.len()],
}

/// A command as `help` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HelpRow {
    pub args: Vec<Argument>,
    /// Its words and the flag that makes it a mutating one.
    pub id: String,
    /// Whether it changes something.
    pub mutating: bool,
    /// The same as a list.
    pub path: Vec<String>,
    /// Whether it answers in JSON.
    pub supports_json: bool,
}

/// The flags every command takes.
pub const GLOBAL_ARGUMENTS: [&str; 7] = ["dry_run", "json", "machine", "profile", "repo", "target", "yes"];

/// What changes something, and so needs `--yes` under `--json`.
pub const MUTATING: [&str; 13] = [
    "init",
    "add",
    "remove",
    "lock",
    "fetch",
    "update",
    "deploy --apply",
    "migrate --apply",
    "rollback",
    "doctor --fix",
    "overlay edit",
    "overlay rebase",
    "snapshots prune",
];

/// Commands whose output is not an envelope.
const WITHOUT_JSON: [&str; 2] = ["completions", "mcp serve"];

impl Pack {
    /// The commands, as data. The rows come from whoever parses the command line.
    pub fn help(&self, globals: Vec<Argument>, rows: Vec<CommandRow>) -> Answer<Help> {
        let mut commands = Vec::new();
        for CommandRow { path, arguments } in rows {
            let mut push = |path: Vec<String>, args: Vec<Argument>| {
                let id = path.join(" ");
                let mutating = MUTATING.contains(&id.as_str());
                let supports_json = !WITHOUT_JSON.contains(&id.as_str());
                commands.push(HelpRow { args, id, mutating, path, supports_json });
            };
            push(path.clone(), arguments.clone());
            // `doctor --fix` is listed beside `doctor`, since only one of them changes anything.
            if path == ["doctor"] {
                push([path, vec!["--fix".to_owned()]].concat(), arguments);
            }
        }
        let data = Help {
            commands,
            global_args: globals,
            mutating_commands: MUTATING,
            notes: [
                "recommended: doctor -> update -> preview -> deploy --apply",
                "in --json mode, mutating commands require --yes",
                "--dry-run writes nothing, in every command",
            ],
            targets: TargetKind::ALL.map(TargetKind::name),
        };
        Answer { data, warnings: Vec::new() }
    }

    /// The form of answers.
    pub fn schema(&self) -> Answer<Value> {
        let fields = |names: &[&str]| json!({"data_fields": names});
        let plan = fields(&["profile", "targets", "changes", "summary"]);
        let data = json!({
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
                "migrate": fields(&[
                    "applied", "config?", "left_alone", "manifest", "changes", "summary", "snapshot_id?", "undo?", "reason?",
                ]),
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
        });
        Answer { data: sorted(data), warnings: Vec::new() }
    }
}
