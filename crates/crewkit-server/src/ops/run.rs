//! The one way to run an operation: authorization, approval, arguments, handler, and a net for panics.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use crewkit_core::{Code, Toolset};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::arguments::{Wrong, WrongArgument};
use super::{Approval, Call, Entry, JsonObject, Problem, Progress, Source, arguments, pack};
use crate::Services;
use crate::caller::Caller;
use crate::metrics::Metrics;

/// What an operation answered, for any door.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The answer, in the form of the operation's contract, failures included.
    pub body: Value,
    /// The HTTP status: 200, or what kind of failure it is.
    pub status: u16,
}

impl Answer {
    /// Whether the operation failed.
    pub const fn failed(&self) -> bool {
        self.status >= 400
    }
}

/// A request for an operation.
#[derive(Debug)]
pub struct Request {
    /// Who asks.
    pub caller: Caller,
    /// Through which door.
    pub source: Source,
    /// The arguments as they came.
    pub arguments: JsonObject,
    /// Where to report progress.
    pub progress: Progress,
    /// Fires when the caller no longer wants the answer.
    pub cancelled: CancellationToken,
}

impl Request {
    /// A request of the owner who waits for the answer and nothing else.
    pub fn of_owner(source: Source, arguments: JsonObject) -> Self {
        Self {
            caller: Caller::Owner,
            source,
            arguments,
            progress: Progress::default(),
            cancelled: CancellationToken::new(),
        }
    }
}

/// Runs `entry` once. Never panics and never fails in another form than the operation's own.
///
/// An operation that changes something runs on a task of its own, which [`Services::commands`] tracks: the returned future
/// may be dropped at any time after its first poll, and the operation is still carried out to its end. An operation that
/// only reads or waits ends with the future.
pub fn run(entry: Arc<Entry>, services: Arc<Services>, request: Request) -> BoxFuture<'static, Answer> {
    Box::pin(async move {
        if let Some(remote) =
            services.remote.as_ref().filter(|_| entry.operation.toolset != Some(Toolset::Pack))
        {
            return remote
                .run(entry.operation.name, request.arguments, request.progress, request.cancelled)
                .await;
        }
        let began = Instant::now();
        let name = entry.operation.name;
        let answer = match check(&entry, services, request) {
            Err(problem) => refuse(&entry, &problem),
            Ok(call) if entry.operation.hints.read_only => read(&entry, call).await,
            Ok(call) => {
                let commands = call.services.commands.clone();
                let command = Arc::clone(&entry);
                let task = commands.spawn(async move { handle(&command, call).await });
                // Panics are caught within; only the end of the runtime leaves no answer.
                task.await.unwrap_or_else(|error| refuse(&entry, &bug(name, &error.to_string())))
            }
        };
        Metrics::global().operation(name, answer.failed(), began.elapsed());
        answer
    })
}

/// Checks a request before anything is done about it.
fn check(entry: &Entry, services: Arc<Services>, request: Request) -> Result<Call, Problem> {
    let Request { caller, source, mut arguments, progress, cancelled } = request;
    caller.authorize(entry.operation.name, &mut arguments).map_err(|message| Problem {
        code: Code::AgentRefused,
        message,
        argument: None,
    })?;
    // Approval comes before the arguments: otherwise the schema's `required: ["yes"]` would answer with a lesser error.
    if entry.operation.approval == Approval::Yes && arguments.get("yes") != Some(&Value::Bool(true)) {
        return Err(Problem {
            code: Code::ConfirmRequired,
            message: format!(
                "`{}` changes something and needs explicit approval: repeat with yes=true",
                entry.operation.name
            ),
            argument: Some("yes".to_owned()),
        });
    }
    (entry.operation.rewrite)(&mut arguments);
    arguments::normalize(&entry.input, &mut arguments);
    take_unadvertised(entry.operation.name, &mut arguments)
        .and_then(|unadvertised| {
            arguments::check(&entry.input, &arguments)?;
            arguments.extend(unadvertised);
            Ok(())
        })
        .map_err(|wrong| Problem {
            code: Code::ArgumentInvalid,
            message: wrong.to_string(),
            argument: Some(wrong.argument),
        })?;
    let attempt = match caller {
        Caller::Attempt(grant) => Some(grant),
        Caller::Owner | Caller::Stranger(_) => None,
    };
    Ok(Call { services, source, attempt, arguments, progress, cancelled })
}

/// Arguments that say how long an operation waits.
const WAITS: [&str; 2] = ["timeout_seconds", "wait_seconds"];

/// Runs an operation that only reads. One that waits answers with the present state when the server is about to end.
async fn read(entry: &Entry, call: Call) -> Answer {
    let properties = entry.input.get("properties").and_then(Value::as_object);
    let wait = WAITS.into_iter().find(|wait| properties.is_some_and(|known| known.contains_key(*wait)));
    let Some(wait) = wait else { return handle(entry, call).await };
    let (services, mut at_once) = (Arc::clone(&call.services), call.clone());
    at_once.arguments.insert(wait.to_owned(), 0.into());
    tokio::select! {
        answer = handle(entry, call) => answer,
        () = services.leaving() => handle(entry, at_once).await,
    }
}

async fn handle(entry: &Entry, call: Call) -> Answer {
    let name = entry.operation.name;
    let work = AssertUnwindSafe(async { (entry.operation.handler)(call).await }).catch_unwind();
    match work.await {
        Ok(Ok(body)) => Answer { body, status: 200 },
        Ok(Err(failure)) => Answer { body: failure.body, status: failure.status },
        Err(panic) => {
            let what = panic
                .downcast_ref::<&str>()
                .map(ToString::to_string)
                .or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_default();
            refuse(entry, &bug(name, &what))
        }
    }
}

fn bug(operation: &str, what: &str) -> Problem {
    tracing::error!(operation, what, "an operation failed because of a bug");
    let message = format!("`{operation}` failed because of a bug in crewkit; the log has the details");
    Problem { code: Code::Internal, message, argument: None }
}

/// Takes out the texts an operation accepts beside its schema, so that the schema check does not meet them.
fn take_unadvertised(operation: &str, arguments: &mut JsonObject) -> Result<JsonObject, WrongArgument> {
    let mut taken = JsonObject::new();
    for (_, argument) in pack::NOT_ADVERTISED.iter().filter(|(name, _)| *name == operation) {
        match arguments.shift_remove(*argument) {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) => {
                taken.insert((*argument).to_owned(), text.into());
            }
            Some(_) => {
                let problem = Wrong::Value("must be a string".to_owned());
                return Err(WrongArgument { argument: (*argument).to_owned(), problem });
            }
        }
    }
    Ok(taken)
}

fn refuse(entry: &Entry, problem: &Problem) -> Answer {
    Answer {
        body: (entry.operation.error_form)(&entry.operation, problem),
        status: problem.code.http_status(),
    }
}
