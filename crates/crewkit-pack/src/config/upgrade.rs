//! Version 1 of `agentpack.yaml` rewritten as version 2, with everything else as its author wrote it.

use std::path::Path;

use crewkit_core::{Code, Limits};
use serde_json::Value;

use crate::config::manifest::{Manifest, ModuleScope, Scope, TargetConfig};
use crate::desired::target::TargetKind;
use crate::error::{PackError, Result};

/// A config file of version 2.
#[derive(Debug)]
pub(crate) struct Upgraded {
    pub(crate) text: String,
    pub(crate) manifest: Manifest,
    /// What version 1 said and version 2 cannot say.
    pub(crate) warnings: Vec<String>,
}

/// The text in version 2. Modules are for the project, unless every target was for the user alone or `scope` says so.
pub(crate) fn upgrade(
    text: &str,
    path: &Path,
    limits: &Limits,
    scope: Option<ModuleScope>,
) -> Result<Upgraded> {
    let before = Manifest::parse(text, path, limits)?;
    let of_user =
        !before.targets.is_empty() && before.targets.values().all(|config| config.scope() == Scope::User);
    let scope = scope.unwrap_or(if of_user { ModuleScope::User } else { ModuleScope::Project });
    let newline = if text.contains("\r\n") { "\r\n" } else { "\n" };
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let key = |name: &str| lines.iter().position(|line| line.starts_with(name));
    let Some(version) = key("version:") else { return Err(by_hand(path)) };
    let targets = key("targets:").map(|start| (start, block_end(&lines, start)));
    let mut out = String::with_capacity(text.len());
    for (at, line) in lines.iter().enumerate() {
        if at == version {
            out += &line.replacen('1', "2", 1);
            if scope == ModuleScope::User {
                out += &format!("scope: user{newline}");
            }
            if targets.is_none() {
                out += &entries(&before, &[], newline);
            }
        } else if targets.is_some_and(|(start, end)| (start..end).contains(&at)) {
            if targets.is_some_and(|(start, _)| start == at) {
                let (start, end) = targets.unwrap_or((at, at));
                out += &entries(&before, &lines[start..end], newline);
            }
        } else if is_about_targets(line) {
            out += &line.replace(TargetKind::Jetbrains.name(), TargetKind::Junie.name());
        } else {
            out += line;
        }
    }
    let manifest = Manifest::parse(&out, path, limits).map_err(|_| by_hand(path))?;
    if manifest != wanted(&before, scope) {
        return Err(by_hand(path));
    }
    Ok(Upgraded { text: out, manifest, warnings: dropped(&before) })
}

fn by_hand(path: &Path) -> PackError {
    PackError::new(
        Code::ConfigInvalid,
        format!("{} is written in a way that cannot be rewritten automatically", path.display()),
    )
    .detail("path", path.display().to_string())
    .hint("set `version: 2` and write `targets:` by hand, such as `targets: {agents: {}, claude_code: {}}`")
}

/// The line after the last one of the value that starts at `start`; blank lines and comments at its end are not part of it.
fn block_end(lines: &[&str], start: usize) -> usize {
    let is_key =
        |line: &str| line.starts_with(|c: char| c.is_alphanumeric() || c == '"' || c == '\'' || c == '_');
    let next = (start + 1..lines.len()).find(|at| is_key(lines[*at])).unwrap_or(lines.len());
    let is_next = |line: &str| line.trim().is_empty() || line.starts_with('#');
    let mut end = next;
    while end > start + 1 && is_next(lines[end - 1]) {
        end -= 1;
    }
    end
}

/// Whether a line of the list of modules can name targets.
fn is_about_targets(line: &str) -> bool {
    let text = line.trim_start();
    text.contains("targets:")
        || text.trim_end().trim_matches(['-', ' ', '"', '\'']) == TargetKind::Jetbrains.name()
}

/// The name of a target in version 2.
fn renamed(name: &str) -> &str {
    if name == TargetKind::Jetbrains.name() { TargetKind::Junie.name() } else { name }
}

/// The options of a target that version 2 has as well.
fn kept_options(name: &str, config: &TargetConfig) -> Vec<(String, Value)> {
    let allowed = TargetKind::from_name(name).map(TargetKind::options).unwrap_or_default();
    let kept = config.options.iter().filter(|(option, _)| allowed.contains(&option.as_str()));
    kept.map(|(option, value)| (option.clone(), value.clone())).collect()
}

/// The new value of `targets`, with the comments that stood in the old one.
fn entries(before: &Manifest, old: &[&str], newline: &str) -> String {
    let mut out = format!("targets:{newline}");
    for line in old {
        let comment = match line.trim_start().strip_prefix('#') {
            Some(_) => Some(line.trim()),
            None => line.find(" #").and_then(|at| line.get(at + 1..)).map(str::trim),
        };
        if let Some(comment) = comment {
            out += &format!("  {comment}{newline}");
        }
    }
    out += &format!("  agents: {{}}{newline}");
    for (name, config) in &before.targets {
        let options = kept_options(name, config);
        let value = if options.is_empty() {
            "{}".to_owned()
        } else {
            serde_json::json!({"options": options.into_iter().collect::<serde_json::Map<_, _>>()}).to_string()
        };
        out += &format!("  {}: {value}{newline}", renamed(name));
    }
    out
}

/// What the new file must say.
fn wanted(before: &Manifest, scope: ModuleScope) -> Manifest {
    let mut wanted = before.clone();
    wanted.version = 2;
    wanted.scope = if scope == ModuleScope::User { Value::from(scope.name()) } else { Value::Null };
    wanted.targets.clear();
    wanted.targets.insert(TargetKind::Agents.name().to_owned(), TargetConfig::default());
    for (name, config) in &before.targets {
        let options = kept_options(name, config).into_iter().collect();
        wanted.targets.insert(renamed(name).to_owned(), TargetConfig { options, ..TargetConfig::default() });
    }
    for target in wanted.modules.iter_mut().flat_map(|module| &mut module.targets) {
        *target = renamed(target).to_owned();
    }
    wanted
}

/// Options that changed something in version 1 and do not exist any more.
fn dropped(before: &Manifest) -> Vec<String> {
    let mut warnings = Vec::new();
    for (name, config) in &before.targets {
        let kept = kept_options(name, config);
        for (option, value) in &config.options {
            // What was on is placed by version 2 where clients read it.
            let is_off = option.starts_with("write_") && !config.flag(option, true);
            if is_off || option == "codex_home" {
                warnings.push(format!(
                    "target {name}: version 2 has no option {option}, which was {value}; look at what the plan writes"
                ));
            } else if !option.starts_with("write_") && !kept.iter().any(|(known, _)| known == option) {
                warnings.push(format!("target {name}: version 2 has no option {option}"));
            }
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upgraded(text: &str, scope: Option<ModuleScope>) -> String {
        match upgrade(text, Path::new("f"), &Limits::default(), scope) {
            Ok(upgraded) => upgraded.text,
            Err(error) => format!("{} {error}", error.code()),
        }
    }

    #[test]
    fn everything_but_version_and_targets_stays_as_it_was_written() {
        let text = "# mine\nversion: 1  # the first\nprofiles: {default: {include_tags: [base]}}\n\ntargets:\n  # all of them\n  codex:\n    mode: files\n    scope: both # really\n  jetbrains: {mode: files, scope: project}\n\n# what\nmodules:\n  - id: skill:a # version: 1\n    type: skill\n    targets: [jetbrains, codex]\n    source: {local_path: {path: 'x  y'}}\n";
        assert_eq!(
            upgraded(text, None),
            "# mine\nversion: 2  # the first\nprofiles: {default: {include_tags: [base]}}\n\ntargets:\n  # all of them\n  # really\n  agents: {}\n  codex: {}\n  junie: {}\n\n# what\nmodules:\n  - id: skill:a # version: 1\n    type: skill\n    targets: [junie, codex]\n    source: {local_path: {path: 'x  y'}}\n"
        );
        assert!(upgraded(text, Some(ModuleScope::User)).contains("version: 2  # the first\nscope: user\n"));
        let crlf = text.replace('\n', "\r\n");
        assert_eq!(upgraded(&crlf, None), upgraded(text, None).replace('\n', "\r\n"));
    }

    #[test]
    fn other_forms_are_rewritten_or_refused() {
        let flow = "version: 1\nprofiles: {default: {}}\ntargets: {export_dir: {mode: files, scope: user, options: {root: out}},\n  zed: {mode: files, scope: both}}\n";
        assert_eq!(
            upgraded(flow, None),
            "version: 2\nprofiles: {default: {}}\ntargets:\n  agents: {}\n  export_dir: {\"options\":{\"root\":\"out\"}}\n  zed: {}\n"
        );
        let user = "version: 1\nprofiles: {default: {}}\ntargets: {codex: {mode: files, scope: user}}\n";
        assert!(upgraded(user, None).contains("scope: user\n"));
        assert_eq!(
            upgraded("version: 1\nprofiles: {default: {}}\n", None),
            "version: 2\ntargets:\n  agents: {}\nprofiles: {default: {}}\n"
        );
        for odd in ["{version: 1, profiles: {default: {}}}\n", "\"version\": 1\nprofiles: {default: {}}\n"] {
            assert!(upgraded(odd, None).starts_with("E_CONFIG_INVALID"), "{}", upgraded(odd, None));
        }
    }
}
