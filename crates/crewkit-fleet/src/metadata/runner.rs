//! Collects metadata in a workspace: runs the metadata tasks of its Taskfile, or asks git when there is none.
//!
//! Each field is evaluated by a process of its own, so that one that is slow or fails costs no other. Without `task`,
//! plain commands are run by a shell and the others say what they need. What the commands may do is for
//! [`TaskfileCommands`] to say.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use crewkit_core::Limits;
use futures_util::StreamExt as _;
use futures_util::stream;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

use super::sandbox::{ScratchDir, TaskfileCommands};
use super::taskfile::{self, MetaTask};
use super::{Field, GitFacts, Metadata, NO_DESCRIPTION, typed_value};
use crate::sys;

/// Deepest chain of Taskfiles that include one another, and most of them.
const DEEPEST_INCLUDE: usize = 4;
const MOST_FILES: usize = 32;

/// Processes of one workspace at once.
const AT_ONCE: usize = 8;

/// Collects the metadata of one directory.
#[derive(Debug, Clone)]
pub struct Runner {
    /// Where the workspace is.
    pub directory: PathBuf,
    /// The Taskfile, when it is not one of the usual names in `directory`.
    pub taskfile: Option<PathBuf>,
    /// The `task` program, when it is installed.
    pub task_program: Option<PathBuf>,
    /// What the commands may do.
    pub commands: TaskfileCommands,
    /// Limits on time and size.
    pub limits: Limits,
}

/// What a workspace's Taskfile says.
#[derive(Debug)]
pub(crate) enum Told {
    /// These fields.
    Fields(Metadata),
    /// Nothing: there is none.
    NoTaskfile,
    /// Its tasks are not run, for this reason.
    NotRun(String),
}

impl Told {
    /// The fields, with what git says beside them.
    pub(crate) fn metadata(self, git: Option<GitFacts>) -> Metadata {
        let metadata = match self {
            Self::Fields(metadata) => metadata,
            Self::NoTaskfile => Metadata::default(),
            Self::NotRun(reason) => Metadata::default().with_taskfile_not_run(reason),
        };
        Metadata { git, ..metadata }
    }
}

/// What one field came to.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// It has this value.
    Value(Value),
    /// It has none, for this reason.
    Error(String),
}

/// Where and how the commands of one collection run.
#[derive(Debug)]
struct Ground<'a> {
    directory: &'a Path,
    scratch: Option<&'a ScratchDir>,
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
        let (told, git) = tokio::join!(self.taskfile_fields(), self.git_facts());
        told.metadata(Some(git)).cleaned(&self.limits)
    }

    /// What the Taskfile says. One that cannot be read says nothing.
    pub(crate) async fn taskfile_fields(&self) -> Told {
        let (root, names) = self.taskfile_names();
        let read = tokio::task::spawn_blocking(move || read_tasks(&root, &names)).await;
        let (name, tasks) = match read {
            Ok(Ok(Some(found))) => found,
            Ok(Ok(None)) => return Told::NoTaskfile,
            Ok(Err(reason)) => {
                tracing::warn!(directory = %self.directory.display(), reason, "the Taskfile cannot be read");
                return Told::Fields(Metadata::default());
            }
            Err(_) => return Told::Fields(Metadata::default()),
        };
        let scratch = match &self.commands {
            TaskfileCommands::Off(reason) if !tasks.is_empty() => return Told::NotRun(reason.clone()),
            TaskfileCommands::Off(_) | TaskfileCommands::Plain => None,
            TaskfileCommands::Confined(sandbox) => match sandbox.scratch_dir() {
                Ok(scratch) => Some(scratch),
                Err(error) => {
                    let place = sandbox.scratch.display();
                    return Told::NotRun(format!("no directory for temporary files in {place}: {error}"));
                }
            },
        };
        let path = self.directory.join(name);
        let directory = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(&self.directory);
        let ground = Ground { directory, scratch: scratch.as_ref() };
        let until = tokio::time::Instant::now() + self.time();
        let late = || Outcome::Error(format!("took longer than {} ms", self.time().as_millis()));
        let run = async |task| {
            let run = tokio::time::timeout_at(until, self.run(&path, &ground, task)).await;
            run.unwrap_or_else(|_| late())
        };
        let outcomes = in_turn(tasks.iter().map(run)).await;
        let fields = tasks.into_iter().zip(outcomes).map(|(task, outcome)| field(task, outcome)).collect();
        Told::Fields(Metadata { fields, ..Metadata::default() })
    }

    /// The directory Taskfiles must be in, and the names to look for there.
    fn taskfile_names(&self) -> (PathBuf, Vec<PathBuf>) {
        let Some(path) = &self.taskfile else {
            return (self.directory.clone(), taskfile::FILE_NAMES.map(PathBuf::from).into());
        };
        let path = self.directory.join(path);
        match (path.strip_prefix(&self.directory), path.parent(), path.file_name()) {
            (Ok(below), _, _) => (self.directory.clone(), vec![below.to_owned()]),
            // One that the person who started us has somewhere else.
            (Err(_), Some(parent), Some(name)) => (parent.to_owned(), vec![name.into()]),
            _ => (self.directory.clone(), vec![path]),
        }
    }

    async fn run(&self, taskfile: &Path, ground: &Ground<'_>, task: &MetaTask) -> Outcome {
        match &self.task_program {
            Some(program) => {
                let arguments = task_arguments(taskfile, [&task.name]);
                self.outcome_of(self.command(ground, program.as_os_str(), &arguments)).await
            }
            None => self.run_plain(ground, task).await,
        }
    }

    /// Time for all fields. It ends before those who ask give up, so that what is slow does not hide the others.
    fn time(&self) -> Duration {
        Duration::from_millis(self.limits.fleet_metadata_agent_ms / 6 * 5)
    }

    async fn run_plain(&self, ground: &Ground<'_>, task: &MetaTask) -> Outcome {
        match &task.plain {
            Err(reason) => Outcome::Error(format!("{reason}, which needs `task`; it is not installed here")),
            Ok(commands) => {
                let arguments = ["-ec".into(), commands.join("\n").into()];
                self.outcome_of(self.command(ground, "sh".as_ref(), &arguments)).await
            }
        }
    }

    /// `program` with `arguments`, allowed what [`Self::commands`] says.
    fn command(&self, ground: &Ground<'_>, program: &OsStr, arguments: &[OsString]) -> Command {
        let mut command = match (&self.commands, ground.scratch) {
            (TaskfileCommands::Confined(sandbox), Some(scratch)) => {
                sandbox.command(&self.directory, scratch.path(), program, arguments)
            }
            _ => {
                let mut command = Command::new(program);
                command.args(arguments);
                command
            }
        };
        command.current_dir(ground.directory).env("NO_COLOR", "1");
        command
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
    async fn git_facts(&self) -> GitFacts {
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
        GitFacts {
            branch: text(branch).filter(|branch| !branch.is_empty()),
            sha: text(sha).filter(|sha| !sha.is_empty()),
            dirty: text(changes).map(|list| !list.is_empty()),
        }
    }

    /// Runs a process to its end, or to the end of its time.
    async fn finish(&self, mut command: Command) -> Result<Finished, String> {
        let time = Duration::from_millis(self.limits.fleet_metadata_field_ms).min(self.time());
        let most = self.limits.fleet_metadata_bytes;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let is_supervised = matches!(self.commands, TaskfileCommands::Confined(_));
        if !is_supervised {
            // The helper that confines leads a session of its own and ends what is below it.
            sys::own_group(&mut command);
        }
        let mut child = command.spawn().map_err(|error| format!("cannot be started: {error}"))?;
        let leader = child.id();
        let guard = sys::ProcessGuard::new(leader);
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let ended = tokio::time::timeout(time, async {
            // The pipes close when the process and its children are done with them.
            let (stdout, stderr) = tokio::join!(read_some(stdout, most), read_some(stderr, most));
            (stdout, stderr, child.wait().await)
        })
        .await;
        if !is_supervised {
            sys::kill_group(leader);
        }
        if ended.is_ok() {
            guard.ended();
        }
        match ended {
            Err(_) => Err(format!("took longer than {} ms and was ended", time.as_millis())),
            Ok((_, _, Err(error))) => Err(format!("cannot be waited for: {error}")),
            Ok((stdout, stderr, Ok(status))) => {
                Ok(Finished { stdout, stderr, success: status.success(), ending: status.to_string() })
            }
        }
    }
}

/// The field a task and its outcome make.
pub fn field(task: MetaTask, outcome: Outcome) -> Field {
    let (value, error) = match outcome {
        Outcome::Value(value) => (value, None),
        Outcome::Error(error) => (Value::Null, Some(error)),
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

fn task_arguments<A: AsRef<str>>(taskfile: &Path, more: impl IntoIterator<Item = A>) -> Vec<OsString> {
    let fixed = ["--silent".into(), "--taskfile".into(), taskfile.into()];
    fixed.into_iter().chain(more.into_iter().map(|argument| argument.as_ref().into())).collect()
}

async fn in_turn<T>(work: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    stream::iter(work.collect::<Vec<_>>()).buffered(AT_ONCE).collect().await
}

/// The first of `names` below `root` that is there, with its metadata tasks and those of the files it includes, which are
/// named `namespace:task`. Nothing outside of `root` is read. Blocks.
fn read_tasks(root: &Path, names: &[PathBuf]) -> Result<Option<(PathBuf, Vec<MetaTask>)>, String> {
    let mut first = None;
    for name in names {
        match read_taskfile(root, name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(format!("{}: {error}", name.display())),
            Ok((name, text)) => {
                first = Some((name, text));
                break;
            }
        }
    }
    let Some((name, text)) = first else { return Ok(None) };
    let mut found = taskfile::meta_tasks(&text).map_err(|error| error.to_string())?;
    let mut waiting: VecDeque<_> = includes(&name, "", &text, 1).collect();
    let mut files = 1;
    while let Some((namespace, path, depth)) = waiting.pop_front() {
        if files >= MOST_FILES || found.len() > taskfile::MOST_TASKS {
            break;
        }
        files += 1;
        // `task` itself says what is wrong with an include; the other fields are not touched by it.
        let Ok((path, text)) = read_taskfile(root, &path) else { continue };
        let Ok(tasks) = taskfile::meta_tasks(&text) else { continue };
        found.extend(
            tasks.into_iter().map(|task| MetaTask { name: format!("{namespace}{}", task.name), ..task }),
        );
        if depth < DEEPEST_INCLUDE {
            waiting.extend(includes(&path, &namespace, &text, depth + 1));
        }
    }
    if found.len() > taskfile::MOST_TASKS {
        tracing::warn!(root = %root.display(), "only the first {} metadata tasks are run", taskfile::MOST_TASKS);
        found.truncate(taskfile::MOST_TASKS);
    }
    Ok(Some((name, found)))
}

/// What the Taskfile at `path` includes: namespace, place and depth.
fn includes(
    path: &Path,
    namespace: &str,
    text: &str,
    depth: usize,
) -> impl Iterator<Item = (String, PathBuf, usize)> {
    taskfile::includes(text).into_iter().map(move |include| {
        let target = path.parent().unwrap_or(Path::new("")).join(&include.path);
        (format!("{namespace}{}:", include.namespace), target, depth)
    })
}

/// The Taskfile `name` below `root`, or the one in the directory of that name; and where it is.
fn read_taskfile(root: &Path, name: &Path) -> io::Result<(PathBuf, String)> {
    let most = taskfile::LARGEST_FILE as u64;
    let (name, bytes) = match sys::beneath::read(root, name, most) {
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
            let name = name.join(taskfile::FILE_NAMES[0]);
            let bytes = sys::beneath::read(root, &name, most)?;
            (name, bytes)
        }
        read => (name.to_owned(), read?),
    };
    let text = String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok((name, text))
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
