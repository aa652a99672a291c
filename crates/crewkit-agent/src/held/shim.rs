//! The shim: holds one child, keeps what it prints, ends it with everything it started, and says how it ended.
//!
//! It leads a session of its own, without a terminal, and becomes the parent of everything below it that loses its own. It is one
//! thread that waits: hundreds of shims must cost next to nothing.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use super::output::{Lines, Writer};
use super::{Ending, Exit, Files, Frame, Identity, Order, open_pipe, read_whole, word, write_whole};
use crate::driver::Stdin;
use crate::sys::{ProcessId, descendants};

/// How long output may still arrive once every process is gone.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// How often the shim looks whether its directory is still there.
const DIRECTORY_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Longest line of standard error; of a longer one the beginning is kept.
const COMPLAINT_BYTES: u64 = 4096;

/// Carries out the order in `dir`. Writes a line to standard output once the child runs or has failed to.
///
/// Everything the shim inherits (environment, limits) its child inherits too.
pub(crate) fn run(dir: &Path) -> io::Result<()> {
    // A process that leads a group already cannot; it is in a session of its own then.
    let _ = rustix::process::setsid();
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    crate::sys::close_inherited(&[])?;
    let files = Files::in_dir(dir);
    let order: Order = read_whole(&files.order())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "there is no order in the directory"))?;
    let (control, wake) = (open_pipe(&files.control())?, open_pipe(&files.wake())?);
    let writer = Writer::new(dir, order.output_bytes)?;
    let child = match start(&order, &files) {
        Ok(child) => child,
        Err(error) => {
            let program = order.command.first().map_or("", String::as_str);
            let exit =
                Exit { ending: Ending::NotStarted, success: false, how: format!("{program}: {error}") };
            write_whole(&files.exit(), &exit)?;
            return say_ready();
        }
    };
    let shim = ProcessId::of(std::process::id()).ok_or(io::ErrorKind::NotFound)?;
    let identity = Identity { shim, child: child.id() };
    let mut holder = Holder::new(order, &files, child, control, wake, writer)?;
    write_whole(&files.identity(), &identity)?;
    // A server that died meanwhile does not hear it; it will find the file.
    let _ = say_ready();
    crate::sys::hold_no_streams();
    let ending = holder.hold();
    descendants::end_all(|pid, status| holder.note_end(pid, status));
    holder.last_words();
    let status = holder.status.map(|status| ExitStatus::from_raw(status.as_raw()));
    let exit = Exit {
        ending,
        success: status.is_some_and(|status| status.success()),
        how: status.map_or_else(|| "an unknown end".to_owned(), describe),
    };
    write_whole(&files.exit(), &exit)
}

/// Whether the directory of the order, in which the shim was started, has been deleted: then no server can ever find the child.
/// A directory that is moved, or whose file system is away, is still linked.
fn is_directory_deleted() -> bool {
    std::fs::metadata(".").is_ok_and(|directory| directory.nlink() == 0)
}

fn say_ready() -> io::Result<()> {
    let mut out = io::stdout();
    out.write_all(b"ready\n").and_then(|()| out.flush())
}

fn describe(status: ExitStatus) -> String {
    status.to_string().replace("exit status:", "exit code").replace("signal:", "killed by signal")
}

fn start(order: &Order, files: &Files) -> io::Result<Child> {
    let (program, arguments) = order.command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let stdin = match order.stdin {
        Stdin::Nothing => Stdio::null(),
        Stdin::Contract => File::open(files.input())?.into(),
        Stdin::Open => Stdio::piped(),
    };
    let mut command = Command::new(program);
    command.args(arguments).current_dir(&order.directory).process_group(0);
    command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
}

/// One stream of the child.
struct Stream {
    pipe: Option<File>,
    lines: Lines,
}

impl Stream {
    fn new(pipe: Option<OwnedFd>, lines: Lines) -> io::Result<Self> {
        if let Some(pipe) = &pipe {
            rustix::io::ioctl_fionbio(pipe, true)?;
        }
        Ok(Self { pipe: pipe.map(File::from), lines })
    }

    /// Takes some of what is there; returns whether there was anything.
    fn take(&mut self, writer: &mut Writer) -> bool {
        let Some(pipe) = &mut self.pipe else { return false };
        let mut buffer = [0; 16 * 1024];
        match pipe.read(&mut buffer) {
            Ok(length) if length > 0 => self.lines.take(&buffer[..length], writer),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                return false;
            }
            Ok(_) | Err(_) => {
                self.pipe = None;
                self.lines.end(writer);
            }
        }
        true
    }
}

/// The input of a child whose input stays open.
struct Input {
    file: File,
    pipe: File,
    pending: Vec<u8>,
}

/// What has become of an input.
enum Fed {
    /// Everything there is; more may come.
    All,
    /// As much as the child takes for now.
    Some,
    /// It is closed.
    Closed,
}

impl Input {
    fn feed(&mut self, files: &Files) -> Fed {
        loop {
            if self.pending.is_empty() {
                // Looked for first: what was written before the end was marked is read below.
                let is_last = files.input_end().exists();
                let mut buffer = vec![0; 64 * 1024];
                match self.file.read(&mut buffer) {
                    Ok(0) | Err(_) => return if is_last { Fed::Closed } else { Fed::All },
                    Ok(length) => self.pending.extend(&buffer[..length]),
                }
            }
            match self.pipe.write(&self.pending) {
                Ok(length) => drop(self.pending.drain(..length)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Fed::Some,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The child reads no more.
                Err(_) => return Fed::Closed,
            }
        }
    }
}

struct Holder {
    order: Order,
    files: Files,
    child: Pid,
    end_of_child: OwnedFd,
    control: File,
    wake: File,
    writer: Writer,
    streams: [Stream; 2],
    input: Option<Input>,
    status: Option<WaitStatus>,
}

impl Holder {
    fn new(
        order: Order,
        files: &Files,
        mut child: Child,
        control: File,
        wake: File,
        writer: Writer,
    ) -> io::Result<Self> {
        let said = Lines::new(order.line_bytes, |text, cut| Frame::Said { text, cut });
        let complained = Lines::new(COMPLAINT_BYTES, |text, _| Frame::Complained(text));
        let streams = [
            Stream::new(child.stdout.take().map(OwnedFd::from), said)?,
            Stream::new(child.stderr.take().map(OwnedFd::from), complained)?,
        ];
        let input = match child.stdin.take() {
            Some(pipe) => {
                rustix::io::ioctl_fionbio(&pipe, true)?;
                let pipe = File::from(OwnedFd::from(pipe));
                Some(Input { file: File::open(files.input())?, pipe, pending: Vec::new() })
            }
            None => None,
        };
        let child = Pid::from_child(&child);
        let end_of_child = rustix::process::pidfd_open(child, rustix::process::PidfdFlags::empty())?;
        let files = files.clone();
        Ok(Self { order, files, child, end_of_child, control, wake, writer, streams, input, status: None })
    }

    /// Waits until the child has ended, or has to be killed; tells why.
    fn hold(&mut self) -> Ending {
        let seconds = Duration::from_secs(self.order.seconds);
        let over_at = (!seconds.is_zero()).then(|| Instant::now() + seconds);
        let mut asked: Option<(Ending, Instant)> = None;
        let mut checked = Instant::now();
        loop {
            let told = self.words();
            self.reap();
            let now = Instant::now();
            let is_check_due = now >= checked + DIRECTORY_CHECK_INTERVAL;
            if is_check_due {
                checked = now;
            }
            match asked {
                _ if self.status.is_some() => return asked.map_or(Ending::Exited, |(ending, _)| ending),
                _ if told.contains(&word::KILL) => return Ending::Stopped,
                Some((ending, kill_at)) if now >= kill_at => return ending,
                None if told.contains(&word::STOP) => asked = Some(self.ask(Ending::Stopped)),
                None if over_at.is_some_and(|over| now >= over) => asked = Some(self.ask(Ending::OutOfTime)),
                None if is_check_due && is_directory_deleted() => asked = Some(self.ask(Ending::Stopped)),
                _ => {}
            }
            let is_full = self.feed();
            let next = asked.map(|(_, kill_at)| kill_at).or(over_at);
            let check = checked + DIRECTORY_CHECK_INTERVAL;
            let next = next.map_or(check, |at| at.min(check));
            self.listen(is_full, Some(next.saturating_duration_since(Instant::now())));
        }
    }

    /// Asks everything below us to end; says when it will be killed.
    fn ask(&self, ending: Ending) -> (Ending, Instant) {
        descendants::signal_all(Signal::TERM);
        (ending, Instant::now() + Duration::from_millis(self.order.grace_ms))
    }

    /// What servers have told since the last look.
    fn words(&mut self) -> Vec<u8> {
        let mut words = [0; 64];
        let length = self.control.read(&mut words).unwrap_or(0);
        words[..length].to_vec()
    }

    /// Gives the child what there is to read; returns whether it takes no more for now.
    fn feed(&mut self) -> bool {
        match self.input.as_mut().map(|input| input.feed(&self.files)) {
            Some(Fed::Some) => true,
            Some(Fed::Closed) => {
                self.input = None;
                false
            }
            Some(Fed::All) | None => false,
        }
    }

    /// Waits for output, words or the end, and takes the output.
    fn listen(&mut self, is_full: bool, pause: Option<Duration>) {
        let mut waiting =
            vec![PollFd::new(&self.end_of_child, PollFlags::IN), PollFd::new(&self.control, PollFlags::IN)];
        let pipes = self.streams.iter().filter_map(|stream| stream.pipe.as_ref());
        waiting.extend(pipes.map(|pipe| PollFd::new(pipe, PollFlags::IN)));
        if is_full {
            waiting.extend(self.input.iter().map(|input| PollFd::new(&input.pipe, PollFlags::OUT)));
        }
        let pause = pause.and_then(|pause| Timespec::try_from(pause).ok());
        let _ = poll(&mut waiting, pause.as_ref());
        self.take_output();
    }

    fn take_output(&mut self) -> bool {
        let mut is_new = false;
        for stream in &mut self.streams {
            is_new |= stream.take(&mut self.writer);
        }
        if is_new {
            // A pipe that is full wakes as well as one with a byte more.
            let _ = self.wake.write(b"w");
        }
        is_new
    }

    /// Collects the processes that have ended below us.
    fn reap(&mut self) {
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            self.note_end(pid, status);
        }
    }

    fn note_end(&mut self, pid: Pid, status: WaitStatus) {
        if pid == self.child {
            self.status = Some(status);
        }
    }

    /// Reads what is still in the pipes.
    fn last_words(&mut self) {
        let until = Instant::now() + LAST_WORDS;
        while self.streams.iter().any(|stream| stream.pipe.is_some()) && Instant::now() < until {
            if !self.take_output() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        for stream in &mut self.streams {
            stream.lines.end(&mut self.writer);
        }
    }
}
