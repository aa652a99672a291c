//! The one way to run an operation: authorization, approval, arguments, handler, and a net for panics.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use crewkit_core::Code;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::arguments::WrongArgument;
use super::{Approval, Call, Entry, JsonObject, Problem, Progress, arguments, pack};
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

/// Runs `entry` once. Never panics and never fails in another form than the operation's own.
pub fn run(
    entry: Arc<Entry>,
    services: Arc<Services>,
    caller: Caller,
    arguments: JsonObject,
    progress: Progress,
    cancelled: CancellationToken,
) -> BoxFuture<'static, Answer> {
    Box::pin(async move {
        let began = Instant::now();
        let answer = run_unmeasured(&entry, services, &caller, arguments, progress, cancelled).await;
        Metrics::global().operation(entry.operation.name, answer.failed(), began.elapsed());
        answer
    })
}

async fn run_unmeasured(
    entry: &Entry,
    services: Arc<Services>,
    caller: &Caller,
    mut arguments: JsonObject,
    progress: Progress,
    cancelled: CancellationToken,
) -> Answer {
    if let Err(message) = caller.authorize(entry.operation.name, &mut arguments) {
        return refuse(entry, &Problem { code: Code::AgentRefused, message, argument: None, status: 403 });
    }
    // Approval comes before the arguments: otherwise the schema's `required: ["yes"]` would answer with a lesser error.
    if entry.operation.approval == Approval::Yes && arguments.get("yes") != Some(&Value::Bool(true)) {
        return refuse(
            entry,
            &Problem {
                code: Code::ConfirmRequired,
                message: format!(
                    "`{}` changes something and needs explicit approval: repeat with yes=true",
                    entry.operation.name
                ),
                argument: Some("yes".to_owned()),
                status: 409,
            },
        );
    }
    let quiet = take_unadvertised(entry.operation.name, &mut arguments);
    if let Err(wrong) = quiet.and_then(|quiet| {
        arguments::check(&entry.input, &mut arguments)?;
        arguments.extend(quiet);
        Ok(())
    }) {
        return refuse(
            entry,
            &Problem {
                code: Code::ArgumentInvalid,
                message: wrong.to_string(),
                argument: Some(wrong.argument),
                status: 400,
            },
        );
    }
    let call = Call { services, arguments, progress, cancelled };
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
            tracing::error!(operation = entry.operation.name, panic = what, "an operation panicked");
            refuse(
                entry,
                &Problem {
                    code: Code::Internal,
                    message: format!(
                        "`{}` failed because of a bug in crewkit; the log has the details",
                        entry.operation.name
                    ),
                    argument: None,
                    status: 500,
                },
            )
        }
    }
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
                let problem = "must be a string".to_owned();
                return Err(WrongArgument { argument: (*argument).to_owned(), problem });
            }
        }
    }
    Ok(taken)
}

fn refuse(entry: &Entry, problem: &Problem) -> Answer {
    Answer { body: (entry.operation.error_form)(&entry.operation, problem), status: problem.status }
}
