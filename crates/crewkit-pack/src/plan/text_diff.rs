//! Differences between texts, line by line.
//!
//! A line ends with a line feed and nothing else: were a carriage return the end of a line too, as for the diff library, a
//! patch could not be read back, since its own lines would be torn.

use std::fmt::Write as _;
use std::ops::Range;
use std::time::Duration;

use similar::{Algorithm, ChangeTag, TextDiff, TextDiffConfig};

/// Lines of context around a change.
const CONTEXT: usize = 3;

/// The lines of a text, each with its end.
pub(crate) fn lines(text: &str) -> Vec<&str> {
    text.split_inclusive('\n').collect()
}

/// How texts are compared; coarser once `patience` runs out.
pub(crate) fn comparison(patience: Option<Duration>) -> TextDiffConfig {
    let mut config = TextDiff::configure();
    config.algorithm(Algorithm::Myers);
    if let Some(patience) = patience {
        config.timeout(patience);
    }
    config
}

/// The unified diff that turns `before` into `after`; empty when they are equal.
pub(crate) fn unified(path: &str, before: &str, after: &str, patience: Option<Duration>) -> String {
    let diff = comparison(patience).diff_slices(&lines(before), &lines(after));
    let mut text = String::new();
    for ops in diff.grouped_ops(CONTEXT) {
        let (Some(first), Some(last)) = (ops.first(), ops.last()) else { continue };
        if text.is_empty() {
            let _ = writeln!(text, "--- a/{path}\n+++ b/{path}");
        }
        let old = span(&(first.old_range().start..last.old_range().end));
        let new = span(&(first.new_range().start..last.new_range().end));
        let _ = writeln!(text, "@@ -{old} +{new} @@");
        for change in ops.iter().flat_map(|op| diff.iter_changes(op)) {
            text.push(match change.tag() {
                ChangeTag::Equal => ' ',
                ChangeTag::Delete => '-',
                ChangeTag::Insert => '+',
            });
            text.push_str(change.value());
            if !change.value().ends_with('\n') {
                text.push_str("\n\\ No newline at end of file\n");
            }
        }
    }
    text
}

/// A range of lines as the head of a hunk shows it: counted from one, the length left out when it is one.
fn span(lines: &Range<usize>) -> String {
    match lines.len() {
        0 => format!("{},0", lines.start),
        1 => format!("{}", lines.start + 1),
        length => format!("{},{length}", lines.start + 1),
    }
}
