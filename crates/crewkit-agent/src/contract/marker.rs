//! Finds `[CONTRACT COMPLETE]` and `[CONTRACT FAILED]` in the text of a reply.
//!
//! A marker counts anywhere in the text except inside a code fence. Reasoning is not part of the text.

const MARKERS: [(&str, MarkerKind); 2] =
    [("[CONTRACT COMPLETE]", MarkerKind::Complete), ("[CONTRACT FAILED]", MarkerKind::Failed)];

/// The outcome a marker reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MarkerKind {
    /// The contract is fulfilled.
    Complete,
    /// The contract cannot be fulfilled.
    Failed,
}

/// A marker and the text around it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marker {
    /// The outcome it reports.
    pub kind: MarkerKind,
    /// The text without the marker: the summary, or the reason of the failure.
    pub rest: String,
}

/// Returns the last marker of `text`, or `None` if there is none outside code fences.
pub fn find_marker(text: &str) -> Option<Marker> {
    let mut fence: Option<&str> = None;
    let mut found = None;
    let mut line_start = 0;
    for line in text.split_inclusive('\n') {
        let trimmed = line.trim();
        match (fence, fence_of(trimmed)) {
            (None, Some(opening)) => fence = Some(opening),
            (Some(open), Some(closing)) if closing.starts_with(open) && trimmed.len() == closing.len() => {
                fence = None;
            }
            (None, None) => {
                let last = MARKERS.iter().filter_map(|(marker, kind)| {
                    line.rfind(marker).map(|at| (line_start + at, marker.len(), *kind))
                });
                found = last.max_by_key(|(at, ..)| *at).or(found);
            }
            (Some(_), _) => {}
        }
        line_start += line.len();
    }
    let (at, length, kind) = found?;
    let is_decoration = |c: char| matches!(c, '*' | '_' | '#' | '>' | ' ' | '\t');
    let before = text[..at].trim_end_matches(is_decoration);
    let after = text[at + length..].trim_start_matches(is_decoration);
    let is_inline = !before.is_empty() && !before.ends_with('\n') && after.starts_with(char::is_alphanumeric);
    let rest = if is_inline { format!("{before} {after}") } else { format!("{before}{after}") };
    Some(Marker { kind, rest: rest.trim().to_owned() })
}

/// Returns the backticks or tildes that a fence line begins with.
fn fence_of(line: &str) -> Option<&str> {
    let mark = line.chars().next().filter(|first| matches!(first, '`' | '~'))?;
    let length = line.len() - line.trim_start_matches(mark).len();
    (length >= 3).then(|| &line[..length])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_counts_and_what_is_left() {
        use MarkerKind::{Complete, Failed};
        for (text, expected) in [
            ("[CONTRACT COMPLETE]", Some((Complete, ""))),
            ("All done.\n[CONTRACT COMPLETE]\n", Some((Complete, "All done."))),
            ("[CONTRACT COMPLETE]\nAll done.", Some((Complete, "All done."))),
            ("All done. [CONTRACT COMPLETE]", Some((Complete, "All done."))),
            ("All done. **[CONTRACT COMPLETE]**", Some((Complete, "All done."))),
            ("  **[CONTRACT COMPLETE]**  ", Some((Complete, ""))),
            ("No network.\n[CONTRACT FAILED]", Some((Failed, "No network."))),
            ("[CONTRACT COMPLETE]\nwait\n[CONTRACT FAILED]", Some((Failed, "[CONTRACT COMPLETE]\nwait"))),
            ("The work is [CONTRACT COMPLETE] and tested.", Some((Complete, "The work is and tested."))),
            ("Done [CONTRACT COMPLETE]\nand tested.", Some((Complete, "Done\nand tested."))),
            ("Done: **[CONTRACT COMPLETE]**.", Some((Complete, "Done:."))),
            ("[CONTRACT FAILED] no, [CONTRACT COMPLETE]", Some((Complete, "[CONTRACT FAILED] no,"))),
            ("```\n[CONTRACT COMPLETE]\n```", None),
            ("````\n```\n[CONTRACT COMPLETE]\n````\nnot yet", None),
            ("```\nunclosed\n[CONTRACT COMPLETE]", None),
            ("```rust\ncode\n```\n[CONTRACT COMPLETE]", Some((Complete, "```rust\ncode\n```"))),
            ("[contract complete]", None),
            ("", None),
            ("\n \n", None),
        ] {
            let found = find_marker(text);
            let found = found.as_ref().map(|marker| (marker.kind, marker.rest.as_str()));
            assert_eq!(found, expected, "{text:?}");
        }
    }
}
