//! What can go wrong between here and Coder, and what a caller of the fleet is told about it.

use serde_json::Value;

use super::wire::Validation;
use crate::error::FleetError;
use crate::metadata::clean_text;

/// Longest text of Coder's that is passed on.
const LONGEST_QUOTE: usize = 500;

/// A request to Coder that came to nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum CoderError {
    /// Coder stopped answering a moment ago and is left alone.
    #[error("Coder does not answer ({reason}); it is asked again in {seconds} s")]
    Paused { seconds: u64, reason: String },
    /// No connection, or it broke.
    #[error("Coder cannot be reached: {reason}")]
    Unreachable { reason: String },
    /// No whole answer in time.
    #[error("Coder did not answer within {ms} ms")]
    TimedOut { ms: u64 },
    /// An answer that makes no sense.
    #[error("Coder's answer makes no sense: {reason}")]
    Malformed { reason: String, request_id: Option<String> },
    /// A redirect, which is never followed with the token.
    #[error(
        "Coder sent a redirect, which is not followed; check that the Coder address is its own, with the right scheme"
    )]
    Redirected,
    /// This Coder does not have the route.
    #[error("this version of Coder does not offer what is needed ({route})")]
    RouteMissing { route: String },
    /// Coder said no.
    #[error("{0}")]
    Refused(Box<Refused>),
}

/// Coder's own words for a refusal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Coder refused with {status}: {message}")]
pub(super) struct Refused {
    pub(super) status: u16,
    pub(super) message: String,
    pub(super) detail: String,
    pub(super) validations: Vec<Validation>,
    pub(super) request_id: Option<String>,
    pub(super) retry_after: Option<u64>,
}

impl CoderError {
    /// The status Coder answered with, if it did.
    pub(super) fn status(&self) -> Option<u16> {
        match self {
            Self::Refused(refused) => Some(refused.status),
            _ => None,
        }
    }

    /// Whether asking again may help.
    pub(super) fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::TimedOut { .. } | Self::Malformed { .. } => true,
            Self::Refused(refused) => matches!(refused.status, 429 | 500..=599),
            Self::Paused { .. } | Self::Redirected | Self::RouteMissing { .. } => false,
        }
    }

    /// Whether the request may have been carried out although no good answer came.
    pub(super) fn leaves_doubt(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::TimedOut { .. } | Self::Malformed { .. } => true,
            Self::Refused(refused) => refused.status >= 500,
            Self::Paused { .. } | Self::Redirected | Self::RouteMissing { .. } => false,
        }
    }

    /// Whether Coder gave no sign of life; counted before it is left alone for a while.
    pub(super) fn is_silence(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::TimedOut { .. })
    }

    /// What a caller is told, wherever no special meaning applies.
    pub(super) fn into_fleet(self) -> FleetError {
        match self {
            Self::Refused(refused) => refused.into_fleet(),
            Self::Malformed { ref request_id, .. } => FleetError::unavailable(self.to_string())
                .with("reason", "malformed_answer")
                .or_with("request_id", request_id.clone()),
            Self::Paused { seconds, .. } => FleetError::unavailable(self.to_string())
                .with("reason", "unreachable")
                .with("retry_after", seconds),
            Self::TimedOut { .. } => FleetError::unavailable(self.to_string()).with("reason", "timed_out"),
            Self::Unreachable { .. } => {
                FleetError::unavailable(self.to_string()).with("reason", "unreachable")
            }
            Self::Redirected => FleetError::unavailable(self.to_string()).with("reason", "redirected"),
            Self::RouteMissing { .. } => {
                FleetError::unavailable(self.to_string()).with("reason", "not_offered")
            }
        }
    }
}

impl Refused {
    /// Adds Coder's own words to an error.
    pub(super) fn quoted_in(&self, error: FleetError) -> FleetError {
        let quote = |text: &str| {
            let text = clean_text(text, LONGEST_QUOTE);
            (!text.is_empty()).then_some(text)
        };
        let validations =
            serde_json::to_value(&self.validations).ok().filter(|_| !self.validations.is_empty());
        error
            .or_with("coder_status", Some(self.status))
            .or_with("coder_message", quote(&self.message))
            .or_with("coder_detail", quote(&self.detail))
            .or_with("validations", validations)
            .or_with("request_id", self.request_id.clone())
            .or_with("retry_after", self.retry_after)
    }

    fn into_fleet(self) -> FleetError {
        let said = clean_text(&self.message, LONGEST_QUOTE);
        let error = match self.status {
            400 => FleetError::bad_request(format!("Coder refused the request: {said}")),
            401 => FleetError::unavailable(
                "Coder rejected the session token; set a valid CODER_SESSION_TOKEN and try again",
            )
            .with("reason", "coder_auth"),
            403 => FleetError::unavailable(format!("the session token may not do this in Coder: {said}"))
                .with("reason", "coder_forbidden"),
            409 => FleetError::conflict(format!("Coder is busy with this workspace: {said}")),
            429 => FleetError::unavailable("Coder's rate limit is reached; try again later")
                .with("reason", "rate_limited"),
            status => FleetError::unavailable(format!("Coder answered with {status}: {said}")),
        };
        self.quoted_in(error)
    }
}

impl From<CoderError> for FleetError {
    fn from(error: CoderError) -> Self {
        error.into_fleet()
    }
}

/// Facts about an unclear outcome, for `details`.
pub(super) fn unclear(error: &CoderError, message: String) -> FleetError {
    let told = FleetError::unavailable(message).with("outcome", Value::from("unknown"));
    match error {
        CoderError::Refused(refused) => refused.quoted_in(told),
        _ => told.with("cause", error.to_string()),
    }
}
