//! Codex: instructions, prompts and skills of the user; instructions and skills of a project.

use super::{Places, PromptNaming, Put, RootSpec};

pub(super) fn roots(places: &Places<'_>) -> Vec<RootSpec> {
    let config = places.config;
    // Codex itself obeys CODEX_HOME before anything else, so files put elsewhere would never be seen.
    let home = places.env.client_dirs.get("CODEX_HOME").cloned().unwrap_or_else(|| {
        match config.text("codex_home") {
            Some(text) => places.env.expand_tilde(text),
            None => places.env.home.join(".codex"),
        }
    });
    let mut roots = Vec::new();
    if config.scope().user() {
        if config.flag("write_agents_global", true) {
            roots.push(RootSpec::new(home.clone(), false, vec![Put::Instructions { file: "AGENTS.md" }]));
        }
        if config.flag("write_user_prompts", true) {
            let prompts = Put::Prompts { dir: "", naming: PromptNaming::Same };
            roots.push(RootSpec::new(home.join("prompts"), true, vec![prompts]));
        }
        if config.flag("write_user_skills", true) {
            roots.push(RootSpec::new(home.join("skills"), true, vec![Put::Skills { dir: "" }]));
        }
    }
    if config.scope().project() {
        if config.flag("write_agents_repo_root", true) {
            let instructions = Put::Instructions { file: "AGENTS.md" };
            roots.push(RootSpec::new(places.project.to_owned(), false, vec![instructions]));
        }
        if config.flag("write_repo_skills", true) {
            let path = places.project.join(".codex/skills");
            roots.push(RootSpec::new(path, true, vec![Put::Skills { dir: "" }]));
        }
    }
    roots
}
