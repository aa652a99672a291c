use std::sync::Arc;

use crewkit_core::run::{Phase, RunStatus};
use crewkit_core::{Limits, Timestamp};
use tempfile::TempDir;

use super::super::{Clock, Recovered, Store, schema};
use super::*;

/// What a server of 0.1.0 left when it was killed: an ended run of each kind, a prepared one, one at work, and a chat.
const OLD_RUNS: &str = include_str!("../../../tests/data/home-0.1.0/agents.sql");

/// Two agents in one project, and their three tasks.
const OLD_FLEET: &str = include_str!("../../../tests/data/home-0.1.0/fleet.sql");

fn home_of_0_1_0() -> TempDir {
    let home = tempfile::tempdir().unwrap();
    for (name, rows) in [("state/agents/agents.db", OLD_RUNS), ("fleet/fleet.db", OLD_FLEET)] {
        let path = home.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let old = Connection::open(&path).unwrap();
        old.pragma_update(None, "journal_mode", "WAL").unwrap();
        old.execute_batch(rows).unwrap();
    }
    home
}

fn clock() -> Clock {
    Arc::new(|| Timestamp::from_millis(1_794_895_300_000))
}

fn lock_of(home: &Path) -> Arc<StoreLock> {
    Arc::new(StoreLock::of_home(home).unwrap())
}

fn open(home: &Path) -> Recovered {
    Store::open(home, lock_of(home), &clock(), &Limits::default()).unwrap()
}

/// What 0.1.0 checks before it opens a file.
fn is_refused_by_0_1_0(path: &Path) -> bool {
    version_in_header(path).unwrap().unwrap() > OLD_VERSION
}

async fn check(home: &Path) {
    let recovered = open(home);
    let store = recovered.store.clone();
    let records: Vec<_> = store.memory().all().iter().map(|entry| entry.record()).collect();
    let told: Vec<(&str, &str)> =
        records.iter().map(|run| (&*run.contract_start, run.state.status().as_str())).collect();
    assert_eq!(
        told,
        [
            ("Say hello", "completed"),
            ("sleep 600", "stopped"),
            ("sleep 601", "completed"),
            ("prepared", "ready"),
            ("echo working; sleep 602", "running"),
        ]
    );
    assert_eq!(records[4].state.phase(), Some(&Phase::Working));
    assert_eq!(recovered.running, [records[4].id.clone()]);
    assert_eq!(store.memory().by_key("first"), Some(records[0].id.clone()));
    let transcript = store.reader().events(&records[0].id, 0, 100).await.unwrap();
    assert_eq!(transcript.len() as u64, records[0].last_seq);
    assert!(records[0].summary.is_some() && records[0].turns > 0);
    assert_eq!(records[2].summary.as_deref(), Some("all is well"));
    let payload = store.reader().payload(records[2].payload.as_ref().unwrap()).await.unwrap();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&payload[..]), &mut text).unwrap();
    assert_eq!(text, "the work, delivered");
    let chat = store.reader().chat("talk-1").await.unwrap();
    assert_eq!(chat.len(), 2);
    assert!(chat[1].body.contains("A reply in words to: hello there"), "{}", chat[1].body);
    let count = |kind| store.documents().all(kind).unwrap().len();
    assert_eq!((count("agent"), count("task"), count("project"), count("trusted")), (2, 3, 1, 1));
    drop(store);
    drop(recovered.store);
    recovered.writer.join().unwrap();
}

#[tokio::test]
async fn a_home_of_0_1_0_is_brought_over_once_and_refused_by_0_1_0_from_then_on() {
    let home = home_of_0_1_0();
    check(home.path()).await;
    let old = home.path().join("state/agents/agents.db");
    assert!(is_refused_by_0_1_0(&old) && is_refused_by_0_1_0(&home.path().join("fleet/fleet.db")));
    assert!(home.path().join("backup-0.1.0/fleet.db").exists());
    // The backup is a complete home of 0.1.0.
    let backup = Connection::open(home.path().join("backup-0.1.0/agents.db")).unwrap();
    let runs: i64 = backup.query_row("SELECT COUNT(*) FROM runs", [], |row| row.get(0)).unwrap();
    let version: u32 = backup.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    assert_eq!((runs, version), (5, OLD_VERSION));
    // Opening again brings nothing over twice.
    check(home.path()).await;
}

#[tokio::test]
async fn interrupted_after_every_step_it_is_redone() {
    for fatal in [Step::Backup, Step::Mark, Step::Import] {
        let home = home_of_0_1_0();
        let old = home.path().join("state/agents/agents.db");
        let opened = schema::open(&home.path().join("crewkit.db"), lock_of(home.path())).unwrap();
        let stopped = bring_over_with(home.path(), &opened, &mut |step| {
            if step == fatal { Err(StoreError::Closed) } else { Ok(()) }
        });
        assert!(matches!(stopped, Err(StoreError::Closed)), "{fatal:?}");
        let runs: i64 = opened.writer.query_row("SELECT COUNT(*) FROM runs", [], |row| row.get(0)).unwrap();
        assert_eq!(runs > 0, fatal == Step::Import, "{fatal:?}");
        assert!(home.path().join("backup-0.1.0/agents.db").exists());
        if fatal == Step::Backup {
            // It still belongs to 0.1.0, which may write to it again; then the backup is made again.
            assert!(!is_refused_by_0_1_0(&old));
            let connection = Connection::open(&old).unwrap();
            connection
                .execute("UPDATE runs SET summary = 'later' WHERE summary = 'all is well'", [])
                .unwrap();
            connection
                .execute("UPDATE runs SET summary = 'all is well' WHERE summary = 'later'", [])
                .unwrap();
        } else {
            assert!(is_refused_by_0_1_0(&old), "{fatal:?}");
        }
        drop(opened);
        check(home.path()).await;
    }
}

#[test]
fn a_home_that_a_server_of_0_1_0_holds_is_refused_untouched() {
    let home = home_of_0_1_0();
    let held = StoreLock::take(&home.path().join("state/agents/agents.lock")).unwrap().unwrap();
    let refused = Store::open(home.path(), lock_of(home.path()), &clock(), &Limits::default());
    assert!(matches!(refused.map(drop), Err(StoreError::File(FileFault::Locked { .. }))));
    assert!(!is_refused_by_0_1_0(&home.path().join("state/agents/agents.db")));
    assert!(!home.path().join("backup-0.1.0").exists());
    drop(held);
}

#[test]
fn a_new_home_has_nothing_to_bring_over() {
    let home = tempfile::tempdir().unwrap();
    let recovered = open(home.path());
    assert!(
        recovered.store.memory().all().iter().all(|run| run.record().state.status() != RunStatus::Running)
    );
    drop(recovered.store);
    recovered.writer.join().unwrap();
    assert!(!home.path().join("backup-0.1.0").exists());
}
