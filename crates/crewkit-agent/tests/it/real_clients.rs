//! The real Claude Code and Codex, asked to carry out a contract with the scripted model behind them.
//!
//! They come from the npm registry and are no part of this repository: `CREWKIT_REAL_CLIENTS` names a directory that has them
//! (`node_modules/.bin` of an installation). Without it these tests say that they were skipped.

use std::ffi::OsString;
use std::path::Path;

use crewkit_agent::driver::ProcessDriver;
use crewkit_agent::{EventBody, Options, RunSpec};
use crewkit_core::run::{RunStatus, StopReason};
use crewkit_testkit::model::{Request, Turn};
use crewkit_testkit::real_client;
use serde_json::json;
use tempfile::TempDir;

use crate::support::World;

const IN_THE_FILE: &str = "forty-two";

/// Puts the real program into our own preset for it, with a home of its own and the scripted model as its server.
fn preset(options: &mut Options, program: &Path, home: &Path) {
    let name = program.file_name().unwrap().to_str().unwrap();
    let base = options.settings_mut().models[0].url.trim_end_matches("/v1/chat/completions").to_owned();
    std::fs::write(
        home.join("config.toml"),
        format!(
            "model = \"scripted\"\nmodel_provider = \"scripted\"\n[model_providers.scripted]\nname = \"scripted\"\n\
             base_url = \"{base}/v1\"\nwire_api = \"responses\"\nrequest_max_retries = 0\nstream_max_retries = 0\n"
        ),
    )
    .unwrap();
    let mut driver = ProcessDriver::presets().into_iter().find(|driver| driver.name == name).unwrap();
    program.to_str().unwrap().clone_into(&mut driver.command[0]);
    let mut set = |name: &str, value: OsString| driver.environment.push((name.into(), value));
    set("HOME", home.into());
    set("CODEX_HOME", home.into());
    set("ANTHROPIC_BASE_URL", base.into());
    set("ANTHROPIC_API_KEY", "not-a-key".into());
    set("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1".into());
    options.settings_mut().drivers = vec![driver];
}

struct Scene {
    world: World,
    workdir: TempDir,
    _home: TempDir,
    driver: String,
}

impl Scene {
    async fn set(program: &Path, script: impl Fn(&Request, &Path) -> Turn + Send + Sync + 'static) -> Self {
        let (workdir, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(workdir.path().join("a.txt"), IN_THE_FILE).unwrap();
        let file = workdir.path().join("a.txt");
        let world = World::with(
            move |request| script(request, &file),
            |options| preset(options, program, home.path()),
        )
        .await;
        let driver = program.file_name().unwrap().to_str().unwrap().to_owned();
        Self { world, workdir, _home: home, driver }
    }

    async fn run(&self) -> (crewkit_agent::engine::Status, Vec<EventBody>) {
        let workdir = Some(self.workdir.path().to_owned());
        let spec = RunSpec { driver: Some(self.driver.clone()), workdir, ..RunSpec::default() };
        let id = self.world.start_spec("Read a.txt and tell what it says.", spec).await;
        let status = self.world.end_of(&id).await;
        (status, self.world.transcript(&id).await)
    }

    /// Plays a run in which the client reads the file with a tool of its own and then says what it read.
    async fn reads_a_file(&self) {
        let (status, bodies) = self.run().await;
        assert_eq!(status.status, Some(RunStatus::Completed), "{status:?} {bodies:#?}");
        assert_eq!(status.summary.as_deref(), Some("It says forty-two."));
        assert!(status.tokens > Some(0), "{status:?}");
        let called = bodies.iter().any(
            |body| matches!(body, EventBody::Assistant { tool_calls, .. } if tool_calls.iter().any(|call| call.arguments.contains("a.txt"))),
        );
        let answered = bodies.iter().any(
            |body| matches!(body, EventBody::ToolResult { content, is_error: false, .. } if content.contains(IN_THE_FILE)),
        );
        assert!(called && answered, "{bodies:#?}");
        assert_eq!(self.world.model.violations(), [""; 0]);
        assert_eq!(self.world.model.requests(), 2);
    }

    /// Plays a run whose model refuses.
    async fn is_refused(&self) {
        let (status, bodies) = self.run().await;
        assert_eq!(status.reason, Some(StopReason::DriverFailed), "{status:?} {bodies:#?}");
        let error = status.error.unwrap();
        assert!(error.contains("never heard of you"), "{error}");
    }
}

#[tokio::test]
async fn claude_code_carries_out_a_contract() {
    let Some(claude) = real_client("claude") else { return };
    let script = |request: &Request, file: &Path| match request.turn {
        0 => Turn::call("Read", &json!({"file_path": file})),
        _ => Turn::say("It says forty-two."),
    };
    Scene::set(&claude, script).await.reads_a_file().await;
}

#[tokio::test]
async fn codex_carries_out_a_contract() {
    let Some(codex) = real_client("codex") else { return };
    let script = |request: &Request, _: &Path| match request.turn {
        0 => Turn::call("exec_command", &json!({"cmd": "cat a.txt"})),
        _ => Turn::say("It says forty-two."),
    };
    Scene::set(&codex, script).await.reads_a_file().await;
}

#[tokio::test]
async fn a_model_that_refuses_ends_the_run_with_its_words() {
    for name in ["claude", "codex"] {
        let Some(client) = real_client(name) else { continue };
        let error = json!({"type": "invalid_request_error", "message": "never heard of you"});
        let refusal = json!({"type": "error", "error": error}).to_string();
        let scene = Scene::set(&client, move |_, _| Turn::status(400, &refusal)).await;
        scene.is_refused().await;
    }
}

/// Claude Code takes a key that is refused for a hiccup and tries for three minutes; a person sees that.
#[tokio::test]
async fn claude_code_that_is_turned_away_says_so_while_it_tries() {
    let Some(claude) = real_client("claude") else { return };
    let error = json!({"type": "authentication_error", "message": "never heard of you"});
    let refusal = json!({"type": "error", "error": error}).to_string();
    let scene = Scene::set(&claude, move |_, _| Turn::status(401, &refusal)).await;
    let spec = RunSpec { driver: Some(scene.driver.clone()), ..RunSpec::default() };
    let id = scene.world.start_spec("Say hello.", spec).await;
    let told = |body: &EventBody| matches!(body, EventBody::Note { content } if content.contains("authentication_failed, status 401"));
    scene.world.until(&id, told).await;
    assert_eq!(scene.world.engine.stop(&id).await.unwrap().state.status(), RunStatus::Stopped);
}
