//! Unified diffs of the files a plan changes, bounded in time and size.

use std::path::PathBuf;
use std::time::Duration;

use crewkit_core::Limits;
use serde::Serialize;

use crate::commands::answers::{members, prefixed};
use crate::error::Result;
use crate::fs::entry::EntryKind;
use crate::fs::hash::Digest;
use crate::fs::read::{self, ReadError};
use crate::plan::text_diff;
use crate::plan::{Change, Op, Plan};
use crate::state::transaction::{Content, NewFile};

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

/// A changed file of a preview.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileDiff {
    /// The content afterwards.
    #[serde(serialize_with = "prefixed")]
    pub after_hash: Option<Digest>,
    /// The content before.
    #[serde(serialize_with = "prefixed")]
    pub before_hash: Option<Digest>,
    /// What happens.
    pub op: Op,
    /// Where, below the root.
    pub path: String,
    /// The same.
    pub path_posix: String,
    #[serde(flatten, serialize_with = "members::root")]
    pub root: PathBuf,
    pub target: &'static str,
    /// The unified diff, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unified: Option<String>,
}

/// The `files` of a preview, with warnings for those that have no unified diff.
pub(crate) fn files(plan: &Plan, limits: &Limits, warnings: &mut Vec<String>) -> Vec<FileDiff> {
    let mut total = 0;
    let mut left_out = 0_usize;
    let mut files = Vec::with_capacity(plan.changes.len());
    for change in &plan.changes {
        let Some(root) = plan.roots.get(change.root) else { continue };
        let text = if change.op == Op::Delete {
            None
        } else if total >= limits.pack_diff_total_bytes {
            left_out += 1;
            None
        } else {
            let text = of_change(plan, change, limits).map_err(|why| {
                warnings.push(format!(
                    "preview diff omitted for {} {}: {why}",
                    plan.target(change),
                    plan.place(change).display()
                ));
            });
            text.ok().inspect(|text| total += text.len() as u64)
        };
        files.push(FileDiff {
            after_hash: change.after.as_ref().map(|new| new.entry.sha256),
            before_hash: change.before.map(|entry| entry.sha256),
            op: change.op,
            path: change.path.to_string(),
            path_posix: change.path.to_string(),
            root: root.path.clone(),
            target: plan.target(change),
            unified: text,
        });
    }
    if left_out > 0 {
        let most = limits.pack_diff_total_bytes;
        warnings.push(format!(
            "preview diff omitted for {left_out} more files: the diffs before it already fill {most} bytes (pack_diff_total_bytes)"
        ));
    }
    files
}

/// The unified diff of one change.
pub fn of_change(plan: &Plan, change: &Change, limits: &Limits) -> Result<String, NoDiff> {
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
    let after = match &change.after {
        Some(new) if new.size > limit => return Err(NoDiff::InputTooLarge(limit)),
        Some(NewFile { content: Content::Bytes(bytes), .. }) => bytes.to_vec(),
        Some(NewFile { content: Content::File(path), .. }) => read::bytes(path, limit).map_err(unreadable)?,
        // A plan takes nothing from the store.
        Some(NewFile { content: Content::Stored, .. }) | None => Vec::new(),
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
