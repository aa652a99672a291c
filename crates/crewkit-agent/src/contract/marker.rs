//! Finding `[CONTRACT COMPLETE]` and `[CONTRACT FAILED]` in what a model says.
//!
//! A marker counts on a line of its own or at the very end of the text, never inside a code fence. Reasoning is not part
//! of the text that arrives here.

const COMPLETE: &str = "[CONTRACT COMPLETE]";
const FAILED: &str = "[CONTRACT FAILED]";

/// What a marker says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MarkerKind {
    /// The contract is fulfilled.
    Complete,
    /// It cannot be.
    Failed,
}

/// A marker with the text around it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marker {
    /// What it says.
    pub kind: MarkerKind,
    /// The text without the marker: the summary, or the reason.
    pub rest: String,
}

/// Looks for a marker; of several the last one counts.
pub fn find_marker(text: &str) -> Option<Marker> {
    let lines: Vec<&str> = text.lines().collect();
    let last_spoken = lines.iter().rposition(|line| !line.trim().is_empty())?;
    let mut fence: Option<&str> = None;
    let mut found = None;
    for (index, line) in lines.iter().enumerate() {
        let bare = line.trim();
        match (fence, fence_of(bare)) {
            (None, Some(opening)) => fence = Some(opening),
            (Some(open), Some(closing)) if closing.starts_with(open) && bare.len() == closing.len() => {
                fence = None;
            }
            (None, None) => {
                if let Some((kind, before)) = marker_in(bare, index == last_spoken) {
                    found = Some((index, kind, before));
                }
            }
            (Some(_), _) => {}
        }
    }
    let (index, kind, before) = found?;
    let rest: Vec<&str> =
        lines.iter().enumerate().map(|(at, line)| if at == index { before } else { *line }).collect();
    Some(Marker { kind, rest: rest.join("\n").trim().to_owned() })
}

/// The run of backticks or tildes a fence line begins with.
fn fence_of(line: &str) -> Option<&str> {
    let mark = line.chars().next().filter(|first| matches!(first, '`' | '~'))?;
    let length = line.len() - line.trim_start_matches(mark).len();
    (length >= 3).then(|| &line[..length])
}

/// The marker of a line, and the text before it.
fn marker_in(line: &str, is_last: bool) -> Option<(MarkerKind, &str)> {
    let undecorated = line.trim_matches(|c: char| matches!(c, '*' | '_' | '#' | '>') || c.is_whitespace());
    for (text, kind) in [(COMPLETE, MarkerKind::Complete), (FAILED, MarkerKind::Failed)] {
        if undecorated == text {
            return Some((kind, ""));
        }
        let end = line.trim_end_matches(|c: char| matches!(c, '*' | '_' | '.') || c.is_whitespace());
        if is_last && let Some(before) = end.strip_suffix(text) {
            return Some((kind, before.trim_end_matches(['*', '_', ' '])));
        }
    }
    None
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
            ("I will say [CONTRACT COMPLETE] when done.", None),
            ("I will end with [CONTRACT COMPLETE]\nand now I begin.", None),
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
