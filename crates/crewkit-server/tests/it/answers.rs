//! Answers of every row and every route, held against the schemas of the `OpenAPI` document.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use crewkit_agent::Options as AgentOptions;
use crewkit_agent::model::Endpoint;
use crewkit_fleet::backend::local::git::Git;
use crewkit_fleet::backend::local::{Local, LocalFleet, LocalOptions, ProjectConfig};
use crewkit_fleet::{AnyFleet, Fleet, FleetError, FleetOptions};
use crewkit_pack::Env;
use crewkit_pack::commands::Pack;
use crewkit_server::Services;
use crewkit_server::kit::PackKit;
use crewkit_server::ops::Catalog;
use crewkit_server::services::{Agents, ServerAbout, ServerControl};
use crewkit_testkit::model::{ScriptedModel, Turn};
use futures_util::FutureExt as _;
use serde_json::{Value, json};

use crate::support::server::{Options, Server};

const MANIFEST: &str = "version: 1
profiles: {default: {include_tags: [base]}}
targets:
  claude_code: {mode: files, scope: project, options: {write_repo_skills: true}}
  codex: {mode: files, scope: user}
modules:
  - {id: 'skill:a', type: skill, tags: [base], source: {local_path: {path: a}}}
";

fn git(directory: &Path, arguments: &[&str]) {
    let own = ["-c", "user.name=a", "-c", "user.email=a@b"];
    let ended = Command::new("git").args(own).args(arguments).current_dir(directory).status().unwrap();
    assert!(ended.success(), "{arguments:?}");
}

/// A server with a pack, a fleet on this machine and a scripted model, and its own description of itself.
struct World {
    server: Server,
    document: Value,
    /// What was called, as method and path of the document.
    called: BTreeSet<String>,
    _model: ScriptedModel,
    root: tempfile::TempDir,
}

impl World {
    async fn open() -> Self {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().canonicalize().unwrap();
        let pack_repo = dir.join(".agentpack/repo");
        std::fs::create_dir_all(pack_repo.join("a")).unwrap();
        std::fs::write(pack_repo.join("agentpack.yaml"), MANIFEST).unwrap();
        std::fs::write(pack_repo.join("a/SKILL.md"), "---\nname: a\ndescription: d\n---\n").unwrap();
        for project in ["one", "two"] {
            let project = dir.join(project);
            std::fs::create_dir(&project).unwrap();
            git(&project, &["init", "-q", "-b", "main"]);
            for (name, value) in [("user.name", "a"), ("user.email", "a@b")] {
                git(&project, &["config", name, value]);
            }
            git(&project, &["commit", "-q", "--allow-empty", "-m", "base"]);
        }
        let model = ScriptedModel::start(|request| {
            let is_slow = request.body["messages"].to_string().contains("slow");
            Turn::deliver("done", "work").after(Duration::from_secs(if is_slow { 600 } else { 0 }))
        })
        .await;
        let pack = Arc::new(Pack::new(Env::at_home(&dir)));
        let mut agents = AgentOptions::new(dir.join("home"));
        agents.settings_mut().models = vec![Endpoint::new("scripted", model.url(), "scripted-1")];
        let environment = vec![
            ("PATH".into(), std::env::var_os("PATH").unwrap()),
            ("HOME".into(), dir.clone().into_os_string()),
        ];
        let command = Git::new("git", environment, Duration::from_mins(1));
        let mut options = LocalOptions::new(dir.join("home/fleet"), command);
        options.settings.projects = vec![ProjectConfig { path: dir.join("one"), ..ProjectConfig::default() }];
        options.settings.kit = Some(Arc::new(PackKit::new(Arc::clone(&pack))));
        options.settings.run = Arc::new(agents.settings_mut().clone());
        let agents = Arc::new(Agents::lazy(agents));
        let engine = agents.engine().await.unwrap().clone();
        let fleet = LocalFleet::lazy(move || {
            let (options, engine) = (options.clone(), engine.clone());
            async move {
                let opened = Local::open(options, engine).await;
                let local = opened.map_err(|error| FleetError::unavailable(error.to_string()))?;
                Ok(Fleet::new(local, FleetOptions::default()))
            }
            .boxed()
        });
        let control = ServerControl::default();
        let about = ServerAbout {
            pid: 1,
            since: "2026-01-01T00:00:00Z".to_owned(),
            build: "test".to_owned(),
            protocol: 1,
            http: None,
        };
        control.about.set(about).unwrap();
        let services = Services {
            pack: Some(pack),
            fleet: Some(AnyFleet::Local(Arc::new(fleet))),
            agents,
            server: Some(Arc::new(control)),
            ..Services::default()
        };
        let server = Server::start_with(Options::default(), Catalog::product().unwrap(), services).await;
        let document = server.request("GET", "/api/openapi.json", &[], b"").await.json();
        Self { server, document, called: BTreeSet::new(), _model: model, root }
    }

    /// The schema of an answer, which can refer to the components of the document.
    fn schema(&self, method: &str, path: &str, status: &str, media_type: &str) -> Value {
        let content = &self.document["paths"][path][method]["responses"][status]["content"];
        let schema = content[media_type]["schema"].clone();
        assert!(schema.is_object(), "{method} {path}: no schema for {status} as {media_type}");
        json!({"allOf": [schema], "components": self.document["components"]})
    }

    /// Sends a request and holds the answer against the schema of the route `path`.
    async fn ask(&mut self, method: &str, path: &str, address: &str, body: &str) -> Value {
        let json = [("Content-Type", "application/json")];
        let headers = if body.is_empty() { &json[..0] } else { &json[..] };
        let reply = self.server.request(&method.to_uppercase(), address, headers, body.as_bytes()).await;
        let answer = reply.json();
        let status = if reply.status == 200 { "200" } else { "4XX" };
        let schema = self.schema(method, path, status, "application/json");
        let validator = jsonschema::validator_for(&schema).unwrap();
        let faults: Vec<_> = validator.iter_errors(&answer).map(|error| format!("{error}")).collect();
        assert!(faults.is_empty(), "{method} {address}: {faults:?} in {answer}");
        if status == "200" {
            self.called.insert(format!("{method} {path}"));
            assert_eq!(undocumented(&schema["allOf"][0], &answer), [""; 0], "{method} {address}: {answer}");
        }
        answer
    }

    /// Calls a row with an argument that it does not have, which fails in the row's form, and then without, which succeeds.
    async fn call(&mut self, name: &str, arguments: Value) -> Value {
        let path = format!("/api/ops/{name}");
        let mut wrong = arguments.clone();
        wrong["no_such_argument"] = 1.into();
        let refused = self.ask("post", &path, &path, &wrong.to_string()).await;
        assert!(refused.to_string().contains("no_such_argument"), "{name}: {refused}");
        let answer = self.ask("post", &path, &path, &arguments.to_string()).await;
        assert!(self.called.contains(&format!("post {path}")), "{name}: {answer}");
        answer
    }

    /// Calls one of the other routes, which succeeds.
    async fn route(&mut self, method: &str, path: &str, id: &str, body: &str) {
        let answer = self.ask(method, path, &path.replace("{id}", id), body).await;
        assert!(self.called.contains(&format!("{method} {path}")), "{method} {path}: {answer}");
    }
}

/// The fields of an answer that its schema does not name, where it names any.
fn undocumented(schema: &Value, answer: &Value) -> Vec<String> {
    let has_forms = schema.get("oneOf").or(schema.get("anyOf")).is_some();
    match (answer, schema.get("properties"), schema.get("items")) {
        (Value::Object(fields), Some(known), _) if !has_forms => fields
            .iter()
            .flat_map(|(name, value)| match known.get(name) {
                Some(known) => undocumented(known, value),
                None => vec![name.clone()],
            })
            .collect(),
        (Value::Array(items), _, Some(known)) => {
            items.iter().flat_map(|item| undocumented(known, item)).collect()
        }
        _ => Vec::new(),
    }
}

async fn call_pack(world: &mut World) {
    for (name, arguments) in [
        ("plan", json!({})),
        ("diff", json!({})),
        ("preview", json!({"diff": true})),
        ("status", json!({})),
        ("doctor", json!({})),
        ("explain", json!({"kind": "plan"})),
        ("deploy", json!({})),
    ] {
        world.call(name, arguments).await;
    }
    let deployed = world.call("deploy_apply", json!({"yes": true})).await;
    let snapshot = &deployed["data"]["snapshot_id"];
    world.call("rollback", json!({"to": snapshot, "yes": true})).await;
}

async fn call_fleet(world: &mut World) {
    let two = world.root.path().canonicalize().unwrap().join("two");
    world.call("project_add", json!({"path": two})).await;
    world.call("project_remove", json!({"project": "two"})).await;
    world.route("post", "/api/fleet/projects", "", &json!({"path": two}).to_string()).await;
    world.call("list_agent_projects", json!({})).await;
    world.call("list_agent_roles", json!({"project": "one"})).await;
    world.call("create_agent", json!({"name": "papi", "project": "one", "spec": "Describe it"})).await;
    let papi = json!({"agent_name": "papi"});
    let idle = json!({"agent_name": "papi", "timeout_seconds": 120});
    let waited = world.call("wait_for_agent", idle.clone()).await;
    assert_eq!(waited["reached"], true, "{waited}");
    world.call("list_agents", json!({})).await;
    world.call("show_agent", papi.clone()).await;
    world.call("show_agent_task_history", papi.clone()).await;
    world.call("show_agent_log", papi.clone()).await;
    for end in ["stop_agent_task", "cancel_agent_task"] {
        let task = json!({"agent_name": "papi", "task_description": "slowly"});
        world.call("start_agent_task", task).await;
        world.call(end, papi.clone()).await;
        world.call("wait_for_agent", idle.clone()).await;
    }
    world.call("equip_agents", json!({"agent_name": "papi", "profile": "default", "yes": true})).await;
    world.call("fleet_drift", papi.clone()).await;
    let diff = world.call("agent_diff", papi.clone()).await;
    assert_eq!(diff["base"]["branch"], "main", "{diff}");
    let landing = world.call("land_agent", papi.clone()).await;
    assert_eq!(landing["base"], "main", "{landing}");
    world.call("restart_agent", papi.clone()).await;
    world.call("delete_agent", papi).await;
}

async fn call_runs(world: &mut World) {
    let id = |answer: &Value, field: &str| answer[field].as_str().unwrap().to_owned();
    let slow = id(&world.call("agent_start", json!({"contract": "slow"})).await, "agent_id");
    let done = id(&world.call("agent_start", json!({"contract": "x"})).await, "agent_id");
    world.call("agent_wait", json!({"agent_ids": [done]})).await;
    world.call("agent_status", json!({"agent_ids": [slow, done, "agent-nobody"]})).await;
    world.call("agent_output", json!({"agent_id": done, "limit": 500})).await;
    world.call("run_list", json!({})).await;
    world.call("run_show", json!({"run_id": done, "output": true})).await;
    world.call("run_payload", json!({"run_id": done, "text": true})).await;
    world.call("run_tools", json!({})).await;
    world.call("agent_stop", json!({"agent_id": slow})).await;
    world.call("agent_stop", json!({"agent_id": done})).await;
    world.call("run_resume", json!({"run_id": slow})).await;
    world.call("agent_complete", json!({"agent_id": slow, "summary": "by hand"})).await;
    world.call("run_restart", json!({"run_id": slow})).await;
    let ready = id(&world.call("run_create", json!({})).await, "id");
    world.call("run_set_contract", json!({"run_id": ready, "contract": "slow"})).await;
    world.call("run_start", json!({"run_id": ready})).await;
    world.call("chat_send", json!({"conversation_id": "c", "content": "x"})).await;
    world.call("chat_show", json!({"conversation_id": "c"})).await;
    world.route("get", "/api/agents", "", "").await;
    world.route("get", "/api/agents/{id}", &done, "").await;
    world.route("post", "/api/agents/{id}/stop", &ready, "").await;
    world.route("post", "/api/agents/{id}/resume", &ready, "").await;
    world.route("delete", "/api/agents/{id}", &ready, "").await;
    world.route("post", "/api/agents", "", "").await;
    world.route("get", "/api/tools", "", "").await;
    world.route("get", "/api/events", "", "").await;
    world.route("get", "/api/health", "", "").await;
    world.route("post", "/api/agents/prune", "", r#"{"older_than_seconds": 0, "dry_run": true}"#).await;
    world.call("run_prune", json!({"older_than_seconds": 0})).await;
    world.call("run_delete", json!({"run_id": slow})).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_has_the_schema_that_the_document_gives_it() {
    let mut world = World::open().await;
    call_pack(&mut world).await;
    call_fleet(&mut world).await;
    call_runs(&mut world).await;
    world.call("events", json!({})).await;
    world.call("server_status", json!({})).await;
    world.call("server_stop", json!({"keep_work": true})).await;
    let mut texts = BTreeSet::new();
    for (path, methods) in world.document["paths"].as_object().unwrap() {
        for (method, described) in methods.as_object().unwrap() {
            if described["responses"]["101"].is_object() {
                assert!(path.starts_with("/ws/"), "{path}");
                continue;
            }
            for (media_type, content) in described["responses"]["200"]["content"].as_object().unwrap() {
                let schema = &content["schema"];
                if media_type == "application/json" {
                    assert!(schema["properties"].is_object(), "{method} {path} has no schema: {schema}");
                    assert!(
                        world.called.contains(&format!("{method} {path}")),
                        "{method} {path} was not called"
                    );
                } else {
                    assert_eq!(*schema, json!({"type": "string"}), "{method} {path}");
                    texts.insert(path.as_str());
                }
            }
        }
    }
    let expected = ["/api/agents/{id}/events", "/api/agents/{id}/payload", "/healthz", "/metrics"];
    assert_eq!(texts, BTreeSet::from(expected));
}
