//! An engine in a process of its own, for tests that kill it: one JSON object a line over loopback TCP.
//!
//! `agent_host HOME MODEL_URL [N]` prints its address and serves until it is killed. With a number it kills itself when the
//! store is about to write for the N-th time. Agents may run commands.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use crewkit_agent::engine::{Start, Until};
use crewkit_agent::model::Endpoint;
use crewkit_agent::tools::CommandPolicy;
use crewkit_agent::{Clock, Engine, Error, Options, RunRecord, RunSpec};
use crewkit_core::Timestamp;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (home, url) = (arguments.next().unwrap_or_default(), arguments.next().unwrap_or_default());
    let fatal_write: Option<usize> = arguments.next().and_then(|number| number.parse().ok());
    let mut options = Options::new(home);
    let environment = std::env::vars_os().filter(|(name, _)| name == "PATH").collect();
    options.settings_mut().commands = CommandPolicy::Unconfined { environment };
    if let Some(fatal_write) = fatal_write {
        options.clock = clock_that_kills(fatal_write);
    }
    options.settings_mut().models = vec![Endpoint::new("scripted", url, "scripted")];
    let engine = Engine::open(options).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    writeln!(std::io::stdout(), "{}", listener.local_addr()?)?;
    loop {
        let (socket, _) = listener.accept().await?;
        tokio::spawn(serve(engine.clone(), socket));
    }
}

/// The store asks for the time once for every batch it is about to write.
fn clock_that_kills(fatal: usize) -> Clock {
    let asked = AtomicUsize::new(0);
    Arc::new(move || {
        if asked.fetch_add(1, Ordering::SeqCst) + 1 >= fatal {
            // A disk that takes long: whoever does not wait for it goes on meanwhile, and is found out.
            std::thread::sleep(Duration::from_millis(200));
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        }
        Timestamp::from(SystemTime::now())
    })
}

async fn serve(engine: Engine, socket: TcpStream) {
    let (read, mut write) = socket.into_split();
    let mut lines = BufReader::new(read).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let wish: Value = serde_json::from_str(&line).unwrap_or_default();
        let answer = match perform(&engine, &wish).await {
            Ok(record) => describe(&record),
            Err(error) => json!({"error": error.to_string()}),
        };
        if write.write_all(format!("{answer}\n").as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn perform(engine: &Engine, wish: &Value) -> Result<Arc<RunRecord>, Error> {
    let word = |key: &str| wish[key].as_str().unwrap_or_default().to_owned();
    match wish["op"].as_str().unwrap_or_default() {
        "start" => {
            let workdir = wish["workdir"].as_str().map(Into::into);
            let spec = RunSpec { workdir, ..RunSpec::default() };
            engine
                .start(Start { contract: word("contract"), key: Some(word("key")), spec, settings: None })
                .await
        }
        "wait" => {
            engine.wait(&[word("id")], Until::All, Duration::from_mins(1), &|_, _| {}).await?;
            engine.record(&word("id"))
        }
        "stop" => engine.stop(&word("id")).await,
        _ => engine.complete(&word("id"), word("summary"), Some(word("payload"))).await,
    }
}

fn describe(record: &RunRecord) -> Value {
    json!({
        "id": record.id,
        "status": record.state.status(),
        "ended_at": record.state.ended_at(),
    })
}
