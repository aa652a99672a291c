//! Reads what git prints. Pure: an agent decides what is in its repository, so none of this may fail or be fooled.

use std::ffi::OsString;
use std::path::Path;

use crate::landing::LandConflict;

/// Turns `scope NUL name NEWLINE value NUL …` into settings that restore what the user's own configuration says.
pub fn settings_against(listing: &[u8]) -> Vec<OsString> {
    let (own, foreign) = own_and_foreign(listing);
    let mut names: Vec<String> = foreign.into_iter().map(|(name, _)| name).collect();
    names.sort();
    names.dedup();
    let restored = names.into_iter().map(|name| {
        let value = own.iter().rev().find(|(known, _)| *known == name).map(|(_, value)| value.as_str());
        OsString::from(format!("{name}={}", value.unwrap_or_else(|| without_program(&name))))
    });
    restored.collect()
}

/// The value of a setting that names no program of the repository's.
fn without_program(name: &str) -> &'static str {
    match name {
        "gpg.format" => "openpgp",
        "gpg.program" | "gpg.openpgp.program" => "gpg",
        "gpg.x509.program" => "gpgsm",
        "gpg.ssh.program" => "ssh-keygen",
        _ if name.ends_with(".required") => "false",
        // A driver that always fails makes a conflict; an empty one would take one side without a word.
        _ if name.starts_with("merge.") => "false",
        _ => "",
    }
}

type Settings = Vec<(String, String)>;

/// Settings of the user, and those of a repository.
fn own_and_foreign(listing: &[u8]) -> (Settings, Settings) {
    let text = String::from_utf8_lossy(listing);
    let (mut own, mut foreign) = (Vec::new(), Vec::new());
    let mut parts = text.split('\0');
    while let (Some(scope), Some(entry)) = (parts.next(), parts.next()) {
        let (name, value) = entry.split_once('\n').unwrap_or((entry, "true"));
        match scope {
            "global" | "system" => own.push((name.to_owned(), value.to_owned())),
            // What this program sets itself.
            "command" => {}
            _ => foreign.push((name.to_owned(), value.to_owned())),
        }
    }
    (own, foreign)
}

/// Filters and merge drivers that a repository defines itself.
pub fn foreign_programs(listing: &[u8]) -> Vec<String> {
    let (own, foreign) = own_and_foreign(listing);
    let differing = foreign.iter().filter(|setting| !own.contains(setting));
    let mut names: Vec<String> = differing
        .filter_map(|(name, _)| {
            let (section, rest) = name.split_once('.')?;
            let (driver, key) = rest.rsplit_once('.')?;
            match (section, key) {
                ("filter", "clean" | "smudge" | "process") => Some(format!("filter `{driver}`")),
                ("merge", "driver") => Some(format!("merge driver `{driver}`")),
                _ => None,
            }
        })
        .collect();
    names.sort();
    names.dedup();
    names
}

/// Scopes and values of `config --show-scope -z --get-all`, without those that this program sets itself.
fn values(listing: &[u8]) -> Vec<(String, String)> {
    let text = String::from_utf8_lossy(listing);
    let mut parts = text.split('\0');
    let mut found = Vec::new();
    while let (Some(scope), Some(value)) = (parts.next(), parts.next()) {
        if scope != "command" {
            found.push((scope.to_owned(), value.to_owned()));
        }
    }
    found
}

/// The value that counts, of `config --show-scope -z --get-all`.
pub fn last_set(listing: &[u8]) -> Option<String> {
    values(listing).pop().map(|(_, value)| value).filter(|value| !value.is_empty())
}

/// Whether the user's own configuration, or what counts in the repository, says yes.
pub fn is_required(listing: &[u8]) -> bool {
    let is_true =
        |value: &str| ["true", "yes", "on", "1"].iter().any(|word| value.eq_ignore_ascii_case(word));
    let values = values(listing);
    let own = values.iter().rev().find(|(scope, _)| matches!(scope.as_str(), "global" | "system"));
    [own, values.last()].into_iter().flatten().any(|(_, value)| is_true(value))
}

/// The worktrees in `worktree list --porcelain` that have `branch` checked out.
pub fn worktrees_on(listing: &[u8], branch: &str) -> Vec<String> {
    let text = String::from_utf8_lossy(listing);
    let wanted = format!("branch refs/heads/{branch}");
    let has_it = text.split("\n\n").filter(|worktree| worktree.lines().any(|field| field == wanted));
    has_it
        .filter_map(|worktree| worktree.lines().next()?.strip_prefix("worktree ").map(str::to_owned))
        .collect()
}

/// The paths in `status --porcelain=v2 -z`.
pub fn paths_of_status(status: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(status);
    let mut records = text.split('\0');
    let mut paths = Vec::new();
    while let Some(record) = records.next() {
        let (kind, rest) = record.split_once(' ').unwrap_or((record, ""));
        // Fields before the path, as the manual of git lists them.
        let fields = match kind {
            "1" => 7,
            "2" => 8,
            "u" => 9,
            "?" | "!" => 0,
            _ => continue,
        };
        paths.extend(rest.splitn(fields + 1, ' ').nth(fields).map(str::to_owned));
        if kind == "2" {
            paths.extend(records.next().map(str::to_owned));
        }
    }
    paths
}

/// The tree of `merge-tree --write-tree -z --messages`, and its conflicts.
pub fn merge_result(output: &[u8]) -> (String, Vec<LandConflict>) {
    let text = String::from_utf8_lossy(output);
    let mut parts = text.split('\0');
    let tree = parts.next().unwrap_or_default().to_owned();
    // The stages of files in conflict; an empty part ends them.
    let mut in_conflict = Vec::new();
    for entry in parts.by_ref().take_while(|entry| !entry.is_empty()) {
        if let Some((_, path)) = entry.split_once('\t')
            && !in_conflict.iter().any(|known| known == path)
        {
            in_conflict.push(path.to_owned());
        }
    }
    let mut conflicts = Vec::new();
    while let Some(count) = parts.next().and_then(|count| count.parse::<usize>().ok()) {
        let paths: Vec<&str> = parts.by_ref().take(count).collect();
        let (kind, message) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let Some(kind) = kind.strip_prefix("CONFLICT (").and_then(|kind| kind.strip_suffix(')')) else {
            continue;
        };
        let explanation = message.trim().to_owned();
        let path = paths.first().copied().unwrap_or_default().to_owned();
        in_conflict.retain(|known| !paths.contains(&known.as_str()));
        conflicts.push(LandConflict { path, kind: kind.to_owned(), explanation, commit: None });
    }
    conflicts.extend(in_conflict.into_iter().map(|path| {
        let explanation = "Base and agent changed it in ways that git cannot put together.".to_owned();
        LandConflict { path, kind: "other".to_owned(), explanation, commit: None }
    }));
    (tree, conflicts)
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
