//! Running git: bounded in time and output, never at a terminal's mercy, and with only plain transports.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crewkit_core::Code;

use crate::env::Env;
use crate::error::{PackError, Result};
use crate::source::git::shown_url;

/// Most a git command may print before it counts as broken.
const MOST_OUTPUT: u64 = 64 << 20;

/// How long the output of a git that has ended is waited for: git itself has written all of it by then.
const DRAIN_TIME: Duration = Duration::from_secs(1);

/// Transports that only move data. Helpers such as `ext::` run commands.
const TRANSPORTS: &str = "https:http:ssh:git:file";

/// What git printed.
#[derive(Debug)]
pub(crate) struct Output {
    /// Whether it ended well.
    pub ok: bool,
    /// Its exit code, when it was not ended by a signal.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error, as text.
    pub stderr: String,
}

/// Runs git in `dir` and returns what it printed, whether or not it ended well.
pub(crate) fn run<S: AsRef<OsStr>>(env: &Env, dir: &Path, args: &[S]) -> Result<Output> {
    let args: Vec<OsString> = args.iter().map(|arg| arg.as_ref().to_owned()).collect();
    let mut command = Command::new(&env.git);
    command
        .args(["-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "core.autocrlf=false"])
        .args(&args)
        .current_dir(dir)
        .env("GIT_ALLOW_PROTOCOL", TRANSPORTS)
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    // Set by git itself when it runs hooks; they would redirect every command here to another repository.
    for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR"] {
        command.env_remove(name);
    }
    // A group of its own, so that what it starts can be ended with it.
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let said = || args.first().map(|arg| arg.to_string_lossy().into_owned()).unwrap_or_default();
    let mut child = command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => PackError::new(Code::GitNotFound, "git is not installed or not in PATH")
            .detail("cwd", dir.display().to_string())
            .detail("cwd_posix", dir.display().to_string().replace('\\', "/"))
            .detail("args", args.iter().map(|arg| masked(&arg.to_string_lossy())).collect::<Vec<_>>())
            .hint("install git and make sure it is in PATH"),
        _ => PackError::io("run git in", dir, error),
    })?;
    let (stdout, stderr) = (child.stdout.take().map(Drain::start), child.stderr.take().map(Drain::start));
    let deadline = Instant::now() + Duration::from_secs(env.limits.pack_git_seconds);
    let mut pause = Duration::from_millis(1);
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() >= deadline => {
                end(&mut child);
                let limit = env.limits.pack_git_seconds;
                return Err(PackError::new(
                    Code::GitFailed,
                    format!("git {} took longer than pack_git_seconds ({limit})", said()),
                ));
            }
            Ok(None) if !env.progress.wanted() => {
                end(&mut child);
                env.check_cancelled()?;
            }
            Ok(None) => {
                thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(20));
            }
            Err(error) => return Err(PackError::io("wait for git in", dir, error)),
        }
    };
    let until = Instant::now() + DRAIN_TIME;
    let read = |drain: Option<Drain>| drain.map(|drain| drain.finish(until)).unwrap_or_default();
    Ok(Output {
        ok: status.success(),
        code: status.code(),
        stdout: read(stdout),
        stderr: masked(String::from_utf8_lossy(&read(stderr)).trim()),
    })
}

/// Ends git and whatever it started.
fn end(child: &mut Child) {
    #[cfg(unix)]
    if let Some(group) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// Runs git and makes an error of a bad end; `doing` says what for.
pub(crate) fn require<S: AsRef<OsStr>>(env: &Env, dir: &Path, doing: &str, args: &[S]) -> Result<Vec<u8>> {
    let output = run(env, dir, args)?;
    if output.ok {
        return Ok(output.stdout);
    }
    let said = if output.stderr.is_empty() { "git gave no reason".to_owned() } else { output.stderr };
    Err(PackError::new(Code::GitFailed, format!("{doing}: {said}")).detail("stderr", said))
}

/// Reads a pipe aside. Something that git started and left behind may hold it open for as long as it likes.
struct Drain {
    bytes: Arc<Mutex<Vec<u8>>>,
    ended: Receiver<()>,
}

impl Drain {
    fn start(pipe: impl Read + Send + 'static) -> Self {
        let (bytes, (end, ended)) = (Arc::new(Mutex::new(Vec::new())), mpsc::channel());
        let read = Arc::clone(&bytes);
        thread::spawn(move || {
            let (mut pipe, mut buffer) = (pipe.take(MOST_OUTPUT), vec![0; 64 * 1024]);
            loop {
                match pipe.read(&mut buffer) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Ok(0) | Err(_) => break,
                    Ok(count) => {
                        read.lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .extend_from_slice(&buffer[..count]);
                    }
                }
            }
            let _ = end.send(());
        });
        Self { bytes, ended }
    }

    /// What was read by the end of the pipe, or `until` then.
    fn finish(self, until: Instant) -> Vec<u8> {
        let _ = self.ended.recv_timeout(until.saturating_duration_since(Instant::now()));
        std::mem::take(&mut self.bytes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Text in which passwords of addresses are hidden.
fn masked(text: &str) -> String {
    text.split_inclusive(char::is_whitespace)
        .map(|word| if word.contains("://") { shown_url(word) } else { word.to_owned() })
        .collect()
}
