//! What clients really read, against what `pack explain --client` says they will.
//!
//! Each case puts files with marks into a home and a project and counts the marks in what the client sends to its model.
//! Clients are run from the directory that `CREWKIT_REAL_CLIENTS` names, in the versions of `clients/versions.json`.
//! Where one is not there, its recorded answers are used, and the run says so; `CREWKIT_RECORD_CLIENTS=1` records anew.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use crewkit_testkit::model::{ScriptedModel, Turn};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::support;

const VERSIONS: &str = include_str!("../clients/versions.json");
const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/recorded.json");

/// How often each mark reached the model.
type Seen = BTreeMap<String, u64>;

/// Files of a case: below `home` or `proj`; a `{}` in a text becomes the file's mark.
struct Case {
    client: &'static str,
    name: &'static str,
    files: &'static [(&'static str, &'static str)],
    /// Where the client is started.
    dir: &'static str,
    /// A variable that moves the client's directory, and where to.
    moved: Option<(&'static str, &'static str)>,
}

const TEXT: &str = "{}\n";
const SKILL: &str = "---\nname: k\ndescription: {}\n---\nbody\n";
const CALLED: &str = "---\nname: k\ndescription: {}\ndisable-model-invocation: true\n---\nbody\n";
const COMMAND: &str = "---\ndescription: {}\n---\nbody\n";
const POLICY: &str = "policy:\n  allow_implicit_invocation: false\n";

const fn case(
    client: &'static str,
    name: &'static str,
    files: &'static [(&'static str, &'static str)],
) -> Case {
    Case { client, name, files, dir: "proj", moved: None }
}

const CASES: &[Case] = &[
    case("codex", "both scopes", &[("home/.codex/AGENTS.md", TEXT), ("proj/AGENTS.md", TEXT)]),
    case(
        "codex",
        "a skill in four roots",
        &[
            ("home/.codex/skills/k/SKILL.md", SKILL),
            ("home/.agents/skills/k/SKILL.md", SKILL),
            ("proj/.codex/skills/k/SKILL.md", SKILL),
            ("proj/.agents/skills/k/SKILL.md", SKILL),
            ("proj/.claude/skills/k/SKILL.md", SKILL),
        ],
    ),
    case("codex", "32 KiB", &[("proj/AGENTS.md", "{}\n{40000}\n{end}\n")]),
    case("codex", "an override", &[("proj/AGENTS.md", TEXT), ("proj/AGENTS.override.md", TEXT)]),
    case(
        "codex",
        "not trusted",
        &[
            ("proj/AGENTS.md", TEXT),
            ("proj/.agents/skills/k/SKILL.md", SKILL),
            ("home/.codex/config.toml", "[projects.'{proj}']\ntrust_level = 'untrusted'\n"),
        ],
    ),
    case("codex", "prompts", &[("home/.codex/prompts/x.md", TEXT)]),
    case(
        "codex",
        "a skill that is only called",
        &[("proj/.agents/skills/k/SKILL.md", SKILL), ("proj/.agents/skills/k/agents/openai.yaml", POLICY)],
    ),
    Case {
        dir: "proj/sub",
        ..case("codex", "nested", &[("proj/AGENTS.md", TEXT), ("proj/sub/AGENTS.md", TEXT)])
    },
    Case {
        moved: Some(("CODEX_HOME", "moved")),
        ..case("codex", "moved", &[("home/.codex/AGENTS.md", TEXT), ("moved/AGENTS.md", TEXT)])
    },
    case("claude_code", "AGENTS.md alone", &[("proj/AGENTS.md", TEXT)]),
    case("claude_code", "beside CLAUDE.md", &[("proj/AGENTS.md", TEXT), ("proj/CLAUDE.md", TEXT)]),
    case(
        "claude_code",
        "beside .claude/CLAUDE.md",
        &[("proj/AGENTS.md", TEXT), ("proj/.claude/CLAUDE.md", TEXT)],
    ),
    case(
        "claude_code",
        "beside CLAUDE.local.md",
        &[("proj/AGENTS.md", TEXT), ("proj/CLAUDE.local.md", TEXT)],
    ),
    case("claude_code", "an import", &[("proj/AGENTS.md", TEXT), ("proj/CLAUDE.md", "{}\n@AGENTS.md\n")]),
    case("claude_code", "rules", &[("proj/AGENTS.md", TEXT), ("proj/.claude/rules/a.md", TEXT)]),
    case("claude_code", "the user's file", &[("proj/AGENTS.md", TEXT), ("home/.claude/CLAUDE.md", TEXT)]),
    case(
        "claude_code",
        "shared skills",
        &[("proj/.agents/skills/k/SKILL.md", SKILL), ("home/.agents/skills/k/SKILL.md", SKILL)],
    ),
    case(
        "claude_code",
        "a skill and a command",
        &[("proj/.claude/skills/k/SKILL.md", SKILL), ("proj/.claude/commands/k.md", COMMAND)],
    ),
    case("claude_code", "a command", &[("proj/.claude/commands/k.md", COMMAND)]),
    case("claude_code", "a skill that is only called", &[("proj/.claude/skills/k/SKILL.md", CALLED)]),
    case(
        "claude_code",
        "a skill in both scopes",
        &[("proj/.claude/skills/k/SKILL.md", SKILL), ("home/.claude/skills/k/SKILL.md", SKILL)],
    ),
    Case {
        moved: Some(("CLAUDE_CONFIG_DIR", "moved")),
        ..case("claude_code", "moved", &[("home/.claude/CLAUDE.md", TEXT), ("moved/CLAUDE.md", TEXT)])
    },
    Case {
        dir: "proj/sub",
        ..case("claude_code", "nested", &[("proj/AGENTS.md", TEXT), ("proj/sub/AGENTS.md", TEXT)])
    },
    case(
        "opencode",
        "instructions",
        &[
            ("proj/AGENTS.md", TEXT),
            ("proj/CLAUDE.md", TEXT),
            ("home/.config/opencode/AGENTS.md", TEXT),
            ("home/.claude/CLAUDE.md", TEXT),
        ],
    ),
    case(
        "opencode",
        "skills",
        &[
            ("proj/.agents/skills/k/SKILL.md", SKILL),
            ("proj/.codex/skills/l/SKILL.md", "---\nname: l\ndescription: {}\n---\n"),
        ],
    ),
    case("opencode", "a skill that is only called", &[("proj/.agents/skills/k/SKILL.md", CALLED)]),
    case(
        "qwen",
        "instructions",
        &[
            ("proj/AGENTS.md", TEXT),
            ("proj/QWEN.md", TEXT),
            ("proj/CLAUDE.md", TEXT),
            ("home/.qwen/QWEN.md", TEXT),
        ],
    ),
    case(
        "qwen",
        "skills",
        &[
            ("proj/.agents/skills/k/SKILL.md", SKILL),
            ("proj/.claude/skills/l/SKILL.md", "---\nname: l\ndescription: {}\n---\n"),
            ("proj/.qwen/skills/m/SKILL.md", "---\nname: m\ndescription: {}\n---\n"),
        ],
    ),
    case("qwen", "a skill that is only called", &[("proj/.agents/skills/k/SKILL.md", CALLED)]),
];

/// A home and a project for one case.
struct World {
    dir: tempfile::TempDir,
    base: PathBuf,
    /// The mark of each file.
    marks: BTreeMap<PathBuf, String>,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let base = std::fs::canonicalize(dir.path()).unwrap();
        for name in ["home", "proj", "moved"] {
            std::fs::create_dir_all(base.join(name)).unwrap();
        }
        let init =
            std::process::Command::new("git").args(["init", "-q"]).current_dir(base.join("proj")).status();
        assert!(init.unwrap().success());
        Self { dir, base, marks: BTreeMap::new() }
    }

    fn write(&mut self, path: &str, text: &str) {
        let mark = format!("MARK{:02}", self.marks.len());
        let path = self.base.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let text = text
            .replace("{proj}", &self.base.join("proj").display().to_string())
            .replace("{40000}", &"x".repeat(40_000))
            .replace("{end}", &format!("{mark}END"))
            .replace("{}", &mark);
        std::fs::write(&path, text).unwrap();
        self.marks.insert(path, mark);
    }

    /// What `explain --client` says the model will see, mark by mark.
    fn explained(&self, client: &str, dir: &Path, moved: Option<(&str, PathBuf)>) -> (Seen, Value) {
        let mut command = support::crewkit(&self.base.join("home"));
        command.args(["pack", "explain", "--client", client, "--json"]).current_dir(dir);
        command.envs(moved);
        let (code, out, err) = support::output(&mut command);
        assert_eq!(code, 0, "{out}{err}");
        let data = serde_json::from_str::<Value>(&out).unwrap()["data"].take();
        let mut seen = Seen::new();
        for part in data["parts"].as_array().unwrap() {
            let state = part["state"].as_str().unwrap();
            let Some(mark) = self.marks.get(Path::new(part["path"].as_str().unwrap())) else { continue };
            if matches!(state, "read" | "cut") && part["called"] != json!(true) {
                *seen.entry(mark.clone()).or_default() += 1;
            }
        }
        (seen, data)
    }
}

/// How often each mark is in what the model was given.
fn count(text: &str) -> Seen {
    let mut seen = Seen::new();
    for (at, _) in text.match_indices("MARK") {
        let mark: String = text[at..].chars().take_while(char::is_ascii_alphanumeric).collect();
        *seen.entry(mark).or_default() += 1;
    }
    seen
}

/// Runs a client once and returns what its model was given.
async fn ask(client: &str, program: &Path, home: &Path, dir: &Path, moved: Option<(&str, PathBuf)>) -> Seen {
    // Clients also ask for a title, or twice; the fullest request is the one that counts.
    let fullest = Arc::new(Mutex::new(String::new()));
    let kept = Arc::clone(&fullest);
    let model = ScriptedModel::start_lenient(move |request| {
        let (text, mut kept) = (request.body.to_string(), kept.lock().unwrap());
        if text.len() > kept.len() {
            *kept = text;
        }
        Turn::say("ok")
    })
    .await;
    let mut command = Command::new(program);
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", home);
    command.current_dir(dir).stdin(Stdio::null()).kill_on_drop(true).envs(moved);
    match client {
        "codex" => command.args(["debug", "prompt-input", "hi"]),
        "claude_code" => command
            .args(["-p", "hi"])
            .env("ANTHROPIC_BASE_URL", model.base())
            .env("ANTHROPIC_API_KEY", "not-a-key")
            .env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
        "opencode" => {
            let config = json!({"model": "fake/m", "provider": {"fake": {
                "npm": "@ai-sdk/openai-compatible", "name": "fake", "models": {"m": {"name": "m"}},
                "options": {"baseURL": format!("{}/v1", model.base()), "apiKey": "not-a-key"},
            }}});
            command.args(["run", "hi"]).env("OPENCODE_CONFIG_CONTENT", config.to_string())
        }
        _ => command
            .args(["--auth-type", "openai", "-p", "hi"])
            .env("OPENAI_BASE_URL", format!("{}/v1", model.base()))
            .env("OPENAI_API_KEY", "not-a-key")
            .env("OPENAI_MODEL", "m"),
    };
    let output = tokio::time::timeout(std::time::Duration::from_mins(2), command.output());
    let output = output.await.unwrap().unwrap();
    let text = support::text(&output.stdout);
    assert!(output.status.success(), "{client}: {text}{}", support::text(&output.stderr));
    if client == "codex" {
        return count(&text);
    }
    let fullest = fullest.lock().unwrap();
    assert!(!fullest.is_empty(), "{client} asked nothing: {text}");
    count(&fullest)
}

/// The client if it is there; else what it answered when it was.
fn program(client: &str) -> Option<PathBuf> {
    let versions: Value = serde_json::from_str(VERSIONS).unwrap();
    crewkit_testkit::real_client(versions[client]["program"].as_str().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_read_what_explain_says() {
    let versions: Value = serde_json::from_str(VERSIONS).unwrap();
    let records = std::env::var_os("CREWKIT_RECORD_CLIENTS").is_some();
    let mut recorded: BTreeMap<String, Seen> =
        serde_json::from_str(&std::fs::read_to_string(RECORDED).unwrap_or_else(|_| "{}".to_owned())).unwrap();
    let mut wrong = Vec::new();
    for case in CASES {
        let name = format!("{}: {}", case.client, case.name);
        let mut world = World::new();
        for (path, text) in case.files {
            world.write(path, text);
        }
        let (dir, home) = (world.base.join(case.dir), world.base.join("home"));
        let moved = case.moved.map(|(name, to)| (name, world.base.join(to)));
        let (explained, data) = world.explained(case.client, &dir, moved.clone());
        assert_eq!(data["version"], versions[case.client]["version"], "{name}: the description is about it");
        let seen = match program(case.client) {
            Some(program) => ask(case.client, &program, &home, &dir, moved).await,
            None => recorded.get(&name).unwrap_or_else(|| panic!("{name} was never recorded")).clone(),
        };
        if records {
            recorded.insert(name.clone(), seen.clone());
        }
        if seen != explained {
            wrong.push(format!("{name}: the client saw {seen:?}, explain says {explained:?}: {data:#}"));
        }
        drop(world.dir);
    }
    if records {
        std::fs::write(RECORDED, serde_json::to_string_pretty(&recorded).unwrap() + "\n").unwrap();
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A repo as `init` makes it, with one module of each kind, deployed: each client sees each of them once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_default_deployment_is_seen_once_by_every_client() {
    let mut world = World::new();
    let home = world.base.join("home");
    let crewkit = |words: &[&str], dir: &Path| {
        let mut command = support::crewkit(&home);
        let (code, out, err) = support::output(command.args(words).current_dir(dir));
        assert_eq!(code, 0, "{words:?}: {out}{err}");
    };
    let project = world.base.join("proj");
    crewkit(&["pack", "init", "--yes"], &project);
    let repo = "home/.agentpack/repo";
    world.write(&format!("{repo}/i/AGENTS.md"), TEXT);
    world.write(&format!("{repo}/k/SKILL.md"), SKILL);
    world.write(&format!("{repo}/p.md"), TEXT);
    world.write(&format!("{repo}/c.md"), COMMAND);
    for (kind, source) in [("instructions", "i"), ("skill", "k"), ("prompt", "p.md"), ("command", "c.md")] {
        let source = format!("local:{source}");
        crewkit(&["pack", "add", kind, &source, "--tags", "base", "--yes"], &project);
    }
    crewkit(&["pack", "deploy", "--apply", "--yes"], &project);
    for client in ["codex", "claude_code", "opencode", "qwen"] {
        let (_, data) = world.explained(client, &project, None);
        assert_eq!(data["problems"], json!([]), "{client}: {data:#}");
        let Some(program) = program(client) else { continue };
        let seen = ask(client, &program, &home, &project, None).await;
        // The text of a prompt without a description is in its description and nowhere else in the input.
        let called = u64::from(client == "opencode");
        let times = |mark: &str| seen.get(mark).copied().unwrap_or_default();
        let all = ["MARK00", "MARK01", "MARK02", "MARK03"].map(times);
        assert_eq!(all, [1, 1, called, called], "{client}: {seen:?}");
    }
}
