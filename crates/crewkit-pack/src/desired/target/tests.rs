use super::*;
use serde_json::json;

fn listing(target: TargetKind, config: serde_json::Value, codex_home: Option<&str>) -> Vec<String> {
    let mut env = Env::at_home("/home/u");
    env.client_dirs.extend(codex_home.map(|dir| ("CODEX_HOME", PathBuf::from(dir))));
    let config: TargetConfig = serde_json::from_value(config).unwrap();
    let places = Places { env: &env, project: Path::new("/proj"), config: &config };
    let roots = target.roots(&places).unwrap();
    roots.iter().map(|root| format!("{} {}", root.path.display(), root.scan_extras)).collect()
}

#[test]
fn roots_follow_scope_and_options() {
    let both = json!({"mode": "files", "scope": "both"});
    let user = json!({"mode": "files", "scope": "user"});
    let project = json!({"mode": "files", "scope": "project"});
    let options = |options: serde_json::Value| json!({"mode": "files", "scope": "both", "options": options});
    for (target, config, want) in [
        (
            TargetKind::Codex,
            both.clone(),
            &[
                "/home/u/.codex false",
                "/home/u/.codex/prompts true",
                "/home/u/.codex/skills true",
                "/proj false",
                "/proj/.codex/skills true",
            ][..],
        ),
        (TargetKind::Codex, project.clone(), &["/proj false", "/proj/.codex/skills true"]),
        (
            TargetKind::Codex,
            options(
                json!({"codex_home": "~/c", "write_agents_repo_root": "No", "write_repo_skills": 0, "write_user_skills": "0"}),
            ),
            &["/home/u/c false", "/home/u/c/prompts true", "/proj/.codex/skills true"],
        ),
        (
            TargetKind::ClaudeCode,
            both.clone(),
            &["/home/u/.claude/commands true", "/proj/.claude/commands true"],
        ),
        (
            TargetKind::ClaudeCode,
            options(json!({"write_user_skills": true, "write_repo_commands": false})),
            &["/home/u/.claude/commands true", "/home/u/.claude/skills true"],
        ),
        (TargetKind::ClaudeCode, user, &["/home/u/.claude/commands true"]),
        (TargetKind::Cursor, both.clone(), &["/proj/.cursor/rules true"]),
        (TargetKind::Vscode, project, &["/proj/.github false", "/proj/.github/prompts true"]),
        (TargetKind::Jetbrains, both.clone(), &["/proj/.junie true"]),
        (TargetKind::Zed, both, &["/proj false"]),
        (
            TargetKind::ExportDir,
            options(json!({"root": "out"})),
            &["/proj/out/user true", "/proj/out/project true"],
        ),
        (
            TargetKind::ExportDir,
            json!({"mode": "files", "scope": "user", "options": {"root": "~/out", "scan_extras": false}}),
            &["/home/u/out false"],
        ),
    ] {
        assert_eq!(listing(target, config.clone(), None), want, "{} {config}", target.name());
    }
}

/// The option that `init` used to write made the variable ineffective.
#[test]
fn codex_home_from_the_environment_wins_over_the_option() {
    let config = json!({"mode": "files", "scope": "user", "options": {"codex_home": "~/.codex"}});
    assert_eq!(
        listing(TargetKind::Codex, config, Some("/opt/codex")),
        ["/opt/codex false", "/opt/codex/prompts true", "/opt/codex/skills true"]
    );
}

#[test]
fn an_export_without_a_root_is_refused() {
    let env = Env::at_home("/h");
    let config: TargetConfig = serde_json::from_value(json!({"mode": "files", "scope": "user"})).unwrap();
    let places = Places { env: &env, project: Path::new("/p"), config: &config };
    assert_eq!(TargetKind::ExportDir.roots(&places).unwrap_err().code(), crewkit_core::Code::ConfigInvalid);
}

#[test]
fn names_of_prompts() {
    for (source, want) in [("a.md", "a.prompt.md"), ("a.prompt.md", "a.prompt.md"), ("a", "a.prompt.md")] {
        assert_eq!(PromptNaming::PromptMd.apply(source), want);
        assert_eq!(PromptNaming::Same.apply(source), source);
    }
}
