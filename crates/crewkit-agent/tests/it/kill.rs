//! kill -9 at random moments: every acknowledged change is there exactly once.
//!
//! Ten rounds here; `CREWKIT_KILL_ROUNDS=100` runs more. A failure prints the seed; `CREWKIT_SEED` replays it.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crewkit_agent::Engine;
use crewkit_core::run::RunStatus;
use crewkit_testkit::bins;
use crewkit_testkit::history::{Found, Note, check};
use crewkit_testkit::model::{ScriptedModel, Turn};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};

use crate::support::{end_of, options};

const CLIENTS: u64 = 8;
const ACTIVE: usize = 200;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// A small generator; the test only needs to be spread out and repeatable.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

fn spawn_host(home: &std::path::Path, url: &str) -> (Child, String) {
    let host = bins::example("crewkit-agent", "agent_host");
    let mut child = Command::new(host).arg(home).arg(url).stdout(Stdio::piped()).spawn().unwrap();
    let mut address = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut address).unwrap();
    assert!(!address.is_empty(), "the host did not start");
    (child, address.trim().to_owned())
}

/// One client: starts, stops and completes until the server is gone. Everything is noted before and after.
async fn client(address: String, round: u64, name: u64, seed: u64, notes: Arc<Mutex<Vec<Note>>>) {
    let note = |entry: Note| notes.lock().unwrap().push(entry);
    let mut dice = Dice(seed ^ (name << 32) ^ (round << 48));
    let Ok(socket) = tokio::net::TcpStream::connect(&address).await else { return };
    let (read, mut write) = socket.into_split();
    let mut lines = tokio::io::BufReader::new(read).lines();
    let mut ask = async |wish: Value| -> Option<Value> {
        write.write_all(format!("{wish}\n").as_bytes()).await.ok()?;
        let line = lines.next_line().await.ok()??;
        serde_json::from_str(&line).ok()
    };
    let mut mine: Vec<String> = Vec::new();
    for n in 0.. {
        let wish = dice.roll(4);
        if wish < 2 || mine.is_empty() {
            // Every fourth key is used twice, as a client does that did not hear the answer.
            let key = format!("{round}-{name}-{}", if n % 4 == 3 { n - 1 } else { n });
            note(Note::StartSent { key: key.clone() });
            let Some(answer) = ask(json!({"op": "start", "key": key, "contract": "x"})).await else { return };
            let Some(id) = answer["id"].as_str() else { continue };
            note(Note::StartAcked { key, id: id.to_owned() });
            mine.push(id.to_owned());
        } else {
            let at = usize::try_from(dice.roll(mine.len() as u64)).unwrap();
            let (id, summary) = (mine[at].clone(), format!("summary {round}-{name}-{n}"));
            let wanted = if wish == 2 { "stopped" } else { "completed" };
            note(Note::EndSent { id: id.clone(), wanted, summary: summary.clone() });
            let op = if wish == 2 { "stop" } else { "complete" };
            let payload = "p".repeat(usize::try_from(dice.roll(10_000)).unwrap());
            let wish = json!({"op": op, "id": id, "summary": summary, "payload": payload});
            let Some(answer) = ask(wish).await else { return };
            let word = |key: &str| answer[key].as_str().unwrap_or_default().to_owned();
            note(Note::EndAcked { id, status: word("status"), ended_at: word("ended_at") });
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_acknowledged_change_is_lost_or_made_twice() {
    let rounds = number("CREWKIT_KILL_ROUNDS").unwrap_or(10);
    let seed = number("CREWKIT_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    eprintln!("seed {seed}, {rounds} rounds");
    let model = ScriptedModel::start_forgetful(|request| match request.turn {
        0..3 => Turn::call("no_such_tool", &json!({"turn": request.turn})).after(Duration::from_millis(50)),
        _ => Turn::complete("scripted end").after(Duration::from_millis(100)),
    })
    .await;
    let home = tempfile::tempdir().unwrap();
    let notes: Arc<Mutex<Vec<Note>>> = Arc::default();
    let mut dice = Dice(seed);
    for round in 0..rounds {
        let (mut host, address) = spawn_host(home.path(), &model.url());
        let clients: Vec<_> = (0..CLIENTS)
            .map(|name| tokio::spawn(client(address.clone(), round, name, seed, Arc::clone(&notes))))
            .collect();
        // Killed at a random moment once enough is going on.
        let began = notes.lock().unwrap().len();
        while notes.lock().unwrap().len() < began + ACTIVE {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        tokio::time::sleep(Duration::from_millis(dice.roll(150))).await;
        host.kill().unwrap();
        host.wait().unwrap();
        for client in clients {
            client.await.unwrap();
        }
        let found = look(&home, &model.url()).await;
        let broken = check(&notes.lock().unwrap(), &found);
        assert!(broken.is_empty(), "seed {seed}, round {round}: {broken:#?}");
    }
    let notes = notes.lock().unwrap();
    let acked =
        notes.iter().filter(|note| matches!(note, Note::StartAcked { .. } | Note::EndAcked { .. })).count();
    eprintln!("{acked} acknowledged changes");
}

/// Opens the home as the next server would, lets it finish what was under way, and checks that every transcript and payload is
/// whole.
async fn look(home: &tempfile::TempDir, url: &str) -> Vec<Found> {
    let engine = Engine::open(options(home, url)).await.unwrap();
    let running = engine.list(Some(RunStatus::Running)).into_iter().map(|status| status.agent_id);
    for id in running.collect::<Vec<_>>() {
        end_of(&engine, &id).await;
    }
    let mut found = Vec::new();
    for record in engine.records() {
        let id = record.id.as_str();
        let mut entries = Vec::new();
        loop {
            let after = entries.last().copied().unwrap_or(0);
            let page = engine.output(id, after, 500).await.unwrap();
            entries.extend(page.entries.iter().map(|event| event.seq));
            if page.next.is_none() {
                break;
            }
        }
        assert!(
            entries.iter().copied().eq(1..=record.last_seq),
            "the transcript of {id} has holes: {entries:?}"
        );
        if record.payload.is_some() {
            let payload = engine.payload(id).await.unwrap();
            assert_eq!(payload.gzip.len() as u64, payload.info.gzip_size, "the payload of {id} is not whole");
        }
        found.push(Found {
            id: id.to_owned(),
            status: record.state.status().as_str().to_owned(),
            ended_at: record.state.ended_at().map(|at| at.to_string()),
            summary: record.summary.as_deref().map(str::to_owned),
        });
    }
    engine.shutdown().await;
    engine.closed().await;
    found
}
