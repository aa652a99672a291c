//! What the content of a module must be, by its type.

use crewkit_core::{Code, Limits};
use serde_json::{Value, json};

use crate::config::manifest::{Module, ModuleType};
use crate::config::yaml;
use crate::error::{PackError, Result};
use crate::observe::hash_cache::{HashCache, Marks};
use crate::source::tree::TreeFile;

/// The file an instructions module consists of.
pub const INSTRUCTIONS_FILE: &str = "AGENTS.md";
/// The file a skill must have.
pub const SKILL_FILE: &str = "SKILL.md";

/// Files operating systems leave in directories people look at.
const LITTER: [&str; 3] = [".DS_Store", "Thumbs.db", "desktop.ini"];

/// Checks the files of a module, overlays applied.
pub fn check(module: &Module, files: &[TreeFile], limits: &Limits, cache: &HashCache) -> Result<()> {
    match module.kind {
        ModuleType::Instructions => instructions(module, files).map(|_| ()),
        ModuleType::Prompt => single_file(module, files).map(|_| ()),
        ModuleType::Skill => {
            let Some(file) = find(files, SKILL_FILE) else {
                return Err(config_invalid(module, SKILL_FILE, "is missing SKILL.md")
                    .detail("missing", json!([SKILL_FILE])));
            };
            if !file.is_marked(Marks::SKILL) {
                skill(module, &file.read_text(limits.pack_text_bytes)?, file, limits)?;
                file.mark(Marks::SKILL, cache);
            }
            Ok(())
        }
        ModuleType::Command => {
            let file = single_file(module, files)?;
            if !file.is_marked(Marks::COMMAND) {
                command(module, &file.read_text(limits.pack_text_bytes)?, file, limits)?;
                file.mark(Marks::COMMAND, cache);
            }
            Ok(())
        }
    }
}

/// The text of an instructions module.
pub fn instructions<'a>(module: &Module, files: &'a [TreeFile]) -> Result<&'a TreeFile> {
    find(files, INSTRUCTIONS_FILE).ok_or_else(|| {
        invalid(module, format!("instructions module {} is missing {INSTRUCTIONS_FILE}", module.id))
            .detail("missing", json!([INSTRUCTIONS_FILE]))
    })
}

/// The one Markdown file of a prompt or command.
pub fn single_file<'a>(module: &Module, files: &'a [TreeFile]) -> Result<&'a TreeFile> {
    let kind = module.kind.name();
    let relevant: Vec<_> = files.iter().filter(|file| !LITTER.contains(&file.path.name())).collect();
    let [file] = relevant[..] else {
        let sample: Vec<_> = relevant.iter().take(20).map(|file| file.path.as_str()).collect();
        return Err(invalid(
            module,
            format!("{kind} module {} must contain exactly one file, found {}", module.id, relevant.len()),
        )
        .detail("sample_paths", sample));
    };
    if !is_markdown(file) {
        return Err(invalid(
            module,
            format!("{kind} module {} must be a .md file: {}", module.id, file.path),
        )
        .detail("path", file.shown().display().to_string()));
    }
    Ok(file)
}

/// Whether a file is Markdown by its name.
pub fn is_markdown(file: &TreeFile) -> bool {
    file.path.as_path().extension().is_some_and(|extension| extension == "md")
}

fn find<'a>(files: &'a [TreeFile], name: &str) -> Option<&'a TreeFile> {
    files.iter().find(|file| file.path.as_str() == name)
}

fn invalid(module: &Module, message: String) -> PackError {
    PackError::new(Code::ModuleInvalid, message).detail("module_id", module.id.as_str())
}

fn config_invalid(module: &Module, path: &str, what: &str) -> PackError {
    PackError::new(Code::ConfigInvalid, format!("{} module {} {what}", module.kind.name(), module.id))
        .detail("module_id", module.id.as_str())
        .detail("path", path)
}

/// A skill needs a name and a description, as agents choose it by them.
fn skill(module: &Module, text: &str, file: &TreeFile, limits: &Limits) -> Result<()> {
    let shown = file.shown().display().to_string();
    let wrong = |what: String| config_invalid(module, &shown, &what);
    let frontmatter = match frontmatter(text, limits) {
        Ok(Some(value)) => value,
        Ok(None) => {
            return Err(wrong("is missing YAML frontmatter in SKILL.md".to_owned())
                .detail("missing", json!(["frontmatter"]))
                .detail("required_fields", json!(["name", "description"])));
        }
        Err(error) => {
            return Err(
                wrong(format!("has invalid YAML frontmatter in SKILL.md: {error}")).detail("error", error)
            );
        }
    };
    let Value::Object(map) = frontmatter else {
        return Err(wrong("frontmatter must be a YAML mapping".to_owned()).detail("expected", "mapping"));
    };
    for field in ["name", "description"] {
        match map.get(field) {
            None => {
                return Err(
                    wrong(format!("frontmatter is missing {field}")).detail("missing", json!([field]))
                );
            }
            Some(Value::String(text)) if text.trim().is_empty() => {
                return Err(wrong(format!("frontmatter {field} is empty")).detail("field", field));
            }
            Some(Value::String(_)) => {}
            Some(_) => {
                return Err(wrong(format!("frontmatter {field} must be a string"))
                    .detail("field", field)
                    .detail("expected", "string"));
            }
        }
    }
    Ok(())
}

/// A command needs a description, and leave to run a shell when it does.
fn command(module: &Module, text: &str, file: &TreeFile, limits: &Limits) -> Result<()> {
    let wrong = |what: String| {
        invalid(module, format!("command module {} {what}", module.id))
            .detail("path", file.shown().display().to_string())
    };
    let map = match frontmatter(text, limits) {
        Ok(Some(Value::Object(map))) => map,
        Ok(Some(_)) => return Err(wrong("frontmatter must be a YAML mapping".to_owned())),
        Ok(None) => return Err(wrong("is missing YAML frontmatter (--- … ---)".to_owned())),
        Err(error) => return Err(wrong(format!("has invalid YAML frontmatter: {error}"))),
    };
    match map.get("description").and_then(Value::as_str) {
        None => return Err(wrong("frontmatter is missing description".to_owned())),
        Some(text) if text.trim().is_empty() => {
            return Err(wrong("frontmatter description is empty".to_owned()));
        }
        Some(_) => {}
    }
    if !(text.contains("!bash") || text.contains("!`bash`")) {
        return Ok(());
    }
    let names_bash = |value: &Value| value.as_str().is_some_and(|text| text.contains("Bash("));
    match map.get("allowed-tools") {
        None => Err(wrong("uses bash but frontmatter is missing allowed-tools".to_owned())),
        Some(Value::Array(tools)) if tools.iter().any(names_bash) => Ok(()),
        Some(tools) if names_bash(tools) => Ok(()),
        Some(_) => Err(wrong("uses bash but allowed-tools does not include Bash(...)".to_owned())),
    }
}

/// The YAML between the `---` lines at the start; nothing when the text does not start with one.
pub fn frontmatter(text: &str, limits: &Limits) -> Result<Option<Value>, String> {
    let mut lines = text.lines();
    if lines.next() != Some("---") {
        return Ok(None);
    }
    let mut yaml = String::new();
    for line in lines {
        if line == "---" {
            return yaml::parse(&yaml, limits).map(Some);
        }
        yaml.push_str(line);
        yaml.push('\n');
    }
    Err("the closing --- is missing".to_owned())
}

#[cfg(test)]
mod tests;
