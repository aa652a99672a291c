//! The Python program these agents come from, asked the same.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use crewkit_testkit::model::{ScriptedModel, Turn};
use serde_json::json;

use super::{LOOKS, RUNS, STARTS, Subject, Table, Times};
use crate::process::Running;

/// It listens there and nowhere else, and sends those who come on to the same address with a slash.
const URL: &str = "http://127.0.0.1:8101/mcp";

/// What Python runs within a checkout of it.
const MAIN: &str = "from src.foundation.server import main; main()";
/// It cannot wait, so it is looked at this often; each look costs it some time.
const GLANCE: Duration = Duration::from_millis(250);

/// Measures it when it is there, and says so when it is not.
///
/// It stops at a reply that has calls and no words, as servers send it, and keeps no history that a strict server would take. So
/// it is given words only, by a model that takes any history: less to do than our agents have.
pub(super) async fn compare(table: &mut Table) -> Result<()> {
    let Ok(place) = std::env::var("MINIFRAM_BASELINE") else {
        println!("no Python program found: set MINIFRAM_BASELINE to compare");
        return Ok(());
    };
    let model = ScriptedModel::start_lenient(|_| Turn::say("working").after(Duration::from_secs(1))).await;
    let peer = Arc::new(start(&place, &model).await?);
    let ids = peer.start_runs(RUNS, "work").await?;
    let (mut looks, mut starts) = (Times::default(), Times::default());
    for n in 0..LOOKS {
        let id = &ids[n * 3 % ids.len()];
        looks.measure(peer.call("agent_status", json!({"agent_ids": [id]}))).await?;
    }
    for _ in 0..STARTS {
        starts.measure(peer.start_run()).await?;
    }
    table.beside("agent_status p99, 1000 at work", looks.percentile(99));
    table.beside("agent_start p99, 1000 at work", starts.percentile(99));
    drop(peer);
    let model = ScriptedModel::start_lenient(|request| {
        let words = if request.turn < 2 { "working" } else { "scripted end\n[CONTRACT COMPLETE]" };
        Turn::say(words).after(Duration::from_millis(200))
    })
    .await;
    let peer = Arc::new(start(&place, &model).await?);
    table.beside("1000 runs of 3 turns", finish(&peer).await?);
    Ok(())
}

async fn finish(peer: &Arc<Subject>) -> Result<f64> {
    let began = Instant::now();
    let ids = peer.start_runs(RUNS, "work").await?;
    loop {
        let told = peer.call("agent_status", json!({"agent_ids": ids})).await?;
        let all = told["result"].as_array().context("no list of agents")?;
        if let Some(failed) = all.iter().find(|run| run["status"] == "stopped") {
            bail!("a run of the Python program did not complete: {failed}");
        }
        if all.iter().all(|run| run["status"] == "completed") {
            return Ok(began.elapsed().as_secs_f64());
        }
        tokio::time::sleep(GLANCE).await;
    }
}

async fn start(place: &str, model: &ScriptedModel) -> Result<Subject> {
    let mut command = command(Path::new(place))?;
    command.env("LLM_ENDPOINT", model.url()).env("LLM_MODEL", "scripted");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let process = Running(command.spawn().with_context(|| format!("MINIFRAM_BASELINE: {place}"))?);
    // It closes connections that were idle for a while also when a request is on its way.
    let client = crewkit_agent::http_client().pool_max_idle_per_host(0).build()?;
    let (url, session) = open_session(&client).await?;
    Ok(Subject { process, url, client, session, home: tempfile::tempdir()? })
}

/// How it is started: within a checkout of it, or by a command line.
fn command(place: &Path) -> Result<Command> {
    if place.is_dir() {
        let own = place.join(".venv/bin/python");
        let mut python = Command::new(if own.exists() { own.as_path() } else { Path::new("python3") });
        python.args(["-c", MAIN]).current_dir(place);
        return Ok(python);
    }
    let line = place.to_string_lossy();
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().context("MINIFRAM_BASELINE is empty")?);
    command.args(words);
    Ok(command)
}

/// Introduces us as soon as it listens; where it is to be asked, and in which session.
async fn open_session(client: &reqwest::Client) -> Result<(String, Option<String>)> {
    let introduction = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}});
    let post = |url: &str, session: Option<&str>| {
        let request = client.post(url).header("Accept", "application/json, text/event-stream");
        session.into_iter().fold(request, |request, session| request.header("Mcp-Session-Id", session))
    };
    let until = Instant::now() + Duration::from_mins(1);
    let mut url = URL.to_owned();
    let answer = loop {
        match post(&url, None).json(&introduction).send().await {
            Ok(answer) if answer.status().is_redirection() && url == URL => url.push('/'),
            Ok(answer) => break answer.error_for_status()?,
            Err(error) if Instant::now() > until => {
                return Err(error).context("it never listened on port 8101");
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    };
    let session = answer.headers().get("Mcp-Session-Id").and_then(|id| id.to_str().ok()).map(str::to_owned);
    answer.bytes().await?;
    let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    post(&url, session.as_deref()).json(&ready).send().await?.error_for_status()?;
    Ok((url, session))
}
