//! The server's side of a shim: starting one, finding it again, reading from it, stopping it.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::unix::pipe;
use tokio::process::Command;

use super::output::{self, Read};
use super::{Ending, Exit, Files, Identity, Order, open_pipe, private_file, read_whole, word, write_whole};
use crate::driver::Stdin;
use crate::sys::{HOLD, MARK_RUN, ProcessId, Watch, kill_marked};

/// Time a shim has to say that its child runs.
const READY: Duration = Duration::from_secs(10);
/// Time a shim that was being started when its server died has to say who it is.
const STARTING: Duration = Duration::from_secs(2);
/// Time a shim has to kill what it holds.
const KILL_PATIENCE: Duration = Duration::from_secs(10);
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// A process that a shim holds, or has held.
#[derive(Debug)]
pub(crate) struct Held {
    files: Files,
    pub(crate) order: Order,
    shim: Option<ProcessId>,
    /// Absent once it has ended.
    watch: Option<Watch>,
    wake: pipe::Receiver,
}

impl Held {
    /// Starts a shim in `dir`, which is made anew, and waits until its child runs or has failed to.
    pub(crate) async fn launch(
        helper: &[OsString],
        dir: &Path,
        order: Order,
        input: String,
        environment: impl IntoIterator<Item = &(OsString, OsString)>,
    ) -> io::Result<Self> {
        let (program, leading) = helper.split_first().ok_or(io::ErrorKind::NotFound)?;
        let run = order.run.clone();
        prepare(dir, order, input).await?;
        let mut command = Command::new(program);
        command.arg0("crewkit").args(leading).arg(HOLD).arg(dir).current_dir(dir);
        command.env_clear().envs(environment.into_iter().map(|(name, value)| (name, value)));
        command.env(MARK_RUN, run);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut shim = command.spawn()?;
        if let Some(stdout) = shim.stdout.take() {
            // One line says that the child runs, or has failed to; which of them, the files tell.
            let mut line = BufReader::with_capacity(64, stdout.take(64)).lines();
            let _ = tokio::time::timeout(READY, line.next_line()).await;
        }
        // It may outlive us, but as long as we live it is ours to collect.
        tokio::spawn(async move { shim.wait().await });
        let silent = || io::Error::other("the process that was to hold the driver did not begin");
        Self::adopt(dir).await.ok_or_else(silent)
    }

    /// Finds the process that is or was held in `dir`; none when there is no sign that it ever began.
    pub(crate) async fn adopt(dir: &Path) -> Option<Self> {
        let files = Files::in_dir(dir);
        let order: Order = read_whole(&files.order())?;
        let until = Instant::now() + STARTING;
        loop {
            // In this order: the exit is written last.
            let (exit, identity) = (files.exit().exists(), read_whole::<Identity>(&files.identity()));
            if exit || identity.is_some() {
                let shim = identity.map(|identity| identity.shim);
                let wake = pipe::Receiver::from_file(open_pipe(&files.wake()).ok()?).ok()?;
                let watch = shim.as_ref().and_then(Watch::new);
                return Some(Self { files, order, shim, watch, wake });
            }
            // The order may have been given a moment before the server died; then the shim is about to speak.
            if Instant::now() > until || !is_marked(&order.run).await {
                break;
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
        kill_run(&order.run).await;
        None
    }

    /// Some of what it printed from `position` on; waits for it. Nothing, when it has ended and everything is read. A call may
    /// be abandoned.
    pub(crate) async fn read(&mut self, position: u64) -> io::Result<Read> {
        loop {
            // Looked at first: what was printed before the end is read below.
            let has_ended = self.watch.is_none();
            let dir = self.files.dir.clone();
            let read = tokio::task::spawn_blocking(move || output::read(&dir, position)).await;
            let read = read.map_err(io::Error::other)??;
            if !read.frames.is_empty() || has_ended {
                return Ok(read);
            }
            let Some(watch) = &self.watch else { continue };
            tokio::select! {
                _ = self.wake.readable() => while self.wake.try_read(&mut [0; 4096]).is_ok_and(|length| length > 0) {},
                () = watch.ended() => self.watch = None,
            }
        }
    }

    /// How it ended.
    pub(crate) fn exit(&self) -> Exit {
        let unseen = || {
            let is_this_boot = self.shim.as_ref().is_none_or(ProcessId::is_of_this_boot);
            let ending = if is_this_boot { Ending::Unseen } else { Ending::Rebooted };
            Exit { ending, success: false, how: "an end that nobody saw".to_owned() }
        };
        read_whole(&self.files.exit()).unwrap_or_else(unseen)
    }

    /// Asks it to end and waits until it has; the shim kills what is left after the grace of the order.
    pub(crate) async fn stop(&mut self) {
        let _ = tell(&self.files, word::STOP);
        let patience = Duration::from_millis(self.order.grace_ms) + KILL_PATIENCE;
        if let Some(watch) = &self.watch
            && tokio::time::timeout(patience, watch.ended()).await.is_err()
        {
            tracing::error!("processes of an agent do not end; they are still being killed");
        }
    }
}

/// Asks what is held in `dir` to end, without waiting for it. Blocks for a moment.
pub(crate) fn ask_to_end(dir: &Path) {
    let _ = tell(&Files::in_dir(dir), word::STOP);
}

/// Ends what is held in `dir`, with everything that carries the mark of its run: what was started elsewhere, or lost its shim.
/// Blocks.
pub(crate) fn end_left(dir: &Path) {
    let files = Files::in_dir(dir);
    let Some(order) = read_whole::<Order>(&files.order()) else { return };
    if let Some(identity) = read_whole::<Identity>(&files.identity()) {
        let until = Instant::now() + KILL_PATIENCE;
        let _ = tell(&files, word::KILL);
        while identity.shim.is_alive() && Instant::now() < until {
            std::thread::sleep(LOOK_INTERVAL);
        }
    }
    kill_marked(MARK_RUN, |run| run == order.run);
}

/// Adds to the input of the process in `dir`, which must have asked for one that stays open. Blocks.
pub(crate) fn append_input(dir: &Path, text: &str) -> io::Result<()> {
    let files = open_input(dir)?;
    let mut file = std::fs::OpenOptions::new().append(true).open(files.input())?;
    file.write_all(text.as_bytes())?;
    // One that has ended reads nothing any more.
    let _ = tell(&files, word::INPUT);
    Ok(())
}

/// Closes the input of the process in `dir` once it has read everything. Blocks.
pub(crate) fn close_input(dir: &Path) -> io::Result<()> {
    let files = open_input(dir)?;
    private_file(&files.input_end())?;
    let _ = tell(&files, word::INPUT);
    Ok(())
}

fn open_input(dir: &Path) -> io::Result<Files> {
    let files = Files::in_dir(dir);
    let order: Option<Order> = read_whole(&files.order());
    let is_open = order.is_some_and(|order| order.stdin == Stdin::Open) && !files.input_end().exists();
    if is_open { Ok(files) } else { Err(io::ErrorKind::BrokenPipe.into()) }
}

async fn prepare(dir: &Path, order: Order, input: String) -> io::Result<()> {
    let dir: PathBuf = dir.to_owned();
    let prepared = tokio::task::spawn_blocking(move || {
        let _ = std::fs::remove_dir_all(&dir);
        crate::sys::create_private_dir(&dir)?;
        let files = Files::in_dir(&dir);
        private_file(&files.input())?.write_all(input.as_bytes())?;
        open_pipe(&files.wake())?;
        write_whole(&files.order(), &order)
    });
    prepared.await.map_err(io::Error::other)?
}

/// Writes a word into the pipe of a running shim; fails at once when nobody listens.
fn tell(files: &Files, word: u8) -> io::Result<()> {
    use rustix::fs::{Mode, OFlags, open};
    let pipe = open(files.control(), OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(pipe, &[word])?;
    Ok(())
}

async fn kill_run(run: &str) {
    let run = run.to_owned();
    let _ = tokio::task::spawn_blocking(move || kill_marked(MARK_RUN, |mark| mark == run)).await;
}

/// Whether some process carries the run's mark.
async fn is_marked(run: &str) -> bool {
    let run = run.to_owned();
    let found = tokio::task::spawn_blocking(move || crate::sys::is_marked(MARK_RUN, |mark| mark == run));
    found.await.unwrap_or(false)
}
