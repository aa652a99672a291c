//! The fleet operations: the tools of `crewkit-fleet` as rows of the table.
//!
//! Arguments and answers are the fleet's own types, which their schemas are derived from. The output schemas of the tools name
//! fields and no more: every client pays for them in every conversation.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crewkit_core::{Code, Toolset};
use crewkit_fleet::error::ErrorBody;
use crewkit_fleet::model::{CreateAgent, NoArguments, StartTask, TaskSource};
use crewkit_fleet::{AnyFleet, FleetError};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::schema::derive_output;
use super::{
    Approval, Call, Doors, Failure, HandlerResult, Hints, JsonObject, Operation, Problem, Progress,
    ProgressUpdate, Schema, Source,
};

/// How often a client that asked for progress hears of a call that takes long.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);
/// The largest page; a larger one that is asked for is cut to it.
const LARGEST_PAGE: f64 = 100.0;

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

const CHANGES: &str = r#"{"type":"object","properties":{"files":{"type":"array"},"next":{"type":"string"}}}"#;

const LANDING: &str =
    r#"{"type":"object","properties":{"outcome":{"type":"string"},"plan":{"type":"string"}}}"#;

/// The rows, in the order of the contract; what it does not know comes last.
#[expect(clippy::too_many_lines, reason = "a table is as long as it has rows")]
pub fn operations() -> Vec<Operation> {
    let read = Hints::READ_REMOTE;
    let add = Hints::ADD.remote();
    let destroy = Hints::DESTROY.remote();
    vec![
        Operation {
            rewrite: accept_task,
            ..row(
                "create_agent",
                "Create an agent",
                "Create an agent in a workspace of its own; it starts on its spec at once.",
                (add, Doors::tool(AGENT).cli(&["fleet", "create"], &["name", "spec"])),
                |fleet, input, source| async move { fleet.create_agent(CreateAgent { source, ..input }).await },
            )
        },
        row(
            "list_agents",
            "List agents",
            "List agents with status, current task and metadata.",
            (read, Doors::tool(AGENTS).cli(&["fleet", "list"], &[])),
            |fleet, input, _| async move { fleet.list_agents(input).await },
        ),
        row(
            "show_agent",
            "Show an agent",
            "Show everything about one agent.",
            (read, Doors::tool(AGENT).cli(&["fleet", "show"], &["agent_name"])),
            |fleet, input, _| async move { fleet.show_agent(input).await },
        ),
        row(
            "show_agent_task_history",
            "Task history",
            "Show what an agent has done, newest first; on Coder since its workspace last started.",
            (read, Doors::tool(TASKS).cli(&["fleet", "history"], &["agent_name"])),
            |fleet, input, _| async move { fleet.show_agent_task_history(input).await },
        ),
        row(
            "delete_agent",
            "Delete an agent",
            "Delete an agent and its workspace, even while it is busy.",
            (destroy, Doors::tool(STATUS).cli(&["fleet", "delete"], &["agent_name"])),
            |fleet, input, _| async move { fleet.delete_agent(input).await },
        ),
        row(
            "start_agent_task",
            "Start a task",
            "Give an idle agent a task.",
            (add, Doors::tool(TASK).cli(&["fleet", "start"], &["agent_name", "task_description"])),
            |fleet, input, source| async move { fleet.start_agent_task(StartTask { source, ..input }).await },
        ),
        row(
            "stop_agent_task",
            "Stop a task",
            "Interrupt the task an agent works on.",
            (destroy, Doors::tool(TASK).cli(&["fleet", "stop"], &["agent_name"])),
            |fleet, input, _| async move { fleet.stop_agent_task(input).await },
        ),
        row(
            "cancel_agent_task",
            "Cancel a task",
            "Same as stop_agent_task.",
            (destroy, Doors::tool(TASK)),
            |fleet, input, _| async move { fleet.stop_agent_task(input).await },
        ),
        row(
            "list_agent_roles",
            "List roles",
            "List the roles agents of a project can have.",
            (read, Doors::tool(ROLE_LIST).cli(&["fleet", "roles"], &["project"])),
            |fleet, input, _| async move { fleet.list_agent_roles(input).await },
        ),
        row(
            "list_agent_projects",
            "List projects",
            "List the projects agents can work on.",
            (read, Doors::tool(PROJECT_LIST).cli(&["fleet", "projects"], &[])),
            |fleet, NoArguments {}, _| async move { fleet.list_agent_projects().await },
        ),
        row(
            "restart_agent",
            "Restart an agent",
            "Stop and start the workspace of an agent, or start it when it is stopped.",
            (destroy, Doors::tool(STATUS).cli(&["fleet", "restart"], &["agent_name"])),
            |fleet, input, _| async move { fleet.restart_agent(input).await },
        ),
        row(
            "show_agent_log",
            "Agent log",
            "Show what an agent was told and said, newest first.",
            (read, Doors::tool(LOGS).cli(&["fleet", "log"], &["agent_name"])),
            |fleet, input, _| async move { fleet.show_agent_log(input).await },
        ),
        row(
            "wait_for_agent",
            "Wait for an agent",
            "Wait until an agent has a status, instead of asking again and again.",
            (read, Doors::tool(STATUS).cli(&["fleet", "wait"], &["agent_name"])),
            |fleet, input, _| async move { fleet.wait_for_agent(input).await },
        ),
        Operation {
            approval: Approval::Yes,
            ..row(
                "equip_agents",
                "Equip agents",
                "Deploy a pack profile into workspaces, or take it back. Requires yes=true.",
                (Hints::DESTROY, Doors::tool(ANYTHING).cli(&["fleet", "equip"], &["agent_name"])),
                |fleet, input, _| async move { fleet.equip_agents(input).await },
            )
        },
        row(
            "fleet_drift",
            "Kit drift",
            "Show where workspaces differ from their kit.",
            (Hints::READ, Doors::tool(ANYTHING).cli(&["fleet", "drift"], &["agent_name"])),
            |fleet, input, _| async move { fleet.fleet_drift(input).await },
        ),
        row(
            "agent_diff",
            "Show changes",
            "Show what an agent changed against its base, file by file, uncommitted work included.",
            (Hints::READ, Doors::tool(CHANGES).cli(&["fleet", "diff"], &["agent_name"])),
            |fleet, input, _| async move { fleet.agent_diff(input).await },
        ),
        row(
            "land_agent",
            "Land work",
            "Bring an agent's work onto its base branch. First shows a plan; call again with its `plan` id.",
            (Hints::DESTROY, Doors::tool(LANDING).cli(&["fleet", "land"], &["agent_name"])),
            |fleet, input, _| async move { fleet.land_agent(input).await },
        ),
        row(
            "project_add",
            "Add a project",
            "Register a repository or directory of this machine as a project.",
            (
                Hints::CHANGE,
                Doors::shown_with(&["create_agent"]).cli(&["fleet", "project", "add"], &["path"]),
            ),
            |fleet, input, _| async move { fleet.add_project(input).await },
        ),
        row(
            "project_remove",
            "Remove a project",
            "Forget a project of this machine that has no agents; its files stay.",
            (
                Hints::DESTROY,
                Doors::shown_with(&["create_agent"]).cli(&["fleet", "project", "remove"], &["project"]),
            ),
            |fleet, input, _| async move { fleet.remove_project(input).await },
        ),
    ]
}

/// A tool as a row. `tool` is the method of the fleet that carries it out.
fn row<I, O, F>(
    name: &'static str,
    title: &'static str,
    description: &'static str,
    (hints, doors): (Hints, Doors),
    tool: impl Fn(AnyFleet, I, TaskSource) -> F + Send + Sync + Copy + 'static,
) -> Operation
where
    I: DeserializeOwned + JsonSchema + Send + 'static,
    O: Serialize + JsonSchema + 'static,
    F: Future<Output = Result<O, FleetError>> + Send + 'static,
{
    Operation {
        name,
        title,
        description,
        toolset: Some(Toolset::Fleet),
        input: Schema::of_input::<I>(),
        output: Schema::Derived(placed_schema::<O>),
        failure: Schema::of_output::<ErrorBody>(),
        hints,
        approval: Approval::NotNeeded,
        doors,
        rewrite: cut_page,
        error_form,
        handler: Arc::new(move |call| Box::pin(answer(call, name, hints.read_only, tool))),
    }
}

async fn answer<I: DeserializeOwned, O: Serialize, F: Future<Output = Result<O, FleetError>>>(
    mut call: Call,
    name: &'static str,
    is_read_only: bool,
    tool: impl Fn(AnyFleet, I, TaskSource) -> F,
) -> HandlerResult {
    let failed = |error: FleetError| failure(&error.with("operation", name));
    let Some(own) = &call.services.fleet else {
        let message = "no place for workspaces is configured; set CODER_URL and CODER_SESSION_TOKEN, \
                       or [fleet.coder] in crewkit.toml";
        return Err(failed(FleetError::unavailable(message).with("reason", "not_configured")));
    };
    let fleet = choose_place(own, &call.services.other_fleets, name, &mut call.arguments).map_err(failed)?;
    let place = fleet.place().to_owned();
    let source = match call.source {
        Source::Tool => TaskSource::AiController,
        Source::Cli | Source::Page => TaskSource::Human,
    };
    let input = call.input().map_err(|error| failed(FleetError::bad_request(error.to_string())))?;
    let work = async {
        match Box::pin(tool(fleet, input, source)).await {
            Ok(answer) => Ok(with_place(serde_json::to_value(answer).unwrap_or_default(), &place)),
            Err(error) => Err(failed(error)),
        }
    };
    tokio::select! {
        outcome = work => outcome,
        never = report_duration(&call.progress, name, PROGRESS_INTERVAL) => match never {},
        // Nobody waits for the answer any more, and nothing is left half done.
        () = call.cancelled.cancelled(), if is_read_only => {
            Err(failed(FleetError::unavailable("the request was canceled")))
        }
    }
}

/// The fleet that the agent of a call belongs to: the asker's own, unless the name says `place/name`. Leaves the name alone in
/// the arguments.
fn choose_place(
    own: &AnyFleet,
    others: &[AnyFleet],
    operation: &str,
    arguments: &mut JsonObject,
) -> Result<AnyFleet, FleetError> {
    let field = if operation == "create_agent" { "name" } else { "agent_name" };
    let Some(Value::String(named)) = arguments.get_mut(field) else { return Ok(own.clone()) };
    let Some((place, name)) = named.split_once('/') else { return Ok(own.clone()) };
    let Some(fleet) = std::iter::once(own).chain(others).find(|fleet| fleet.place() == place) else {
        let known: Vec<&str> = std::iter::once(own).chain(others).map(AnyFleet::place).collect();
        let message = format!("This server reaches no agents at `{place}`. It reaches {}", known.join(", "));
        return Err(FleetError::invalid(field, message));
    };
    *named = name.to_owned();
    Ok(fleet.clone())
}

/// An answer, with the place beside the name of each agent.
fn with_place(mut answer: Value, place: &str) -> Value {
    if answer["agents"].is_array() {
        for agent in answer["agents"].as_array_mut().into_iter().flatten().filter(|agent| agent.is_object()) {
            agent["place"] = place.into();
        }
    } else if answer["agent"].is_object() {
        answer["agent"]["place"] = place.into();
    } else if answer["agent_name"].is_string() {
        answer["place"] = place.into();
    }
    answer
}

/// The schema of an answer, with what [`with_place`] adds.
fn placed_schema<O: JsonSchema>() -> JsonObject {
    let mut schema = derive_output::<O>();
    let place = json!({"type": "string", "description": "Its place: `local`, or the host of a Coder."});
    if let Some(fields) = schema.get_mut("properties") {
        if fields["agents"].is_object() {
            fields["agents"]["items"]["properties"]["place"] = place;
        } else if fields["agent"].is_object() {
            fields["agent"]["properties"]["place"] = place;
        } else if fields["agent_name"].is_object() {
            fields["place"] = place;
        }
    }
    schema
}

/// Accepts `task` as another name for `spec`.
fn accept_task(arguments: &mut JsonObject) {
    if arguments.get("spec").is_none_or(|spec| arguments.get("task") == Some(spec))
        && let Some(task) = arguments.shift_remove("task")
    {
        arguments.insert("spec".to_owned(), task);
    }
}

/// Cuts a page that is too large, as the contract says.
fn cut_page(arguments: &mut JsonObject) {
    if let Some(size) = arguments.get_mut("page_size")
        && size.as_f64().is_some_and(|size| size > LARGEST_PAGE)
    {
        *size = json!(LARGEST_PAGE);
    }
}

/// Reports that a call is still under way: many clients give up after a minute of silence, and a fleet may take longer.
async fn report_duration(progress: &Progress, tool: &str, every: Duration) -> Infallible {
    let begun = Instant::now();
    loop {
        tokio::time::sleep(every).await;
        let taken = begun.elapsed();
        let message = Some(format!("{tool} has been running for {} s", taken.as_secs()));
        progress.report(ProgressUpdate::step(taken.as_secs_f64(), None, message));
    }
}

fn failure(error: &FleetError) -> Failure {
    let body = serde_json::to_value(error.body()).unwrap_or_default();
    Failure { status: error.kind().status(), body }
}

/// Problems before a tool runs, in the form of the contract.
fn error_form(operation: &Operation, problem: &Problem) -> Value {
    let status = problem.code.http_status();
    let code = if status < 500 { Code::FleetBadRequest } else { Code::FleetUnavailable };
    json!({
        "error": code,
        "message": problem.message,
        "details": {
            "status": status,
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
    async fn a_call_that_takes_long_reports_progress() {
        let (sender, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let progress = Progress::to(sender);
        let two = async { (heard.recv().await.unwrap(), heard.recv().await.unwrap()) };
        let (first, second) = tokio::select! {
            two = two => two,
            never = report_duration(&progress, "wait_for_agent", Duration::from_millis(1)) => match never {},
        };
        assert_eq!(first.message.as_deref(), Some("wait_for_agent has been running for 0 s"));
        assert!(first.done < second.done, "progress has to grow");
    }
}
