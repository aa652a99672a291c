//! Claude Code: slash commands and, when asked for, skills; of the user and of a project.

use super::{Places, Put, RootSpec};

pub(super) fn roots(places: &Places<'_>) -> Vec<RootSpec> {
    let config = places.config;
    let user = (config.scope().user(), places.env.home.as_path(), "write_user_commands", "write_user_skills");
    let project = (config.scope().project(), places.project, "write_repo_commands", "write_repo_skills");
    let mut roots = Vec::new();
    for (in_scope, base, commands, skills) in [user, project] {
        if in_scope && config.flag(commands, true) {
            roots.push(RootSpec::new(base.join(".claude/commands"), true, vec![Put::Commands { dir: "" }]));
        }
        if in_scope && config.flag(skills, false) {
            roots.push(RootSpec::new(base.join(".claude/skills"), true, vec![Put::Skills { dir: "" }]));
        }
    }
    roots
}
