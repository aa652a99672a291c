//! Reading lines of foreign programs without trusting their length.

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, BufReader};

/// Reads lines; of one that is too long only the beginning is kept.
#[derive(Debug)]
pub(crate) struct Lines<R> {
    reader: BufReader<R>,
    limit: usize,
    begun: Option<Begun>,
}

/// The part of a line that has arrived.
#[derive(Debug, Default)]
struct Begun {
    bytes: Vec<u8>,
    cut: bool,
}

/// A line without its ending.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) text: String,
    /// Whether it was longer than the limit.
    pub(crate) cut: bool,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(crate) fn new(reader: R, limit: u64) -> Self {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX).max(1);
        Self { reader: BufReader::with_capacity(16 * 1024, reader), limit, begun: None }
    }

    /// The next line; `None` at the end. Bytes that are no text are replaced. A call may be abandoned: what has arrived of
    /// a line is kept for the next one.
    pub(crate) async fn next(&mut self) -> std::io::Result<Option<Line>> {
        loop {
            let available = self.reader.fill_buf().await?;
            if available.is_empty() {
                if self.begun.is_none() {
                    return Ok(None);
                }
                break;
            }
            let begun = self.begun.get_or_insert_default();
            let newline = available.iter().position(|byte| *byte == b'\n');
            let piece = &available[..newline.unwrap_or(available.len())];
            let room = self.limit.saturating_sub(begun.bytes.len());
            begun.cut |= piece.len() > room;
            begun.bytes.extend_from_slice(&piece[..piece.len().min(room)]);
            let used = newline.map_or(available.len(), |at| at + 1);
            std::pin::Pin::new(&mut self.reader).consume(used);
            if newline.is_some() {
                break;
            }
        }
        let Begun { mut bytes, cut } = self.begun.take().unwrap_or_default();
        if bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
        let text = match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(bad) => String::from_utf8_lossy(bad.as_bytes()).into_owned(),
        };
        Ok(Some(Line { text, cut }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn long_lines_are_cut_and_the_next_one_is_whole() {
        let text = format!("short\r\n{}\n\nlast", "x".repeat(100_000));
        let mut lines = Lines::new(text.as_bytes(), 10);
        let mut seen = Vec::new();
        while let Some(line) = lines.next().await.unwrap() {
            seen.push((line.text, line.cut));
        }
        let expected = [("short", false), ("xxxxxxxxxx", true), ("", false), ("last", false)];
        assert_eq!(seen, expected.map(|(text, cut)| (text.to_owned(), cut)));
    }
}
