//! Ending a process with everything it started.
//!
//! With a helper (see [`super::supervisor`]) between us and the process, nothing gets away. Without one, the process gets a group
//! of its own, which is asked to end and then killed; what left the group still carries a mark in its environment and is found
//! by it where `/proc` exists.

use std::ffi::OsString;
use std::io::{self, PipeReader, PipeWriter, Write as _};
use std::path::Path;
use std::time::Duration;

use tokio::process::{Child, Command};

use super::confine::Confinement;

/// Names the run in the environment of everything it starts.
pub const MARK_RUN: &str = "CREWKIT_RUN";
/// Names one spawned tree within a run.
const MARK_TREE: &str = "CREWKIT_TREE";
/// Names the run in the environment of the helper alone.
pub(super) const MARK_HELPER: &str = "CREWKIT_HELPER";
/// How long a helper may take to kill what it holds.
const KILL_PATIENCE: Duration = Duration::from_secs(10);

/// A command line that is about to be started.
#[derive(Debug)]
pub(crate) struct Launch {
    /// Takes environment, directory and streams.
    pub(crate) command: Command,
    program: OsString,
    control: Option<(PipeReader, PipeWriter)>,
}

impl Launch {
    /// Prepares `line`, under the helper if there is one.
    pub(crate) fn new(
        helper: &[OsString],
        confinement: Option<&Confinement>,
        line: &[OsString],
    ) -> io::Result<Self> {
        let (program, arguments) = line.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let Some((helper, helper_arguments)) = helper.split_first() else {
            let mut command = Command::new(program);
            command.args(arguments);
            return Ok(Self { command, program: program.clone(), control: None });
        };
        let (reader, writer) = io::pipe()?;
        let mut command = Command::new(helper);
        #[cfg(unix)]
        {
            use std::os::fd::AsRawFd as _;
            command.arg0("crewkit").args(helper_arguments);
            let control = Some(reader.as_raw_fd());
            command.args(super::supervisor::to_arguments(control, confinement, line.iter().cloned()));
        }
        #[cfg(not(unix))]
        let _ = (helper_arguments, confinement);
        Ok(Self { command, program: program.clone(), control: Some((reader, writer)) })
    }

    /// Whether the program is there, so that its absence is found before the helper finds it.
    fn check_program(&self) -> io::Result<()> {
        let command = self.command.as_std();
        let program = Path::new(&self.program);
        let found = if program.components().count() > 1 {
            let directory = command.get_current_dir().unwrap_or_else(|| Path::new(""));
            return std::fs::metadata(directory.join(program)).map(drop);
        } else {
            let path = command.get_envs().find(|(name, _)| *name == "PATH").and_then(|(_, value)| value);
            path.is_none_or(|path| std::env::split_paths(path).any(|at| at.join(program).is_file()))
        };
        if found { Ok(()) } else { Err(io::Error::from_raw_os_error(ENOENT)) }
    }
}

/// No such file or directory.
const ENOENT: i32 = 2;

/// A child process and everything below it; killed when dropped.
#[derive(Debug)]
pub(crate) struct ProcessTree {
    child: Option<Child>,
    hold: Option<Hold>,
    mark: String,
}

/// What ends a tree.
#[derive(Debug)]
enum Hold {
    /// The helper, which kills everything when this is dropped.
    Helper(PipeWriter),
    /// The number of the process group.
    Group(u32),
}

impl ProcessTree {
    /// Starts the process, marked for `run`.
    pub(crate) fn spawn(mut launch: Launch, run: &str) -> io::Result<Self> {
        let mark = uuid::Uuid::now_v7().simple().to_string();
        launch.command.env(MARK_RUN, run).env(MARK_TREE, &mark);
        let Some((reader, writer)) = launch.control.take() else {
            launch.command.kill_on_drop(true);
            #[cfg(unix)]
            launch.command.process_group(0);
            let child = launch.command.spawn()?;
            let hold = child.id().map(Hold::Group);
            return Ok(Self { child: Some(child), hold, mark });
        };
        launch.check_program()?;
        launch.command.env(MARK_HELPER, run);
        // The helper gets the reading end. Another process that is started at this moment may get it too, and can do nothing with it.
        #[cfg(unix)]
        rustix::io::fcntl_setfd(&reader, rustix::io::FdFlags::empty())?;
        let child = launch.command.spawn()?;
        drop(reader);
        Ok(Self { child: Some(child), hold: Some(Hold::Helper(writer)), mark })
    }

    pub(crate) fn child(&mut self) -> Option<&mut Child> {
        self.child.as_mut()
    }

    /// Waits for the leader to end; under a helper, for everything it started too.
    pub(crate) async fn wait(&mut self) -> io::Result<std::process::ExitStatus> {
        match &mut self.child {
            Some(child) => child.wait().await,
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Asks the leader's group to end, gives it `grace`, then kills the whole tree.
    pub(crate) async fn stop(mut self, grace: Duration) {
        match &mut self.hold {
            Some(Hold::Helper(control)) => drop(control.write_all(b"T")),
            Some(Hold::Group(group)) => signal_group(*group, Ending::Ask),
            None => {}
        }
        let _ = tokio::time::timeout(grace, self.wait()).await;
        self.kill_tree().await;
    }

    /// Kills whatever is left of the tree; the leader is reaped.
    pub(crate) async fn kill_tree(&mut self) {
        match self.hold.take() {
            None => {}
            Some(Hold::Helper(control)) => {
                drop(control);
                match tokio::time::timeout(KILL_PATIENCE, self.wait()).await {
                    Ok(Ok(status)) if was_killed(status) => {
                        // Perhaps the helper itself, by somebody else; then the mark finds most of what it held.
                        let mark = format!("{MARK_TREE}={}", self.mark);
                        let _ = tokio::task::spawn_blocking(move || kill_by(&mark)).await;
                    }
                    Ok(_) => {}
                    Err(_) => {
                        tracing::error!("processes of an agent do not end; they are still being killed");
                    }
                }
            }
            Some(Hold::Group(group)) => {
                let mark = self.mark.clone();
                let _ = tokio::task::spawn_blocking(move || end_tree(group, &mark)).await;
                let _ = self.wait().await;
            }
        }
    }
}

impl Drop for ProcessTree {
    fn drop(&mut self) {
        // A helper hears it from the end of its pipe.
        let Some(Hold::Group(group)) = self.hold.take() else { return };
        let mark = std::mem::take(&mut self.mark);
        signal_group(group, Ending::Force);
        // Looking through the process table takes a moment; whoever drops us should not wait for it.
        let _ = std::thread::Builder::new()
            .name("crewkit-reaper".to_owned())
            .spawn(move || end_tree(group, &mark));
    }
}

#[cfg(unix)]
fn was_killed(status: std::process::ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt as _;
    status.signal() == Some(rustix::process::Signal::KILL.as_raw())
}

#[cfg(not(unix))]
fn was_killed(_: std::process::ExitStatus) -> bool {
    false
}

fn end_tree(group: u32, mark: &str) {
    signal_group(group, Ending::Force);
    kill_by(&format!("{MARK_TREE}={mark}"));
}

/// Kills every process whose variable `mark` has a value that is ours, in one sweep over the process table. Returns how many
/// there were.
pub fn kill_marked(mark: &str, is_ours: impl Fn(&str) -> bool) -> usize {
    wait_for_helpers(&is_ours);
    kill_where(|environ| value_of(environ, mark).is_some_and(&is_ours))
}

/// Whether there is a process whose variable `mark` has a value that is ours.
#[cfg(target_os = "linux")]
pub(crate) fn is_marked(mark: &str, is_ours: impl Fn(&str) -> bool) -> bool {
    all_pids().any(|pid| environ_of(pid).is_some_and(|found| value_of(&found, mark).is_some_and(&is_ours)))
}

/// The value of a variable in the contents of `/proc/PID/environ`.
fn value_of<'a>(environ: &'a [u8], name: &str) -> Option<&'a str> {
    let mut entries = environ.split(|byte| *byte == 0);
    let value = entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
    std::str::from_utf8(value).ok()
}

#[derive(Clone, Copy)]
enum Ending {
    Ask,
    Force,
}

#[cfg(unix)]
fn signal_group(group: u32, ending: Ending) {
    use rustix::process::{Pid, Signal, kill_process_group};
    let signal = match ending {
        Ending::Ask => Signal::TERM,
        Ending::Force => Signal::KILL,
    };
    if let Some(pid) = i32::try_from(group).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(pid, signal);
    }
}

#[cfg(not(unix))]
fn signal_group(_: u32, _: Ending) {}

/// Gives helpers whose server has just died the time to kill what they hold: without them nobody finds all of it.
#[cfg(target_os = "linux")]
fn wait_for_helpers(is_ours: &impl Fn(&str) -> bool) {
    const LOOK_INTERVAL: Duration = Duration::from_millis(10);
    const PATIENCE: Duration = Duration::from_secs(2);
    let until = std::time::Instant::now() + PATIENCE;
    while std::time::Instant::now() < until && is_marked(MARK_HELPER, is_ours) {
        std::thread::sleep(LOOK_INTERVAL);
    }
}

#[cfg(not(target_os = "linux"))]
fn wait_for_helpers(_: &impl Fn(&str) -> bool) {}

/// Kills every process whose environment holds `setting`.
fn kill_by(setting: &str) -> usize {
    kill_where(|environ| environ.split(|byte| *byte == 0).any(|entry| entry == setting.as_bytes()))
}

/// Kills every process whose environment is `wanted`. Rounds are repeated because a process may fork while we look.
#[cfg(target_os = "linux")]
fn kill_where(wanted: impl Fn(&[u8]) -> bool) -> usize {
    use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
    const ROUNDS: usize = 20;
    let own = std::process::id();
    let mut killed = 0;
    for _ in 0..ROUNDS {
        let mut found = 0;
        let carries = |pid: u32| environ_of(pid).is_some_and(|environ| wanted(&environ));
        for pid in all_pids().filter(|pid| *pid != own && carries(*pid)) {
            let Some(target) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { continue };
            // The handle pins the process: if the number was reused meanwhile, the second look sees another environment.
            let Ok(handle) = pidfd_open(target, PidfdFlags::empty()) else { continue };
            if carries(pid) && pidfd_send_signal(&handle, Signal::KILL).is_ok() {
                found += 1;
            }
        }
        killed += found;
        if found == 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    killed
}

#[cfg(not(target_os = "linux"))]
fn kill_where(_: impl Fn(&[u8]) -> bool) -> usize {
    0
}

#[cfg(target_os = "linux")]
fn all_pids() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse().ok()))
}

/// The environment of a process; a process that is already dead has none.
#[cfg(target_os = "linux")]
fn environ_of(pid: u32) -> Option<Vec<u8>> {
    std::fs::read(format!("/proc/{pid}/environ")).ok()
}
