//! The pack operations: the verbs of `crewkit-pack` as rows of the table.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use crewkit_core::{Code, Toolset};
use crewkit_pack::PackError;
use crewkit_pack::commands::{Choices, Consent, Deploy, Explain, Pack, Select};
use crewkit_pack::envelope::{self, Answer, CommandName, Envelope};
use crewkit_pack::plan::status::Kind;
use futures_util::future::BoxFuture;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{
    Approval, Call, Doors, Failure, HandlerResult, Hints, JsonObject, Operation, Problem, Progress,
    ProgressUpdate, Schema,
};

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

/// The arguments of all pack operations; each has those that its schema shows.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PackInput {
    repo: Option<PathBuf>,
    profile: Option<String>,
    target: Option<String>,
    machine: Option<String>,
    dry_run: bool,
    diff: bool,
    only: Vec<String>,
    adopt: bool,
    confirm_token: Option<String>,
    to: String,
    kind: String,
}

/// Arguments that are taken though the schema, which is fixed, does not show them.
pub(super) const NOT_ADVERTISED: [(&str, &str); 1] = [("deploy_apply", "confirm_token")];

/// The rows.
#[expect(clippy::too_many_lines, reason = "a table is as long as it has rows")]
pub fn operations() -> Vec<Operation> {
    vec![
        row(
            "plan",
            "Plan",
            "Show what a deploy would create, update and delete.",
            SELECTION,
            |call, input| {
                answer(call, input, name(&["plan"]), |pack, input| pack.plan(&select(pack, input)?))
            },
        ),
        row(
            "diff",
            "Diff",
            "Show what a deploy would change; same data as plan.",
            SELECTION,
            |call, input| {
                answer(call, input, name(&["diff"]), |pack, input| pack.plan(&select(pack, input)?))
            },
        ),
        row("preview", "Preview", "Show the plan, optionally with unified diffs.", PREVIEW, |call, input| {
            answer(call, input, name(&["preview"]), |pack, input| {
                pack.preview(&select(pack, input)?, input.diff)
            })
        }),
        row("status", "Status", "Compare deployed files with what they should be.", STATUS, |call, input| {
            answer(call, input, name(&["status"]), |pack, input| {
                let only: Vec<Kind> = input.only.iter().filter_map(|kind| Kind::from_name(kind)).collect();
                pack.status(&select(pack, input)?, &only)
            })
        }),
        row("doctor", "Doctor", "Check that the places to deploy to are usable.", DOCTOR, |call, input| {
            answer(call, input, name(&["doctor"]), |pack, input| pack.doctor(&select(pack, input)?, None))
        }),
        row(
            "deploy",
            "Plan a deploy",
            "Show the plan and return a confirm_token for exactly that plan; changes nothing.",
            SELECTION,
            |call, input| {
                answer(call, input, name(&["deploy"]), |pack, input| {
                    pack.deploy_for_approval(&select(pack, input)?)
                })
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
                |call, input| {
                    let command = name(&["deploy"]);
                    let dry_run = call
                        .services
                        .pack
                        .as_ref()
                        .is_some_and(|pack| select(pack, &input).is_ok_and(|select| select.dry_run));
                    let command = if dry_run { command } else { command.with_variant("--apply") };
                    answer(call, input, command, |pack, input| {
                        let deploy = Deploy {
                            apply: Some(Consent::Given),
                            adopt: input.adopt,
                            confirm_token: input.confirm_token.clone(),
                        };
                        pack.deploy(&select(pack, input)?, &deploy)
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
                |call, input| {
                    answer(call, input, name(&["rollback"]), |pack, input| {
                        pack.rollback(&select(pack, input)?, &input.to, Consent::Given)
                    })
                },
            )
        },
        row(
            "explain",
            "Explain",
            "Say which modules and layers changes come from.",
            EXPLAIN,
            |call, input| {
                let (command, what) = match input.kind.as_str() {
                    "status" => (name(&["explain", "status"]), Explain::Status),
                    "diff" => (name(&["explain", "diff"]), Explain::Plan),
                    _ => (name(&["explain", "plan"]), Explain::Plan),
                };
                answer(call, input, command, move |pack, input| pack.explain(&select(pack, input)?, what))
            },
        ),
    ]
}

fn row(
    name: &'static str,
    title: &'static str,
    description: &'static str,
    input: &'static str,
    verb: fn(Call, PackInput) -> BoxFuture<'static, HandlerResult>,
) -> Operation {
    Operation {
        name,
        title,
        description,
        toolset: Some(Toolset::Pack),
        input: Schema::Literal(input),
        output: Schema::of_output::<Envelope<'_, JsonObject>>(),
        failure: Schema::of_output::<Envelope<'_, JsonObject>>(),
        hints: Hints::READ,
        approval: Approval::NotNeeded,
        // `crewkit pack` has commands of its own, which work without a server.
        doors: Doors::tool(ENVELOPE),
        rewrite: |_| {},
        error_form,
        handler: Arc::new(move |mut call| match call.input() {
            Ok(input) => verb(call, input),
            Err(error) => {
                let error = PackError::new(Code::ArgumentInvalid, error.to_string());
                let failed = failure(&CommandName::new(&[name]), version(), &error);
                Box::pin(std::future::ready(Err(failed)))
            }
        }),
    }
}

fn name(path: &[&'static str]) -> CommandName {
    CommandName::new(path)
}

fn select(pack: &Pack, input: &PackInput) -> Result<Select, PackError> {
    let PackInput { repo, profile, target, machine, dry_run, .. } = input.clone();
    pack.select(Choices { repo, profile, target, machine, dry_run })
}

/// Runs a verb away from the threads that serve connections; it reads and writes files.
fn answer<T: Serialize + Send + 'static>(
    call: Call,
    input: PackInput,
    command: CommandName,
    verb: impl FnOnce(&Pack, &PackInput) -> Result<Answer<T>, PackError> + Send + 'static,
) -> BoxFuture<'static, HandlerResult> {
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
        let work = tokio::task::spawn_blocking(move || verb(&pack, &input));
        match work.await {
            Ok(Ok(answer)) => Ok(envelope::success(&named, &version, &answer)),
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
        self.progress.report(ProgressUpdate::step(f64::from(*steps), None, message));
    }

    fn wanted(&self) -> bool {
        !self.cancelled.is_cancelled()
    }
}

fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

fn failure(command: &CommandName, version: &str, error: &PackError) -> Failure {
    Failure { status: error.code().http_status(), body: envelope::failure(command, version, error) }
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
