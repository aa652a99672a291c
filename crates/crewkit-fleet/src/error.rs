//! The one error of the fleet: what every tool answers when it cannot do what was asked.

use crewkit_core::Code;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// The four kinds of failure the contract knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The caller asked for something that cannot be done as asked.
    BadRequest,
    /// What was named does not exist.
    NotFound,
    /// The agent or its workspace is occupied.
    Conflict,
    /// The backend did not answer, or not sensibly.
    Unavailable,
}

impl ErrorKind {
    /// The code in `error`.
    pub const fn code(self) -> Code {
        match self {
            Self::BadRequest => Code::FleetBadRequest,
            Self::NotFound => Code::FleetNotFound,
            Self::Conflict => Code::FleetConflict,
            Self::Unavailable => Code::FleetUnavailable,
        }
    }

    /// The HTTP status in `details.status`.
    pub const fn status(self) -> u16 {
        self.code().http_status()
    }
}

/// A failed fleet operation.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct FleetError(Box<Parts>);

#[derive(Debug, Clone, PartialEq)]
struct Parts {
    kind: ErrorKind,
    message: String,
    details: Map<String, Value>,
}

impl std::fmt::Display for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

/// What a tool answers: `{error, message, details}`.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct ErrorBody {
    /// One of the codes of [`ErrorKind`].
    pub error: &'static str,
    /// What happened and what to do, for a person.
    pub message: String,
    /// Facts for a program; always has `status`.
    pub details: Map<String, Value>,
}

impl FleetError {
    /// An error of `kind` with a message for a person.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let mut details = Map::new();
        details.insert("status".to_owned(), kind.status().into());
        Self(Box::new(Parts { kind, message: message.into(), details }))
    }

    /// The caller asked for something that cannot be done as asked.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::BadRequest, message)
    }

    /// One argument is wrong.
    pub fn invalid(field: &str, message: impl Into<String>) -> Self {
        Self::bad_request(message).with("field", field)
    }

    /// There is no agent of that name.
    pub fn no_such_agent(name: &str) -> Self {
        Self::new(
            ErrorKind::NotFound,
            format!("Agent '{name}' does not exist; list_agents shows the agents there are"),
        )
        .with("agent_name", name)
    }

    /// A name is taken.
    pub fn already_exists(name: &str) -> Self {
        Self::invalid(
            "name",
            format!("Agent '{name}' already exists; choose another name or delete it first"),
        )
        .with("agent_name", name)
        .with("reason", "already_exists")
    }

    /// The agent or its workspace is occupied.
    pub fn conflict(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Conflict, message)
    }

    /// The backend cannot be used right now.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, message)
    }

    /// Adds a fact, replacing one of the same name.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.0.details.insert(key.to_owned(), value.into());
        self
    }

    /// Adds a fact unless there is one of that name, or none to add.
    #[must_use]
    pub fn or_with(mut self, key: &str, value: Option<impl Into<Value>>) -> Self {
        if let Some(value) = value
            && !self.0.details.contains_key(key)
        {
            self.0.details.insert(key.to_owned(), value.into());
        }
        self
    }

    /// The kind of failure.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The message for a person.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The fact called `key`.
    pub fn detail(&self, key: &str) -> Option<&Value> {
        self.0.details.get(key)
    }

    /// The answer of a tool.
    pub fn body(&self) -> ErrorBody {
        ErrorBody {
            error: self.0.kind.code().as_str(),
            message: self.0.message.clone(),
            details: self.0.details.clone(),
        }
    }

    /// The JSON Schema of [`FleetError::body`].
    pub fn schema() -> Value {
        json!({
            "type": "object",
            "properties": {
                "error": {"enum": ["bad_request", "not_found", "conflict", "service_unavailable"]},
                "message": {"type": "string", "minLength": 1},
                "details": {
                    "type": "object",
                    "properties": {
                        "status": {"enum": [400, 404, 409, 503]},
                        "operation": {"type": "string"},
                        "agent_name": {"type": "string"},
                        "field": {"type": "string"},
                        "reason": {"type": "string"},
                        "coder_status": {"type": "integer"},
                        "coder_message": {"type": "string"},
                        "coder_detail": {"type": "string"},
                        "request_id": {"type": "string"},
                        "retry_after": {"type": "integer"}
                    },
                    "required": ["status", "operation"]
                }
            },
            "required": ["error", "message", "details"],
            "additionalProperties": false
        })
    }
}
