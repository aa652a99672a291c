//! Running git on repositories that are not trusted.
//!
//! Agents can write into the repository's own configuration, and a cloned repository may come with one. So nothing a
//! repository says may start a program here: hooks, file-system monitors and filters of its own configuration are
//! switched off, the environment is the one that was passed in without any `GIT_*` of the caller, and the repository is
//! always named rather than searched for.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};
use tokio::sync::oneshot;

use super::git_output;

/// Longest output of git that is read.
const OUTPUT_BYTES: u64 = 64 * 1024 * 1024;
const COMPLAINT_BYTES: usize = 2000;
/// Time between asking a git to end and killing it.
const END_GRACE: Duration = Duration::from_secs(3);

/// Settings that take precedence over whatever the repository says.
const SETTINGS: [&str; 14] = [
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    "core.safecrlf=false",
    "core.quotePath=false",
    "core.alternateRefsCommand=",
    "commit.gpgSign=false",
    "submodule.recurse=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "protocol.ext.allow=never",
    "advice.addEmbeddedRepo=false",
    "user.name=crewkit",
    "user.email=crewkit@localhost",
];

/// Why git did not do something.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// The program could not be run.
    #[error("git could not be run: {0}")]
    Start(#[source] std::io::Error),
    /// It refused.
    #[error("git {verb} in {}: {complaint}", dir.display())]
    Refused {
        /// The command.
        verb: String,
        /// Where it ran.
        dir: PathBuf,
        /// What it said.
        complaint: String,
    },
    /// It was not run, since the worktree has a file it should not read.
    #[error("git was not run: {} {what}", path.display())]
    Hazard {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// It did not come to an end.
    #[error("git {verb} in {} took longer than {seconds} s (limits.fleet_git_seconds)", dir.display())]
    Slow {
        /// The command.
        verb: String,
        /// Where it ran.
        dir: PathBuf,
        /// The limit.
        seconds: u64,
    },
}

/// The git program and what it is run with.
#[derive(Debug, Clone)]
pub struct Git {
    program: OsString,
    environment: Vec<(OsString, OsString)>,
    longest: Duration,
    settings: Vec<OsString>,
    registers: Arc<Mutex<HashMap<PathBuf, Arc<tokio::sync::Mutex<()>>>>>,
}

/// A repository, or one of its worktrees, by the directories git is told to use.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// Where git runs.
    pub(crate) dir: PathBuf,
    /// The administrative directory; searched for from `dir` when absent.
    pub(crate) git_dir: Option<PathBuf>,
}

impl Place {
    /// The repository `dir` belongs to.
    pub(crate) fn found_from(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), git_dir: None }
    }

    /// The worktree at `dir` that is administered in `git_dir`, whatever `dir/.git` says.
    pub(crate) fn worktree(dir: impl Into<PathBuf>, git_dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), git_dir: Some(git_dir.into()) }
    }
}

impl Git {
    /// Git as `program`, run with `environment` less any `GIT_*`; one command may take `longest`.
    pub fn new(
        program: impl Into<OsString>,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
        longest: Duration,
    ) -> Self {
        let environment = environment
            .into_iter()
            .filter(|(name, _)| !name.to_string_lossy().to_ascii_uppercase().starts_with("GIT_"))
            .collect();
        let (settings, registers) = (Vec::new(), Arc::default());
        Self { program: program.into(), environment, longest, settings, registers }
    }

    /// Held by whoever has git add, look up or remove worktrees of the repository at `common_dir`: git writes the
    /// register of a worktree file by file, and a second git that reads it half written gives up.
    pub(crate) async fn register(&self, common_dir: &Path) -> tokio::sync::OwnedMutexGuard<()> {
        let register = {
            let mut registers = self.registers.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(registers.entry(common_dir.to_owned()).or_default())
        };
        register.lock_owned().await
    }

    /// A command to be completed and run.
    pub(crate) fn at<'a>(&'a self, place: &'a Place) -> Invocation<'a> {
        Invocation {
            git: self,
            place,
            index: None,
            variables: Vec::new(),
            input: None,
            arguments: Vec::new(),
        }
    }

    /// The same git, whose commands may take no longer than `longest`.
    pub(crate) fn within(&self, longest: Duration) -> Self {
        Self { longest: longest.min(self.longest), ..self.clone() }
    }

    /// The same git with more settings, each `name=value`; they count more than all others.
    pub(crate) fn with(&self, settings: impl IntoIterator<Item = String>) -> Self {
        let mut git = self.clone();
        git.settings.extend(settings.into_iter().map(OsString::from));
        git
    }

    /// The same git, which notes nowhere what a branch or HEAD was.
    pub(crate) fn without_reflogs(&self) -> Self {
        let mut git = self.clone();
        git.settings.push("core.logAllRefUpdates=false".into());
        git
    }

    /// The same git with the filters, merge drivers and signing programs switched off that the repository at `place` defines
    /// itself. Those of the user's own
    /// configuration (such as the one for large files) stay as the user has them. Even commands that only look at files
    /// would run filters.
    pub(crate) async fn without_filters(&self, place: &Place) -> Result<Self, GitError> {
        let settings = git_output::settings_against(&self.foreign_settings(place).await?);
        Ok(Self { settings, ..self.clone() })
    }

    /// Settings that name programs which git would run in the repository at `place`, each with where it comes from.
    pub(crate) async fn foreign_settings(&self, place: &Place) -> Result<Vec<u8>, GitError> {
        let named = r"^(filter\.|merge\..*\.driver$|gpg\.|user\.signingkey$)";
        let listed = self.at(place).args(["config", "--show-scope", "-z", "--get-regexp", named]);
        // Exit code 1 means that there are none.
        Ok(listed.lookup().await?.unwrap_or_default())
    }
}

/// One git command under construction.
#[derive(Debug)]
pub(crate) struct Invocation<'a> {
    git: &'a Git,
    place: &'a Place,
    index: Option<PathBuf>,
    variables: Vec<(&'static str, OsString)>,
    input: Option<Vec<u8>>,
    arguments: Vec<OsString>,
}

impl Invocation<'_> {
    /// Adds arguments.
    pub(crate) fn args<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        self
    }

    /// Uses another index file.
    pub(crate) fn index(mut self, path: &Path) -> Self {
        self.index = Some(path.to_owned());
        self
    }

    /// Sets a variable of its environment.
    pub(crate) fn env(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.variables.push((name, value.into()));
        self
    }

    /// Has it fetch nothing: a repository can name programs that would do so.
    pub(crate) fn offline(self) -> Self {
        self.env("GIT_NO_LAZY_FETCH", "1").env("GIT_ALLOW_PROTOCOL", "")
    }

    /// Writes `bytes` to its standard input.
    pub(crate) fn input(mut self, bytes: Vec<u8>) -> Self {
        self.input = Some(bytes);
        self
    }

    fn verb(&self) -> String {
        self.arguments.first().map(|verb| verb.to_string_lossy().into_owned()).unwrap_or_default()
    }

    fn refused(&self, complaint: &str) -> GitError {
        let complaint = complaint.trim();
        let from = complaint.len().saturating_sub(COMPLAINT_BYTES);
        GitError::Refused {
            verb: self.verb(),
            dir: self.place.dir.clone(),
            complaint: complaint[complaint.ceil_char_boundary(from)..].to_owned(),
        }
    }

    /// Runs it and gives its output.
    pub(crate) async fn run(self) -> Result<Vec<u8>, GitError> {
        let done = self.execute().await?;
        if done.code == Some(0) { Ok(done.output) } else { Err(self.refused(&done.complaint)) }
    }

    /// Runs a question that git answers with exit code 1 when there is nothing.
    pub(crate) async fn lookup(self) -> Result<Option<Vec<u8>>, GitError> {
        let done = self.execute().await?;
        match done.code {
            Some(0) => Ok(Some(done.output)),
            Some(1) => Ok(None),
            _ => Err(self.refused(&done.complaint)),
        }
    }

    /// Runs a question that git answers with exit code 0 or 1, and gives the answer.
    pub(crate) async fn answered(self) -> Result<(bool, Vec<u8>), GitError> {
        let done = self.execute().await?;
        match done.code {
            Some(code @ (0 | 1)) => Ok((code == 0, done.output)),
            _ => Err(self.refused(&done.complaint)),
        }
    }

    /// Runs it and gives what it complained about. Exit code 1 is no error: it did what it could.
    pub(crate) async fn told(self) -> Result<String, GitError> {
        let done = self.execute().await?;
        if matches!(done.code, Some(0 | 1)) { Ok(done.complaint) } else { Err(self.refused(&done.complaint)) }
    }

    /// Runs it and gives its output as a line of text.
    pub(crate) async fn line(self) -> Result<String, GitError> {
        Ok(one_line(&self.run().await?))
    }

    /// Runs it, and ends it when its time is over or nobody waits for it any more.
    async fn execute(&self) -> Result<Done, GitError> {
        let child = self.command().spawn().map_err(GitError::Start)?;
        let (waiting, abandoned) = oneshot::channel();
        let running = tokio::spawn(attend(child, self.input.clone(), self.git.longest, abandoned));
        let done = running.await.unwrap_or_else(|_| Err(GitError::Start(std::io::ErrorKind::Other.into())));
        drop(waiting);
        done?.ok_or_else(|| GitError::Slow {
            verb: self.verb(),
            dir: self.place.dir.clone(),
            seconds: self.git.longest.as_secs(),
        })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.git.program);
        command.env_clear().envs(self.git.environment.iter().map(|(name, value)| (name, value)));
        command.env("GIT_TERMINAL_PROMPT", "0").env("GIT_OPTIONAL_LOCKS", "0").env("LC_ALL", "C");
        if let Some(index) = &self.index {
            command.env("GIT_INDEX_FILE", index);
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        if let Some(git_dir) = &self.place.git_dir {
            command.env("GIT_DIR", git_dir).env("GIT_WORK_TREE", &self.place.dir);
        }
        let fixed = SETTINGS.iter().map(OsStr::new);
        for setting in fixed.chain(self.git.settings.iter().map(OsString::as_os_str)) {
            command.arg("-c").arg(setting);
        }
        command.args(&self.arguments).current_dir(&self.place.dir);
        let stdin = if self.input.is_some() { Stdio::piped() } else { Stdio::null() };
        command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        // Ended with its group by `attend`; the drop is for a runtime that goes down.
        crate::sys::own_group(&mut command);
        command
    }
}

struct Done {
    code: Option<i32>,
    output: Vec<u8>,
    complaint: String,
}

/// Waits for `child`, at most for `longest` and until `abandoned`; none when it had to be ended.
///
/// A git that is killed leaves its lock files in the repository for people to clean up, so it is asked to end first.
async fn attend(
    mut child: Child,
    input: Option<Vec<u8>>,
    longest: Duration,
    abandoned: oneshot::Receiver<()>,
) -> Result<Option<Done>, GitError> {
    let leader = child.id();
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let writing = async {
        if let (Some(mut stdin), Some(bytes)) = (stdin, input) {
            // A git that has seen enough closes its end; its exit code tells what came of it.
            let _ = stdin.write_all(&bytes).await;
        }
    };
    let working = async {
        let (output, complaint, ()) = tokio::join!(read_all(stdout), read_all(stderr), writing);
        let status = child.wait().await.map_err(GitError::Start)?;
        let complaint = String::from_utf8_lossy(&complaint).into_owned();
        Ok(Done { code: status.code(), output, complaint })
    };
    tokio::pin!(working);
    tokio::select! {
        biased;
        done = &mut working => return done.map(Some),
        () = tokio::time::sleep(longest) => {}
        _ = abandoned => {}
    }
    crate::sys::terminate_group(leader);
    // What it still prints is read: a write to a closed pipe would end it at once.
    if tokio::time::timeout(END_GRACE, &mut working).await.is_err() {
        // It cannot remove its lock files any more, and git refuses to work while they are there.
        let locks = crate::sys::process::locks_of_group(leader);
        crate::sys::kill_group(leader);
        let _ = tokio::time::timeout(END_GRACE, &mut working).await;
        for lock in locks {
            let _ = std::fs::remove_file(lock);
        }
    }
    crate::sys::kill_group(leader);
    Ok(None)
}

async fn read_all(pipe: Option<impl tokio::io::AsyncRead + Unpin>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        // What cannot be read any more is missing from the answer; the exit code still tells.
        let _ = pipe.take(OUTPUT_BYTES).read_to_end(&mut bytes).await;
    }
    bytes
}

/// Output without the line ending.
pub(crate) fn one_line(output: &[u8]) -> String {
    String::from_utf8_lossy(output).trim_end_matches(['\n', '\r']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repository_cannot_replace_the_users_filters() {
        let listing = b"global\0filter.lfs.clean\ngit-lfs clean -- %f\0\
                        global\0filter.lfs.required\ntrue\0\
                        local\0filter.lfs.clean\n/tmp/evil\0\
                        local\0filter.x.smudge\n/tmp/evil\0\
                        worktree\0filter.x.required\ntrue\0";
        let settings = git_output::settings_against(listing);
        let expected =
            ["filter.lfs.clean=git-lfs clean -- %f", "filter.x.required=false", "filter.x.smudge="];
        assert_eq!(settings, expected.map(OsString::from));
    }

    #[test]
    fn git_settings_of_the_caller_are_left_out() {
        let environment = [("PATH", "/bin"), ("GIT_DIR", "/x"), ("git_ssh", "y")];
        let environment = environment.map(|(name, value)| (name.into(), value.into()));
        let git = Git::new("git", environment, Duration::from_secs(1));
        assert_eq!(git.environment, [("PATH".into(), "/bin".into())]);
    }

    /// A git that holds a lock file until it is asked to end.
    #[cfg(unix)]
    fn slow_git(dir: &Path, longest: Duration) -> Git {
        let script = dir.join("slow-git");
        let text = "#!/bin/sh\ntrap 'rm lock; exit 1' TERM\ntouch lock\nwhile :; do sleep 0.05; done\n";
        std::fs::write(&script, text).unwrap();
        std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let environment = [("PATH".into(), "/usr/bin:/bin".into())];
        Git::new(script, environment, longest)
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_git_that_takes_too_long_is_asked_to_end_and_takes_its_locks_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let git = slow_git(dir.path(), Duration::from_secs(1));
        let place = Place::found_from(dir.path());
        let error = git.at(&place).args(["status"]).run().await.unwrap_err();
        assert!(matches!(error, GitError::Slow { .. }), "{error}");
        assert!(dir.path().join("slow-git").exists() && !dir.path().join("lock").exists());
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn locks_of_a_git_that_had_to_be_killed_are_removed_and_no_others() {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("deaf-git");
        let text = "#!/bin/sh\ntrap '' TERM\nexec 9>index.lock\nwhile :; do sleep 0.05; done\n";
        std::fs::write(&script, text).unwrap();
        std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::write(dir.path().join("HEAD.lock"), "of somebody else").unwrap();
        let environment = [("PATH".into(), "/usr/bin:/bin".into())];
        let git = Git::new(script, environment, Duration::from_millis(300));
        let error = git.at(&Place::found_from(dir.path())).args(["status"]).run().await.unwrap_err();
        assert!(matches!(error, GitError::Slow { .. }), "{error}");
        assert!(!dir.path().join("index.lock").exists() && dir.path().join("HEAD.lock").exists());
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_git_nobody_waits_for_is_asked_to_end() {
        let dir = tempfile::tempdir().unwrap();
        let git = slow_git(dir.path(), Duration::from_hours(1));
        let place = Place::found_from(dir.path());
        let lock = dir.path().join("lock");
        let until = async |there: bool| {
            while lock.exists() != there {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            _ = git.at(&place).args(["status"]).run() => panic!("it never ends"),
            () = until(true) => {}
        }
        tokio::time::timeout(Duration::from_mins(1), until(false)).await.unwrap();
    }
}
