//! Operations that show what doors do: echo, refuse, fail, panic, take long, report progress.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crewkit_core::Toolset;
use crewkit_server::ops::{
    Approval, Call, Catalog, Doors, Failure, HandlerResult, Hints, Operation, Problem, ProgressUpdate, Schema,
};
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use tokio::sync::{Mutex, Notify};

/// Tests that use the signals below take turns.
pub(crate) static SIGNALS: Mutex<()> = Mutex::const_new(());
/// How often the mutating operation really ran.
pub(crate) static WRITES: AtomicUsize = AtomicUsize::new(0);
/// Tells when a waiting operation began, and when its work was dropped.
pub(crate) static WAITING: Notify = Notify::const_new();
pub(crate) static DROPPED: Notify = Notify::const_new();
/// Lets the gated operation go on.
pub(crate) static GATE: Notify = Notify::const_new();

fn error_form(operation: &Operation, problem: &Problem) -> Value {
    json!({"error": problem.code, "message": problem.message, "operation": operation.name, "argument": problem.argument})
}

const ANY_OBJECT: &str = r#"{"type":"object"}"#;

fn operation(
    name: &'static str,
    toolset: Toolset,
    handler: fn(Call) -> BoxFuture<'static, HandlerResult>,
) -> Operation {
    Operation {
        name,
        title: "A test",
        description: "Made for tests.",
        toolset: Some(toolset),
        input: Schema::Literal(r#"{"type":"object","additionalProperties":true}"#),
        output: Schema::Literal(ANY_OBJECT),
        failure: Schema::Literal(ANY_OBJECT),
        hints: Hints::READ,
        approval: Approval::NotNeeded,
        doors: Doors::tool(ANY_OBJECT),
        rewrite: |_| {},
        error_form,
        handler: Arc::new(handler),
    }
}

struct SaysWhenDropped;

impl Drop for SaysWhenDropped {
    fn drop(&mut self) {
        DROPPED.notify_one();
    }
}

#[expect(clippy::unused_async, reason = "handlers are asynchronous")]
async fn write(_call: Call) -> HandlerResult {
    WRITES.fetch_add(1, Ordering::SeqCst);
    Ok(json!({"written": true}))
}

/// The table of the tests.
pub(crate) fn catalog() -> Arc<Catalog> {
    let operations = vec![
        Operation {
            input: Schema::Literal(
                r#"{"type":"object","additionalProperties":false,"properties":{
                "text":{"type":"string","maxLength":64},"times":{"type":"integer","default":1,"minimum":1,"maximum":9},
                "tone":{"type":"string","enum":["calm","loud"]},"tags":{"type":"array","items":{"type":"string"},"maxItems":3}}}"#,
            ),
            ..operation("echo", Toolset::Pack, |call| {
                Box::pin(async move { Ok(Value::Object(call.arguments)) })
            })
        },
        Operation {
            input: Schema::Literal(
                r#"{"type":"object","additionalProperties":false,"required":["to","yes"],"properties":{
                "to":{"type":"string"},"yes":{"const":true},"dry_run":{"type":"boolean","default":false}}}"#,
            ),
            hints: Hints::DESTROY,
            approval: Approval::Yes,
            ..operation("write", Toolset::Pack, |call| Box::pin(write(call)))
        },
        operation("fail", Toolset::Fleet, |_| {
            Box::pin(async { Err(Failure { status: 404, body: json!({"error": "not_found"}) }) })
        }),
        operation("panic", Toolset::Fleet, |_| Box::pin(async { panic!("canary-panic") })),
        operation("wait", Toolset::Agents, |_| {
            Box::pin(async {
                let _says = SaysWhenDropped;
                WAITING.notify_one();
                std::future::pending().await
            })
        }),
        operation("hang", Toolset::Agents, |_| Box::pin(std::future::pending())),
        operation("gated", Toolset::Agents, |call| {
            Box::pin(async move {
                WAITING.notify_one();
                GATE.notified().await;
                Ok(Value::Object(call.arguments))
            })
        }),
        operation("later", Toolset::Agents, |call| {
            Box::pin(async move {
                tokio::task::yield_now().await;
                Ok(Value::Object(call.arguments))
            })
        }),
        operation("count", Toolset::Agents, |call| {
            Box::pin(async move {
                for done in 1..=3_u8 {
                    let message = Some(format!("step {done}"));
                    call.progress.report(ProgressUpdate::step(f64::from(done), Some(3.0), message));
                }
                Ok(json!({"steps": 3}))
            })
        }),
    ];
    Arc::new(Catalog::new(operations).unwrap())
}
