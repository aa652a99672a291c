//! What an agent was told and said, from the transcripts of its runs and the files of its processes.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use crewkit_agent::contract::End;
use crewkit_agent::driver::{Format, Reading};
use crewkit_agent::{EventBody, Usage};

use super::held::Files;

/// Longest line of output that is understood; a longer one is passed over.
const LINE_BYTES: u64 = 4 * 1024 * 1024;
/// Last words of standard error in a report.
const COMPLAINT_BYTES: u64 = 2000;

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

/// What a process has printed so far, as transcript entries. Blocks.
pub(crate) fn entries(dir: &Path, format: Format) -> Vec<EventBody> {
    let mut entries = Vec::new();
    read(dir, format, |entry| entries.push(entry));
    entries
}

/// How the work of a process ended, and the tokens it took. Blocks.
pub(crate) fn end(dir: &Path, format: Format, name: &str, success: bool, how: &str) -> (End, u64) {
    let mut used = Usage::default();
    let mut reading = read(dir, format, |entry| {
        if let EventBody::Assistant { usage: Some(usage), .. } = entry {
            used = used.plus(usage);
        }
    });
    let complaints = last_words(&Files::in_dir(dir).stderr());
    (reading.end(name, success, how, complaints.trim()), used.total())
}

fn read(dir: &Path, format: Format, mut found: impl FnMut(EventBody)) -> Reading {
    let mut reading = Reading::new(format);
    let Ok(file) = std::fs::File::open(Files::in_dir(dir).stdout()) else { return reading };
    let mut reader = BufReader::new(file);
    let mut line = Vec::new();
    loop {
        line.clear();
        match reader.by_ref().take(LINE_BYTES).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return reading,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&line);
        reading.line(text.trim_end_matches(['\n', '\r'])).into_iter().for_each(&mut found);
    }
}

fn last_words(path: &Path) -> String {
    let Ok(mut file) = std::fs::File::open(path) else { return String::new() };
    let length = file.metadata().map_or(0, |metadata| metadata.len());
    let from = length.saturating_sub(COMPLAINT_BYTES);
    let mut bytes = Vec::new();
    let read = std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(from))
        .and_then(|_| file.take(COMPLAINT_BYTES).read_to_end(&mut bytes));
    if read.is_err() { String::new() } else { String::from_utf8_lossy(&bytes).into_owned() }
}
