//! A server that is killed in the middle of a change: at each write and sync of its store and each start of a process.
//!
//! The next server finds everything in a state from which the same change, a stop and a deletion work, and nothing that was
//! answered is missing. The short form kills at the first of each; `CREWKIT_KILL_SWEEP=N` goes on to the N-th.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{PATIENCE, Served};
use crate::walk::repository;

/// A driver that takes for ever if it is told to, and otherwise is done at once.
const DRIVER: &str = r#"
[fleet]
driver = "own"
[agents.drivers.own]
stdin = "contract"
command = ["sh", "-c", "head -n 1 | grep -q slow && exec sleep 86399; echo done"]
"#;

const CHANGES: [&str; 9] = [
    "agent_start",
    "agent_stop",
    "run_resume",
    "run_delete",
    "create_agent",
    "start_agent_task",
    "stop_agent_task",
    "restart_agent",
    "delete_agent",
];

/// System calls at which the server is killed. Git and the shims make their own; only those of the server count.
const CALLS: [&str; 3] = ["pwrite64", "fdatasync", "clone,clone3,vfork"];

struct Ground {
    root: tempfile::TempDir,
    served: Served,
    run: Option<Value>,
}

impl Ground {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().canonicalize().unwrap();
        for directory in ["home", "work"] {
            std::fs::create_dir(path.join(directory)).unwrap();
        }
        std::fs::write(path.join("home/crewkit.toml"), DRIVER).unwrap();
        repository(&path);
        let served = serve(&path);
        Self { root, served, run: None }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().canonicalize().unwrap().join(name)
    }

    async fn ask(&self, operation: &str, arguments: Value) -> Result<Value, String> {
        let client = crewkit_agent::http_client().build().unwrap();
        let address = format!("{}/api/ops/{operation}", self.served.base);
        let answer = client.post(address).json(&arguments).send().await.map_err(|error| error.to_string())?;
        let is_good = answer.status().is_success();
        let body: Value = answer.json().await.map_err(|error| error.to_string())?;
        if is_good { Ok(body) } else { Err(body.to_string()) }
    }

    /// Brings the home to where `change` can be asked for.
    async fn prepare(&mut self, change: &str) {
        match change {
            "agent_stop" | "run_resume" | "run_delete" => {
                self.run = Some(self.change("agent_start").await.unwrap()["agent_id"].clone());
                self.until_done("agent_start").await;
                if change == "run_resume" {
                    self.change("agent_stop").await.unwrap();
                    self.until_done("agent_stop").await;
                }
            }
            "start_agent_task" => {
                let new = json!({"name": "papi", "project": "demo", "spec": "quick"});
                self.ask("create_agent", new).await.unwrap();
                self.until_done("stop_agent_task").await;
            }
            "stop_agent_task" | "restart_agent" | "delete_agent" => {
                self.change("create_agent").await.unwrap();
                self.until_done("create_agent").await;
            }
            _ => {}
        }
    }

    async fn change(&self, change: &str) -> Result<Value, String> {
        let papi = json!({"agent_name": "papi"});
        let arguments = match change {
            "agent_start" => {
                json!({"contract": "slow", "driver": "own", "workdir": self.path("work"), "key": "k"})
            }
            "agent_stop" => json!({"agent_id": self.run}),
            "run_resume" | "run_delete" => json!({"run_id": self.run}),
            "create_agent" => json!({"name": "papi", "project": "demo", "spec": "slow", "key": "k"}),
            "start_agent_task" => json!({"agent_name": "papi", "task_description": "slow", "key": "t"}),
            _ => papi,
        };
        self.ask(change, arguments).await
    }

    /// Whether what `change` asks for is so.
    async fn is_done(&self, change: &str) -> bool {
        let runs = self.ask("run_list", json!({})).await.unwrap_or_default();
        let agents = self.ask("list_agents", json!({"include_metadata": false})).await.unwrap_or_default();
        let (run, agent) = (&runs["runs"][0], &agents["agents"][0]);
        let works = self.processes() > 0;
        match change {
            "agent_start" | "run_resume" => run["status"] == "running" && works,
            "agent_stop" => run["status"] == "stopped" && !works,
            "run_delete" => runs["runs"] == json!([]) && !works,
            "create_agent" | "start_agent_task" => agent["status"] == "busy" && works,
            "stop_agent_task" | "restart_agent" => agent["status"] == "idle" && !works,
            _ => agents["agents"] == json!([]) && !works,
        }
    }

    async fn until_done(&self, change: &str) {
        let began = Instant::now();
        while !self.is_done(change).await {
            assert!(began.elapsed() < PATIENCE, "{change} does not come to its end");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// How many processes work on something of this home.
    fn processes(&self) -> usize {
        let (work, workspaces) = (self.path("work"), self.path("home/fleet/workspaces"));
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let directories = entries.filter_map(|entry| std::fs::read_link(entry.path().join("cwd")).ok());
        directories.filter(|path| path.starts_with(&work) || path.starts_with(&workspaces)).count()
    }

    fn is_alive(&mut self) -> bool {
        self.served.child.try_wait().unwrap().is_none()
    }
}

fn serve(root: &Path) -> Served {
    Served::start_in(&root.join("home"), &root.join("demo"), &[])
}

/// Kills the server at the `nth` time that one of its threads makes a call.
struct Killer(Child);

impl Killer {
    fn attach(server: &Child, calls: &str, nth: usize) -> Self {
        let mut command = Command::new("strace");
        let threads = std::fs::read_dir(format!("/proc/{}/task", server.id())).unwrap().flatten();
        let mut count = 0;
        for thread in threads {
            command.arg("-p").arg(thread.file_name());
            count += 1;
        }
        command.args(["-o", "/dev/null", "-e", &format!("trace={calls}")]);
        command.args(["-e", &format!("inject={calls}:signal=SIGKILL:when={nth}")]);
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let attached = lines.map_while(Result::ok).filter(|line| line.ends_with(" attached"));
        assert_eq!(attached.take(count).count(), count, "strace attaches to every thread");
        Self(child)
    }
}

impl Drop for Killer {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        // Ends by itself with the server.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
        let _ = self.0.wait();
    }
}

/// Asks for `change`, kills the server on the way, and lets the next one finish. Returns whether there was a kill.
async fn kill_within(change: &str, calls: &str, nth: usize) -> bool {
    let what = format!("{change}, killed at {calls} number {nth}");
    let mut ground = Ground::new();
    ground.prepare(change).await;
    let killer = Killer::attach(&ground.served.child, calls, nth);
    let answer = ground.change(change).await;
    let began = Instant::now();
    while ground.is_alive() && !ground.is_done(change).await {
        assert!(began.elapsed() < PATIENCE, "{what}: neither done nor killed: {answer:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let was_killed = !ground.is_alive();
    drop(killer);
    if was_killed {
        let path = ground.root.path().canonicalize().unwrap();
        ground.served = serve(&path);
    }
    let began = Instant::now();
    let mut last = Ok(Value::Null);
    while !ground.is_done(change).await {
        assert!(began.elapsed() < PATIENCE, "{what}: not done by the next server: {last:?}");
        last = ground.change(change).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    if let (Ok(before), "agent_start" | "create_agent" | "start_agent_task") = (&answer, change) {
        // The same key again finds what was answered.
        let again = ground.change(change).await.unwrap();
        for id in ["/agent_id", "/agent/workspace_id", "/task/id"] {
            assert_eq!(before.pointer(id), again.pointer(id), "{what}");
        }
    }
    let runs = ground.ask("run_list", json!({})).await.unwrap();
    let most = if change == "start_agent_task" { 2 } else { 1 };
    assert!(runs["runs"].as_array().unwrap().len() <= most, "{what}: {runs}");
    // Whatever it came to, it can be ended and removed.
    for run in runs["runs"].as_array().unwrap() {
        let _ = ground.ask("agent_stop", json!({"agent_id": run["id"]})).await;
    }
    if ground.ask("list_agents", json!({})).await.unwrap()["agents"] != json!([]) {
        ground
            .ask("delete_agent", json!({"agent_name": "papi"}))
            .await
            .unwrap_or_else(|error| panic!("{what}: {error}"));
    }
    for run in ground.ask("run_list", json!({})).await.unwrap()["runs"].as_array().unwrap() {
        ground
            .ask("run_delete", json!({"run_id": run["id"]}))
            .await
            .unwrap_or_else(|error| panic!("{what}: {error}"));
    }
    ground.until_done("delete_agent").await;
    ground.until_done("run_delete").await;
    was_killed
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_a_killed_server_was_at_can_be_finished_stopped_and_removed() {
    if !Command::new("strace").arg("--version").output().is_ok_and(|output| output.status.success()) {
        eprintln!("NOT TRIED: there is no `strace` on this machine");
        return;
    }
    let most: usize =
        std::env::var("CREWKIT_KILL_SWEEP").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let mut kills = 0;
    for change in CHANGES {
        for calls in CALLS {
            for nth in 1..=most {
                if !kill_within(change, calls, nth).await {
                    break;
                }
                kills += 1;
            }
        }
    }
    eprintln!("{kills} kills");
    assert!(kills >= CHANGES.len(), "every change writes something: {kills}");
}
