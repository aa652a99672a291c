//! Running git: bounded in time and output, never at a terminal's mercy, and with only plain transports.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crewkit_core::Code;

use crate::env::Env;
use crate::error::{PackError, Result};
use crate::source::git::shown_url;

/// Most a git command may print before it counts as broken.
const MOST_OUTPUT: u64 = 64 << 20;

/// Transports that only move data. Helpers such as `ext::` run commands.
const TRANSPORTS: &str = "https:http:ssh:git:file";

/// What git printed.
#[derive(Debug)]
pub struct Output {
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
pub fn run<S: AsRef<OsStr>>(env: &Env, dir: &Path, args: &[S]) -> Result<Output> {
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
    let said = || args.first().map(|arg| arg.to_string_lossy().into_owned()).unwrap_or_default();
    let mut child = command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => PackError::new(Code::GitNotFound, "git is not installed or not in PATH")
            .detail("cwd", dir.display().to_string())
            .detail("cwd_posix", dir.display().to_string().replace('\\', "/"))
            .detail("args", args.iter().map(|arg| masked(&arg.to_string_lossy())).collect::<Vec<_>>())
            .hint("install git and make sure it is in PATH"),
        _ => PackError::io("run git in", dir, error),
    })?;
    let stdout = child.stdout.take().map(|pipe| thread::spawn(|| drain(pipe)));
    let stderr = child.stderr.take().map(|pipe| thread::spawn(|| drain(pipe)));
    let deadline = Instant::now() + Duration::from_secs(env.limits.pack_git_seconds);
    let mut pause = Duration::from_millis(1);
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() >= deadline => {
                let _ = child.kill();
                let _ = child.wait();
                let limit = env.limits.pack_git_seconds;
                return Err(PackError::new(
                    Code::GitFailed,
                    format!("git {} took longer than pack_git_seconds ({limit})", said()),
                ));
            }
            Ok(None) if !env.progress.wanted() => {
                let _ = child.kill();
                let _ = child.wait();
                env.go_on()?;
            }
            Ok(None) => {
                thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(20));
            }
            Err(error) => return Err(PackError::io("wait for git in", dir, error)),
        }
    };
    let join = |reader: Option<thread::JoinHandle<Vec<u8>>>| {
        reader.and_then(|reader| reader.join().ok()).unwrap_or_default()
    };
    Ok(Output {
        ok: status.success(),
        code: status.code(),
        stdout: join(stdout),
        stderr: masked(String::from_utf8_lossy(&join(stderr)).trim()),
    })
}

/// Runs git and makes an error of a bad end; `doing` says what for.
pub fn require<S: AsRef<OsStr>>(env: &Env, dir: &Path, doing: &str, args: &[S]) -> Result<Vec<u8>> {
    let output = run(env, dir, args)?;
    if output.ok {
        return Ok(output.stdout);
    }
    let said = if output.stderr.is_empty() { "git gave no reason".to_owned() } else { output.stderr };
    Err(PackError::new(Code::GitFailed, format!("{doing}: {said}")).detail("stderr", said))
}

fn drain(pipe: impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = pipe.take(MOST_OUTPUT).read_to_end(&mut bytes);
    bytes
}

/// Text in which passwords of addresses are hidden.
fn masked(text: &str) -> String {
    text.split_inclusive(char::is_whitespace)
        .map(|word| if word.contains("://") { shown_url(word) } else { word.to_owned() })
        .collect()
}
