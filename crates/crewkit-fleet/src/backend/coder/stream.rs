//! Takes a long list of JSON objects apart while it arrives.
//!
//! A page of workspaces can be ten megabytes, nearly all of it skipped. Each element is handed on as soon as it is
//! complete and its memory used again, so that a page costs the memory of its largest element. Texts longer than any
//! that is in use (scripts, above all) are not even copied: an element has an empty text in their place.

/// Splits `{"…": [{…}, {…}], …}` into its elements and the rest.
#[derive(Debug)]
pub(super) struct Splitter {
    depth: u32,
    /// Whether what stands at depth two is a list, not an object.
    in_list: bool,
    text: Option<Text>,
    element: Vec<u8>,
    /// Bytes of the element that were not kept.
    left_out: usize,
    rest: Vec<u8>,
    longest: usize,
}

/// A string that is being read.
#[derive(Debug, Clone, Copy, Default)]
struct Text {
    /// Whether the next byte stands behind a backslash.
    escaped: bool,
    /// Its bytes that came in earlier pieces.
    before: usize,
    /// Whether it turned out too long, so that none of it is kept.
    dropped: bool,
}

/// Why a list cannot be taken apart.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SplitError {
    #[error("an element is larger than {0} bytes")]
    TooLarge(usize),
    #[error("the answer ends in the middle")]
    Truncated,
    #[error("the answer is not JSON")]
    Unbalanced,
}

/// Depth of what stands inside a list of the outermost object.
const LIST_DEPTH: u32 = 2;

/// Longest text of an element that is kept. Coder cuts what agents report at 160 characters; the longest text in use is
/// the error of a build.
const LONGEST_TEXT: usize = 8 * 1024;

impl Splitter {
    /// Refuses elements of more than `longest` bytes.
    pub(super) fn new(longest: usize) -> Self {
        Self {
            depth: 0,
            in_list: false,
            text: None,
            element: Vec::new(),
            left_out: 0,
            rest: Vec::new(),
            longest,
        }
    }

    /// Takes the next bytes; calls `on_element` for every element that is complete.
    pub(super) fn feed<E: From<SplitError>>(
        &mut self,
        bytes: &[u8],
        mut on_element: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        // Bytes from `start` on belong to what was being read when the slice began or the last boundary passed.
        let mut start = 0;
        let mut index = 0;
        while let Some(&byte) = bytes.get(index) {
            if let Some(text) = self.text {
                index = self.read_text(text, bytes, index, &mut start)?;
                continue;
            }
            index += 1;
            match byte {
                b'"' => self.text = Some(Text::default()),
                b'{' if self.at_list() => {
                    self.keep(bytes.get(start..index - 1))?;
                    start = index - 1;
                    self.depth += 1;
                }
                b'{' | b'[' => {
                    self.depth += 1;
                    if self.depth == LIST_DEPTH {
                        self.in_list = byte == b'[';
                    }
                }
                b'}' | b']' => {
                    self.depth = self.depth.checked_sub(1).ok_or(SplitError::Unbalanced)?;
                    let element_ends = self.at_list() && byte == b'}';
                    if element_ends {
                        self.depth += 1;
                        self.keep(bytes.get(start..index))?;
                        self.depth -= 1;
                        start = index;
                        on_element(&self.element)?;
                        self.element.clear();
                        self.left_out = 0;
                    }
                }
                // The comma between two elements goes with them.
                b',' if self.at_list() => {
                    self.keep(bytes.get(start..index - 1))?;
                    start = index;
                }
                _ => {}
            }
        }
        self.keep(bytes.get(start..))?;
        Ok(())
    }

    /// What is left when the elements are taken out: `{"…": [], …}`.
    pub(super) fn finish(self) -> Result<Vec<u8>, SplitError> {
        if self.depth != 0 || self.text.is_some() { Err(SplitError::Truncated) } else { Ok(self.rest) }
    }

    /// Reads on in a string from `index`, and gives the index behind its end or behind the last byte there is. What is
    /// not to be kept is left out by keeping what is before it and moving `start` behind it.
    fn read_text(
        &mut self,
        mut text: Text,
        bytes: &[u8],
        index: usize,
        start: &mut usize,
    ) -> Result<usize, SplitError> {
        let (end, is_closed) = text_end(bytes, index + usize::from(text.escaped));
        let length = text.before + (end - index);
        if self.is_element() && length > LONGEST_TEXT {
            if !text.dropped {
                self.keep(bytes.get(*start..index))?;
                self.element.truncate(self.element.len().saturating_sub(text.before));
                self.left_out += text.before;
                text.dropped = true;
            }
            self.left_out += end - index;
            *start = end;
        }
        if is_closed {
            self.text = None;
            // The quote itself.
            return Ok(end + 1);
        }
        let escaped = ends_escaped(bytes, index + usize::from(text.escaped));
        self.text = Some(Text { escaped, before: length, ..text });
        Ok(bytes.len())
    }

    fn at_list(&self) -> bool {
        self.in_list && self.depth == LIST_DEPTH
    }

    fn is_element(&self) -> bool {
        self.in_list && self.depth > LIST_DEPTH
    }

    fn keep(&mut self, bytes: Option<&[u8]>) -> Result<(), SplitError> {
        let bytes = bytes.unwrap_or_default();
        let (target, left_out) =
            if self.is_element() { (&mut self.element, self.left_out) } else { (&mut self.rest, 0) };
        if target.len() + left_out + bytes.len() > self.longest {
            return Err(SplitError::TooLarge(self.longest));
        }
        target.extend_from_slice(bytes);
        Ok(())
    }
}

/// Where the string that is read from `from` on ends: at its closing quote, or with the bytes. Nearly everything is in
/// strings, and of them only the end matters; so quotes are looked for, and only before one what escapes it.
fn text_end(bytes: &[u8], from: usize) -> (usize, bool) {
    let mut index = from;
    while let Some(found) = bytes.get(index..).and_then(|rest| memchr::memchr(b'"', rest)) {
        let quote = index + found;
        if !ends_escaped(bytes.get(..quote).unwrap_or_default(), from) {
            return (quote, true);
        }
        index = quote + 1;
    }
    (bytes.len(), false)
}

/// Whether what follows `bytes` stands behind a backslash that is not escaped itself; `from` is not.
fn ends_escaped(bytes: &[u8], from: usize) -> bool {
    let slashes =
        bytes.get(from..).unwrap_or_default().iter().rev().take_while(|byte| **byte == b'\\').count();
    slashes % 2 == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn split(text: &[u8], sizes: &[usize]) -> Result<(Vec<Value>, Value), SplitError> {
        let mut splitter = Splitter::new(100_000);
        let mut elements = Vec::new();
        let mut rest = text;
        let mut sizes = sizes.iter().copied().cycle();
        while !rest.is_empty() {
            let size = sizes.next().unwrap_or(1).clamp(1, rest.len());
            let (chunk, left) = rest.split_at(size);
            splitter.feed::<SplitError>(chunk, |element| {
                elements.push(serde_json::from_slice(element).unwrap());
                Ok(())
            })?;
            rest = left;
        }
        let rest = splitter.finish()?;
        Ok((elements, serde_json::from_slice(&rest).map_err(|_| SplitError::Unbalanced)?))
    }

    #[test]
    fn elements_are_found_wherever_the_bytes_are_cut() {
        let elements =
            [json!({"a": "} ] \\\" [ {", "b": [[{"c": {}}], "x,y"]}), json!({}), json!({"é": "\u{1F600}"})];
        let text = format!(
            "{{ \"count\" : 3, \"workspaces\": [ {} ,{},\n{} ] , \"more\": {{\"x\": [1, {{}}], \"y\": {{}}}} }}",
            elements[0], elements[1], elements[2]
        );
        for size in 1..text.len() {
            let (found, rest) = split(text.as_bytes(), &[size]).unwrap();
            assert_eq!(found, elements, "cut every {size}");
            assert_eq!((&rest["count"], &rest["workspaces"]), (&json!(3), &json!([])));
        }
    }

    #[test]
    fn what_is_no_list_is_refused() {
        assert_eq!(split(b"{\"workspaces\":[{\"a\":1}", &[3]), Err(SplitError::Truncated));
        assert_eq!(split(b"{\"workspaces\":[{\"a\":\"", &[3]), Err(SplitError::Truncated));
        assert_eq!(split(b"]", &[1]), Err(SplitError::Unbalanced));
        assert_eq!(split(b"{\"workspaces\":null,\"count\":0}", &[4]).unwrap().0, Vec::<Value>::new());
        for text in ["x", "1,"] {
            let long = format!("{{\"w\":[{{\"a\":\"{}\"}}]}}", text.repeat(110_000));
            assert_eq!(split(long.as_bytes(), &[1000]), Err(SplitError::TooLarge(100_000)), "a text");
            let long = format!("{{\"w\":[{{\"a\":[{}1]}}]}}", text.repeat(110_000));
            assert_eq!(split(long.as_bytes(), &[1000]), Err(SplitError::TooLarge(100_000)), "something else");
        }
    }

    #[test]
    fn a_text_longer_than_any_in_use_is_left_out_wherever_the_bytes_are_cut() {
        let escapes = "\\\"\u{1}é\\";
        for (length, is_kept) in [(LONGEST_TEXT, true), (LONGEST_TEXT + 1, false), (3 * LONGEST_TEXT, false)]
        {
            for tail in ["", escapes] {
                let raw = json!(tail).to_string();
                let long = format!("{}{tail}", "x".repeat(length + 2 - raw.len()));
                let element = json!({"a": "short", "script": long, "b": [long, escapes], long.clone(): 1});
                let kept = if is_kept {
                    element.clone()
                } else {
                    json!({"a": "short", "script": "", "b": ["", escapes], "": 1})
                };
                let text = json!({"w": [element, element], "count": 2}).to_string();
                for size in [1, 2, 7, 100, 8191, 8192, 8193, 20_000, text.len()] {
                    let (found, rest) = split(text.as_bytes(), &[size]).unwrap();
                    assert_eq!(found, [kept.clone(), kept.clone()], "{length} {tail:?} cut every {size}");
                    assert_eq!(rest["count"], 2);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), size in 1_usize..20) {
            let mut splitter = Splitter::new(1000);
            for chunk in bytes.chunks(size) {
                if splitter.feed::<SplitError>(chunk, |_| Ok(())).is_err() {
                    break;
                }
            }
        }
    }
}
