//! Reads a stream of server-sent events, as far as Coder's watch routes use them.

use futures_util::StreamExt;
use reqwest::Response;
use tokio::time::{Instant, timeout_at};

/// Reads events one after the other.
pub(super) struct Events {
    chunks: std::pin::Pin<Box<dyn futures_util::Stream<Item = Option<Vec<u8>>> + Send>>,
    parser: Parser,
    most: usize,
}

/// One event.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) name: String,
    pub(super) data: String,
}

impl Events {
    /// Reads from `response`; an event larger than `most` bytes ends the stream.
    pub(super) fn new(response: Response, most: usize) -> Self {
        let chunks = response.bytes_stream().map(|chunk| chunk.ok().map(|bytes| bytes.to_vec()));
        Self { chunks: Box::pin(chunks), parser: Parser::default(), most }
    }

    /// The next event; none when the stream ended, broke, or the time is over.
    pub(super) async fn next(&mut self, until: Instant) -> Option<Event> {
        loop {
            if let Some(event) = self.parser.take() {
                return Some(event);
            }
            if self.parser.waiting.len() > self.most {
                return None;
            }
            let chunk = timeout_at(until, self.chunks.next()).await.ok()???;
            self.parser.waiting.extend_from_slice(&chunk);
        }
    }
}

#[derive(Debug, Default)]
struct Parser {
    waiting: Vec<u8>,
}

impl Parser {
    /// Takes the first complete event out of what has arrived.
    fn take(&mut self) -> Option<Event> {
        loop {
            let end = self.waiting.windows(2).position(|pair| pair == b"\n\n")?;
            let block: Vec<u8> = self.waiting.drain(..end + 2).collect();
            let event = parse(&String::from_utf8_lossy(&block));
            // Comments keep the connection open and say nothing.
            if !event.name.is_empty() || !event.data.is_empty() {
                return Some(event);
            }
        }
    }
}

fn parse(block: &str) -> Event {
    let mut event = Event { name: String::new(), data: String::new() };
    for line in block.lines() {
        if let Some(name) = line.strip_prefix("event:") {
            name.trim().clone_into(&mut event.name);
        } else if let Some(data) = line.strip_prefix("data:") {
            if !event.data.is_empty() {
                event.data.push('\n');
            }
            event.data.push_str(data.strip_prefix(' ').unwrap_or(data));
        }
    }
    event
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_taken_whole() {
        let mut parser = Parser::default();
        parser.waiting.extend_from_slice(b": hello\n\nevent: ping\n\nevent: data\ndata: [1,\nda");
        let event = |name: &str, data: &str| Some(Event { name: name.to_owned(), data: data.to_owned() });
        assert_eq!(parser.take(), event("ping", ""));
        assert_eq!(parser.take(), None);
        parser.waiting.extend_from_slice(b"ta:2]\n\n");
        assert_eq!(parser.take(), event("data", "[1,\n2]"));
        assert_eq!(parser.take(), None);
    }
}
