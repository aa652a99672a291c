//! Reading, writing and editing one file.

use std::fmt::Write as _;
use std::path::Path;

use crewkit_core::Limits;
use serde_json::{Value, json};

use super::path::beneath;
use super::{number, object, text};
use crate::sys::Root;

pub(super) fn read_schema() -> Value {
    object(
        &json!({
            "path": {"type": "string", "description": "Path from the working directory."},
            "offset": {"type": "integer", "minimum": 1, "description": "First line, from 1."},
            "limit": {"type": "integer", "minimum": 1, "description": "Number of lines."},
        }),
        &["path"],
    )
}

pub(super) fn read(root: &Root, limits: &Limits, arguments: &Value) -> Result<String, String> {
    let contents = read_text(root, limits, text(arguments, "path")?)?;
    let (offset, limit) = (number(arguments, "offset")?, number(arguments, "limit")?);
    if offset.is_none() && limit.is_none() && contents.len() as u64 <= limits.tool_result_bytes {
        return Ok(contents);
    }
    let first = offset.unwrap_or(1).max(1);
    let total = contents.lines().count() as u64;
    let mut part = String::new();
    let mut shown = 0;
    for line in contents.lines().skip(usize::try_from(first - 1).unwrap_or(usize::MAX)) {
        let fits = ((part.len() + line.len()) as u64) < limits.tool_result_bytes;
        if limit.is_some_and(|limit| shown >= limit) || (!fits && shown > 0) {
            break;
        }
        part.push_str(line);
        part.push('\n');
        shown += 1;
    }
    if first + shown <= total {
        let _ = write!(
            part,
            "(lines {first} to {} of {total}; go on with offset {})",
            first + shown - 1,
            first + shown
        );
    } else if shown == 0 && total > 0 {
        return Err(format!("the file has {total} lines only"));
    }
    Ok(part)
}

pub(super) fn write_schema() -> Value {
    object(
        &json!({
            "path": {"type": "string", "description": "Path from the working directory."},
            "content": {"type": "string", "description": "The whole new content."},
        }),
        &["path", "content"],
    )
}

pub(super) fn write(root: &Root, limits: &Limits, arguments: &Value) -> Result<String, String> {
    let written = text(arguments, "path")?;
    let content = text(arguments, "content")?;
    check_size(limits, content)?;
    let path = beneath(root.path(), written)?;
    put(root, &path, content)?;
    Ok(format!("wrote {} bytes to {}", content.len(), path.display()))
}

pub(super) fn edit_schema() -> Value {
    object(
        &json!({
            "path": {"type": "string", "description": "Path from the working directory."},
            "old_text": {"type": "string", "description": "The exact text to replace."},
            "new_text": {"type": "string", "description": "What to put in its place."},
            "replace_all": {"type": "boolean", "description": "Replace every occurrence.", "default": false},
        }),
        &["path", "old_text", "new_text"],
    )
}

pub(super) fn edit(root: &Root, limits: &Limits, arguments: &Value) -> Result<String, String> {
    let written = text(arguments, "path")?;
    let (old, new) = (text(arguments, "old_text")?, text(arguments, "new_text")?);
    if old.is_empty() {
        return Err("old_text is empty; use write_file to create a file".to_owned());
    }
    let contents = read_text(root, limits, written)?;
    let count = contents.matches(old).count();
    let all = arguments["replace_all"].as_bool().unwrap_or(false);
    match count {
        0 => return Err(format!("{written} does not hold the old text; read the file and copy it exactly")),
        2.. if !all => {
            return Err(format!(
                "{written} holds the old text {count} times; add lines around it, or set replace_all"
            ));
        }
        _ => {}
    }
    let edited = contents.replace(old, new);
    check_size(limits, &edited)?;
    let path = beneath(root.path(), written)?;
    put(root, &path, &edited)?;
    Ok(format!("replaced {count} in {}", path.display()))
}

fn read_text(root: &Root, limits: &Limits, written: &str) -> Result<String, String> {
    let path = beneath(root.path(), written)?;
    let bytes = root.read(&path, limits.tool_file_bytes).map_err(|error| format!("{written}: {error}"))?;
    String::from_utf8(bytes).map_err(|_| format!("{written} is not a text file"))
}

fn put(root: &Root, path: &Path, content: &str) -> Result<(), String> {
    root.write(path, content.as_bytes()).map_err(|error| format!("{}: {error}", path.display()))
}

fn check_size(limits: &Limits, content: &str) -> Result<(), String> {
    if content.len() as u64 > limits.tool_file_bytes {
        return Err(format!(
            "{} bytes are more than the {} a file may have",
            content.len(),
            limits.tool_file_bytes
        ));
    }
    Ok(())
}
