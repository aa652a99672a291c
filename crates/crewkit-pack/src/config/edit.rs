//! Adding and removing modules in the text of `agentpack.yaml`, leaving everything else as its author wrote it.
//!
//! The text is edited by lines where modules are a block list, and by brackets where they are a flow list. Every edit is
//! checked by parsing the result: it must say exactly what was meant, otherwise nothing is changed and the person is
//! told to do it by hand.

use std::fmt::Write as _;
use std::path::Path;

use crewkit_core::{Code, Limits};
use serde_json::{Value, json};

use crate::config::manifest::{Manifest, Module, SourceRef};
use crate::error::{PackError, Result};

/// The text with `module` added at the end of the list.
pub fn add(text: &str, module: &Module, path: &Path, limits: &Limits) -> Result<String> {
    let mut wanted = Manifest::parse(text, path, limits)?;
    wanted.modules.push(module.clone());
    let edited = match locate(text) {
        Some(Place::Block { items, end, indent, .. }) if !items.is_empty() => {
            insert_line(text, end, &block(module, &indent))
        }
        Some(Place::Block { key_line, .. }) => insert_line(text, key_line + 1, &block(module, "  ")),
        Some(Place::Flow { open, close, items }) if items.is_empty() => {
            let line_end = text[close..].find('\n').map_or(text.len(), |at| close + at);
            let rest = text.get(close + 1..line_end).unwrap_or_default().trim_end();
            let head = text[..open].trim_end_matches(' ');
            let nl = newline(text);
            let item = block(module, "  ").replace('\n', nl);
            format!("{head}{rest}{nl}{item}{tail}", tail = tail_from(text, line_end))
        }
        Some(Place::Flow { close, items, .. }) => {
            let end = items.last().map_or(close, |item| item.end);
            format!("{}, {}{}", text[..end].trim_end(), flow(module), &text[end..])
        }
        None => {
            let gap = if text.ends_with('\n') || text.is_empty() { "" } else { newline(text) };
            let nl = newline(text);
            format!("{text}{gap}modules:{nl}{}", block(module, "  ").replace('\n', nl))
        }
    };
    checked(&edited, &wanted, path, limits)
}

/// The text without the module called `id`.
pub fn remove(text: &str, id: &str, path: &Path, limits: &Limits) -> Result<String> {
    let before = Manifest::parse(text, path, limits)?;
    before.module(id)?;
    let mut wanted = before.clone();
    wanted.modules.retain(|module| module.id != id);
    let index = before.modules.iter().position(|module| module.id == id).unwrap_or_default();
    let edited = match locate(text) {
        Some(Place::Block { items, key_line, .. }) if items.len() == before.modules.len() => {
            let range = items[index].clone();
            let lines: Vec<&str> = text.split_inclusive('\n').collect();
            let mut kept: Vec<String> = lines
                .iter()
                .enumerate()
                .filter(|(at, _)| !range.contains(at))
                .map(|(_, line)| (*line).to_owned())
                .collect();
            if items.len() == 1
                && let Some(key) = kept.get_mut(key_line)
            {
                *key = key.replacen("modules:", "modules: []", 1);
            }
            kept.concat()
        }
        Some(Place::Flow { items, .. }) if items.len() == before.modules.len() => {
            let item = &items[index];
            let (start, end) = match (index, items.get(index + 1)) {
                (_, Some(next)) => (item.start, next.start),
                (0, None) => (item.start, item.end),
                (_, None) => (items[index - 1].end, item.end),
            };
            format!("{}{}", &text[..start], &text[end..])
        }
        _ => return Err(by_hand(path)),
    };
    checked(&edited, &wanted, path, limits)
}

fn checked(edited: &str, wanted: &Manifest, path: &Path, limits: &Limits) -> Result<String> {
    // The new manifest must itself be valid; that it is not is the caller's mistake, not the editor's.
    let parsed = Manifest::parse(edited, path, limits);
    match parsed {
        Ok(parsed) if parsed == *wanted => Ok(edited.to_owned()),
        Err(error)
            if matches!(error.code(), Code::ConfigInvalid | Code::TargetUnsupported)
                // What was asked for is itself against the rules, such as a second module of the same id.
                && wanted.check().is_err() =>
        {
            Err(error)
        }
        _ => Err(by_hand(path)),
    }
}

fn by_hand(path: &Path) -> PackError {
    PackError::new(
        Code::ConfigInvalid,
        format!("{} is written in a way that cannot be edited automatically", path.display()),
    )
    .detail("path", path.display().to_string())
    .hint("edit the list `modules` by hand, or write it as a plain block list")
}

/// Where the list of modules is.
enum Place {
    Block {
        key_line: usize,
        /// The lines of each item.
        items: Vec<std::ops::Range<usize>>,
        /// The line after the last item.
        end: usize,
        /// What stands in front of each dash.
        indent: String,
    },
    Flow {
        /// The opening bracket.
        open: usize,
        /// The closing bracket.
        close: usize,
        /// The text of each item.
        items: Vec<std::ops::Range<usize>>,
    },
}

fn locate(text: &str) -> Option<Place> {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let key_line = lines.iter().position(|line| line.starts_with("modules:"))?;
    let offset: usize = lines[..key_line].iter().map(|line| line.len()).sum();
    let value = &lines[key_line]["modules:".len()..];
    let content = value.trim_start();
    if content.starts_with('[') {
        let open = offset + "modules:".len() + (value.len() - content.len());
        let (close, items) = flow_items(text, open)?;
        return Some(Place::Flow { open, close, items });
    }
    if !content.is_empty() && !content.starts_with('#') {
        // An anchor, a tag or an explicit null.
        return None;
    }
    let is_blank = |line: &str| line.trim().is_empty();
    let is_comment = |line: &str| line.trim_start().starts_with('#');
    let first = (key_line + 1..lines.len()).find(|at| !is_blank(lines[*at]) && !is_comment(lines[*at]));
    let indent = match first {
        Some(at) if lines[at].trim_start().starts_with('-') => {
            lines[at][..lines[at].len() - lines[at].trim_start().len()].to_owned()
        }
        _ => {
            return Some(Place::Block {
                key_line,
                items: Vec::new(),
                end: key_line + 1,
                indent: "  ".to_owned(),
            });
        }
    };
    let is_dash = |line: &str| {
        line.strip_prefix(indent.as_str())
            .and_then(|rest| rest.strip_prefix('-'))
            .is_some_and(|rest| rest.starts_with([' ', '\n', '\r', '\t']) || rest.is_empty())
    };
    let depth = |line: &str| line.len() - line.trim_start_matches(' ').len();
    let mut starts = Vec::new();
    let mut end = lines.len();
    for (at, line) in lines.iter().enumerate().skip(key_line + 1) {
        if is_dash(line) {
            starts.push(at);
        } else if !is_blank(line) && !is_comment(line) && depth(line) <= indent.len() {
            end = at;
            break;
        }
    }
    // Blank lines and comments after an item belong to what follows; a comment deeper than the dash may be text.
    let content_end = |from: usize, to: usize| {
        let mut to = to;
        while to > from + 1 {
            let line = lines[to - 1];
            if is_blank(line) || (is_comment(line) && depth(line) <= indent.len()) {
                to -= 1;
            } else {
                break;
            }
        }
        to
    };
    let items: Vec<_> = starts
        .iter()
        .enumerate()
        .map(|(index, start)| {
            let next = starts.get(index + 1).copied().unwrap_or(end);
            *start..content_end(*start, next)
        })
        .collect();
    let end = items.last().map_or(key_line + 1, |item| item.end);
    Some(Place::Block { key_line, items, end, indent })
}

/// The closing bracket of the flow list that opens at `open`, and its items.
fn flow_items(text: &str, open: usize) -> Option<(usize, Vec<std::ops::Range<usize>>)> {
    let bytes = text.as_bytes();
    let mut depth = 0_usize;
    let mut items = Vec::new();
    let mut start: Option<usize> = None;
    let mut last = open;
    let mut at = open;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'\'' | b'"' => {
                start.get_or_insert(at);
                at = string_end(bytes, at)?;
                last = at + 1;
            }
            b'#' if at > 0 && bytes[at - 1].is_ascii_whitespace() => {
                at = bytes[at..].iter().position(|byte| *byte == b'\n').map(|next| at + next)?;
            }
            b'[' | b'{' => {
                if depth > 0 {
                    start.get_or_insert(at);
                }
                depth += 1;
                last = at + 1;
            }
            b']' | b'}' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    items.extend(start.map(|start| start..last));
                    return Some((at, items));
                }
                last = at + 1;
            }
            b',' if depth == 1 => items.extend(start.take().map(|start| start..last)),
            byte if byte.is_ascii_whitespace() => {}
            _ => {
                start.get_or_insert(at);
                last = at + 1;
            }
        }
        at += 1;
    }
    None
}

fn string_end(bytes: &[u8], open: usize) -> Option<usize> {
    let quote = bytes[open];
    let mut at = open + 1;
    loop {
        match bytes.get(at)? {
            b'\\' if quote == b'"' => at += 1,
            byte if *byte == quote => {
                if quote == b'\'' && bytes.get(at + 1) == Some(&quote) {
                    at += 1;
                } else {
                    return Some(at);
                }
            }
            _ => {}
        }
        at += 1;
    }
}

fn newline(text: &str) -> &'static str {
    if text.contains("\r\n") { "\r\n" } else { "\n" }
}

fn tail_from(text: &str, line_end: usize) -> &str {
    text.get(line_end..).unwrap_or_default().strip_prefix('\n').unwrap_or_default()
}

fn insert_line(text: &str, line: usize, item: &str) -> String {
    let nl = newline(text);
    let mut lines: Vec<String> = text.split_inclusive('\n').map(ToOwned::to_owned).collect();
    let line = line.min(lines.len());
    if let Some(last) = line.checked_sub(1).and_then(|at| lines.get_mut(at))
        && !last.ends_with('\n')
    {
        last.push_str(nl);
    }
    lines.insert(line, item.replace('\n', nl));
    lines.concat()
}

/// A module as an item of a block list.
fn block(module: &Module, indent: &str) -> String {
    let mut text = format!("{indent}- id: {}\n", scalar(&module.id));
    let mut line = |depth: usize, key: &str, value: &str| {
        let gap = if value.is_empty() { "" } else { " " };
        let _ = writeln!(text, "{indent}  {}{key}:{gap}{value}", "  ".repeat(depth));
    };
    line(0, "type", module.kind.name());
    let list = |items: &[String]| {
        format!("[{}]", items.iter().map(|item| scalar(item)).collect::<Vec<_>>().join(", "))
    };
    if !module.tags.is_empty() {
        line(0, "tags", &list(&module.tags));
    }
    if !module.targets.is_empty() {
        line(0, "targets", &list(&module.targets));
    }
    line(0, "source", "");
    match module.source.get() {
        Some(SourceRef::Local(local)) => {
            line(1, "local_path", "");
            line(2, "path", &scalar(&local.path));
        }
        Some(SourceRef::Git(git)) => {
            line(1, "git", "");
            line(2, "url", &scalar(&git.url));
            line(2, "ref", &scalar(&git.reference));
            if !git.subdir.is_empty() {
                line(2, "subdir", &scalar(&git.subdir));
            }
            if !git.shallow {
                line(2, "shallow", "false");
            }
        }
        None => {}
    }
    text
}

/// A module as an item of a flow list; JSON is YAML.
fn flow(module: &Module) -> Value {
    let source = match module.source.get() {
        Some(SourceRef::Local(local)) => json!({"local_path": {"path": local.path}}),
        Some(SourceRef::Git(git)) => {
            json!({"git": {"url": git.url, "ref": git.reference, "subdir": git.subdir, "shallow": git.shallow}})
        }
        None => Value::Null,
    };
    json!({"id": module.id, "type": module.kind.name(), "tags": module.tags, "targets": module.targets, "source": source})
}

/// A text that YAML reads as that text: plain where that is safe, else quoted.
fn scalar(text: &str) -> String {
    let plain_start = text.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || "_/.".contains(c));
    let plain =
        text.chars().all(|c| c.is_ascii_alphanumeric() || "_-./:@+".contains(c)) && !text.ends_with(':');
    let word = matches!(
        text.to_ascii_lowercase().as_str(),
        "true" | "false" | "null" | "yes" | "no" | "on" | "off" | "y" | "n" | ".nan" | ".inf"
    );
    if plain_start && plain && !word && text.parse::<f64>().is_err() {
        text.to_owned()
    } else {
        Value::String(text.to_owned()).to_string()
    }
}

#[cfg(test)]
mod tests;
