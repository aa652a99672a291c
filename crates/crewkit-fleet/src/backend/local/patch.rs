//! Reads the listings and patches of `git diff-tree`. Pure: an agent decides what is in them, so none of this may fail or be
//! fooled.

use std::collections::HashMap;

use sha2::{Digest, Sha256};

use crate::changes::{DiffLine, FileStatus, LineKind};

/// One entry of `diff-tree --raw -z`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Mode before and now.
    pub modes: (String, String),
    /// The blob it has now.
    pub blob: String,
    /// What became of it.
    pub status: FileStatus,
    /// Its path before, if it was renamed.
    pub old_path: Option<Vec<u8>>,
    /// Its path.
    pub path: Vec<u8>,
}

/// The entries of a listing, as far as they can be read.
pub fn entries(listing: &[u8]) -> Vec<Entry> {
    let mut parts = listing.split(|byte| *byte == 0);
    let mut found = Vec::new();
    while let Some(header) = parts.next() {
        let header = String::from_utf8_lossy(header);
        let Some(header) = header.strip_prefix(':') else { break };
        let mut words = header.split(' ').map(str::to_owned);
        let (Some(old), Some(new), Some(_), Some(blob), Some(letter)) =
            (words.next(), words.next(), words.next(), words.next(), words.next())
        else {
            break;
        };
        let status = match letter.chars().next() {
            Some('A' | 'C') => FileStatus::Added,
            Some('D') => FileStatus::Deleted,
            Some('R') => FileStatus::Renamed,
            Some('T') => FileStatus::TypeChanged,
            _ => FileStatus::Modified,
        };
        let Some(first) = parts.next() else { break };
        let (old_path, path) = match status {
            FileStatus::Renamed => match parts.next() {
                Some(second) => (Some(first.to_owned()), second.to_owned()),
                None => break,
            },
            _ => (None, first.to_owned()),
        };
        found.push(Entry { modes: (old, new), blob, status, old_path, path });
    }
    found
}

/// Added and removed lines of each file in `diff-tree --numstat -z`, in the same order; none for binary files.
pub fn counts(listing: &[u8]) -> Vec<Option<(u64, u64)>> {
    let mut parts = listing.split(|byte| *byte == 0);
    let mut found = Vec::new();
    while let Some(part) = parts.next() {
        let text = String::from_utf8_lossy(part);
        let mut fields = text.splitn(3, '\t');
        let (Some(added), Some(removed), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        if path.is_empty() {
            // A renamed file: both names follow.
            parts.next();
            parts.next();
        }
        found.push(added.parse().ok().zip(removed.parse().ok()));
    }
    found
}

/// The lines of a patch of one file. `longest` is the number of bytes a line may have.
pub fn lines(output: &[u8], path: &[u8], longest: usize) -> Vec<DiffLine> {
    let mut found = Vec::new();
    let mut seen: HashMap<(u8, &[u8]), u64> = HashMap::new();
    // Lines that the hunk still has, before and now, and their numbers.
    let (mut left_old, mut left_new, mut old, mut new) = (0, 0, 0, 0);
    for line in output.split(|byte| *byte == b'\n') {
        if left_old == 0 && left_new == 0 {
            if let Some(hunk) = hunk(line) {
                (old, left_old, new, left_new) = hunk;
            }
            continue;
        }
        let Some((mark, text)) = line.split_first() else { continue };
        let (kind, numbers) = match mark {
            b' ' => (LineKind::Context, (Some(old), Some(new))),
            b'+' => (LineKind::Added, (None, Some(new))),
            b'-' => (LineKind::Removed, (Some(old), None)),
            // "No newline at end of file".
            _ => continue,
        };
        if numbers.0.is_some() {
            (old, left_old) = (old + 1, left_old.saturating_sub(1));
        }
        if numbers.1.is_some() {
            (new, left_new) = (new + 1, left_new.saturating_sub(1));
        }
        let occurrence = seen.entry((*mark, text)).or_insert(0);
        *occurrence += 1;
        let id = line_id(path, *mark, text, *occurrence);
        let shown = &text[..text.len().min(longest)];
        let cut = shown.len() < text.len();
        let text = String::from_utf8_lossy(shown).into_owned();
        found.push(DiffLine { id, kind, old: numbers.0, new: numbers.1, text, cut });
    }
    found
}

/// Start and length, before and now, in a line such as `@@ -1,2 +3 @@`.
fn hunk(line: &[u8]) -> Option<(u64, u64, u64, u64)> {
    let text = String::from_utf8_lossy(line);
    let (old, rest) = text.strip_prefix("@@ -")?.split_once(" +")?;
    let (new, _) = rest.split_once(" @@")?;
    let range = |text: &str| match text.split_once(',') {
        Some((start, length)) => Some((start.parse().ok()?, length.parse().ok()?)),
        None => Some((text.parse().ok()?, 1)),
    };
    let ((old, old_length), (new, new_length)) = (range(old)?, range(new)?);
    Some((old, old_length, new, new_length))
}

/// Id of a line: the same as long as the file has it for the `occurrence`-th time in its changes.
fn line_id(path: &[u8], mark: u8, text: &[u8], occurrence: u64) -> String {
    short_hash(&[path, &[mark], text, &occurrence.to_be_bytes()])
}

/// Id of a path.
pub fn path_id(path: &[u8]) -> String {
    short_hash(&[path])
}

/// The first half of a hash over parts, each with its length so that none runs into the next.
pub(super) fn short_hash(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.len().to_be_bytes());
        hash.update(part);
    }
    hash.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listings_are_read_whatever_the_names_are() {
        let listing = b":100644 100755 aa bb M\0a\nb\0:100644 100644 cc dd R090\0old\0n\xff\0:000000 120000 00 ee A\0l\0";
        let found = entries(listing);
        let told: Vec<_> = found.iter().map(|entry| (entry.status, entry.path.as_slice())).collect();
        let expected: [(FileStatus, &[u8]); 3] =
            [(FileStatus::Modified, b"a\nb"), (FileStatus::Renamed, b"n\xff"), (FileStatus::Added, b"l")];
        assert_eq!(told, expected);
        assert_eq!(found[1].old_path.as_deref(), Some(&b"old"[..]));
        let numbers = counts(b"1\t2\ta\nb\x003\t0\t\0old\0n\xff\0-\t-\tl\0");
        assert_eq!(numbers, [Some((1, 2)), Some((3, 0)), None]);
        for wrong in [&b""[..], b":", b":1 2 3", b":1 2 3 4 R\0only", b"\0\0"] {
            assert_eq!(entries(wrong), []);
        }
    }

    #[test]
    fn an_id_stays_when_other_lines_change_and_text_cannot_pose_as_a_header() {
        let before = lines(b"diff --git a/x b/x\n@@ -1,2 +1,3 @@\n a\n+@@ -9 +9 @@\n+b\n c\n", b"x", 100);
        let after = lines(b"@@ -1,2 +1,4 @@\n a\n+new\n+@@ -9 +9 @@\n+b\n c\n\\ No newline\n", b"x", 100);
        let told: Vec<_> = before.iter().map(|line| (line.old, line.new, line.text.as_str())).collect();
        let expected = [
            (Some(1), Some(1), "a"),
            (None, Some(2), "@@ -9 +9 @@"),
            (None, Some(3), "b"),
            (Some(2), Some(4), "c"),
        ];
        assert_eq!(told, expected);
        assert_eq!(before[2].id, after[3].id);
        assert_eq!(after[3].new, Some(4));
        let twice = lines(b"@@ -0,0 +1,2 @@\n+same\n+same\n", b"x", 2);
        assert_ne!(twice[0].id, twice[1].id);
        assert!(twice[0].cut && twice[0].text == "sa");
        assert_ne!(lines(b"@@ -0,0 +1 @@\n+same\n", b"y", 9)[0].id, twice[0].id, "of another file");
    }
}
