//! A command that failed: code, reason, what to do next.

use crewkit_core::Code;
use serde_json::json;

use crate::exit::Exit;
use crate::output;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// The stable code.
    pub code: Code,
    /// What failed, and where.
    pub message: String,
    /// How the process ends.
    pub exit: Exit,
}

impl Failure {
    /// A failure that ends the process with 1.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), exit: Exit::Failed }
    }

    /// A command line that cannot be meant.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { code: Code::ArgumentInvalid, message: message.into(), exit: Exit::Usage }
    }

    /// Tells the person, or the program that asked for JSON.
    pub fn report(&self, json: bool) -> Exit {
        if json {
            let body = json!({"error": self.code, "message": self.message, "details": {"next_step": self.code.next_step()}});
            output::data_line(&body.to_string());
        } else {
            output::talk(&format!(
                "error[{}]: {}\n  next: {}",
                self.code,
                self.message,
                self.code.next_step()
            ));
        }
        self.exit
    }
}
