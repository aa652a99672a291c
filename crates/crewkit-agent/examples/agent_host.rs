//! An engine in a process of its own, for tests that kill it: one JSON object a line over loopback TCP.
//!
//! `agent_host HOME MODEL_URL` prints its address and serves until it is killed.

use std::io::Write;
use std::sync::Arc;

use crewkit_agent::engine::Start;
use crewkit_agent::model::Endpoint;
use crewkit_agent::{Engine, Error, Options, RunRecord};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (home, url) = (arguments.next().unwrap_or_default(), arguments.next().unwrap_or_default());
    let mut options = Options::new(home);
    options.models = vec![Endpoint::new("scripted", url, "scripted")];
    let engine = Engine::open(options).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    writeln!(std::io::stdout(), "{}", listener.local_addr()?)?;
    loop {
        let (socket, _) = listener.accept().await?;
        tokio::spawn(serve(engine.clone(), socket));
    }
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
            let start = Start { contract: word("contract"), key: Some(word("key")), ..Start::default() };
            engine.start(start).await
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
