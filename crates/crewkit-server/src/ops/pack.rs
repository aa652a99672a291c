//! The pack operations: the verbs of `crewkit-pack` as rows of the table.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use crewkit_core::{Code, Toolset};
use crewkit_pack::PackError;
use crewkit_pack::commands::{Consent, Deploy, Explain, Pack};
use crewkit_pack::envelope::{self, Answer, CommandName};
use crewkit_pack::session::{Choices, Select};
use crewkit_pack::status::Kind;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{Approval, Call, Failure, HandlerResult, Hints, Operation, Problem, Progress, ProgressUpdate};

/// Every answer is an envelope, failures included.
const ENVELOPE: &str = r#"{
  "type": "object",
  "required": ["schema_version", "ok", "command", "version", "data", "warnings", "errors"],
  "properties": {
    "schema_version": { "type": "integer" },
    "ok": { "type": "boolean" },
    "command": { "type": "string" },
    "version": { "type": "string" },
    "data": { "type": "object" },
    "warnings": { "type": "array", "items": { "type": "string" } },
    "errors": { "type": "array", "items": { "type": "object" } }
  }
}"#;

const SELECTION: &str = r#"{
  "type": "object",
  "additionalProperties": false,
  "properties": {
    "repo": { "type": "string", "description": "Path to the agentpack config repo (default: $AGENTPACK_HOME/repo)." },
    "profile": { "type": "string", "default": "default" },
    "target": { "type": "string", "default": "all", "enum": ["all", "codex", "claude_code", "cursor", "vscode"] },
    "machine": { "type": "string", "description": "Machine id for machine overlays. Omit to auto-detect." },
    "dry_run": { "type": "boolean", "default": false }
  }
}"#;

const PREVIEW: &str = r#"{
  "type": "object",
  "additionalProperties": false,
  "properties": {
    "repo": { "type": "string", "description": "Path to the agentpack config repo (default: $AGENTPACK_HOME/repo)." },
    "profile": { "type": "string", "default": "default" },
    "target": { "type": "string", "default": "all", "enum": ["all", "codex", "claude_code", "cursor", "vscode"] },
    "machine": { "type": "string", "description": "Machine id for machine overlays. Omit to auto-detect." },
    "diff": { "type": "boolean", "default": false, "description": "Also return the unified diff of each file." },
    "dry_run": { "type": "boolean", "default": false }
  }
}"#;

const STATUS: &str = r#"{
  "type": "object",
  "additionalProperties": false,
  "properties": {
    "repo": { "type": "string", "description": "Path to the agentpack config repo (default: $AGENTPACK_HOME/repo)." },
    "profile": { "type": "string", "default": "default" },
    "target": { "type": "string", "default": "all", "enum": ["all", "codex", "claude_code", "cursor", "vscode"] },
    "machine": { "type": "string", "description": "Machine id for machine overlays. Omit to auto-detect." },
    "only": { "type": "array", "items": { "type": "string", "enum": ["missing", "modified", "extra"] } },
    "dry_run": { "type": "boolean", "default": false }
  }
}"#;

const DOCTOR: &str = r#"{
  "type": "object",
  "additionalProperties": false,
  "properties": {
    "repo": { "type": "string", "description": "Path to the agentpack config repo (default: $AGENTPACK_HOME/repo)." },
    "target": { "type": "string", "default": "all", "enum": ["all", "codex", "claude_code", "cursor", "vscode"] }
  }
}"#;

const DEPLOY_APPLY: &str = r#"{
  "type": "object",
  "additionalProperties": false,
  "required": ["yes"],
  "properties": {
    "repo": { "type": "string", "description": "Path to the agentpack config repo (default: $AGENTPACK_HOME/repo)." },
    "profile": { "type": "string", "default": "default" },
    "target": { "type": "string", "default": "all", "enum": ["all", "codex", "claude_code", "cursor", "vscode"] },
    "machine": { "type": "string", "description": "Machine id for machine overlays. Omit to auto-detect." },
    "adopt": { "type": "boolean", "default": false, "description": "Allow overwriting existing unmanaged files (adopt updates)." },
    "dry_run": { "type": "boolean", "default": false, "description": "Force dry-run behavior (do not apply even if this tool is the apply variant)." },
    "yes": { "const": true, "description": "Required explicit approval for mutating operations." }
  }
}"#;

const ROLLBACK: &str = r#"{
  "type": "object",
  "additionalProperties": false,
  "required": ["to", "yes"],
  "properties": {
    "repo": { "type": "string", "description": "Path to the agentpack config repo (default: $AGENTPACK_HOME/repo)." },
    "to": { "type": "string", "description": "Snapshot id to rollback to." },
    "yes": { "const": true, "description": "Required explicit approval for mutating operations." }
  }
}"#;

const EXPLAIN: &str = r#"{
  "type": "object",
  "additionalProperties": false,
  "required": ["kind"],
  "properties": {
    "kind": { "type": "string", "enum": ["plan", "diff", "status"], "description": "What to explain." },
    "repo": { "type": "string", "description": "Path to the agentpack config repo (default: $AGENTPACK_HOME/repo)." },
    "profile": { "type": "string", "default": "default" },
    "target": { "type": "string", "default": "all", "enum": ["all", "codex", "claude_code", "cursor", "vscode"] },
    "machine": { "type": "string", "description": "Machine id for machine overlays. Omit to auto-detect." },
    "dry_run": { "type": "boolean", "default": false }
  }
}"#;

/// Arguments that are taken though the schema, which is fixed, does not show them.
pub(super) const NOT_ADVERTISED: [(&str, &str); 1] = [("deploy_apply", "confirm_token")];

/// The rows.
pub fn operations() -> Vec<Operation> {
    vec![
        row("plan", "Plan", "Show what a deploy would create, update and delete.", SELECTION, |call| {
            answer(call, name(&["plan"]), |pack, call| pack.plan(&select(pack, call)?))
        }),
        row("diff", "Diff", "Show what a deploy would change; same data as plan.", SELECTION, |call| {
            answer(call, name(&["diff"]), |pack, call| pack.plan(&select(pack, call)?))
        }),
        row("preview", "Preview", "Show the plan, optionally with unified diffs.", PREVIEW, |call| {
            answer(call, name(&["preview"]), |pack, call| {
                pack.preview(&select(pack, call)?, call.flag("diff"))
            })
        }),
        row("status", "Status", "Compare deployed files with what they should be.", STATUS, |call| {
            answer(call, name(&["status"]), |pack, call| {
                let only = call.texts("only").unwrap_or_default();
                let only: Vec<Kind> = only.iter().filter_map(|kind| Kind::from_name(kind)).collect();
                pack.status(&select(pack, call)?, &only)
            })
        }),
        row("doctor", "Doctor", "Check that the places to deploy to are usable.", DOCTOR, |call| {
            answer(call, name(&["doctor"]), |pack, call| pack.doctor(&select(pack, call)?, None))
        }),
        row(
            "deploy",
            "Plan a deploy",
            "Show the plan and return a confirm_token for exactly that plan; changes nothing.",
            SELECTION,
            |call| {
                answer(call, name(&["deploy"]), |pack, call| pack.deploy_for_approval(&select(pack, call)?))
            },
        ),
        Operation {
            hints: Hints::DESTROY,
            approval: Approval::Yes,
            ..row(
                "deploy_apply",
                "Deploy",
                "Apply the plan: all of it or nothing. Requires yes=true.",
                DEPLOY_APPLY,
                |call| {
                    let command = name(&["deploy"]);
                    let dry_run = call
                        .services
                        .pack
                        .as_ref()
                        .is_some_and(|pack| select(pack, &call).is_ok_and(|select| select.dry_run));
                    let command = if dry_run { command } else { command.with_variant("--apply") };
                    answer(call, command, |pack, call| {
                        let deploy = Deploy {
                            apply: Some(Consent::Given),
                            adopt: call.flag("adopt"),
                            confirm_token: call.text("confirm_token").map(ToOwned::to_owned),
                        };
                        pack.deploy(&select(pack, call)?, &deploy)
                    })
                },
            )
        },
        Operation {
            hints: Hints::DESTROY,
            approval: Approval::Yes,
            ..row(
                "rollback",
                "Roll back",
                "Return to the state a snapshot left, or found (before:<id>). Requires yes=true.",
                ROLLBACK,
                |call| {
                    answer(call, name(&["rollback"]), |pack, call| {
                        pack.rollback(
                            &select(pack, call)?,
                            call.text("to").unwrap_or_default(),
                            Consent::Given,
                        )
                    })
                },
            )
        },
        row("explain", "Explain", "Say which modules and layers changes come from.", EXPLAIN, |call| {
            let (command, what) = match call.text("kind") {
                Some("status") => (name(&["explain", "status"]), Explain::Status),
                Some("diff") => (name(&["explain", "diff"]), Explain::Plan),
                _ => (name(&["explain", "plan"]), Explain::Plan),
            };
            answer(call, command, move |pack, call| pack.explain(&select(pack, call)?, what))
        }),
    ]
}

fn row(
    name: &'static str,
    title: &'static str,
    description: &'static str,
    input: &'static str,
    handler: super::Handler,
) -> Operation {
    Operation {
        name,
        title,
        description,
        toolset: Toolset::Pack,
        input,
        output: ENVELOPE,
        hints: Hints::READ,
        approval: Approval::NotNeeded,
        error_form,
        handler,
    }
}

fn name(path: &[&'static str]) -> CommandName {
    CommandName::new(path)
}

fn select(pack: &Pack, call: &Call) -> Result<Select, PackError> {
    pack.select(Choices {
        repo: call.text("repo").map(PathBuf::from),
        profile: call.text("profile").map(ToOwned::to_owned),
        target: call.text("target").map(ToOwned::to_owned),
        machine: call.text("machine").map(ToOwned::to_owned),
        dry_run: call.flag("dry_run"),
    })
}

/// Runs a verb away from the threads that serve connections; it reads and writes files.
fn answer(
    call: Call,
    command: CommandName,
    verb: impl FnOnce(&Pack, &Call) -> Result<Answer, PackError> + Send + 'static,
) -> Pin<Box<dyn Future<Output = HandlerResult> + Send>> {
    Box::pin(async move {
        let pack: Option<Arc<Pack>> = call.services.pack.clone();
        let Some(pack) = pack else {
            return Err(failure(&command, version(), &PackError::bug("this server has no pack service")));
        };
        let version = pack.env().version.clone();
        let named = command.clone();
        let pack = pack.telling(Arc::new(Caller {
            progress: call.progress.clone(),
            cancelled: call.cancelled.clone(),
            steps: Mutex::new(0),
        }));
        let work = tokio::task::spawn_blocking(move || verb(&pack, &call));
        match work.await {
            Ok(Ok(answer)) => Ok(envelope::success(&named, &version, answer)),
            Ok(Err(error)) => Err(failure(&named, &version, &error)),
            // A panic belongs to the net around all operations.
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(error) => Err(failure(&named, &version, &PackError::bug(error.to_string()))),
        }
    })
}

/// Whoever made a call, as a verb sees them.
struct Caller {
    progress: Progress,
    cancelled: CancellationToken,
    steps: Mutex<u32>,
}

impl crewkit_pack::env::Progress for Caller {
    fn at(&self, what: &str, done: usize, total: usize) {
        // A verb has several stretches of work, each counted anew; what a client is told must only grow.
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        *steps += 1;
        let message = Some(format!("{what}: {done} of {total}"));
        self.progress.report(ProgressUpdate { done: f64::from(*steps), total: None, message });
    }

    fn wanted(&self) -> bool {
        !self.cancelled.is_cancelled()
    }
}

fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

fn failure(command: &CommandName, version: &str, error: &PackError) -> Failure {
    Failure { status: status(error.code()), body: envelope::failure(command, version, error) }
}

/// The HTTP status that says the same as a code.
fn status(code: Code) -> u16 {
    match code {
        Code::ArgumentInvalid => 400,
        Code::IoPermissionDenied => 403,
        Code::ConfigMissing
        | Code::ProfileNotFound
        | Code::ModuleNotFound
        | Code::SnapshotNotFound
        | Code::SourceMissing
        | Code::OverlayNotFound
        | Code::LockfileMissing => 404,
        Code::ConfirmRequired
        | Code::AdoptConfirmRequired
        | Code::ConfirmTokenExpired
        | Code::ConfirmTokenMismatch
        | Code::DesiredStateConflict
        | Code::Drifted
        | Code::Locked => 409,
        Code::IoNoSpace => 507,
        Code::Unexpected | Code::Internal | Code::IoFailed | Code::RecoveryFailed => 500,
        _ => 422,
    }
}

/// Problems before a verb runs, as envelopes too.
fn error_form(operation: &Operation, problem: &Problem) -> Value {
    let command = match operation.name {
        "deploy_apply" => name(&["deploy"]).with_variant("--apply"),
        "explain" => name(&["explain"]),
        other => CommandName { path: vec![other], variant: None },
    };
    let mut error = PackError::new(problem.code, problem.message.clone());
    if problem.code == Code::ConfirmRequired {
        error = error.detail("command", command.id());
    } else if let Some(argument) = &problem.argument {
        error = error.detail("argument", argument.as_str());
    }
    envelope::failure(&command, version(), &error)
}
