//! What each client reads, and what plans say about files that a client will not see as meant.

use std::fs;

use crewkit_core::Code;
use crewkit_pack::commands::{ClientView, ExplainClient};

use super::place::{Place, all, apply, code};

const SKILL_S: &str = "---\nname: s\ndescription: d\n---\n";

fn module(kind: &str, path: &str) -> String {
    let name = path.trim_end_matches(".md");
    format!("{{id: '{kind}:{name}', type: {kind}, tags: [base], source: {{local_path: {{path: {path}}}}}}}")
}

/// A repo with one module of each kind, for `targets`.
fn place(targets: &str) -> Place {
    let modules = [
        module("instructions", "i"),
        module("skill", "s"),
        module("prompt", "p.md"),
        module("command", "c.md"),
    ];
    let place = Place::with(targets, &modules.each_ref().map(String::as_str));
    place.source("i/AGENTS.md", "be kind\n");
    place.source("s/SKILL.md", SKILL_S);
    place.source("p.md", "# p\n");
    place.source("c.md", "---\ndescription: d\n---\n");
    place
}

fn view(place: &Place, client: &str, dir: Option<&str>) -> ClientView {
    let explain = ExplainClient { client: client.to_owned(), dir: dir.map(|dir| place.path(dir)) };
    place.pack().explain_client(&all(), &explain).unwrap().data
}

/// `state kind path` of each part, paths relative to the place.
fn lines(place: &Place, view: &ClientView) -> Vec<String> {
    let base = format!("{}/", place.base().display());
    let shown = |path: &std::path::Path| path.display().to_string().replace(&base, "");
    view.parts.iter().map(|part| format!("{} {} {}", part.state, part.kind, shown(&part.path))).collect()
}

fn kinds(view: &ClientView) -> Vec<&'static str> {
    view.problems.iter().map(|problem| problem.kind).collect()
}

/// The default deployment of version 1, as real clients were measured to see it.
#[test]
fn a_default_deployment_of_version_1_is_doubled_and_unread() {
    let place = place("{codex: {mode: files, scope: both}, claude_code: {mode: files, scope: both}}");
    let plan = place.pack().plan(&all()).unwrap();
    let has = |text: &str| plan.warnings.iter().any(|warning| warning.contains(text));
    assert!(has("Codex does not read ~/.codex/prompts (prompt:p)"), "{:#?}", plan.warnings);
    assert!(has("Codex sees instructions of ~/.codex/AGENTS.md twice: doubled with"), "{:#?}", plan.warnings);
    assert!(has("Codex sees skill of ~/.codex/skills twice: doubled with"), "{:#?}", plan.warnings);
    assert!(has("Claude Code sees command of ~/.claude/commands twice"), "{:#?}", plan.warnings);
    // What is warned about before the deploy is what is found after it.
    let before = view(&place, "codex", None);
    apply(&place.pack()).unwrap();
    assert_eq!(before, view(&place, "codex", None));
    assert_eq!(
        lines(&place, &before),
        [
            "read instructions home/.codex/AGENTS.md",
            "read instructions proj/AGENTS.md",
            "read skill proj/.codex/skills/s/SKILL.md",
            "read skill home/.codex/skills/s/SKILL.md",
        ]
    );
    assert_eq!(kinds(&before), ["not_read", "doubled_with", "doubled_with"]);
}

#[test]
fn one_scope_and_what_is_read_gives_no_warning() {
    let place = place("{codex: {mode: files, scope: project}}");
    assert_eq!(place.pack().plan(&all()).unwrap().warnings, [] as [String; 0]);
}

#[test]
fn codex_cuts_hides_and_drops() {
    let place = place("{codex: {mode: files, scope: project}}");
    place.source("i/AGENTS.md", &"x".repeat(40_000));
    let seen = view(&place, "codex", None);
    assert_eq!(kinds(&seen), ["cut"]);
    assert_eq!(seen.parts[0].reason.as_deref(), Some("32768 of 40000 bytes are read; the limit is 32768"));

    place.write("home/.codex/config.toml", "project_doc_max_bytes = 50000\n");
    assert_eq!(kinds(&view(&place, "codex", None)), [] as [&str; 0]);

    let untrusted = format!("[projects.'{}']\ntrust_level = 'untrusted'\n", place.path("proj").display());
    place.write("home/.codex/config.toml", &untrusted);
    let seen = view(&place, "codex", None);
    assert_eq!((seen.parts[0].state, kinds(&seen)), ("needs_trust", vec!["needs_trust"]));
    assert!(seen.parts.iter().any(|part| part.kind == "skill" && part.state == "read"), "{seen:?}");

    fs::remove_file(place.path("home/.codex/config.toml")).unwrap();
    place.write("proj/AGENTS.override.md", "mine\n");
    let seen = view(&place, "codex", None);
    assert_eq!(
        lines(&place, &seen)[..2],
        ["read instructions proj/AGENTS.override.md", "hidden instructions proj/AGENTS.md"]
    );
    assert_eq!(kinds(&seen), ["hidden_by"]);
}

/// The rows that were measured on real clients: which files are there, and what the client reads of them.
#[test]
fn the_model_answers_what_clients_were_measured_to_do() {
    let skill = |root: &str| format!("{root}/k/SKILL.md");
    let own = |root: &str| skill(root);
    for (client, files, want) in [
        (
            "codex",
            vec!["home/.codex/AGENTS.md".to_owned(), "proj/AGENTS.md".to_owned()],
            vec!["home/.codex/AGENTS.md", "proj/AGENTS.md"],
        ),
        (
            "codex",
            vec![
                own("home/.codex/skills"),
                own("home/.agents/skills"),
                own("proj/.codex/skills"),
                own("proj/.agents/skills"),
                own("proj/.claude/skills"),
            ],
            vec![
                "proj/.agents/skills/k/SKILL.md",
                "proj/.codex/skills/k/SKILL.md",
                "home/.agents/skills/k/SKILL.md",
                "home/.codex/skills/k/SKILL.md",
            ],
        ),
        ("codex", vec!["home/.codex/prompts/x.md".to_owned()], vec![]),
        ("claude_code", vec!["proj/AGENTS.md".to_owned()], vec!["proj/AGENTS.md"]),
        (
            "claude_code",
            vec!["proj/AGENTS.md".to_owned(), "proj/CLAUDE.md".to_owned()],
            vec!["proj/CLAUDE.md"],
        ),
        (
            "claude_code",
            vec!["proj/AGENTS.md".to_owned(), "proj/.claude/CLAUDE.md".to_owned()],
            vec!["proj/.claude/CLAUDE.md"],
        ),
        (
            "claude_code",
            vec!["proj/AGENTS.md".to_owned(), "proj/CLAUDE.local.md".to_owned()],
            vec!["proj/CLAUDE.local.md"],
        ),
        (
            "claude_code",
            vec!["proj/AGENTS.md".to_owned(), "proj/.claude/rules/a.md".to_owned()],
            vec!["proj/.claude/rules/a.md", "proj/AGENTS.md"],
        ),
        (
            "claude_code",
            vec!["proj/AGENTS.md".to_owned(), "home/.claude/CLAUDE.md".to_owned()],
            vec!["home/.claude/CLAUDE.md", "proj/AGENTS.md"],
        ),
        ("claude_code", vec![own("proj/.agents/skills"), own("home/.agents/skills")], vec![]),
        (
            "claude_code",
            vec![own("proj/.claude/skills"), own("home/.claude/skills")],
            vec!["home/.claude/skills/k/SKILL.md"],
        ),
        (
            "claude_code",
            vec![own("proj/.claude/skills"), "proj/.claude/commands/k.md".to_owned()],
            vec!["proj/.claude/skills/k/SKILL.md"],
        ),
        (
            "opencode",
            vec![
                "proj/AGENTS.md".to_owned(),
                "proj/CLAUDE.md".to_owned(),
                "home/.config/opencode/AGENTS.md".to_owned(),
                "home/.claude/CLAUDE.md".to_owned(),
            ],
            vec!["home/.config/opencode/AGENTS.md", "proj/AGENTS.md"],
        ),
        ("opencode", vec![own("proj/.codex/skills")], vec![]),
        ("opencode", vec![own("proj/.agents/skills")], vec!["proj/.agents/skills/k/SKILL.md"]),
        (
            "qwen",
            vec!["proj/AGENTS.md".to_owned(), "proj/QWEN.md".to_owned(), "proj/CLAUDE.md".to_owned()],
            vec!["proj/QWEN.md", "proj/AGENTS.md"],
        ),
        (
            "qwen",
            vec![own("proj/.claude/skills"), own("proj/.agents/skills")],
            vec!["proj/.agents/skills/k/SKILL.md"],
        ),
    ] {
        let place = Place::new();
        for file in &files {
            place.write(file, "---\nname: k\ndescription: d\n---\n");
        }
        let seen = view(&place, client, None);
        let base = format!("{}/", place.base().display());
        let read = seen.parts.iter().filter(|part| part.state == "read");
        let read: Vec<String> = read.map(|part| part.path.display().to_string().replace(&base, "")).collect();
        assert_eq!(read, want, "{client} with {files:?}");
    }
}

#[test]
fn imports_nested_directories_and_moved_directories() {
    let mut place = Place::new();
    place.write("proj/AGENTS.md", "root\n");
    place.write("proj/CLAUDE.md", "@AGENTS.md\n```\n@NOT.md\n```\n");
    place.write("proj/NOT.md", "in a code block\n");
    place.write("proj/sub/AGENTS.md", "nested\n");
    place.git("proj", &["init", "-q"]);
    assert_eq!(
        lines(&place, &view(&place, "claude_code", None)),
        ["read instructions proj/CLAUDE.md", "read instructions proj/AGENTS.md"]
    );
    assert_eq!(
        lines(&place, &view(&place, "codex", Some("proj/sub"))),
        ["read instructions proj/AGENTS.md", "read instructions proj/sub/AGENTS.md"]
    );
    place.write("home/.claude/CLAUDE.md", "not there any more\n");
    place.write("moved/CLAUDE.md", "here\n");
    place.env.client_dirs.insert("CLAUDE_CONFIG_DIR", place.path("moved"));
    assert_eq!(lines(&place, &view(&place, "claude_code", None))[0], "read instructions moved/CLAUDE.md");
}

#[test]
fn other_clients_say_what_hides_and_what_is_doubled() {
    let targets = "{codex: {mode: files, scope: project}, vscode: {mode: files, scope: project}, \
                   jetbrains: {mode: files, scope: project}, zed: {mode: files, scope: project}}";
    let place = place(targets);
    let warnings = place.pack().plan(&all()).unwrap().warnings;
    for want in [
        "VS Code with Copilot sees instructions of",
        "Junie does not read",
        ".junie/guidelines.md: it is hidden by",
        "Zed does not read",
        "AGENTS.md: it is hidden by",
    ] {
        assert!(warnings.iter().any(|warning| warning.contains(want)), "{want}: {warnings:#?}");
    }
    assert_eq!(view(&place, "windsurf", None).evidence, "not verified");
    assert!(kinds(&view(&place, "windsurf", None)).contains(&"not_verified"));
    let explain = ExplainClient { client: "emacs".to_owned(), dir: None };
    assert_eq!(code(place.pack().explain_client(&all(), &explain)), Code::ArgumentInvalid);
}
