//! Supervising the process that carries out a contract.

use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crewkit_core::Limits;
use crewkit_core::run::{RunId, StopReason};
use tokio::io::AsyncWriteExt;
use tokio::process::{ChildStderr, ChildStdout};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Exit, ProcessDriver, Stdin, interpreter};
use crate::contract::{Caps, Durability, End, Transcript, cut_middle};
use crate::event::EventBody;
use crate::lines::{Line, Lines};
use crate::sync::lock;
use crate::sys::{Launch, ProcessTree};

/// Lines of the transcript gathered before they are written; keeps a chatty process from costing a commit per line.
const GATHERED: usize = 64;
const GATHER_TIME: Duration = Duration::from_millis(20);
const COMPLAINT_BYTES: usize = 2000;
/// How long output may still arrive after the process itself has ended.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// One run for a process driver.
pub struct Errand<'a> {
    /// The run.
    pub id: &'a RunId,
    /// Its contract.
    pub contract: &'a str,
    /// Where it works.
    pub workdir: &'a Path,
    /// The environment all drivers get.
    pub environment: &'a [(std::ffi::OsString, std::ffi::OsString)],
    /// Variables by which it knows itself and its server; nothing replaces them.
    pub identity: &'a [(std::ffi::OsString, std::ffi::OsString)],
    /// Command line of the helper that supervises it.
    pub helper: &'a [std::ffi::OsString],
    /// Where its output goes.
    pub transcript: &'a dyn Transcript,
    /// Cancelled when the run has ended by another hand.
    pub halt: CancellationToken,
    /// What it may use.
    pub caps: Caps,
    /// Limits.
    pub limits: &'a Limits,
}

/// Runs `driver` to its end. Whatever happens, no process of the run is left when this returns.
pub async fn drive(driver: &ProcessDriver, errand: Errand<'_>) -> End {
    let tree = match start(driver, &errand) {
        Ok(tree) => tree,
        Err(error) => {
            let program = driver.command.first().map_or("", String::as_str);
            return End::Stopped { reason: StopReason::DriverFailed, error: format!("{program}: {error}") };
        }
    };
    supervise(driver, &errand, tree).await
}

fn start(driver: &ProcessDriver, errand: &Errand<'_>) -> std::io::Result<ProcessTree> {
    let line = driver.command_line(errand.id, errand.contract, errand.workdir, errand.caps.turns);
    let line: Vec<std::ffi::OsString> = line.into_iter().map(Into::into).collect();
    let mut launch = Launch::new(errand.helper, None, &line)?;
    let command = &mut launch.command;
    let environment = errand.environment.iter().chain(&driver.environment).chain(errand.identity);
    command.env_clear().envs(environment.map(|(name, value)| (name, value)));
    command.current_dir(errand.workdir).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.stdin(if driver.stdin == Stdin::Contract { Stdio::piped() } else { Stdio::null() });
    ProcessTree::spawn(launch, errand.id.as_str())
}

async fn supervise(driver: &ProcessDriver, errand: &Errand<'_>, mut tree: ProcessTree) -> End {
    let grace = Duration::from_secs(errand.limits.driver_stop_grace_seconds);
    let Some(child) = tree.child() else { return End::Halted };
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let contract = errand.contract.to_owned();
    if let Some(mut stdin) = stdin {
        tokio::spawn(async move {
            let _ = stdin.write_all(contract.as_bytes()).await;
            let _ = stdin.shutdown().await;
        });
    }
    let complaints = Arc::new(Mutex::new(String::new()));
    let (complain, complained) = mpsc::channel(GATHERED);
    if let Some(stderr) = stderr {
        tokio::spawn(keep_complaints(stderr, Arc::clone(&complaints), complain));
    }
    let mut interpreter = interpreter(driver.format);
    let time = if errand.caps.time.is_zero() { Duration::MAX } else { errand.caps.time };
    let outcome = {
        let reading = async {
            let Some(stdout) = stdout else { return Ok(()) };
            let said = Lines::new(stdout, errand.limits.driver_line_bytes);
            let mut streams = Streams { said, saying: true, complained, complaining: true };
            let room = usize::try_from(errand.limits.tool_result_bytes).unwrap_or(usize::MAX);
            let mut gathered = Vec::new();
            loop {
                let next = if gathered.is_empty() {
                    streams.next().await
                } else {
                    // What was gathered waits no longer than this for company.
                    let more = tokio::time::timeout(GATHER_TIME, streams.next()).await;
                    if more.is_err() || gathered.len() >= GATHERED {
                        errand.transcript.append(std::mem::take(&mut gathered), Durability::Soon).await?;
                    }
                    let Ok(next) = more else { continue };
                    next
                };
                let entries = match next {
                    None => break,
                    Some(Heard::Said(line)) if line.cut => {
                        vec![EventBody::note("a line of the driver's output was too long and is dropped")]
                    }
                    Some(Heard::Said(line)) => interpreter.line(&line.text),
                    Some(Heard::Complained(line)) => {
                        vec![EventBody::note(format!("on standard error: {line}"))]
                    }
                };
                gathered.extend(entries.into_iter().map(|entry| bounded(entry, room)));
                if let Some(end) = interpreter.used().over(&errand.caps) {
                    errand.transcript.append(gathered, Durability::Soon).await?;
                    return Err(end);
                }
            }
            errand.transcript.append(gathered, Durability::Soon).await?;
            Ok(())
        };
        tokio::pin!(reading);
        let deadline = tokio::time::sleep(time);
        tokio::pin!(deadline);
        let mut read = None;
        loop {
            tokio::select! {
                biased;
                () = errand.halt.cancelled() => break Outcome::Halted,
                () = &mut deadline => break Outcome::OutOfTime,
                result = &mut reading, if read.is_none() => match result {
                    Ok(()) => read = Some(()),
                    Err(end) => break Outcome::Ended(end),
                },
                status = tree.wait() => {
                    if read.is_none() {
                        // Children that inherited the pipe must not keep the run open.
                        let _ = tokio::time::timeout(LAST_WORDS, &mut reading).await;
                    }
                    break Outcome::Exited(status);
                }
            }
        }
    };
    match outcome {
        Outcome::Halted => {
            tree.stop(grace).await;
            End::Halted
        }
        Outcome::OutOfTime => {
            tree.stop(grace).await;
            let error = format!("the cap of {} seconds is reached", time.as_secs());
            End::Stopped { reason: StopReason::TimeLimit, error }
        }
        Outcome::Ended(end) => {
            tree.stop(grace).await;
            end
        }
        Outcome::Exited(status) => {
            tree.kill_tree().await;
            let complaints = lock(&complaints).trim().to_owned();
            interpreter.end(&driver.name, &exit_of(status, complaints))
        }
    }
}

/// A line of the process.
enum Heard {
    Said(Line),
    Complained(String),
}

/// What a process says and what it complains about, in the order of arrival.
struct Streams {
    said: Lines<ChildStdout>,
    saying: bool,
    complained: mpsc::Receiver<String>,
    complaining: bool,
}

impl Streams {
    /// The next line of either; `None` when both have ended. A call may be abandoned.
    async fn next(&mut self) -> Option<Heard> {
        while self.saying || self.complaining {
            tokio::select! {
                biased;
                line = self.said.next(), if self.saying => match line {
                    Ok(Some(line)) => return Some(Heard::Said(line)),
                    Ok(None) | Err(_) => self.saying = false,
                },
                line = self.complained.recv(), if self.complaining => match line {
                    Some(line) => return Some(Heard::Complained(line)),
                    None => self.complaining = false,
                },
            }
        }
        None
    }
}

enum Outcome {
    Halted,
    OutOfTime,
    /// A cap is reached, or its output cannot be written.
    Ended(End),
    Exited(std::io::Result<ExitStatus>),
}

fn exit_of(status: std::io::Result<ExitStatus>, complaints: String) -> Exit {
    match status {
        Ok(status) => Exit {
            success: status.success(),
            how: status.to_string().replace("exit status:", "exit code"),
            complaints,
        },
        Err(error) => Exit { success: false, how: error.to_string(), complaints },
    }
}

/// Output of tools inside the driver is kept within the same bounds as that of our own tools.
fn bounded(entry: EventBody, room: usize) -> EventBody {
    match entry {
        EventBody::ToolResult { call_id, name, content, is_error } => {
            EventBody::ToolResult { call_id, name, content: cut_middle(content, room), is_error }
        }
        EventBody::Assistant { content, reasoning, tool_calls, usage } => {
            EventBody::Assistant { content: cut_middle(content, room), reasoning, tool_calls, usage }
        }
        other => other,
    }
}

/// Keeps the last words of standard error for the report of the end, and passes its lines on while the run is listened to.
async fn keep_complaints(stderr: ChildStderr, complaints: Arc<Mutex<String>>, pass_on: mpsc::Sender<String>) {
    let mut lines = Lines::new(stderr, 4096);
    while let Ok(Some(line)) = lines.next().await {
        {
            let mut kept = lock(&complaints);
            kept.push_str(&line.text);
            kept.push('\n');
            let excess = kept.len().saturating_sub(COMPLAINT_BYTES);
            let from = kept.ceil_char_boundary(excess);
            kept.drain(..from);
        }
        if !line.text.trim().is_empty() {
            let _ = pass_on.send(line.text).await;
        }
    }
}
