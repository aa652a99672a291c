//! `cargo xtask bench mcp`: what a call, a start and an idle server cost.
//!
//! Calls are held against bare programs that give the same answer in the same run, in turns, and the best of several
//! rounds counts: a ratio between two bests says most about the programs and least about the machine.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::client::{Client, HttpClient, StdioClient, initialize, request};
use crate::process::{self, Running, Server};

const ROUNDS: usize = 50;
const CALLS: u64 = 300;
const STARTS: usize = 25;

const MOST_TIMES_BARE: f64 = 5.0;
const MOST_COLD: Duration = Duration::from_millis(15);
/// What the start of a server may add to the first call of a client.
const MOST_SERVER_START: Duration = Duration::from_millis(150);
/// Ended runs in the home whose server is started.
const ENDED_RUNS: usize = 100;
const SERVER_STARTS: usize = 10;
const MOST_STDIO_MEMORY: f64 = 15e6;
const MOST_SERVE_MEMORY: f64 = 25e6;

/// The tool to call: the one clients call most, asked for an agent that does not exist.
const TOOL: &str = "agent_status";

/// Measures, prints a table, and fails when a bound is missed.
pub(crate) fn run() -> Result<()> {
    process::build(&["--release", "--package", "crewkit", "--bin", "crewkit"])?;
    process::build(&[
        "--release",
        "--package",
        "xtask",
        "--example",
        "bare_stdio",
        "--example",
        "bare_http",
    ])?;
    let release = process::target()?.join("release");
    let crewkit = release.join("crewkit");
    let home = tempfile::tempdir()?;
    let log = home.path().join("serve.log");

    let mut table = Table::default();
    let mut stdio = start_stdio(&crewkit, home.path())?;
    stdio.call(&initialize())?;
    let memory = memory(&stdio.process)?;
    table.bound("idle memory, stdio", memory, MOST_STDIO_MEMORY, "MB", 1e6);

    let sessions = Server::start(&crewkit, &[], &log)?;
    let mut over_sessions = HttpClient::connect(&sessions.url)?;
    over_sessions.open_session()?;
    table.bound("idle memory, serve", self::memory(&sessions.process)?, MOST_SERVE_MEMORY, "MB", 1e6);

    let result = Call::result(&mut stdio)?;
    println!("{ROUNDS} rounds of {CALLS} calls of {TOOL}; the best p50 counts");
    let stateless = Server::start(&crewkit, &["--stateless"], &log)?;
    let mut over_stateless = HttpClient::connect(&stateless.url)?;
    let mut bare_stdio = StdioClient::start(Command::new(release.join("examples/bare_stdio")).arg(&result))?;
    let bare_server = BareServer::start(&release, &result)?;
    let mut bare_http = HttpClient::connect(&bare_server.url)?;

    let mut best = [f64::INFINITY; 5];
    for _ in 0..ROUNDS {
        let clients: [&mut dyn Client; 5] =
            [&mut bare_stdio, &mut stdio, &mut bare_http, &mut over_sessions, &mut over_stateless];
        for (best, client) in best.iter_mut().zip(clients) {
            *best = best.min(Call::median(client)?);
        }
    }
    let [bare_stdio, stdio, bare_http, over_sessions, over_stateless] = best;
    table.ratio("stdio call, p50", stdio, bare_stdio);
    table.ratio("HTTP call with a session, p50", over_sessions, bare_http);
    table.ratio("HTTP call without sessions, p50", over_stateless, bare_http);

    let cold = cold_start(&crewkit, home.path())?;
    table.bound("cold start to `initialize`", cold, MOST_COLD.as_secs_f64(), "ms", 1e-3);
    let start = server_start(&crewkit)?;
    table.bound("first call that starts the server", start, MOST_SERVER_START.as_secs_f64(), "ms more", 1e-3);
    table.print();
    if table.missed {
        bail!("a bound was missed");
    }
    Ok(())
}

fn start_stdio(crewkit: &Path, home: &Path) -> Result<StdioClient> {
    StdioClient::start(Command::new(crewkit).arg("mcp").env("CREWKIT_HOME", home))
}

/// The shortest time from starting the process to the answer to `initialize`, in seconds.
fn cold_start(crewkit: &Path, home: &Path) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..STARTS {
        let began = Instant::now();
        let mut client = start_stdio(crewkit, home)?;
        client.call(&initialize())?;
        best = best.min(began.elapsed().as_secs_f64());
    }
    Ok(best)
}

/// How much longer the first call of a client takes when it has to start the server, in seconds: the difference between the
/// shortest times with and without a server.
fn server_start(crewkit: &Path) -> Result<f64> {
    let home = tempfile::tempdir()?;
    let mut client = start_stdio(crewkit, home.path())?;
    client.call(&initialize())?;
    let tool = |id, name: &str, arguments: Value| {
        request(id, "tools/call", &json!({"name": name, "arguments": arguments}))
    };
    for _ in 0..ENDED_RUNS {
        let started: Value =
            serde_json::from_str(&client.call(&tool(2, "agent_start", json!({"contract": "x"})))?)?;
        let id = &started["result"]["structuredContent"]["agent_id"];
        client.call(&tool(3, "agent_wait", json!({"agent_ids": [id]})))?;
    }
    drop(client);
    let stop = || -> Result<()> {
        let stopped =
            Command::new(crewkit).args(["stop", "--yes"]).env("CREWKIT_HOME", home.path()).output()?;
        if !stopped.status.success() {
            bail!("the server does not stop: {}", String::from_utf8_lossy(&stopped.stderr));
        }
        Ok(())
    };
    let first_call = || -> Result<f64> {
        let began = Instant::now();
        let mut client = start_stdio(crewkit, home.path())?;
        client.call(&initialize())?;
        client.call(&Call::request(2))?;
        Ok(began.elapsed().as_secs_f64())
    };
    let (mut without, mut with) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..SERVER_STARTS {
        stop()?;
        without = without.min(first_call()?);
        with = with.min(first_call()?);
    }
    stop()?;
    Ok(without - with)
}

/// The memory a process has in use, in bytes.
pub(super) fn memory(process: &Running) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.0.id()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS in status")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib * 1024.0)
}

/// What is called over and over.
struct Call;

impl Call {
    fn request(id: u64) -> String {
        request(id, "tools/call", &json!({"name": TOOL, "arguments": {"agent_ids": ["nobody"]}}))
    }

    /// The result crewkit gives, for the bare programs to give too.
    fn result(client: &mut dyn Client) -> Result<String> {
        let answer: Value = serde_json::from_str(&client.call(&Self::request(2))?)?;
        Ok(answer.get("result").context("the call failed")?.to_string())
    }

    /// The median time of one call, in seconds.
    fn median(client: &mut dyn Client) -> Result<f64> {
        let mut times = Vec::new();
        for id in 10..10 + CALLS {
            let request = Self::request(id);
            let began = Instant::now();
            let answer = client.call(&request)?;
            times.push(began.elapsed());
            if !answer.contains("\"result\"") {
                bail!("a call failed: {answer}");
            }
        }
        times.sort_unstable();
        Ok(times[times.len() / 2].as_secs_f64())
    }
}

/// The bare HTTP program.
pub(super) struct BareServer {
    pub(super) url: String,
    _process: Running,
}

impl BareServer {
    pub(super) fn start(release: &Path, result: &str) -> Result<Self> {
        let program: PathBuf = release.join("examples/bare_http");
        let (process, url) = process::start_server(Command::new(program).arg(result))?;
        Ok(Self { url, _process: process })
    }
}

/// What was measured, and whether it holds.
#[derive(Default)]
struct Table {
    rows: Vec<[String; 5]>,
    missed: bool,
}

impl Table {
    /// A time beside that of a bare program.
    fn ratio(&mut self, what: &str, measured: f64, bare: f64) {
        let ratio = measured / bare;
        let times = [measured, bare].map(|seconds| format!("{:.1} us", seconds * 1e6));
        let [measured, bare] = times;
        self.row(
            what,
            [measured, bare, format!("{ratio:.2}x"), format!("{MOST_TIMES_BARE}x")],
            ratio <= MOST_TIMES_BARE,
        );
    }

    /// A value beside its bound.
    fn bound(&mut self, what: &str, measured: f64, most: f64, unit: &str, size: f64) {
        let measured_text = format!("{:.1} {unit}", measured / size);
        let most_text = format!("{:.0} {unit}", most / size);
        self.row(what, [measured_text, "-".to_owned(), "-".to_owned(), most_text], measured <= most);
    }

    fn row(&mut self, what: &str, [measured, bare, ratio, most]: [String; 4], holds: bool) {
        self.missed |= !holds;
        let verdict = if holds { "pass" } else { "MISS" };
        self.rows.push([what.to_owned(), measured, bare, format!("{ratio} of {most}"), verdict.to_owned()]);
    }

    fn print(&self) {
        println!("{:34} {:>10} {:>10} {:>18}  verdict", "", "crewkit", "bare", "of at most");
        for [what, measured, bare, bound, verdict] in &self.rows {
            let bound = bound.trim_start_matches("- of ");
            println!("{what:34} {measured:>10} {bare:>10} {bound:>18}  {verdict}");
        }
    }
}
