//! Server-sent events, as models and tool servers stream them.

/// Splits bytes into the data of events. The caller limits the number of bytes.
#[derive(Debug, Default)]
pub(crate) struct SseParser {
    line: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    after_cr: bool,
}

/// Bytes of an event that are not UTF-8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotUtf8;

impl SseParser {
    /// Consumes bytes and calls `event` for each complete event.
    pub(crate) fn feed(&mut self, bytes: &[u8], event: &mut dyn FnMut(&str)) -> Result<(), NotUtf8> {
        for &byte in bytes {
            match byte {
                b'\n' if self.after_cr => self.after_cr = false,
                b'\n' | b'\r' => {
                    self.after_cr = byte == b'\r';
                    self.end_line(event)?;
                }
                other => {
                    self.after_cr = false;
                    self.line.push(other);
                }
            }
        }
        Ok(())
    }

    /// Calls `event` for a last event that is not followed by a blank line.
    pub(crate) fn finish(&mut self, event: &mut dyn FnMut(&str)) -> Result<(), NotUtf8> {
        if !self.line.is_empty() {
            self.end_line(event)?;
        }
        self.dispatch(event)
    }

    fn end_line(&mut self, event: &mut dyn FnMut(&str)) -> Result<(), NotUtf8> {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            return self.dispatch(event);
        }
        if let Some(value) = line.strip_prefix(b"data:") {
            if self.has_data {
                self.data.push(b'\n');
            }
            self.data.extend_from_slice(value.strip_prefix(b" ").unwrap_or(value));
            self.has_data = true;
        }
        Ok(())
    }

    fn dispatch(&mut self, event: &mut dyn FnMut(&str)) -> Result<(), NotUtf8> {
        if std::mem::take(&mut self.has_data) {
            let data = std::mem::take(&mut self.data);
            event(std::str::from_utf8(&data).map_err(|_| NotUtf8)?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(pieces: &[&[u8]]) -> Vec<String> {
        let (mut parser, mut events) = (SseParser::default(), Vec::new());
        for piece in pieces {
            parser.feed(piece, &mut |data| events.push(data.to_owned())).unwrap();
        }
        parser.finish(&mut |data| events.push(data.to_owned())).unwrap();
        events
    }

    #[test]
    fn events_end_at_blank_lines() {
        assert_eq!(
            parse(&[b": hello\ndata: a\n\nevent: x\ndata:b\r\n\r\nid: 4\n\ndata: c\ndata: d"]),
            ["a", "b", "c\nd"]
        );
    }

    #[test]
    fn bytes_that_are_no_text_are_an_error() {
        let mut parser = SseParser::default();
        assert_eq!(parser.feed(b"data: \xff\xfe\n\n", &mut |_| {}), Err(NotUtf8));
    }

    proptest! {
        #[test]
        fn where_the_pieces_are_cut_does_not_matter(cuts in prop::collection::vec(0_usize..40, 0..6)) {
            let text = "data: é one\r\n\r\n: c\rdata: two\rdata: 2\r\rdata: x\n\n".as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
            prop_assert_eq!(parse(&pieces), ["é one", "two\n2", "x"]);
        }
    }
}
