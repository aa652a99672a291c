//! Whom a message comes from, and what its sender wants to see.

use std::sync::Arc;

use rmcp::RoleServer;
use rmcp::service::RequestContext;

use crate::caller::{Caller, Refused};
use crate::ops::{Operation, Selection};

/// The sender of a message.
#[derive(Debug, Clone)]
pub struct Audience {
    /// Who it is.
    pub caller: Caller,
    /// What it wants to see, when that is less than everything.
    pub narrowed: Option<Arc<Selection>>,
}

impl Audience {
    /// The client on standard input, who started this process.
    pub const fn on_stdio() -> Self {
        Self { caller: Caller::Owner, narrowed: None }
    }

    /// The sender of an HTTP request: the guard leaves the caller with it, the front its narrower choice.
    pub fn of_request(extensions: &http::Extensions) -> Self {
        let caller = extensions.get::<Caller>().cloned().unwrap_or(Caller::Stranger(Refused::Unknown));
        Self { caller, narrowed: extensions.get::<Arc<Selection>>().cloned() }
    }

    /// The sender of a message that rmcp hands to a handler.
    pub fn of_context(context: &RequestContext<RoleServer>) -> Self {
        Self::of_extensions(&context.extensions)
    }

    /// The sender of a notification that rmcp hands to a handler, or of what it kept for one.
    pub fn of_extensions(extensions: &rmcp::model::Extensions) -> Self {
        match extensions.get::<http::request::Parts>() {
            Some(parts) => Self::of_request(&parts.extensions),
            None => Self::on_stdio(),
        }
    }

    /// Whether it sees `operation`.
    pub fn sees(&self, operation: &Operation) -> bool {
        self.caller.may(operation.name)
            && self.narrowed.as_ref().is_none_or(|selection| selection.shows(operation))
    }
}
