//! The config repo: created, added to, removed from; and what targets make of it.

use std::fs;

use crewkit_pack::commands::{Add, Consent, Init};
use serde_json::json;

use super::place::{Place, SKILL, all, apply, changes};

#[test]
fn a_new_repo_plans_nothing_and_is_left_alone_the_second_time() {
    let place = Place::new();
    let answer = place.pack().init(&all(), Init { git: true }, Consent::Given).unwrap();
    assert!(answer.data.git.unwrap().initialized);
    assert_eq!(place.pack().plan(&all()).unwrap().json()["changes"], json!([]));
    fs::write(place.repo("agentpack.yaml"), "version: 1\nprofiles: {default: {}}\n# mine\n").unwrap();
    let before = fs::read(place.repo("agentpack.yaml")).unwrap();
    place.pack().init(&all(), Init { git: true }, Consent::Given).unwrap();
    assert_eq!(fs::read(place.repo("agentpack.yaml")).unwrap(), before);
    let ignored = fs::read_to_string(place.repo(".gitignore")).unwrap();
    assert_eq!(ignored, ".agentpack.manifest*.json\n.DS_Store\n");
}

#[test]
fn added_modules_deploy_and_removed_ones_go() {
    let place = Place::new();
    place.pack().init(&all(), Init::default(), Consent::Given).unwrap();
    place.source("modules/skills/foo/SKILL.md", SKILL);
    let commented = fs::read_to_string(place.repo("agentpack.yaml"))
        .unwrap()
        .replace("modules: []", "# my modules\nmodules: []");
    fs::write(place.repo("agentpack.yaml"), commented).unwrap();
    for (kind, source) in [
        ("instructions", "local:modules/instructions/base"),
        ("skill", "local:modules/skills/foo"),
        ("prompt", "local:modules/prompts/draftpr.md"),
        ("command", "local:modules/commands/ap-plan.md"),
    ] {
        let add = Add {
            kind: kind.to_owned(),
            source: source.to_owned(),
            id: None,
            tags: vec!["base".to_owned()],
            targets: Vec::new(),
        };
        place.pack().add(&all(), &add, Consent::Given).unwrap();
    }
    let text = fs::read_to_string(place.repo("agentpack.yaml")).unwrap();
    assert!(text.contains("# my modules\n") && text.starts_with("# What to give"), "{text}");
    apply(&place.pack()).unwrap();
    assert_eq!(place.read("proj/.agents/skills/foo/SKILL.md"), SKILL);
    assert_eq!(place.read("proj/CLAUDE.md"), "@AGENTS.md\n");
    assert!(place.path("proj/.claude/skills/draftpr/SKILL.md").exists());
    assert!(place.path("proj/.claude/skills/ap-plan/SKILL.md").exists());
    place.pack().remove(&all(), "skill:foo", Consent::Given).unwrap();
    let plan = place.pack().plan(&all()).unwrap();
    assert_eq!(
        changes(&plan, &place.base()),
        ["delete proj/.agents/skills/foo/SKILL.md", "delete proj/.claude/skills/foo/SKILL.md"]
    );
    apply(&place.pack()).unwrap();
    assert!(!place.path("proj/.agents/skills/foo").exists());
}

#[test]
fn every_target_gets_what_it_reads() {
    let targets = "{codex: {mode: files, scope: both}, claude_code: {mode: files, scope: user}, cursor: {mode: files, scope: project}, vscode: {mode: files, scope: project}, jetbrains: {mode: files, scope: project}, zed: {mode: files, scope: project}, export_dir: {mode: files, scope: project, options: {root: out}}}";
    let local = |id: &str, kind: &str, path: &str| {
        format!("{{id: \"{id}\", type: {kind}, tags: [base], source: {{local_path: {{path: {path}}}}}}}")
    };
    let modules = [
        local("instructions:b", "instructions", "b"),
        local("instructions:a", "instructions", "a"),
        local("prompt:p", "prompt", "p.md"),
        local("command:c", "command", "c.md"),
        local("skill:s", "skill", "s"),
    ];
    let place = Place::with(targets, &modules.each_ref().map(String::as_str));
    place.source("a/AGENTS.md", "first");
    place.source("b/AGENTS.md", "second\n");
    place.source("p.md", "# p\n");
    place.source("c.md", "---\ndescription: d\n---\n");
    place.source("s/SKILL.md", SKILL);
    apply(&place.pack()).unwrap();
    let joined = "<!-- agentpack:module=instructions:a -->\nfirst\n<!-- /agentpack -->\n\n---\n\n<!-- agentpack:module=instructions:b -->\nsecond\n<!-- /agentpack -->";
    for (path, want) in [
        ("home/.codex/AGENTS.md", joined),
        ("proj/AGENTS.md", joined),
        ("proj/.github/copilot-instructions.md", joined),
        ("proj/.junie/guidelines.md", joined),
        ("proj/.rules", joined),
        ("proj/out/AGENTS.md", joined),
        ("home/.codex/prompts/p.md", "# p\n"),
        ("proj/.github/prompts/p.prompt.md", "# p\n"),
        ("proj/out/prompts/p.md", "# p\n"),
        ("home/.claude/commands/c.md", "---\ndescription: d\n---\n"),
        ("proj/out/commands/c.md", "---\ndescription: d\n---\n"),
        ("home/.codex/skills/s/SKILL.md", SKILL),
        ("proj/.codex/skills/s/SKILL.md", SKILL),
        ("proj/out/skills/s/SKILL.md", SKILL),
        (
            "proj/.cursor/rules/instructions_b--5d4ed7d27d.mdc",
            "---\ndescription: \"agentpack: instructions:b\"\nglobs: []\nalwaysApply: true\n---\n\nsecond\n",
        ),
    ] {
        if path.contains(".cursor") {
            let dir = fs::read_dir(place.path("proj/.cursor/rules")).unwrap();
            let texts: Vec<String> =
                dir.map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap()).collect();
            assert!(texts.iter().any(|text| text == want), "{texts:?}");
        } else {
            assert_eq!(place.read(path), want, "{path}");
        }
    }
    assert_eq!(place.pack().status(&all(), &[]).unwrap().data.drift, []);
}

#[test]
fn looking_writes_nothing_into_trees() {
    let place = Place::with(
        "{codex: {mode: files, scope: both}}",
        &["{id: \"skill:s\", type: skill, tags: [base], source: {local_path: {path: s}}}"],
    );
    place.source("s/SKILL.md", SKILL);
    fs::create_dir_all(place.path("home/.codex/skills")).unwrap();
    let before = place.everything();
    place.pack().plan(&all()).unwrap();
    place.pack().status(&all(), &[]).unwrap();
    place.pack().doctor(&all(), None).unwrap();
    assert_eq!(place.everything(), before);
}
