//! The way of a newcomer: start the server in a repository, make an agent over MCP, watch it work, equip it, delete it.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::support::{Served, crewkit, output};

/// An MCP client with a session.
pub(crate) struct Mcp {
    client: reqwest::Client,
    base: String,
    session: String,
}

impl Mcp {
    pub(crate) async fn connect(base: &str) -> Self {
        let client = crewkit_agent::http_client().build().unwrap();
        let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "walk", "version": "1"},
        }});
        let answer = client
            .post(format!("{base}/mcp"))
            .header("Accept", "application/json, text/event-stream")
            .json(&hello)
            .send()
            .await
            .unwrap();
        let session = answer.headers()["mcp-session-id"].to_str().unwrap().to_owned();
        Self { client, base: base.to_owned(), session }
    }

    /// Calls a tool; the answer must not be an error unless `tolerant`.
    pub(crate) async fn call(&self, tool: &str, arguments: Value) -> Value {
        let result = self.try_call(tool, arguments).await;
        assert_ne!(result["isError"], true, "{tool}: {result}");
        result["structuredContent"].clone()
    }

    async fn try_call(&self, tool: &str, arguments: Value) -> Value {
        let answer = self.request(tool, &arguments).send().await.unwrap();
        let text = answer.text().await.unwrap();
        let data = text.lines().filter_map(|line| line.strip_prefix("data:")).chain([text.as_str()]);
        let parsed = data.filter_map(|data| serde_json::from_str::<Value>(data).ok());
        let mut found = parsed.filter(|message| message["id"] == 2);
        found.next().unwrap_or_else(|| panic!("no answer in {text}"))["result"].clone()
    }

    /// A call that is not sent yet.
    pub(crate) fn request(&self, tool: &str, arguments: &Value) -> reqwest::RequestBuilder {
        let message = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": tool, "arguments": arguments}});
        self.client
            .post(format!("{}/mcp", self.base))
            .header("Accept", "application/json, text/event-stream")
            .header("Mcp-Session-Id", &self.session)
            .json(&message)
    }

    pub(crate) async fn until(&self, agent: &str, status: &str) {
        let waited = self
            .call("wait_for_agent", json!({"agent_name": agent, "status": status, "timeout_seconds": 120}))
            .await;
        assert_eq!(waited["reached"], true, "{waited}");
    }
}

fn git(dir: &Path, arguments: &[&str]) -> String {
    let (code, out, err) = output(
        Command::new("git")
            .args(["-c", "user.name=a", "-c", "user.email=a@b"])
            .args(arguments)
            .current_dir(dir),
    );
    assert_eq!(code, 0, "{err}");
    out
}

/// A repository to work on.
pub(crate) fn repository(root: &Path) -> PathBuf {
    let repository = root.join("demo");
    std::fs::create_dir(&repository).unwrap();
    git(&repository, &["init", "-q", "-b", "main"]);
    std::fs::write(repository.join("README.md"), "# Demo\n").unwrap();
    git(&repository, &["add", "."]);
    git(&repository, &["commit", "-q", "-m", "base"]);
    repository
}

/// A pack with instructions and nothing else.
pub(crate) fn write_pack(home: &Path, words: &str) {
    let repo = home.join(".agentpack/repo");
    std::fs::create_dir_all(repo.join("modules/instructions/base")).unwrap();
    std::fs::write(repo.join("modules/instructions/base/AGENTS.md"), words).unwrap();
    let manifest = "version: 1\nprofiles:\n  default:\n    include_tags: [base]\ntargets:\n  codex:\n    mode: files\n    \
                    scope: both\n    options: {}\nmodules:\n  - id: instructions:base\n    type: instructions\n    tags: [base]\n    \
                    source:\n      local_path:\n        path: modules/instructions/base\n";
    std::fs::write(repo.join("agentpack.yaml"), manifest).unwrap();
}

#[tokio::test]
async fn serve_create_start_history_equip_rollback_delete() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path().canonicalize().unwrap();
    let (home, repository) = (root.join("home"), repository(&root));
    std::fs::create_dir(&home).unwrap();
    write_pack(&home, "Be kind.\n");
    let served = Served::start_in(&home, &repository, &[]);
    let mcp = Mcp::connect(&served.base).await;

    let projects = mcp.call("list_agent_projects", json!({})).await;
    assert_eq!(projects["projects"][0]["name"], "demo", "{projects}");
    let created = mcp
        .call("create_agent", json!({"name": "papi", "project": "demo", "spec": "Describe this project"}))
        .await;
    assert_eq!(created["agent"]["kit"]["profile"], "default", "{created}");
    mcp.until("papi", "idle").await;
    let shown = mcp.call("show_agent", json!({"agent_name": "papi"})).await["agent"].clone();
    assert_eq!(shown["git"]["branch"], "crewkit/papi", "{shown}");
    assert_eq!(
        (&shown["kit"]["drift_count"], shown["kit"]["snapshot_id"].is_string()),
        (&json!(0), true),
        "{shown}"
    );
    let message = created["message"].as_str().unwrap();
    let workspace =
        message.split("it works in ").nth(1).and_then(|rest| rest.split(" on branch").next()).unwrap();
    let agents_md = Path::new(workspace).join("AGENTS.md");
    assert!(std::fs::read_to_string(&agents_md).unwrap().contains("Be kind."));
    assert!(!home.join(".codex").exists(), "a workspace's kit leaves the user's directories alone");

    let started = mcp
        .call("start_agent_task", json!({"agent_name": "papi", "task_description": "And once more"}))
        .await;
    assert_eq!(started["agent_name"], "papi");
    mcp.until("papi", "idle").await;
    let history = mcp.call("show_agent_task_history", json!({"agent_name": "papi"})).await;
    let statuses: Vec<&Value> =
        history["tasks"].as_array().unwrap().iter().map(|task| &task["status"]).collect();
    assert_eq!(statuses, ["completed", "completed"], "{history}");
    let log = mcp.call("show_agent_log", json!({"agent_name": "papi", "page_size": 100})).await;
    assert!(log["logs"].as_array().unwrap().len() > 2, "{log}");

    write_pack(&home, "Be brief.\n");
    let refused = mcp.try_call("equip_agents", json!({"all": true})).await;
    assert_eq!(refused["isError"], true, "equipping needs to be approved");
    let equipped = mcp.call("equip_agents", json!({"all": true, "yes": true})).await;
    assert_eq!(equipped["equipped"], 1, "{equipped}");
    assert!(std::fs::read_to_string(&agents_md).unwrap().contains("Be brief."));
    std::fs::write(&agents_md, "Mine now.\n").unwrap();
    let drift = mcp.call("fleet_drift", json!({})).await;
    assert_eq!(
        (&drift["drifted"], &drift["agents"][0]["modified"]),
        (&json!(1), &json!(["AGENTS.md"])),
        "{drift}"
    );
    let back = mcp.call("equip_agents", json!({"agent_name": "papi", "rollback": true, "yes": true})).await;
    assert_eq!(back["equipped"], 1, "{back}");
    assert!(std::fs::read_to_string(&agents_md).unwrap().contains("Be kind."));

    let base = served.base.clone();
    let fleet = |arguments: &[&str]| {
        let (code, out, err) =
            output(crewkit(&home).env("CREWKIT_SERVER", &base).args(["--json", "fleet"]).args(arguments));
        assert_eq!(code, 0, "{out}{err}");
        serde_json::from_str::<Value>(&out).unwrap()
    };
    assert_eq!(fleet(&["list"])["agents"][0]["name"], "papi");
    assert_eq!(
        fleet(&["project", "add", home.to_str().unwrap(), "--name", "Home"])["project"]["name"],
        "Home"
    );

    std::fs::write(Path::new(workspace).join("result.txt"), "found\n").unwrap();
    let deleted = mcp.call("delete_agent", json!({"agent_name": "papi"})).await;
    assert!(deleted["message"].as_str().unwrap().contains("on branch crewkit/papi of"), "{deleted}");
    assert_eq!(git(&repository, &["show", "crewkit/papi:result.txt"]), "found\n");
    assert_eq!(git(&repository, &["ls-tree", "--name-only", "crewkit/papi"]), "README.md\nresult.txt\n");
    assert_eq!(served.terminate(), Some(0));
}

#[tokio::test]
async fn an_agent_of_a_command_line_outlives_the_server_that_started_it() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path().canonicalize().unwrap();
    let (home, repository) = (root.join("home"), repository(&root));
    std::fs::create_dir(&home).unwrap();
    let settings = "[fleet]\ndriver = \"napper\"\n[agents.drivers.napper]\ncommand = [\"sh\", \"-c\", \"echo up; exec sleep 1000\"]\n";
    std::fs::write(home.join("crewkit.toml"), settings).unwrap();
    // Registered before there is a server.
    let (code, _, err) = output(crewkit(&home).args(["fleet", "project", "add"]).arg(&repository));
    assert_eq!(code, 0, "{err}");
    let first = Served::start(&home, &[]);
    let mcp = Mcp::connect(&first.base).await;
    mcp.call("create_agent", json!({"name": "papi", "project": "demo", "spec": "Sleep"})).await;
    mcp.until("papi", "busy").await;
    // Killed, not stopped.
    drop(first);
    let second = Served::start(&home, &[]);
    let mcp = Mcp::connect(&second.base).await;
    let list = mcp.call("list_agents", json!({})).await;
    assert_eq!(list["agents"][0]["status"], "busy", "{list}");
    let stopped = mcp.call("stop_agent_task", json!({"agent_name": "papi"})).await;
    assert_eq!(
        (&stopped["agent_status"], &stopped["task"]["status"]),
        (&json!("idle"), &json!("stopped")),
        "{stopped}"
    );
    mcp.call("delete_agent", json!({"agent_name": "papi"})).await;
}
