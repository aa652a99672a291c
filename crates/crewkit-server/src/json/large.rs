//! Large strings of a document, read apart from the rest of it.
//!
//! A payload of fifty megabytes is one string, and the parser reads a string in one go: for as long as a scheduler lets a
//! thread compute before it looks who else wants the core, anybody else may have to wait. So large strings are read here,
//! piece by piece with a pause after each, and the parser gets a document in which they are empty.

use std::cell::RefCell;

use crewkit_agent::pace;
use memchr::{memchr, memchr2};

/// Strings beyond this are large, and read in pieces of this.
pub(super) const PIECE: usize = 64 * 1024;
/// Bytes read between two pauses, which takes about a millisecond.
const BETWEEN_PAUSES: usize = 512 * 1024;

/// A document without its large strings, and these.
#[derive(Default)]
pub(super) struct Large {
    rest: Vec<u8>,
    /// Where they belong in `rest`, in order.
    strings: RefCell<std::collections::VecDeque<(usize, String)>>,
}

impl Large {
    /// Takes the strings out that are longer than a piece. `None` when there are none, or something is wrong with them.
    pub(super) fn of(bytes: &[u8], piece: usize) -> Option<Self> {
        let mut large = Self::default();
        let (mut at, mut copied) = (0, 0);
        while let Some(quote) = bytes.get(at..).and_then(|left| memchr(b'"', left)) {
            let begin = at + quote + 1;
            let (first, closed) = piece_end(bytes, begin, piece)?;
            if closed {
                at = first + 1;
                continue;
            }
            let (text, end) = read(bytes, begin, first, piece)?;
            at = end + 1;
            // Keys are left to the parser, which compares them.
            let next = bytes[at..].iter().find(|byte| !byte.is_ascii_whitespace());
            if next == Some(&b':') {
                continue;
            }
            large.rest.extend_from_slice(&bytes[copied..begin]);
            large.strings.get_mut().push_back((large.rest.len(), text));
            copied = end;
        }
        if large.strings.get_mut().is_empty() {
            return None;
        }
        large.rest.extend_from_slice(&bytes[copied..]);
        Some(large)
    }

    /// The document, with nothing between the quotes of its large strings.
    pub(super) fn rest(&self) -> &[u8] {
        &self.rest
    }

    /// The string that belongs where the parser has found `empty`.
    pub(super) fn take(&self, empty: &str) -> Option<String> {
        if !empty.is_empty() {
            return None;
        }
        let mut strings = self.strings.borrow_mut();
        let here = empty.as_ptr().addr().checked_sub(self.rest.as_ptr().addr())?;
        let (_, text) = strings.pop_front_if(|(place, _)| *place == here)?;
        Some(text)
    }

    pub(super) fn all_taken(&self) -> bool {
        self.strings.borrow().is_empty()
    }
}

/// Reads the string that begins at `begin` and whose first piece ends at `first`; also where its closing quote is.
fn read(bytes: &[u8], begin: usize, first: usize, piece: usize) -> Option<(String, usize)> {
    let mut text = String::with_capacity(bytes.len() - begin);
    let mut quoted = Vec::with_capacity(piece + 16);
    let (mut from, mut end, mut closed, mut at_pause) = (begin, first, false, 0);
    loop {
        quoted.clear();
        quoted.push(b'"');
        quoted.extend_from_slice(&bytes[from..end]);
        quoted.push(b'"');
        let part: std::borrow::Cow<'_, str> = serde_json::from_slice::<Piece<'_>>(&quoted).ok()?.0;
        text.push_str(&part);
        if closed {
            // It had room for all that follows it in the document.
            text.shrink_to_fit();
            return Some((text, end));
        }
        if text.len() - at_pause > BETWEEN_PAUSES {
            at_pause = text.len();
            pace::pause();
        }
        from = end;
        (end, closed) = piece_end(bytes, from, piece)?;
    }
}

/// Borrows what has no escapes.
#[derive(serde::Deserialize)]
struct Piece<'a>(#[serde(borrow)] std::borrow::Cow<'a, str>);

/// Where the part of a string that begins at `from` may be cut, at its closing quote (`true`) or about a piece later. `None`
/// when there is no such place.
fn piece_end(bytes: &[u8], from: usize, piece: usize) -> Option<(usize, bool)> {
    let limit = from + piece;
    let mut at = from;
    while at < limit {
        let window = bytes.get(at..limit.min(bytes.len()))?;
        let Some(found) = memchr2(b'"', b'\\', window) else {
            // Not within a character.
            let mut cut = limit;
            while bytes.get(cut)? & 0b1100_0000 == 0b1000_0000 {
                cut -= 1;
            }
            return (cut > from).then_some((cut, false));
        };
        at += found;
        if bytes.get(at) == Some(&b'"') {
            return Some((at, true));
        }
        at += escape_length(bytes.get(at..)?);
    }
    // An escape went beyond the limit, maybe beyond the end.
    (at < bytes.len()).then_some((at, false))
}

/// Bytes of the escape `rest` begins with; the two halves of a character count as one.
fn escape_length(rest: &[u8]) -> usize {
    match rest {
        [_, b'u', b'd' | b'D', b'8' | b'9' | b'a' | b'b' | b'A' | b'B', _, _, b'\\', b'u', ..] => 12,
        [_, b'u', ..] => 6,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::{parse, parse_with};
    use super::*;

    /// Reads with pieces of a few bytes; what comes of it, and how many strings were read apart.
    fn apart(text: &str, piece: usize) -> Option<(Value, usize)> {
        let large = Large::of(text.as_bytes(), piece)?;
        let count = large.strings.borrow().len();
        let value = parse_with(large.rest(), 8, &large).ok()?;
        assert!(large.all_taken(), "{text}");
        Some((value, count))
    }

    #[test]
    fn strings_come_back_where_they_were() {
        for (text, count) in [
            (r#"{"a":"0123456789","b":["","x","abcdefghijklm"],"c":{"d":"9876543210"}}"#, 3),
            (r#"{"0123456789":1,"b" : "","c":"0123456789"}"#, 1),
            (r#""0123456789""#, 1),
            (r#"["a\nb\"c\\d\u00e9\ud83d\ude00\u0041\u0042 and more"]"#, 1),
            ("[\"ééééééééééé\u{1f600}\u{1f600}\u{1f600}\",\"\"]", 1),
        ] {
            let ordinary: Value = serde_json::from_str(text).unwrap();
            assert_eq!(apart(text, 7), Some((ordinary.clone(), count)), "{text}");
            for piece in 1..12 {
                if let Some((value, _)) = apart(text, piece) {
                    assert_eq!(value, ordinary, "{text} {piece}");
                }
            }
        }
    }

    #[test]
    fn nothing_wrong_is_made_right() {
        for text in [
            r#"{"a":"0123456789"#,
            r#"{"a":"01234\u12"56789"}"#,
            r#"{"a":"0123456789\ud800"}"#,
            r#"{"a":"0123456789\x"}"#,
            r#"{"a":"0123456789\"#,
            "{\"a\":\"0123456\n789\"}",
            r#"{"a":"0123456789","a":"0123456789"}"#,
            r#"{"a":"0123456789"} x"#,
        ] {
            for piece in 1..12 {
                assert_eq!(apart(text, piece), None, "{text} {piece}");
            }
        }
    }

    #[test]
    fn many_strings_take_no_more_room_than_they_need() {
        let text = serde_json::to_string(&vec!["x".repeat(100); 50]).unwrap();
        let strings = Large::of(text.as_bytes(), 10).unwrap().strings.into_inner();
        assert_eq!(strings.len(), 50);
        assert!(strings.iter().all(|(_, string)| string.capacity() == 100));
    }

    #[test]
    fn an_error_tells_its_place_in_the_whole() {
        let text = format!("{{\"a\":\"{}\",\n\"b\":?}}", "x".repeat(PIECE + 1));
        let error = parse(text.as_bytes(), 8).unwrap_err();
        assert_eq!((error.line(), error.column()), (2, 5));
    }

    proptest::proptest! {
        #[test]
        fn reads_what_the_parser_reads(texts in proptest::collection::vec(".{0,40}", 0..6), piece in 1_usize..20) {
            let value: Value = texts.iter().cloned().map(Value::String).collect();
            let text = value.to_string();
            if let Some((read, _)) = apart(&text, piece) {
                proptest::prop_assert_eq!(read, value);
            }
        }

        /// Escapes, quotes and broken characters in any order.
        #[test]
        fn agrees_about_anything(inner in "[\"\\\\ud8c:,0-9a\u{e9}\n]{0,60}", piece in 1_usize..20) {
            let text = format!("[\"{inner}\"]");
            let none = Large::default();
            let ordinary = parse_with(text.as_bytes(), 8, &none).ok();
            if let Some(large) = Large::of(text.as_bytes(), piece)
                && let Ok(value) = parse_with(large.rest(), 8, &large)
                && large.all_taken()
            {
                proptest::prop_assert_eq!(Some(value), ordinary);
            }
        }
    }
}
