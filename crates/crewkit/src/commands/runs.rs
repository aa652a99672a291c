//! `crewkit run` and `crewkit runs …`: contracts that are carried out once.

use std::io::Read as _;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use crewkit_core::Code;
use crewkit_core::run::RunStatus;
use crewkit_server::ops::Source;
use serde_json::{Value, json};

use super::follow::{self, Interrupts};
use super::{Owner, Session, runs_text, show};
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output;
use crate::style::Style;
use crate::text::field;

/// Longest time that one call waits; longer waits are several calls.
const WAIT_STEP_SECONDS: u64 = 300;

/// `crewkit runs …`.
#[derive(Debug, Subcommand)]
pub enum RunsCommand {
    /// List runs, newest last.
    List {
        /// Filter by status: ready, running, completed or stopped.
        #[arg(long, value_parser = status_word)]
        status: Option<String>,
    },
    /// Show everything about runs.
    #[command(alias = "status")]
    Show(Ids),
    /// Wait until runs have ended; fails unless all of them completed.
    Wait {
        #[command(flatten)]
        runs: Ids,
        /// Wait for the first one only.
        #[arg(long)]
        any: bool,
        /// Give up after this many seconds.
        #[arg(long, default_value_t = 300, value_name = "SECONDS")]
        timeout: u64,
    },
    /// Stop runs.
    Stop(Ids),
    /// Continue a stopped run where it was.
    Resume(Id),
    /// Show what a run said and did.
    Output {
        #[command(flatten)]
        run: Id,
        /// Show new entries as they arrive, until the run ends.
        #[arg(short, long)]
        follow: bool,
    },
    /// Print the payload of a run.
    Payload(Id),
    /// Mark the contract of a run as fulfilled.
    Complete {
        #[command(flatten)]
        run: Id,
        /// What was done and what came out of it.
        summary: String,
        /// The work product, if it is text.
        #[arg(long, value_name = "TEXT")]
        payload: Option<String>,
    },
    /// Delete runs with everything they left.
    Delete {
        #[command(flatten)]
        runs: Ids,
        /// Delete runs that have not ended too; this stops them.
        #[arg(long)]
        force: bool,
    },
    /// Delete runs that ended long ago, and list them.
    Prune {
        /// Delete runs that ended more than this many days ago; default: `limits.agent_retention_days`.
        #[arg(long, value_name = "DAYS")]
        older_than: Option<u64>,
        /// Keep this many of the newest ended runs.
        #[arg(long, value_name = "COUNT")]
        keep: Option<u64>,
        /// List what would be deleted, and delete nothing.
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
    /// Start a run and print its id.
    #[command(hide = true)]
    Start {
        #[command(flatten)]
        run: RunArgs,
        /// Follow it to its end.
        #[arg(short, long)]
        wait: bool,
    },
}

/// One run.
#[derive(Debug, Args)]
pub struct Id {
    /// Id of the run, or its last characters.
    #[arg(value_name = "RUN")]
    id: String,
}

/// Several runs.
#[derive(Debug, Args)]
pub struct Ids {
    /// Ids of runs, or their last characters.
    #[arg(value_name = "RUN", required = true)]
    ids: Vec<String>,
}

/// A new run.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// What shall be done; `-` reads it from standard input.
    contract: Option<String>,
    /// Read the contract from a file.
    #[arg(short, long, value_name = "FILE", conflicts_with = "contract")]
    file: Option<PathBuf>,
    /// Directory to work in.
    #[arg(short, long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Driver: loop, claude, codex, or one of `[agents.drivers]`.
    #[arg(long)]
    driver: Option<String>,
    /// Name of a configured model.
    #[arg(long)]
    model: Option<String>,
    /// Stop after this many replies of the model.
    #[arg(long, value_name = "COUNT")]
    max_turns: Option<u64>,
    /// Stop after this many tokens.
    #[arg(long, value_name = "COUNT")]
    max_tokens: Option<u64>,
    /// Stop after this many seconds.
    #[arg(long, value_name = "SECONDS")]
    max_seconds: Option<u64>,
    /// Start nothing new if a run was started with this key before.
    #[arg(long)]
    key: Option<String>,
    /// Own the home and work in this process; refused if another process owns the home.
    #[arg(long)]
    in_process: bool,
}

fn status_word(text: &str) -> Result<String, String> {
    let known = || RunStatus::ALL.iter().map(|status| status.as_str());
    if known().any(|word| word == text) {
        return Ok(text.to_owned());
    }
    Err(format!("there is no status `{text}`; use {}", known().collect::<Vec<_>>().join(", ")))
}

/// Starts a run and follows it to its end, unless it shall be left alone.
pub fn start(config: &Config, args: &RunArgs, detach: bool, json: bool) -> Result<Exit, Failure> {
    let owner = Owner::of_long_command(config, args.in_process);
    let contract = contract_of(args)?;
    super::runtime()?.block_on(async {
        let session = Session::open(config, owner, Source::Cli).await?;
        let done = async {
            let interrupts = Interrupts::of(&session)?;
            let workdir = args.dir.as_ref().map(std::path::absolute).transpose();
            let workdir = workdir.map_err(|error| Failure::new(Code::WorkdirInvalid, error.to_string()))?;
            let wish = json!({
                "contract": contract, "workdir": workdir, "driver": args.driver, "model": args.model,
                "max_turns": args.max_turns, "max_tokens": args.max_tokens, "max_seconds": args.max_seconds,
                "key": args.key,
            });
            let body = session.run("agent_start", wish).await?;
            let id = field(&body, "agent_id");
            if detach && !session.is_in_process() {
                show(&body, json, || id.to_owned());
                return Ok(Exit::Ok);
            }
            follow::to_end(&session, id, interrupts, json).await
        }
        .await;
        session.close().await;
        done
    })
}

/// Runs one of the commands.
pub fn run(config: &Config, command: RunsCommand, json: bool) -> Result<Exit, Failure> {
    let command = match command {
        RunsCommand::Start { run, wait } => return start(config, &run, !wait, json),
        command => command,
    };
    super::runtime()?.block_on(async {
        let session = Session::open(config, Owner::of_short_command(config), Source::Cli).await?;
        let done = perform(&session, command, json).await;
        session.close().await;
        done
    })
}

async fn perform(session: &Session, command: RunsCommand, json: bool) -> Result<Exit, Failure> {
    let style = Style::of_stdout();
    match command {
        RunsCommand::List { status } => {
            let body = session.run("run_list", json!({"status": status})).await?;
            show(&body, json, || match items(&body["runs"]) {
                [] => "No runs. Start one:\n  crewkit run \"Describe this project in SUMMARY.md\" --dir ."
                    .to_owned(),
                runs => runs_text::list(runs, style),
            });
        }
        RunsCommand::Show(runs) => {
            let ids = ids(session, runs.ids).await?;
            let body = session.run("agent_status", json!({"agent_ids": ids})).await?;
            show(&body["result"], json, || runs_text::details(items(&body["result"]), style));
        }
        RunsCommand::Wait { runs, any, timeout } => return wait(session, runs.ids, any, timeout, json).await,
        RunsCommand::Stop(runs) => {
            for id in ids(session, runs.ids).await? {
                let body = session.run("agent_stop", json!({"agent_id": id})).await?;
                show(&body, json, || format!("{id} {}", field(&body, "status")));
            }
        }
        RunsCommand::Resume(run) => {
            let id = id(session, run.id).await?;
            let body = session.run("run_resume", json!({"run_id": id})).await?;
            if session.is_in_process() {
                return follow::to_end(session, &id, Interrupts::of(session)?, json).await;
            }
            show(&body, json, || format!("{id} {}", field(&body, "status")));
        }
        RunsCommand::Output { run, follow } => {
            let id = id(session, run.id).await?;
            let print = |entry: &Value| {
                if json {
                    output::data_line(&entry.to_string());
                } else {
                    for line in runs_text::entry_lines(entry) {
                        output::data_line(&line);
                    }
                }
            };
            follow::transcript(session, &id, follow, print).await?;
        }
        RunsCommand::Payload(run) => {
            let gzip = session.payload(&id(session, run.id).await?).await?;
            let mut text = String::new();
            flate2::read::GzDecoder::new(&gzip[..]).read_to_string(&mut text).map_err(|error| {
                Failure::new(Code::StoreFailed, format!("the payload cannot be unpacked: {error}"))
            })?;
            output::product(&text);
        }
        RunsCommand::Complete { run, summary, payload } => {
            let id = id(session, run.id).await?;
            let wish = json!({"agent_id": id, "summary": summary, "payload": payload});
            let body = session.run("agent_complete", wish).await?;
            show(&body, json, || format!("{id} {}", field(&body, "status")));
        }
        RunsCommand::Delete { runs, force } => delete(session, runs.ids, force, json).await?,
        RunsCommand::Prune { older_than, keep, dry_run } => {
            let seconds = older_than.map(|days| days.saturating_mul(86_400));
            let wish = json!({"older_than_seconds": seconds, "keep": keep, "dry_run": dry_run});
            let body = session.run("run_prune", wish).await.map_err(|failure| match failure.code {
                Code::ArgumentInvalid => failure.with_next("crewkit runs prune --older-than DAYS"),
                _ => failure,
            })?;
            show(&body, json, || runs_text::pruned(&body, style));
        }
        RunsCommand::Start { .. } => {}
    }
    Ok(Exit::Ok)
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The full ids of runs that are given by their last characters.
async fn ids(session: &Session, given: Vec<String>) -> Result<Vec<String>, Failure> {
    let body = session.run("run_list", json!({})).await?;
    let known: Vec<&str> = items(&body["runs"]).iter().map(|run| field(run, "id")).collect();
    let find = |given: String| {
        let found = runs_text::find(&given, &known).map(str::to_owned);
        found.map_err(|message| Failure::new(Code::AgentNotFound, message).with_next("crewkit runs list"))
    };
    given.into_iter().map(find).collect()
}

async fn id(session: &Session, given: String) -> Result<String, Failure> {
    Ok(ids(session, vec![given]).await?.swap_remove(0))
}

/// Deletes runs. Nothing is deleted if one of them may not be.
async fn delete(session: &Session, given: Vec<String>, force: bool, json: bool) -> Result<(), Failure> {
    let ids = ids(session, given).await?;
    let body = session.run("agent_status", json!({"agent_ids": ids})).await?;
    if let Some(run) = items(&body["result"]).iter().find(|run| run["status"] == "running").filter(|_| !force)
    {
        let id = field(run, "agent_id");
        let next = format!("crewkit runs stop {}, or use --force", runs_text::short(id));
        return Err(
            Failure::new(Code::AgentStateInvalid, format!("Run `{id}` has not ended")).with_next(next)
        );
    }
    for id in ids {
        let body = session.run("run_delete", json!({"run_id": id})).await?;
        show(&body, json, || format!("{id} {}", field(&body, "status")));
    }
    Ok(())
}

async fn wait(
    session: &Session,
    given: Vec<String>,
    any: bool,
    timeout: u64,
    json: bool,
) -> Result<Exit, Failure> {
    let ids = ids(session, given).await?;
    let mut left = timeout;
    loop {
        let step = left.min(WAIT_STEP_SECONDS);
        let until = if any { "any" } else { "all" };
        let wish = json!({"agent_ids": ids, "until": until, "timeout_seconds": step});
        let body = session.run("agent_wait", wish).await?;
        left -= step;
        if body["done"] != true && left > 0 {
            continue;
        }
        let runs = items(&body["result"]);
        show(&body["result"], json, || runs_text::lines(runs, Style::of_stdout()));
        let is_good = |run: &Value| run["status"] == "completed";
        let good = if any { runs.iter().any(is_good) } else { runs.iter().all(is_good) };
        return Ok(if good && body["done"] == true { Exit::Ok } else { Exit::Failed });
    }
}

fn contract_of(args: &RunArgs) -> Result<String, Failure> {
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
