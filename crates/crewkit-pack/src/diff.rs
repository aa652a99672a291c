//! Unified diffs of the files a plan changes, bounded in time and size.

use std::time::Duration;

use crewkit_core::Limits;
use serde_json::{Value, json};

use crate::desired::Desired;
use crate::entry::EntryKind;
use crate::error::Result;
use crate::plan::{Change, Op, Plan};
use crate::read::{self, ReadError};
use crate::{text_diff, view};

/// Why a file has no unified diff.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoDiff {
    /// It would be too long.
    #[error("the diff is larger than {0} bytes")]
    TooLarge(u64),
    /// A side is too long to compare.
    #[error("the file is larger than {0} bytes")]
    InputTooLarge(u64),
    /// A side is not text.
    #[error("the content is binary or not UTF-8")]
    NotText,
    /// A side is a link or could not be read.
    #[error("the file could not be read as text: {0}")]
    Unreadable(String),
    /// The answer is full.
    #[error("the diffs before it already fill {0} bytes")]
    AnswerFull(u64),
}

/// The unified diff between two texts, coarser when the time runs out.
pub fn unified(path: &str, before: &[u8], after: &[u8], limits: &Limits) -> Result<String, NoDiff> {
    let text = |bytes| std::str::from_utf8(bytes).map_err(|_| NoDiff::NotText);
    let (before, after) = (text(before)?, text(after)?);
    if before.len().max(after.len()) as u64 > limits.pack_diff_input_bytes {
        return Err(NoDiff::InputTooLarge(limits.pack_diff_input_bytes));
    }
    let patience = Duration::from_millis(limits.pack_diff_milliseconds);
    let text = text_diff::unified(path, before, after, Some(patience));
    if text.len() as u64 > limits.pack_diff_bytes {
        return Err(NoDiff::TooLarge(limits.pack_diff_bytes));
    }
    Ok(text)
}

/// The `files` of a preview, with warnings for those that have no unified diff.
pub fn files(plan: &Plan, desired: &Desired, limits: &Limits, warnings: &mut Vec<String>) -> Vec<Value> {
    let mut total = 0;
    let mut left_out = 0_usize;
    let mut files = Vec::with_capacity(plan.changes.len());
    for change in &plan.changes {
        let Some(root) = desired.roots.get(change.root) else { continue };
        let mut map = view::object(json!({
            "target": plan.target(change),
            "path": change.path.as_str(),
            "path_posix": change.path.as_str(),
            "op": change.op.name(),
            "before_hash": change.before.map(|entry| format!("sha256:{}", entry.sha256)),
            "after_hash": change.after.map(|(_, sha256)| format!("sha256:{sha256}")),
        }));
        view::put_path(&mut map, "root", &root.path);
        if change.op != Op::Delete {
            let text = if total >= limits.pack_diff_total_bytes {
                Err(NoDiff::AnswerFull(limits.pack_diff_total_bytes))
            } else {
                of_change(plan, change, desired, limits)
            };
            match text {
                Ok(text) => {
                    total += text.len() as u64;
                    map.insert("unified".to_owned(), text.into());
                }
                Err(NoDiff::AnswerFull(_)) => left_out += 1,
                Err(why) => warnings.push(format!(
                    "preview diff omitted for {} {}: {why}",
                    plan.target(change),
                    plan.place(change).display()
                )),
            }
        }
        files.push(Value::Object(map));
    }
    if left_out > 0 {
        let why = NoDiff::AnswerFull(limits.pack_diff_total_bytes);
        warnings
            .push(format!("preview diff omitted for {left_out} more files: {why} (pack_diff_total_bytes)"));
    }
    files
}

/// The unified diff of one change.
pub fn of_change(plan: &Plan, change: &Change, desired: &Desired, limits: &Limits) -> Result<String, NoDiff> {
    let limit = limits.pack_diff_input_bytes;
    let unreadable = |error: ReadError| match error {
        ReadError::TooLarge { limit } => NoDiff::InputTooLarge(limit),
        other => NoDiff::Unreadable(other.to_string()),
    };
    let before = match change.before {
        None => Vec::new(),
        Some(entry) if entry.kind == EntryKind::Symlink => {
            return Err(NoDiff::Unreadable("a symbolic link is replaced".to_owned()));
        }
        Some(_) => read::bytes(&plan.place(change), limit).map_err(unreadable)?,
    };
    let after = match change.after.and_then(|(at, _)| desired.roots.get(change.root)?.files.get(at)) {
        None => Vec::new(),
        Some(file) if file.bytes > limit => return Err(NoDiff::InputTooLarge(limit)),
        Some(file) => file.read(limit).map_err(|error| NoDiff::Unreadable(error.to_string()))?,
    };
    unified(change.path.as_str(), &before, &after, limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn diff(before: &str, after: &str) -> String {
        unified("f", before.as_bytes(), after.as_bytes(), &Limits::default()).unwrap()
    }

    #[test]
    fn the_form_is_the_one_patch_reads() {
        assert_eq!(diff("", "a\n"), "--- a/f\n+++ b/f\n@@ -0,0 +1 @@\n+a\n");
        assert_eq!(diff("", "a\nb\n"), "--- a/f\n+++ b/f\n@@ -0,0 +1,2 @@\n+a\n+b\n");
        assert_eq!(
            diff("a\nb\n", "a\nc"),
            "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n\\ No newline at end of file\n"
        );
    }

    #[test]
    fn what_is_too_large_or_not_text_has_none() {
        let limits = Limits::default();
        let large = "x".repeat(200_000);
        let huge = vec![b'x'; 5 << 20];
        assert_eq!(unified("f", b"", large.as_bytes(), &limits), Err(NoDiff::TooLarge(102_400)));
        assert_eq!(unified("f", b"", &huge, &limits), Err(NoDiff::InputTooLarge(4 << 20)));
        assert_eq!(unified("f", b"", b"\xff", &limits), Err(NoDiff::NotText));
    }

    /// A rewritten file of a megabyte used to take more than a minute.
    #[test]
    fn a_rewritten_file_ends_with_the_deadline() {
        let text = |salt: usize| {
            (0..60_000).map(|line| format!("{}\n", line * 7919 % 100_003 + salt)).collect::<String>()
        };
        let limits = Limits { pack_diff_milliseconds: 1, pack_diff_bytes: u64::MAX, ..Limits::default() };
        let (before, after) = (text(0), text(1));
        let diff = unified("f", before.as_bytes(), after.as_bytes(), &limits).unwrap();
        let patch = crate::overlay::patch::Patch::parse(&diff, "f").unwrap();
        assert_eq!(patch.apply(&before).unwrap(), after, "a coarse diff is still a right one");
    }
}
