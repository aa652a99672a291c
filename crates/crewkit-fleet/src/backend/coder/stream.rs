//! Takes a long list of JSON objects apart while it arrives.
//!
//! A page of workspaces can be ten megabytes, nearly all of it skipped. Each element is handed on as soon as it is
//! complete and its memory used again, so that a page costs the memory of its largest element.

/// Splits `{"…": [{…}, {…}], …}` into its elements and the rest.
#[derive(Debug)]
pub(super) struct Splitter {
    depth: u32,
    /// Whether what stands at depth two is a list, not an object.
    in_list: bool,
    in_string: bool,
    escaped: bool,
    element: Vec<u8>,
    rest: Vec<u8>,
    longest: usize,
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

impl Splitter {
    /// Refuses elements of more than `longest` bytes.
    pub(super) fn new(longest: usize) -> Self {
        Self {
            depth: 0,
            in_list: false,
            in_string: false,
            escaped: false,
            element: Vec::new(),
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
            if self.in_string && !self.escaped {
                // Nearly everything is in strings, and of them only the end matters.
                let rest = bytes.get(index..).unwrap_or_default();
                let Some(found) = memchr::memchr2(b'"', b'\\', rest) else { break };
                index += found + 1;
                self.escaped = rest.get(found) == Some(&b'\\');
                self.in_string = self.escaped;
                continue;
            }
            index += 1;
            if self.escaped {
                self.escaped = false;
                continue;
            }
            match byte {
                b'"' => self.in_string = true,
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
        if self.depth != 0 || self.in_string { Err(SplitError::Truncated) } else { Ok(self.rest) }
    }

    fn at_list(&self) -> bool {
        self.in_list && self.depth == LIST_DEPTH
    }

    fn keep(&mut self, bytes: Option<&[u8]>) -> Result<(), SplitError> {
        let is_element = self.in_list && self.depth > LIST_DEPTH;
        let target = if is_element { &mut self.element } else { &mut self.rest };
        let bytes = bytes.unwrap_or_default();
        if target.len() + bytes.len() > self.longest {
            return Err(SplitError::TooLarge(self.longest));
        }
        target.extend_from_slice(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn split(text: &[u8], sizes: &[usize]) -> Result<(Vec<Value>, Value), SplitError> {
        let mut splitter = Splitter::new(10_000);
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
        let long = format!("{{\"w\":[{{\"a\":\"{}\"}}]}}", "x".repeat(20_000));
        assert_eq!(split(long.as_bytes(), &[1000]), Err(SplitError::TooLarge(10_000)));
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
