//! Runs and transcripts in the words of the contract.

use crewkit_core::Timestamp;
use crewkit_core::run::{Phase, RunStatus, StopReason, WaitsFor};
use serde::Serialize;

use crate::event::{Event, EventBody, PREVIEW_CHARS, cut};
use crate::model::Rehearsal;
use crate::store::Entry;
use crate::sync::lock;

/// The state of one agent, as `agent_status` answers it.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Status {
    /// The id asked for.
    pub agent_id: String,
    /// Absent when there is no such agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<RunStatus>,
    /// What a running agent does: `queued`, `working` or `waiting`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<&'static str>,
    /// What a waiting agent waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<WaitsFor>,
    /// When the present attempt began; null before that.
    #[serde(skip_serializing_if = "Moment::is_unknown")]
    pub started_at: Moment,
    /// When it completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Timestamp>,
    /// When it stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped_at: Option<Timestamp>,
    /// Why it stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<StopReason>,
    /// What it reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// Where its payload is, if it has one.
    #[serde(flatten)]
    pub payload: Option<PayloadAddress>,
    /// What went wrong, or that there is no such agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The newest output of a running agent, cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recent_output: Option<String>,
    /// The driver, when it is not the built-in loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// The model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Present and true when no model was asked.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub rehearsal: bool,
    /// Replies of the model so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turns: Option<u64>,
    /// Tokens so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
}

/// Where a payload is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct PayloadAddress {
    /// Its bytes, uncompressed.
    pub payload_size: u64,
    /// Where it can be fetched over HTTP; null if the server has no address.
    pub payload_url: Option<String>,
    /// Its URI as an MCP resource.
    pub payload_resource: String,
}

/// When a run began, of which there are three cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(untagged)]
pub enum Moment {
    /// There is no such run; the field is left out.
    Unknown,
    /// It has not begun; the field is null.
    NotYet,
    /// Then.
    At(Timestamp),
}

impl Moment {
    fn is_unknown(&self) -> bool {
        *self == Self::Unknown
    }
}

impl Status {
    pub(super) fn unknown(id: &str) -> Self {
        Self {
            agent_id: id.chars().take(100).collect(),
            status: None,
            phase: None,
            waits_for: None,
            started_at: Moment::Unknown,
            completed_at: None,
            stopped_at: None,
            reason: None,
            summary: None,
            payload: None,
            error: Some(format!("no agent has the id {}", id.chars().take(100).collect::<String>())),
            recent_output: None,
            driver: None,
            model: None,
            rehearsal: false,
            turns: None,
            tokens: None,
        }
    }

    pub(super) fn of(entry: &Entry, model: Option<String>, public_base: &str) -> Self {
        let record = entry.record();
        let status = record.state.status();
        let ended_at = record.state.ended_at();
        let payload = record.payload.as_ref();
        Self {
            agent_id: record.id.to_string(),
            status: Some(status),
            phase: record.state.phase().map(Phase::as_str),
            waits_for: match record.state.phase() {
                Some(Phase::Waiting(reason)) => Some(reason.clone()),
                _ => None,
            },
            started_at: record.state.started_at().map_or(Moment::NotYet, Moment::At),
            completed_at: ended_at.filter(|_| status == RunStatus::Completed),
            stopped_at: ended_at.filter(|_| status == RunStatus::Stopped),
            reason: record.state.stop_reason(),
            summary: record.summary.as_deref().map(str::to_owned),
            payload: payload.map(|payload| PayloadAddress {
                payload_size: payload.size,
                payload_url: (!public_base.is_empty())
                    .then(|| format!("{public_base}/api/agents/{}/payload", record.id)),
                payload_resource: payload_resource(record.id.as_str()),
            }),
            error: record.error.as_deref().map(str::to_owned),
            recent_output: (status == RunStatus::Running).then(|| preview(entry)).flatten(),
            driver: record.spec.driver.clone(),
            rehearsal: model.as_deref() == Some(Rehearsal::NAME),
            model,
            turns: Some(record.turns),
            tokens: Some(record.usage.total()),
        }
    }
}

/// The URI of a run's payload as an MCP resource.
pub fn payload_resource(id: &str) -> String {
    format!("crewkit://runs/{id}/payload")
}

/// What the agent is doing, in a line: the words that are arriving, or the newest entry that says something.
fn preview(entry: &Entry) -> Option<String> {
    let speaking = lock(&entry.speaking).clone();
    if !speaking.trim().is_empty() {
        return Some(cut(speaking.trim(), PREVIEW_CHARS));
    }
    entry.preview()
}

/// One row of output as viewers know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct OutputRow {
    /// `assistant`, `user`, `tool`, `system`, `error` or `status`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The text.
    pub content: String,
    /// A tool call on one line, for rows of kind `tool`.
    pub tool_call: Option<String>,
}

impl OutputRow {
    fn new(kind: &'static str, content: impl Into<String>) -> Self {
        Self { kind, content: content.into(), tool_call: None }
    }
}

/// The rows an entry is shown as.
pub fn output_rows(event: &Event) -> Vec<OutputRow> {
    match &event.body {
        EventBody::Status { status, .. } => vec![OutputRow::new("status", status.as_str())],
        EventBody::Assistant { content, tool_calls, .. } => {
            let words = (!content.trim().is_empty()).then(|| OutputRow::new("assistant", content.clone()));
            let calls = tool_calls.iter().map(|call| OutputRow {
                kind: "tool",
                content: String::new(),
                tool_call: Some(call.line()),
            });
            words.into_iter().chain(calls).collect()
        }
        EventBody::User { content } => vec![OutputRow::new("user", content.clone())],
        EventBody::ToolResult { content, .. } => {
            vec![OutputRow::new("system", format!("→ {}", cut(content, PREVIEW_CHARS)))]
        }
        EventBody::Nudge { content } | EventBody::Note { content } => {
            vec![OutputRow::new("system", content.clone())]
        }
        EventBody::Compacted { .. } => {
            vec![OutputRow::new("system", "older turns were summarised to make room")]
        }
        EventBody::Error { content } => vec![OutputRow::new("error", content.clone())],
    }
}
