//! The two ways out: data to standard output, messages to standard error.
//!
//! Much of what is printed was written by agents or comes from other servers. A terminal would take control characters in it
//! for orders, so they are written out instead.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};

/// Colours that crewkit uses itself, and the end of them.
const COLOURS: [&str; 7] = ["\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[36m"];

/// Text without characters that a terminal acts on: each of them is written out as in JSON, `\u001b`.
///
/// Line breaks and tabs stay. JSON stays JSON with the same meaning.
pub fn printable(text: &str) -> Cow<'_, str> {
    without_controls(text, &[])
}

/// The same, but text may be coloured. What was not coloured by crewkit gains nothing by it.
fn printable_in_colour(text: &str) -> Cow<'_, str> {
    without_controls(text, &COLOURS)
}

/// Writes out control characters, except where one of the sequences `but` stands.
fn without_controls<'a>(text: &'a str, but: &[&str]) -> Cow<'a, str> {
    if !text.contains(is_control) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        let mut length = character.len_utf8();
        if let Some(sequence) = but.iter().find(|sequence| rest.starts_with(**sequence)) {
            safe.push_str(sequence);
            length = sequence.len();
        } else if rest.starts_with("\r\n") {
            // A line end of another system; the line feed comes next.
        } else if is_control(character) {
            let _ = write!(safe, "\\u{:04x}", u32::from(character));
        } else {
            safe.push(character);
        }
        rest = &rest[length..];
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

/// Writes text that crewkit has coloured.
pub fn coloured(text: &str) {
    bytes(printable_in_colour(text).as_bytes());
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
    let _ = writeln!(std::io::stderr().lock(), "{}", printable(text));
}

/// The same, for text that crewkit has coloured.
pub fn coloured_talk(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{}", printable_in_colour(text));
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
        let coloured = "\x1b[31mremoved\x1b[0m \x1b[8mhidden \x1b[2J";
        assert_eq!(printable_in_colour(coloured), "\x1b[31mremoved\x1b[0m \\u001b[8mhidden \\u001b[2J");
    }

    #[test]
    fn json_keeps_its_meaning() {
        let value = serde_json::json!({"said": "\u{1b}[2J\u{9b}1m\u{7f}\u{202e}\r\n"});
        let read: serde_json::Value = serde_json::from_str(&printable(&value.to_string())).unwrap();
        assert_eq!(read, value);
    }
}
