//! VS Code with Copilot: instructions and prompts, in a project.

use super::{Places, PromptNaming, Put, RootSpec};

pub(super) fn roots(places: &Places<'_>) -> Vec<RootSpec> {
    let mut roots = Vec::new();
    if !places.config.scope().project() {
        return roots;
    }
    let base = places.project.join(".github");
    if places.config.flag("write_instructions", true) {
        let instructions = Put::Instructions { file: "copilot-instructions.md" };
        roots.push(RootSpec::new(base.clone(), false, vec![instructions]));
    }
    if places.config.flag("write_prompts", true) {
        let prompts = Put::Prompts { dir: "", naming: PromptNaming::PromptMd };
        roots.push(RootSpec::new(base.join("prompts"), true, vec![prompts]));
    }
    roots
}
