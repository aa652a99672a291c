//! Unified diffs of one text file: reading, applying, writing.
//!
//! Applying is strict in what lines must be and lenient in where they are: a hunk is looked for around its line, and
//! must fit exactly.

use crate::plan::text_diff;

/// A patch of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Patch {
    hunks: Vec<Hunk>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Hunk {
    /// First line it changes, counted from 1; 0 for an empty file.
    start: usize,
    /// Lines before, with their line ends.
    before: Vec<String>,
    /// Lines after, with their line ends.
    after: Vec<String>,
    /// Whether it ends with a line that stays; if not, it belongs to the end of the file.
    has_trailing_context: bool,
}

/// Why a patch cannot be used at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// It is not text.
    #[error("binary patches are not supported")]
    Binary,
    /// It has no or several files.
    #[error("it must change exactly one file, but has {0} pairs of `---` and `+++` lines")]
    Files(usize),
    /// It creates or deletes a file.
    #[error("creating and deleting files is not supported")]
    DevNull,
    /// It names another file than its own name says.
    #[error("it names `{found}`, but by its own name it changes `{expected}`")]
    WrongFile {
        /// What it names.
        found: String,
        /// What it should name.
        expected: String,
    },
    /// A line is not what a patch consists of.
    #[error("line {line}: {what}")]
    Syntax {
        /// Where, counted from 1.
        line: usize,
        /// What is wrong.
        what: &'static str,
    },
}

/// A hunk that fits nowhere.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("hunk {hunk} (at line {line}) fits nowhere")]
pub struct DoesNotFit {
    /// Which hunk, counted from 1.
    pub hunk: usize,
    /// The line it was made for.
    pub line: usize,
}

impl Patch {
    /// Reads a patch that must change the file called `expected`.
    pub fn parse(text: &str, expected: &str) -> Result<Self, PatchError> {
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        let mut at = 0;
        let mut names = Vec::new();
        let mut hunks = Vec::new();
        while let Some(line) = lines.get(at) {
            if line.starts_with("--- ") && lines.get(at + 1).is_some_and(|next| next.starts_with("+++ ")) {
                names.push((file_name(line), file_name(lines[at + 1])));
                at += 2;
            } else if line.starts_with("@@ ") {
                let (hunk, next) = Hunk::parse(&lines, at)?;
                hunks.push(hunk);
                at = next;
            } else if line.starts_with("GIT binary patch") {
                return Err(PatchError::Binary);
            } else {
                // What git or a mail program writes around a diff.
                at += 1;
            }
        }
        let [(old, new)] = &names[..] else { return Err(PatchError::Files(names.len())) };
        if old == "/dev/null" || new == "/dev/null" {
            return Err(PatchError::DevNull);
        }
        for (found, prefix) in [(old, "a/"), (new, "b/")] {
            let found = found.strip_prefix(prefix).unwrap_or(found);
            if found != expected {
                return Err(PatchError::WrongFile { found: found.to_owned(), expected: expected.to_owned() });
            }
        }
        if hunks.is_empty() {
            return Err(PatchError::Syntax { line: lines.len(), what: "there is no hunk" });
        }
        Ok(Self { hunks })
    }

    /// The text after the patch.
    pub fn apply(&self, text: &str) -> Result<String, DoesNotFit> {
        let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
        let mut offset = 0_isize;
        for (index, hunk) in self.hunks.iter().enumerate() {
            let expected = hunk.start.saturating_sub(1).saturating_add_signed(offset);
            let at = hunk.find(&lines, expected).ok_or(DoesNotFit { hunk: index + 1, line: hunk.start })?;
            lines.splice(at..at + hunk.before.len(), hunk.after.iter().map(String::as_str));
            offset += at.cast_signed() - expected.cast_signed();
            offset += hunk.after.len().cast_signed() - hunk.before.len().cast_signed();
        }
        Ok(lines.concat())
    }
}

/// The path in a `---` or `+++` line, without the time some programs add.
fn file_name(line: &str) -> String {
    let name = line.get(4..).unwrap_or_default().trim_end_matches(['\n', '\r']);
    name.split('\t').next().unwrap_or_default().to_owned()
}

impl Hunk {
    fn parse(lines: &[&str], at: usize) -> Result<(Self, usize), PatchError> {
        let syntax = |line: usize, what| PatchError::Syntax { line: line + 1, what };
        let header = lines[at];
        let ranges =
            header.strip_prefix("@@ -").and_then(|rest| rest.split_once(" @@")).map(|(ranges, _)| ranges);
        let (old, new) = ranges
            .and_then(|ranges| ranges.split_once(" +"))
            .and_then(|(old, new)| Some((range(old)?, range(new)?)))
            .ok_or_else(|| syntax(at, "the hunk's header is not `@@ -l,n +l,n @@`"))?;
        let mut hunk =
            Self { start: old.0, before: Vec::new(), after: Vec::new(), has_trailing_context: false };
        let mut next = at + 1;
        while hunk.before.len() < old.1 || hunk.after.len() < new.1 {
            let line = lines.get(next).ok_or_else(|| syntax(next, "the hunk ends too early"))?;
            let (sign, body) = match line.chars().next() {
                // Some editors strip the blank of an empty line that stays.
                Some('\n') => (' ', "\n"),
                Some(sign) => (sign, line.get(1..).unwrap_or_default()),
                None => return Err(syntax(next, "the hunk ends too early")),
            };
            let mut body = body.to_owned();
            next += 1;
            if lines.get(next).is_some_and(|line| line.starts_with('\\')) {
                body.truncate(body.trim_end_matches('\n').len());
                next += 1;
            } else if !body.ends_with('\n') {
                body.push('\n');
            }
            hunk.has_trailing_context = sign == ' ';
            match sign {
                ' ' => {
                    hunk.before.push(body.clone());
                    hunk.after.push(body);
                }
                '-' => hunk.before.push(body),
                '+' => hunk.after.push(body),
                _ => return Err(syntax(next - 1, "a line of a hunk starts with none of ` `, `-` and `+`")),
            }
        }
        if hunk.before.len() != old.1 || hunk.after.len() != new.1 {
            return Err(syntax(at, "the hunk's header and its lines do not agree"));
        }
        Ok((hunk, next))
    }

    /// The line closest to `expected` at which the hunk fits.
    fn find(&self, lines: &[&str], expected: usize) -> Option<usize> {
        let last = lines.len().checked_sub(self.before.len())?;
        let fits = |at: usize| {
            (self.start > 1 || at == 0)
                && (self.has_trailing_context || at == last)
                && lines[at..].iter().zip(&self.before).all(|(have, want)| have == want)
        };
        let expected = expected.min(last);
        (0..=last)
            .flat_map(|distance| [expected.checked_sub(distance), Some(expected + distance)])
            .flatten()
            .find(|at| *at <= last && fits(*at))
    }
}

fn range(text: &str) -> Option<(usize, usize)> {
    match text.split_once(',') {
        Some((start, length)) => Some((start.parse().ok()?, length.parse().ok()?)),
        None => Some((text.parse().ok()?, 1)),
    }
}

/// The patch that turns `before` into `after`; empty when they are equal.
pub fn make(path: &str, before: &str, after: &str) -> String {
    text_diff::unified(path, before, after, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn applied(patch: &str, text: &str) -> String {
        match Patch::parse(patch, "f") {
            Ok(patch) => patch.apply(text).unwrap_or_else(|error| format!("! {error}")),
            Err(error) => format!("!! {error}"),
        }
    }

    const HEADER: &str = "--- a/f\n+++ b/f\n";

    #[test]
    fn hunks_are_found_where_they_fit() {
        let patch = format!("{HEADER}@@ -2,3 +2,3 @@\n b\n-c\n+C\n d\n");
        for (text, want) in [
            ("a\nb\nc\nd\n", "a\nb\nC\nd\n"),
            ("new\nlines\na\nb\nc\nd\ne\n", "new\nlines\na\nb\nC\nd\ne\n"),
            ("b\nc\nd", "! hunk 1 (at line 2) fits nowhere"),
            ("a\nb\nX\nd\n", "! hunk 1 (at line 2) fits nowhere"),
            ("", "! hunk 1 (at line 2) fits nowhere"),
        ] {
            assert_eq!(applied(&patch, text), want, "{text:?}");
        }
    }

    #[test]
    fn the_missing_line_end_is_content() {
        let patch = format!("{HEADER}@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+a\n");
        assert_eq!(applied(&patch, "a"), "a\n");
        assert_eq!(applied(&patch, "a\n"), "! hunk 1 (at line 1) fits nowhere");
    }

    #[test]
    fn what_is_refused() {
        for (patch, want) in [
            ("GIT binary patch\n", "!! binary patches are not supported"),
            (
                "@@ -1 +1 @@\n-a\n+b\n",
                "!! it must change exactly one file, but has 0 pairs of `---` and `+++` lines",
            ),
            (
                "--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+a\n",
                "!! creating and deleting files is not supported",
            ),
            (
                "--- a/g\n+++ b/g\n@@ -1 +1 @@\n-a\n+b\n",
                "!! it names `g`, but by its own name it changes `f`",
            ),
            ("--- a/f\n+++ b/f\n@@ what @@\n", "!! line 3: the hunk's header is not `@@ -l,n +l,n @@`"),
            ("--- a/f\n+++ b/f\n@@ -1,9 +1 @@\n-a\n", "!! line 5: the hunk ends too early"),
            ("--- a/f\n+++ b/f\n", "!! line 2: there is no hunk"),
        ] {
            assert_eq!(applied(patch, "a\n"), want, "{patch}");
        }
    }

    proptest! {
        #[test]
        fn what_is_made_applies(before in "([abc\r]{0,2}\n){0,12}[abc\r]{0,2}", after in "([abc\r]{0,2}\n){0,12}[abc\r]{0,2}") {
            let patch = make("f", &before, &after);
            if before == after {
                prop_assert_eq!(patch, "");
            } else {
                prop_assert_eq!(applied(&patch, &before), after);
            }
        }

        #[test]
        fn reading_never_panics(text in "(--- a/f\n|\\+\\+\\+ b/f\n|@@ -[0-9],[0-9] \\+[0-9] @@\n|[-+ \\\\][ab]\n|\n){0,12}") {
            applied(&text, "a\nb\n");
        }
    }
}
