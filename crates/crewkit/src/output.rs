//! The two ways out: data to standard output, talk to standard error.

use std::io::Write as _;

/// Writes data. A reader that has gone away is no error: `crewkit … | head` ends quietly.
pub fn data(text: &str) {
    bytes(text.as_bytes());
}

/// Writes data that need not be text.
pub fn bytes(bytes: &[u8]) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(bytes).and_then(|()| out.flush());
}

/// Writes JSON for people and programs.
pub fn json(value: &serde_json::Value) {
    written(|out| Ok(serde_json::to_writer_pretty(out, value)?));
}

/// Writes data piece by piece and ends the line: a long plan is never held as text.
pub fn written(write: impl FnOnce(&mut dyn std::io::Write) -> std::io::Result<()>) {
    let mut out = std::io::BufWriter::with_capacity(64 * 1024, std::io::stdout().lock());
    let _ = write(&mut out).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush());
}

/// Writes one line of data.
pub fn data_line(text: &str) {
    data(&format!("{text}\n"));
}

/// Says something to the person at the terminal.
pub fn talk(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
