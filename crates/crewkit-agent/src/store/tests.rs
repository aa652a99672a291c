//! What the store promises when the disk does not cooperate.

use std::path::Path;
use std::sync::Arc;

use crewkit_core::run::{Move, Phase, RunId, StopReason};
use crewkit_core::{Limits, Timestamp};

use super::{
    Begin, Change, Clock, DocumentChange, Effect, FileFault, NewEvent, NewRun, Recovered, RunSpec, Store,
    StoreError, StoreLock,
};
use crate::event::EventBody;

fn clock() -> Clock {
    Arc::new(|| Timestamp::from_millis(1_000))
}

fn lock(home: &Path) -> Result<Arc<StoreLock>, StoreError> {
    Ok(Arc::new(StoreLock::of_home(home)?))
}

fn open(home: &Path) -> Result<Recovered, StoreError> {
    Store::open(home, lock(home)?, &clock(), &Limits::default())
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
        settings: None,
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
    // SQLite's own bound on pages fails a write in the same place and with the same code as a full disk.
    let locked = lock(directory.path()).unwrap();
    let recovered = Store::open_bounded(directory.path(), locked, &clock(), &Limits::default(), 60).unwrap();
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
        assert_eq!(store.reader().contract(id).await.unwrap().unwrap(), *contract);
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
    let path = directory.path().join("crewkit.db");
    close(open(directory.path()).unwrap());
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.pragma_update(None, "user_version", 99).unwrap();
    connection.pragma_update(None, "journal_mode", "DELETE").unwrap();
    drop(connection);
    let before = std::fs::read(&path).unwrap();
    let refused = open(directory.path()).map(close).unwrap_err();
    assert!(matches!(refused, StoreError::File(FileFault::TooNew { found: 99, known: 2, .. })), "{refused}");
    assert_eq!(std::fs::read(&path).unwrap(), before);
    let mut names: Vec<_> =
        std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["crewkit.db", "run"]);
}

#[test]
fn a_file_that_is_no_store_is_an_error_and_stays() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("crewkit.db");
    let text = "not a database ".repeat(20);
    std::fs::write(&path, &text).unwrap();
    assert!(open(directory.path()).map(close).is_err());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
}

#[tokio::test]
async fn everything_is_there_after_opening_again() {
    let directory = tempfile::tempdir().unwrap();
    let recovered = open(directory.path()).unwrap();
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

    let recovered = open(directory.path()).unwrap();
    let store = recovered.store.clone();
    assert_eq!(recovered.running, [id(2)]);
    assert_eq!(*store.get(&id(1)).unwrap().record(), *stopped.record);
    assert_eq!(store.get(&id(2)).unwrap().record().state.phase(), Some(&Phase::Queued));
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
    let recovered = open(directory.path()).unwrap();
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
    let path = directory.path().join("crewkit.db");
    let recovered = open(directory.path()).unwrap();
    recovered.store.upload("lost".into(), 0, vec![1; 10].into()).await.unwrap();
    close(recovered);
    close(open(directory.path()).unwrap());
    let connection = rusqlite::Connection::open(&path).unwrap();
    let left: i64 =
        connection.query_row("SELECT COUNT(*) FROM payload_chunks", [], |row| row.get(0)).unwrap();
    assert_eq!(left, 0);
}

fn put(id: &str, body: &str) -> DocumentChange {
    DocumentChange::Put { kind: "agent", id: id.to_owned(), body: body.to_owned() }
}

#[tokio::test]
async fn documents_are_written_with_their_events_and_read_back() {
    let directory = tempfile::tempdir().unwrap();
    let recovered = open(directory.path()).unwrap();
    let documents = recovered.store.documents();
    let event = |kind| NewEvent { kind, subject: "a".to_owned(), position: 3 };
    let gone = DocumentChange::Delete { kind: "agent", id: "a".to_owned() };
    documents.write(vec![put("b", "1"), put("a", "2")], vec![event("agent.created")]).await.unwrap();
    documents.write(vec![gone, put("b", "3")], vec![event("agent.deleted")]).await.unwrap();
    assert_eq!(documents.all("agent").unwrap(), [("b".to_owned(), "3".to_owned())]);
    assert!(documents.all("task").unwrap().is_empty());
    assert_eq!(*recovered.store.watch_events().borrow(), 2);
    let page = recovered.store.reader().event_log(0, 10).await.unwrap().unwrap();
    let told: Vec<_> = page.events.iter().map(|event| (event.seq, event.kind.as_str())).collect();
    assert_eq!(told, [(1, "agent.created"), (2, "agent.deleted")]);
    drop(documents);
    close(recovered);
    let recovered = open(directory.path()).unwrap();
    assert_eq!(recovered.store.documents().all("agent").unwrap().len(), 1);
    assert_eq!(*recovered.store.watch_events().borrow(), 2, "the sequence outlives the process");
    close(recovered);
}

#[tokio::test]
async fn a_cursor_older_than_what_is_kept_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let recovered = open(directory.path()).unwrap();
    let store = recovered.store.clone();
    for n in 0..4 {
        store.create(new_run(n, "x")).await.unwrap();
    }
    let page = store.reader().event_log(0, 2).await.unwrap().unwrap();
    assert_eq!((page.events.len(), page.next, page.last), (2, 2, 4));
    // The clock of these tests stands at one second.
    store.forget_events(Timestamp::from_millis(1_001)).await.unwrap();
    store.create(new_run(9, "x")).await.unwrap();
    for (after, found) in [(0, Some(1)), (1, None), (3, None), (4, Some(1)), (5, Some(0)), (6, None)] {
        let page = store.reader().event_log(after, 10).await.unwrap();
        assert_eq!(page.map(|page| page.events.len()), found, "after {after}");
    }
    drop(store);
    close(recovered);
}

#[tokio::test]
async fn a_run_and_its_key_can_be_deleted_and_created_in_one_batch() {
    let directory = tempfile::tempdir().unwrap();
    let recovered = open(directory.path()).unwrap();
    let store = recovered.store.clone();
    let keyed = |n| NewRun { idempotency: Some("k".into()), ..new_run(n, "x") };
    store.create(keyed(1)).await.unwrap();
    for n in 2..40 {
        // Both are on their way before the writer wakes up; several rounds meet every order of the drafts.
        let (deleted, created) = tokio::join!(store.delete(id(n - 1)), store.create(keyed(n)));
        deleted.unwrap();
        assert_eq!(created.unwrap().record.id, id(n));
        assert_eq!(store.memory().by_key("k"), Some(id(n)));
    }
    drop(store);
    close(recovered);
}

#[tokio::test]
async fn entries_nobody_waited_for_survive_a_failed_write() {
    let directory = tempfile::tempdir().unwrap();
    let locked = lock(directory.path()).unwrap();
    let recovered = Store::open_bounded(directory.path(), locked, &clock(), &Limits::default(), 60).unwrap();
    let store = recovered.store.clone();
    store.create(new_run(1, "x")).await.unwrap();
    let mut filled = 2;
    while store.create(new_run(filled, &"y".repeat(8000))).await.is_ok() {
        filled += 1;
    }
    // The disk takes neither; the second is awaited, so that both have been tried.
    let large = || EventBody::note("x".repeat(8000));
    store.append_later(id(1), 1, vec![large()], None).await.unwrap();
    let refused = store.append(id(1), 1, vec![large()]).await;
    assert!(matches!(refused, Err(StoreError::File(FileFault::Full { .. }))), "{refused:?}");
    for n in 2..filled {
        // What waits to be written goes along, so the first deletions may not be enough.
        let _ = store.delete(id(n)).await;
    }
    store.append(id(1), 1, vec![EventBody::note("second")]).await.unwrap();
    let events = store.reader().events(&id(1), 1, 10).await.unwrap();
    let bodies: Vec<EventBody> = events.iter().map(|event| event.body.clone()).collect();
    assert_eq!(bodies, [large(), EventBody::note("second")]);
    drop(store);
    close(recovered);
}
