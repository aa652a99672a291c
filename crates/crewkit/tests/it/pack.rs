//! The pack commands as both binaries offer them, in a home of their own.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

struct Home {
    dir: tempfile::TempDir,
}

/// How a person can start the pack commands.
#[derive(Debug, Clone, Copy)]
enum Door {
    Agentpack,
    CrewkitPack,
}

const DOORS: [Door; 2] = [Door::Agentpack, Door::CrewkitPack];

impl Home {
    fn new() -> Self {
        let home = Self { dir: tempfile::tempdir().unwrap() };
        fs::create_dir_all(home.path("proj")).unwrap();
        home.write(
            "home/.agentpack/repo/agentpack.yaml",
            "version: 1\nprofiles: {default: {include_tags: [base]}}\ntargets:\n  codex: {mode: files, scope: project}\nmodules:\n  - {id: \"instructions:a\", type: instructions, tags: [base], source: {local_path: {path: i}}}\n",
        );
        home.write("home/.agentpack/repo/i/AGENTS.md", "# hi\n");
        home
    }

    fn path(&self, path: &str) -> PathBuf {
        fs::canonicalize(self.dir.path()).unwrap().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn command(&self, door: Door, args: &[&str]) -> Command {
        let mut command = match door {
            Door::Agentpack => Command::new(env!("CARGO_BIN_EXE_agentpack")),
            Door::CrewkitPack => {
                let mut command = Command::new(env!("CARGO_BIN_EXE_crewkit"));
                command.arg("pack");
                command
            }
        };
        command.args(args).current_dir(self.path("proj")).stdin(Stdio::null()).env("HOME", self.path("home"));
        for name in [
            "CREWKIT_HOME",
            "XDG_DATA_HOME",
            "AGENTPACK_HOME",
            "CODEX_HOME",
            "CLAUDE_CONFIG_DIR",
            "COPILOT_HOME",
            "AGENTPACK_MACHINE_ID",
            "NO_COLOR",
            "EDITOR",
        ] {
            command.env_remove(name);
        }
        command
    }

    fn run(&self, door: Door, args: &[&str]) -> Output {
        self.command(door, args).output().unwrap()
    }

    fn json(&self, door: Door, args: &[&str]) -> (i32, Value) {
        let output = self.run(door, &[args, &["--json"]].concat());
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.ends_with('\n'), "{text}");
        (
            output.status.code().unwrap(),
            serde_json::from_str(&text).unwrap_or_else(|_| panic!("{args:?}: {text}")),
        )
    }
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn a_deploy_from_plan_to_rollback() {
    for door in DOORS {
        let home = Home::new();
        assert_eq!(
            home.json(door, &["plan"]).1["data"]["summary"],
            json!({"create": 1, "delete": 0, "update": 0})
        );
        let (exit, refused) = home.json(door, &["deploy", "--apply"]);
        assert_eq!((exit, &refused["errors"][0]["code"]), (1, &json!("E_CONFIRM_REQUIRED")));
        let (exit, applied) = home.json(door, &["deploy", "--apply", "--yes"]);
        assert_eq!((exit, &applied["command_id"]), (0, &json!("deploy --apply")));
        let id = applied["data"]["snapshot_id"].as_str().unwrap().to_owned();
        assert_eq!(fs::read_to_string(home.path("proj/AGENTS.md")).unwrap(), "# hi\n");
        assert_eq!(home.run(door, &["plan", "--exit-code"]).status.code(), Some(0));

        home.write("proj/AGENTS.md", "drift\n");
        for command in ["plan", "diff", "status"] {
            assert_eq!(home.run(door, &[command, "--exit-code"]).status.code(), Some(3), "{command}");
            assert_eq!(home.run(door, &[command]).status.code(), Some(0), "{command}");
        }
        let (exit, back) = home.json(door, &["rollback", "--to", &id, "--yes"]);
        assert_eq!((exit, &back["data"]["rolled_back_to"]), (0, &json!(id)), "{back}");
        assert_eq!(fs::read_to_string(home.path("proj/AGENTS.md")).unwrap(), "# hi\n");
        // What the person had written is not lost, and the warning says how to get at it.
        let event = back["data"]["event_snapshot_id"].as_str().unwrap();
        let place = home.path("proj/AGENTS.md").display().to_string();
        let hint = format!("snapshots show {event} --file {place}");
        assert!(back["warnings"][0].as_str().unwrap().contains(&hint), "{back}");
        for path in ["AGENTS.md", &place] {
            let kept = home.run(door, &["snapshots", "show", event, "--file", path]);
            assert_eq!((text(&kept).as_str(), kept.status.code()), ("drift\n", Some(0)), "{kept:?}");
        }
        let (exit, kept) = home.json(door, &["snapshots", "show", event, "--file", "AGENTS.md"]);
        assert_eq!((exit, &kept["data"]["content"]), (0, &json!("drift\n")));
        let (exit, kept) = home.json(door, &["snapshots", "show", event, "--file", "other.md"]);
        assert_eq!((exit, &kept["errors"][0]["code"]), (1, &json!("E_SNAPSHOT_NOT_FOUND")));
        let (_, list) = home.json(door, &["snapshots", "list"]);
        assert_eq!(list["data"]["snapshots"].as_array().unwrap().len(), 2);
        assert_eq!(list["command"], "snapshots.list");
    }
}

#[test]
fn limits_come_from_crewkit_toml() {
    for door in DOORS {
        let home = Home::new();
        home.write("limits/crewkit.toml", "[limits]\npack_yaml_bytes = 10\n");
        let mut command = home.command(door, &["plan", "--json"]);
        let output = command.env("CREWKIT_HOME", home.path("limits")).output().unwrap();
        assert!(text(&output).contains("longer than 10 bytes; a `pack_…_bytes` limit"), "{output:?}");
        home.write("limits/crewkit.toml", "[limits]\npack_yaml_bites = 10\n");
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(text(&output).contains("pack_yaml_bites"), "{output:?}");
    }
}

#[test]
fn people_see_a_grouped_plan_without_colours_in_a_pipe() {
    let home = Home::new();
    let output = home.run(Door::Agentpack, &["plan"]);
    let root = home.path("proj").display().to_string();
    assert_eq!(
        text(&output),
        format!(
            "Plan: +1 ~0 -0\n\ncodex {root}\n  + AGENTS.md\n\nNext: agentpack preview --diff, then agentpack deploy --apply\n"
        )
    );
    let diff = text(&home.run(Door::Agentpack, &["diff"]));
    assert!(diff.contains("@@ -0,0 +1 @@\n+# hi\n") && !diff.contains('\x1b'), "{diff}");
}

#[test]
fn a_deploy_asks_first_and_no_answer_is_no() {
    let home = Home::new();
    let output = home.run(Door::Agentpack, &["deploy", "--apply"]);
    assert!(output.status.success());
    assert!(text(&output).ends_with("Aborted\n"), "{}", text(&output));
    assert!(!home.path("proj/AGENTS.md").exists());
    let mut child = home
        .command(Door::Agentpack, &["deploy", "--apply"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"y\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(text(&output).contains("Applied. Snapshot: "), "{}", text(&output));
    assert!(home.path("proj/AGENTS.md").exists());
}

/// A plan of which nobody was asked is the only one that may be carried out without a question. Here something changes
/// between the plan that is shown and the one under the lock: git is asked for its refs by both, and the second time the
/// program called git makes the change first.
#[test]
fn what_nobody_was_asked_about_is_not_applied() {
    use std::os::unix::fs::PermissionsExt as _;
    let found = Command::new("sh").args(["-c", "command -v git"]).output().unwrap();
    let git = String::from_utf8(found.stdout).unwrap().trim().to_owned();
    // What is there before, what happens in between, and what must still be there.
    for (before, meanwhile, after) in [
        ("# hi\n", "printf new > home/.agentpack/repo/i/AGENTS.md", Some("# hi\n")),
        ("mine\n", "rm proj/AGENTS.md", None),
    ] {
        let home = Home::new();
        home.write("upstream/SKILL.md", "---\nname: g\ndescription: g\n---\n");
        for args in [&["init", "-q", "-b", "main"][..], &["add", "-A"], &["commit", "-q", "-m", "c"]] {
            let mut command = Command::new(&git);
            command.args(["-c", "user.name=t", "-c", "user.email=t@t"]).args(args);
            assert!(command.current_dir(home.path("upstream")).status().unwrap().success());
        }
        let upstream = home.path("upstream");
        let module = format!(
            "  - {{id: \"skill:g\", type: skill, tags: [base], source: {{git: {{url: \"{}\"}}}}}}\n",
            upstream.display()
        );
        let manifest = home.path("home/.agentpack/repo/agentpack.yaml");
        let text = fs::read_to_string(&manifest).unwrap() + &module;
        fs::write(&manifest, text).unwrap();
        let (exit, deployed) = home.json(Door::Agentpack, &["deploy", "--apply", "--yes"]);
        assert_eq!(exit, 0, "{deployed}");
        if before == "mine\n" {
            let id = deployed["data"]["snapshot_id"].as_str().unwrap();
            let to = format!("before:{id}");
            assert_eq!(home.json(Door::Agentpack, &["rollback", "--to", &to, "--yes"]).0, 0);
        }
        home.write("proj/AGENTS.md", before);
        let script = format!(
            "#!/bin/sh\nfor word in \"$@\"; do\n  if [ \"$word\" = ls-remote ]; then\n    cd {base}\n    echo x >> asked\n    \
             if [ $(wc -l < asked) = 2 ]; then {meanwhile}; fi\n    cd - > /dev/null\n  fi\ndone\nexec {git} \"$@\"\n",
            base = home.path("").display()
        );
        home.write("bin/git", &script);
        fs::set_permissions(home.path("bin/git"), fs::Permissions::from_mode(0o755)).unwrap();
        let path = format!("{}:{}", home.path("bin").display(), std::env::var("PATH").unwrap());
        let output =
            home.command(Door::Agentpack, &["deploy", "--apply"]).env("PATH", path).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(fs::read_to_string(home.path("asked")).unwrap(), "x\nx\n", "{said}");
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("E_CONFIRM_TOKEN_MISMATCH"), "{said}");
        assert_eq!(fs::read_to_string(home.path("proj/AGENTS.md")).ok().as_deref(), after);
    }
}

#[test]
fn errors_name_code_cause_and_next_step() {
    let home = Home::new();
    let output = home.run(Door::Agentpack, &["plan", "--profile", "nope"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.starts_with("error[E_PROFILE_NOT_FOUND]: profile not found: nope; there are default\n  next: "),
        "{said}"
    );
    assert!(output.stdout.is_empty());
}

#[test]
fn usage_errors_are_json_when_json_was_asked_for() {
    let home = Home::new();
    for door in DOORS {
        for (args, command) in [
            (&["plan", "--no-such"][..], "plan"),
            (&["overlay", "edit"], "overlay"),
            (&["rollback"], "rollback"),
        ] {
            let (exit, envelope) = home.json(door, args);
            assert_eq!(exit, 2, "{args:?}");
            assert_eq!(envelope["errors"][0]["code"], "E_ARGUMENT_INVALID", "{args:?}");
            assert_eq!(envelope["command"], command, "{args:?}");
        }
    }
    let output = home.run(Door::Agentpack, &["plan", "--no-such"]);
    assert!(output.stdout.is_empty() && output.status.code() == Some(2));
}

#[test]
fn version_help_schema_and_completions() {
    let home = Home::new();
    assert_eq!(
        text(&home.run(Door::Agentpack, &["--version"])),
        concat!("agentpack ", env!("CARGO_PKG_VERSION"), "\n")
    );
    let (_, help) = home.json(Door::Agentpack, &["help"]);
    let ids: Vec<&str> = help["data"]["commands"]
        .as_array()
        .unwrap()
        .iter()
        .map(|command| command["id"].as_str().unwrap())
        .collect();
    for id in ["init", "add", "deploy", "doctor --fix", "overlay rebase", "snapshots prune", "mcp serve"] {
        assert!(ids.contains(&id), "{id} is not in {ids:?}");
    }
    assert_eq!(home.json(Door::Agentpack, &["schema"]).1["data"]["envelope"]["schema_version"], 1);
    for shell in ["bash", "zsh", "fish"] {
        assert!(text(&home.run(Door::Agentpack, &["completions", shell])).contains("agentpack"), "{shell}");
    }
}

#[test]
fn a_closed_pipe_ends_quietly() {
    let home = Home::new();
    let module = |index: usize| {
        format!(
            "  - {{id: \"prompt:p{index}\", type: prompt, tags: [base], source: {{local_path: {{path: p/p{index}.md}}}}}}\n"
        )
    };
    let modules = (0..2000).map(module).collect::<Vec<_>>().concat();
    home.write(
        "home/.agentpack/repo/agentpack.yaml",
        &format!("version: 1\nprofiles: {{default: {{include_tags: [base]}}}}\ntargets:\n  codex: {{mode: files, scope: both}}\nmodules:\n{modules}"),
    );
    for index in 0..2000 {
        home.write(&format!("home/.agentpack/repo/p/p{index}.md"), "x");
    }
    let mut child = home
        .command(Door::Agentpack, &["plan", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn the_default_home_can_be_moved_and_the_editor_is_opened() {
    let home = Home::new();
    fs::rename(home.path("home/.agentpack"), home.path("home/moved")).unwrap();
    let mut command = home.command(Door::Agentpack, &["overlay", "edit", "instructions:a"]);
    let log = home.path("edited");
    home.write("editor", &format!("#!/bin/sh\necho \"$@\" > '{}'\n", log.display()));
    let editor = home.path("editor");
    let mut permissions = fs::metadata(&editor).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o755);
    fs::set_permissions(&editor, permissions).unwrap();
    command.env("AGENTPACK_HOME", "~/moved").env("EDITOR", format!("{} --wait", editor.display()));
    assert!(command.output().unwrap().status.success());
    let opened = fs::read_to_string(log).unwrap();
    assert!(
        opened.starts_with("--wait ") && opened.contains("moved/repo/overlays/instructions_a--"),
        "{opened}"
    );
}

#[test]
fn mcp_serve_offers_the_pack_tools_under_their_old_name() {
    let home = Home::new();
    let mut child = home
        .command(Door::Agentpack, &["mcp", "serve"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut ask = |message: Value| {
        writeln!(input, "{message}").unwrap();
        if message.get("id").is_none() {
            return Value::Null;
        }
        serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap()
    };
    let hello = ask(json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}}));
    assert_eq!(hello["result"]["serverInfo"]["name"], "agentpack");
    ask(json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    let tools = ask(json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"}));
    let names: Vec<&str> = tools["result"]["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        ["plan", "diff", "preview", "status", "doctor", "deploy", "deploy_apply", "rollback", "explain"]
    );
    let mut id = 2;
    let mut call = |name: &str, arguments: Value| {
        id += 1;
        let answer = ask(json!({"jsonrpc": "2.0", "id": id, "method": "tools/call",
            "params": {"name": name, "arguments": arguments}}));
        let result = answer["result"].clone();
        let text: Value = serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
        assert_eq!(text, result["structuredContent"], "{name}");
        assert_eq!(
            result["isError"].as_bool().unwrap_or(false),
            result["structuredContent"]["ok"] == json!(false)
        );
        result["structuredContent"].clone()
    };
    let code = |envelope: &Value| envelope["errors"][0]["code"].as_str().unwrap().to_owned();
    for arguments in [json!({}), json!({"yes": false}), json!({"yes": "true"}), json!({"repo": "/nowhere"})] {
        let envelope = call("deploy_apply", arguments);
        assert_eq!(code(&envelope), "E_CONFIRM_REQUIRED");
        assert_eq!(
            (&envelope["command"], &envelope["command_id"]),
            (&json!("deploy"), &json!("deploy --apply"))
        );
    }
    assert_eq!(code(&call("rollback", json!({"to": "1"}))), "E_CONFIRM_REQUIRED");
    assert_eq!(code(&call("plan", json!({"colour": "red"}))), "E_ARGUMENT_INVALID");
    assert_eq!(code(&call("rollback", json!({"yes": true}))), "E_ARGUMENT_INVALID");
    assert_eq!(call("deploy_apply", json!({"yes": true, "dry_run": true}))["data"]["applied"], false);
    assert!(!home.path("proj/AGENTS.md").exists());

    let token = call("deploy", json!({}))["data"]["confirm_token"].clone();
    home.write("home/.agentpack/repo/i/AGENTS.md", "# other\n");
    let late = call("deploy_apply", json!({"yes": true, "confirm_token": token}));
    assert_eq!(code(&late), "E_CONFIRM_TOKEN_MISMATCH");
    assert!(!home.path("proj/AGENTS.md").exists());
    let token = call("deploy", json!({}))["data"]["confirm_token"].clone();
    assert_eq!(call("deploy_apply", json!({"yes": true, "confirm_token": token}))["data"]["applied"], true);
    assert_eq!(fs::read_to_string(home.path("proj/AGENTS.md")).unwrap(), "# other\n");
    assert_eq!(call("status", json!({"only": ["missing"]}))["data"]["drift"], json!([]));

    // With a token, the client hears how far the work has come, and then the answer.
    home.write("home/.agentpack/repo/i/AGENTS.md", "# third\n");
    let mut told = ask(json!({"jsonrpc": "2.0", "id": "last", "method": "tools/call", "params": {
        "name": "deploy_apply", "arguments": {"yes": true}, "_meta": {"progressToken": "p"}}}));
    let mut messages = Vec::new();
    while told["id"] != "last" {
        assert_eq!(told["params"]["progressToken"], "p", "{told}");
        messages.push((told["params"]["progress"].as_f64().unwrap(), told["params"]["message"].clone()));
        told = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    }
    assert_eq!(messages, [(1.0, json!("deploy: 0 of 1")), (2.0, json!("deploy: 1 of 1"))]);
    assert_eq!(told["result"]["structuredContent"]["data"]["applied"], true);
    drop(input);
    assert!(child.wait().unwrap().success());
}

/// Starts `agentpack FLAGS… mcp serve` and calls tools of it; returns the envelopes.
fn served(home: &Home, flags: &[&str], calls: &[(&str, Value)]) -> Vec<Value> {
    let arguments = [flags, &["mcp", "serve"]].concat();
    let mut child = home
        .command(Door::Agentpack, &arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}});
    writeln!(input, "{hello}").unwrap();
    lines.next().unwrap().unwrap();
    writeln!(input, "{}", json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).unwrap();
    let mut envelopes = Vec::new();
    for (id, (name, arguments)) in calls.iter().enumerate() {
        let call = json!({"jsonrpc": "2.0", "id": id + 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}});
        writeln!(input, "{call}").unwrap();
        let answer: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        envelopes.push(answer["result"]["structuredContent"].clone());
    }
    drop(input);
    assert!(child.wait().unwrap().success());
    envelopes
}

#[test]
fn the_flags_of_mcp_serve_are_defaults_and_limits_of_the_session() {
    let home = Home::new();
    let yes = || json!({"yes": true});
    let code = |envelope: &Value| envelope["errors"][0]["code"].as_str().unwrap_or_default().to_owned();

    let answers = served(
        &home,
        &["--dry-run"],
        &[("deploy_apply", yes()), ("deploy_apply", json!({"yes": true, "dry_run": false}))],
    );
    for answer in &answers {
        assert_eq!((&answer["ok"], &answer["data"]["applied"]), (&json!(true), &json!(false)), "{answer}");
        assert_eq!(answer["command_id"], "deploy", "{answer}");
    }
    assert!(!home.path("proj/AGENTS.md").exists(), "a dry run deployed");
    assert!(!home.path("home/.agentpack/state").exists(), "a dry run wrote into the home");

    // Another repo, as a default, and as a limit.
    home.write(
        "other/agentpack.yaml",
        &fs::read_to_string(home.path("home/.agentpack/repo/agentpack.yaml")).unwrap(),
    );
    home.write("other/i/AGENTS.md", "# other\n");
    let other = home.path("other").display().to_string();
    let calls = [
        ("deploy_apply", json!({"yes": true, "repo": home.path("home/.agentpack/repo")})),
        ("plan", json!({"profile": "special"})),
        ("plan", json!({"target": "cursor"})),
        ("deploy_apply", json!({"yes": true, "repo": other, "target": "all"})),
    ];
    let answers = served(&home, &["--repo", &other, "--target", "codex"], &calls);
    assert_eq!(code(&answers[0]), "E_ARGUMENT_INVALID", "{}", answers[0]);
    assert_eq!(
        code(&answers[1]),
        "E_PROFILE_NOT_FOUND",
        "what the session leaves open is the call's: {}",
        answers[1]
    );
    assert_eq!(code(&answers[2]), "E_ARGUMENT_INVALID", "{}", answers[2]);
    assert_eq!(
        (&answers[3]["data"]["applied"], &answers[3]["data"]["targets"]),
        (&json!(true), &json!(["codex"]))
    );
    assert_eq!(fs::read_to_string(home.path("proj/AGENTS.md")).unwrap(), "# other\n");

    let calls = [("plan", json!({})), ("plan", json!({"profile": "another"}))];
    let answers = served(&home, &["--profile", "special"], &calls);
    assert_eq!(
        (code(&answers[0]), code(&answers[1])),
        ("E_PROFILE_NOT_FOUND".into(), "E_ARGUMENT_INVALID".into())
    );
}

#[test]
fn explain_shows_what_a_client_will_see() {
    let home = Home::new();
    home.write("proj/sub/AGENTS.md", "nested\n");
    let git = Command::new("git").args(["init", "-q"]).current_dir(home.path("proj")).status().unwrap();
    assert!(git.success());
    for door in DOORS {
        let (exit, answer) = home.json(door, &["explain", "--client", "codex", "--dir", "sub"]);
        assert_eq!((exit, &answer["command"]), (0, &json!("explain")), "{answer}");
        let parts = answer["data"]["parts"].as_array().unwrap();
        let shown: Vec<_> =
            parts.iter().map(|part| (&part["path"], &part["modules"], &part["state"])).collect();
        let (root, nested) = (json!(home.path("proj/AGENTS.md")), json!(home.path("proj/sub/AGENTS.md")));
        assert_eq!(
            shown,
            [(&root, &json!(["instructions:a"]), &json!("read")), (&nested, &json!([]), &json!("read"))]
        );
        let text = home.run(door, &["explain", "--client", "codex"]);
        let text = String::from_utf8(text.stdout).unwrap();
        assert!(text.starts_with("Codex 0.166.0 in "), "{text}");
        assert!(text.contains("AGENTS.md  project, 5 B, instructions:a"), "{text}");
        // The commands of `explain` are as they were, and one of the two has to be given.
        assert_eq!(home.json(door, &["explain", "plan"]).1["command"], json!("explain.plan"));
        assert_eq!(home.run(door, &["explain"]).status.code(), Some(2));
        let (exit, answer) = home.json(door, &["explain", "--client", "emacs"]);
        assert_eq!((exit, &answer["errors"][0]["details"]["argument"]), (1, &json!("client")), "{answer}");
        // A variable that moves the directory of a client moves what is seen.
        home.write("moved/AGENTS.md", "of the user\n");
        let mut moved = home.command(door, &["explain", "--client", "codex"]);
        let text = moved.env("CODEX_HOME", home.path("moved")).output().unwrap().stdout;
        assert!(String::from_utf8(text).unwrap().contains("moved/AGENTS.md  user, 12 B, yours"));
    }
}
