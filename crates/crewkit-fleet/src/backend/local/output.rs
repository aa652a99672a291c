//! What an agent was told and said, from the transcripts of its runs.

use std::io::{BufRead, BufReader};
use std::path::Path;

use crewkit_agent::EventBody;
use crewkit_agent::driver::{Format, understand};

/// The words of a transcript entry, if it says something.
pub(crate) fn words(body: &EventBody) -> Option<String> {
    let text = match body {
        EventBody::Assistant { content, tool_calls, .. } => {
            let calls = tool_calls.iter().map(|call| format!("[{} {}]", call.name, call.arguments));
            let said = (!content.trim().is_empty()).then(|| content.trim().to_owned());
            said.into_iter().chain(calls).collect::<Vec<_>>().join("\n")
        }
        EventBody::ToolResult { name, content, is_error, .. } => {
            let mark = if *is_error { " failed" } else { "" };
            format!("[{name}{mark}] {content}")
        }
        EventBody::User { content } | EventBody::Note { content } | EventBody::Error { content } => {
            content.clone()
        }
        EventBody::Compacted { .. } | EventBody::Nudge { .. } | EventBody::Status { .. } => return None,
    };
    (!text.trim().is_empty()).then_some(text)
}

/// What a process of a task that was no run has printed, as transcript entries. Blocks.
pub(crate) fn entries(dir: &Path, format: Format) -> Vec<EventBody> {
    let Ok(file) = std::fs::File::open(dir.join("stdout")) else { return Vec::new() };
    let lines = BufReader::new(file).split(b'\n').map_while(Result::ok);
    understand(format, lines.map(|line| String::from_utf8_lossy(&line).trim_end().to_owned()))
}
