//! `crewkit fleet …` and `crewkit metadata serve`, as built: on the simulated Coder and on this machine, as JSON and as tables.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crewkit_testkit::coder::{CA, Profile, SimCoder, TOKEN};
use crewkit_testkit::pty::Pty;
use serde_json::{Value, json};

use crate::support::{Served, crewkit, output};
use crate::walk::{repository, write_pack};

/// Where commands go: a home, and what points them at Coder or a server.
struct Ground {
    root: tempfile::TempDir,
    environment: Vec<(&'static str, String)>,
}

impl Ground {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("home")).unwrap();
        Self { root, environment: Vec::new() }
    }

    async fn on_coder() -> (Self, SimCoder) {
        let sim = SimCoder::start(Profile::V2_32).await.unwrap();
        let mut ground = Self::new();
        ground.environment = vec![("CODER_URL", sim.url()), ("CODER_SESSION_TOKEN", TOKEN.to_owned())];
        (ground, sim)
    }

    fn home(&self) -> PathBuf {
        self.root.path().join("home")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = crewkit(&self.home());
        command.arg("fleet").args(arguments).envs(self.environment.iter().cloned());
        command
    }

    /// Runs a command off the threads of the simulated Coder: exit code, answer, and what was said besides.
    async fn run(&self, arguments: &[&str]) -> (i32, Value, String) {
        let mut command = self.command(arguments);
        command.arg("--json");
        let (code, out, err) = tokio::task::spawn_blocking(move || output(&mut command)).await.unwrap();
        (code, serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}")), err)
    }

    async fn answer(&self, arguments: &[&str]) -> Value {
        let (code, answer, err) = self.run(arguments).await;
        assert_eq!(code, 0, "{arguments:?}: {answer} {err}");
        answer
    }

    async fn refusal(&self, arguments: &[&str], status: u16) -> Value {
        let (code, answer, err) = self.run(arguments).await;
        assert_eq!(
            (code, &answer["details"]["status"]),
            (1, &json!(status)),
            "{arguments:?}: {answer} {err}"
        );
        answer
    }

    /// What a person sees.
    async fn seen(&self, arguments: &[&str]) -> String {
        let mut command = self.command(arguments);
        let seen = tokio::task::spawn_blocking(move || {
            let terminal = Pty::open().unwrap();
            command.stdin(Stdio::null()).stdout(terminal.side().unwrap()).stderr(terminal.side().unwrap());
            let mut child = command.spawn().unwrap();
            drop(command);
            let mut screen = terminal.screen;
            let mut seen = Vec::new();
            // The end of the last program on a terminal shows as an error.
            let _ = screen.read_to_end(&mut seen);
            child.wait().unwrap();
            String::from_utf8(seen).unwrap().replace("\r\n", "\n")
        });
        seen.await.unwrap()
    }
}

fn names<'a>(answer: &'a Value, list: &str) -> Vec<&'a str> {
    answer[list].as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn every_command_works_on_coder() {
    let (ground, sim) = Ground::on_coder().await;
    sim.world().builds_end_after_reads = Some(1);
    sim.world().add_agent("papi").report(5, "idle", "looked around", "");

    assert_eq!(names(&ground.answer(&["projects"]).await, "projects"), ["Setup"]);
    assert_eq!(names(&ground.answer(&["roles", "Setup"]).await, "roles"), ["Coder", "Operator", "Manager"]);
    let created =
        ground.answer(&["create", "sony", "Fix the bug", "--project", "Setup", "--role", "operator"]).await;
    assert_eq!((&created["agent"]["name"], &created["agent"]["role"]), (&json!("sony"), &json!("Operator")));
    ground.refusal(&["create", "sony", "again", "--project", "Setup"], 400).await;
    let waited = ground.answer(&["wait", "sony", "--status", "idle", "--timeout", "60"]).await;
    assert_eq!(waited["reached"], true, "{waited}");
    let (code, waited, _) = ground.run(&["wait", "sony", "--status", "busy", "--timeout", "1"]).await;
    assert_eq!((code, &waited["reached"]), (1, &json!(false)), "{waited}");

    assert_eq!(names(&ground.answer(&["list"]).await, "agents"), ["papi", "sony"]);
    assert_eq!(
        names(&ground.answer(&["list", "--role", "operator", "--no-metadata"]).await, "agents"),
        ["sony"]
    );
    assert_eq!(names(&ground.answer(&["list", "--limit", "1", "--offset", "1"]).await, "agents"), ["sony"]);
    ground.refusal(&["list", "--status", "sleepy"], 400).await;
    let shown = ground.answer(&["show", "sony"]).await["agent"].take();
    assert_eq!(shown["spec"], "Fix the bug");
    ground.refusal(&["show", "nobody"], 404).await;
    // An agent is place and name: the asker's place is Coder, and this machine is reached by naming it.
    let place = shown["place"].as_str().unwrap();
    let named = ground.answer(&["show", &format!("{place}/sony")]).await;
    assert_eq!((&named["agent"]["name"], &named["agent"]["place"]), (&json!("sony"), &json!(place)));
    ground.refusal(&["show", "local/sony"], 404).await;
    let refused = ground.refusal(&["show", "elsewhere/sony"], 400).await;
    assert!(refused["message"].as_str().unwrap().contains(&format!("{place}, local")), "{refused}");

    let started = ground.answer(&["start", "papi", "Write a test"]).await;
    assert_eq!(started["agent_status"], "busy", "{started}");
    ground.refusal(&["start", "papi", "And another"], 409).await;
    let stopped = ground.answer(&["stop", "papi"]).await;
    assert_eq!((&stopped["agent_status"], &stopped["task"]["status"]), (&json!("idle"), &json!("stopped")));
    ground.refusal(&["stop", "papi"], 400).await;
    let history = ground.answer(&["history", "papi", "--page-size", "5"]).await;
    assert_eq!(history["tasks"][0]["summary"], "Write a test", "{history}");
    let log = ground.answer(&["log", "papi"]).await;
    assert_eq!(log["logs"][0]["content"], "Write a test", "{log}");
    assert_eq!(ground.answer(&["restart", "papi"]).await["agent_name"], "papi");
    let deleted = ground.answer(&["delete", "sony"]).await;
    assert_eq!(deleted["deleted_agent"]["name"], "sony");
    assert_eq!(ground.refusal(&["project", "add", "."], 400).await["details"]["reason"], "not_supported");
}

#[tokio::test]
async fn people_see_tables_and_programs_see_json() {
    let (ground, sim) = Ground::on_coder().await;
    sim.world().add_agent("papi").report(5, "idle", "looked around", "");
    let list = ground.seen(&["list"]).await;
    assert_eq!(
        list,
        "AGENT  STATUS  TASK           ROLE   PROJECT\npapi   ○ idle  looked around  Coder  Setup\n1 agent.\n"
    );
    let shown = ground.seen(&["show", "papi"]).await;
    assert!(shown.contains("name: papi\n") && shown.contains("status: idle\n"), "{shown}");
    let history = ground.seen(&["history", "papi"]).await;
    assert!(history.starts_with("AGE") && history.contains("looked around"), "{history}");
    let projects = ground.seen(&["projects"]).await;
    assert!(
        projects.starts_with("PROJECT  TEMPLATE") && projects.contains("setup-devcontainer"),
        "{projects}"
    );
    let roles = ground.seen(&["roles", "Setup"]).await;
    assert!(roles.starts_with("ROLE") && roles.contains("Operator"), "{roles}");
    let refused = ground.seen(&["show", "nobody"]).await;
    assert!(refused.starts_with("error[not_found]: Agent 'nobody' does not exist"), "{refused}");
    assert!(refused.ends_with("\n  next: crewkit fleet list\n"), "{refused}");
    let near = ground.seen(&["show", "pappi"]).await;
    assert!(near.contains("Did you mean `papi`?"), "{near}");
    let json = ground.seen(&["--json", "list"]).await;
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["total_count"], 1);
    assert!(!(list + &shown + &history + &refused + &json).contains("CANARY"));
}

#[tokio::test]
async fn a_pack_of_this_machine_is_the_kit_of_agents_on_coder() {
    let (ground, sim) = Ground::on_coder().await;
    let work = ground.root.path().join("work");
    std::fs::create_dir(&work).unwrap();
    write_pack(&ground.home(), "Be kind.\n");
    let creating = {
        let mut command = ground.command(&["create", "papi", "Fix the bug", "--project", "Setup"]);
        tokio::task::spawn_blocking(move || output(&mut command))
    };
    // The workspace is built only after it was asked for; the command waits for it.
    while sim.world().workspace_count() == 0 {
        tokio::task::yield_now().await;
    }
    sim.world().workspace_mut("papi").directory = Some(work.clone());
    sim.world().finish_builds();
    let (code, out, err) = creating.await.unwrap();
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains("its kit goes in"), "{out}{err}");
    let file = work.join("AGENTS.md");
    // The server brings it when the workspace is there.
    while std::fs::read_to_string(&file).unwrap_or_default() != "Be kind.\n" {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(ground.answer(&["show", "papi"]).await["agent"]["kit"]["drift_count"], 0);

    write_pack(&ground.home(), "Be brief.\n");
    assert_eq!(ground.answer(&["equip", "--all"]).await["equipped"], 1);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "Be brief.\n");
    std::fs::write(&file, "Mine now.\n").unwrap();
    assert_eq!(ground.answer(&["drift"]).await["agents"][0]["modified"], json!(["AGENTS.md"]));
    write_pack(&ground.home(), "Be bold.\n");
    assert_eq!(
        ground.answer(&["equip", "--agent", "papi"]).await["agents"][0]["drifted"],
        json!(["AGENTS.md"])
    );
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "Mine now.\n");
    let table = ground.seen(&["drift"]).await;
    assert!(table.starts_with("AGENT  PROFILE  DRIFT  FILES\npapi   default  1      AGENTS.md\n"), "{table}");
}

#[tokio::test]
async fn a_coder_with_a_private_authority_can_be_used() {
    let sim = SimCoder::start_tls(Profile::V2_32).await.unwrap();
    sim.world().add_agent("papi");
    let mut ground = Ground::new();
    let ca = ground.root.path().join("ca.pem");
    std::fs::write(&ca, CA).unwrap();
    let coder = vec![("CODER_URL", sim.url()), ("CODER_SESSION_TOKEN", TOKEN.to_owned())];
    ground.environment.clone_from(&coder);
    assert_eq!(ground.refusal(&["list"], 503).await["details"]["reason"], "unreachable");
    // The way of the system, for every program that reads it.
    ground.environment.push(("SSL_CERT_FILE", ca.display().to_string()));
    assert_eq!(names(&ground.answer(&["list"]).await, "agents"), ["papi"]);
    // The way of the configuration, for Coder alone.
    ground.environment = coder;
    let settings = format!("[fleet.coder]\nca_file = {:?}\n", ca.display().to_string());
    std::fs::write(ground.home().join("crewkit.toml"), settings).unwrap();
    assert_eq!(names(&ground.answer(&["list"]).await, "agents"), ["papi"]);
    let wrong = ground.root.path().join("wrong.pem");
    std::fs::write(&wrong, "nothing").unwrap();
    let settings = format!("[fleet.coder]\nca_file = {:?}\n", wrong.display().to_string());
    std::fs::write(ground.home().join("crewkit.toml"), settings).unwrap();
    let mut command = ground.command(&["list"]);
    let (code, _, err) = tokio::task::spawn_blocking(move || output(&mut command)).await.unwrap();
    assert!(code != 0 && err.contains("E_SETTING_INVALID") && err.contains("not PEM"), "{err}");
}

#[tokio::test]
async fn every_command_works_on_this_machine() {
    let mut ground = Ground::new();
    let root = ground.root.path().canonicalize().unwrap();
    let repository = repository(&root);
    let settings = "[fleet]\ndriver = \"napper\"\n[agents.drivers.napper]\ncommand = [\"sh\", \"-c\", \"echo up; exec sleep 1000\"]\n\
                    [fleet.roles.quick]\ndriver = \"rehearsal\"\n";
    std::fs::write(ground.home().join("crewkit.toml"), settings).unwrap();
    let served = Served::start_in(&ground.home(), &repository, &[]);
    ground.environment = vec![("CREWKIT_SERVER", served.base.clone())];

    assert_eq!(names(&ground.answer(&["projects"]).await, "projects"), ["demo"]);
    assert!(names(&ground.answer(&["roles", "demo"]).await, "roles").contains(&"quick"));
    ground.answer(&["create", "papi", "Describe this", "--project", "demo", "--role", "quick"]).await;
    assert_eq!(ground.answer(&["wait", "papi", "--timeout", "120"]).await["reached"], true);
    ground.answer(&["create", "sony", "Sleep", "--project", "demo"]).await;
    assert_eq!(
        ground.answer(&["wait", "sony", "--status", "busy", "--timeout", "120"]).await["reached"],
        true
    );
    let stopped = ground.answer(&["stop", "sony"]).await;
    assert_eq!(stopped["task"]["status"], "stopped", "{stopped}");
    assert_eq!(names(&ground.answer(&["list", "--role", "quick"]).await, "agents"), ["papi"]);
    assert_eq!(ground.answer(&["show", "papi"]).await["agent"]["project"], "demo");
    ground.answer(&["start", "papi", "Once more"]).await;
    assert_eq!(ground.answer(&["wait", "papi", "--timeout", "120"]).await["reached"], true);
    assert_eq!(ground.answer(&["history", "papi"]).await["total_count"], 2);
    assert!(ground.answer(&["log", "papi"]).await["total_count"].as_u64().unwrap() > 1);
    assert_eq!(ground.answer(&["restart", "papi"]).await["agent_name"], "papi");
    ground.refusal(&["show", "nobody"], 404).await;
    let list = ground.seen(&["list"]).await;
    assert!(list.starts_with("AGENT  STATUS") && list.contains("sony"), "{list}");
    for agent in ["papi", "sony"] {
        assert_eq!(ground.answer(&["delete", agent]).await["deleted_agent"]["name"], agent);
    }
    assert_eq!(ground.answer(&["list"]).await["total_count"], 0);
    assert!(ground.seen(&["list"]).await.starts_with("No agents yet. Create one:\n  crewkit fleet create"));
}

/// A running `crewkit metadata serve`.
struct Endpoint {
    child: Child,
    base: String,
}

impl Endpoint {
    fn start(directory: &Path, path: &str) -> Self {
        let mut command = crewkit(directory);
        command.env("PATH", path);
        Self::with(command, directory, &[])
    }

    fn with(mut command: Command, directory: &Path, arguments: &[&str]) -> Self {
        command.args(["metadata", "serve", "--listen", "127.0.0.1:0"]).args(arguments).current_dir(directory);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        let base = line.trim().strip_prefix("metadata at ").and_then(|url| url.strip_suffix("/metadata"));
        let base = base.unwrap_or_else(|| panic!("no address in {line:?}")).to_owned();
        Self { child, base }
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        self.get_with(path, &[]).await
    }

    async fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> (u16, Value) {
        let client = crewkit_agent::http_client().build().unwrap();
        let request = client.get(format!("{}{path}", self.base));
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let answer = request.send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap_or_default())
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const TASKFILE: &str = r#"version: "3"
vars:
  who: {sh: "echo counted >>calls; echo world"}
tasks:
  greeting: {desc: A greeting, meta: {include_in_list: true}, cmds: ["echo hello"]}
  number: {meta: {include_in_list: false}, cmds: ["echo 42"]}
  templated: {meta: {include_in_list: true}, cmds: ["echo {{.who}}"]}
  plain: {cmds: ["echo none"]}
"#;

#[tokio::test]
async fn metadata_is_served_with_and_without_task() {
    let path = std::env::var("PATH").unwrap();
    let has = |dir: &&str| Path::new(dir).join("task").is_file();
    let without: Vec<&str> = path.split(':').filter(|dir| !has(dir)).collect();
    let task = std::env::var("CREWKIT_TASK_DIR").ok().filter(|dir| has(&dir.as_str()));
    let with = path.split(':').find(has).map(str::to_owned).or(task);
    for task in [None, with].into_iter().collect::<std::collections::BTreeSet<_>>() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("Taskfile.yml"), TASKFILE).unwrap();
        let path =
            task.iter().map(String::as_str).chain(without.iter().copied()).collect::<Vec<_>>().join(":");
        let endpoint = Endpoint::start(dir.path(), &path);
        assert_eq!(endpoint.get("/health").await.0, 200);
        assert_eq!(endpoint.get("/nothing").await.0, 404);
        let (status, answer) = endpoint.get("/metadata").await;
        assert_eq!(status, 200);
        let fields = &answer["data"];
        assert_eq!(fields.as_object().unwrap().len(), 3, "{answer}");
        assert_eq!((&fields["greeting"]["value"], &fields["number"]["value"]), (&json!("hello"), &json!(42)));
        assert_eq!(
            fields["greeting"]["schema"],
            json!({"description": "A greeting", "include_in_list": true})
        );
        if task.is_some() {
            assert_eq!(fields["templated"]["value"], "world", "{answer}");
            let calls = std::fs::read_to_string(dir.path().join("calls")).unwrap();
            assert_eq!(calls.lines().count(), 1, "a shared variable is computed once");
        } else {
            assert!(fields["templated"]["error"].as_str().unwrap().contains("needs `task`"), "{answer}");
        }
    }
    let empty = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::start(empty.path(), &path);
    let nothing = json!({"branch": null, "sha": null, "dirty": null});
    let answer = json!({"data": {}, "meta": {"version": "1.0"}, "git": nothing});
    assert_eq!(endpoint.get("/metadata").await, (200, answer));
}

/// A web page that has its own name resolve to this machine, or that sends requests here from elsewhere, learns nothing and
/// has nothing run.
#[tokio::test]
async fn metadata_is_served_to_no_web_page() {
    let dir = tempfile::tempdir().unwrap();
    let taskfile = "tasks:\n  x: {meta: {include_in_list: true}, cmds: ['echo ran >> proof; echo secret']}\n";
    std::fs::write(dir.path().join("Taskfile.yml"), taskfile).unwrap();
    let mut command = crewkit(dir.path());
    command.env("CODER_AGENT_URL", "https://coder.example/");
    command.env("VSCODE_PROXY_URI", "https://{{port}}--main--dev--ann.apps.example");
    let endpoint = Endpoint::with(command, dir.path(), &["--allow-host", "given.example"]);
    let foreign = [
        ("Host", "evil.example"),
        ("Host", "evil.example:8000"),
        ("Host", "meta--main--dev--bob.apps.example"),
        ("Host", "127.0.0.1.evil.example"),
        ("Host", ""),
        ("Origin", "http://evil.example"),
        ("Origin", "null"),
        ("Origin", "https://coder.example.evil.example"),
    ];
    for header in foreign {
        for path in ["/metadata", "/", "/health", "/nothing"] {
            let (status, answer) = endpoint.get_with(path, &[header]).await;
            assert!(matches!(status, 400 | 403), "{header:?} {path}: {status} {answer}");
            assert!(!answer.to_string().contains("secret"), "{header:?}: {answer}");
        }
    }
    assert!(!dir.path().join("proof").exists(), "nothing was run for them");
    for host in [
        "localhost:1",
        "127.0.0.1",
        "[::1]",
        "given.example",
        "coder.example",
        "meta--main--dev--ann.apps.example",
    ] {
        let (status, answer) = endpoint.get_with("/metadata", &[("Host", host)]).await;
        assert_eq!((status, &answer["data"]["x"]["value"]), (200, &json!("secret")), "{host}: {answer}");
    }
    let mut command = crewkit(dir.path());
    command.args(["metadata", "serve", "--listen", "0.0.0.0:0"]);
    let (code, _, err) = output(&mut command);
    assert!(code != 0 && err.contains("--allow-host"), "{err}");
}

#[tokio::test]
async fn metadata_is_served_to_the_same_user_alone() {
    if !crate::doors::is_root("metadata and another user") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let taskfile = "tasks:\n  x: {meta: {include_in_list: true}, cmds: ['echo ran >> proof; echo secret']}\n";
    std::fs::write(dir.path().join("Taskfile.yml"), taskfile).unwrap();
    let endpoint = Endpoint::with(crewkit(dir.path()), dir.path(), &[]);
    let ask = |path: &str| {
        let mut command = Command::new("setpriv");
        command.args([
            "--reuid",
            "65534",
            "--regid",
            "65534",
            "--clear-groups",
            "curl",
            "-s",
            "--max-time",
            "20",
        ]);
        output(command.arg(format!("{}{path}", endpoint.base)).current_dir("/")).1
    };
    let answer = ask("/metadata");
    assert!(answer.contains("E_PEER_REFUSED") && !answer.contains("secret"), "{answer}");
    assert_eq!(ask("/health"), r#"{"status":"ok"}"#);
    assert!(!dir.path().join("proof").exists(), "nothing was run for another user");
    assert_eq!(endpoint.get("/metadata").await.0, 200);
}
