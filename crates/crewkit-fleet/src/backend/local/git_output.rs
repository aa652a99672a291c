//! Reads what git prints. Pure: an agent decides what is in its repository, so none of this may fail or be fooled.

use std::ffi::OsString;
use std::path::Path;

/// Turns `scope NUL name NEWLINE value NUL …` into settings that restore what the user's own configuration says.
pub fn settings_against(listing: &[u8]) -> Vec<OsString> {
    let text = String::from_utf8_lossy(listing);
    let mut own: Vec<(String, String)> = Vec::new();
    let mut foreign: Vec<String> = Vec::new();
    let mut parts = text.split('\0');
    while let (Some(scope), Some(entry)) = (parts.next(), parts.next()) {
        let (name, value) = entry.split_once('\n').unwrap_or((entry, "true"));
        if matches!(scope, "global" | "system") {
            own.push((name.to_owned(), value.to_owned()));
        } else {
            foreign.push(name.to_owned());
        }
    }
    foreign.sort();
    foreign.dedup();
    foreign
        .into_iter()
        .map(|name| {
            let value = own.iter().rev().find(|(known, _)| *known == name).map(|(_, value)| value.as_str());
            let fallback = if name.ends_with(".required") { "false" } else { "" };
            OsString::from(format!("{name}={}", value.unwrap_or(fallback)))
        })
        .collect()
}

/// Files that `ls-files -v -z` marks as `assume-unchanged` (a small letter) or `skip-worktree` (`S`).
pub fn hidden(listing: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(listing);
    let entries = text.split('\0').filter_map(|entry| entry.split_once(' '));
    let is_hidden = |tag: &str| tag == "S" || tag.starts_with(|letter: char| letter.is_ascii_lowercase());
    entries.filter(|(tag, _)| is_hidden(tag)).map(|(_, file)| file.to_owned()).collect()
}

/// What `git status` tells of a worktree.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct WorktreeStatus {
    /// The commit HEAD is at; none before the first.
    pub head: Option<String>,
    /// The branch HEAD is on.
    pub branch: Option<String>,
    /// Changed, staged, conflicting or untracked files besides the kit's.
    pub changed: bool,
    /// Files that are ignored besides the kit's.
    pub ignored: bool,
    /// A merge, rebase or the like is half done.
    pub half_done: bool,
}

impl WorktreeStatus {
    /// Reads `status --porcelain=v2 -z --branch`. Files of the kit do not count.
    pub fn parse(status: &[u8], kit_files: &[String]) -> Self {
        let mut told = Self::default();
        let text = String::from_utf8_lossy(status);
        let mut records = text.split('\0');
        while let Some(record) = records.next() {
            if let Some(header) = record.strip_prefix("# ") {
                match header.split_once(' ') {
                    Some(("branch.oid", oid)) if oid != "(initial)" => told.head = Some(oid.to_owned()),
                    Some(("branch.head", name)) if name != "(detached)" => {
                        told.branch = Some(name.to_owned());
                    }
                    _ => {}
                }
                continue;
            }
            let (kind, rest) = record.split_once(' ').unwrap_or((record, ""));
            match kind {
                "" => {}
                "?" => told.changed |= !is_kit(rest, kit_files),
                "!" => told.ignored |= !is_kit(rest, kit_files),
                // A renamed file is followed by its old name in a record of its own.
                "2" => {
                    told.changed = true;
                    records.next();
                }
                _ => told.changed = true,
            }
        }
        told
    }
}

/// Whether an entry of `git status` is one of the kit's files.
fn is_kit(path: &str, kit_files: &[String]) -> bool {
    kit_files.iter().any(|file| file == path)
}

/// The places of other repositories in a listing of `ls-files --stage -z`.
pub fn links(listing: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(listing);
    let entries = text.split('\0').filter(|entry| entry.starts_with("160000 "));
    entries.filter_map(|entry| Some(entry.split_once('\t')?.1.to_owned())).collect()
}

/// The entries of `ls-files --stage -z` that are no part of a conflict, as `update-index --index-info` takes them.
pub fn without_conflicts(listing: &[u8]) -> Vec<u8> {
    let settled = listing.split(|byte| *byte == 0).filter(|entry| {
        let stage = entry.split(|byte| *byte == b'\t').next().and_then(<[u8]>::last);
        stage == Some(&b'0')
    });
    settled.flat_map(|entry| entry.iter().copied().chain([0])).collect()
}

/// The branch of the worktree at `path` in `worktree list --porcelain`: none if it is not registered, `Some(None)` if it is
/// on no branch.
pub fn branch_of_worktree(listing: &[u8], path: &Path) -> Option<Option<String>> {
    let text = String::from_utf8_lossy(listing);
    let wanted = path.to_string_lossy();
    // Fields could be separated by NUL only since git 2.36; a path with a line ending is not found here.
    text.split("\n\n").find_map(|worktree| {
        let mut fields = worktree.lines();
        if fields.next()?.strip_prefix("worktree ")? != wanted {
            return None;
        }
        Some(fields.find_map(|field| field.strip_prefix("branch refs/heads/")).map(str::to_owned))
    })
}
