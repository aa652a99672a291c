//! Tools that look at and change a run's working directory, and nothing outside it.

mod command;
mod files;
mod path;
mod search;

use std::path::Path;
use std::sync::{Arc, LazyLock};

use crewkit_core::Limits;
use serde_json::{Value, json};

pub use command::CommandPolicy;
pub(crate) use command::Commands;

use crate::contract::{Concurrency, ToolAnswer};
use crate::model::ToolDef;
use crate::sys::Root;

/// A working directory with its tools.
#[derive(Debug)]
pub struct Workspace {
    root: Arc<Root>,
    place: command::Place,
    commands: Arc<Commands>,
    limits: Arc<Limits>,
}

type Handler = fn(&Root, &Limits, &Value) -> Result<String, String>;

/// A tool that only needs the directory.
struct FileTool {
    name: &'static str,
    description: &'static str,
    schema: fn() -> Value,
    concurrency: Concurrency,
    run: Handler,
}

const FILE_TOOLS: [FileTool; 5] = [
    FileTool {
        name: "read_file",
        description: "Reads a text file of the working directory. Long files are read in parts with offset and limit.",
        schema: files::read_schema,
        concurrency: Concurrency::Shared,
        run: files::read,
    },
    FileTool {
        name: "write_file",
        description: "Creates or replaces a file of the working directory; missing directories are created.",
        schema: files::write_schema,
        concurrency: Concurrency::Exclusive,
        run: files::write,
    },
    FileTool {
        name: "edit_file",
        description: "Replaces one exact piece of text in a file. The old text must occur exactly once unless replace_all \
                      is true.",
        schema: files::edit_schema,
        concurrency: Concurrency::Exclusive,
        run: files::edit,
    },
    FileTool {
        name: "list_files",
        description: "Lists files and directories below a directory of the working directory, one per line; \
                      directories end with a slash. `.git` is left out.",
        schema: search::list_schema,
        concurrency: Concurrency::Shared,
        run: search::list,
    },
    FileTool {
        name: "search_files",
        description: "Searches file contents with a regular expression and answers with path:line: text.",
        schema: search::search_schema,
        concurrency: Concurrency::Shared,
        run: search::search,
    },
];

const RUN_COMMAND: &str = "run_command";

/// What models are told; the same for every run, so there is one of it.
static DEFINITIONS: LazyLock<Vec<Arc<ToolDef>>> = LazyLock::new(|| {
    let define = |name: &str, description: &str, input_schema| {
        Arc::new(ToolDef { name: name.to_owned(), description: description.to_owned(), input_schema })
    };
    let mut tools: Vec<_> =
        FILE_TOOLS.iter().map(|tool| define(tool.name, tool.description, (tool.schema)())).collect();
    tools.push(define(
        RUN_COMMAND,
        "Runs a shell command in the working directory and answers with its exit code and output.",
        command::schema(),
    ));
    tools
});

impl Workspace {
    pub(crate) fn open(
        path: &Path,
        run: &str,
        scratch: &Path,
        commands: Arc<Commands>,
        limits: Arc<Limits>,
    ) -> std::io::Result<Self> {
        let root = Arc::new(Root::open(path)?);
        let workdir = root.known()?;
        let place = command::Place { workdir, scratch: scratch.to_owned(), run: run.to_owned() };
        Ok(Self { root, place, commands, limits })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.root.path()
    }

    fn runs_commands(&self) -> bool {
        !matches!(self.commands.policy, CommandPolicy::Off)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        let command = self.runs_commands().then_some(RUN_COMMAND);
        FILE_TOOLS.iter().map(|tool| tool.name).chain(command)
    }

    pub(crate) fn definitions(&self) -> impl Iterator<Item = Arc<ToolDef>> {
        let runs_commands = self.runs_commands();
        DEFINITIONS.iter().filter(move |tool| runs_commands || tool.name != RUN_COMMAND).map(Arc::clone)
    }

    pub(crate) fn concurrency(name: &str) -> Concurrency {
        if name == RUN_COMMAND {
            return Concurrency::Exclusive;
        }
        FILE_TOOLS.iter().find(|tool| tool.name == name).map_or(Concurrency::Shared, |tool| tool.concurrency)
    }

    /// Runs the tool called `name`, if it is one of these.
    pub(crate) async fn call(&self, name: &str, arguments: &Value) -> Option<ToolAnswer> {
        if name == RUN_COMMAND && self.runs_commands() {
            return Some(command::run(&self.commands, &self.place, &self.limits, arguments).await);
        }
        let run = FILE_TOOLS.iter().find(|tool| tool.name == name)?.run;
        let (root, limits, arguments) = (Arc::clone(&self.root), Arc::clone(&self.limits), arguments.clone());
        let done = tokio::task::spawn_blocking(move || run(&root, &limits, &arguments)).await;
        Some(match done {
            Ok(Ok(text)) => ToolAnswer::ok(text),
            Ok(Err(message)) => ToolAnswer::error(message),
            Err(_) => ToolAnswer::error("the tool broke; this is a bug of crewkit"),
        })
    }
}

/// A string argument.
fn text<'a>(arguments: &'a Value, name: &str) -> Result<&'a str, String> {
    arguments[name].as_str().ok_or_else(|| format!("{name} is missing or not a string"))
}

/// A whole number that may be missing.
fn number(arguments: &Value, name: &str) -> Result<Option<u64>, String> {
    match &arguments[name] {
        Value::Null => Ok(None),
        value => {
            value.as_u64().map(Some).ok_or_else(|| format!("{name} must be a whole number, not {value}"))
        }
    }
}

/// A schema of an object.
fn object(properties: &Value, required: &[&str]) -> Value {
    json!({"type": "object", "properties": properties, "required": required})
}
