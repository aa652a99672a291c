//! Reads which tasks of a Taskfile are metadata: those with a `meta` map.
//!
//! A bad `meta` costs its own field only. Commands are kept for the case that `task` is not installed, when they are
//! plain enough to be run by a shell.

use serde_json::{Map, Value};

/// Names a Taskfile may have, in the order `task` looks for them.
pub const FILE_NAMES: [&str; 8] = [
    "Taskfile.yml",
    "taskfile.yml",
    "Taskfile.yaml",
    "taskfile.yaml",
    "Taskfile.dist.yml",
    "taskfile.dist.yml",
    "Taskfile.dist.yaml",
    "taskfile.dist.yaml",
];

/// Largest Taskfile that is read.
pub const LARGEST_FILE: usize = 1024 * 1024;

/// Most metadata tasks of one workspace; further ones are left out.
pub const MOST_TASKS: usize = 100;

/// Most YAML events, so that aliases cannot multiply without end.
const MOST_EVENTS: usize = 50_000;

/// Deepest nesting of YAML, and most aliases; those of Taskfiles written by people are far from it.
const DEEPEST: usize = 64;
const MOST_ALIASES: usize = 1_000;

/// A task that is a metadata field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetaTask {
    /// Name of the task and of the field.
    pub name: String,
    /// What the value means.
    pub description: Option<String>,
    /// Whether the value belongs in lists, or what is wrong with `meta`.
    pub include_in_list: Result<bool, String>,
    /// Commands a shell can run, or why only `task` can.
    pub plain: Result<Vec<String>, String>,
}

/// Why a Taskfile could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TaskfileError {
    /// Larger than [`LARGEST_FILE`].
    #[error("the Taskfile is larger than {LARGEST_FILE} bytes")]
    TooLarge,
    /// Not YAML, or not the YAML of a Taskfile.
    #[error("the Taskfile cannot be read: {0}")]
    Malformed(String),
}

/// The metadata tasks in `text`, in its order.
pub fn meta_tasks(text: &str) -> Result<Vec<MetaTask>, TaskfileError> {
    if text.len() > LARGEST_FILE {
        return Err(TaskfileError::TooLarge);
    }
    let root = parse(text)?;
    let tasks = match root.get("tasks") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Object(tasks)) => tasks,
        Some(_) => return Err(TaskfileError::Malformed("`tasks` is no map".to_owned())),
    };
    let shared_environment =
        ["env", "dotenv", "set", "shopt"].into_iter().find(|key| root.contains_key(*key));
    Ok(tasks.iter().filter_map(|(name, task)| meta_task(name, task, shared_environment)).collect())
}

fn parse(text: &str) -> Result<Map<String, Value>, TaskfileError> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: MOST_EVENTS,
            max_nodes: MOST_EVENTS,
            max_depth: DEEPEST,
            max_aliases: MOST_ALIASES,
            max_total_scalar_bytes: LARGEST_FILE,
        },
    };
    serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| TaskfileError::Malformed(first_line(&error.to_string())))
}

fn meta_task(name: &str, task: &Value, shared_environment: Option<&str>) -> Option<MetaTask> {
    let task = task.as_object()?;
    let meta = task.get("meta")?;
    Some(MetaTask {
        name: name.to_owned(),
        description: task.get("desc").and_then(Value::as_str).map(str::to_owned),
        include_in_list: include_in_list(meta),
        plain: match shared_environment {
            Some(key) => Err(format!("the Taskfile sets `{key}`")),
            None => plain_commands(task),
        },
    })
}

fn include_in_list(meta: &Value) -> Result<bool, String> {
    match meta {
        Value::Object(fields) => match fields.get("include_in_list") {
            None => Ok(false),
            Some(Value::Bool(include)) => Ok(*include),
            Some(other) => Err(format!("`meta.include_in_list` is {other}, not true or false")),
        },
        Value::Null => Ok(false),
        _ => Err("`meta` is no map".to_owned()),
    }
}

/// Commands that mean the same to a shell as to `task`.
fn plain_commands(task: &Map<String, Value>) -> Result<Vec<String>, String> {
    const HARMLESS: [&str; 8] = ["aliases", "cmd", "cmds", "desc", "meta", "silent", "summary", "label"];
    if let Some(key) = task.keys().find(|key| !HARMLESS.contains(&key.as_str())) {
        return Err(format!("the task uses `{key}`"));
    }
    let commands = match (task.get("cmds"), task.get("cmd")) {
        (Some(Value::Array(commands)), _) => {
            commands.iter().map(plain_command).collect::<Result<Vec<_>, _>>()?
        }
        (None, Some(command)) => vec![plain_command(command)?],
        _ => return Err("the task has no `cmds`".to_owned()),
    };
    Ok(commands)
}

fn plain_command(command: &Value) -> Result<String, String> {
    match command {
        Value::String(text) if text.contains("{{") => Err("a command uses a template".to_owned()),
        Value::String(text) => Ok(text.clone()),
        Value::Object(fields) if fields.keys().all(|key| key == "cmd" || key == "silent") => {
            fields.get("cmd").map_or_else(|| Err("a command has no `cmd`".to_owned()), plain_command)
        }
        _ => Err("a command is more than a line of shell".to_owned()),
    }
}

/// Another Taskfile whose tasks appear under a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Include {
    /// What its task names begin with.
    pub namespace: String,
    /// File or directory, relative to the including file.
    pub path: String,
}

/// The files a Taskfile includes; remote, templated and flattened ones are left to `task`.
pub fn includes(text: &str) -> Vec<Include> {
    let root = parse(text).unwrap_or_default();
    let Some(Value::Object(includes)) = root.get("includes") else {
        return Vec::new();
    };
    let local = |path: &str| !path.contains("{{") && !path.contains("://");
    includes
        .iter()
        .filter_map(|(namespace, include)| {
            let path = match include {
                Value::String(path) => path.as_str(),
                Value::Object(fields) if fields.get("flatten") != Some(&Value::Bool(true)) => {
                    fields.get("taskfile")?.as_str()?
                }
                _ => return None,
            };
            local(path).then(|| Include { namespace: namespace.clone(), path: path.to_owned() })
        })
        .collect()
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    const EXAMPLE: &str = r#"
version: "3"
vars:
  info: {sh: "gh pr view"}
tasks:
  build:
    cmds: [make]
  branch:
    desc: The branch
    meta: {include_in_list: true}
    cmds:
      - git branch --show-current
  number:
    meta: {include_in_list: false}
    cmds: ["echo {{.info}}"]
  broken:
    desc: Broken
    meta: {include_in_list: "yes"}
    cmd: "true"
  deep:
    meta: {}
    prefix: x
    deps: [build]
    cmds: [{cmd: "echo x", silent: true}]
  short: echo no meta
"#;

    #[test]
    fn tasks_with_meta_are_fields_and_a_bad_one_spoils_only_itself() {
        let tasks = meta_tasks(EXAMPLE).unwrap();
        let names: Vec<_> = tasks.iter().map(|task| task.name.as_str()).collect();
        assert_eq!(names, ["branch", "number", "broken", "deep"]);
        assert_eq!(tasks[0].plain, Ok(vec!["git branch --show-current".to_owned()]));
        assert_eq!(
            (tasks[0].description.as_deref(), &tasks[0].include_in_list),
            (Some("The branch"), &Ok(true))
        );
        assert_eq!(tasks[1].plain, Err("a command uses a template".to_owned()));
        assert!(tasks[2].include_in_list.is_err());
        assert_eq!(tasks[3].include_in_list, Ok(false));
        assert!(tasks[3].plain.is_err());
    }

    #[test]
    fn what_is_no_taskfile_says_so() {
        assert_eq!(meta_tasks("version: '3'\n"), Ok(vec![]));
        assert_eq!(meta_tasks("tasks:\n"), Ok(vec![]));
        for text in ["- a\n", "tasks: [a]", "tasks: {a: [", "\u{0}"] {
            assert!(meta_tasks(text).is_err(), "{text:?}");
        }
        assert_eq!(meta_tasks(&"#".repeat(LARGEST_FILE + 1)), Err(TaskfileError::TooLarge));
    }

    #[test]
    fn includes_that_can_be_followed_are_found() {
        let text = "includes:\n  docs: ./docs/Taskfile.yml\n  lib: {taskfile: lib, dir: lib}\n  \
                    far: https://example.com/T.yml\n  flat: {taskfile: x, flatten: true}\n";
        let names: Vec<_> = includes(text).into_iter().map(|include| include.namespace).collect();
        assert_eq!(names, ["docs", "lib"]);
        assert_eq!(includes("tasks: {}"), []);
    }

    #[test]
    fn aliases_that_explode_are_refused() {
        let mut bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n".to_owned();
        for (level, before) in ('b'..='k').zip('a'..) {
            let _ =
                writeln!(bomb, "{level}: &{level} [*{before}, *{before}, *{before}, *{before}, *{before}]");
        }
        assert!(meta_tasks(&bomb).is_err());
    }

    #[test]
    fn texts_that_multiply_and_endless_depth_are_refused() {
        let long = "x".repeat(LARGEST_FILE / 2);
        let copies = format!("a: &a {long}\nb: [{}]\n", "*a, ".repeat(900));
        assert!(meta_tasks(&copies).is_err(), "many copies of a long text");
        let aliases = format!("a: &a x\nb: [{}]\n", "*a, ".repeat(2_000));
        assert!(meta_tasks(&aliases).is_err(), "many aliases");
        for deep in [format!("a: {}", "[".repeat(100_000)), format!("a: {}", "{b: ".repeat(100_000))] {
            assert!(meta_tasks(&deep).is_err());
        }
        let mut lines = String::new();
        for level in 0..1_000 {
            let _ = writeln!(lines, "{}a:", " ".repeat(level));
        }
        assert!(meta_tasks(&lines).is_err(), "deep by indentation");
    }
}
