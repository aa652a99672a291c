//! The operation table: everything crewkit can do, each thing once.
//!
//! MCP tools, REST routes, the `OpenAPI` document and `docs/operations.md` are projections of this table.

pub mod arguments;
pub mod catalog;
pub mod chat;
pub mod fleet;
pub mod pack;
pub mod run;
pub mod runs;
pub mod schema;
pub mod selection;
pub mod server;

use std::fmt;
use std::sync::Arc;

use crewkit_agent::engine::AttemptGrant;
use crewkit_core::{Code, Toolset};
use futures_util::future::BoxFuture;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

pub use catalog::{Catalog, CatalogError, Entry};
pub use run::{Answer, Request, run};
pub use schema::Schema;
pub use selection::{Selection, UnknownTool};

use crate::Services;

/// A JSON object, in the key order it was written.
pub type JsonObject = Map<String, Value>;

/// One operation, as data.
#[derive(Clone)]
pub struct Operation {
    /// Name of the MCP tool and of the REST route.
    pub name: &'static str,
    /// Short name for people.
    pub title: &'static str,
    /// What it does, for people and models; short, since every client pays for it.
    pub description: &'static str,
    /// The toolset it belongs to. `None` for what concerns the server itself: it is no tool, and narrowing does not hide it.
    pub toolset: Option<Toolset>,
    /// JSON Schema of the arguments.
    pub input: Schema,
    /// JSON Schema of the answer.
    pub output: Schema,
    /// JSON Schema of a failure.
    pub failure: Schema,
    /// What clients may assume about it.
    pub hints: Hints,
    /// Whether the caller has to say `yes`.
    pub approval: Approval,
    /// Where it is shown.
    pub doors: Doors,
    /// Rewrites arguments that are accepted although the schema does not show them, before they are checked.
    pub rewrite: fn(&mut JsonObject),
    /// How a failure before the handler looks in this operation's contract.
    pub error_form: ErrorForm,
    /// What runs.
    pub handler: Handler,
}

/// Where an operation is shown. REST has every one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Doors {
    /// The output schema that it shows as an MCP tool; `None` if it is none. Every client pays for it in every conversation,
    /// so it names fields and no more. Failures fit it too: some clients check them against it.
    pub tool: Option<&'static str>,
    /// Its command, if it has one.
    pub cli: Option<CliName>,
    /// The MCP tools it is shown with, if it is none itself: people narrow a server by tools.
    pub shown_with: &'static [&'static str],
}

/// An operation as a command. Arguments that are not positional are options of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CliName {
    /// The words of the command: `runs`, `stop`.
    pub path: &'static [&'static str],
    /// The arguments given by position, in order.
    pub positional: &'static [&'static str],
}

impl Doors {
    /// An MCP tool with this output schema.
    pub const fn tool(output: &'static str) -> Self {
        Self { tool: Some(output), cli: None, shown_with: &[] }
    }

    /// No MCP tool; shown when all of `tools` are.
    pub const fn shown_with(tools: &'static [&'static str]) -> Self {
        Self { tool: None, cli: None, shown_with: tools }
    }

    /// The same, and a command.
    #[must_use]
    pub const fn cli(self, path: &'static [&'static str], positional: &'static [&'static str]) -> Self {
        Self { cli: Some(CliName { path, positional }), ..self }
    }
}

/// The four MCP annotations; all are always sent, since clients assume the worst of a missing one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "the four hints are fixed by the protocol")]
pub struct Hints {
    /// Changes nothing.
    pub read_only: bool,
    /// May remove or overwrite something.
    pub destructive: bool,
    /// Repeating it changes nothing more.
    pub idempotent: bool,
    /// Reaches beyond this machine.
    pub open_world: bool,
}

impl Hints {
    /// Reads only this machine.
    pub const READ: Self = Self { read_only: true, destructive: false, idempotent: true, open_world: false };
    /// Reads, also from elsewhere.
    pub const READ_REMOTE: Self = Self { open_world: true, ..Self::READ };
    /// Adds something new with each call.
    pub const ADD: Self = Self { read_only: false, destructive: false, idempotent: false, open_world: false };
    /// Changes something; repeating it changes nothing more.
    pub const CHANGE: Self =
        Self { read_only: false, destructive: false, idempotent: true, open_world: false };
    /// May remove or overwrite; repeating it changes nothing more.
    pub const DESTROY: Self =
        Self { read_only: false, destructive: true, idempotent: true, open_world: false };

    /// The same, for an operation that reaches beyond this machine.
    #[must_use]
    pub const fn remote(self) -> Self {
        Self { open_world: true, ..self }
    }
}

/// Whether an operation runs without being told `yes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Approval {
    /// Runs as asked.
    NotNeeded,
    /// Refused unless the argument `yes` is `true`; checked before anything else.
    Yes,
}

/// Renders a problem met before the handler ran, in the form the operation's contract knows.
pub type ErrorForm = fn(&Operation, &Problem) -> Value;

/// What an operation's handler returns.
pub type HandlerResult = Result<Value, Failure>;

/// The code of an operation.
pub type Handler = Arc<dyn Fn(Call) -> BoxFuture<'static, HandlerResult> + Send + Sync>;

/// Something wrong with a call itself: arguments, approval, or a bug.
#[derive(Debug, Clone)]
pub struct Problem {
    /// The stable code.
    pub code: Code,
    /// What is wrong, and where.
    pub message: String,
    /// The argument at fault, if one is.
    pub argument: Option<String>,
}

/// A failed operation, already in the form of its contract.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The HTTP status that tells the same.
    pub status: u16,
    /// The answer.
    pub body: Value,
}

/// The door a call came through. A fleet records it with the tasks that it is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// An MCP client: a program, usually a model, decides what is called.
    Tool,
    /// The command line.
    Cli,
    /// The page, or another program over HTTP.
    Page,
}

impl Source {
    /// The header that tells the source of an HTTP request; one without it comes from the page.
    pub const HEADER: &'static str = "crewkit-source";

    /// The word in the header.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tool => "tool",
            Self::Cli => "cli",
            Self::Page => "page",
        }
    }

    /// The source of an HTTP request.
    pub fn of_request(headers: &http::HeaderMap) -> Self {
        let word = headers.get(Self::HEADER).and_then(|value| value.to_str().ok());
        [Self::Tool, Self::Cli].into_iter().find(|source| word == Some(source.as_str())).unwrap_or(Self::Page)
    }
}

/// One call of an operation.
#[derive(Clone)]
pub struct Call {
    /// What the operation works on.
    pub services: Arc<Services>,
    /// The door it came through.
    pub source: Source,
    /// The attempt of a run that asks, if it is one.
    pub attempt: Option<AttemptGrant>,
    /// The arguments, checked against the schema.
    pub arguments: JsonObject,
    /// Where to report progress.
    pub progress: Progress,
    /// Fires when the caller no longer wants the answer.
    pub cancelled: CancellationToken,
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Arguments may hold what a caller considers private; only their names are shown.
        f.debug_struct("Call")
            .field("arguments", &self.arguments.keys().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

impl Call {
    /// Reads the arguments. Fails only where a schema and its type contradict each other.
    pub fn input<T: DeserializeOwned>(&mut self) -> serde_json::Result<T> {
        serde_json::from_value(Value::Object(std::mem::take(&mut self.arguments)))
    }
}

/// How far a long operation has come.
#[derive(Debug, Clone, PartialEq)]
pub struct ProgressUpdate {
    /// Steps done so far; only grows.
    pub done: f64,
    /// Steps in all, when known.
    pub total: Option<f64>,
    /// What is happening now.
    pub message: Option<String>,
    /// A part of the answer that is there already, for doors that show answers as they grow.
    pub part: Option<Value>,
}

impl ProgressUpdate {
    /// A step without a part of the answer.
    pub const fn step(done: f64, total: Option<f64>, message: Option<String>) -> Self {
        Self { done, total, message, part: None }
    }
}

/// Takes progress reports; drops them when nobody asked.
#[derive(Debug, Clone, Default)]
pub struct Progress(Option<tokio::sync::mpsc::UnboundedSender<ProgressUpdate>>);

impl Progress {
    /// Reports to `sender`.
    pub const fn to(sender: tokio::sync::mpsc::UnboundedSender<ProgressUpdate>) -> Self {
        Self(Some(sender))
    }

    /// Reports one step; cheap when nobody listens.
    pub fn report(&self, update: ProgressUpdate) {
        if let Some(sender) = &self.0 {
            // A receiver that is gone means the caller is gone; the work notices through `cancelled`.
            let _ = sender.send(update);
        }
    }
}
