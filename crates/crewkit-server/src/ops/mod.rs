//! The operation table: everything crewkit can do, each thing once.
//!
//! MCP tools, REST routes, the `OpenAPI` document and `docs/operations.md` are projections of this table.

pub mod agents;
pub mod arguments;
pub mod catalog;
pub mod fleet;
pub mod pack;
pub mod run;
pub mod selection;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use crewkit_core::{Code, Toolset};
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

pub use catalog::{Catalog, CatalogError, Entry};
pub use run::{Answer, run};
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
    /// The toolset it belongs to.
    pub toolset: Toolset,
    /// JSON Schema of the arguments, as text so that the contracts' key order survives.
    pub input: &'static str,
    /// JSON Schema of the answer, wide enough for the failure form too: some clients check failures against it.
    pub output: &'static str,
    /// What clients may assume about it.
    pub hints: Hints,
    /// Whether the caller has to say `yes`.
    pub approval: Approval,
    /// How a failure before the handler looks in this operation's contract.
    pub error_form: ErrorForm,
    /// What runs.
    pub handler: Handler,
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
pub type Handler = fn(Call) -> Pin<Box<dyn Future<Output = HandlerResult> + Send>>;

/// Something wrong with a call itself: arguments, approval, or a bug.
#[derive(Debug, Clone)]
pub struct Problem {
    /// The stable code.
    pub code: Code,
    /// What is wrong, and where.
    pub message: String,
    /// The argument at fault, if one is.
    pub argument: Option<String>,
    /// The HTTP status that tells the same.
    pub status: u16,
}

/// A failed operation, already in the form of its contract.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The HTTP status that tells the same.
    pub status: u16,
    /// The answer.
    pub body: Value,
}

/// One call of an operation.
pub struct Call {
    /// What the operation works on.
    pub services: Arc<Services>,
    /// The arguments, checked against the schema, defaults filled in.
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
    /// The argument `name` as text; empty when it is absent.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.arguments.get(name).and_then(Value::as_str)
    }

    /// Whether the argument `name` is `true`.
    pub fn flag(&self, name: &str) -> bool {
        self.arguments.get(name).and_then(Value::as_bool).unwrap_or(false)
    }

    /// The argument `name` as a whole number.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.arguments.get(name).and_then(Value::as_u64)
    }

    /// The argument `name` as a list of texts.
    pub fn texts(&self, name: &str) -> Option<Vec<String>> {
        let items = self.arguments.get(name)?.as_array()?;
        Some(items.iter().filter_map(Value::as_str).map(ToOwned::to_owned).collect())
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
