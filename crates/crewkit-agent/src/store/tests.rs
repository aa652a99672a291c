//! What the store promises when the disk does not cooperate.

use std::path::Path;
use std::sync::Arc;

use crewkit_core::run::{Move, RunId, StopReason};
use crewkit_core::{Limits, Timestamp};

use super::{Begin, Change, Clock, Effect, FileFault, NewRun, Recovered, RunSpec, Store, StoreError};
use crate::event::EventBody;

fn clock() -> Clock {
    Arc::new(|| Timestamp::from_millis(1_000))
}

fn open(path: &Path) -> Result<Recovered, StoreError> {
    Store::open(path, &clock(), &Limits::default())
}

fn id(n: usize) -> RunId {
    format!("agent-{n}").parse().unwrap()
}

fn new_run(n: usize, contract: &str) -> NewRun {
    NewRun {
        id: id(n),
        contract: contract.into(),
        spec: RunSpec::default(),
        idempotency: None,
        begin: Begin::Now,
    }
}

fn close(recovered: Recovered) {
    drop(recovered.store);
    recovered.writer.join().unwrap();
}

#[tokio::test]
async fn a_full_disk_refuses_writes_keeps_reads_and_recovers_by_itself() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agents.db");
    // SQLite's own bound on pages fails a write in the same place and with the same code as a full disk.
    close(open(&path).unwrap());
    let connection = rusqlite::Connection::open(&path).unwrap();
    drop(connection);
    let recovered = super::Store::open_bounded(&path, &clock(), &Limits::default(), 60).unwrap();
    let store = recovered.store.clone();
    let contract = "x".repeat(8000);
    let mut created = Vec::new();
    let refused = loop {
        match store.create(new_run(created.len(), &contract)).await {
            Ok(ack) => created.push(ack.record.id.clone()),
            Err(error) => break error,
        }
        assert!(created.len() < 1000, "the bound was never reached");
    };
    assert!(matches!(refused, StoreError::File(FileFault::Full { .. })), "{refused}");
    assert!(created.len() > 3);
    // Nothing of the refused run is visible, and everything else still is.
    assert!(store.get(&id(created.len())).is_err());
    for id in &created {
        assert_eq!(store.get(id).unwrap().record().contract.len(), 8000);
        assert_eq!(store.reader().events(id, 0, 10).await.unwrap().len(), 1);
    }
    for id in created.drain(..3) {
        store.delete(id).await.unwrap();
    }
    store.create(new_run(500, &contract)).await.expect("room has returned");
    drop(store);
    close(recovered);
}

#[tokio::test]
async fn a_newer_store_is_refused_without_being_touched() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agents.db");
    close(open(&path).unwrap());
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.pragma_update(None, "user_version", 99).unwrap();
    connection.pragma_update(None, "journal_mode", "DELETE").unwrap();
    drop(connection);
    let before = std::fs::read(&path).unwrap();
    let refused = open(&path).map(close).unwrap_err();
    assert!(matches!(refused, StoreError::File(FileFault::TooNew { found: 99, known: 1, .. })), "{refused}");
    assert_eq!(std::fs::read(&path).unwrap(), before);
    let mut names: Vec<_> =
        std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["agents.db", "agents.lock"]);
}

#[test]
fn a_file_that_is_no_store_is_an_error_and_stays() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agents.db");
    let text = "not a database ".repeat(20);
    std::fs::write(&path, &text).unwrap();
    assert!(open(&path).map(close).is_err());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
}

#[tokio::test]
async fn everything_is_there_after_opening_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agents.db");
    let recovered = open(&path).unwrap();
    let store = recovered.store.clone();
    let spec = RunSpec { model: Some("m".into()), max_turns: Some(3), ..RunSpec::default() };
    let keyed = NewRun { spec: spec.clone(), idempotency: Some("k".into()), ..new_run(1, "stopped") };
    store.create(keyed).await.unwrap();
    store.append(id(1), 1, vec![EventBody::note("a"), EventBody::note("b")]).await.unwrap();
    let stop =
        Change { error: Some("too much".into()), ..Change::to(&id(1), Move::Stop(StopReason::TurnLimit)) };
    let stopped = store.change(stop).await.unwrap();
    store.create(new_run(2, "running")).await.unwrap();
    drop(store);
    close(recovered);

    let recovered = open(&path).unwrap();
    let store = recovered.store.clone();
    assert_eq!(recovered.interrupted, [id(2)]);
    assert_eq!(*store.get(&id(1)).unwrap().record(), *stopped.record);
    let interrupted = store.get(&id(2)).unwrap().record();
    assert_eq!(interrupted.state.stop_reason(), Some(StopReason::ServerRestarted));
    let again = NewRun { idempotency: Some("k".into()), ..new_run(3, "other") };
    let ack = store.create(again).await.unwrap();
    assert_eq!((ack.effect, &ack.record.id), (Effect::Unchanged, &id(1)), "keys outlive the process");
    let events = store.reader().events(&id(1), 0, 10).await.unwrap();
    assert_eq!(events.iter().map(|event| event.seq).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    drop(store);
    close(recovered);
}

#[tokio::test]
async fn an_attempt_that_is_over_writes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let recovered = open(&directory.path().join("agents.db")).unwrap();
    let store = recovered.store.clone();
    store.create(new_run(1, "x")).await.unwrap();
    store.change(Change::to(&id(1), Move::Stop(StopReason::Requested))).await.unwrap();
    store.change(Change::to(&id(1), Move::Resume)).await.unwrap();
    let stale = store.append(id(1), 1, vec![EventBody::note("late")]).await;
    assert!(matches!(stale, Err(StoreError::Stale)));
    let change = Change { attempt: Some(1), ..Change::to(&id(1), Move::Complete) };
    assert!(matches!(store.change(change).await, Err(StoreError::Stale)));
    drop(store);
    close(recovered);
}

#[tokio::test]
async fn chunks_nobody_claimed_are_swept_away() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agents.db");
    let recovered = open(&path).unwrap();
    recovered.store.upload("lost".into(), 0, vec![1; 10].into()).await.unwrap();
    close(recovered);
    close(open(&path).unwrap());
    let connection = rusqlite::Connection::open(&path).unwrap();
    let left: i64 =
        connection.query_row("SELECT COUNT(*) FROM payload_chunks", [], |row| row.get(0)).unwrap();
    assert_eq!(left, 0);
}
