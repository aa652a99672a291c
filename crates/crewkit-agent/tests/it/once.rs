//! A server that dies at every write and within a tool: no call of a tool is made twice, and the model is told what is not known.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crewkit_agent::tools::CommandPolicy;
use crewkit_agent::{Engine, EventBody};
use crewkit_core::run::RunStatus;
use crewkit_testkit::bins;
use crewkit_testkit::model::{Request, ScriptedModel, Turn};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};

use crate::support::{end_of, options, transcript};

/// Calls with an effect, one a turn.
const CALLS: usize = 3;
const NOT_KNOWN: &str = "not known whether it had its effect";

/// Each call leaves a line that tells which call it was.
fn script(command: impl Fn(usize) -> String + Send + Sync) -> impl Fn(&Request) -> Turn + Send + Sync {
    move |request| match request.turn {
        turn if turn < CALLS => Turn::call("run_command", &json!({"command": command(turn)})),
        _ => Turn::complete("all done"),
    }
}

struct Host {
    child: Child,
    address: String,
}

impl Host {
    fn start(home: &Path, model: &ScriptedModel, fatal_write: Option<usize>) -> Self {
        let mut command = Command::new(bins::example("crewkit-agent", "agent_host"));
        command.arg(home).arg(model.url()).args(fatal_write.map(|number| number.to_string()));
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut address = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut address).unwrap();
        Self { child, address: address.trim().to_owned() }
    }

    /// Starts a run and waits for its end: what was acknowledged, and whether the host lived to see the end.
    async fn run(&mut self, workdir: &Path) -> (Option<String>, bool) {
        let acknowledged = self.talk(workdir).await;
        let lived = matches!(acknowledged, (_, true));
        if lived {
            self.child.kill().unwrap();
        }
        self.child.wait().unwrap();
        acknowledged
    }

    async fn talk(&self, workdir: &Path) -> (Option<String>, bool) {
        let Ok(socket) = tokio::net::TcpStream::connect(&self.address).await else { return (None, false) };
        let (read, mut write) = socket.into_split();
        let mut lines = tokio::io::BufReader::new(read).lines();
        let mut ask = async |wish: Value| -> Option<Value> {
            write.write_all(format!("{wish}\n").as_bytes()).await.ok()?;
            serde_json::from_str(&lines.next_line().await.ok()??).ok()
        };
        let start = json!({"op": "start", "key": "k", "contract": "leave traces", "workdir": workdir});
        let Some(started) = ask(start).await else { return (None, false) };
        let id = started["id"].as_str().unwrap().to_owned();
        let ended = ask(json!({"op": "wait", "id": id})).await;
        (Some(id), ended.is_some())
    }
}

/// Lets the next server go on with the run; returns its transcript.
async fn go_on(home: &TempDir, model: &ScriptedModel, id: &str) -> Vec<EventBody> {
    let mut options = options(home, &model.url());
    options.settings_mut().commands =
        CommandPolicy::Unconfined { environment: options.settings.environment.clone() };
    let engine = Engine::open(options).await.unwrap();
    engine.show(id).expect("an acknowledged run is there");
    assert_eq!(end_of(&engine, id).await.status, Some(RunStatus::Completed));
    let bodies = transcript(&engine, id).await;
    engine.shutdown().await;
    engine.closed().await;
    bodies
}

/// The lines the calls left.
fn effects(workdir: &Path) -> Vec<usize> {
    let text = std::fs::read_to_string(workdir.join("effects")).unwrap_or_default();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

/// Whether some request told the model that the fate of a call is not known.
fn was_told(model: &ScriptedModel) -> bool {
    model.bodies().iter().any(|body| body["messages"].to_string().contains(NOT_KNOWN))
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_every_write_no_call_is_made_twice() {
    let mut resumed = 0;
    for fatal in 1.. {
        let (home, workdir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let model = ScriptedModel::start(script(|turn| format!("echo {turn} >> effects"))).await;
        let mut host = Host::start(home.path(), &model, Some(fatal));
        let (id, lived) = host.run(workdir.path()).await;
        let Some(id) = id else {
            assert!(
                effects(workdir.path()).is_empty(),
                "write {fatal}: nothing is done before it is acknowledged"
            );
            continue;
        };
        go_on(&home, &model, &id).await;
        let done = effects(workdir.path());
        let once: Vec<usize> = (0..CALLS).filter(|call| done.contains(call)).collect();
        assert_eq!(done, once, "write {fatal}: a call was made twice or out of turn");
        if done.len() < CALLS {
            assert!(was_told(&model), "write {fatal}: only {done:?} happened, and nobody was told");
        }
        assert_eq!(model.violations(), [""; 0], "write {fatal}");
        if lived {
            assert_eq!(done.len(), CALLS);
            break;
        }
        resumed += 1;
    }
    assert!(resumed > 2 * CALLS, "only {resumed} writes were there to die at");
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_within_a_call_it_is_reported_and_not_repeated() {
    for (command, happened) in [("echo 1 >> effects; kill -9 $PPID", true), ("kill -9 $PPID; exit", false)] {
        let (home, workdir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let model = ScriptedModel::start(script(move |turn| match turn {
            1 => command.to_owned(),
            turn => format!("echo {turn} >> effects"),
        }))
        .await;
        let mut host = Host::start(home.path(), &model, None);
        let (id, lived) = host.run(workdir.path()).await;
        assert!(!lived);
        let bodies = go_on(&home, &model, &id.unwrap()).await;
        let expected: &[usize] = if happened { &[0, 1, 2] } else { &[0, 2] };
        assert_eq!(effects(workdir.path()), expected);
        assert!(was_told(&model), "{command}");
        let wishes = bodies.iter().filter(
            |body| matches!(body, EventBody::Assistant { tool_calls, .. } if tool_calls.iter().any(|call| call.arguments.contains("kill"))),
        );
        assert_eq!(wishes.count(), 1, "the wish is in the transcript once");
    }
}
