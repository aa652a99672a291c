//! Texts that clients want in a form of their own: rules about some files, and prompts that have become skills.

use crewkit_core::Limits;
use serde_json::{Map, Value};

use crate::client::RuleStyle;
use crate::config::ids;
use crate::config::manifest::Module;
use crate::error::{PackError, Result};
use crate::source::materialize::Material;
use crate::source::module::{self, DESCRIPTION_CHARS, SKILL_FILE};

/// Instructions as a rule, with what it is about in front.
pub(super) fn text(style: RuleStyle, module: &Module, body: &str) -> String {
    let globs = module.globs();
    let all = globs.is_empty();
    let joined = Value::String(globs.join(","));
    let list = || Value::from(globs.clone());
    let description = module.description().map(|text| format!("description: {}\n", Value::from(text)));
    let description = description.unwrap_or_default();
    let head = match style {
        // Without any of the three a rule is used only when somebody names it.
        RuleStyle::Cursor if all => format!("{description}alwaysApply: true\n"),
        RuleStyle::Cursor => format!("{description}globs: {joined}\nalwaysApply: false\n"),
        RuleStyle::Paths if all => description,
        RuleStyle::Paths => format!("{description}paths: {}\n", list()),
        RuleStyle::ApplyTo if all => format!("{description}applyTo: \"**\"\n"),
        RuleStyle::ApplyTo => format!("{description}applyTo: {joined}\n"),
        RuleStyle::Inclusion if all => format!("inclusion: always\n{description}"),
        RuleStyle::Inclusion => format!("inclusion: fileMatch\nfileMatchPattern: {}\n{description}", list()),
        RuleStyle::Trigger if all => format!("trigger: always_on\n{description}"),
        RuleStyle::Trigger => format!("trigger: glob\nglobs: {joined}\n{description}"),
    };
    let end = if body.ends_with('\n') { "" } else { "\n" };
    if head.is_empty() { format!("{body}{end}") } else { format!("---\n{head}---\n\n{body}{end}") }
}

/// The files of a prompt or command as a skill that the model does not choose by itself.
pub(super) fn called_skill(
    material: &Material,
    for_codex: bool,
    limits: &Limits,
) -> Result<Vec<(String, String)>> {
    let Some(file) = material.files.iter().find(|file| module::is_markdown(file)) else {
        return Ok(Vec::new());
    };
    let text = file.read_text(limits.pack_text_bytes)?;
    let name = skill_name(&ids::module_name(&material.id));
    if name.is_empty() {
        return Err(PackError::new(
            crewkit_core::Code::ModuleInvalid,
            format!("module {}: no name for a skill follows from its id", material.id),
        )
        .detail("module_id", material.id.as_str())
        .hint("give it an id with letters or digits after the colon"));
    }
    let (mut fields, body) = match module::frontmatter(&text, limits) {
        Ok(Some(Value::Object(fields))) => (fields, after_frontmatter(&text)),
        // What is no frontmatter is text.
        _ => (Map::new(), text.as_str()),
    };
    let described = fields.remove("description");
    let described = described.as_ref().and_then(Value::as_str).map(str::trim).filter(|text| !text.is_empty());
    let description = described.map_or_else(|| first_words(body, &name), ToOwned::to_owned);
    fields.remove("name");
    fields.remove("disable-model-invocation");
    let mut head = format!(
        "name: {name}\ndescription: {}\ndisable-model-invocation: true\n",
        Value::from(description.chars().take(DESCRIPTION_CHARS).collect::<String>())
    );
    for (key, value) in &fields {
        head += &format!("{}: {value}\n", Value::from(key.as_str()));
    }
    let body = body.trim_start_matches(['\r', '\n']);
    let mut files = vec![(format!("{name}/{SKILL_FILE}"), format!("---\n{head}---\n\n{body}"))];
    if for_codex {
        let policy = "policy:\n  allow_implicit_invocation: false\n";
        files.push((format!("{name}/agents/openai.yaml"), policy.to_owned()));
    }
    Ok(files)
}

/// A name for a skill, as the published rules want it.
fn skill_name(name: &str) -> String {
    let mut made = String::new();
    for c in name.to_lowercase().chars() {
        if c.is_ascii_lowercase() || c.is_ascii_digit() {
            made.push(c);
        } else if !made.is_empty() && !made.ends_with('-') {
            made.push('-');
        }
    }
    made.truncate(64);
    made.trim_end_matches('-').to_owned()
}

/// The text after the frontmatter, which is there.
fn after_frontmatter(text: &str) -> &str {
    let mut at = 0;
    for (number, line) in text.split_inclusive('\n').enumerate() {
        at += line.len();
        if number > 0 && line.trim_end_matches(['\r', '\n']) == "---" {
            break;
        }
    }
    text.get(at..).unwrap_or_default()
}

/// The first line that says something, as a description.
fn first_words(body: &str, name: &str) -> String {
    let mut lines = body.lines().map(|line| line.trim_start_matches('#').trim());
    lines.find(|line| !line.is_empty()).unwrap_or(name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_published_rules() {
        for (given, want) in
            [("draft_pr", "draft-pr"), ("A b.C", "a-b-c"), ("--x--", "x"), ("ü", ""), ("a:b", "a-b")]
        {
            assert_eq!(skill_name(given), want, "{given}");
            assert!(want.is_empty() || module::is_skill_name(want));
        }
        assert!(module::is_skill_name(&skill_name(&"x_".repeat(80))));
    }
}
