//! Measures the fleet over a simulated Coder; started by `cargo xtask bench fleet`.
//!
//! The simulated Coder and each client run as processes of their own, so that memory is that of a client alone and
//! every first call is a cold one.
#![expect(clippy::print_stdout, reason = "a benchmark reports to the person who started it")]

use std::error::Error;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crewkit_core::Secret;
use crewkit_fleet::backend::coder::{CoderBackend, CoderSettings};
use crewkit_fleet::model::{ByName, CreateAgent, ListAgents, StartTask, TaskHistoryQuery};
use crewkit_fleet::time::Clock;
use crewkit_fleet::{Fleet, FleetOptions};
use crewkit_testkit::coder::{Delays, Fault, Kind, MetadataApp, Profile, SimCoder, TOKEN};
use serde_json::{Value, json};

type Outcome<T> = Result<T, Box<dyn Error>>;

const REQUEST: Duration = Duration::from_millis(50);
const METADATA: Duration = Duration::from_millis(500);
const ROUNDS: usize = 5;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["coder", agents, kilobytes, fault] => {
            // On one thread too: they are two on a machine that may have no more cores than that.
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(coder(agents.parse()?, kilobytes.parse()?, fault))
        }
        // On one thread, as `crewkit fleet` and `crewkit mcp` work.
        ["client", url, what] => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(client(url, what))
        }
        [] => compare(),
        _ => Err("usage: bench_fleet".into()),
    }
}

/// A simulated Coder that runs until its parent closes the pipe.
async fn coder(agents: usize, kilobytes: usize, fault: &str) -> Outcome<()> {
    let sim = SimCoder::start(Profile::V2_32).await?;
    {
        let mut world = sim.world();
        world.padding = kilobytes * 1024;
        let field = |value: Value| json!({"value": value, "error": null, "schema": {"description": "", "include_in_list": true}});
        for number in 0..agents {
            let workspace = world.add_agent(&format!("agent-{number:04}"));
            workspace.metadata = match (fault, number) {
                ("hang-one", 4) => MetadataApp::Hangs,
                _ => MetadataApp::Answers(json!({"data": {"pull_request_number": field(number.into())}})),
            };
            for step in 0..5 {
                workspace.report(10 * (step + 1), "idle", &format!("step {step}"), "");
            }
        }
    }
    // Read once, so that no client waits until the simulated Coder has put its workspaces into words.
    let settings = CoderSettings::new(sim.url(), Secret::new(TOKEN));
    let reader = Fleet::new(CoderBackend::new(settings, Clock::system())?, FleetOptions::default());
    reader.list_agents(ListAgents { include_metadata: Some(false), ..ListAgents::default() }).await?;
    sim.delay(Delays { request: REQUEST, metadata: METADATA });
    match fault {
        "hang-all" => sim.fault(Fault::on("/", Kind::Hang)),
        "429" => sim.fault(Fault::on("/api/v2/workspaces?", Kind::RateLimit(0)).times(1)),
        "502" => sim.fault(Fault::on("/api/v2/workspaces?", Kind::Status(502)).times(1)),
        _ => {}
    }
    println!("{}", sim.url());
    tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await??;
    Ok(())
}

/// One client: prints what it measured as JSON.
async fn client(url: &str, what: &str) -> Outcome<()> {
    let settings = CoderSettings::new(url, Secret::new(TOKEN));
    let fleet = Fleet::new(CoderBackend::new(settings, Clock::system())?, FleetOptions::default());
    let begun = Instant::now();
    let list = fleet.list_agents(ListAgents::default()).await;
    let first = begun.elapsed();
    let complete =
        list.as_ref().map_or(0, |list| list.agents.iter().filter(|it| it.metadata_count > 0).count());
    let error = list.err().map(|error| error.to_string());
    let mut measured = json!({
        "list_cold": millis(first), "complete": complete, "error": error, "peak_mb": peak_megabytes(),
    });
    if what == "all" {
        let by_name = || ByName { agent_name: "agent-0000".to_owned() };
        let mut lists = Vec::new();
        for _ in 0..ROUNDS {
            lists.push(timed(fleet.list_agents(ListAgents::default())).await?);
        }
        measured["list"] = median(lists).into();
        let (mut shows, mut histories, mut starts, mut creates) = (vec![], vec![], vec![], vec![]);
        for round in 0..ROUNDS {
            shows.push(timed(Box::pin(fleet.show_agent(by_name()))).await?);
            let query =
                TaskHistoryQuery { agent_name: "agent-0000".to_owned(), ..TaskHistoryQuery::default() };
            histories.push(timed(fleet.show_agent_task_history(query)).await?);
            let task = StartTask {
                agent_name: "agent-0000".to_owned(),
                task_description: "go".to_owned(),
                ..StartTask::default()
            };
            starts.push(timed(fleet.start_agent_task(task)).await?);
            fleet.stop_agent_task(by_name()).await?;
            let new = CreateAgent {
                name: format!("new-{round}"),
                project: "Setup".to_owned(),
                spec: Some("x".to_owned()),
                ..CreateAgent::default()
            };
            creates.push(timed(Box::pin(fleet.create_agent(new))).await?);
        }
        // The first creation also learns the template; the others are warm.
        creates.remove(0);
        measured["show"] = median(shows).into();
        measured["history"] = median(histories).into();
        measured["start"] = median(starts).into();
        measured["create"] = median(creates).into();
        measured["peak_mb"] = peak_megabytes().into();
    }
    println!("{measured}");
    Ok(())
}

async fn timed<T, E: Error + 'static>(work: impl Future<Output = Result<T, E>>) -> Outcome<u64> {
    let begun = Instant::now();
    work.await?;
    Ok(millis(begun.elapsed()))
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// The most memory this process ever held, on Linux.
fn peak_megabytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or_default() / 1024
}

struct Coder {
    process: Child,
    url: String,
}

impl Coder {
    fn start(agents: usize, kilobytes: usize, fault: &str) -> Outcome<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(["coder", &agents.to_string(), &kilobytes.to_string(), fault])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut url = String::new();
        let output = process.stdout.take().ok_or("the simulated Coder has no output")?;
        BufReader::new(output).read_line(&mut url)?;
        Ok(Self { process, url: url.trim().to_owned() })
    }

    fn ask(&self, what: &str) -> Outcome<Value> {
        let output = Command::new(std::env::current_exe()?).args(["client", &self.url, what]).output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}

impl Drop for Coder {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Measures everything and says what is within its bound.
fn compare() -> Outcome<()> {
    let mut missed = Vec::new();
    let mut judge = |what: String, value: u64, bound: u64, unit: &str| {
        let verdict = if value <= bound { "ok" } else { "MISSED" };
        println!("{what:<58} {value:>6} {unit:<2}  (bound {bound} {unit})  {verdict}");
        if value > bound {
            missed.push(what);
        }
    };
    let number = |measured: &Value, key: &str| measured[key].as_u64().unwrap_or(u64::MAX);
    println!(
        "simulated Coder: {} ms per request, {} ms per metadata call",
        REQUEST.as_millis(),
        METADATA.as_millis()
    );
    for (kilobytes, label) in [(0, "small workspaces"), (60, "workspaces of 60 KB and more")] {
        for agents in [1, 10, 50, 200, 1000] {
            let coder = Coder::start(agents, kilobytes, "none")?;
            let measured = coder.ask("all")?;
            if number(&measured, "complete") != agents as u64 {
                return Err(format!("only {} of {agents} have metadata", measured["complete"]).into());
            }
            let at = |what: &str| format!("{what}, {agents} agents, {label}");
            judge(at("list_agents with metadata, first call"), number(&measured, "list_cold"), 800, "ms");
            judge(at("list_agents with metadata"), number(&measured, "list"), 800, "ms");
            if agents == 1000 {
                judge(at("peak memory"), number(&measured, "peak_mb"), 60, "MB");
            }
            if agents == 10 && kilobytes == 60 {
                judge("show_agent".to_owned(), number(&measured, "show"), 650, "ms");
                judge("show_agent_task_history".to_owned(), number(&measured, "history"), 120, "ms");
                judge("start_agent_task".to_owned(), number(&measured, "start"), 250, "ms");
                judge("create_agent, warm".to_owned(), number(&measured, "create"), 300, "ms");
            }
        }
    }
    let hanging = Coder::start(10, 60, "hang-one")?.ask("list")?;
    judge("one of ten workspaces hangs: list".to_owned(), number(&hanging, "list_cold"), 5_500, "ms");
    judge("  agents without metadata".to_owned(), 10 - number(&hanging, "complete"), 1, "");
    let silent = Coder::start(10, 0, "hang-all")?.ask("list")?;
    judge("Coder hangs: time to the error".to_owned(), number(&silent, "list_cold"), 10_000, "ms");
    println!("  it says: {}", silent["error"].as_str().unwrap_or("nothing, which is wrong"));
    for fault in ["429", "502"] {
        let passing = Coder::start(10, 0, fault)?.ask("list")?;
        judge(format!("one {fault}: agents without metadata"), 10 - number(&passing, "complete"), 0, "");
    }
    if missed.is_empty() { Ok(()) } else { Err(format!("missed: {}", missed.join("; ")).into()) }
}
