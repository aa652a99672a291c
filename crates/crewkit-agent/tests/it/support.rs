//! An engine in a temporary home with a scripted model.

use std::sync::Arc;
use std::time::Duration;

use crewkit_agent::engine::{Start, Status, Until};
use crewkit_agent::model::Endpoint;
use crewkit_agent::{Engine, EventBody, Options, RunSpec};
use crewkit_core::Limits;
use crewkit_testkit::bins;
use crewkit_testkit::model::{Request, ScriptedModel, Turn};
use tempfile::TempDir;

/// Long enough for any machine; only a hang reaches it.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

pub(crate) struct World {
    pub(crate) home: TempDir,
    pub(crate) engine: Engine,
    pub(crate) model: ScriptedModel,
}

impl World {
    pub(crate) async fn new(script: impl Fn(&Request) -> Turn + Send + Sync + 'static) -> Self {
        Self::with(script, |_| {}).await
    }

    pub(crate) async fn with(
        script: impl Fn(&Request) -> Turn + Send + Sync + 'static,
        change: impl FnOnce(&mut Options),
    ) -> Self {
        let model = ScriptedModel::start(script).await;
        let home = tempfile::tempdir().unwrap();
        let mut options = options(&home, &model.url());
        change(&mut options);
        let engine = Engine::open(options).await.unwrap();
        Self { home, engine, model }
    }

    pub(crate) async fn start(&self, contract: &str) -> String {
        self.start_spec(contract, RunSpec::default()).await
    }

    pub(crate) async fn start_spec(&self, contract: &str, spec: RunSpec) -> String {
        let start = Start { contract: contract.to_owned(), spec, key: None, settings: None };
        self.engine.start(start).await.unwrap().id.to_string()
    }

    /// Waits for the end and returns the state.
    pub(crate) async fn end_of(&self, id: &str) -> Status {
        end_of(&self.engine, id).await
    }

    /// Starts a run and waits for its end.
    pub(crate) async fn run(&self, contract: &str) -> Status {
        let id = self.start(contract).await;
        self.end_of(&id).await
    }

    /// Everything in a run's transcript.
    pub(crate) async fn transcript(&self, id: &str) -> Vec<EventBody> {
        transcript(&self.engine, id).await
    }

    /// Waits until the transcript of a run holds something.
    pub(crate) async fn until(&self, id: &str, wanted: impl Fn(&EventBody) -> bool) {
        let mut follow = self.engine.subscribe(id, 0).unwrap();
        let waiting = async {
            loop {
                let event = follow.next().await.unwrap().expect("the run is still there");
                if wanted(&event.body) {
                    return;
                }
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.expect("the entry never came");
    }
}

pub(crate) async fn end_of(engine: &Engine, id: &str) -> Status {
    let waited = engine.wait(&[id], Until::All, PATIENCE, &|_, _| {}).await.unwrap();
    assert!(waited.done, "the run did not end: {:?}", waited.agents);
    waited.agents.into_iter().next().unwrap()
}

pub(crate) async fn transcript(engine: &Engine, id: &str) -> Vec<EventBody> {
    let mut follow = engine.subscribe(id, 0).unwrap();
    let mut bodies = Vec::new();
    while let Some(event) = follow.next_until_end().await.unwrap() {
        bodies.push(event.body.clone());
    }
    bodies
}

/// Options for quick tests: failures are retried after a millisecond, and nothing waits for the replies of runs that ended.
pub(crate) fn options(home: &TempDir, url: &str) -> Options {
    let mut options = Options::new(home.path());
    options.limits = Arc::new(Limits {
        llm_retry_millis: 1,
        llm_stop_grace_seconds: 0,
        driver_stop_grace_seconds: 1,
        ..Limits::default()
    });
    options.settings_mut().models = vec![Endpoint::new("scripted", url, "scripted-1")];
    options.helper = vec![bins::example("crewkit-agent", "confined").into()];
    options.settings_mut().environment = std::env::vars_os().filter(|(name, _)| name == "PATH").collect();
    options
}

/// Changes limits in place.
pub(crate) fn limit(options: &mut Options, change: impl FnOnce(&mut Limits)) {
    change(Arc::make_mut(&mut options.limits));
}

/// Polls a condition of another process or task.
pub(crate) async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("never happened: {what}"));
}

pub(crate) fn is_alive(pid: u32) -> bool {
    // A zombie is dead; only its parent's bookkeeping is left.
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        let state = stat.rsplit(')').next().and_then(|rest| rest.trim().chars().next());
        state != Some('Z')
    })
}
