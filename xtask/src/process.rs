//! Programs that run beside a chore: to their end within a time, or as long as they are needed.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::shell;

/// How often a program is asked whether it has ended.
const POLL: Duration = Duration::from_millis(20);

/// The target directory this program was built into.
pub(crate) fn target() -> Result<PathBuf> {
    let here = std::env::current_exe()?;
    let target = here.ancestors().find(|path| path.join("CACHEDIR.TAG").is_file());
    Ok(target.context("this program does not lie in a cargo target directory")?.to_owned())
}

/// Builds with cargo into the directory this program was built into.
pub(crate) fn build(arguments: &[&str]) -> Result<()> {
    shell::run(shell::cargo().arg("build").arg("--target-dir").arg(target()?).args(arguments))
}

/// Runs a chore once more as an optimised program, unless this one is: a client or a model that is slow itself would be
/// measured in crewkit's place. Says whether it did.
pub(crate) fn again_optimised(chore: &[&str]) -> Result<bool> {
    if !cfg!(debug_assertions) {
        return Ok(false);
    }
    build(&["--release", "--package", "xtask", "--bin", "xtask"])?;
    shell::run(Command::new(target()?.join("release/xtask")).args(chore))?;
    Ok(true)
}

/// How a program ended, and what it wrote.
#[derive(Debug)]
pub(crate) struct Ended {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

/// Runs `command` to its end, or ends it after `limit`.
pub(crate) fn run(command: &mut Command, limit: Duration) -> Result<Ended> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let stdout = collect(child.stdout.take());
    let stderr = collect(child.stderr.take());
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if began.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            bail!("{command:?} took longer than {} seconds", limit.as_secs());
        }
        thread::sleep(POLL);
    };
    Ok(Ended { status, stdout: stdout.join().unwrap_or_default(), stderr: stderr.join().unwrap_or_default() })
}

fn collect(stream: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read before a failure is still worth showing.
        let _ = stream.map(|mut stream| stream.read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// A program that runs until this value is dropped.
pub(crate) struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A `crewkit serve` of its own: free port, fresh home.
pub(crate) struct Server {
    pub process: Running,
    pub url: String,
    _home: tempfile::TempDir,
}

impl Server {
    /// Starts `binary serve` with `flags`; its log goes to `log`.
    pub(crate) fn start(binary: &Path, flags: &[&str], log: &Path) -> Result<Self> {
        let home = tempfile::tempdir()?;
        let mut serve = Command::new(binary);
        serve.args(["serve", "--listen", "127.0.0.1:0"]).args(flags).env("CREWKIT_HOME", home.path());
        serve.stderr(File::create(log)?);
        let (process, url) =
            start_server(&mut serve).with_context(|| format!("the log is {}", log.display()))?;
        Ok(Self { process, url, _home: home })
    }
}

/// Starts a program that says on its first line where it listens.
pub(crate) fn start_server(command: &mut Command) -> Result<(Running, String)> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let stdout = child.stdout.take().context("no standard output")?;
    let process = Running(child);
    let mut greeting = String::new();
    BufReader::new(stdout).read_line(&mut greeting)?;
    let url = greeting.trim().rsplit(" serves MCP at ").next().filter(|url| url.starts_with("http"));
    let url = url.with_context(|| format!("{command:?} did not say where it listens"))?;
    Ok((process, url.to_owned()))
}
