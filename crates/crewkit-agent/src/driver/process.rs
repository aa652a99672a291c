//! Supervising the process that carries out a contract.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use crewkit_core::Limits;
use crewkit_core::run::{RunId, StopReason};
use futures_util::future::BoxFuture;
use tokio::io::AsyncWriteExt;
use tokio::process::{ChildStderr, ChildStdout};
use tokio_util::sync::CancellationToken;

use super::{Exit, Format, Interpreter, ProcessDriver, Stdin, Used, interpreter};
use crate::contract::{Caps, End, TranscriptError, cut_middle};
use crate::event::EventBody;
use crate::held::{Ending, Frame, Held, Order};
use crate::lines::Lines;
use crate::store::Progress;
use crate::sys::{Launch, ProcessTree};

/// Lines of the transcript gathered before they are written; keeps a chatty process from costing a commit per line.
const GATHERED: usize = 64;
const GATHER_TIME: Duration = Duration::from_millis(20);
const COMPLAINT_BYTES: usize = 2000;
/// How long output may still arrive after a process that no shim holds has ended.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// One run for a process driver.
pub(crate) struct Errand<'a> {
    pub(crate) id: &'a RunId,
    pub(crate) contract: &'a str,
    /// Where it works.
    pub(crate) workdir: &'a Path,
    /// Where server and shim meet.
    pub(crate) meeting: &'a Path,
    /// The environment all drivers get.
    pub(crate) environment: &'a [(OsString, OsString)],
    /// Variables by which it knows itself and its server; nothing replaces them.
    pub(crate) identity: &'a [(OsString, OsString)],
    /// Hash of the token that is one of them.
    pub(crate) token: &'a [u8],
    /// Command line of the helper that holds it.
    pub(crate) helper: &'a [OsString],
}

/// Where output of a process is recorded, together with how far it was read.
pub(crate) type Append<'a> =
    &'a (dyn Fn(Vec<EventBody>, Progress) -> BoxFuture<'a, Result<(), TranscriptError>> + Send + Sync);

/// What is watched while a process works.
pub(crate) struct Attendance<'a> {
    pub(crate) append: Append<'a>,
    /// How far an earlier server has read.
    pub(crate) read: Progress,
    /// Cancelled when the run has ended by another hand.
    pub(crate) halt: CancellationToken,
    /// What it may use.
    pub(crate) caps: Caps,
    /// Time it has to end when it is asked to.
    pub(crate) grace: Duration,
    pub(crate) limits: &'a Limits,
}

/// Whether processes are held for the next server. If not, they end with the server.
pub(crate) fn are_held(helper: &[OsString]) -> bool {
    cfg!(target_os = "linux") && !helper.is_empty()
}

/// Runs `driver` to its end. No process of the run is left when this returns; one that is held works on when this is dropped.
pub(crate) async fn drive(driver: &ProcessDriver, errand: Errand<'_>, attendance: Attendance<'_>) -> End {
    let started = if are_held(errand.helper) {
        hold(driver, &errand, &attendance).await.map(Process::held)
    } else {
        spawn(driver, &errand, &attendance)
    };
    match started {
        Ok(process) => attend(&driver.name, driver.format, process, attendance).await,
        Err(error) => {
            let program = driver.command.first().map_or("", String::as_str);
            End::Stopped { reason: StopReason::DriverFailed, error: format!("{program}: {error}") }
        }
    }
}

/// Goes on with a process that an earlier server started.
pub(crate) async fn go_on(held: Held, attendance: Attendance<'_>) -> End {
    let (name, format) = (held.order.driver.clone(), held.order.format);
    attend(&name, format, Process::held(held), attendance).await
}

async fn hold(
    driver: &ProcessDriver,
    errand: &Errand<'_>,
    attendance: &Attendance<'_>,
) -> std::io::Result<Held> {
    let limits = attendance.limits;
    let order = Order {
        command: driver.command_line(errand.id, errand.contract, errand.workdir, attendance.caps.turns),
        directory: errand.workdir.to_owned(),
        run: errand.id.to_string(),
        driver: driver.name.clone(),
        format: driver.format,
        stdin: driver.stdin,
        line_bytes: limits.driver_line_bytes,
        output_bytes: limits.driver_output_bytes,
        seconds: attendance.caps.time.as_secs(),
        grace_ms: u64::try_from(attendance.grace.as_millis()).unwrap_or(u64::MAX),
        token: errand.token.to_owned(),
    };
    let environment = errand.environment.iter().chain(&driver.environment).chain(errand.identity);
    Held::launch(errand.helper, errand.meeting, order, errand.contract.to_owned(), environment).await
}

fn spawn(
    driver: &ProcessDriver,
    errand: &Errand<'_>,
    attendance: &Attendance<'_>,
) -> std::io::Result<Process> {
    let line = driver.command_line(errand.id, errand.contract, errand.workdir, attendance.caps.turns);
    let line: Vec<OsString> = line.into_iter().map(Into::into).collect();
    let mut launch = Launch::new(&[], None, &line)?;
    let command = &mut launch.command;
    let environment = errand.environment.iter().chain(&driver.environment).chain(errand.identity);
    command.env_clear().envs(environment.map(|(name, value)| (name, value)));
    command.current_dir(errand.workdir).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.stdin(if driver.stdin == Stdin::Nothing { Stdio::null() } else { Stdio::piped() });
    let mut tree = ProcessTree::spawn(launch, errand.id.as_str())?;
    let child = tree.child().ok_or(std::io::ErrorKind::NotFound)?;
    let no_pipe = || std::io::Error::from(std::io::ErrorKind::BrokenPipe);
    let said = child.stdout.take().ok_or_else(no_pipe)?;
    let complained = child.stderr.take().ok_or_else(no_pipe)?;
    if let Some(mut stdin) = child.stdin.take() {
        let contract = errand.contract.to_owned();
        tokio::spawn(async move {
            let _ = stdin.write_all(contract.as_bytes()).await;
            let _ = stdin.shutdown().await;
        });
    }
    Ok(Process::Piped(Box::new(Piped {
        tree,
        said: Lines::new(said, attendance.limits.driver_line_bytes),
        saying: true,
        complained: Lines::new(complained, 4096),
        complaining: true,
        ended: None,
    })))
}

/// A process whose output we read.
enum Process {
    /// It ends with the server.
    Piped(Box<Piped>),
    /// A shim holds it.
    Held(Box<FromShim>),
}

struct Piped {
    tree: ProcessTree,
    said: Lines<ChildStdout>,
    saying: bool,
    complained: Lines<ChildStderr>,
    complaining: bool,
    /// How the process ended, and when its last words are over.
    ended: Option<(std::io::Result<std::process::ExitStatus>, tokio::time::Instant)>,
}

struct FromShim {
    held: Held,
    read: VecDeque<(Frame, u64)>,
    /// Where the frames begin that are not read yet; `None` before the first of them.
    position: Option<u64>,
}

/// Something a process printed, and the position after it.
struct Heard {
    frame: Frame,
    position: u64,
    /// Bytes before it that nobody has read and that are gone.
    lost: u64,
}

impl Process {
    fn held(held: Held) -> Self {
        Self::Held(Box::new(FromShim { held, read: VecDeque::new(), position: None }))
    }

    /// The next line; `None` when the process has ended and everything is read. A call may be abandoned. What is before `known`
    /// has been read by an earlier server, and is read again as far as it is there.
    async fn next(&mut self, known: u64) -> std::io::Result<Option<Heard>> {
        match self {
            Self::Piped(piped) => Ok(piped.next().await.map(|frame| Heard { frame, position: 0, lost: 0 })),
            Self::Held(shim) => shim.next(known).await,
        }
    }

    /// Ends it, with everything it started.
    async fn stop(self, grace: Duration) {
        match self {
            Self::Piped(piped) => piped.tree.stop(grace).await,
            Self::Held(mut shim) => shim.held.stop().await,
        }
    }
}

impl Piped {
    async fn next(&mut self) -> Option<Frame> {
        loop {
            let last = self.ended.as_ref().map(|(_, until)| *until);
            if self.ended.is_some() && !self.saying && !self.complaining {
                return None;
            }
            tokio::select! {
                biased;
                line = self.said.next(), if self.saying => match line {
                    Ok(Some(line)) => return Some(Frame::Said { text: line.text, cut: line.cut }),
                    Ok(None) | Err(_) => self.saying = false,
                },
                line = self.complained.next(), if self.complaining => match line {
                    Ok(Some(line)) => return Some(Frame::Complained(line.text)),
                    Ok(None) | Err(_) => self.complaining = false,
                },
                status = self.tree.wait(), if last.is_none() => {
                    self.ended = Some((status, tokio::time::Instant::now() + LAST_WORDS));
                }
                // Children that inherited the pipe must not keep the run open.
                () = tokio::time::sleep_until(last.unwrap_or_else(tokio::time::Instant::now)), if last.is_some() => {
                    return None;
                }
            }
        }
    }
}

impl FromShim {
    async fn next(&mut self, known: u64) -> std::io::Result<Option<Heard>> {
        let mut lost = 0;
        if self.read.is_empty() {
            let asked = self.position.unwrap_or(0);
            let read = self.held.read(asked).await?;
            lost = read.from.saturating_sub(asked.max(known));
            self.position = read.frames.last().map(|(_, end)| *end).or(self.position);
            self.read = read.frames.into();
        }
        Ok(self.read.pop_front().map(|(frame, position)| Heard { frame, position, lost }))
    }
}

async fn attend(name: &str, format: Format, mut process: Process, attendance: Attendance<'_>) -> End {
    let (halt, time, grace) = (attendance.halt.clone(), attendance.caps.time, attendance.grace);
    // A shim watches the time itself, also while there is no server.
    let is_ours = matches!(process, Process::Piped(_)) && !time.is_zero();
    let mut listener = Listener::new(format, attendance);
    let out_of_time = || End::Stopped {
        reason: StopReason::TimeLimit,
        error: format!("the cap of {} seconds is reached", time.as_secs()),
    };
    let early = tokio::select! {
        biased;
        () = halt.cancelled() => Some(End::Halted),
        () = tokio::time::sleep(time), if is_ours => Some(out_of_time()),
        heard = listener.listen(&mut process) => heard.err(),
    };
    if let Some(end) = early {
        process.stop(grace).await;
        return end;
    }
    let failed = |error: &str| End::Stopped { reason: StopReason::DriverFailed, error: error.to_owned() };
    match process {
        Process::Piped(mut piped) => {
            piped.tree.kill_tree().await;
            let Some((status, _)) = piped.ended else { return End::Halted };
            let (success, how) = match status {
                Ok(status) => (status.success(), status.to_string().replace("exit status:", "exit code")),
                Err(error) => (false, error.to_string()),
            };
            listener.end(name, success, how)
        }
        Process::Held(shim) => {
            let exit = shim.held.exit();
            match exit.ending {
                Ending::Exited => listener.end(name, exit.success, exit.how),
                Ending::OutOfTime => out_of_time(),
                Ending::NotStarted => failed(&exit.how),
                Ending::Stopped => failed("its process was ended from outside"),
                Ending::Unseen => failed(
                    "the process that held the driver was killed; what was left of the driver is ended, and how it \
                     ended is not known",
                ),
                Ending::Rebooted => End::Stopped {
                    reason: StopReason::ServerRestarted,
                    error: "the machine was restarted while the agent was at work; resume it to begin anew"
                        .to_owned(),
                },
            }
        }
    }
}

/// Understands what a process prints and records it.
struct Listener<'a> {
    interpreter: Box<dyn Interpreter>,
    attendance: Attendance<'a>,
    gathered: Vec<EventBody>,
    /// How far has been read.
    read: Progress,
    /// What was used before the oldest output that is still there.
    before: Option<Used>,
    /// Last words on standard error, for the report of the end.
    complaints: String,
}

impl<'a> Listener<'a> {
    fn new(format: Format, attendance: Attendance<'a>) -> Self {
        Self {
            interpreter: interpreter(format),
            read: attendance.read,
            attendance,
            gathered: Vec::new(),
            before: None,
            complaints: String::new(),
        }
    }

    /// Reads until the process has ended. An error is an end that comes before that.
    async fn listen(&mut self, process: &mut Process) -> Result<(), End> {
        let known = self.attendance.read.position;
        loop {
            let next = process.next(known);
            let next = if self.gathered.is_empty() {
                next.await
            } else {
                // What was gathered waits no longer than this for company.
                match tokio::time::timeout(GATHER_TIME, next).await {
                    Ok(next) => next,
                    Err(_) => {
                        self.flush().await?;
                        continue;
                    }
                }
            };
            let unreadable = |error: std::io::Error| End::Stopped {
                reason: StopReason::DriverFailed,
                error: format!("the output of the driver cannot be read: {error}"),
            };
            let Some(heard) = next.map_err(unreadable)? else { break };
            self.take(heard);
            let used = Used { turns: self.read.turns, tokens: self.read.tokens };
            if let Some(end) = used.over(&self.attendance.caps) {
                self.flush().await?;
                return Err(end);
            }
            if self.gathered.len() >= GATHERED {
                self.flush().await?;
            }
        }
        self.flush().await
    }

    fn take(&mut self, heard: Heard) {
        let is_known = heard.position > 0 && heard.position <= self.attendance.read.position;
        if !is_known && self.before.is_none() {
            // What was counted before, less what was just counted again.
            let (then, again) = (self.attendance.read, self.interpreter.used());
            self.before = Some(Used {
                turns: then.turns.saturating_sub(again.turns),
                tokens: then.tokens.saturating_sub(again.tokens),
            });
        }
        if heard.lost > 0 {
            let lost =
                format!("{} bytes of the driver's output were dropped before they were read", heard.lost);
            self.gathered.push(EventBody::note(lost));
        }
        let entries = match heard.frame {
            Frame::Said { cut: true, .. } => {
                vec![EventBody::note("a line of the driver's output was too long and is dropped")]
            }
            Frame::Said { text, .. } => self.interpreter.line(&text),
            Frame::Complained(text) => self.complain(&text),
            Frame::Missing => {
                vec![EventBody::note("output of the driver is missing: the disk did not take it")]
            }
        };
        if is_known {
            return;
        }
        let room = usize::try_from(self.attendance.limits.tool_result_bytes).unwrap_or(usize::MAX);
        self.gathered.extend(entries.into_iter().map(|entry| bounded(entry, room)));
        let (before, used) = (self.before.unwrap_or_default(), self.interpreter.used());
        self.read = Progress {
            position: heard.position,
            turns: before.turns + used.turns,
            tokens: before.tokens + used.tokens,
        };
    }

    fn complain(&mut self, text: &str) -> Vec<EventBody> {
        self.complaints.push_str(text);
        self.complaints.push('\n');
        let excess = self.complaints.len().saturating_sub(COMPLAINT_BYTES);
        let from = self.complaints.ceil_char_boundary(excess);
        self.complaints.drain(..from);
        let is_empty = text.trim().is_empty();
        if is_empty { Vec::new() } else { vec![EventBody::note(format!("on standard error: {text}"))] }
    }

    /// Records what was gathered and how far that is, in one.
    async fn flush(&mut self) -> Result<(), End> {
        let gathered = std::mem::take(&mut self.gathered);
        Ok((self.attendance.append)(gathered, self.read).await?)
    }

    fn end(&mut self, name: &str, success: bool, how: String) -> End {
        self.interpreter.end(name, &Exit { success, how, complaints: self.complaints.trim().to_owned() })
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
