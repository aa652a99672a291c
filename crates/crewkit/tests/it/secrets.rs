//! Secrets of clients: used by their own work, kept in memory alone, and waited for after the server was killed.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crewkit_testkit::model::{Request, ScriptedModel, Turn};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::server::{Background, ask, is_alive, signal, start};
use crate::support::{crewkit, output, wait_until};
use crate::walk::repository;

/// A word in every secret of these tests, and nowhere else on the machine.
const CANARY: &str = "abracadabra";

/// A model that wants one of `keys`. It answers once `is_open`; until then, requests are in flight.
async fn model(keys: &'static [&'static str], is_open: &Arc<AtomicBool>) -> ScriptedModel {
    let is_open = Arc::clone(is_open);
    ScriptedModel::start(move |request: &Request| {
        if !keys.contains(&request.key.as_str()) {
            return Turn::status(401, "a key is wanted");
        }
        let answer = Turn::complete(&format!("served to {}", request.key.replace(CANARY, "holder of")));
        if is_open.load(Ordering::SeqCst) { answer } else { answer.after(Duration::from_hours(1)) }
    })
    .await
}

/// A client with settings of its own.
struct Client<'a> {
    home: &'a Path,
    asker: String,
}

impl<'a> Client<'a> {
    fn new(home: &'a Path, directory: &Path, endpoint: Option<(&str, &str)>) -> Self {
        let settings = match endpoint {
            Some((url, key)) => json!({"llm.endpoint": url, "llm.model": "m", "llm.api_key": key}),
            None => json!({}),
        };
        let hello = json!({
            "build": "0.0.0", "protocol": 1, "directory": directory, "settings": settings,
            "environment": {"PATH": "/usr/bin:/bin", "ANTHROPIC_API_KEY": format!("{CANARY}-unused")},
        });
        let (status, answer) = ask(home, "POST", "/api/hello", None, &hello);
        assert_eq!(status, 200, "{answer}");
        Self { home, asker: answer["asker"].as_str().unwrap().to_owned() }
    }

    fn try_op(&self, name: &str, body: &Value) -> (u16, Value) {
        let (status, answer) = ask(self.home, "POST", &format!("/api/ops/{name}"), Some(&self.asker), body);
        assert!(!answer.to_string().contains(CANARY), "{name} tells a secret: {answer}");
        (status, answer)
    }

    fn op(&self, name: &str, body: &Value) -> Value {
        let (status, answer) = self.try_op(name, body);
        assert_eq!(status, 200, "{name}: {answer}");
        answer
    }

    fn start(&self) -> String {
        let started = self.op("agent_start", &json!({"contract": "Tell"}));
        started["agent_id"].as_str().unwrap().to_owned()
    }

    fn status(&self, run: &str) -> Value {
        self.op("agent_status", &json!({"agent_ids": [run]}))["result"][0].clone()
    }

    fn waits(&self, run: &str) -> bool {
        let status = self.status(run);
        status["status"] == "running" && status["phase"] == "waiting"
    }

    fn summary(&self, run: &str) -> String {
        let waited = self.op("agent_wait", &json!({"agent_ids": [run], "timeout_seconds": 60}));
        assert_eq!(waited["result"][0]["status"], "completed", "{waited}");
        waited["result"][0]["summary"].as_str().unwrap().to_owned()
    }

    fn agent(&self) -> Value {
        self.op("show_agent", &json!({"agent_name": "papi"}))["agent"].clone()
    }
}

/// Fails if a secret is in a file below `directory` but the one made for secrets, or on a command line.
fn assert_no_canary(directory: &Path) {
    fn scan(directory: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(directory).unwrap().flatten() {
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            if kind.is_dir() {
                scan(&path, found);
            } else if kind.is_file() && path.file_name().unwrap() != "secrets.json" {
                let bytes = std::fs::read(&path).unwrap_or_default();
                if bytes.windows(CANARY.len()).any(|window| window == CANARY.as_bytes()) {
                    found.push(path.display().to_string());
                }
            }
        }
    }
    let mut found = Vec::new();
    scan(directory, &mut found);
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        if line.windows(CANARY.len()).any(|window| window == CANARY.as_bytes()) {
            found.push(process.path().display().to_string());
        }
    }
    assert_eq!(found, Vec::<String>::new());
}

fn config_secret(home: &Path, arguments: &[&str], input: &str) -> (i32, String) {
    let mut command: Command = crewkit(home);
    command.args(["config", "secret"]).args(arguments);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let ended = child.wait_with_output().unwrap();
    (ended.status.code().unwrap(), String::from_utf8(ended.stdout).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn work_whose_key_died_with_the_server_waits_for_it_and_goes_on() {
    let is_open = Arc::new(AtomicBool::new(false));
    let first = model(&["abracadabra-one", "abracadabra-new"], &is_open).await;
    let second = model(&["abracadabra-two"], &is_open).await;
    let root = tempfile::tempdir().unwrap();
    let project = repository(root.path());
    let server = Background::with(|_| ());
    let home = server.home();
    let with_key = |url: &str, key: &str| Client::new(home, &project, Some((url, key)));
    let one = with_key(&first.url(), "abracadabra-one");
    let two = with_key(&second.url(), "abracadabra-two");
    let runs: Vec<String> = (0..4).map(|_| one.start()).collect();
    let of_two = two.start();
    one.op("create_agent", &json!({"name": "papi", "project": "demo", "role": "coder", "spec": "Tell"}));
    wait_until("work at the models", || first.in_flight() == 5 && second.in_flight() == 1);
    assert_no_canary(home);
    let killed = server.pid();
    signal(killed, Signal::KILL);
    wait_until("the end of the server", || !is_alive(killed));
    is_open.store(true, Ordering::SeqCst);

    // A client without keys starts the next server: everything waits, and says for what.
    assert_eq!(start(&mut crewkit(home)), json!({"ready": true}));
    let nobody = Client::new(home, &project, None);
    for run in runs.iter().chain([&of_two]) {
        wait_until("a wait for the key", || nobody.waits(run));
    }
    let status = nobody.status(&runs[0]);
    assert_eq!(status["waits_for"], json!({"secret": [{"name": "llm.api_key", "of": first.url()}]}));
    assert!(
        status["recent_output"].as_str().unwrap().contains("It waits for the secret `llm.api_key`"),
        "{status}"
    );
    let output_of_run = nobody.op("agent_output", &json!({"agent_id": runs[0]})).to_string();
    assert!(output_of_run.contains("crewkit config secret set 'llm.api_key'"), "{output_of_run}");
    let (code, shown, _) = output(crewkit(home).args(["runs", "show", &runs[0]]));
    assert!(code == 0 && shown.contains("waits for secret llm.api_key"), "{shown}");
    wait_until("the agent's wait", || nobody.agent()["needs_attention"] == true);
    let agent = nobody.agent();
    assert_eq!(agent["status"], "busy", "{agent}");
    assert!(agent.to_string().contains(&format!("`llm.api_key` of {}", first.url())), "{agent}");
    let tasks = nobody.op("show_agent_task_history", &json!({"agent_name": "papi"}));
    assert_eq!(tasks["tasks"][0]["phase"], "waiting", "{tasks}");

    // What waits can be stopped and deleted.
    nobody.op("agent_stop", &json!({"agent_id": runs[2]}));
    assert_eq!(nobody.status(&runs[2])["reason"], "requested");
    nobody.op("run_delete", &json!({"run_id": runs[3]}));
    assert_eq!(nobody.status(&runs[3])["status"], Value::Null);

    // Another key for the same address: only if somebody says so.
    let (refused, problem) = nobody.try_op("run_resume", &json!({"run_id": runs[1]}));
    assert_eq!((refused, problem["code"].as_str()), (409, Some("E_SECRET_MISSING")), "{problem}");
    let elsewhere = with_key(&second.url(), "abracadabra-new");
    assert_eq!(elsewhere.try_op("run_resume", &json!({"run_id": runs[1]})).0, 409, "another address");
    let rotated = with_key(&first.url(), "abracadabra-new");
    let own = rotated.start();
    assert_eq!(rotated.summary(&own), "served to holder of-new");
    assert!(nobody.waits(&runs[0]) && nobody.waits(&runs[1]));
    rotated.op("run_resume", &json!({"run_id": runs[1]}));
    assert_eq!(nobody.summary(&runs[1]), "served to holder of-new");
    assert!(nobody.waits(&runs[0]));
    assert_eq!(nobody.agent()["status"], "busy");

    // The client that has the key says hello, and nothing else.
    let _back = with_key(&first.url(), "abracadabra-one");
    assert_eq!(nobody.summary(&runs[0]), "served to holder of-one");
    wait_until("the end of the agent's task", || nobody.agent()["status"] == "idle");
    let tasks = nobody.op("show_agent_task_history", &json!({"agent_name": "papi"}));
    assert!(tasks["tasks"][0].to_string().contains("served to holder of-one"), "{tasks}");

    // A key that is kept in the home.
    assert!(nobody.waits(&of_two));
    let (code, _) = config_secret(home, &["set", "the key of two"], "abracadabra-two\n");
    assert_eq!(code, 0);
    assert_eq!(nobody.summary(&of_two), "served to holder of-two");
    assert_eq!(config_secret(home, &["list"], ""), (0, "the key of two\n".to_owned()));
    let mode = std::fs::metadata(home.join("secrets.json")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(config_secret(home, &["remove", "the key of two"], "").0, 0);
    assert_eq!(config_secret(home, &["list"], "").1.trim(), "");

    nobody.op("events", &json!({}));
    assert_no_canary(home);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_goes_on_with_another_key_when_its_restart_brings_one() {
    let is_open = Arc::new(AtomicBool::new(false));
    let model = model(&["abracadabra-old", "abracadabra-new"], &is_open).await;
    let root = tempfile::tempdir().unwrap();
    let project = repository(root.path());
    let server = Background::with(|_| ());
    let home = server.home();
    let old = Client::new(home, &project, Some((&model.url(), "abracadabra-old")));
    old.op("create_agent", &json!({"name": "papi", "project": "demo", "role": "coder", "spec": "Tell"}));
    wait_until("work at the model", || model.in_flight() == 1);
    let killed = server.pid();
    signal(killed, Signal::KILL);
    wait_until("the end of the server", || !is_alive(killed));
    is_open.store(true, Ordering::SeqCst);
    assert_eq!(start(&mut crewkit(home)), json!({"ready": true}));
    let new = Client::new(home, &project, Some((&model.url(), "abracadabra-new")));
    wait_until("the agent's wait", || new.agent()["needs_attention"] == true);
    new.op("restart_agent", &json!({"agent_name": "papi"}));
    wait_until("the end of the task", || new.agent()["status"] == "idle");
    let said = || {
        let tasks = new.op("show_agent_task_history", &json!({"agent_name": "papi"}));
        tasks["tasks"][0]["message"].as_str().unwrap().to_owned()
    };
    assert_eq!(said(), "served to holder of-new");
    // Its settings are those of the client that restarted it, whoever gives it a task, also after another restart.
    let killed = server.pid();
    signal(killed, Signal::KILL);
    wait_until("the end of the server", || !is_alive(killed));
    assert_eq!(start(&mut crewkit(home)), json!({"ready": true}));
    let old = Client::new(home, &project, Some((&model.url(), "abracadabra-old")));
    old.op("start_agent_task", &json!({"agent_name": "papi", "task_description": "Tell again"}));
    wait_until("the wait of the new task", || old.agent()["needs_attention"] == true);
    assert_eq!(old.agent()["status"], "busy");
    let _back = Client::new(home, &project, Some((&model.url(), "abracadabra-new")));
    wait_until("the end of the second task", || old.agent()["status"] == "idle");
    assert_no_canary(home);

    assert_eq!(model.requests(), 3, "one that was cut off, and one for each task");
}
