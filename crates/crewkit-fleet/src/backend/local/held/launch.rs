//! The server's side of a shim: starting one, finding it again, stopping it, hearing of its end.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::Command;

use super::{
    Ending, Exit, Files, Identity, MARK_FLEET, MARK_TASK, Order, ProcessId, private_file, read_whole,
    write_whole,
};
use crate::sys::process::{Watch, kill_marked};
use crate::time::Clock;

/// Time a shim has to say that its child runs.
const READY: Duration = Duration::from_secs(10);
/// Pause between looks for a shim that was being started when the server died, and how often.
const LOOK: Duration = Duration::from_millis(50);
const LOOKS: usize = 40;

/// Starts shims.
#[derive(Debug, Clone)]
pub struct Launcher {
    /// Program and leading arguments of a shim; the directory is added.
    pub command: Vec<OsString>,
    /// The environment held processes start from.
    pub environment: Vec<(OsString, OsString)>,
    /// Marks every process of this fleet.
    pub fleet: String,
    /// Tells the time of ends nobody saw.
    pub clock: Clock,
}

/// Why a process is not held.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// A file could not be written.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The shim could not be started.
    #[error("{program}: {source}")]
    Shim {
        /// Its program.
        program: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The shim did not begin.
    #[error("the process that was to hold the agent did not begin within {} s", READY.as_secs())]
    Silent,
}

/// What a new held process gets.
#[derive(Debug)]
pub struct Parcel<'a> {
    /// What is to be done.
    pub order: &'a Order,
    /// Written to its standard input; closed when absent.
    pub stdin: Option<&'a str>,
    /// Added to the environment.
    pub environment: &'a [(OsString, OsString)],
}

/// A held process, alive when it was last looked at.
#[derive(Debug)]
pub struct Held {
    files: Files,
    identity: Identity,
    task: String,
    clock: Clock,
}

/// What an earlier server's process has become.
#[derive(Debug)]
pub enum Adoption {
    /// It lives and is ours again.
    Alive(Held),
    /// It has ended.
    Ended(Exit),
}

impl Launcher {
    /// Starts a shim in `dir`, which must exist, and waits until its child runs. An end before that is no error: it is found
    /// by [`Held::ended`].
    pub async fn launch(&self, dir: &Path, parcel: Parcel<'_>) -> Result<Adoption, LaunchError> {
        let files = Files::in_dir(dir);
        write_order(&files, &parcel).await?;
        let (program, leading) = self.command.split_first().ok_or(LaunchError::Silent)?;
        let mut command = Command::new(program);
        command.args(leading).arg(dir).current_dir(dir).env_clear();
        command.envs(self.environment.iter().chain(parcel.environment).map(|(name, value)| (name, value)));
        command.env(MARK_TASK, &parcel.order.task).env(MARK_FLEET, &self.fleet);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut shim = command.spawn().map_err(|source| LaunchError::Shim {
            program: program.to_string_lossy().into_owned(),
            source,
        })?;
        if let Some(stdout) = shim.stdout.take() {
            // One line says that the child runs, or has failed to; which of them, the files tell.
            let mut line = BufReader::with_capacity(64, stdout.take(64)).lines();
            let _ = tokio::time::timeout(READY, line.next_line()).await;
        }
        // It may outlive us, but as long as we live it is ours to collect.
        tokio::spawn(async move { shim.wait().await });
        self.adopt(dir, &parcel.order.task).await.ok_or(LaunchError::Silent)
    }

    /// Finds the process held in `dir` again; none when there is no sign that there ever was one.
    pub async fn adopt(&self, dir: &Path, task: &str) -> Option<Adoption> {
        let files = Files::in_dir(dir);
        let mut asked = false;
        for _ in 0..LOOKS {
            if let Some(exit) = read_whole::<Exit>(&files.exit()) {
                return Some(Adoption::Ended(exit));
            }
            if let Some(identity) = read_whole::<Identity>(&files.identity()) {
                let held = Held { files, identity, task: task.to_owned(), clock: self.clock.clone() };
                if held.identity.shim.is_alive() {
                    return Some(Adoption::Alive(held));
                }
                return Some(Adoption::Ended(held.ended().await));
            }
            // The order may have been given a moment before the server died; then the shim is about to speak.
            if !asked {
                asked = true;
                if is_starting(task).await {
                    tokio::time::sleep(LOOK).await;
                } else if !files.exit().exists() && !files.identity().exists() {
                    // It is gone, and what it had to say would be there by now.
                    return None;
                }
                continue;
            }
            tokio::time::sleep(LOOK).await;
        }
        None
    }

    /// The end of a process nobody can tell anything about.
    pub fn unseen(&self) -> Exit {
        unseen(&self.clock, 0)
    }

    /// Kills every process that carries the mark of `task`; returns how many there were.
    pub async fn kill(&self, task: &str) -> usize {
        kill_task(task).await
    }

    /// Tasks that have processes of this fleet.
    pub async fn tasks_with_processes(&self) -> Vec<String> {
        let fleet = self.fleet.clone();
        let found = tokio::task::spawn_blocking(move || {
            let of_fleet: Vec<u32> = crate::sys::process::marked(MARK_FLEET)
                .into_iter()
                .filter(|(_, value)| *value == fleet)
                .map(|(pid, _)| pid)
                .collect();
            let mut tasks: Vec<String> = crate::sys::process::marked(MARK_TASK)
                .into_iter()
                .filter(|(pid, _)| of_fleet.contains(pid))
                .map(|(_, task)| task)
                .collect();
            tasks.sort();
            tasks.dedup();
            tasks
        });
        found.await.unwrap_or_default()
    }
}

impl Held {
    /// The shim.
    pub fn shim(&self) -> &ProcessId {
        &self.identity.shim
    }

    /// Asks it to end: first politely, then, after the grace of its order, without asking.
    pub async fn stop(&self) {
        let files = self.files.clone();
        let told = tokio::task::spawn_blocking(move || tell(&files)).await;
        if !told.is_ok_and(|told| told.is_ok()) && !self.identity.shim.is_alive() {
            // Nobody listens any more; whatever is left goes.
            kill_task(&self.task).await;
        }
    }

    /// Returns when it has ended, with everything it started.
    pub async fn ended(&self) -> Exit {
        if let Some(watch) = Watch::new(&self.identity.shim) {
            watch.ended().await;
        }
        if let Some(exit) = read_whole::<Exit>(&self.files.exit()) {
            return exit;
        }
        // The shim was killed: its child may live on without it.
        let leftovers = kill_task(&self.task).await;
        unseen(&self.clock, leftovers)
    }
}

fn unseen(clock: &Clock, leftovers: usize) -> Exit {
    Exit {
        ending: Ending::Unseen,
        code: None,
        how: "an end that nobody saw".to_owned(),
        at_ms: u64::try_from(clock.now().unix_ms()).unwrap_or_default(),
        leftovers,
    }
}

async fn kill_task(task: &str) -> usize {
    let mark = format!("{MARK_TASK}={task}");
    tokio::task::spawn_blocking(move || kill_marked(&mark, None)).await.unwrap_or_default()
}

/// Whether some process carries the task's mark.
async fn is_starting(task: &str) -> bool {
    let task = task.to_owned();
    let found = tokio::task::spawn_blocking(move || {
        crate::sys::process::marked(MARK_TASK).into_iter().any(|(_, value)| value == task)
    });
    found.await.unwrap_or(false)
}

async fn write_order(files: &Files, parcel: &Parcel<'_>) -> Result<(), LaunchError> {
    let (files, order) = (files.clone(), parcel.order.clone());
    let stdin = parcel.stdin.map(str::to_owned);
    let written = tokio::task::spawn_blocking(move || {
        use std::io::Write;
        let failed = |path: PathBuf| move |source| LaunchError::File { path, source };
        if let Some(text) = stdin {
            private_file(&files.stdin())
                .and_then(|mut file| file.write_all(text.as_bytes()))
                .map_err(failed(files.stdin()))?;
        }
        write_whole(&files.order(), &order).map_err(failed(files.order()))
    });
    written.await.unwrap_or(Err(LaunchError::Silent))
}

/// Writes a word into the pipe of a running shim; fails at once when nobody listens.
#[cfg(target_os = "linux")]
fn tell(files: &Files) -> io::Result<()> {
    use rustix::fs::{Mode, OFlags, open};
    let pipe = open(files.control(), OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(pipe, b"stop\n")?;
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn tell(files: &Files) -> io::Result<()> {
    private_file(&files.control()).map(drop)
}
