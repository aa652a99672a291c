//! The operations of the agents: run a text contract to its end.

use std::path::PathBuf;
use std::time::Duration;

use crewkit_agent::engine::{Prune, Start, Status, Until};
use crewkit_agent::{Engine, Error, RunRecord, RunSpec};
use crewkit_core::run::RunStatus;
use crewkit_core::{Code, Limits, Toolset};
use serde_json::{Value, json};

use super::{Approval, Call, Failure, HandlerResult, Hints, JsonObject, Operation, Problem, ProgressUpdate};

/// Characters of a contract shown in a list.
const LISTED: usize = 50;
/// What a wish to prune may say.
const PRUNE_ARGUMENTS: [&str; 3] = ["older_than_seconds", "keep", "dry_run"];
/// Characters of one transcript entry shown unless the caller asks for more.
const ENTRY_CHARACTERS: u64 = 2000;
/// Bytes of one page: what clients hand to a model without writing it to a file.
const PAGE_BYTES: usize = 60_000;

const START_INPUT: &str = r#"{"type":"object","additionalProperties":false,"required":["contract"],"properties":{
"contract":{"type":"string","description":"What the agent shall do, in plain words."},
"workdir":{"type":"string","description":"Absolute path of the directory it works in; file tools are confined to it."},
"driver":{"type":"string","description":"loop (default), claude, codex, or a configured command line."},
"model":{"type":"string","description":"A configured model; the first one when left out."},
"max_turns":{"type":"integer","minimum":1,"description":"Cap on the model's replies."},
"max_tokens":{"type":"integer","minimum":1,"description":"Cap on tokens."},
"max_seconds":{"type":"integer","minimum":1,"description":"Cap on wall time."},
"key":{"type":"string","minLength":1,"maxLength":200,"description":"Repeating a call with the same key starts nothing new."}}}"#;

const START_OUTPUT: &str = r#"{"type":"object","properties":{"agent_id":{"type":"string"},"status":{"type":"string"},"started_at":{"anyOf":[{"type":"string"},{"type":"null"}]}}}"#;

const STATUS_INPUT: &str = r#"{"type":"object","additionalProperties":false,"required":["agent_ids"],"properties":{
"agent_ids":{"type":"array","items":{"type":"string"},"description":"Ids from agent_start."}}}"#;

const STATUS_OUTPUT: &str =
    r#"{"type":"object","properties":{"result":{"type":"array","items":{"type":"object"}}}}"#;

const COMPLETE_INPUT: &str = r#"{"type":"object","additionalProperties":false,"required":["agent_id","summary"],"properties":{
"agent_id":{"type":"string"},
"summary":{"type":"string","description":"What was done and what came out of it."},
"payload":{"anyOf":[{"type":"string"},{"type":"null"}],"description":"The work product, if it is text."}}}"#;

const END_OUTPUT: &str = r#"{"type":"object","properties":{"agent_id":{"type":"string"},"status":{"type":"string"},"started_at":{"anyOf":[{"type":"string"},{"type":"null"}]},"completed_at":{"type":"string"},"stopped_at":{"anyOf":[{"type":"string"},{"type":"null"}]}}}"#;

const STOP_INPUT: &str = r#"{"type":"object","additionalProperties":false,"required":["agent_id"],"properties":{
"agent_id":{"type":"string"}}}"#;

const WAIT_INPUT: &str = r#"{"type":"object","additionalProperties":false,"required":["agent_ids"],"properties":{
"agent_ids":{"type":"array","items":{"type":"string"}},
"until":{"type":"string","enum":["all","any"],"default":"all","description":"Wait for all of them, or for the first."},
"timeout_seconds":{"type":"integer","minimum":0,"maximum":300,"default":60,"description":"Answer after this time in any case."}}}"#;

const WAIT_OUTPUT: &str = r#"{"type":"object","properties":{"done":{"type":"boolean"},"result":{"type":"array","items":{"type":"object"}}}}"#;

const OUTPUT_INPUT: &str = r#"{"type":"object","additionalProperties":false,"required":["agent_id"],"properties":{
"agent_id":{"type":"string"},
"after":{"type":"integer","minimum":0,"default":0,"description":"Show what comes after this position; `next` of the last page."},
"limit":{"type":"integer","minimum":1,"maximum":500,"default":50,"description":"Entries at most."},
"max_chars":{"type":"integer","minimum":1,"default":2000,"description":"Longer texts are cut."}}}"#;

const OUTPUT_OUTPUT: &str = r#"{"type":"object","properties":{"agent_id":{"type":"string"},"status":{"type":"string"},"entries":{"type":"array","items":{"type":"object"}},"next":{"anyOf":[{"type":"integer"},{"type":"null"}]}}}"#;

/// The rows of the table.
pub fn operations() -> Vec<Operation> {
    let row = |name, title, description, input, output, hints, handler| Operation {
        name,
        title,
        description,
        toolset: Toolset::Agents,
        input,
        output,
        hints,
        approval: Approval::NotNeeded,
        error_form,
        handler,
    };
    vec![
        row(
            "agent_start",
            "Start an agent",
            "Starts an agent on a contract and answers at once. Follow it with agent_wait or agent_status.",
            START_INPUT,
            START_OUTPUT,
            Hints::ADD.remote(),
            |call| Box::pin(here_or_there("agent_start", call, start)),
        ),
        row(
            "agent_status",
            "Status of agents",
            "Tells how agents stand: state, times, summary, payload_url, and a preview of what running ones do.",
            STATUS_INPUT,
            STATUS_OUTPUT,
            Hints::READ,
            |call| Box::pin(here_or_there("agent_status", call, status)),
        ),
        row(
            "agent_complete",
            "Complete an agent",
            "Marks an agent's contract as fulfilled, with a summary and an optional payload. The first end stands.",
            COMPLETE_INPUT,
            END_OUTPUT,
            Hints::CHANGE,
            |call| Box::pin(here_or_there("agent_complete", call, complete)),
        ),
        row(
            "agent_stop",
            "Stop an agent",
            "Stops an agent: no further model request or tool call. An agent that has ended stays as it is.",
            STOP_INPUT,
            END_OUTPUT,
            Hints::DESTROY,
            |call| Box::pin(here_or_there("agent_stop", call, stop)),
        ),
        row(
            "agent_wait",
            "Wait for agents",
            "Waits until agents have ended, or the time is over, and answers with their status.",
            WAIT_INPUT,
            WAIT_OUTPUT,
            Hints::READ,
            |call| Box::pin(here_or_there("agent_wait", call, wait)),
        ),
        row(
            "agent_output",
            "Output of an agent",
            "Shows what an agent said and did, page by page.",
            OUTPUT_INPUT,
            OUTPUT_OUTPUT,
            Hints::READ,
            |call| Box::pin(here_or_there("agent_output", call, output)),
        ),
    ]
}

/// The form of this contract: `error` is a text.
fn error_form(_: &Operation, problem: &Problem) -> Value {
    body(problem.code, &problem.message)
}

/// A refusal in the form of this contract.
pub fn body(code: Code, message: &str) -> Value {
    json!({"error": message, "code": code, "next_step": code.next_step()})
}

/// The HTTP status that tells the same as a code.
pub fn http_status(code: Code) -> u16 {
    match code {
        Code::AgentNotFound | Code::PayloadNotFound => 404,
        Code::AgentStateInvalid => 409,
        Code::PayloadTooLarge => 413,
        Code::AgentsBusy | Code::StoreLocked => 503,
        Code::StoreFull => 507,
        Code::StoreFailed | Code::StateUnusable | Code::StoreTooNew | Code::Internal => 500,
        _ => 400,
    }
}

/// An error of the engine in the form of this contract.
pub fn failure(error: &Error) -> Failure {
    let code = error.code();
    Failure { status: http_status(code), body: body(code, &error.to_string()) }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        failure(&error)
    }
}

async fn engine(call: &Call) -> Result<&Engine, Failure> {
    Ok(call.services.agents.engine().await?)
}

/// Runs an operation here, or in the process that has the store when this one cannot have it.
async fn here_or_there<F: Future<Output = HandlerResult>>(
    name: &'static str,
    call: Call,
    here: impl FnOnce(Call) -> F,
) -> HandlerResult {
    if call.services.agents.opened().is_some() {
        return here(call).await;
    }
    let forward = call.services.agents.forward().cloned();
    let locked = call.services.agents.engine().await.err().filter(|error| error.code() == Code::StoreLocked);
    let (Some(error), Some(forward)) = (locked, forward) else { return here(call).await };
    match forward(name, call.arguments).await {
        Ok(answer) if answer.failed() => Err(Failure { status: answer.status, body: answer.body }),
        Ok(answer) => Ok(answer.body),
        Err(message) => Err(Failure {
            status: http_status(Code::StoreLocked),
            body: body(Code::StoreLocked, &format!("{error}, and {message}")),
        }),
    }
}

/// What a new run is to be, from the arguments of a call.
pub fn start_of(arguments: &JsonObject) -> Start {
    let text = |name: &str| arguments.get(name).and_then(Value::as_str).map(str::to_owned);
    let number = |name: &str| arguments.get(name).and_then(Value::as_u64);
    Start {
        contract: text("contract").unwrap_or_default(),
        spec: RunSpec {
            driver: text("driver"),
            model: text("model"),
            workdir: text("workdir").map(PathBuf::from),
            max_turns: number("max_turns"),
            max_tokens: number("max_tokens"),
            max_seconds: number("max_seconds"),
        },
        key: text("key"),
    }
}

async fn start(call: Call) -> HandlerResult {
    let record = engine(&call).await?.start(start_of(&call.arguments)).await?;
    Ok(json!({
        "agent_id": record.id,
        "status": record.state.status(),
        "started_at": record.state.started_at(),
    }))
}

async fn status(call: Call) -> HandlerResult {
    let ids = call.texts("agent_ids").unwrap_or_default();
    let statuses = engine(&call).await?.status(&ids)?;
    Ok(json!({"result": statuses}))
}

async fn complete(call: Call) -> HandlerResult {
    // The payload may be large; it is moved, not copied.
    let Call { services, mut arguments, .. } = call;
    let engine = services.agents.engine().await?;
    let mut text = |name: &str| match arguments.remove(name) {
        Some(Value::String(text)) => Some(text),
        _ => None,
    };
    let (id, summary, payload) = (text("agent_id"), text("summary"), text("payload"));
    let id = id.unwrap_or_default();
    let record = engine.complete(&id, summary.unwrap_or_default(), payload).await?;
    Ok(end_of(&record))
}

async fn stop(call: Call) -> HandlerResult {
    let engine = engine(&call).await?;
    let record = engine.stop(call.text("agent_id").unwrap_or_default()).await?;
    let mut answer = end_of(&record);
    if record.state.status() == RunStatus::Completed {
        // It was not stopped, and the field the contract names says so.
        answer["stopped_at"] = Value::Null;
    }
    Ok(answer)
}

/// The state that holds, with its times.
fn end_of(record: &RunRecord) -> Value {
    let state = &record.state;
    let mut answer = json!({
        "agent_id": record.id,
        "status": state.status(),
        "started_at": state.started_at(),
    });
    let ended = match state.status() {
        RunStatus::Completed => "completed_at",
        _ => "stopped_at",
    };
    answer[ended] = json!(state.ended_at());
    answer
}

async fn wait(call: Call) -> HandlerResult {
    let engine = engine(&call).await?;
    let ids = call.texts("agent_ids").unwrap_or_default();
    let until = if call.text("until") == Some("any") { Until::Any } else { Until::All };
    let time = Duration::from_secs(call.number("timeout_seconds").unwrap_or(60));
    let report = |ended: usize, total: usize| {
        #[expect(clippy::cast_precision_loss, reason = "no count of agents comes near the limit of a float")]
        let (done, all) = (ended as f64, total as f64);
        let message = Some(format!("{ended} of {total} agents have ended"));
        call.progress.report(ProgressUpdate { done, total: Some(all), message });
    };
    let waited = engine.wait(&ids, until, time, &report).await?;
    Ok(json!({"done": waited.done, "result": waited.agents}))
}

async fn output(call: Call) -> HandlerResult {
    let engine = engine(&call).await?;
    let id = call.text("agent_id").unwrap_or_default();
    let limit = usize::try_from(call.number("limit").unwrap_or(50)).unwrap_or(usize::MAX);
    let page = engine.output(id, call.number("after").unwrap_or(0), limit).await?;
    let shown = usize::try_from(call.number("max_chars").unwrap_or(ENTRY_CHARACTERS)).unwrap_or(usize::MAX);
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
    Ok(json!({"agent_id": id, "status": page.status, "entries": entries, "next": next}))
}

/// Cuts every text of a value to `most` characters.
fn cut_texts(value: &mut Value, most: usize) {
    match value {
        Value::String(text) => {
            if let Some((at, _)) = text.char_indices().nth(most) {
                text.truncate(at);
                text.push_str("...");
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| cut_texts(item, most)),
        Value::Object(fields) => fields.values_mut().for_each(|field| cut_texts(field, most)),
        _ => {}
    }
}

/// The beginning of a contract, as lists show it.
pub fn listed_contract(record: &RunRecord) -> String {
    match record.contract.char_indices().nth(LISTED) {
        Some((at, _)) => format!("{}...", &record.contract[..at]),
        None => record.contract.to_string(),
    }
}

/// A wish to remove agents that ended long ago. It is no row of the table: forgetting is for people, not for models.
#[derive(Debug, Clone, Copy)]
pub struct PruneWish {
    prune: Prune,
    dry_run: bool,
}

impl PruneWish {
    /// Reads the wish; an age that is left out is the configured one.
    pub fn read(arguments: &JsonObject, limits: &Limits) -> Result<Self, Error> {
        let number = |name: &'static str| match arguments.get(name) {
            None => Ok(None),
            Some(value) => value.as_u64().map(Some).ok_or_else(|| Error::Argument {
                name,
                what: format!("must be a whole number, not {value}"),
            }),
        };
        let dry_run = match arguments.get("dry_run") {
            None | Some(Value::Bool(false)) => false,
            Some(Value::Bool(true)) => true,
            Some(other) => {
                let what = format!("must be true or false, not {other}");
                return Err(Error::Argument { name: "dry_run", what });
            }
        };
        // A misspelt wish must not remove more than was meant.
        if let Some(unknown) = arguments.keys().find(|name| !PRUNE_ARGUMENTS.contains(&name.as_str())) {
            let what = format!("`{unknown}` is not known; there are {}", PRUNE_ARGUMENTS.join(", "));
            return Err(Error::Argument { name: "prune", what });
        }
        let configured = Some(limits.agent_retention_days.saturating_mul(86_400)).filter(|age| *age > 0);
        let Some(age) = number("older_than_seconds")?.or(configured) else {
            let what = "must be given (--older-than on the command line), since limits.agent_retention_days \
                        keeps ended agents for ever"
                .to_owned();
            return Err(Error::Argument { name: "older_than_seconds", what });
        };
        let keep = usize::try_from(number("keep")?.unwrap_or(0)).unwrap_or(usize::MAX);
        Ok(Self { prune: Prune { older_than: Duration::from_secs(age), keep }, dry_run })
    }

    /// Removes, or only tells, and says what.
    pub async fn fulfil(self, engine: &Engine) -> Result<Value, Error> {
        let records =
            if self.dry_run { engine.prunable(self.prune) } else { engine.prune(self.prune).await? };
        let agents: Vec<Value> = records
            .iter()
            .map(|record| {
                json!({
                    "id": record.id,
                    "status": record.state.status(),
                    "ended_at": record.state.ended_at(),
                    "contract": listed_contract(record),
                    "payload_size": record.payload.as_ref().map(|payload| payload.size),
                })
            })
            .collect();
        Ok(json!({"dry_run": self.dry_run, "count": agents.len(), "agents": agents}))
    }
}

/// A status as JSON.
pub fn status_json(status: &Status) -> Value {
    serde_json::to_value(status).unwrap_or_default()
}
