//! The Python program these agents come from, asked the same.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use crewkit_testkit::model::ScriptedModel;
use serde_json::json;

use super::{LOOKS, RUNS, STARTS, Subject, Table, Times, all_runs, second_model, three_turns};
use crate::process::Running;

/// It listens there and nowhere else, and sends those who come on to the same address with a slash.
const URL: &str = "http://127.0.0.1:8101/mcp";

/// Measures it when it is there, and says so when it is not.
pub(super) async fn compare(table: &mut Table) -> Result<()> {
    let Ok(line) = std::env::var("MINIFRAM_BASELINE") else {
        println!("no Python program found: set MINIFRAM_BASELINE to compare");
        return Ok(());
    };
    let model = second_model().await;
    let peer = Arc::new(start(&line, &model).await?);
    let ids = peer.start_runs(RUNS).await?;
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
    let model = ScriptedModel::start_forgetful(three_turns).await;
    let peer = Arc::new(start(&line, &model).await?);
    table.beside("1000 runs of 3 turns", finish(&peer).await?);
    Ok(())
}

/// It cannot wait, so its runs are looked at until all have ended.
async fn finish(peer: &Arc<Subject>) -> Result<f64> {
    let began = Instant::now();
    if peer.call("agent_wait", json!({"agent_ids": []})).await.is_ok() {
        return Ok(all_runs(peer).await?.1);
    }
    let ids = peer.start_runs(RUNS).await?;
    loop {
        let told = peer.call("agent_status", json!({"agent_ids": ids})).await?;
        let mut all = told["result"].as_array().context("no list of agents")?.iter();
        if all.all(|run| run["status"] == "completed") {
            return Ok(began.elapsed().as_secs_f64());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn start(line: &str, model: &ScriptedModel) -> Result<Subject> {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().context("MINIFRAM_BASELINE is empty")?);
    command.args(words).env("LLM_ENDPOINT", model.url()).env("LLM_MODEL", "scripted");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let process = Running(command.spawn().with_context(|| format!("MINIFRAM_BASELINE: {line}"))?);
    let client = crewkit_agent::http_client().pool_max_idle_per_host(usize::MAX).build()?;
    let (url, session) = open_session(&client).await?;
    Ok(Subject { process, url, client, session, home: tempfile::tempdir()? })
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
