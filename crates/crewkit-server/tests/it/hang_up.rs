//! Callers that hang up: every operation that changes something is carried out to its end.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use crewkit_server::Services;
use crewkit_server::ops::{
    Call, Catalog, HandlerResult, JsonObject, Operation, Request, Schema, Source, run,
};
use serde_json::json;
use tokio::sync::Mutex;

/// Suspension points of a stub; more than any caller polls.
const STEPS: usize = 5;

/// Steps that stubs have taken, and how many of them ended.
static TAKEN: AtomicUsize = AtomicUsize::new(0);
static ENDED: AtomicUsize = AtomicUsize::new(0);
static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

async fn stub(_call: Call) -> HandlerResult {
    for _ in 0..STEPS {
        TAKEN.fetch_add(1, Ordering::SeqCst);
        tokio::task::yield_now().await;
    }
    ENDED.fetch_add(1, Ordering::SeqCst);
    Ok(json!({}))
}

/// The rows of the product with a handler that suspends, and a schema that takes the approval alone.
fn rows() -> Vec<Operation> {
    let catalog = Catalog::product().unwrap();
    catalog
        .entries()
        .map(|entry| Operation {
            input: Schema::Literal(r#"{"type":"object"}"#),
            handler: Arc::new(|call| Box::pin(stub(call))),
            ..entry.operation.clone()
        })
        .collect()
}

/// Polls a request `polls` times, drops it, and waits for what it left behind. Tells whether it was answered.
async fn hang_up_after(polls: usize, catalog: &Catalog, name: &str) -> bool {
    let services = Arc::new(Services::default());
    let arguments = JsonObject::from_iter([("yes".to_owned(), true.into())]);
    let request = Request::of_owner(Source::Tool, arguments);
    let mut answered = false;
    {
        let mut call = pin!(run(Arc::clone(catalog.get(name).unwrap()), Arc::clone(&services), request));
        for _ in 0..polls {
            if let Poll::Ready(answer) = call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                assert_eq!(answer.status, 200, "{name}: {}", answer.body);
                answered = true;
                break;
            }
            // Lets the operation take a step.
            tokio::task::yield_now().await;
        }
    }
    services.commands.close();
    services.commands.wait().await;
    answered
}

#[tokio::test]
async fn what_changes_something_ends_whenever_its_caller_hangs_up() {
    let _turn = ONE_AT_A_TIME.lock().await;
    let catalog = Catalog::new(rows()).unwrap();
    let changing = catalog.entries().filter(|entry| !entry.operation.hints.read_only);
    for name in changing.map(|entry| entry.operation.name) {
        for polls in 0.. {
            ENDED.store(0, Ordering::SeqCst);
            let answered = hang_up_after(polls, &catalog, name).await;
            let ended = ENDED.load(Ordering::SeqCst);
            assert_eq!(ended, usize::from(polls > 0), "{name} after {polls} polls");
            if answered {
                assert!(polls > 1, "{name} never waited");
                break;
            }
        }
    }
}

#[tokio::test]
async fn what_only_reads_ends_with_its_caller() {
    let _turn = ONE_AT_A_TIME.lock().await;
    let catalog = Catalog::new(rows()).unwrap();
    let reading = catalog.entries().filter(|entry| entry.operation.hints.read_only);
    for name in reading.map(|entry| entry.operation.name) {
        for polls in 1..=STEPS {
            TAKEN.store(0, Ordering::SeqCst);
            assert!(!hang_up_after(polls, &catalog, name).await);
            assert_eq!(TAKEN.load(Ordering::SeqCst), polls, "{name} went on after {polls} polls");
        }
    }
}
