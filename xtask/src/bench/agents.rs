//! `cargo xtask bench agents`: what a thousand agents cost, beside what the scripted model and a bare server allow.
//!
//! Times are measured through the release binary over HTTP, by a program that is optimised too. What has a floor is held
//! against it in the same run: the same requests sent straight to the model, the same answer given by a bare axum server, the
//! same bytes sent by a bare socket.
//!
//! `MINIFRAM_BASELINE` names a checkout of the Python program these agents come from, ready to run with its `.venv` or with
//! `python3`, or a command line that starts it; then its figures stand beside ours. It listens on port 8101, which has to be
//! free.

mod peer;
mod probe;

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use crewkit_testkit::model::{Request, ScriptedModel, Turn};
use serde_json::{Value, json};

use self::probe::Pair;
use crate::process::{self, Running};

const RUNS: usize = 1000;
const STARTS: usize = 100;
const LOOKS: usize = 300;
/// The best of these counts, of both sides.
const ROUNDS: usize = 3;
const PAYLOAD: usize = 50 << 20;
/// The fastest of these counts, of both sides; one takes some ten milliseconds.
const FETCHES: usize = 40;
/// Runs at work at once where most of them are queued.
const CAPACITY: usize = 100;
/// Ended runs that a server starts with, and what each was asked to do.
const ENDED: usize = 10_000;
const CONTRACT_BYTES: usize = 20_000;
const PARTS: [&str; 8] = ["busy", "throughput", "turns", "queued", "ended", "payload", "waiting", "peer"];
/// Longest anybody may wait because a payload is stored.
const STALL_MS: f64 = 20.0;

/// Measures, prints a table, and fails when a bound is missed. Names of parts leave out the others.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    if process::again_optimised(&[&["bench", "agents"], arguments].concat())? {
        return Ok(());
    }
    let (binary, parts) = match arguments {
        ["--binary", path, parts @ ..] => (Some(PathBuf::from(path)), parts),
        parts => (None, parts),
    };
    if let Some(unknown) = parts.iter().find(|part| !PARTS.contains(part)) {
        bail!("there is no part `{unknown}`; there are {}", PARTS.join(", "));
    }
    let release = process::target()?.join("release");
    let binary = match binary {
        Some(binary) => binary,
        None => {
            process::build(&["--release", "--package", "crewkit", "--bin", "crewkit"])?;
            release.join("crewkit")
        }
    };
    process::build(&["--release", "--package", "xtask", "--example", "bare_http"])?;
    raise_open_files();
    let wanted = |part: &str| parts.is_empty() || parts.contains(&part);
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let mut table = Table::default();
        if wanted("busy") {
            busy(&binary, &mut table).await?;
        }
        if wanted("throughput") {
            throughput(&binary, &release, &mut table).await?;
        }
        if wanted("turns") {
            turns(&binary, &mut table).await?;
        }
        if wanted("queued") {
            queued(&binary, &mut table).await?;
        }
        if wanted("ended") {
            ended(&binary, &mut table).await?;
        }
        if wanted("payload") {
            payload(&binary, &release, &mut table).await?;
        }
        if wanted("waiting") {
            waiting(&binary, &mut table).await?;
        }
        if wanted("peer") {
            peer::compare(&mut table).await?;
        }
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
    process: Running,
    url: String,
    client: reqwest::Client,
    /// Only servers that insist on sessions have one.
    session: Option<String>,
    home: tempfile::TempDir,
}

impl Subject {
    fn start(binary: &Path, model: &ScriptedModel) -> Result<Self> {
        Self::start_with(binary, model, "")
    }

    fn start_with(binary: &Path, model: &ScriptedModel, more: &str) -> Result<Self> {
        let home = tempfile::tempdir()?;
        let settings = format!("[llm]\nendpoint = \"{}\"\nmodel = \"scripted\"\n{more}", model.url());
        std::fs::write(home.path().join("crewkit.toml"), settings)?;
        Self::start_in(binary, home)
    }

    fn start_in(binary: &Path, home: tempfile::TempDir) -> Result<Self> {
        let mut serve = Command::new(binary);
        serve.args(["serve", "--listen", "127.0.0.1:0", "--stateless", "--home"]).arg(home.path());
        serve.stderr(std::fs::File::create(home.path().join("log"))?);
        let (process, url) = process::start_server(&mut serve)?;
        let client = crewkit_agent::http_client().pool_max_idle_per_host(usize::MAX).build()?;
        Ok(Self { process, url, client, session: None, home })
    }

    /// Ends the server; its home stays.
    fn end(self) -> tempfile::TempDir {
        let Self { process, home, .. } = self;
        drop(process);
        home
    }

    /// The same home with a new server.
    fn restart(self, binary: &Path) -> Result<Self> {
        Self::start_in(binary, self.end())
    }

    fn base(&self) -> &str {
        self.url.trim_end_matches('/').trim_end_matches("/mcp")
    }

    /// Sends a message over MCP; the whole answer.
    async fn send(&self, message: &Value) -> Result<Bytes> {
        let mut request = self.client.post(&self.url).header("Accept", "application/json, text/event-stream");
        if let Some(session) = &self.session {
            request = request.header("Mcp-Session-Id", session);
        }
        Ok(request.json(message).send().await?.bytes().await?)
    }

    /// Calls a tool over MCP.
    async fn call(&self, name: &str, arguments: Value) -> Result<Value> {
        read(name, &self.send(&tool_call(name, &arguments)).await?)
    }

    async fn start_run(&self) -> Result<String> {
        self.start_contract("work").await
    }

    async fn start_contract(&self, contract: &str) -> Result<String> {
        let started = self.call("agent_start", json!({"contract": contract})).await?;
        Ok(started["agent_id"].as_str().unwrap_or_default().to_owned())
    }

    /// Starts many runs, a few at a time.
    async fn start_runs(self: &Arc<Self>, count: usize, contract: &str) -> Result<Vec<String>> {
        let contract: Arc<str> = contract.into();
        let mut starting = tokio::task::JoinSet::new();
        let mut ids = Vec::new();
        for _ in 0..count {
            if starting.len() >= 64 {
                ids.push(starting.join_next().await.context("nothing started")???);
            }
            let (subject, contract) = (Arc::clone(self), Arc::clone(&contract));
            starting.spawn(async move { subject.start_contract(&contract).await });
        }
        while let Some(started) = starting.join_next().await {
            ids.push(started??);
        }
        Ok(ids)
    }

    fn memory(&self) -> Result<f64> {
        super::mcp::memory(&self.process)
    }
}

fn tool_call(name: &str, arguments: &Value) -> Value {
    // Within a session every request in flight has its own.
    static NEXT_ID: AtomicU64 = AtomicU64::new(2);
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": name, "arguments": arguments}})
}

/// What a tool answered, as JSON or as an event stream.
fn read(name: &str, answer: &[u8]) -> Result<Value> {
    let text = std::str::from_utf8(answer)?;
    // A stream may begin with an event that says nothing.
    let mut events = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let line = events.find(|data| data.starts_with('{')).unwrap_or(text);
    let mut answer: Value = serde_json::from_str(line).with_context(|| text.to_owned())?;
    if answer["result"]["isError"] == true || answer["error"].is_object() {
        bail!("{name} failed: {answer}");
    }
    Ok(answer["result"]["structuredContent"].take())
}

/// A model that keeps every run busy without end, a second a turn.
async fn second_model() -> ScriptedModel {
    ScriptedModel::start_forgetful(|request| {
        Turn::call("no_such_tool", &json!({"n": request.n})).after(Duration::from_secs(1))
    })
    .await
}

/// Latencies while a thousand runs are at work.
async fn busy(binary: &Path, table: &mut Table) -> Result<()> {
    let model = second_model().await;
    let subject = Arc::new(Subject::start(binary, &model)?);
    subject.start_run().await?;
    let before = subject.memory()?;
    let ids = subject.start_runs(RUNS, "work").await?;
    while model.in_flight() < RUNS * 9 / 10 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    table.note("memory per run at work", per_run(subject.memory()? - before), "KB");
    let mut looks = Times::default();
    for n in 0..LOOKS {
        let id = &ids[n * 3 % ids.len()];
        looks.measure(subject.call("agent_status", json!({"agent_ids": [id]}))).await?;
    }
    table.bound("agent_status p99, 1000 at work", looks.percentile(99), 50.0, "ms");
    // Until the last byte is there; what a client then makes of it is its own affair.
    let mut wide = Times::default();
    let question = tool_call("agent_status", &json!({"agent_ids": ids}));
    for _ in 0..100 {
        let answer = wide.measure(subject.send(&question)).await?;
        let told = read("agent_status", &answer)?;
        anyhow::ensure!(
            told["result"].as_array().is_some_and(|all| all.len() == ids.len()),
            "some are missing"
        );
    }
    table.note("agent_status of 1000 ids p50", wide.percentile(50), "ms");
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
async fn throughput(binary: &Path, release: &Path, table: &mut Table) -> Result<()> {
    let model = ScriptedModel::start_forgetful(|_| Turn::complete("scripted end")).await;
    let subject = Arc::new(Subject::start(binary, &model)?);
    let id = subject.start_run().await?;
    subject.call("agent_wait", json!({"agent_ids": [id]})).await?;
    let message = tool_call("agent_status", &json!({"agent_ids": [id]}));
    let answer: Value = serde_json::from_slice(&subject.send(&message).await?)?;
    let bare = super::mcp::BareServer::start(release, &answer["result"].to_string())?;
    let (mut best, mut best_bare) = (0.0_f64, 0.0_f64);
    for _ in 0..5 {
        best = best.max(rate(&subject.client, &subject.url, &message).await?);
        best_bare = best_bare.max(rate(&subject.client, &bare.url, &message).await?);
    }
    table.note("agent_status, 8 connections", best, "/s");
    table.bound("bare answer over agent_status", best_bare / best, 5.0, "x");
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

fn three_turns(request: &Request) -> Turn {
    let turn = match request.turn {
        0..2 => Turn::call("no_such_tool", &json!({"turn": request.turn})),
        _ => Turn::complete("scripted end"),
    };
    turn.after(Duration::from_millis(200))
}

/// What one run asks the model, turn by turn.
async fn requests_of_a_run(binary: &Path) -> Result<Vec<Value>> {
    let model = ScriptedModel::start(three_turns).await;
    let subject = Subject::start(binary, &model)?;
    let id = subject.start_run().await?;
    subject.call("agent_wait", json!({"agent_ids": [id]})).await?;
    Ok(model.bodies())
}

/// Sends what a thousand runs ask straight to the model, at most `at_once` of them at a time; the time it takes.
async fn straight(model: &ScriptedModel, requests: &Arc<Vec<Vec<u8>>>, at_once: usize) -> Result<f64> {
    let client = crewkit_agent::http_client().pool_max_idle_per_host(usize::MAX).build()?;
    let began = Instant::now();
    let mut direct = tokio::task::JoinSet::new();
    for _ in 0..RUNS {
        if direct.len() >= at_once {
            direct.join_next().await.context("nothing was sent")???;
        }
        let (client, url, requests) = (client.clone(), model.url(), Arc::clone(requests));
        direct.spawn(async move {
            for body in requests.iter() {
                let request = client.post(&url).header("Content-Type", "application/json");
                request.body(body.clone()).send().await?.bytes().await?;
            }
            Ok::<_, anyhow::Error>(())
        });
    }
    while let Some(done) = direct.join_next().await {
        done??;
    }
    Ok(began.elapsed().as_secs_f64())
}

/// Carries out `count` runs of a contract: the time to start them, and to their end.
async fn all_runs(subject: &Arc<Subject>, count: usize, contract: &str) -> Result<(f64, f64)> {
    let began = Instant::now();
    let mut open = subject.start_runs(count, contract).await?;
    let started = began.elapsed().as_secs_f64();
    while !open.is_empty() {
        let told = subject.call("agent_wait", json!({"agent_ids": open})).await?;
        let all = told["result"].as_array().context("no list of agents")?;
        if let Some(failed) = all.iter().find(|run| run["status"] == "stopped") {
            bail!("a run did not complete: {failed}");
        }
        let running = all.iter().filter(|run| run["status"] == "running");
        open = running.filter_map(|run| run["agent_id"].as_str().map(str::to_owned)).collect();
    }
    Ok((started, began.elapsed().as_secs_f64()))
}

/// A thousand runs of three turns, beside the same three thousand requests sent straight to the model.
async fn turns(binary: &Path, table: &mut Table) -> Result<()> {
    let requests = requests_of_a_run(binary).await?;
    let requests = Arc::new(requests.iter().map(|body| body.to_string().into_bytes()).collect::<Vec<_>>());
    let (mut floor, mut started, mut took, mut peak) = (f64::MAX, f64::MAX, f64::MAX, 0);
    for round in 0..ROUNDS {
        let model = ScriptedModel::start_forgetful(three_turns).await;
        floor = floor.min(straight(&model, &requests, RUNS).await?);
        let model = ScriptedModel::start_forgetful(three_turns).await;
        let subject = Arc::new(Subject::start(binary, &model)?);
        let before = subject.memory()?;
        let (start, end) = all_runs(&subject, RUNS, "work").await?;
        (started, took, peak) = (started.min(start), took.min(end), peak.max(model.peak_in_flight()));
        if round == 0 {
            table.note("memory per ended run, right after", per_run(subject.memory()? - before), "KB");
            let subject = Arc::into_inner(subject).context("a start is still under way")?.restart(binary)?;
            table.bound("memory per ended run, server anew", per_run(subject.memory()? - before), 40.0, "KB");
        }
    }
    table.note("3000 requests straight to the model", floor, "s");
    table.note("1000 starts", started, "s");
    table.note("1000 runs of 3 turns", took, "s");
    table.bound("runs over straight requests", took / floor, 1.6, "x");
    #[expect(clippy::cast_precision_loss, reason = "a small count")]
    table.note("most requests in flight", peak as f64, "");
    Ok(())
}

/// A thousand runs of three turns where a hundred have a slot, beside as many requests at once straight to the model.
async fn queued(binary: &Path, table: &mut Table) -> Result<()> {
    let requests = requests_of_a_run(binary).await?;
    let requests = Arc::new(requests.iter().map(|body| body.to_string().into_bytes()).collect::<Vec<_>>());
    let (mut floor, mut took) = (f64::MAX, f64::MAX);
    for _ in 0..ROUNDS {
        let model = ScriptedModel::start_forgetful(three_turns).await;
        floor = floor.min(straight(&model, &requests, CAPACITY).await?);
        let model = ScriptedModel::start_forgetful(three_turns).await;
        let limits = format!("[limits]\nagent_runs_active = {CAPACITY}\n");
        let subject = Arc::new(Subject::start_with(binary, &model, &limits)?);
        took = took.min(all_runs(&subject, RUNS, "work").await?.1);
        anyhow::ensure!(model.peak_in_flight() <= CAPACITY, "more runs were at work than there are slots");
    }
    table.note("1000 runs of 3 turns, 100 slots", took, "s");
    table.bound("queued runs over straight requests", took / floor, 1.6, "x");
    Ok(())
}

/// What a server with ten thousand ended runs behind it needs to start.
async fn ended(binary: &Path, table: &mut Table) -> Result<()> {
    let model = ScriptedModel::start_forgetful(|_| Turn::complete("scripted end")).await;
    let mut subject = Arc::new(Subject::start(binary, &model)?);
    let contract = text_like(CONTRACT_BYTES);
    for _ in 0..ENDED / RUNS {
        all_runs(&subject, RUNS, &contract).await?;
    }
    let mut started = f64::MAX;
    for _ in 0..ROUNDS {
        let home = Arc::into_inner(subject).context("a start is still under way")?.end();
        let began = Instant::now();
        subject = Arc::new(Subject::start_in(binary, home)?);
        started = started.min(began.elapsed().as_secs_f64());
    }
    table.bound("start with 10 000 ended runs", started, 0.5, "s");
    table.bound("memory with 10 000 ended runs", subject.memory()? / 1e6, 60.0, "MB");
    Ok(())
}

fn per_run(bytes: f64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a small count")]
    let runs = RUNS as f64;
    bytes / 1e3 / runs
}

/// Agents that were made and not started.
async fn waiting(binary: &Path, table: &mut Table) -> Result<()> {
    let model = second_model().await;
    let subject = Subject::start(binary, &model)?;
    let url = format!("{}/api/agents", subject.base());
    let create = async || {
        let request = subject.client.post(&url).json(&json!({"contract": "wait"}));
        Ok::<_, anyhow::Error>(request.send().await?.error_for_status()?.bytes().await?)
    };
    create().await?;
    let before = subject.memory()?;
    for _ in 0..RUNS {
        create().await?;
    }
    table.bound("memory per waiting run", per_run(subject.memory()? - before), 40.0, "KB");
    Ok(())
}

/// What others feel while a large payload is stored, and how fast it is served. A bare server is asked in turn with ours: what
/// it takes longer meanwhile is the machine's doing. A stall that storing brings about comes in every round, one of the
/// machine's in some; so the calmest round is held against the bound, and the worst stands beside it.
async fn payload(binary: &Path, release: &Path, table: &mut Table) -> Result<()> {
    let model = second_model().await;
    let subject = Arc::new(Subject::start(binary, &model)?);
    let other = subject.start_run().await?;
    let question = tool_call("agent_status", &json!({"agent_ids": [other]}));
    let answer: Value = serde_json::from_slice(&subject.send(&question).await?)?;
    let bare = super::mcp::BareServer::start(release, &answer["result"].to_string())?;
    let text = text_like(PAYLOAD);
    let (mut took, mut id) = (f64::MAX, String::new());
    let [mut calm, mut ours, mut control] = [const { Times(Vec::new()) }; 3];
    let mut longest = f64::MAX;
    for _ in 0..ROUNDS {
        id = subject.start_run().await?;
        let body = json!({"agent_id": id, "summary": "big", "payload": text}).to_string();
        let mut pair = Pair::open(&subject.url, &bare.url, &question)?;
        for _ in 0..LOOKS {
            calm.0.push(pair.look()?.0);
        }
        let looking = pair.look_on();
        let began = Instant::now();
        let url = format!("{}/api/ops/agent_complete", subject.base());
        let request = subject.client.post(url).header("Content-Type", "application/json").body(body);
        let answer = request.send().await?;
        took = took.min(began.elapsed().as_secs_f64());
        let (looked, bare_looked) = looking.end()?;
        if !answer.status().is_success() {
            bail!("the payload was refused: {}", answer.status());
        }
        longest = longest.min(looked.iter().copied().fold(0.0, f64::max));
        ours.0.extend(looked);
        control.0.extend(bare_looked);
    }
    table.note("storing 50 MB", took, "s");
    table.note("agent_status p50 meanwhile", ours.percentile(50), "ms");
    table.note("agent_status max before", calm.percentile(100), "ms");
    table.note("agent_status p99 meanwhile", ours.percentile(99), "ms");
    table.note("bare answer max meanwhile, worst round", control.percentile(100), "ms");
    table.note("agent_status max meanwhile, worst round", ours.percentile(100), "ms");
    table.bound("agent_status max meanwhile", longest, STALL_MS, "ms");
    let url = format!("{}/api/agents/{id}/payload", subject.base());
    let served = subject.client.get(&url).header("Accept-Encoding", "gzip").send().await?.bytes().await?;
    let bare = bare_bytes(served)?;
    let (mut best, mut best_bare) = (0.0_f64, 0.0_f64);
    for _ in 0..FETCHES {
        best = best.max(fetch_rate(&subject.client, &url).await?);
        best_bare = best_bare.max(fetch_rate(&subject.client, &bare).await?);
    }
    table.note("serving it, gzip bytes", best, "MB/s");
    table.bound("bare socket over serving it", best_bare / best, 1.5, "x");
    Ok(())
}

async fn fetch_rate(client: &reqwest::Client, url: &str) -> Result<f64> {
    let began = Instant::now();
    let bytes = client.get(url).header("Accept-Encoding", "gzip").send().await?.bytes().await?;
    #[expect(clippy::cast_precision_loss, reason = "far below the limit of a float")]
    Ok(bytes.len() as f64 / 1e6 / began.elapsed().as_secs_f64())
}

/// The least that can send these bytes over HTTP: a thread that writes them to every connection.
fn bare_bytes(bytes: Bytes) -> Result<String> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://{}/", listener.local_addr()?);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream?;
            let mut request = [0; 4096];
            while stream.read(&mut request)? > 0 {
                write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", bytes.len())?;
                stream.write_all(&bytes)?;
            }
        }
        Ok::<_, std::io::Error>(())
    });
    Ok(url)
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
    /// What the Python program took, by the row it belongs to.
    peer: Vec<(&'static str, f64)>,
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

    fn beside(&mut self, what: &'static str, value: f64) {
        self.peer.push((what, value));
    }

    fn print(&self) {
        for (what, value, unit, most) in &self.rows {
            let bound = most.map_or_else(String::new, |most| {
                format!("  at most {most} {unit}{}", if *value > most { "  MISSED" } else { "" })
            });
            let peer = self.peer.iter().find(|(row, _)| row == what).map_or_else(String::new, |(_, peer)| {
                format!("  Python {peer:.2} {unit}, {:.1}x", peer / value)
            });
            println!("{what:<40} {value:>10.2} {unit:<5}{bound}{peer}");
        }
    }
}
