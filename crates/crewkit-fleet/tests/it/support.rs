//! What the tests share: a fleet over a simulated Coder, and short words for requests.

use crewkit_core::{Limits, Secret};
use crewkit_fleet::backend::coder::{CoderBackend, CoderSettings};
use crewkit_fleet::model::{ByName, CreateAgent, ListAgents, StartTask, TaskHistoryQuery};
use crewkit_fleet::time::Clock;
use crewkit_fleet::{ErrorKind, Fleet, FleetError, FleetOptions};
use crewkit_testkit::coder::{Profile, SimCoder, TOKEN};
use serde::Serialize;
use serde_json::Value;

pub(crate) type CoderFleet = Fleet<CoderBackend>;

/// A simulated Coder and a fleet over it.
pub(crate) struct Fixture {
    pub(crate) sim: SimCoder,
    pub(crate) fleet: CoderFleet,
}

pub(crate) async fn fixture(profile: Profile) -> Fixture {
    let sim = SimCoder::start(profile).await.unwrap();
    let fleet = fleet(&sim, |_| {});
    Fixture { sim, fleet }
}

/// A second fleet over the same Coder, with other settings.
pub(crate) fn fleet(sim: &SimCoder, change: impl FnOnce(&mut CoderSettings)) -> CoderFleet {
    let mut settings = CoderSettings::new(sim.url(), Secret::new(TOKEN));
    settings.limits = patient();
    change(&mut settings);
    let options = FleetOptions { limits: settings.limits.clone(), ..FleetOptions::default() };
    Fleet::new(CoderBackend::new(settings, Clock::system()).unwrap(), options)
}

/// Limits for tests that wait for a time-out.
pub(crate) fn quick() -> Limits {
    Limits {
        fleet_coder_request_ms: 300,
        fleet_coder_deadline_ms: 900,
        fleet_coder_send_ms: 600,
        fleet_metadata_agent_ms: 600,
        fleet_metadata_list_ms: 800,
        ..Limits::default()
    }
}

/// Limits for tests that must not see a time-out, however slow the machine is.
pub(crate) fn patient() -> Limits {
    Limits {
        fleet_coder_request_ms: 30_000,
        fleet_coder_deadline_ms: 60_000,
        fleet_coder_send_ms: 60_000,
        fleet_metadata_agent_ms: 30_000,
        fleet_metadata_list_ms: 60_000,
        fleet_kit_ms: 60_000,
        ..Limits::default()
    }
}

pub(crate) fn named(name: &str) -> ByName {
    ByName { agent_name: name.to_owned() }
}

pub(crate) fn new_agent(name: &str) -> CreateAgent {
    CreateAgent {
        name: name.to_owned(),
        project: "Setup".to_owned(),
        spec: Some("Build the thing".to_owned()),
        ..CreateAgent::default()
    }
}

pub(crate) fn start(name: &str, task: &str) -> StartTask {
    StartTask { agent_name: name.to_owned(), task_description: task.to_owned(), ..StartTask::default() }
}

pub(crate) fn history(name: &str) -> TaskHistoryQuery {
    TaskHistoryQuery { agent_name: name.to_owned(), ..TaskHistoryQuery::default() }
}

pub(crate) fn without_metadata() -> ListAgents {
    ListAgents { include_metadata: Some(false), ..ListAgents::default() }
}

/// The names in a list.
pub(crate) async fn names(fleet: &CoderFleet, query: ListAgents) -> Vec<String> {
    let list = fleet.list_agents(query).await.unwrap();
    list.agents.into_iter().map(|agent| agent.name).collect()
}

pub(crate) fn json(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap()
}

/// Checks an answer against the published schema of its tool, which is closed, and hands it on.
#[track_caller]
pub(crate) fn checked<T: Serialize>(tool: &str, answer: T) -> T {
    let schema = crate::schema::of(tool).unwrap_or_else(|| panic!("{tool} has no schema"));
    valid(&serde_json::from_str(schema.output).unwrap(), &json(&answer));
    answer
}

#[track_caller]
pub(crate) fn valid(schema: &Value, answer: &Value) {
    let validator = jsonschema::validator_for(schema).unwrap();
    let errors: Vec<String> =
        validator.iter_errors(answer).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(errors.is_empty(), "{errors:#?}\n{answer:#}");
}

/// Checks that a failure has the given kind and the form every failure has, and hands it on.
#[track_caller]
pub(crate) fn refused<T: std::fmt::Debug>(kind: ErrorKind, result: Result<T, FleetError>) -> FleetError {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), kind, "{:#?}", error.body());
    valid(&FleetError::schema(), &json(&error.body()));
    error
}

/// A fact of an error.
pub(crate) fn detail<'a>(error: &'a FleetError, key: &str) -> &'a Value {
    error.detail(key).unwrap_or(&Value::Null)
}
