//! Listing files and searching their contents.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crewkit_core::Limits;
use serde_json::{Value, json};

use super::path::beneath;
use super::{object, text};
use crate::sys::{Kind, Root};

/// Matching lines of one search.
const MAX_MATCHES: usize = 500;
/// A matching line is shown no longer than this.
const MAX_LINE: usize = 400;
const MAX_DEPTH: usize = 32;

pub(super) fn list_schema() -> Value {
    object(
        &json!({
            "path": {"type": "string", "description": "Directory to begin at; the working directory when left out."},
            "depth": {"type": "integer", "minimum": 1, "description": "How deep to go; 2 when left out."},
        }),
        &[],
    )
}

pub(super) fn list(root: &Root, limits: &Limits, arguments: &Value) -> Result<String, String> {
    let start = match arguments["path"].as_str() {
        Some(written) => beneath(root.path(), written)?,
        None => PathBuf::new(),
    };
    let depth = super::number(arguments, "depth")?.unwrap_or(2);
    let depth = usize::try_from(depth).unwrap_or(MAX_DEPTH).clamp(1, MAX_DEPTH);
    let most = usize::try_from(limits.tool_result_bytes).unwrap_or(usize::MAX);
    let mut listing = String::new();
    let mut cut = false;
    let complete = walk(root, limits, &start, depth, &mut |path, kind| {
        let name = path.strip_prefix(&start).unwrap_or(path).display().to_string();
        if listing.len() + name.len() + 2 > most {
            cut = true;
            return false;
        }
        listing.push_str(&name);
        listing.push_str(if kind == Kind::Directory { "/\n" } else { "\n" });
        true
    })?;
    if cut || !complete {
        listing.push_str("(there is more; list a directory further down)\n");
    }
    Ok(if listing.is_empty() { "(empty)".to_owned() } else { listing })
}

pub(super) fn search_schema() -> Value {
    object(
        &json!({
            "pattern": {"type": "string", "description": "Regular expression; (?i) in front ignores case."},
            "path": {"type": "string", "description": "File or directory to search; everything when left out."},
            "ending": {"type": "string", "description": "Only files whose name ends with this, for example .rs"},
        }),
        &["pattern"],
    )
}

pub(super) fn search(root: &Root, limits: &Limits, arguments: &Value) -> Result<String, String> {
    const COMPILED_BYTES: usize = 1 << 20;
    let pattern = regex::RegexBuilder::new(text(arguments, "pattern")?)
        .size_limit(COMPILED_BYTES)
        .build()
        .map_err(|bad| format!("pattern: {bad}"))?;
    let start = match arguments["path"].as_str() {
        Some(written) => beneath(root.path(), written)?,
        None => PathBuf::new(),
    };
    let ending = arguments["ending"].as_str().unwrap_or_default();
    let mut files: Vec<PathBuf> = Vec::new();
    let complete = match root.list(&start, 1) {
        Ok(_) => walk(root, limits, &start, MAX_DEPTH, &mut |path, kind| {
            if kind == Kind::File && path.to_string_lossy().ends_with(ending) {
                files.push(path.to_owned());
            }
            true
        })?,
        Err(_) => {
            files.push(start);
            true
        }
    };
    let mut found = Found { text: String::new(), count: 0, room: limits.tool_result_bytes };
    let until = Instant::now() + Duration::from_secs(limits.tool_call_seconds);
    let mut in_time = true;
    for file in &files {
        if Instant::now() >= until {
            in_time = false;
            break;
        }
        // A file that cannot be read, or is no text, has no matches.
        let Ok(bytes) = root.read(file, limits.tool_file_bytes) else { continue };
        let Ok(contents) = String::from_utf8(bytes) else { continue };
        for (index, line) in contents.lines().enumerate().filter(|(_, line)| pattern.is_match(line)) {
            if !found.add(file, index + 1, line) {
                return Ok(found.text + "(there are more matches; search for something narrower)");
            }
        }
    }
    if !complete || !in_time {
        found.text.push_str("(not every file was searched; name a directory)");
    }
    Ok(if found.text.is_empty() { "(no matches)".to_owned() } else { found.text })
}

struct Found {
    text: String,
    count: usize,
    room: u64,
}

impl Found {
    fn add(&mut self, file: &Path, number: usize, line: &str) -> bool {
        let shown: String = line.chars().take(MAX_LINE).collect();
        let row = format!("{}:{number}: {shown}\n", file.display());
        if self.count >= MAX_MATCHES || (self.text.len() + row.len()) as u64 > self.room {
            return false;
        }
        self.text.push_str(&row);
        self.count += 1;
        true
    }
}

/// Visits what lies below `start`, directories before their contents, until `visit` says enough; says whether it saw all.
fn walk(
    root: &Root,
    limits: &Limits,
    start: &Path,
    depth: usize,
    visit: &mut dyn FnMut(&Path, Kind) -> bool,
) -> Result<bool, String> {
    let shown = if start.as_os_str().is_empty() { Path::new(".") } else { start };
    let mut open = vec![(start.to_owned(), depth, true)];
    let most = usize::try_from(limits.tool_walk_entries).unwrap_or(usize::MAX - 2);
    let mut seen = 0;
    while let Some((directory, depth, is_start)) = open.pop() {
        // One more than there is room for, and `.git`: then it is known that some are left out.
        let entries = match root.list(&directory, most - seen + 2) {
            Ok(entries) => entries,
            Err(error) if is_start => return Err(format!("{}: {error}", shown.display())),
            // Gone or closed meanwhile.
            Err(_) => continue,
        };
        let mut below = Vec::new();
        for (name, kind) in entries {
            if name == ".git" {
                continue;
            }
            if seen == most {
                return Ok(false);
            }
            seen += 1;
            let path = directory.join(name);
            if !visit(&path, kind) {
                return Ok(false);
            }
            if kind == Kind::Directory && depth > 1 {
                below.push((path, depth - 1, false));
            }
        }
        open.extend(below.into_iter().rev());
    }
    Ok(true)
}
