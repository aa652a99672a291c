//! Runs and transcripts in the words of the contract.

use std::fmt::Write as _;

use crewkit_core::Timestamp;
use crewkit_core::run::{RunStatus, StopReason};
use serde::Serialize;
use serde_json::Value;

use crate::event::{Event, EventBody, ToolCall};
use crate::model::Rehearsal;
use crate::store::{Entry, RunRecord};
use crate::sync::lock;

/// Characters of output shown as a preview.
const PREVIEW: usize = 200;
/// Characters of a tool call shown on one line.
const CALL_LINE: usize = 77;

/// The state of one agent, as `agent_status` answers it.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// The id asked for.
    pub agent_id: String,
    /// Absent when there is no such agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<RunStatus>,
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
    /// Bytes of its payload, uncompressed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload_size: Option<u64>,
    /// Where the payload is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload_url: Option<String>,
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

/// When a run began, of which there are three cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
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
            started_at: Moment::Unknown,
            completed_at: None,
            stopped_at: None,
            reason: None,
            summary: None,
            payload_size: None,
            payload_url: None,
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
            started_at: record.state.started_at().map_or(Moment::NotYet, Moment::At),
            completed_at: ended_at.filter(|_| status == RunStatus::Completed),
            stopped_at: ended_at.filter(|_| status == RunStatus::Stopped),
            reason: record.state.stop_reason(),
            summary: record.summary.as_deref().map(str::to_owned),
            payload_size: payload.map(|payload| payload.size),
            payload_url: payload.map(|_| payload_url(public_base, &record)),
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

fn payload_url(public_base: &str, record: &RunRecord) -> String {
    format!("{public_base}/api/agents/{}/payload", record.id)
}

/// What the agent is doing, in a line: the words that are arriving, or the newest entry that says something.
fn preview(entry: &Entry) -> Option<String> {
    let speaking = lock(&entry.speaking).clone();
    if !speaking.trim().is_empty() {
        return Some(cut(speaking.trim(), PREVIEW));
    }
    let newest = entry.newest(|event| text_of(&event.body).is_some())?;
    text_of(&newest.body).map(|text| cut(text.trim(), PREVIEW))
}

fn text_of(body: &EventBody) -> Option<String> {
    let text = match body {
        EventBody::Assistant { content, tool_calls, .. } => match tool_calls.first() {
            Some(call) if content.trim().is_empty() => call_line(call),
            _ => content.clone(),
        },
        EventBody::ToolResult { content, .. }
        | EventBody::Error { content }
        | EventBody::Note { content } => content.clone(),
        EventBody::Status { .. } | EventBody::Nudge { .. } | EventBody::Compacted { .. } => return None,
    };
    (!text.trim().is_empty()).then_some(text)
}

/// One row of output as viewers know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OutputRow {
    /// `assistant`, `tool`, `system`, `error` or `status`.
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
                tool_call: Some(call_line(call)),
            });
            words.into_iter().chain(calls).collect()
        }
        EventBody::ToolResult { content, .. } => {
            vec![OutputRow::new("system", format!("→ {}", cut(content, PREVIEW)))]
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

/// `name key=value …`, cut.
pub(super) fn call_line(call: &ToolCall) -> String {
    let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
    let mut line = call.name.clone();
    for (key, value) in arguments.as_object().into_iter().flatten() {
        if line.len() > 4 * CALL_LINE {
            break;
        }
        let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let _ = write!(line, " {key}={}", cut(&shown, CALL_LINE).replace('\n', " "));
    }
    cut(&line, CALL_LINE)
}

/// The beginning of a text, with dots if there is more.
pub(super) fn cut(text: &str, characters: usize) -> String {
    match text.char_indices().nth(characters) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_fits_on_a_line() {
        let call = |arguments: &str| {
            call_line(&ToolCall { id: "a".into(), name: "look".into(), arguments: arguments.into() })
        };
        assert_eq!(call(r#"{"path":"a\nb","n":3}"#), "look path=a b n=3");
        assert_eq!(call("garbage"), "look");
        let long = call(&format!(r#"{{"text":"{}"}}"#, "é".repeat(500)));
        assert_eq!(long.chars().count(), CALL_LINE + 3);
        assert!(long.ends_with("..."));
    }
}
