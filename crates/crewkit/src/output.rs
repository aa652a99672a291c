//! The two ways out: data to standard output, messages to standard error.
//!
//! Much of what is printed was written by agents or comes from other servers. A terminal would take control characters in it
//! for orders, so they are written out instead.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};

/// Text without characters that a terminal acts on: each of them is written out as in JSON, `\u001b`.
///
/// Line breaks and tabs stay. JSON stays JSON with the same meaning.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_control) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            // A line end of another system.
            '\r' if characters.peek() == Some(&'\n') => {}
            control if is_control(control) => {
                let _ = write!(safe, "\\u{:04x}", u32::from(control));
            }
            other => safe.push(other),
        }
    }
    Cow::Owned(safe)
}

/// Whether a terminal may act on a character: control characters of both sets, and those that reorder a line.
fn is_control(character: char) -> bool {
    let reorders =
        matches!(character, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    (character.is_control() && !matches!(character, '\n' | '\t')) || reorders
}

/// Writes text as data. A reader that has gone away is no error: `crewkit … | head` ends quietly.
pub fn data(text: &str) {
    bytes(printable(text).as_bytes());
}

/// Writes text that crewkit itself has coloured.
pub fn coloured(text: &str) {
    bytes(text.as_bytes());
}

/// Writes text that an agent made, as it is to a file or a program and without control characters to a terminal.
pub fn product(text: &str) {
    if std::io::stdout().is_terminal() { data(text) } else { bytes(text.as_bytes()) }
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
    coloured_talk(&printable(text));
}

/// The same, for text that crewkit itself has coloured.
pub fn coloured_talk(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_no_orders_from_agents() {
        for (text, safe) in [
            ("plain\ttext\n", "plain\ttext\n"),
            ("Größe 日本 🦀", "Größe 日本 🦀"),
            ("\x1b[2J\x1b]0;title\x07", "\\u001b[2J\\u001b]0;title\\u0007"),
            ("\u{9b}31m\u{7f}\0", "\\u009b31m\\u007f\\u0000"),
            ("one\r\ntwo\rthree", "one\ntwo\\u000dthree"),
            ("\u{202e}gpj.exe", "\\u202egpj.exe"),
        ] {
            assert_eq!(printable(text), safe);
        }
    }

    #[test]
    fn json_keeps_its_meaning() {
        let value = serde_json::json!({"said": "\u{1b}[2J\u{9b}1m\u{7f}\u{202e}\r\n"});
        let read: serde_json::Value = serde_json::from_str(&printable(&value.to_string())).unwrap();
        assert_eq!(read, value);
    }
}
