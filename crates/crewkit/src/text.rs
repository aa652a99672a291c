//! Text for people: tables, ages and shortened lines.

use std::time::SystemTime;

use jiff::Timestamp;
use serde_json::Value;

use crate::style::Style;

/// What a cell of a table says about its row, and so its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// Nothing in particular.
    Plain,
    /// Somebody has to do something.
    Waits,
    /// It ended well.
    Good,
    /// It failed.
    Bad,
}

impl Tone {
    /// `text` in the colour of the tone.
    pub fn paint(self, style: Style, text: &str) -> String {
        match self {
            Self::Plain => text.to_owned(),
            Self::Waits => style.yellow(text),
            Self::Good => style.green(text),
            Self::Bad => style.red(text),
        }
    }
}

/// One cell of a table.
#[derive(Debug, Clone)]
pub struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    /// A coloured cell.
    pub fn toned(text: impl Into<String>, tone: Tone) -> Self {
        Self { text: text.into(), tone }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::toned(text, Tone::Plain)
    }
}

/// Columns as wide as their widest cell; the last column is not padded.
pub fn table(style: Style, head: &[&str], rows: Vec<Vec<Cell>>) -> String {
    let mut lines = vec![head.iter().map(|&cell| Cell::from(cell.to_owned())).collect::<Vec<_>>()];
    lines.extend(rows);
    let width = |column: usize| {
        lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.text.chars().count()).max()
    };
    let widths: Vec<usize> = (0..head.len()).map(|column| width(column).unwrap_or(0)).collect();
    let mut page = String::new();
    for line in &lines {
        for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
            page.push_str(&cell.tone.paint(style, &cell.text));
            if column + 1 < line.len() {
                page.push_str(&" ".repeat(width - cell.text.chars().count() + 2));
            }
        }
        page.truncate(page.trim_end_matches(' ').len());
        page.push('\n');
    }
    page
}

/// How long ago an RFC 3339 time was, in the largest unit that fits: `8 min`, `2 h`, `9 d`.
pub fn age(time: &Value) -> String {
    let parsed = time.as_str().and_then(|text| text.parse::<Timestamp>().ok());
    parsed.map_or_else(|| "–".to_owned(), |time| age_at(time, SystemTime::now()))
}

fn age_at(time: Timestamp, now: SystemTime) -> String {
    let elapsed = now.duration_since(time.into()).unwrap_or_default().as_secs();
    match elapsed {
        0..60 => format!("{elapsed} s"),
        60..3_600 => format!("{} min", elapsed / 60),
        3_600..86_400 => format!("{} h", elapsed / 3_600),
        _ => format!("{} d", elapsed / 86_400),
    }
}

/// The seconds between two RFC 3339 times, for people; `None` unless both are known.
pub fn duration(from: &Value, to: &Value) -> Option<String> {
    let parse = |time: &Value| time.as_str().and_then(|text| text.parse::<Timestamp>().ok());
    let millis = (parse(to)?.as_millisecond() - parse(from)?.as_millisecond()).max(0);
    Some(match millis / 1000 {
        0..60 => format!("{}.{} s", millis / 1000, millis % 1000 / 100),
        seconds @ 60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        seconds => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
    })
}

/// The first `most` characters of a text on one line.
pub fn shorten(text: &str, most: usize) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(most) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    }
}

/// A JSON value as a cell shows it; `–` when there is none.
pub fn shown(value: &Value) -> String {
    match value {
        Value::Null => "–".to_owned(),
        Value::String(text) if text.is_empty() => "–".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The text at `key`; empty when there is none.
pub fn field<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// `1 run`, `2 runs`.
pub fn count(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    #[test]
    fn columns_are_aligned_whatever_their_colour() {
        let rows = || {
            vec![
                vec![Cell::from("a".to_owned()), Cell::toned("✕ stopped", Tone::Bad), "x".to_owned().into()],
                vec![Cell::from("longer".to_owned()), "y".to_owned().into(), "–".to_owned().into()],
            ]
        };
        let plain = table(Style::Plain, &["ID", "STATUS", "TASK"], rows());
        assert_eq!(plain, "ID      STATUS     TASK\na       ✕ stopped  x\nlonger  y          –\n");
        let coloured = table(Style::Colour, &["ID", "STATUS", "TASK"], rows());
        assert_eq!(coloured.replace("\x1b[31m", "").replace("\x1b[0m", ""), plain);
        assert_ne!(coloured, plain);
    }

    #[test]
    fn times_are_relative() {
        let time: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let start = SystemTime::from(time);
        for (seconds, expected) in
            [(0, "0 s"), (59, "59 s"), (60, "1 min"), (7_199, "1 h"), (86_400, "1 d"), (900_000, "10 d")]
        {
            assert_eq!(age_at(time, start + Duration::from_secs(seconds)), expected);
        }
        assert_eq!(age_at(time, start - Duration::from_secs(5)), "0 s");
        assert_eq!(age(&Value::Null), "–");
        let between = |to: &str| duration(&json!("2026-01-02T03:04:05.000Z"), &json!(to));
        assert_eq!(between("2026-01-02T03:04:05.349Z").as_deref(), Some("0.3 s"));
        assert_eq!(between("2026-01-02T03:06:06Z").as_deref(), Some("2 min 1 s"));
        assert_eq!(between("2026-01-02T05:05:06Z").as_deref(), Some("2 h 1 min"));
        assert_eq!(between("later"), None);
    }

    #[test]
    fn long_texts_are_one_short_line() {
        assert_eq!(shorten("one\n  two three", 7), "one two…");
        assert_eq!(shorten("one", 3), "one");
    }
}
