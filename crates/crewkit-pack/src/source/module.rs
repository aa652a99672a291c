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

/// Checks the files of a module, overlays applied; returns what some clients will not take as it is.
pub fn check(
    module: &Module,
    files: &[TreeFile],
    limits: &Limits,
    cache: &HashCache,
) -> Result<Vec<BrokenRule>> {
    match module.kind {
        ModuleType::Instructions => instructions(module, files).map(|_| Vec::new()),
        ModuleType::Prompt => single_file(module, files).map(|_| Vec::new()),
        ModuleType::Skill => {
            let Some(file) = find(files, SKILL_FILE) else {
                return Err(config_invalid(module, SKILL_FILE, "is missing SKILL.md")
                    .detail("missing", json!([SKILL_FILE])));
            };
            if file.is_marked(Marks::SOUND_SKILL) {
                return Ok(Vec::new());
            }
            let noticed = skill(module, &file.read_text(limits.pack_text_bytes)?, file, limits)?;
            file.mark(if noticed.is_empty() { Marks::SOUND_SKILL } else { Marks::SKILL }, cache);
            Ok(noticed)
        }
        ModuleType::Command => {
            let file = single_file(module, files)?;
            if !file.is_marked(Marks::COMMAND) {
                command(module, &file.read_text(limits.pack_text_bytes)?, file, limits)?;
                file.mark(Marks::COMMAND, cache);
            }
            Ok(Vec::new())
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

/// A skill needs a name and a description, as agents choose it by them. Returns what of them breaks the published rules.
fn skill(module: &Module, text: &str, file: &TreeFile, limits: &Limits) -> Result<Vec<BrokenRule>> {
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
    let field = |name: &str| map.get(name).and_then(Value::as_str).unwrap_or_default();
    Ok(unsound(module, field("name"), field("description")))
}

/// Longest name of a skill.
const NAME_CHARS: usize = 64;
/// Longest description of a skill.
pub(crate) const DESCRIPTION_CHARS: usize = 1024;

/// A published rule that a skill breaks; some clients enforce it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BrokenRule {
    Name,
    NameOfDirectory,
    Description,
}

impl BrokenRule {
    /// The rule, and what comes of breaking it.
    pub(crate) fn message(self) -> String {
        match self {
            Self::Name => format!(
                "the name of a skill has 1 to {NAME_CHARS} of a-z, 0-9 and single hyphens between them; some clients do \
                 not load another"
            ),
            Self::NameOfDirectory => {
                "a skill is deployed as a directory called like its id; some clients load it only if its own name is the \
                 same"
                    .to_owned()
            }
            Self::Description => format!(
                "the description of a skill has {DESCRIPTION_CHARS} characters at most; clients cut the rest or do not \
                 load it"
            ),
        }
    }
}

/// What of a skill's name and description breaks the published rules.
fn unsound(module: &Module, name: &str, description: &str) -> Vec<BrokenRule> {
    let wrong = [
        (BrokenRule::Name, !is_skill_name(name)),
        (BrokenRule::NameOfDirectory, name != crate::config::ids::module_name(&module.id)),
        (BrokenRule::Description, description.chars().count() > DESCRIPTION_CHARS),
    ];
    wrong.into_iter().filter(|(_, is_broken)| *is_broken).map(|(rule, _)| rule).collect()
}

/// Whether a skill may be called so, by the published rules.
pub(crate) fn is_skill_name(name: &str) -> bool {
    let plain = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    let hyphens = name.starts_with('-') || name.ends_with('-') || name.contains("--");
    plain && !hyphens && (1..=NAME_CHARS).contains(&name.len())
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
