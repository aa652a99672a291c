//! Collects metadata in a workspace: runs the metadata tasks of its Taskfile, or asks git when there is none.
//!
//! With `task` installed, one process evaluates all fields in parallel, so that variables they share are computed
//! once. Without it, plain commands are run by a shell and the others say what they need.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use crewkit_core::Limits;
use futures_util::future::join_all;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

use super::prefixed::{Outcome, outcomes};
use super::taskfile::{self, MetaTask};
use super::{Field, Metadata, NO_DESCRIPTION, typed_value};
use crate::sys;

/// Deepest chain of Taskfiles that include one another.
const DEEPEST_INCLUDE: usize = 4;

/// Collects the metadata of one directory.
#[derive(Debug, Clone)]
pub struct Runner {
    /// Where the workspace is.
    pub directory: PathBuf,
    /// The Taskfile, when it is not one of the usual names in `directory`.
    pub taskfile: Option<PathBuf>,
    /// The `task` program, when it is installed.
    pub task_program: Option<PathBuf>,
    /// Limits on time and size.
    pub limits: Limits,
}

/// What a process printed and how it ended.
#[derive(Debug)]
struct Finished {
    stdout: String,
    stderr: String,
    success: bool,
    ending: String,
}

impl Runner {
    /// The metadata right now; whatever goes wrong costs the field it concerns.
    pub async fn collect(&self) -> Metadata {
        let metadata = match self.find_taskfile().await {
            Some(path) => self.collect_from(&path).await,
            None => self.git_fields().await,
        };
        metadata.cleaned(&self.limits)
    }

    async fn find_taskfile(&self) -> Option<PathBuf> {
        if let Some(path) = &self.taskfile {
            return Some(path.clone());
        }
        for name in taskfile::FILE_NAMES {
            let path = self.directory.join(name);
            if tokio::fs::try_exists(&path).await.unwrap_or(false) {
                return Some(path);
            }
        }
        None
    }

    async fn collect_from(&self, path: &Path) -> Metadata {
        let tasks = match read_tasks(path).await {
            Ok(tasks) => tasks,
            Err(reason) => {
                tracing::warn!(path = %path.display(), reason, "no metadata");
                return Metadata::default();
            }
        };
        let directory = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(&self.directory);
        let outcomes = match &self.task_program {
            Some(program) => self.run_with_task(program, path, directory, &tasks).await,
            None => join_all(tasks.iter().map(|task| self.run_plain(directory, task))).await,
        };
        Metadata {
            fields: tasks.into_iter().zip(outcomes).map(|(task, outcome)| field(task, outcome)).collect(),
        }
    }

    async fn run_with_task(
        &self,
        program: &Path,
        taskfile: &Path,
        directory: &Path,
        tasks: &[MetaTask],
    ) -> Vec<Outcome> {
        let shared: Vec<&str> =
            tasks.iter().filter(|task| !task.alone).map(|task| task.name.as_str()).collect();
        let mut together = VecDeque::new();
        if !shared.is_empty() {
            let mut command = task_command(program, taskfile, directory);
            command.args(["--output", "prefixed", "--parallel"]).args(&shared);
            together = match self.finish(command).await {
                Ok(done) => outcomes(&shared, &done.stdout, &done.stderr, done.success).into(),
                Err(reason) => shared.iter().map(|_| Outcome::Error(reason.clone())).collect(),
            };
        }
        // What has a prefix of its own, or may have been dropped when another field failed, is run alone.
        let alone = tasks.iter().map(|task| {
            let known = if task.alone { None } else { together.pop_front() };
            async move {
                match known {
                    Some(outcome) if outcome != Outcome::Unclear => outcome,
                    _ => {
                        let mut command = task_command(program, taskfile, directory);
                        command.arg(&task.name);
                        self.outcome_of(command).await
                    }
                }
            }
        });
        join_all(alone.collect::<Vec<_>>()).await
    }

    async fn run_plain(&self, directory: &Path, task: &MetaTask) -> Outcome {
        match &task.plain {
            Err(reason) => Outcome::Error(format!("{reason}, which needs `task`; it is not installed here")),
            Ok(commands) => self.outcome_of(shell_command(directory, commands)).await,
        }
    }

    async fn outcome_of(&self, command: Command) -> Outcome {
        match self.finish(command).await {
            Ok(done) if done.success => Outcome::Value(typed_value(&done.stdout)),
            Ok(done) if done.stderr.trim().is_empty() => Outcome::Error(done.ending),
            Ok(done) => Outcome::Error(done.stderr.trim().to_owned()),
            Err(reason) => Outcome::Error(reason),
        }
    }

    /// Branch, commit and state of the working tree.
    async fn git_fields(&self) -> Metadata {
        let git = |arguments: &'static [&'static str]| {
            let mut command = Command::new("git");
            command.args(arguments).current_dir(&self.directory).env("GIT_OPTIONAL_LOCKS", "0");
            self.finish(command)
        };
        let (branch, sha, changes) = tokio::join!(
            git(&["branch", "--show-current"]),
            git(&["rev-parse", "HEAD"]),
            git(&["status", "--porcelain"])
        );
        let text = |done: Result<Finished, String>| {
            done.ok().filter(|done| done.success).map(|done| done.stdout.trim().to_owned())
        };
        git_metadata(
            text(branch).as_deref(),
            text(sha).as_deref(),
            text(changes).map(|list| !list.is_empty()),
        )
    }

    /// Runs a process to its end, or to the end of its time.
    async fn finish(&self, mut command: Command) -> Result<Finished, String> {
        let time = Duration::from_millis(self.limits.fleet_metadata_field_ms);
        let most = self.limits.fleet_metadata_bytes;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        sys::own_group(&mut command);
        let mut child = command.spawn().map_err(|error| format!("cannot be started: {error}"))?;
        let leader = child.id();
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let ended = tokio::time::timeout(time, async {
            // The pipes close when the process and its children are done with them.
            let (stdout, stderr) = tokio::join!(read_some(stdout, most), read_some(stderr, most));
            (stdout, stderr, child.wait().await)
        })
        .await;
        sys::kill_group(leader);
        match ended {
            Err(_) => Err(format!("took longer than {} ms and was ended", time.as_millis())),
            Ok((_, _, Err(error))) => Err(format!("cannot be waited for: {error}")),
            Ok((stdout, stderr, Ok(status))) => {
                Ok(Finished { stdout, stderr, success: status.success(), ending: status.to_string() })
            }
        }
    }
}

/// The fields that need nothing but git.
pub fn git_metadata(branch: Option<&str>, sha: Option<&str>, dirty: Option<bool>) -> Metadata {
    let field = |name: &str, value: Value, description: &str, include_in_list| Field {
        name: name.to_owned(),
        value,
        error: None,
        description: description.to_owned(),
        include_in_list,
    };
    let mut fields = Vec::new();
    if let Some(branch) = branch.filter(|branch| !branch.is_empty()) {
        fields.push(field("git_branch", branch.into(), "The branch that is checked out", true));
    }
    if let Some(sha) = sha.filter(|sha| !sha.is_empty()) {
        fields.push(field("git_sha", sha.into(), "The commit that is checked out", false));
    }
    if let Some(dirty) = dirty {
        fields.push(field(
            "git_dirty",
            dirty.into(),
            "Whether there are changes that are not committed",
            false,
        ));
    }
    Metadata { fields }
}

/// The field a task and its outcome make.
pub fn field(task: MetaTask, outcome: Outcome) -> Field {
    let (value, error) = match outcome {
        Outcome::Value(value) => (value, None),
        Outcome::Error(error) => (Value::Null, Some(error)),
        Outcome::Unclear => (Value::Null, Some("it did not run".to_owned())),
    };
    let (include_in_list, problem) = match task.include_in_list {
        Ok(include) => (include, None),
        Err(problem) => (false, Some(problem)),
    };
    Field {
        name: task.name,
        value,
        error: error.or(problem),
        description: task.description.unwrap_or_else(|| NO_DESCRIPTION.to_owned()),
        include_in_list,
    }
}

fn task_command(program: &Path, taskfile: &Path, directory: &Path) -> Command {
    let mut command = Command::new(program);
    command.arg("--silent").arg("--taskfile").arg(taskfile).current_dir(directory).env("NO_COLOR", "1");
    command
}

fn shell_command(directory: &Path, commands: &[String]) -> Command {
    let mut command = Command::new("sh");
    command.arg("-ec").arg(commands.join("\n")).current_dir(directory);
    command
}

/// Reads the metadata tasks of a Taskfile and of those it includes, which are named `namespace:task`.
async fn read_tasks(path: &Path) -> Result<Vec<MetaTask>, String> {
    let mut found = Vec::new();
    let mut waiting = VecDeque::from([(String::new(), path.to_owned(), 0)]);
    while let Some((namespace, path, depth)) = waiting.pop_front() {
        let text = match read_taskfile(&path).await {
            Ok(text) => text,
            Err(reason) if depth == 0 => return Err(reason),
            // `task` itself says what is wrong with an include; the other fields are not touched by it.
            Err(_) => continue,
        };
        let tasks = match taskfile::meta_tasks(&text) {
            Ok(tasks) => tasks,
            Err(error) if depth == 0 => return Err(error.to_string()),
            Err(_) => continue,
        };
        found.extend(
            tasks.into_iter().map(|task| MetaTask { name: format!("{namespace}{}", task.name), ..task }),
        );
        if depth < DEEPEST_INCLUDE {
            for include in taskfile::includes(&text) {
                let target = path.parent().unwrap_or(Path::new("")).join(&include.path);
                waiting.push_back((format!("{namespace}{}:", include.namespace), target, depth + 1));
            }
        }
    }
    Ok(found)
}

async fn read_taskfile(path: &Path) -> Result<String, String> {
    let path = if tokio::fs::metadata(path).await.is_ok_and(|meta| meta.is_dir()) {
        path.join(taskfile::FILE_NAMES[0])
    } else {
        path.to_owned()
    };
    let file = tokio::fs::File::open(&path).await.map_err(|error| error.to_string())?;
    let most = u64::try_from(taskfile::LARGEST_FILE + 1).unwrap_or(u64::MAX);
    let mut text = String::new();
    file.take(most).read_to_string(&mut text).await.map_err(|error| error.to_string())?;
    Ok(text)
}

async fn read_some(pipe: Option<impl AsyncRead + Unpin>, most: u64) -> String {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        // What was read before an error is what there is. The rest is drained so that the writer can end.
        let _ = (&mut pipe).take(most).read_to_end(&mut bytes).await;
        let _ = tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
