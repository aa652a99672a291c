//! The fleet operations: the tools of `crewkit-fleet` as rows of the table.
//!
//! Arguments are read into the fleet's own types, which their schemas are derived from. The output schemas here name fields and
//! no more: every client pays for them in every conversation.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crewkit_core::{Code, Toolset};
use crewkit_fleet::model::{CreateAgent, NoArguments, ProjectChanged, StartTask, TaskSource};
use crewkit_fleet::{AnyFleet, FleetError};
use futures_util::future::BoxFuture;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

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
                Row {
                    name: "create_agent",
                    title: "Create an agent",
                    description: "Create an agent in a workspace of its own; it starts on its spec at once.",
                    output: AGENT,
                    hints: add,
                    doors: Doors::TOOL.cli(&["fleet", "create"], &["name", "spec"]),
                },
                |fleet, input, source| {
                    Box::pin(async move { fleet.create_agent(CreateAgent { source, ..input }).await })
                },
            )
        },
        row(
            Row {
                name: "list_agents",
                title: "List agents",
                description: "List agents with status, current task and metadata.",
                output: AGENTS,
                hints: read,
                doors: Doors::TOOL.cli(&["fleet", "list"], &[]),
            },
            |fleet, input, _| Box::pin(async move { fleet.list_agents(input).await }),
        ),
        row(
            Row {
                name: "show_agent",
                title: "Show an agent",
                description: "Show everything about one agent.",
                output: AGENT,
                hints: read,
                doors: Doors::TOOL.cli(&["fleet", "show"], &["agent_name"]),
            },
            |fleet, input, _| Box::pin(async move { fleet.show_agent(input).await }),
        ),
        row(
            Row {
                name: "show_agent_task_history",
                title: "Task history",
                description: "Show what an agent has done, newest first; on Coder since its workspace last started.",
                output: TASKS,
                hints: read,
                doors: Doors::TOOL.cli(&["fleet", "history"], &["agent_name"]),
            },
            |fleet, input, _| Box::pin(async move { fleet.show_agent_task_history(input).await }),
        ),
        row(
            Row {
                name: "delete_agent",
                title: "Delete an agent",
                description: "Delete an agent and its workspace, even while it is busy.",
                output: STATUS,
                hints: destroy,
                doors: Doors::TOOL.cli(&["fleet", "delete"], &["agent_name"]),
            },
            |fleet, input, _| Box::pin(async move { fleet.delete_agent(input).await }),
        ),
        row(
            Row {
                name: "start_agent_task",
                title: "Start a task",
                description: "Give an idle agent a task.",
                output: TASK,
                hints: add,
                doors: Doors::TOOL.cli(&["fleet", "start"], &["agent_name", "task_description"]),
            },
            |fleet, input, source| {
                Box::pin(async move { fleet.start_agent_task(StartTask { source, ..input }).await })
            },
        ),
        row(
            Row {
                name: "stop_agent_task",
                title: "Stop a task",
                description: "Interrupt the task an agent works on.",
                output: TASK,
                hints: destroy,
                doors: Doors::TOOL.cli(&["fleet", "stop"], &["agent_name"]),
            },
            |fleet, input, _| Box::pin(async move { fleet.stop_agent_task(input).await }),
        ),
        row(
            Row {
                name: "cancel_agent_task",
                title: "Cancel a task",
                description: "Same as stop_agent_task.",
                output: TASK,
                hints: destroy,
                doors: Doors::TOOL,
            },
            |fleet, input, _| Box::pin(async move { fleet.stop_agent_task(input).await }),
        ),
        row(
            Row {
                name: "list_agent_roles",
                title: "List roles",
                description: "List the roles agents of a project can have.",
                output: ROLE_LIST,
                hints: read,
                doors: Doors::TOOL.cli(&["fleet", "roles"], &["project"]),
            },
            |fleet, input, _| Box::pin(async move { fleet.list_agent_roles(input).await }),
        ),
        row(
            Row {
                name: "list_agent_projects",
                title: "List projects",
                description: "List the projects agents can work on.",
                output: PROJECT_LIST,
                hints: read,
                doors: Doors::TOOL.cli(&["fleet", "projects"], &[]),
            },
            |fleet, NoArguments {}, _| Box::pin(async move { fleet.list_agent_projects().await }),
        ),
        row(
            Row {
                name: "restart_agent",
                title: "Restart an agent",
                description: "Stop and start the workspace of an agent, or start it when it is stopped.",
                output: STATUS,
                hints: destroy,
                doors: Doors::TOOL.cli(&["fleet", "restart"], &["agent_name"]),
            },
            |fleet, input, _| Box::pin(async move { fleet.restart_agent(input).await }),
        ),
        row(
            Row {
                name: "show_agent_log",
                title: "Agent log",
                description: "Show what an agent was told and said, newest first.",
                output: LOGS,
                hints: read,
                doors: Doors::TOOL.cli(&["fleet", "log"], &["agent_name"]),
            },
            |fleet, input, _| Box::pin(async move { fleet.show_agent_log(input).await }),
        ),
        row(
            Row {
                name: "wait_for_agent",
                title: "Wait for an agent",
                description: "Wait until an agent has a status, instead of asking again and again.",
                output: STATUS,
                hints: read,
                doors: Doors::TOOL.cli(&["fleet", "wait"], &["agent_name"]),
            },
            |fleet, input, _| Box::pin(async move { fleet.wait_for_agent(input).await }),
        ),
        Operation {
            approval: Approval::Yes,
            ..row(
                Row {
                    name: "equip_agents",
                    title: "Equip agents",
                    description: "Deploy a pack profile into workspaces, or take it back. Requires yes=true.",
                    output: ANYTHING,
                    hints: Hints::DESTROY,
                    doors: Doors::TOOL.cli(&["fleet", "equip"], &["agent_name"]),
                },
                |fleet, input, _| Box::pin(async move { fleet.equip_agents(input).await }),
            )
        },
        row(
            Row {
                name: "fleet_drift",
                title: "Kit drift",
                description: "Show where workspaces differ from their kit.",
                output: ANYTHING,
                hints: Hints::READ,
                doors: Doors::TOOL.cli(&["fleet", "drift"], &["agent_name"]),
            },
            |fleet, input, _| Box::pin(async move { fleet.fleet_drift(input).await }),
        ),
        Operation {
            output: Schema::of_output::<ProjectChanged>(),
            ..row(
                Row {
                    name: "project_add",
                    title: "Add a project",
                    description: "Register a repository or directory of this machine as a project.",
                    output: ANYTHING,
                    hints: Hints::CHANGE,
                    doors: Doors::shown_with(&["create_agent"]).cli(&["fleet", "project", "add"], &["path"]),
                },
                |fleet, input, _| Box::pin(async move { fleet.add_project(input).await }),
            )
        },
        Operation {
            output: Schema::of_output::<ProjectChanged>(),
            ..row(
                Row {
                    name: "project_remove",
                    title: "Remove a project",
                    description: "Forget a project of this machine that has no agents; its files stay.",
                    output: ANYTHING,
                    hints: Hints::DESTROY,
                    doors: Doors::shown_with(&["create_agent"])
                        .cli(&["fleet", "project", "remove"], &["project"]),
                },
                |fleet, input, _| Box::pin(async move { fleet.remove_project(input).await }),
            )
        },
    ]
}

/// What a row says about its tool.
#[derive(Clone, Copy)]
struct Row {
    name: &'static str,
    title: &'static str,
    description: &'static str,
    output: &'static str,
    hints: Hints,
    doors: Doors,
}

/// The method of the fleet that carries out a tool.
type Tool<I, O> = fn(AnyFleet, I, TaskSource) -> BoxFuture<'static, Result<O, FleetError>>;

/// A tool as a row. `tool` is the method of the fleet that carries it out.
fn row<I, O>(row: Row, tool: Tool<I, O>) -> Operation
where
    I: DeserializeOwned + JsonSchema + Send + 'static,
    O: Serialize + Send + 'static,
{
    let Row { name, title, description, output, hints, doors } = row;
    Operation {
        name,
        title,
        description,
        toolset: Some(Toolset::Fleet),
        input: Schema::of_input::<I>(),
        output: Schema::Literal(output),
        hints,
        approval: Approval::NotNeeded,
        doors,
        rewrite: cut_page,
        error_form,
        handler: Arc::new(move |call| Box::pin(answer(call, name, hints.read_only, tool))),
    }
}

async fn answer<I: DeserializeOwned, O: Serialize + Send>(
    mut call: Call,
    name: &'static str,
    is_read_only: bool,
    tool: Tool<I, O>,
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
        match tool(fleet, input, source).await {
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
        progress.report(ProgressUpdate { done: taken.as_secs_f64(), total: None, message });
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
