//! What agents of the fleet on this machine try, against the server as built.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::support::{Served, crewkit, output};
use crate::walk::{repository, write_pack};

/// Secrets of the server's environment that no agent may see.
const CANARIES: [(&str, &str); 5] = [
    ("LLM_API_KEY", "canary-llm-1f6e"),
    ("CODER_SESSION_TOKEN", "canary-coder-77ab"),
    ("CODER_AGENT_TOKEN", "canary-agent-0c0d"),
    ("CREWKIT_CANARY", "canary-crewkit-5b1c"),
    ("AWS_SECRET_ACCESS_KEY", "canary-cloud-93d2"),
];

/// Those of them that drivers, which may need the others, do not get.
const SECRETS: [&str; 4] = ["LLM_API_KEY", "CREWKIT_CANARY", "CODER_SESSION_TOKEN", "CODER_AGENT_TOKEN"];

/// A server of this machine's fleet with secrets around it, and a repository to work on.
struct Ground {
    root: tempfile::TempDir,
    served: Served,
}

impl Ground {
    /// `driver` is the command line that carries out tasks.
    fn new(driver: &[&str]) -> Self {
        Self::with(driver, |_| {})
    }

    /// `prepare` may change the home before the server starts.
    fn with(driver: &[&str], prepare: impl FnOnce(&Path)) -> Self {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().canonicalize().unwrap();
        let home = path.join("home");
        std::fs::create_dir(&home).unwrap();
        let repository = repository(&path);
        let settings = format!(
            "[fleet]\ndriver = \"own\"\n[agents.drivers.own]\nstdin = \"contract\"\ncommand = {driver:?}\n"
        );
        std::fs::write(home.join("crewkit.toml"), settings).unwrap();
        prepare(&home);
        // The server itself is started with a file that is open and meant for nobody else.
        std::fs::write(path.join("open"), "canary-open-41aa").unwrap();
        let own = crewkit(&home);
        let mut command = Command::new("sh");
        command.args(["-c", "exec 7<\"$1\"; shift; exec \"$@\"", "sh"]).arg(path.join("open"));
        command.arg(own.get_program()).env_clear();
        command.envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.current_dir(repository).envs(CANARIES);
        let served = Served::with(command, &[]);
        Self { root, served }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().canonicalize().unwrap().join(name)
    }

    /// `crewkit fleet` with these arguments: what it answers.
    fn fleet(&self, arguments: &[&str]) -> Value {
        let mut command: Command = crewkit(&self.path("home"));
        command.args(["--json", "fleet"]).args(arguments).env("CREWKIT_SERVER", &self.served.base);
        let (code, out, err) = output(&mut command);
        assert_eq!(code, 0, "{arguments:?}: {out} {err}");
        serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"))
    }

    /// Makes an agent, lets it do its first task, and tells where it works.
    fn agent(&self, name: &str, task: &str) -> PathBuf {
        self.fleet(&["create", name, task, "--project", "demo"]);
        assert_eq!(self.fleet(&["wait", name, "--timeout", "120"])["reached"], true);
        let entries = std::fs::read_dir(self.path("home/fleet/workspaces")).unwrap().flatten();
        let mut paths = entries.map(|entry| entry.path());
        paths.find(|path| path.file_name().unwrap().to_string_lossy().starts_with(name)).unwrap()
    }

    /// Writes a Taskfile with these fields and tells what each of them came to.
    fn metadata(&self, name: &str, workspace: &Path, fields: &[(&str, String)]) -> Value {
        let task = |command: &String| json!({"meta": {"include_in_list": true}, "cmds": [command]});
        let tasks: serde_json::Map<String, Value> =
            fields.iter().map(|(name, command)| ((*name).to_owned(), task(command))).collect();
        // JSON is YAML.
        let taskfile = json!({"version": "3", "tasks": tasks}).to_string();
        std::fs::write(workspace.join("Taskfile.yml"), taskfile).unwrap();
        self.fleet(&["show", name])["agent"]["metadata"].take()
    }
}

#[test]
fn a_taskfile_that_an_agent_wrote_sees_its_workspace_and_nothing_else() {
    if !crewkit_agent::confine::available() {
        eprintln!("NOT TRIED: this kernel cannot confine, so that no Taskfile is run at all");
        return;
    }
    let ground = Ground::new(&["true"]);
    let workspace = ground.agent("papi", "Nothing");
    let secret = ground.path("secret");
    std::fs::write(&secret, "canary-file-20be").unwrap();
    let port = ground.served.base.rsplit(':').next().unwrap().to_owned();
    let (outside, inside) = (ground.path("outside"), workspace.join("inside"));
    let home = ground.path("home");
    let fields = [
        ("works", "cat README.md".to_owned()),
        ("scratch", "echo x > \"$TMPDIR/x\"; echo x > \"$HOME/y\"; echo fine".to_owned()),
        ("environment", "env".to_owned()),
        ("processes", "cat /proc/*/environ | tr '\\0' '\\n'; true".to_owned()),
        ("secret", format!("cat '{}'", secret.display())),
        ("database", format!("ls -a '{0}' '{0}/fleet'", home.display())),
        ("outside", format!("echo x > '{}'", outside.display())),
        ("inside", format!("echo x > '{}'", inside.display())),
        ("link", format!("ln -s '{}' link; cat link", secret.display())),
        ("network", format!("bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port} && echo reached'")),
        ("terminal", "echo hello > /dev/tty && echo reached".to_owned()),
    ];
    let metadata = ground.metadata("papi", &workspace, &fields);
    let readme = std::fs::read_to_string(workspace.join("README.md")).unwrap();
    assert_eq!(metadata["works"]["value"], readme.trim(), "{metadata:#}");
    assert_eq!(metadata["scratch"]["value"], "fine", "{metadata:#}");
    for field in ["secret", "database", "outside", "inside", "link", "network", "terminal"] {
        assert_eq!(metadata[field]["value"], Value::Null, "{field}: {metadata:#}");
        assert_ne!(metadata[field]["error"], Value::Null, "{field}: {metadata:#}");
    }
    assert!(!outside.exists() && !inside.exists());
    let all = metadata.to_string() + &ground.fleet(&["list"]).to_string();
    assert!(!all.contains("canary"), "{metadata:#}");
    let names = metadata["environment"]["value"].as_str().unwrap();
    let allowed = ["PATH", "HOME", "TMPDIR", "TASK_TEMP_DIR", "NO_COLOR", "PWD", "SHLVL", "OLDPWD", "_"];
    for line in names.lines() {
        let name = line.split('=').next().unwrap();
        assert!(allowed.contains(&name) || name.starts_with("CREWKIT_"), "{line}");
    }
}

/// What a driver tells about itself, in files of its workspace. Its parent is the shim.
const TELLS: &str = r#"
    set -- /proc/$$/fd/*; for fd; do [ -e "$fd" ] && echo "$fd"; done > fds
    env > env; tr '\0' '\n' < /proc/$PPID/environ > shim-env
    cat /proc/$$/stat > stat; cat /proc/$PPID/stat > shim-stat
    (exec 3<>/dev/tty) 2>/dev/null && echo yes > tty
    env -i setsid sh -c 'sleep 86399 & exec sleep 86399' & sleep 0.2
    echo done
"#;

/// The fields of a `stat` after the name: state, parent, group, session, terminal…
fn stat(path: &Path) -> Vec<i64> {
    let text = std::fs::read_to_string(path).unwrap();
    text.rsplit_once(") ").unwrap().1.split(' ').skip(1).filter_map(|field| field.parse().ok()).collect()
}

/// The number of processes with this command line.
fn processes(line: &str) -> usize {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("cmdline")).ok());
    lines.filter(|found| found == line).count()
}

#[test]
fn a_driver_has_a_session_of_its_own_and_nothing_that_was_the_servers() {
    let ground = Ground::new(&["sh", "-c", TELLS]);
    let workspace = ground.agent("papi", "Tell");
    let told = |name: &str| std::fs::read_to_string(workspace.join(name)).unwrap();
    let numbers: Vec<String> =
        told("fds").split_whitespace().map(|path| path.rsplit('/').next().unwrap().to_owned()).collect();
    assert_eq!(numbers, ["0", "1", "2"], "no descriptors but the streams");
    assert!(!workspace.join("tty").exists(), "no terminal");
    let server = stat(Path::new(&format!("/proc/{}/stat", ground.served.child.id())));
    let (driver, shim) = (stat(&workspace.join("stat")), stat(&workspace.join("shim-stat")));
    assert_ne!(driver[2], server[2], "not the session of the server");
    assert_eq!((driver[2], driver[3]), (shim[2], 0), "that of the shim, without a terminal");
    // Whoever is started without an environment is still known by its ancestors.
    for (who, environment) in [("driver", told("env")), ("shim", told("shim-env"))] {
        let is_marked = environment.lines().any(|line| line.starts_with("CREWKIT_RUN=agent-"));
        assert!(is_marked, "{who}: {environment}");
        for (name, value) in CANARIES.into_iter().filter(|(name, _)| SECRETS.contains(name)) {
            assert!(!environment.contains(value), "{who} sees {name}");
        }
    }
    assert_eq!(processes("sleep\086399\0"), 0, "what it started without a trace has ended with it");
}

/// Pipes in the place of files of the kit: whoever reads them must not wait.
#[test]
fn a_link_out_of_a_workspace_leads_no_kit_there() {
    let ground = Ground::with(&["true"], |home| write_pack(home, "Be kind.\n"));
    let outside = ground.path("outside");
    std::fs::create_dir(&outside).unwrap();
    for (agent, link) in [("papi", "AGENTS.md"), ("sony", ".codex")] {
        let workspace = ground.agent(agent, "Nothing");
        let precious = outside.join(format!("{agent}.md"));
        std::fs::write(&precious, "mine").unwrap();
        let _ = std::fs::remove_file(workspace.join(link));
        let _ = std::fs::remove_dir_all(workspace.join(link));
        let target = if link == "AGENTS.md" { &precious } else { &outside };
        std::os::unix::fs::symlink(target, workspace.join(link)).unwrap();
    }
    write_pack(&ground.path("home"), "Be kinder.\n");
    for arguments in
        [&["fleet", "equip", "--all"][..], &["fleet", "equip", "--agent", "papi"], &["fleet", "drift"]]
    {
        output(crewkit(&ground.path("home")).args(arguments));
    }
    for agent in ["papi", "sony"] {
        ground.fleet(&["delete", agent]);
    }
    let mut left: Vec<_> =
        std::fs::read_dir(&outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["papi.md", "sony.md"], "nothing came, nothing went");
    for agent in ["papi", "sony"] {
        assert_eq!(std::fs::read_to_string(outside.join(format!("{agent}.md"))).unwrap(), "mine");
    }
}

#[test]
fn pipes_in_place_of_kit_files_hold_nobody_up() {
    let ground = Ground::with(&["true"], |home| write_pack(home, "Be kind.\n"));
    for name in ["papi", "sony"] {
        let workspace = ground.agent(name, "Nothing");
        assert_eq!(std::fs::read_to_string(workspace.join("AGENTS.md")).unwrap().trim(), "Be kind.");
        if name == "papi" {
            std::fs::remove_file(workspace.join("AGENTS.md")).unwrap();
            let pipe = workspace.join("AGENTS.md");
            rustix::fs::mkfifoat(rustix::fs::CWD, pipe, rustix::fs::Mode::RWXU).unwrap();
        }
    }
    let (done, waiting) = std::sync::mpsc::channel();
    let ground = &ground;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            ground.fleet(&["show", "papi"]);
            ground.fleet(&["list"]);
            let drift = ground.fleet(&["drift"]);
            // What cannot be read is told; the others are as they were.
            let row = |name: &str| {
                let rows = drift["agents"].as_array().unwrap();
                rows.iter().find(|row| row["agent_name"] == name).cloned().unwrap()
            };
            let papi = row("papi");
            assert!(papi["drift_count"].as_u64() > Some(0) || papi["error"].is_string(), "{drift:#}");
            assert_eq!((&row("sony")["drift_count"], &row("sony")["error"]), (&json!(0), &Value::Null));
            let mut equip = crewkit(&ground.path("home"));
            equip.args(["--json", "fleet", "equip", "--all"]).env("CREWKIT_SERVER", &ground.served.base);
            let (_, out, err) = output(&mut equip);
            let report: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
            let sony = report["agents"].as_array().unwrap().iter().find(|row| row["agent_name"] == "sony");
            assert_eq!(sony.unwrap()["outcome"], "unchanged", "{report:#}");
            ground.fleet(&["delete", "papi"]);
            done.send(()).unwrap();
        });
        let ended = waiting.recv_timeout(std::time::Duration::from_mins(2));
        if ended.is_err() {
            // Lets the thread end, which waits for the server.
            let pid = rustix::process::Pid::from_child(&ground.served.child);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            panic!("somebody waits for a pipe, or what they say is wrong");
        }
    });
}
