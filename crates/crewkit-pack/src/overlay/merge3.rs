//! Three-way merge of texts, line by line.

use std::fmt::Write as _;

use similar::DiffOp;

use crate::plan::text_diff::{comparison, lines};

/// A merged text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Merged {
    /// The text, with markers where both sides changed the same lines differently.
    pub text: String,
    /// How many such places there are.
    pub conflicts: usize,
}

/// What the sides are called in conflict markers.
#[derive(Debug, Clone, Copy)]
pub struct Names<'a> {
    /// Our side.
    pub ours: &'a str,
    /// The other side.
    pub theirs: &'a str,
}

/// A changed stretch: lines of the base, and the lines a side has instead.
#[derive(Debug, Clone, Copy)]
struct Hunk {
    base: (usize, usize),
    side: (usize, usize),
}

/// Merges what `ours` and `theirs` made of `base`.
pub fn merge(base: &str, ours: &str, theirs: &str, names: Names<'_>) -> Merged {
    let (base_lines, our_lines, their_lines) = (lines(base), lines(ours), lines(theirs));
    let (our_hunks, their_hunks) = (hunks(&base_lines, &our_lines), hunks(&base_lines, &their_lines));
    let (mut a, mut b) = (0, 0);
    let mut at = 0;
    let mut merged = Merged { text: String::new(), conflicts: 0 };
    while a < our_hunks.len() || b < their_hunks.len() {
        let start =
            [our_hunks.get(a), their_hunks.get(b)].into_iter().flatten().map(|hunk| hunk.base.0).min();
        let start = start.unwrap_or(at);
        merged.text.extend(base_lines[at..start].iter().copied());
        // Grow the stretch until no hunk of either side reaches into it.
        let (first_a, first_b) = (a, b);
        let mut end = start;
        loop {
            let before = (a, b);
            while our_hunks.get(a).is_some_and(|hunk| touches(hunk, start, end)) {
                end = end.max(our_hunks[a].base.1);
                a += 1;
            }
            while their_hunks.get(b).is_some_and(|hunk| touches(hunk, start, end)) {
                end = end.max(their_hunks[b].base.1);
                b += 1;
            }
            if before == (a, b) {
                break;
            }
        }
        let ours = side_text(&our_hunks[first_a..a], &base_lines, &our_lines, start, end);
        let theirs = side_text(&their_hunks[first_b..b], &base_lines, &their_lines, start, end);
        let original = base_lines[start..end].concat();
        if ours == theirs || theirs == original {
            merged.text.push_str(&ours);
        } else if ours == original {
            merged.text.push_str(&theirs);
        } else {
            merged.conflicts += 1;
            push_conflict(&mut merged.text, &ours, &theirs, names);
        }
        at = end;
    }
    merged.text.extend(base_lines[at..].iter().copied());
    merged
}

/// Whether a hunk changes lines in the stretch or right at its edge; neighbours could not be told apart.
fn touches(hunk: &Hunk, start: usize, end: usize) -> bool {
    hunk.base.0 <= end && hunk.base.1 >= start
}

fn hunks(base: &[&str], side: &[&str]) -> Vec<Hunk> {
    let diff = comparison(None).diff_slices(base, side);
    diff.ops()
        .iter()
        .filter(|op| !matches!(op, DiffOp::Equal { .. }))
        .map(|op| {
            let (base, side) = (op.old_range(), op.new_range());
            Hunk { base: (base.start, base.end), side: (side.start, side.end) }
        })
        .collect()
}

/// What a side has in place of the base lines `start..end`.
fn side_text(hunks: &[Hunk], base: &[&str], side: &[&str], start: usize, end: usize) -> String {
    let mut text = String::new();
    let mut at = start;
    for hunk in hunks {
        text.push_str(&base[at..hunk.base.0].concat());
        text.push_str(&side[hunk.side.0..hunk.side.1].concat());
        at = hunk.base.1;
    }
    text.push_str(&base[at..end].concat());
    text
}

fn push_conflict(text: &mut String, ours: &str, theirs: &str, names: Names<'_>) {
    let mut side = |marker: &str, lines: &str| {
        text.push_str(marker);
        text.push_str(lines);
        if !lines.is_empty() && !lines.ends_with('\n') {
            text.push('\n');
        }
    };
    side(&format!("<<<<<<< {}\n", names.ours), ours);
    side("=======\n", theirs);
    let _ = writeln!(text, ">>>>>>> {}", names.theirs);
}

/// Whether a text still has conflict markers.
pub fn has_markers(text: &str) -> bool {
    text.lines().any(|line| line.starts_with("<<<<<<< ") || line.starts_with(">>>>>>> "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NAMES: Names<'static> = Names { ours: "ours", theirs: "theirs" };

    #[test]
    fn changes_in_different_places_are_joined() {
        let merged = merge("a\nb\nc\nd\ne\n", "A\nb\nc\nd\ne\n", "a\nb\nc\nd\nE\nf\n", NAMES);
        assert_eq!(merged, Merged { text: "A\nb\nc\nd\nE\nf\n".to_owned(), conflicts: 0 });
    }

    #[test]
    fn changes_of_the_same_lines_conflict() {
        let merged = merge("a\nb\nc\n", "a\nX\nc\n", "a\nY\nc\n", NAMES);
        let text = "a\n<<<<<<< ours\nX\n=======\nY\n>>>>>>> theirs\nc\n";
        assert_eq!(merged, Merged { text: text.to_owned(), conflicts: 1 });
        assert!(has_markers(text) && !has_markers("a\n=======\n"));
        assert_eq!(merge("a", "b", "c", NAMES).text, "<<<<<<< ours\nb\n=======\nc\n>>>>>>> theirs\n");
    }

    proptest! {
        #[test]
        fn one_sided_and_equal_changes_never_conflict(base in "([abc\r]\n){0,8}\r?", side in "([abc\r]\n){0,8}[abc\r]?") {
            for (ours, theirs) in [(&side, &base), (&base, &side), (&side, &side)] {
                prop_assert_eq!(merge(&base, ours, theirs, NAMES), Merged { text: side.clone(), conflicts: 0 });
            }
        }

        #[test]
        fn merging_never_panics(base in "[abc\r\n]{0,12}", ours in "[abc\r\n]{0,12}", theirs in "[abc\r\n]{0,12}") {
            merge(&base, &ours, &theirs, NAMES);
        }
    }
}
