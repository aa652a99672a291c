//! The commands below `crewkit agent`.

use std::fmt::Write as _;
use std::io::Read as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use crewkit_core::Code;
use crewkit_server::ops::JsonObject;
use serde_json::{Value, json};

use super::backend::Backend;
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output;

/// Pause between looks at an agent that is being followed.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// What to do with agents.
#[derive(Debug, Subcommand)]
pub enum AgentCommand {
    /// Start an agent on a contract; without a running server it works here until it ends.
    Start(StartArgs),
    /// Show how agents stand.
    Status {
        /// Their ids.
        #[arg(required = true)]
        ids: Vec<String>,
    },
    /// Wait until agents have ended; fails unless all of them completed.
    Wait {
        /// Their ids.
        #[arg(required = true)]
        ids: Vec<String>,
        /// Until the first one has ended.
        #[arg(long)]
        any: bool,
        /// Give up after this many seconds.
        #[arg(long, default_value_t = 300)]
        timeout: u64,
    },
    /// Stop agents.
    Stop {
        /// Their ids.
        #[arg(required = true)]
        ids: Vec<String>,
    },
    /// Let a stopped agent go on where it was.
    Resume {
        /// Its id.
        id: String,
    },
    /// Show what an agent said and did.
    Output {
        /// Its id.
        id: String,
        /// Go on showing until it ends.
        #[arg(short, long)]
        follow: bool,
    },
    /// Print an agent's payload.
    Payload {
        /// Its id.
        id: String,
    },
    /// Remove agents with everything they left.
    Delete {
        /// Their ids.
        #[arg(required = true)]
        ids: Vec<String>,
        /// Also those that are at work; they are ended by it.
        #[arg(long)]
        force: bool,
    },
    /// Remove agents that ended long ago, and say which.
    Prune {
        /// Only those that ended more than this many days ago; the configured retention when left out.
        #[arg(long, value_name = "DAYS")]
        older_than: Option<u64>,
        /// Keep this many of the newest ended agents in any case.
        #[arg(long, value_name = "COUNT")]
        keep: Option<u64>,
        /// Only say which would be removed.
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
    /// List all agents.
    List {
        /// Only those in this state.
        #[arg(long)]
        status: Option<String>,
    },
}

/// A new agent.
#[derive(Debug, Args)]
pub struct StartArgs {
    /// What it shall do; `-` reads it from standard input.
    contract: Option<String>,
    /// Read the contract from a file.
    #[arg(short, long, value_name = "FILE", conflicts_with = "contract")]
    file: Option<PathBuf>,
    /// Directory it works in.
    #[arg(short, long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Driver: loop, claude, codex, or a configured one.
    #[arg(long)]
    driver: Option<String>,
    /// A configured model.
    #[arg(long)]
    model: Option<String>,
    /// Cap on the model's replies.
    #[arg(long)]
    max_turns: Option<u64>,
    /// Cap on tokens.
    #[arg(long)]
    max_tokens: Option<u64>,
    /// Cap on wall time in seconds.
    #[arg(long)]
    max_seconds: Option<u64>,
    /// The same key again starts nothing new.
    #[arg(long)]
    key: Option<String>,
    /// Follow it to its end.
    #[arg(short, long)]
    wait: bool,
}

/// Runs one of the commands.
pub fn run(command: AgentCommand, config: &Config, json: bool) -> Result<Exit, Failure> {
    let broken = |error: std::io::Error| Failure::new(Code::StateUnusable, error.to_string());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(broken)?;
    runtime.block_on(async {
        let backend = Backend::find(config).await?;
        let done = perform(&backend, command, json).await;
        backend.close().await;
        done
    })
}

async fn perform(backend: &Backend, command: AgentCommand, json: bool) -> Result<Exit, Failure> {
    match command {
        AgentCommand::Start(args) => start(backend, args, json).await,
        AgentCommand::Status { ids } => {
            let body = backend.run("agent_status", arguments(json!({"agent_ids": ids}))).await?;
            show_statuses(&body["result"], json);
            let unknown =
                body["result"].as_array().into_iter().flatten().any(|status| status["status"].is_null());
            Ok(if unknown { Exit::Failed } else { Exit::Ok })
        }
        AgentCommand::Wait { ids, any, timeout } => wait(backend, &ids, any, timeout, json).await,
        AgentCommand::Stop { ids } => {
            for id in ids {
                let body = backend.run("agent_stop", arguments(json!({"agent_id": id}))).await?;
                show(&body, json, || format!("{id} {}", word(&body, "status")));
            }
            Ok(Exit::Ok)
        }
        AgentCommand::Resume { id } => {
            let body = backend.resume(&id).await?;
            if backend.is_here() {
                return follow_to_end(backend, &id, json).await;
            }
            show(&body, json, || format!("{id} {}", word(&body, "status")));
            Ok(Exit::Ok)
        }
        AgentCommand::Output { id, follow } => {
            print_output(backend, &id, follow, &mut |line| output::data_line(line), json).await?;
            Ok(Exit::Ok)
        }
        AgentCommand::Payload { id } => {
            let gzip = backend.payload(&id).await?;
            let mut text = String::new();
            flate2::read::GzDecoder::new(&gzip[..]).read_to_string(&mut text).map_err(|error| {
                Failure::new(Code::StoreFailed, format!("the payload cannot be unpacked: {error}"))
            })?;
            output::product(&text);
            Ok(Exit::Ok)
        }
        AgentCommand::Delete { ids, force } => delete(backend, &ids, force, json).await,
        AgentCommand::Prune { older_than, keep, dry_run } => {
            let mut wish = arguments(json!({
                "older_than_seconds": older_than.map(|days| days.saturating_mul(86_400)),
                "keep": keep, "dry_run": dry_run,
            }));
            wish.retain(|_, value| !value.is_null());
            let body = backend.prune(wish).await?;
            show(&body, json, || pruned(&body));
            Ok(Exit::Ok)
        }
        AgentCommand::List { status } => {
            let mut agents = backend.list().await?;
            agents.retain(|agent| status.as_deref().is_none_or(|status| agent["status"] == status));
            show(&json!({"agents": agents}), json, || table(&agents));
            Ok(Exit::Ok)
        }
    }
}

/// Removes agents. All ids are looked at first, so that one that cannot be removed keeps the others too.
async fn delete(backend: &Backend, ids: &[String], force: bool, json: bool) -> Result<Exit, Failure> {
    let found = backend.run("agent_status", arguments(json!({"agent_ids": ids}))).await?;
    for status in found["result"].as_array().into_iter().flatten() {
        let id = word(status, "agent_id");
        if status["status"].is_null() {
            return Err(Failure::new(Code::AgentNotFound, word(status, "error")));
        }
        if status["status"] == "running" && !force {
            let message = format!("{id} is at work; stop it first, or use --force");
            return Err(Failure::new(Code::AgentStateInvalid, message));
        }
    }
    for id in ids {
        let body = backend.delete(id).await?;
        show(&body, json, || format!("{id} {}", word(&body, "status")));
    }
    Ok(Exit::Ok)
}

/// What was removed, or would be, a line each.
fn pruned(body: &Value) -> String {
    let verb = if body["dry_run"] == true { "would be removed" } else { "removed" };
    let mut page = String::new();
    for agent in body["agents"].as_array().into_iter().flatten() {
        let (id, status, ended) = (word(agent, "id"), word(agent, "status"), word(agent, "ended_at"));
        let _ = writeln!(page, "{id}  {status:<9}  {ended}  {}", shorten(&word(agent, "contract"), 60));
    }
    let _ = write!(page, "{} {verb}", counted(body["count"].as_u64().unwrap_or(0)));
    page
}

fn counted(agents: u64) -> String {
    match agents {
        1 => "1 agent".to_owned(),
        count => format!("{count} agents"),
    }
}

async fn start(backend: &Backend, args: StartArgs, json: bool) -> Result<Exit, Failure> {
    let contract = contract_of(&args)?;
    let workdir = match &args.dir {
        None => None,
        Some(dir) => Some(
            std::path::absolute(dir)
                .map_err(|error| Failure::new(Code::WorkdirInvalid, format!("{}: {error}", dir.display())))?,
        ),
    };
    let mut wish = arguments(json!({
        "contract": contract, "workdir": workdir, "driver": args.driver, "model": args.model,
        "max_turns": args.max_turns, "max_tokens": args.max_tokens, "max_seconds": args.max_seconds, "key": args.key,
    }));
    wish.retain(|_, value| !value.is_null());
    let body = backend.run("agent_start", wish).await?;
    let id = word(&body, "agent_id");
    if args.wait || backend.is_here() {
        return follow_to_end(backend, &id, json).await;
    }
    show(&body, json, || id.clone());
    Ok(Exit::Ok)
}

fn contract_of(args: &StartArgs) -> Result<String, Failure> {
    let unreadable =
        |place: &str, error: std::io::Error| Failure::new(Code::ContractInvalid, format!("{place}: {error}"));
    match (&args.file, args.contract.as_deref()) {
        (Some(file), _) => {
            std::fs::read_to_string(file).map_err(|error| unreadable(&file.display().to_string(), error))
        }
        (None, Some("-")) => {
            let mut text = String::new();
            std::io::stdin()
                .read_to_string(&mut text)
                .map_err(|error| unreadable("standard input", error))?;
            Ok(text)
        }
        (None, Some(text)) => Ok(text.to_owned()),
        (None, None) => {
            Err(Failure::usage("give the contract as an argument, with --file, or `-` for standard input"))
        }
    }
}

/// Shows output as it comes on standard error, and the result as data.
async fn follow_to_end(backend: &Backend, id: &str, json: bool) -> Result<Exit, Failure> {
    if !json {
        output::talk(&format!("{id} started"));
    }
    let mut talk = |line: &str| {
        if !json {
            output::talk(line);
        }
    };
    print_output(backend, id, true, &mut talk, false).await?;
    let body = backend.run("agent_status", arguments(json!({"agent_ids": [id]}))).await?;
    let status = &body["result"][0];
    show(status, json, || {
        let told = status["summary"].as_str().or_else(|| status["error"].as_str()).unwrap_or_default();
        format!("{} {}: {told}", word(status, "agent_id"), word(status, "status"))
    });
    Ok(if status["status"] == "completed" { Exit::Ok } else { Exit::Failed })
}

async fn print_output(
    backend: &Backend,
    id: &str,
    follow: bool,
    print: &mut dyn FnMut(&str),
    json: bool,
) -> Result<(), Failure> {
    let mut after = 0;
    loop {
        let wish = json!({"agent_id": id, "after": after, "limit": 500, "max_chars": 100_000});
        let page = backend.run("agent_output", arguments(wish)).await?;
        for entry in page["entries"].as_array().into_iter().flatten() {
            after = entry["seq"].as_u64().unwrap_or(after);
            if json {
                print(&entry.to_string());
            } else {
                for line in lines_of(entry) {
                    print(&line);
                }
            }
        }
        if page["next"].is_null() {
            let ended = matches!(page["status"].as_str(), Some("completed" | "stopped"));
            if !follow || ended {
                return Ok(());
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}

/// A transcript entry for people.
fn lines_of(entry: &Value) -> Vec<String> {
    let content = word(entry, "content");
    match entry["type"].as_str().unwrap_or_default() {
        "assistant" => {
            let calls = entry["tool_calls"].as_array().into_iter().flatten();
            let calls = calls
                .map(|call| format!("  > {} {}", word(call, "name"), shorten(&word(call, "arguments"), 100)));
            (!content.trim().is_empty()).then(|| content.clone()).into_iter().chain(calls).collect()
        }
        "tool_result" => vec![format!("  < {}", shorten(&content, 200))],
        "status" => Vec::new(),
        "error" => vec![format!("error: {content}")],
        "compacted" => vec!["(older turns were summarised)".to_owned()],
        _ => vec![format!("({content})")],
    }
}

fn shorten(text: &str, most: usize) -> String {
    let line = text.replace('\n', " ");
    match line.char_indices().nth(most) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    }
}

async fn wait(
    backend: &Backend,
    ids: &[String],
    any: bool,
    timeout: u64,
    json: bool,
) -> Result<Exit, Failure> {
    let until = if any { "any" } else { "all" };
    let mut left = timeout;
    loop {
        // One call waits a bounded time; longer waits are several of them.
        let step = left.min(300);
        let wish = json!({"agent_ids": ids, "until": until, "timeout_seconds": step});
        let body = backend.run("agent_wait", arguments(wish)).await?;
        left -= step;
        if body["done"] == true || left == 0 {
            show_statuses(&body["result"], json);
            let mut ended = body["result"].as_array().into_iter().flatten();
            let good = if any {
                ended.any(|status| status["status"] == "completed")
            } else {
                ended.all(|status| status["status"] == "completed")
            };
            return Ok(if good && body["done"] == true { Exit::Ok } else { Exit::Failed });
        }
    }
}

fn show_statuses(statuses: &Value, json: bool) {
    show(statuses, json, || {
        let mut page = String::new();
        for status in statuses.as_array().into_iter().flatten() {
            let told = ["summary", "error", "recent_output"].iter().find_map(|key| status[*key].as_str());
            let state = status["status"].as_str().unwrap_or("unknown");
            let label = if status["rehearsal"] == true { " (rehearsal)" } else { "" };
            let _ = writeln!(
                page,
                "{}  {state}{label}  {}",
                word(status, "agent_id"),
                shorten(told.unwrap_or(""), 160)
            );
        }
        page.trim_end().to_owned()
    });
}

fn table(agents: &[Value]) -> String {
    let lines = agents.iter().map(|agent| {
        let contract = shorten(&word(agent, "contract"), 60);
        format!(
            "{}  {:<9}  {}  {contract}",
            word(agent, "id"),
            word(agent, "status"),
            word(agent, "created_at")
        )
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn show(body: &Value, json: bool, text: impl FnOnce() -> String) {
    let page = if json { body.to_string() } else { text() };
    if !page.is_empty() {
        output::data_line(&page);
    }
}

fn word(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}

fn arguments(value: Value) -> JsonObject {
    match value {
        Value::Object(arguments) => arguments,
        _ => JsonObject::new(),
    }
}
