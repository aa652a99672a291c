//! A command that failed: code, reason, what to do next.

use crewkit_core::Code;
use crewkit_server::ops::Answer;
use serde_json::{Value, json};

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
    /// What to do next, if that is not what the code says.
    pub next: Option<Box<str>>,
    /// The answer that told the failure, for programs.
    pub body: Option<Box<Value>>,
}

impl Failure {
    /// A failure that ends the process with 1.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), exit: Exit::Failed, next: None, body: None }
    }

    /// A command line that cannot be meant.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { exit: Exit::Usage, ..Self::new(Code::ArgumentInvalid, message) }
    }

    /// The same failure, with another step to take next.
    #[must_use]
    pub fn with_next(self, next: impl Into<String>) -> Self {
        Self { next: Some(next.into().into()), ..self }
    }

    /// The body of an answer, or the failure that it tells.
    pub fn of_answer(answer: Answer) -> Result<Value, Self> {
        if !answer.failed() {
            return Ok(answer.body);
        }
        // The fleet's contract has the code in `error` and the text in `message`; the agents' have them the other way round.
        let text = |key: &str| answer.body[key].as_str();
        let detail = answer.body["details"]["code"].as_str();
        let word = text("code").or(detail).or_else(|| text("error")).unwrap_or_default();
        let code = Code::ALL.iter().find(|code| code.as_str() == word).copied().unwrap_or(Code::Internal);
        let message =
            text("message").or_else(|| text("error")).unwrap_or("the server gave no reason").to_owned();
        Err(Self { body: Some(Box::new(answer.body)), ..Self::new(code, message) })
    }

    /// Tells the person, or the program that asked for JSON.
    pub fn report(&self, json: bool) -> Exit {
        let next = self.next.as_deref().unwrap_or(self.code.next_step());
        if json {
            let body =
                || json!({"error": self.code, "message": self.message, "details": {"next_step": next}});
            output::data_line(&self.body.as_deref().cloned().unwrap_or_else(body).to_string());
        } else {
            output::talk(&format!("error[{}]: {}\n  next: {next}", self.code, self.message));
        }
        self.exit
    }
}
