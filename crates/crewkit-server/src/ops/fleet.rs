//! The fleet operations: the tools of `crewkit-fleet` as rows of the table.
//!
//! The output schemas here name fields and no more: every client pays for them in every conversation. What an answer
//! holds exactly is written down in `crewkit_fleet::schema`, which the fleet's own tests hold every answer against.

use std::convert::Infallible;
use std::pin::Pin;
use std::time::{Duration, Instant};

use crewkit_core::{Code, Toolset};
use crewkit_fleet::FleetError;
use serde_json::{Value, json};

use super::{
    Approval, Call, Failure, Handler, HandlerResult, Hints, Operation, Problem, Progress, ProgressUpdate,
};

/// How often a client that wants to know hears of a call that takes long.
const SIGN_OF_LIFE: Duration = Duration::from_secs(10);

const BY_NAME: &str =
    r#"{"type":"object","properties":{"agent_name":{"type":"string"}},"required":["agent_name"]}"#;

const CREATE: &str = r#"{
  "type": "object",
  "properties": {
    "name": { "type": "string", "description": "Unique, 1-20 letters, digits and hyphens." },
    "project": { "type": "string", "description": "See list_agent_projects." },
    "role": { "type": "string", "description": "See list_agent_roles; default coder." },
    "spec": { "type": "string", "description": "Objective, context and deliverables." },
    "task": { "type": "string", "description": "Another name for spec." }
  },
  "required": ["name", "project"]
}"#;

const LIST: &str = r#"{
  "type": "object",
  "properties": {
    "status_filter": { "anyOf":[{"type":"string"},{"type":"null"}], "description": "pending, starting, busy, idle, stopping, stopped, failed, canceling, canceled, deleting, deleted or offline." },
    "project_filter": { "anyOf":[{"type":"string"},{"type":"null"}] },
    "role_filter": { "anyOf":[{"type":"string"},{"type":"null"}] },
    "include_metadata": { "type": "boolean", "default": true },
    "limit": { "anyOf":[{"type":"integer"},{"type":"null"}] },
    "offset": { "anyOf":[{"type":"integer"},{"type":"null"}] }
  }
}"#;

const HISTORY: &str = r#"{
  "type": "object",
  "properties": {
    "agent_name": { "type": "string" },
    "page": { "type": "integer", "default": 1 },
    "page_size": { "type": "integer", "default": 20, "description": "At most 100." },
    "raw": { "type": "boolean", "default": false, "description": "Every report as it came." }
  },
  "required": ["agent_name"]
}"#;

const START: &str = r#"{
  "type": "object",
  "properties": { "agent_name": { "type": "string" }, "task_description": { "type": "string" } },
  "required": ["agent_name", "task_description"]
}"#;

const ROLES: &str = r#"{"type":"object","properties":{"project":{"type":"string"}},"required":["project"]}"#;

const NOTHING: &str = r#"{"type":"object","properties":{}}"#;

const LOG: &str = r#"{
  "type": "object",
  "properties": {
    "agent_name": { "type": "string" },
    "page": { "type": "integer", "default": 1, "description": "The newest entries are on page 1." },
    "page_size": { "type": "integer", "default": 1 }
  },
  "required": ["agent_name"]
}"#;

const WAIT: &str = r#"{
  "type": "object",
  "properties": {
    "agent_name": { "type": "string" },
    "status": { "type": "string", "default": "idle" },
    "timeout_seconds": { "type": "integer", "default": 60 }
  },
  "required": ["agent_name"]
}"#;

const EQUIP: &str = r#"{
  "type": "object",
  "properties": {
    "agent_name": { "type": "string" },
    "project": { "type": "string" },
    "all": { "type": "boolean" },
    "profile": { "type": "string" },
    "canary": { "type": "integer" },
    "rollback": { "type": "boolean" },
    "yes": { "const": true }
  },
  "required": ["yes"]
}"#;

const DRIFT: &str =
    r#"{"type":"object","properties":{"agent_name":{"type":"string"},"project":{"type":"string"}}}"#;

const ANYTHING: &str = r#"{"type":"object"}"#;

const AGENT: &str = r#"{"type":"object","properties":{"agent":{"type":"object"}}}"#;
const AGENTS: &str =
    r#"{"type":"object","properties":{"agents":{"type":"array"},"total_count":{"type":"integer"}}}"#;
const TASKS: &str = r#"{"type":"object","properties":{"tasks":{"type":"array"},"total_count":{"type":"integer"},"total_pages":{"type":"integer"}}}"#;
const TASK: &str =
    r#"{"type":"object","properties":{"task":{"type":"object"},"agent_status":{"type":"string"}}}"#;
const STATUS: &str =
    r#"{"type":"object","properties":{"agent_name":{"type":"string"},"status":{"type":"string"}}}"#;
const ROLE_LIST: &str = r#"{"type":"object","properties":{"roles":{"type":"array"}}}"#;
const PROJECT_LIST: &str = r#"{"type":"object","properties":{"projects":{"type":"array"}}}"#;
const LOGS: &str =
    r#"{"type":"object","properties":{"logs":{"type":"array"},"total_pages":{"type":"integer"}}}"#;

/// The rows, in the order of the contract; what it does not know comes last.
#[expect(clippy::too_many_lines, reason = "a table is as long as it has rows")]
pub fn operations() -> Vec<Operation> {
    let read = Hints::READ_REMOTE;
    let add = Hints::ADD.remote();
    vec![
        row(
            "create_agent",
            "Create an agent",
            "Create an agent in a workspace of its own; it starts on its spec at once.",
            (CREATE, AGENT),
            add,
            |call| answer(call, "create_agent"),
        ),
        row(
            "list_agents",
            "List agents",
            "List agents with status, current task and metadata.",
            (LIST, AGENTS),
            read,
            |call| answer(call, "list_agents"),
        ),
        row(
            "show_agent",
            "Show an agent",
            "Show everything about one agent.",
            (BY_NAME, AGENT),
            read,
            |call| answer(call, "show_agent"),
        ),
        row(
            "show_agent_task_history",
            "Task history",
            "Show what an agent has done, newest first; on Coder since its workspace last started.",
            (HISTORY, TASKS),
            read,
            |call| answer(call, "show_agent_task_history"),
        ),
        row(
            "delete_agent",
            "Delete an agent",
            "Delete an agent and its workspace, even while it is busy.",
            (BY_NAME, STATUS),
            Hints::DESTROY.remote(),
            |call| answer(call, "delete_agent"),
        ),
        row("start_agent_task", "Start a task", "Give an idle agent a task.", (START, TASK), add, |call| {
            answer(call, "start_agent_task")
        }),
        row(
            "stop_agent_task",
            "Stop a task",
            "Interrupt the task an agent works on.",
            (BY_NAME, TASK),
            Hints::DESTROY.remote(),
            |call| answer(call, "stop_agent_task"),
        ),
        row(
            "cancel_agent_task",
            "Cancel a task",
            "Same as stop_agent_task.",
            (BY_NAME, TASK),
            Hints::DESTROY.remote(),
            |call| answer(call, "cancel_agent_task"),
        ),
        row(
            "list_agent_roles",
            "List roles",
            "List the roles agents of a project can have.",
            (ROLES, ROLE_LIST),
            read,
            |call| answer(call, "list_agent_roles"),
        ),
        row(
            "list_agent_projects",
            "List projects",
            "List the projects agents can work on.",
            (NOTHING, PROJECT_LIST),
            read,
            |call| answer(call, "list_agent_projects"),
        ),
        row(
            "restart_agent",
            "Restart an agent",
            "Stop and start the workspace of an agent, or start it when it is stopped.",
            (BY_NAME, STATUS),
            Hints::DESTROY.remote(),
            |call| answer(call, "restart_agent"),
        ),
        row(
            "show_agent_log",
            "Agent log",
            "Show what an agent was told and said, newest first.",
            (LOG, LOGS),
            read,
            |call| answer(call, "show_agent_log"),
        ),
        row(
            "wait_for_agent",
            "Wait for an agent",
            "Wait until an agent has a status, instead of asking again and again.",
            (WAIT, STATUS),
            read,
            |call| answer(call, "wait_for_agent"),
        ),
        Operation {
            approval: Approval::Yes,
            ..row(
                "equip_agents",
                "Equip agents",
                "Deploy a pack profile into workspaces, or take it back. Requires yes=true.",
                (EQUIP, ANYTHING),
                Hints::DESTROY,
                |call| answer(call, "equip_agents"),
            )
        },
        row(
            "fleet_drift",
            "Kit drift",
            "Show where workspaces differ from their kit.",
            (DRIFT, ANYTHING),
            Hints::READ,
            |call| answer(call, "fleet_drift"),
        ),
    ]
}

fn row(
    name: &'static str,
    title: &'static str,
    description: &'static str,
    (input, output): (&'static str, &'static str),
    hints: Hints,
    handler: Handler,
) -> Operation {
    Operation {
        name,
        title,
        description,
        toolset: Toolset::Fleet,
        input,
        output,
        hints,
        approval: Approval::NotNeeded,
        error_form,
        handler,
    }
}

fn answer(call: Call, tool: &'static str) -> Pin<Box<dyn Future<Output = HandlerResult> + Send>> {
    Box::pin(async move {
        let Some(fleet) = call.services.fleet.clone() else {
            let message = "no place for workspaces is configured; set CODER_URL and CODER_SESSION_TOKEN, \
                           or [fleet.coder] in crewkit.toml";
            let error =
                FleetError::unavailable(message).with("reason", "not_configured").with("operation", tool);
            return Err(failure(&error));
        };
        let forward = call.services.agents.forward().cloned();
        let work = async {
            let again = forward.is_some().then(|| call.arguments.clone());
            match (fleet.call(tool, call.arguments).await, forward, again) {
                // Another process has the record; nothing was done here, so it is asked instead.
                (Err(error), Some(forward), Some(arguments)) if error.is_locked() => {
                    let told = forward(tool, arguments).await;
                    let answer = told.map_err(|message| failure(&error.clone().with("server", message)))?;
                    if answer.failed() {
                        return Err(Failure { status: answer.status, body: answer.body });
                    }
                    Ok(answer.body)
                }
                (outcome, ..) => outcome.map_err(|error| failure(&error)),
            }
        };
        tokio::select! {
            outcome = work => outcome,
            never = sign_of_life(&call.progress, tool, SIGN_OF_LIFE) => match never {},
            // Nobody waits for the answer any more. A write that has been sent is carried out all the same.
            () = call.cancelled.cancelled() => {
                Err(failure(&FleetError::unavailable("the request was canceled").with("operation", tool)))
            }
        }
    })
}

/// Tells that a call is still at work: many clients give up after a minute of silence, and a fleet may take longer.
async fn sign_of_life(progress: &Progress, tool: &str, every: Duration) -> Infallible {
    let begun = Instant::now();
    loop {
        tokio::time::sleep(every).await;
        let taken = begun.elapsed();
        let message = Some(format!("{tool} has been at work for {} s", taken.as_secs()));
        progress.report(ProgressUpdate { done: taken.as_secs_f64(), total: None, message });
    }
}

fn failure(error: &FleetError) -> Failure {
    let body = serde_json::to_value(error.body()).unwrap_or_default();
    Failure { status: error.kind().status(), body }
}

/// Problems before a tool runs, in the form of the contract.
fn error_form(operation: &Operation, problem: &Problem) -> Value {
    let code = if problem.status < 500 { Code::FleetBadRequest } else { Code::FleetUnavailable };
    json!({
        "error": code,
        "message": problem.message,
        "details": {
            "status": problem.status,
            "operation": operation.name,
            "field": problem.argument,
            "code": problem.code,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_call_that_takes_long_shows_signs_of_life() {
        let (sender, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let progress = Progress::to(sender);
        let two = async { (heard.recv().await.unwrap(), heard.recv().await.unwrap()) };
        let (first, second) = tokio::select! {
            two = two => two,
            never = sign_of_life(&progress, "wait_for_agent", Duration::from_millis(1)) => match never {},
        };
        assert_eq!(first.message.as_deref(), Some("wait_for_agent has been at work for 0 s"));
        assert!(first.done < second.done, "progress has to grow");
    }
}
