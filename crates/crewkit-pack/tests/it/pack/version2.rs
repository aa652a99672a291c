//! Version 2 of the config file: each client sees each module once, and nothing is written that no client reads.

use std::fs;

use crewkit_core::Code;
use crewkit_pack::commands::{ClientView, ExplainClient, Select};
use crewkit_pack::envelope::Answer;

use super::place::{Place, all, apply, changes, code};

const SKILL_S: &str = "---\nname: s\ndescription: d\n---\nbody\n";

fn module(kind: &str, path: &str, more: &str) -> String {
    let name = path.trim_end_matches(".md");
    format!(
        "{{id: '{kind}:{name}', type: {kind}, tags: [base], source: {{local_path: {{path: {path}}}}}{more}}}"
    )
}

/// Writes a config file of version 2.
fn manifest(place: &Place, targets: &str, modules: &[String]) {
    let list: String = modules.iter().map(|module| format!("  - {module}\n")).collect();
    let head = "version: 2\nprofiles: {default: {include_tags: [base]}}\n";
    place.source("agentpack.yaml", &format!("{head}targets: {targets}\nmodules:\n{list}"));
}

fn sources(place: &Place) {
    place.source("i/AGENTS.md", "be kind\n");
    place.source("s/SKILL.md", SKILL_S);
    place.source("p.md", "# Draft a text\n\nWrite $ARGUMENTS.\n");
    place.source("c.md", "---\ndescription: \"do: it\"\nargument-hint: \"[x]\"\n---\nRun $ARGUMENTS.\n");
}

/// One module of each kind with `more` said about it, for `targets`.
fn place(targets: &str, more: &str) -> Place {
    let place = Place::new();
    let modules = [("instructions", "i"), ("skill", "s"), ("prompt", "p.md"), ("command", "c.md")]
        .map(|(kind, path)| module(kind, path, more));
    manifest(&place, targets, &modules);
    sources(&place);
    place
}

/// The deployed files, without manifests.
fn files(place: &Place) -> Vec<String> {
    let skip = |path: &String| {
        path.ends_with('/') || path.contains("/.agentpack/") || path.contains(".agentpack.manifest")
    };
    place.everything().into_keys().filter(|path| !skip(path)).collect()
}

fn view(place: &Place, client: &str) -> ClientView {
    let explain = ExplainClient { client: client.to_owned(), dir: None };
    place.pack().explain_client(&all(), &explain).unwrap().data
}

fn warnings<T>(answer: &Answer<T>) -> &[String] {
    &answer.warnings
}

const CALLED_P: &str = "---\nname: p\ndescription: \"Draft a text\"\ndisable-model-invocation: true\n---\n\n# Draft a text\n\nWrite $ARGUMENTS.\n";
const CALLED_C: &str = "---\nname: c\ndescription: \"do: it\"\ndisable-model-invocation: true\n\"argument-hint\": \"[x]\"\n---\n\nRun $ARGUMENTS.\n";

#[test]
fn each_client_sees_each_module_once_and_every_file_is_read() {
    let place = place("{agents: {}, claude_code: {}, codex: {}, opencode: {}, qwen: {}}", "");
    assert_eq!(warnings(&place.pack().plan(&all()).unwrap()), [] as [String; 0]);
    apply(&place.pack()).unwrap();
    assert_eq!(
        files(&place),
        [
            "proj/.agents/skills/c/SKILL.md",
            "proj/.agents/skills/c/agents/openai.yaml",
            "proj/.agents/skills/p/SKILL.md",
            "proj/.agents/skills/p/agents/openai.yaml",
            "proj/.agents/skills/s/SKILL.md",
            "proj/.claude/skills/c/SKILL.md",
            "proj/.claude/skills/p/SKILL.md",
            "proj/.claude/skills/s/SKILL.md",
            "proj/AGENTS.md",
            "proj/CLAUDE.md",
        ]
    );
    for (path, want) in [
        ("proj/AGENTS.md", "be kind\n"),
        ("proj/CLAUDE.md", "@AGENTS.md\n"),
        ("proj/.agents/skills/s/SKILL.md", SKILL_S),
        ("proj/.claude/skills/s/SKILL.md", SKILL_S),
        ("proj/.agents/skills/p/SKILL.md", CALLED_P),
        ("proj/.claude/skills/c/SKILL.md", CALLED_C),
        ("proj/.agents/skills/p/agents/openai.yaml", "policy:\n  allow_implicit_invocation: false\n"),
    ] {
        assert_eq!(place.read(path), want, "{path}");
    }
    for client in ["codex", "claude_code", "opencode", "qwen"] {
        let seen = view(&place, client);
        assert_eq!(seen.problems, [], "{client}");
        for module in ["instructions:i", "skill:s", "prompt:p", "command:c"] {
            let times = seen
                .parts
                .iter()
                .filter(|part| part.state == "read" && part.modules.iter().any(|id| id == module))
                .count();
            assert_eq!(times, 1, "{client} {module}: {seen:#?}");
        }
        let called = |name: &str| seen.parts.iter().filter(|part| part.name == name).all(|part| part.called);
        // opencode does not know skills that only the user calls.
        let knows = client != "opencode";
        assert!(called("p") == knows && called("c") == knows && !called("s"), "{client}: {seen:#?}");
    }
    assert_eq!(place.pack().status(&all(), &[]).unwrap().data.drift, []);
    assert_eq!(place.pack().plan(&all()).unwrap().data.changes.changes, []);
}

#[test]
fn modules_of_the_user_go_to_the_users_directories() {
    let mut place = place("{agents: {}, claude_code: {}, codex: {}, zed: {}}", ", scope: user");
    place.env.client_dirs.insert("CLAUDE_CONFIG_DIR", place.path("moved"));
    place.env.client_dirs.insert("CODEX_HOME", place.path("codex"));
    apply(&place.pack()).unwrap();
    let deployed = files(&place);
    assert_eq!(
        deployed,
        [
            "codex/AGENTS.md",
            "home/.agents/skills/c/SKILL.md",
            "home/.agents/skills/c/agents/openai.yaml",
            "home/.agents/skills/p/SKILL.md",
            "home/.agents/skills/p/agents/openai.yaml",
            "home/.agents/skills/s/SKILL.md",
            "home/.config/zed/AGENTS.md",
            "moved/CLAUDE.md",
            "moved/skills/c/SKILL.md",
            "moved/skills/p/SKILL.md",
            "moved/skills/s/SKILL.md",
        ]
    );
    assert_eq!(place.read("moved/CLAUDE.md"), "be kind\n");
    for client in ["codex", "claude_code", "zed"] {
        assert_eq!(view(&place, client).problems, [], "{client}");
    }
    // The same as a default for all modules.
    let text = fs::read_to_string(place.repo("agentpack.yaml")).unwrap();
    place.source(
        "agentpack.yaml",
        &text.replace(", scope: user", "").replace("targets:", "scope: user\ntargets:"),
    );
    assert_eq!(place.pack().plan(&all()).unwrap().data.changes.changes, []);
}

#[test]
fn what_is_for_one_client_goes_to_its_own_place_or_the_shared_one() {
    let place = Place::new();
    sources(&place);
    place.source("j/AGENTS.md", "for claude\n");
    manifest(
        &place,
        "{agents: {}, claude_code: {}, codex: {}}",
        &[
            module("instructions", "i", ", targets: [codex]"),
            module("instructions", "j", ", targets: [claude_code]"),
            module("skill", "s", ", targets: [codex]"),
        ],
    );
    apply(&place.pack()).unwrap();
    assert_eq!(files(&place), ["proj/.codex/skills/s/SKILL.md", "proj/AGENTS.md", "proj/CLAUDE.md"]);
    assert_eq!(place.read("proj/AGENTS.md"), "be kind\n");
    assert_eq!(place.read("proj/CLAUDE.md"), "for claude\n");

    // Instructions for all and for Claude Code alone: what is shared is imported.
    manifest(
        &place,
        "{agents: {}, claude_code: {}, codex: {}}",
        &[module("instructions", "i", ""), module("instructions", "j", ", targets: [claude_code]")],
    );
    apply(&place.pack()).unwrap();
    assert_eq!(
        place.read("proj/CLAUDE.md"),
        "@AGENTS.md\n\n<!-- agentpack:module=instructions:j -->\nfor claude\n<!-- /agentpack -->"
    );
    assert_eq!(view(&place, "claude_code").problems, []);

    // Without the shared target, and with the user's own CLAUDE.md.
    manifest(&place, "{claude_code: {}}", &[module("instructions", "i", "")]);
    apply(&place.pack()).unwrap();
    assert_eq!(place.read("proj/CLAUDE.md"), "be kind\n");
    manifest(
        &place,
        "{agents: {}, claude_code: {options: {claude_md: false}}}",
        &[module("instructions", "i", "")],
    );
    apply(&place.pack()).unwrap();
    assert_eq!(files(&place), ["proj/.claude/rules/i.md", "proj/AGENTS.md"]);
    for (own, doubled) in [("mine\n", false), ("mine\n@AGENTS.md\n", true)] {
        place.write("proj/CLAUDE.md", own);
        let plan = place.pack().plan(&all()).unwrap();
        let says = warnings(&plan).iter().any(|warning| warning.contains("twice: doubled with"));
        assert!(
            says == doubled && warnings(&plan).len() == usize::from(doubled),
            "{own}: {:?}",
            warnings(&plan)
        );
    }
}

#[test]
fn instructions_about_some_files_become_rules() {
    let place = Place::new();
    sources(&place);
    let scoped = ", globs: ['src/**/*.rs', 'build.rs'], description: 'Rust: style'";
    let targets = "{agents: {}, claude_code: {}, cursor: {}, kiro: {}, codex: {}}";
    manifest(&place, targets, &[module("instructions", "i", scoped)]);
    let plan = place.pack().plan(&all()).unwrap();
    assert_eq!(
        warnings(&plan),
        ["Codex has no place for instructions about some files of scope project (instructions:i)"]
    );
    apply(&place.pack()).unwrap();
    assert_eq!(
        files(&place),
        ["proj/.claude/rules/i.md", "proj/.cursor/rules/i.mdc", "proj/.kiro/steering/i.md"]
    );
    for (path, want) in [
        (
            "proj/.claude/rules/i.md",
            "---\ndescription: \"Rust: style\"\npaths: [\"src/**/*.rs\",\"build.rs\"]\n---\n\nbe kind\n",
        ),
        (
            "proj/.cursor/rules/i.mdc",
            "---\ndescription: \"Rust: style\"\nglobs: \"src/**/*.rs,build.rs\"\nalwaysApply: false\n---\n\nbe kind\n",
        ),
        (
            "proj/.kiro/steering/i.md",
            "---\ninclusion: fileMatch\nfileMatchPattern: [\"src/**/*.rs\",\"build.rs\"]\ndescription: \"Rust: style\"\n---\n\nbe kind\n",
        ),
    ] {
        assert_eq!(place.read(path), want, "{path}");
    }
}

/// Each target alone, with modules of either scope: what it writes is what its client reads.
#[test]
fn every_target_writes_what_its_client_reads() {
    for client in [
        "claude_code",
        "codex",
        "cursor",
        "vscode",
        "copilot_cli",
        "opencode",
        "gemini",
        "antigravity",
        "zed",
        "junie",
        "windsurf",
        "amp",
        "goose",
        "kiro",
        "cline",
        "qwen",
        "factory",
    ] {
        for scope in ["project", "user"] {
            let place = place(&format!("{{agents: {{}}, {client}: {{}}}}"), &format!(", scope: {scope}"));
            let answer = apply(&place.pack()).unwrap();
            let seen = view(&place, client);
            let homeless = |module: &str| {
                let kind = if module.starts_with("instructions") { "instructions" } else { "skills" };
                warnings(&answer).iter().any(|warning| warning.contains(&format!("no place for {kind}")))
            };
            for module in ["instructions:i", "skill:s", "prompt:p", "command:c"] {
                let read = seen
                    .parts
                    .iter()
                    .any(|part| part.state == "read" && part.modules.iter().any(|id| id == module));
                assert!(read != homeless(module), "{client} {scope} {module}: {seen:#?} {answer:?}");
            }
            let bad: Vec<_> = seen.problems.iter().filter(|problem| problem.kind == "not_read").collect();
            assert!(bad.is_empty(), "{client} {scope}: {bad:?}");
        }
    }
}

#[test]
fn mistakes_are_told_with_what_is_allowed() {
    let place = Place::new();
    sources(&place);
    for (targets, more, want) in [
        ("{agents: {options: {x: 1}}}", "", "target agents: unknown option x; it has none"),
        ("{claude_code: {options: {write_repo_skills: true}}}", "", "it has claude_md"),
        ("{agents: {}}", ", scope: both", "module instructions:i: scope must be user or project"),
        ("{agents: {}}", ", globs: src", "module instructions:i: globs must be a list of patterns"),
        ("{agents: {}}", ", description: [x]", "module instructions:i: description must be a text"),
        ("{jetbrains: {}}", "", "unsupported target: jetbrains"),
    ] {
        manifest(&place, targets, &[module("instructions", "i", more)]);
        let error = place.pack().plan(&all()).unwrap_err();
        assert!(error.to_string().contains(want), "{want}: {error}");
    }
    // Version 1 ignores what it does not know, as before, and still wants what it wanted.
    let v1 = "{codex: {mode: files, scope: project, options: {x: 1}}}";
    place.manifest(v1, &[&module("instructions", "i", ", scope: both, globs: src")]);
    assert_eq!(changes(&place.pack().plan(&all()).unwrap(), &place.base()), ["create proj/AGENTS.md"]);
    for targets in
        ["{codex: {mode: files}}", "{codex: {scope: both}}", "{agents: {mode: files, scope: both}}"]
    {
        place.manifest(targets, &[]);
        let code = code(place.pack().plan(&all()));
        assert!(matches!(code, Code::ConfigInvalid | Code::TargetUnsupported), "{targets}: {code}");
    }
    place.manifest("{}", &[]);
    let select = Select { target: "agents".to_owned(), ..all() };
    assert_eq!(code(place.pack().plan(&select)), Code::TargetUnsupported);
}

/// What version 1 deployed goes when the config file says version 2, here and in every other project.
#[test]
fn the_files_of_version_1_go_when_they_are_not_wanted_any_more() {
    let place = Place::new();
    sources(&place);
    let modules = [("instructions", "i"), ("skill", "s"), ("prompt", "p.md"), ("command", "c.md")]
        .map(|(kind, path)| module(kind, path, ""));
    let both = "{codex: {mode: files, scope: both}, claude_code: {mode: files, scope: both}, \
                jetbrains: {mode: files, scope: project}}";
    place.manifest(both, &modules.each_ref().map(String::as_str));
    apply(&place.pack()).unwrap();
    assert!(
        place.path("home/.codex/prompts/p.md").exists() && place.path("proj/.junie/guidelines.md").exists()
    );
    place.write("home/.codex/prompts/mine.md", "mine\n");

    manifest(&place, "{agents: {}, claude_code: {}, codex: {}, junie: {}}", &modules);
    let plan = place.pack().plan(&all()).unwrap();
    let lines = changes(&plan, &place.base());
    assert!(!lines.contains(&"create proj/AGENTS.md".to_owned()), "it is the same file: {lines:?}");
    apply(&place.pack()).unwrap();
    let left = files(&place);
    let old =
        |path: &&String| path.contains(".codex") || path.contains("guidelines") || path.contains("commands");
    assert_eq!(left.iter().filter(old).collect::<Vec<_>>(), ["home/.codex/prompts/mine.md"]);
    for client in ["codex", "claude_code", "junie"] {
        assert_eq!(view(&place, client).problems, [], "{client}");
    }
    assert_eq!(place.pack().plan(&all()).unwrap().data.changes.changes, []);
}

/// A workspace has no user: everything goes into the project.
#[test]
fn the_kit_of_an_agent_has_the_same_places() {
    let place = place("{agents: {}, claude_code: {}, codex: {}}", ", scope: user");
    let pack = place.pack().in_workspace(&place.path("proj"), &place.path("state"));
    let report = pack.equip(&all()).unwrap();
    assert!(report.snapshot_id.is_some());
    let deployed = files(&place);
    assert!(deployed.contains(&"proj/CLAUDE.md".to_owned()), "{deployed:?}");
    assert!(deployed.contains(&"proj/.agents/skills/s/SKILL.md".to_owned()), "{deployed:?}");
    assert!(!deployed.iter().any(|path| path.starts_with("home/")), "{deployed:?}");
    let elsewhere: Vec<String> =
        place.pack().kit_files(&all()).unwrap().into_iter().map(|file| file.path).collect();
    assert!(
        elsewhere.contains(&"CLAUDE.md".to_owned())
            && elsewhere.contains(&".claude/skills/p/SKILL.md".to_owned())
    );
}
