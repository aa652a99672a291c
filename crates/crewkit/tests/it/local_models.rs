//! Agents of this machine with a model behind them: the built-in loop on an OpenAI-compatible endpoint, and the real Claude Code
//! and Codex.
//!
//! The latter two come from the npm registry and are no part of this repository: `CREWKIT_REAL_CLIENTS` names a directory that
//! has them (`node_modules/.bin` of an installation). Without it their tests say that they were skipped.

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crewkit_testkit::model::{Request, ScriptedModel, Turn};
use crewkit_testkit::real_client;
use serde_json::{Value, json};

use crate::support::Served;
use crate::walk::{Mcp, repository};

const MADE: &str = "made.txt";
const TASK: &str = "Write forty-two into made.txt.";

/// Holds the model's first reply back until the agent was seen at work.
#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let longest = Duration::from_mins(2);
        drop(self.opened.wait_timeout_while(self.open.lock().unwrap(), longest, |open| !*open).unwrap());
    }
}

/// Creates an agent over MCP on a server with these settings, sees it at work and done, and looks at all it leaves behind.
async fn lives(
    settings: impl FnOnce(&ScriptedModel, &Path) -> String,
    call: (&'static str, Value),
    last: Turn,
) {
    let root = tempfile::tempdir().unwrap();
    let root = root.path().canonicalize().unwrap();
    let (home, repository) = (root.join("home"), repository(&root));
    std::fs::create_dir(&home).unwrap();
    let gate = Arc::new(Gate::default());
    let held = Arc::clone(&gate);
    let model = ScriptedModel::start(move |request: &Request| {
        // What else waits for this worker goes on elsewhere.
        tokio::task::block_in_place(|| held.pass());
        match request.turn {
            0 => Turn::call(call.0, &call.1),
            _ => last.clone(),
        }
    })
    .await;
    std::fs::write(home.join("crewkit.toml"), settings(&model, &home)).unwrap();
    let served = Served::start_in(&home, &repository, &[]);
    let mcp = Mcp::connect(&served.base).await;

    let order = json!({"name": "papi", "project": "demo", "spec": TASK});
    let created = mcp.call("create_agent", order).await;
    mcp.until("papi", "busy").await;
    gate.open();
    mcp.until("papi", "idle").await;
    let log = mcp.call("show_agent_log", json!({"agent_name": "papi", "page_size": 100})).await;
    let history = mcp.call("show_agent_task_history", json!({"agent_name": "papi"})).await;
    let task = &history["tasks"][0];
    assert_eq!(
        (&history["total_count"], &task["status"]),
        (&json!(1), &json!("completed")),
        "{history} {log:#}"
    );
    assert!(task.to_string().contains("It is written."), "{history}");
    assert!(log.to_string().contains(MADE), "{log:#}");
    let shown = mcp.call("show_agent", json!({"agent_name": "papi"})).await["agent"].clone();
    let git = &shown["git"];
    assert_eq!((&git["branch"], &git["dirty"]), (&json!("crewkit/papi"), &json!(true)), "{shown}");
    let message = created["message"].as_str().unwrap();
    let workspace = message.split("it works in ").nth(1).and_then(|rest| rest.split(" on branch").next());
    let made = std::fs::read_to_string(Path::new(workspace.unwrap()).join(MADE)).unwrap();
    assert_eq!(made.trim(), "forty-two");
    assert_eq!(model.violations(), [""; 0]);
    assert_eq!(served.terminate(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn an_agent_works_with_a_model() {
    let settings = |model: &ScriptedModel, _: &Path| {
        format!("[llm]\nendpoint = \"{}\"\nmodel = \"scripted\"\n[fleet]\ndriver = \"loop\"\n", model.url())
    };
    let call = ("write_file", json!({"path": MADE, "content": "forty-two"}));
    lives(settings, call, Turn::complete("It is written.")).await;
}

/// A driver with a command line, the environment it needs, and what is the same for both.
fn driver(name: &str, command: &[&str], environment: &[(&str, &str)]) -> String {
    let environment: Vec<_> = environment.iter().map(|(name, value)| format!("{name} = {value:?}")).collect();
    format!(
        "[fleet]\ndriver = \"{name}\"\n[agents.drivers.{name}]\ncommand = {command:?}\nstdin = \"contract\"\n\
         format = \"{name}\"\nenv = {{ {} }}\n",
        environment.join(", ")
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn an_agent_works_with_claude_code() {
    let Some(claude) = real_client("claude") else { return };
    let settings = |model: &ScriptedModel, home: &Path| {
        let command = [claude.to_str().unwrap(), "-p", "--output-format", "stream-json", "--verbose"];
        let environment = [
            ("HOME", home.to_str().unwrap()),
            ("ANTHROPIC_BASE_URL", model.base()),
            ("ANTHROPIC_API_KEY", "not-a-key"),
            ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
        ];
        driver("claude", &[&command[..], &["--allowedTools", "Bash"]].concat(), &environment)
    };
    let call = ("Bash", json!({"command": "echo forty-two > made.txt"}));
    lives(settings, call, Turn::say("It is written.")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn an_agent_works_with_codex() {
    let Some(codex) = real_client("codex") else { return };
    let settings = |model: &ScriptedModel, home: &Path| {
        let provider = format!(
            "model = \"scripted\"\nmodel_provider = \"scripted\"\n[model_providers.scripted]\nname = \"scripted\"\n\
             base_url = \"{}/v1\"\nwire_api = \"responses\"\nrequest_max_retries = 0\nstream_max_retries = 0\n",
            model.base()
        );
        std::fs::write(home.join("config.toml"), provider).unwrap();
        let command = [codex.to_str().unwrap(), "exec", "--json", "--sandbox", "workspace-write", "-"];
        let home = home.to_str().unwrap();
        driver("codex", &command, &[("HOME", home), ("CODEX_HOME", home)])
    };
    let call = ("exec_command", json!({"cmd": "echo forty-two > made.txt"}));
    lives(settings, call, Turn::say("It is written.")).await;
}
