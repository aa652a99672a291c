//! The operations on runs: text contracts that are carried out once. The contract's tools call a run an agent.

use std::io::Read as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use crewkit_agent::contract::completion_tool;
use crewkit_agent::engine::{Moment, OutputRow, Prune, Start, Status, Until, output_rows};
use crewkit_agent::tools::mcp::ServerStatus;
use crewkit_agent::{Engine, Error, Event, FileFault, RunRecord, RunSpec, StoreError};
use crewkit_core::run::{RunId, RunStatus};
use crewkit_core::{Code, Timestamp, Toolset};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Approval, Call, Doors, Failure, Hints, Operation, Problem, ProgressUpdate, Schema};
use crate::blocking;

/// Characters of a contract in a list.
const LISTED_CONTRACT_CHARS: usize = 200;
/// Entries of a transcript read at a time.
const TRANSCRIPT_PAGE: usize = 500;
/// Characters of one transcript entry shown unless the caller asks for more.
const ENTRY_CHARS: u64 = 2000;
/// Bytes of one page: what clients hand to a model without writing it to a file.
const PAGE_BYTES: usize = 60_000;

const START_OUTPUT: &str = r#"{"type":"object","properties":{"agent_id":{"type":"string"},"status":{"type":"string"},"started_at":{"anyOf":[{"type":"string"},{"type":"null"}]}}}"#;
const STATUS_OUTPUT: &str =
    r#"{"type":"object","properties":{"result":{"type":"array","items":{"type":"object"}}}}"#;
const END_OUTPUT: &str = r#"{"type":"object","properties":{"agent_id":{"type":"string"},"status":{"type":"string"},"started_at":{"anyOf":[{"type":"string"},{"type":"null"}]},"completed_at":{"type":"string"},"stopped_at":{"anyOf":[{"type":"string"},{"type":"null"}]}}}"#;
const WAIT_OUTPUT: &str = r#"{"type":"object","properties":{"done":{"type":"boolean"},"result":{"type":"array","items":{"type":"object"}}}}"#;
const OUTPUT_OUTPUT: &str = r#"{"type":"object","properties":{"agent_id":{"type":"string"},"status":{"type":"string"},"entries":{"type":"array","items":{"type":"object"}},"next":{"anyOf":[{"type":"integer"},{"type":"null"}]}}}"#;

/// How a run is carried out.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
pub struct RunOptions {
    /// Absolute path of the directory it works in; file tools are confined to it.
    pub workdir: Option<PathBuf>,
    /// loop (default), claude, codex, or a configured command line.
    pub driver: Option<String>,
    /// A configured model; the first one when left out.
    pub model: Option<String>,
    /// Cap on the model's replies.
    #[schemars(range(min = 1))]
    pub max_turns: Option<u64>,
    /// Cap on tokens.
    #[schemars(range(min = 1))]
    pub max_tokens: Option<u64>,
    /// Cap on wall time.
    #[schemars(range(min = 1))]
    pub max_seconds: Option<u64>,
    /// Repeating a call with the same key starts nothing new.
    #[schemars(length(min = 1, max = 200))]
    pub key: Option<String>,
}

/// Input of `agent_start`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
pub struct StartRun {
    /// What the agent shall do, in plain words.
    pub contract: String,
    #[serde(flatten)]
    options: RunOptions,
}

/// Input of `run_create`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
pub struct CreateRun {
    /// What the agent shall do; it can be set later.
    pub contract: Option<String>,
    #[serde(flatten)]
    options: RunOptions,
}

/// Output of `agent_start`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RunStarted {
    /// Its id.
    agent_id: RunId,
    /// running.
    status: RunStatus,
    /// When it was asked for.
    started_at: Option<Timestamp>,
}

/// Input of `agent_status`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct StatusQuery {
    /// Ids from `agent_start`.
    pub agent_ids: Vec<String>,
}

/// Output of `agent_status`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RunStatuses {
    /// The state of each run, in the order of the ids.
    result: Vec<Status>,
}

/// Input of `agent_complete`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct CompleteRun {
    /// Id from `agent_start`.
    pub agent_id: String,
    /// What was done and what came out of it.
    pub summary: String,
    /// The work product, if it is text.
    pub payload: Option<String>,
}

/// Output of `agent_complete` and `agent_stop`: the state that holds, with its times.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RunEnd {
    /// Its id.
    agent_id: RunId,
    /// completed or stopped; the first end stands.
    status: RunStatus,
    /// When its present attempt began.
    started_at: Option<Timestamp>,
    /// When it completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Timestamp")]
    completed_at: Option<Timestamp>,
    /// When it stopped; null if it was to be stopped and had completed before.
    #[serde(skip_serializing_if = "is_left_out")]
    stopped_at: Moment,
}

/// Input of `agent_stop`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct StopRun {
    /// Id from `agent_start`.
    pub agent_id: String,
}

/// Input of `agent_wait`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct WaitForRuns {
    /// Ids from `agent_start`.
    pub agent_ids: Vec<String>,
    /// Wait for all of them, or for the first.
    #[schemars(extend("default" = "all"))]
    pub until: Option<WaitUntil>,
    /// Answer after this time in any case.
    #[schemars(range(min = 0, max = 300), extend("default" = 60))]
    pub timeout_seconds: Option<u64>,
}

/// Output of `agent_wait`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct WaitedForRuns {
    /// Whether what was waited for has happened.
    done: bool,
    /// The state of each run, in the order of the ids.
    result: Vec<Status>,
}

/// When a wait is over.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WaitUntil {
    /// When all runs have ended.
    All,
    /// When one of them has.
    Any,
}

/// Input of `agent_output`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct OutputQuery {
    /// Id from `agent_start`.
    pub agent_id: String,
    /// Show what comes after this position; `next` of the last page.
    #[schemars(extend("default" = 0))]
    pub after: Option<u64>,
    /// Entries at most.
    #[schemars(range(min = 1, max = 500), extend("default" = 50))]
    pub limit: Option<u64>,
    /// Longer texts are cut.
    #[schemars(range(min = 1), extend("default" = 2000))]
    pub max_chars: Option<u64>,
}

/// Output of `agent_output`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct OutputPage {
    /// Id of the run.
    agent_id: String,
    /// ready, running, completed or stopped.
    status: RunStatus,
    /// What it said and did; long texts are cut.
    #[schemars(with = "Vec<Event>")]
    entries: Vec<Value>,
    /// The position to go on after; null at the end.
    next: Option<u64>,
}

/// Input of the operations on one run.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct ByRun {
    /// Id of the run.
    pub run_id: String,
}

/// Input of `run_list`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
pub struct ListRuns {
    /// Only runs with this status.
    #[schemars(extend("enum" = ["ready", "running", "completed", "stopped"]))]
    pub status: Option<String>,
    /// The newest runs, at most this many; all if left out.
    #[schemars(range(min = 1))]
    pub limit: Option<u64>,
}

/// Output of `run_list`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RunList {
    /// The runs, oldest first.
    pub runs: Vec<RunSummary>,
    /// Runs that match.
    pub total_count: usize,
}

/// A run as one line of a list.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RunSummary {
    /// Its id.
    pub id: RunId,
    /// ready, running, completed or stopped.
    pub status: RunStatus,
    /// The beginning of its contract.
    pub contract: String,
    /// When it was created.
    pub created_at: Timestamp,
    /// When its present attempt began.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// Bytes of its payload.
    pub payload_size: Option<u64>,
}

/// Input of `run_show`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct ShowRun {
    /// Id of the run.
    pub run_id: String,
    /// Whether to show everything it said and did.
    #[schemars(extend("default" = false))]
    pub output: Option<bool>,
}

/// Output of `run_show`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RunShown {
    #[serde(flatten)]
    status: Status,
    /// Its id.
    id: RunId,
    /// What the agent shall do.
    contract: String,
    /// When it was created.
    created_at: Timestamp,
    /// Everything it said and did, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<Vec<OutputRow>>,
}

/// Input of `run_set_contract`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct SetContract {
    /// Id of the run.
    pub run_id: String,
    /// What the agent shall do.
    pub contract: String,
}

/// Input of `run_prune`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
pub struct PruneRuns {
    /// Remove runs that ended at least this long ago; `limits.agent_retention_days` if left out.
    pub older_than_seconds: Option<u64>,
    /// Keep this many of the newest ended runs in any case.
    #[schemars(extend("default" = 0))]
    pub keep: Option<u64>,
    /// Show what would be removed and remove nothing.
    #[schemars(extend("default" = false))]
    pub dry_run: Option<bool>,
}

/// Output of `run_prune`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Pruned {
    /// Whether nothing was removed.
    pub dry_run: bool,
    /// How many runs.
    pub count: usize,
    /// The runs, oldest first.
    pub runs: Vec<RunSummary>,
}

/// The state of a run after a change.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RunChanged {
    /// Its id.
    pub id: RunId,
    /// ready, running, completed or stopped.
    pub status: RunStatus,
    /// When its present attempt began.
    pub started_at: Option<Timestamp>,
}

/// Output of `run_delete`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RunDeleted {
    /// Its id.
    pub id: String,
    /// `deleted`.
    pub status: &'static str,
}

/// Input of `run_payload`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct PayloadQuery {
    /// Id of the run.
    pub run_id: String,
    /// Whether to answer with the payload itself.
    #[schemars(extend("default" = false))]
    pub text: Option<bool>,
}

/// Output of `run_payload`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RunPayload {
    /// Id of the run.
    pub id: String,
    /// Bytes of the payload.
    pub size: u64,
    /// Where it can be fetched as a file; null if this server has no address.
    pub url: Option<String>,
    /// The payload, if it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// Output of `run_tools`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RunTools {
    /// The servers that tools come from.
    servers: Vec<ServerStatus>,
    /// The tools as their servers list them, each with the name of its server in `_server`.
    tools: Vec<Value>,
}

/// A failure in the form of this contract: `error` is a text.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RunFailure<'a> {
    error: &'a str,
    code: Code,
    next_step: &'static str,
}

/// Input of operations that take no arguments.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
pub struct NoArguments {}

/// The rows of the table.
#[expect(clippy::too_many_lines, reason = "a table is as long as it has rows")]
pub fn operations() -> Vec<Operation> {
    const START: &[&str] = &["agent_start"];
    const STOP: &[&str] = &["agent_stop"];
    const STATUS: &[&str] = &["agent_status"];
    vec![
        row(
            "agent_start",
            "Start an agent",
            "Starts an agent on a contract and answers at once. Follow it with agent_wait or agent_status.",
            (Hints::ADD.remote(), Doors::tool(START_OUTPUT).cli(&["run"], &["contract"])),
            start,
        ),
        row(
            "agent_status",
            "Status of agents",
            "Tells how agents stand: state, times, summary, payload_url, and a preview of what running ones do.",
            (Hints::READ, Doors::tool(STATUS_OUTPUT).cli(&["runs", "status"], &["agent_ids"])),
            status,
        ),
        row(
            "agent_complete",
            "Complete an agent",
            "Marks an agent's contract as fulfilled, with a summary and an optional payload. The first end stands.",
            (Hints::CHANGE, Doors::tool(END_OUTPUT).cli(&["runs", "complete"], &["agent_id", "summary"])),
            complete,
        ),
        row(
            "agent_stop",
            "Stop an agent",
            "Stops an agent: no further model request or tool call. An agent that has ended stays as it is.",
            (Hints::DESTROY, Doors::tool(END_OUTPUT).cli(&["runs", "stop"], &["agent_id"])),
            stop,
        ),
        row(
            "agent_wait",
            "Wait for agents",
            "Waits until agents have ended, or the time is over, and answers with their status.",
            (Hints::READ, Doors::tool(WAIT_OUTPUT).cli(&["runs", "wait"], &["agent_ids"])),
            wait,
        ),
        row(
            "agent_output",
            "Output of an agent",
            "Shows what an agent said and did, page by page.",
            (Hints::READ, Doors::tool(OUTPUT_OUTPUT).cli(&["runs", "output"], &["agent_id"])),
            output,
        ),
        row(
            "run_list",
            "List runs",
            "List runs with their status and the beginning of their contract.",
            (Hints::READ, Doors::shown_with(STATUS).cli(&["runs", "list"], &[])),
            list,
        ),
        row(
            "run_show",
            "Show a run",
            "Show the status and the contract of a run.",
            (
                Hints::READ,
                Doors::shown_with(&["agent_status", "agent_output"]).cli(&["runs", "show"], &["run_id"]),
            ),
            show,
        ),
        row(
            "run_create",
            "Create a run",
            "Create a run that waits to be started.",
            (Hints::ADD, Doors::shown_with(START)),
            create,
        ),
        row(
            "run_set_contract",
            "Set a contract",
            "Replace the contract of a run that is not started yet.",
            (Hints::CHANGE, Doors::shown_with(START)),
            set_contract,
        ),
        row(
            "run_start",
            "Start a run",
            "Start a run that was created or restarted.",
            (Hints::ADD.remote(), Doors::shown_with(START)),
            start_ready,
        ),
        row(
            "run_resume",
            "Resume a run",
            "Continue a stopped run where it was. Calls whose result is unknown are not repeated.",
            (Hints::ADD.remote(), Doors::shown_with(START).cli(&["runs", "resume"], &["run_id"])),
            resume,
        ),
        row(
            "run_restart",
            "Restart a run",
            "Set an ended run back to ready, with its contract and without its past.",
            (Hints::DESTROY, Doors::shown_with(START)),
            restart,
        ),
        row(
            "run_delete",
            "Delete a run",
            "Stop a run and remove everything it left.",
            (Hints::DESTROY, Doors::shown_with(STOP).cli(&["runs", "delete"], &["run_id"])),
            delete,
        ),
        row(
            "run_prune",
            "Prune runs",
            "Remove runs that ended long ago.",
            (Hints::DESTROY, Doors::shown_with(STOP).cli(&["runs", "prune"], &[])),
            prune,
        ),
        row(
            "run_payload",
            "Payload of a run",
            "Show the size and the address of a run's payload, or the payload itself.",
            (Hints::READ, Doors::shown_with(STATUS)),
            payload,
        ),
        row(
            "run_tools",
            "Tools of runs",
            "List the tools that runs can use and the state of the servers they come from.",
            (Hints::READ, Doors::shown_with(STATUS)),
            tools,
        ),
    ]
}

/// An operation as a row. Its arguments are read into `I`.
pub(super) fn row<I, O, F>(
    name: &'static str,
    title: &'static str,
    description: &'static str,
    (hints, doors): (Hints, Doors),
    operation: impl Fn(Call, I) -> F + Send + Sync + Copy + 'static,
) -> Operation
where
    I: DeserializeOwned + JsonSchema + Send + 'static,
    O: Serialize + JsonSchema,
    F: Future<Output = Result<O, Error>> + Send + 'static,
{
    Operation {
        name,
        title,
        description,
        toolset: Some(Toolset::Agents),
        input: Schema::of_input::<I>(),
        output: Schema::of_output::<O>(),
        failure: Schema::of_output::<RunFailure<'_>>(),
        hints,
        approval: Approval::NotNeeded,
        doors,
        rewrite: |_| {},
        error_form: |_, problem: &Problem| body(problem.code, &problem.message),
        handler: Arc::new(move |mut call| {
            Box::pin(async move {
                let input = call.input().map_err(|error| {
                    let code = Code::ArgumentInvalid;
                    Failure { status: code.http_status(), body: body(code, &error.to_string()) }
                })?;
                let answer = operation(call, input).await?;
                Ok(serde_json::to_value(answer).unwrap_or_default())
            })
        }),
    }
}

fn body(code: Code, error: &str) -> Value {
    json!(RunFailure { error, code, next_step: code.next_step() })
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = error.code();
        Self { status: code.http_status(), body: body(code, &error.to_string()) }
    }
}

pub(super) async fn engine(call: &Call) -> Result<&Engine, Error> {
    call.services.agents.engine().await
}

impl RunOptions {
    fn start(self, contract: String) -> Start {
        let Self { workdir, driver, model, max_turns, max_tokens, max_seconds, key } = self;
        let spec =
            RunSpec { driver, model, workdir, max_turns, max_tokens, max_seconds, ..RunSpec::default() };
        Start { contract, spec, key, ..Start::default() }
    }
}

async fn start(call: Call, input: StartRun) -> Result<RunStarted, Error> {
    let record = engine(&call).await?.start(input.options.start(input.contract)).await?;
    let state = &record.state;
    Ok(RunStarted { agent_id: record.id.clone(), status: state.status(), started_at: state.started_at() })
}

async fn status(call: Call, input: StatusQuery) -> Result<RunStatuses, Error> {
    Ok(RunStatuses { result: engine(&call).await?.status(&input.agent_ids)? })
}

async fn complete(call: Call, input: CompleteRun) -> Result<RunEnd, Error> {
    Ok(end_of(&*engine(&call).await?.complete(&input.agent_id, input.summary, input.payload).await?))
}

async fn stop(call: Call, input: StopRun) -> Result<RunEnd, Error> {
    let end = end_of(&*engine(&call).await?.stop(&input.agent_id).await?);
    // One that was not stopped says so in the field that the contract names.
    let stopped_at = if end.completed_at.is_some() { Moment::NotYet } else { end.stopped_at };
    Ok(RunEnd { stopped_at, ..end })
}

fn end_of(record: &RunRecord) -> RunEnd {
    let state = &record.state;
    let ended_at = state.ended_at();
    let completed_at = ended_at.filter(|_| state.status() == RunStatus::Completed);
    let stopped_at = match completed_at {
        Some(_) => Moment::Unknown,
        None => ended_at.map_or(Moment::NotYet, Moment::At),
    };
    let (agent_id, started_at) = (record.id.clone(), state.started_at());
    RunEnd { agent_id, status: state.status(), started_at, completed_at, stopped_at }
}

fn is_left_out(moment: &Moment) -> bool {
    *moment == Moment::Unknown
}

async fn wait(call: Call, input: WaitForRuns) -> Result<WaitedForRuns, Error> {
    let until = match input.until {
        Some(WaitUntil::Any) => Until::Any,
        _ => Until::All,
    };
    let time = Duration::from_secs(input.timeout_seconds.unwrap_or(60));
    let report = |ended: usize, total: usize| {
        #[expect(clippy::cast_precision_loss, reason = "no count of runs comes near the limit of a float")]
        let (done, all) = (ended as f64, total as f64);
        let message = Some(format!("{ended} of {total} agents have ended"));
        call.progress.report(ProgressUpdate::step(done, Some(all), message));
    };
    let engine = engine(&call).await?;
    let waited = match &call.attempt {
        Some(grant) => engine.wait_as(grant, &input.agent_ids, until, time, &report).await?,
        None => engine.wait(&input.agent_ids, until, time, &report).await?,
    };
    Ok(WaitedForRuns { done: waited.done, result: waited.agents })
}

async fn output(call: Call, input: OutputQuery) -> Result<OutputPage, Error> {
    let count =
        |number: Option<u64>, usual: u64| usize::try_from(number.unwrap_or(usual)).unwrap_or(usize::MAX);
    let limit = count(input.limit, 50);
    let page = engine(&call).await?.output(&input.agent_id, input.after.unwrap_or(0), limit).await?;
    let shown = count(input.max_chars, ENTRY_CHARS);
    let mut entries = Vec::new();
    let mut next = page.next;
    let mut bytes = 0;
    for event in &page.entries {
        let mut entry = serde_json::to_value(&**event).unwrap_or_default();
        cut_texts(&mut entry, shown);
        bytes += entry.to_string().len();
        // Never cut in the middle of an entry: the page ends before the one that is too much.
        if bytes > PAGE_BYTES && !entries.is_empty() {
            next = Some(event.seq - 1);
            break;
        }
        entries.push(entry);
    }
    Ok(OutputPage { agent_id: input.agent_id, status: page.status, entries, next })
}

/// Cuts every text of a value to `most` characters.
fn cut_texts(value: &mut Value, most: usize) {
    match value {
        Value::String(text) => cut(text, most),
        Value::Array(items) => items.iter_mut().for_each(|item| cut_texts(item, most)),
        Value::Object(fields) => fields.values_mut().for_each(|field| cut_texts(field, most)),
        _ => {}
    }
}

/// Cuts a text to `most` characters and marks that it was longer.
pub fn cut(text: &mut String, most: usize) {
    if let Some((at, _)) = text.char_indices().nth(most) {
        text.truncate(at);
        text.push_str("...");
    }
}

async fn list(call: Call, input: ListRuns) -> Result<RunList, Error> {
    let records = engine(&call).await?.records();
    let is_wanted = |record: &&Arc<RunRecord>| {
        input.status.as_ref().is_none_or(|word| record.state.status().as_str() == word)
    };
    let mut runs: Vec<RunSummary> = records.iter().filter(is_wanted).map(|record| summary(record)).collect();
    let total_count = runs.len();
    if let Some(limit) = input.limit {
        runs.drain(..total_count.saturating_sub(usize::try_from(limit).unwrap_or(usize::MAX)));
    }
    Ok(RunList { runs, total_count })
}

fn summary(record: &RunRecord) -> RunSummary {
    let mut contract: String = record.contract_start.chars().take(LISTED_CONTRACT_CHARS + 1).collect();
    cut(&mut contract, LISTED_CONTRACT_CHARS);
    RunSummary {
        id: record.id.clone(),
        status: record.state.status(),
        contract,
        created_at: record.created_at,
        started_at: record.state.started_at(),
        ended_at: record.state.ended_at(),
        payload_size: record.payload.as_ref().map(|payload| payload.size),
    }
}

async fn show(call: Call, input: ShowRun) -> Result<RunShown, Error> {
    let engine = engine(&call).await?;
    let record = engine.record(&input.run_id)?;
    let mut rows = Vec::new();
    let mut after = input.output.unwrap_or(false).then_some(0);
    while let Some(from) = after {
        let page = engine.output(&input.run_id, from, TRANSCRIPT_PAGE).await?;
        let output = page.entries.iter().flat_map(|event| output_rows(event));
        rows.extend(output.filter(|row| row.kind != "status"));
        after = page.next;
    }
    let contract = engine.contract(&record.id).await?;
    Ok(RunShown {
        status: engine.show(&input.run_id)?,
        id: record.id.clone(),
        contract,
        created_at: record.created_at,
        output: input.output.unwrap_or(false).then_some(rows),
    })
}

fn changed(record: &RunRecord) -> RunChanged {
    RunChanged { id: record.id.clone(), status: record.state.status(), started_at: record.state.started_at() }
}

async fn create(call: Call, input: CreateRun) -> Result<RunChanged, Error> {
    let start = input.options.start(input.contract.unwrap_or_default());
    Ok(changed(&*engine(&call).await?.create(start).await?))
}

async fn set_contract(call: Call, input: SetContract) -> Result<RunChanged, Error> {
    Ok(changed(&*engine(&call).await?.set_contract(&input.run_id, input.contract).await?))
}

async fn start_ready(call: Call, input: ByRun) -> Result<RunChanged, Error> {
    Ok(changed(&*engine(&call).await?.start_ready(&input.run_id).await?))
}

async fn resume(call: Call, input: ByRun) -> Result<RunChanged, Error> {
    Ok(changed(&*engine(&call).await?.resume(&input.run_id).await?))
}

async fn restart(call: Call, input: ByRun) -> Result<RunChanged, Error> {
    Ok(changed(&*engine(&call).await?.restart(&input.run_id).await?))
}

async fn delete(call: Call, input: ByRun) -> Result<RunDeleted, Error> {
    engine(&call).await?.delete(&input.run_id).await?;
    Ok(RunDeleted { id: input.run_id, status: "deleted" })
}

async fn prune(call: Call, input: PruneRuns) -> Result<Pruned, Error> {
    let engine = engine(&call).await?;
    let configured = Some(engine.options().limits.agent_retention_days * 86_400).filter(|age| *age > 0);
    let Some(age) = input.older_than_seconds.or(configured) else {
        let what = "must be given, since limits.agent_retention_days keeps ended runs for ever".to_owned();
        return Err(Error::Argument { name: "older_than_seconds", what });
    };
    let keep = usize::try_from(input.keep.unwrap_or(0)).unwrap_or(usize::MAX);
    let prune = Prune { older_than: Duration::from_secs(age), keep };
    let dry_run = input.dry_run.unwrap_or(false);
    let records = if dry_run { engine.prunable(prune) } else { engine.prune(prune).await? };
    Ok(Pruned { dry_run, count: records.len(), runs: records.iter().map(|record| summary(record)).collect() })
}

async fn payload(call: Call, input: PayloadQuery) -> Result<RunPayload, Error> {
    let engine = engine(&call).await?;
    let PayloadQuery { run_id: id, text } = input;
    let size = engine.payload_info(&id)?.size;
    let url = engine.show(&id)?.payload.and_then(|payload| payload.payload_url);
    let text = match text {
        Some(true) => Some(unpacked(&id, engine.payload(&id).await?.gzip).await?),
        _ => None,
    };
    Ok(RunPayload { id, size, url, text })
}

async fn unpacked(id: &str, gzip: Bytes) -> Result<String, Error> {
    let unpack = move || {
        let mut text = String::new();
        flate2::read::GzDecoder::new(&gzip[..]).read_to_string(&mut text).map(|_| text)
    };
    let unpacked = blocking::by_size(usize::MAX, unpack).await;
    unpacked.map_err(|error| {
        let (what, why) = (format!("payload of {id}"), error.to_string());
        Error::Store(StoreError::File(FileFault::Damaged { path: "crewkit.db".into(), what, why }))
    })
}

async fn tools(call: Call, NoArguments {}: NoArguments) -> Result<RunTools, Error> {
    let (servers, tools) = engine(&call).await?.tools();
    let own = completion_tool();
    let mut listed: Vec<Value> = vec![json!({
        "name": own.name,
        "description": own.description,
        "inputSchema": own.input_schema,
        "_server": "_internal",
    })];
    listed.extend(tools.into_iter().map(|tool| {
        let mut raw = tool.raw;
        raw["_server"] = tool.server_name.into();
        raw
    }));
    Ok(RunTools { servers, tools: listed })
}
