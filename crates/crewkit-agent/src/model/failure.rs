//! What an error of a model's server means.

use std::time::Duration;

/// Why one attempt gave no reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failure {
    /// The conversation is too long.
    Overflow(String),
    /// The server takes no tools.
    ToolsRefused,
    /// The server does not stream.
    StreamRefused,
    /// Trying again may help.
    Transient { what: String, retry_after: Option<Duration> },
    /// Trying again cannot help.
    Fatal(String),
}

impl Failure {
    pub(super) fn transient(what: impl Into<String>) -> Self {
        Self::Transient { what: what.into(), retry_after: None }
    }
}

/// What the failed request contained.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    pub(super) tools: bool,
    pub(super) stream: bool,
}

/// Reads meaning into an HTTP status and the text that came with it.
///
/// Overflow is told apart first: its messages often speak of tools and streams too.
pub(super) fn classify(status: u16, text: &str, sent: Sent, retry_after: Option<Duration>) -> Failure {
    let lower = text.to_lowercase();
    let said = format!("status {status}{}", short(text));
    if matches!(status, 400 | 413 | 422 | 500) && speaks_of_overflow(&lower) {
        return Failure::Overflow(said);
    }
    if matches!(status, 400 | 422 | 500 | 501) {
        if sent.stream && lower.contains("stream") {
            return Failure::StreamRefused;
        }
        if sent.tools && speaks_of_missing_tools(&lower) {
            return Failure::ToolsRefused;
        }
    }
    match status {
        408 | 409 | 425 | 429 | 500..=599 => Failure::Transient { what: said, retry_after },
        _ => Failure::Fatal(said),
    }
}

fn speaks_of_overflow(text: &str) -> bool {
    const SIGNS: [&str; 10] = [
        "context_length_exceeded",
        "exceed_context_size",
        "exceeds the available context",
        "maximum context length",
        "context length",
        "context window",
        "context size",
        "prompt is too long",
        "input is too long",
        "too many tokens",
    ];
    SIGNS.iter().any(|sign| text.contains(sign))
}

fn speaks_of_missing_tools(text: &str) -> bool {
    // A complaint about one tool message is our mistake or the model's, not a server without tools.
    let about_history = ["tool_call_id", "role 'tool'", "role \"tool\"", "tool_result", "tool_use"];
    (text.contains("tool") || text.contains("function"))
        && !about_history.iter().any(|sign| text.contains(sign))
}

/// The beginning of a server's words, on one line.
pub(super) fn short(text: &str) -> String {
    const SHOWN: usize = 300;
    let words = serde_json::from_str::<serde_json::Value>(text)
        .ok()
        .and_then(|value| {
            let message = [&value["error"]["message"], &value["message"], &value["error"], &value["detail"]];
            message.into_iter().find_map(|text| text.as_str().map(str::to_owned))
        })
        .unwrap_or_else(|| text.to_owned());
    let line: String = words.split_whitespace().collect::<Vec<_>>().join(" ");
    let line: String = line.chars().filter(|c| !c.is_control()).take(SHOWN).collect();
    if line.is_empty() { String::new() } else { format!(": {line}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meanings() {
        let both = Sent { tools: true, stream: true };
        let neither = Sent { tools: false, stream: false };
        let word = |status, text, sent| match classify(status, text, sent, None) {
            Failure::Overflow(_) => "overflow",
            Failure::ToolsRefused => "tools",
            Failure::StreamRefused => "stream",
            Failure::Transient { .. } => "again",
            Failure::Fatal(_) => "fatal",
        };
        for (status, text, sent, expected) in [
            (
                400,
                r#"{"error":{"type":"exceed_context_size_error","message":"request (9 tokens) exceeds"}}"#,
                both,
                "overflow",
            ),
            (
                400,
                r#"{"error":{"code":"context_length_exceeded","message":"tools and stream"}}"#,
                both,
                "overflow",
            ),
            (400, "model does not support tools", both, "tools"),
            (422, r#"{"detail":"Extra inputs: functions"}"#, both, "tools"),
            (400, "\"auto\" tool choice requires --enable-auto-tool-choice", both, "tools"),
            (400, "messages with role 'tool' must follow", both, "fatal"),
            (400, "model does not support tools", neither, "fatal"),
            (400, "stream is not supported", both, "stream"),
            (400, "stream is not supported", neither, "fatal"),
            (400, "bad request", both, "fatal"),
            (401, "no tools for you", both, "fatal"),
            (403, "", both, "fatal"),
            (404, "", both, "fatal"),
            (408, "", both, "again"),
            (409, "", both, "again"),
            (429, "too many tokens per minute", both, "again"),
            (500, "", both, "again"),
            (503, "tool server starting", both, "again"),
            (529, "overloaded", both, "again"),
        ] {
            assert_eq!(word(status, text, sent), expected, "{status} {text}");
        }
    }

    #[test]
    fn a_servers_words_are_shown_short_and_on_one_line() {
        assert_eq!(short(r#"{"error":{"message":"no\nsuch model"}}"#), ": no such model");
        assert_eq!(short("<html>\n  <b>Bad</b>"), ": <html> <b>Bad</b>");
        assert_eq!(short("").as_str(), "");
        assert!(short(&"x".repeat(5000)).len() < 320);
    }
}
