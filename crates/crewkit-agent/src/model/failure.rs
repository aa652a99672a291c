//! Interprets the errors of a model's server.

use std::time::Duration;

/// Why one attempt gave no reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failure {
    /// The conversation is too long.
    Overflow(String),
    /// The server refuses tools.
    ToolsRefused(Refusal),
    /// The server refuses to stream.
    StreamRefused(Refusal),
    /// The machine was asleep during the request; it is sent again at once.
    Slept,
    /// Trying again may help.
    Transient { what: String, retry_after: Option<Duration> },
    /// Trying again cannot help.
    Fatal(String),
}

/// What a refusal holds for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// A client error: later requests would be refused too.
    Server,
    /// A server error with the same words, which may be a passing fault: only this request.
    Request,
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

/// Interprets an HTTP status and the text that came with it.
///
/// Overflow is checked first: its messages often mention tools and streams too.
pub(super) fn classify(status: u16, text: &str, sent: Sent, retry_after: Option<Duration>) -> Failure {
    let lower = text.to_lowercase();
    let said = format!("status {status}{}", short(text));
    if matches!(status, 400 | 413 | 422 | 500) && speaks_of_overflow(&lower) {
        return Failure::Overflow(said);
    }
    let refusal = match status {
        400 | 404 | 422 => Some(Refusal::Server),
        500 | 501 => Some(Refusal::Request),
        _ => None,
    };
    if let Some(refusal) = refusal {
        if sent.stream && refuses(&lower, &STREAM_REFUSALS, &["stream", "stream_options"]) {
            return Failure::StreamRefused(refusal);
        }
        if sent.tools && refuses(&lower, &TOOL_REFUSALS, &["tools", "tool_choice", "functions"]) {
            return Failure::ToolsRefused(refusal);
        }
    }
    match status {
        408 | 409 | 425 | 429 | 500..=599 => Failure::Transient { what: said, retry_after },
        _ => Failure::Fatal(said),
    }
}

/// What servers answer that take no tools. Words such as "tool" alone say nothing: errors of any kind mention them.
const TOOL_REFUSALS: [&str; 12] = [
    "does not support tools",
    "do not support tools",
    "tools are not supported",
    "does not support tool use",
    "tool use is not supported",
    "no endpoints found that support tool use",
    "does not support tool calling",
    "tool calling is not supported",
    "does not support function calling",
    "function calling is not supported",
    "tool choice requires --enable-auto-tool-choice",
    "tools param requires --jinja flag",
];

/// What servers answer that do not stream.
const STREAM_REFUSALS: [&str; 5] = [
    "stream is not supported",
    "streaming is not supported",
    "streaming not supported",
    "does not support streaming",
    "must be verified to stream this model",
];

/// Returns whether a text has one of the phrases, or reports one of the parameters as not supported.
fn refuses(lower: &str, phrases: &[&str], parameters: &[&str]) -> bool {
    if phrases.iter().any(|phrase| lower.contains(phrase)) {
        return true;
    }
    let Ok(value) = serde_json::from_str::<serde_json::Value>(lower) else { return false };
    let is_named = |name: &serde_json::Value| name.as_str().is_some_and(|name| parameters.contains(&name));
    let error = &value["error"];
    let code = error["code"].as_str().unwrap_or_default();
    if is_named(&error["param"]) && matches!(code, "unsupported_parameter" | "unknown_parameter") {
        return true;
    }
    // Validation errors list the place of each unexpected field.
    value["detail"].as_array().into_iter().flatten().any(|problem| {
        let place = problem["loc"].as_array().and_then(|place| place.last());
        problem["type"] == "extra_forbidden" && place.is_some_and(is_named)
    })
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

/// Returns the beginning of a server's message, on one line.
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
            Failure::ToolsRefused(Refusal::Server) => "tools",
            Failure::StreamRefused(Refusal::Server) => "stream",
            Failure::ToolsRefused(Refusal::Request) => "tools once",
            Failure::StreamRefused(Refusal::Request) => "stream once",
            Failure::Slept => "slept",
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
            (
                422,
                r#"{"detail":[{"type":"extra_forbidden","loc":["body","tools"],"msg":"Extra inputs are not permitted"}]}"#,
                both,
                "tools",
            ),
            (
                400,
                r#"{"error":{"param":"tools","code":"unsupported_parameter","message":"no"}}"#,
                both,
                "tools",
            ),
            (400, r#"{"error":{"param":"tools[0]","code":"invalid_function_parameters"}}"#, both, "fatal"),
            (400, "invalid schema for function 'look': a tool needs a name", both, "fatal"),
            (404, "No endpoints found that support tool use", both, "tools"),
            (500, "cloud function timed out", both, "again"),
            (500, "the tool stream broke", both, "again"),
            (500, "this model does not support tools", both, "tools once"),
            (501, "streaming is not supported", both, "stream once"),
            (503, "this model does not support tools", both, "again"),
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
