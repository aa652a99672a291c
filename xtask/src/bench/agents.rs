//! `cargo xtask bench agents`: what a thousand agents cost, beside what the scripted model and a bare server allow.
//!
//! Times are measured through the release binary over HTTP. What has a floor is held against it in the same run: the same
//! requests sent straight to the model, the same answer given by a bare axum server.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use crewkit_testkit::model::{ScriptedModel, Turn};
use serde_json::{Value, json};

use crate::process::{self, Server};

const RUNS: usize = 1000;
const STARTS: usize = 100;
const LOOKS: usize = 300;
const PAYLOAD: usize = 50 << 20;

/// Measures, prints a table, and fails when a bound is missed.
pub(crate) fn run() -> Result<()> {
    process::build(&["--release", "--package", "crewkit", "--bin", "crewkit"])?;
    process::build(&["--release", "--package", "xtask", "--example", "bare_http"])?;
    let release = process::target()?.join("release");
    raise_open_files();
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let mut table = Table::default();
        busy(&release, &mut table).await?;
        throughput(&release, &mut table).await?;
        turns(&release, &mut table).await?;
        payload(&release, &mut table).await?;
        table.print();
        anyhow::ensure!(!table.missed, "a bound was missed");
        Ok(())
    })
}

fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// A server with its model, in a home of its own.
struct Subject {
    server: Server,
    client: reqwest::Client,
    base: String,
    _home: tempfile::TempDir,
}

impl Subject {
    fn start(release: &Path, model: &ScriptedModel) -> Result<Self> {
        let home = tempfile::tempdir()?;
        let settings = format!("[llm]\nendpoint = \"{}\"\nmodel = \"scripted\"\n", model.url());
        std::fs::write(home.path().join("crewkit.toml"), settings)?;
        let arguments = ["--home", home.path().to_str().context("a home that is no text")?, "--stateless"];
        let server = Server::start(&release.join("crewkit"), &arguments, &home.path().join("log"))?;
        let base = server.url.trim_end_matches("/mcp").to_owned();
        let client = crewkit_agent::http_client().pool_max_idle_per_host(usize::MAX).build()?;
        Ok(Self { server, client, base, _home: home })
    }

    /// Calls a tool over MCP.
    async fn call(&self, name: &str, arguments: Value) -> Result<Value> {
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}});
        let request =
            self.client.post(&self.server.url).header("Accept", "application/json, text/event-stream");
        let text = request.json(&message).send().await?.text().await?;
        let line = text.lines().find_map(|line| line.strip_prefix("data: ")).unwrap_or(&text);
        let answer: Value = serde_json::from_str(line).with_context(|| text.clone())?;
        if answer["result"]["isError"] != false {
            bail!("{name} failed: {answer}");
        }
        Ok(answer["result"]["structuredContent"].clone())
    }

    async fn start_run(&self) -> Result<String> {
        let started = self.call("agent_start", json!({"contract": "work"})).await?;
        Ok(started["agent_id"].as_str().unwrap_or_default().to_owned())
    }

    /// Starts many runs, a few at a time.
    async fn start_runs(self: &Arc<Self>, count: usize) -> Result<Vec<String>> {
        let mut starting = tokio::task::JoinSet::new();
        let mut ids = Vec::new();
        for _ in 0..count {
            if starting.len() >= 64 {
                ids.push(starting.join_next().await.context("nothing started")???);
            }
            let subject = Arc::clone(self);
            starting.spawn(async move { subject.start_run().await });
        }
        while let Some(started) = starting.join_next().await {
            ids.push(started??);
        }
        Ok(ids)
    }

    fn memory(&self) -> Result<f64> {
        super::mcp::memory(&self.server.process)
    }
}

/// A model that keeps every run busy without end, a second a turn.
async fn second_model() -> ScriptedModel {
    ScriptedModel::start_forgetful(|request| {
        Turn::call("no_such_tool", &json!({"n": request.n})).after(Duration::from_secs(1))
    })
    .await
}

/// Latencies while a thousand runs are at work.
async fn busy(release: &Path, table: &mut Table) -> Result<()> {
    let model = second_model().await;
    let subject = Arc::new(Subject::start(release, &model)?);
    subject.start_run().await?;
    let before = subject.memory()?;
    let ids = subject.start_runs(RUNS).await?;
    while model.in_flight() < RUNS * 9 / 10 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    table.bound("memory per run at work", (subject.memory()? - before) / 1e3 / 1000.0, 40.0, "KB");
    let mut looks = Times::default();
    for n in 0..LOOKS {
        let id = &ids[n * 3 % ids.len()];
        looks.measure(subject.call("agent_status", json!({"agent_ids": [id]}))).await?;
    }
    table.bound("agent_status p99, 1000 at work", looks.percentile(99), 50.0, "ms");
    let mut wide = Times::default();
    for _ in 0..50 {
        wide.measure(subject.call("agent_status", json!({"agent_ids": ids}))).await?;
    }
    table.bound("agent_status of 1000 ids p99", wide.percentile(99), 50.0, "ms");
    let mut starts = Times::default();
    for _ in 0..STARTS {
        starts.measure(subject.start_run()).await?;
    }
    table.bound("agent_start p99, 1000 at work", starts.percentile(99), 100.0, "ms");
    table.note("agent_start p50, 1000 at work", starts.percentile(50), "ms");
    Ok(())
}

/// Status calls a second with eight connections, beside a bare server that gives the same answer.
async fn throughput(release: &Path, table: &mut Table) -> Result<()> {
    let model = ScriptedModel::start_forgetful(|_| Turn::complete("scripted end")).await;
    let subject = Arc::new(Subject::start(release, &model)?);
    let id = subject.start_run().await?;
    subject.call("agent_wait", json!({"agent_ids": [id]})).await?;
    let params = json!({"name": "agent_status", "arguments": {"agent_ids": [id]}});
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let request =
        subject.client.post(&subject.server.url).header("Accept", "application/json, text/event-stream");
    let text = request.json(&message).send().await?.text().await?;
    let line = text.lines().find_map(|line| line.strip_prefix("data: ")).unwrap_or(&text);
    let answer: Value = serde_json::from_str(line)?;
    let bare = super::mcp::BareServer::start(release, &answer["result"].to_string())?;
    let (mut best, mut best_bare) = (0.0_f64, 0.0_f64);
    for _ in 0..5 {
        best = best.max(rate(&subject.client, &subject.server.url, &message).await?);
        best_bare = best_bare.max(rate(&subject.client, &bare.url, &message).await?);
    }
    table.note("agent_status, 8 connections", best, "/s");
    table.bound("bare answer over agent_status", best_bare / best, 3.0, "x");
    Ok(())
}

async fn rate(client: &reqwest::Client, url: &str, message: &Value) -> Result<f64> {
    const CALLS: usize = 400;
    let began = Instant::now();
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (client, url, message) = (client.clone(), url.to_owned(), message.clone());
        callers.spawn(async move {
            for _ in 0..CALLS {
                let request =
                    client.post(&url).header("Accept", "application/json, text/event-stream").json(&message);
                request.send().await?.bytes().await?;
            }
            Ok::<_, anyhow::Error>(())
        });
    }
    while let Some(done) = callers.join_next().await {
        done??;
    }
    #[expect(clippy::cast_precision_loss, reason = "a small count")]
    Ok((8 * CALLS) as f64 / began.elapsed().as_secs_f64())
}

async fn quick_model() -> ScriptedModel {
    ScriptedModel::start_forgetful(|request| {
        let turn = match request.turn {
            0..2 => Turn::call("no_such_tool", &json!({"turn": request.turn})),
            _ => Turn::complete("scripted end"),
        };
        turn.after(Duration::from_millis(200))
    })
    .await
}

/// A thousand runs of three turns, beside the same three thousand requests sent straight to the model.
async fn turns(release: &Path, table: &mut Table) -> Result<()> {
    let model = quick_model().await;
    let client = crewkit_agent::http_client().pool_max_idle_per_host(usize::MAX).build()?;
    let body = json!({"model": "m", "stream": true, "messages": [
        {"role": "system", "content": "You are agent-1. ".repeat(80)}, {"role": "user", "content": "work"}]});
    let began = Instant::now();
    let mut direct = tokio::task::JoinSet::new();
    for _ in 0..RUNS {
        let (client, url, body) = (client.clone(), model.url(), body.clone());
        direct.spawn(async move {
            for _ in 0..3 {
                client.post(&url).json(&body).send().await?.bytes().await?;
            }
            Ok::<_, anyhow::Error>(())
        });
    }
    while let Some(done) = direct.join_next().await {
        done??;
    }
    let floor = began.elapsed().as_secs_f64();
    drop(model);
    let model = quick_model().await;
    let subject = Arc::new(Subject::start(release, &model)?);
    let began = Instant::now();
    let ids = subject.start_runs(RUNS).await?;
    let started = began.elapsed().as_secs_f64();
    let waited = subject.call("agent_wait", json!({"agent_ids": ids})).await?;
    let took = began.elapsed().as_secs_f64();
    let ended =
        waited["result"].as_array().into_iter().flatten().filter(|run| run["status"] == "completed").count();
    if ended != RUNS {
        bail!("{ended} of {RUNS} runs completed");
    }
    table.note("3000 requests straight to the model", floor, "s");
    table.note("1000 starts", started, "s");
    table.note("1000 runs of 3 turns", took, "s");
    table.bound("runs over straight requests", took / floor, 1.5, "x");
    #[expect(clippy::cast_precision_loss, reason = "a small count")]
    table.note("most requests in flight", model.peak_in_flight() as f64, "");
    Ok(())
}

/// What others feel while a large payload is stored, and how fast it is served.
async fn payload(release: &Path, table: &mut Table) -> Result<()> {
    let model = second_model().await;
    let subject = Arc::new(Subject::start(release, &model)?);
    let (id, other) = (subject.start_run().await?, subject.start_run().await?);
    let text = text_like(PAYLOAD);
    let body = json!({"agent_id": id, "summary": "big", "payload": text}).to_string();
    let storing = {
        let (client, url) = (subject.client.clone(), format!("{}/api/ops/agent_complete", subject.base));
        tokio::spawn(async move {
            let began = Instant::now();
            let request = client.post(url).header("Content-Type", "application/json").body(body);
            let status = request.send().await?.status();
            Ok::<_, anyhow::Error>((began.elapsed(), status))
        })
    };
    let mut looks = Times::default();
    while !storing.is_finished() {
        looks.measure(subject.call("agent_status", json!({"agent_ids": [other]}))).await?;
    }
    let (took, status) = storing.await??;
    if !status.is_success() {
        bail!("the payload was refused: {status}");
    }
    table.note("storing 50 MB", took.as_secs_f64(), "s");
    table.note("agent_status p50 meanwhile", looks.percentile(50), "ms");
    table.note("agent_status p99 meanwhile", looks.percentile(99), "ms");
    table.note("agent_status max meanwhile", looks.percentile(100), "ms");
    let url = format!("{}/api/agents/{id}/payload", subject.base);
    let mut best = 0.0_f64;
    for _ in 0..10 {
        let began = Instant::now();
        let bytes = subject.client.get(&url).header("Accept-Encoding", "gzip").send().await?.bytes().await?;
        #[expect(clippy::cast_precision_loss, reason = "far below the limit of a float")]
        let rate = bytes.len() as f64 / 1e6 / began.elapsed().as_secs_f64();
        best = best.max(rate);
    }
    table.note("serving it, gzip bytes", best, "MB/s");
    Ok(())
}

/// Text that compresses about as well as text does.
fn text_like(bytes: usize) -> String {
    let mut seed = 7_u64;
    let mut text = String::with_capacity(bytes + 16);
    while text.len() < bytes {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        text.push_str(
            ["run ", "agent ", "contract ", "file ", "line ", "x", "42 ", "\n"][(seed >> 61) as usize & 7],
        );
        text.push(char::from(b'a' + ((seed >> 40) % 26) as u8));
    }
    text
}

#[derive(Default)]
struct Times(Vec<f64>);

impl Times {
    async fn measure<T>(&mut self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let began = Instant::now();
        let result = work.await?;
        self.0.push(began.elapsed().as_secs_f64() * 1e3);
        Ok(result)
    }

    /// In milliseconds.
    fn percentile(&mut self, percent: usize) -> f64 {
        self.0.sort_unstable_by(f64::total_cmp);
        let at = (self.0.len() * percent).div_ceil(100).saturating_sub(1);
        self.0.get(at).copied().unwrap_or_default()
    }
}

#[derive(Default)]
struct Table {
    rows: Vec<(String, f64, &'static str, Option<f64>)>,
    missed: bool,
}

impl Table {
    fn note(&mut self, what: &str, value: f64, unit: &'static str) {
        self.rows.push((what.to_owned(), value, unit, None));
    }

    fn bound(&mut self, what: &str, value: f64, most: f64, unit: &'static str) {
        self.missed |= value > most;
        self.rows.push((what.to_owned(), value, unit, Some(most)));
    }

    fn print(&self) {
        for (what, value, unit, most) in &self.rows {
            let bound = most.map_or_else(String::new, |most| {
                format!("  at most {most} {unit}{}", if *value > most { "  MISSED" } else { "" })
            });
            println!("{what:<40} {value:>10.2} {unit:<5}{bound}");
        }
    }
}
