//! Equipping the workspaces of living agents: what can be asked, what is answered, and in which order it is done.
//!
//! The same for every backend; how one workspace gets its kit is the backend's own matter.

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::FleetError;
use crate::kit::{Drift, Equipped};

/// Which agents are meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// One agent, by name.
    Agent(String),
    /// The agents of a project, by its name or id.
    Project(String),
    /// All of them.
    All,
}

/// A wish to equip agents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EquipOrder {
    /// Which agents.
    pub choice: Choice,
    /// The profile; the one each agent has when absent.
    pub profile: Option<String>,
    /// Equip this many first, and the others only when none of these failed.
    pub canary: Option<usize>,
    /// Take back the newest deployment instead of making one.
    pub rollback: bool,
}

/// What came of one workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct EquipRow {
    /// The agent.
    pub agent_name: String,
    /// `equipped`, `unchanged`, `failed` or `left_out`.
    pub outcome: &'static str,
    /// The profile.
    pub profile: Option<String>,
    /// The snapshot that can be rolled back; none when nothing changed.
    pub snapshot_id: Option<String>,
    /// Files written or removed.
    pub changed: usize,
    /// Files of the kit that somebody had changed; on this machine what they were can be had back with a rollback, on
    /// Coder they are left as they are.
    pub drifted: Vec<String>,
    /// Places where the project has a file of its own; they are as they were.
    pub left_alone: Vec<String>,
    /// Why it failed or was left out.
    pub error: Option<String>,
}

impl EquipRow {
    /// A workspace that nothing was done to.
    pub(crate) fn left_out(agent: &str, why: impl Into<String>) -> Self {
        Self { outcome: "left_out", error: Some(why.into()), ..Self::blank(agent, None) }
    }

    /// A workspace where it failed.
    pub(crate) fn failed(agent: &str, profile: Option<String>, why: impl Into<String>) -> Self {
        Self { outcome: "failed", error: Some(why.into()), ..Self::blank(agent, profile) }
    }

    /// A workspace that has its kit.
    pub(crate) fn done(agent: &str, profile: String, equipped: Equipped) -> Self {
        Self {
            outcome: if equipped.changed == 0 { "unchanged" } else { "equipped" },
            snapshot_id: equipped.snapshot_id,
            changed: equipped.changed,
            drifted: equipped.drifted,
            left_alone: equipped.left_alone,
            ..Self::blank(agent, Some(profile))
        }
    }

    fn blank(agent: &str, profile: Option<String>) -> Self {
        Self {
            agent_name: agent.to_owned(),
            outcome: "unchanged",
            profile,
            snapshot_id: None,
            changed: 0,
            drifted: Vec::new(),
            left_alone: Vec::new(),
            error: None,
        }
    }
}

/// What came of all of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct EquipReport {
    /// One row for each agent, by name.
    pub agents: Vec<EquipRow>,
    /// Workspaces that were changed.
    pub equipped: usize,
    /// Workspaces that had everything already.
    pub unchanged: usize,
    /// Workspaces where it failed; their rows say what that means for them.
    pub failed: usize,
    /// Workspaces that were not touched because an earlier one failed, or that cannot be equipped.
    pub left_out: usize,
    /// What happened, for people.
    pub message: String,
}

/// How one workspace differs from its kit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DriftRow {
    /// The agent.
    pub agent_name: String,
    /// The profile it was equipped with.
    pub profile: Option<String>,
    /// The snapshot of that.
    pub snapshot_id: Option<String>,
    /// Files that differ.
    pub drift_count: usize,
    /// Files that were changed.
    pub modified: Vec<String>,
    /// Files that are gone.
    pub missing: Vec<String>,
    /// Why nothing can be said.
    pub error: Option<String>,
}

impl DriftRow {
    /// What a look at a workspace found.
    pub(crate) fn of(
        agent: &str,
        profile: Option<String>,
        snapshot_id: Option<String>,
        found: Result<Drift, String>,
    ) -> Self {
        let (found, error) = match found {
            Ok(drift) => (drift, None),
            Err(error) => (Drift::default(), Some(error)),
        };
        Self {
            agent_name: agent.to_owned(),
            profile,
            snapshot_id,
            drift_count: found.count(),
            modified: found.modified,
            missing: found.missing,
            error,
        }
    }
}

/// How all of them differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DriftReport {
    /// One row for each agent, by name.
    pub agents: Vec<DriftRow>,
    /// Agents whose workspace differs from its kit.
    pub drifted: usize,
    /// Agents looked at.
    pub total_count: usize,
}

/// Why there is nothing to look for.
pub(crate) const NEVER_EQUIPPED: &str = "it was never equipped";

/// There is no pack.
pub(crate) fn no_kit() -> FleetError {
    FleetError::bad_request("there is no pack to equip agents with; make one with `crewkit pack init`")
        .with("reason", "no_kit")
}

/// There is no such project.
pub(crate) fn no_project(word: &str) -> FleetError {
    FleetError::new(crate::ErrorKind::NotFound, format!("project '{word}' does not exist"))
        .with("field", "project")
}

/// Equips `agents`, `at_once` of them at a time: the canaries first, and the others when none of those failed. One that
/// fails is reported; the others are done.
pub(crate) async fn equip_all<'a, A>(
    agents: &'a [A],
    order: &'a EquipOrder,
    at_once: u64,
    name: impl Fn(&A) -> &str,
    one: impl Fn(&'a A) -> BoxFuture<'a, EquipRow>,
) -> EquipReport {
    let first = order.canary.unwrap_or(agents.len()).min(agents.len());
    let (canaries, others) = agents.split_at(first);
    let mut rows = several(at_once, canaries.iter().map(&one)).await;
    if rows.iter().any(|row| row.outcome == "failed") && order.canary.is_some() {
        rows.extend(others.iter().map(|agent| EquipRow::left_out(name(agent), "one of the first failed")));
    } else {
        rows.extend(several(at_once, others.iter().map(&one)).await);
    }
    rows.sort_by(|a, b| a.agent_name.cmp(&b.agent_name));
    let count = |outcome: &str| rows.iter().filter(|row| row.outcome == outcome).count();
    let (equipped, unchanged, failed, left_out) =
        (count("equipped"), count("unchanged"), count("failed"), count("left_out"));
    let message = format!("{equipped} equipped, {unchanged} unchanged, {failed} failed, {left_out} left out");
    EquipReport { agents: rows, equipped, unchanged, failed, left_out, message }
}

/// Looks at `agents`, `at_once` of them at a time.
pub(crate) async fn drift_all<'a, A>(
    agents: &'a [A],
    at_once: u64,
    one: impl Fn(&'a A) -> BoxFuture<'a, DriftRow>,
) -> DriftReport {
    let mut rows = several(at_once, agents.iter().map(one)).await;
    rows.sort_by(|a, b| a.agent_name.cmp(&b.agent_name));
    DriftReport {
        drifted: rows.iter().filter(|row| row.drift_count > 0).count(),
        total_count: rows.len(),
        agents: rows,
    }
}

async fn several<'a, T>(at_once: u64, work: impl Iterator<Item = BoxFuture<'a, T>>) -> Vec<T> {
    let at_once = usize::try_from(at_once).unwrap_or(1).max(1);
    let work: Vec<_> = work.collect();
    futures_util::stream::iter(work).buffer_unordered(at_once).collect().await
}

/// Input of `equip_agents`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
pub struct EquipAgents {
    /// One agent.
    pub agent_name: Option<String>,
    /// The agents of a project.
    pub project: Option<String>,
    /// All agents.
    #[schemars(extend("default" = false))]
    pub all: Option<bool>,
    /// Pack profile; the one each agent has if left out.
    pub profile: Option<String>,
    /// Equip this many first, and the others only if none of these failed.
    #[schemars(range(min = 1))]
    pub canary: Option<i64>,
    /// Take back the newest deployment.
    #[schemars(extend("default" = false))]
    pub rollback: Option<bool>,
}

/// Input of `fleet_drift`: one agent, the agents of a project, or all of them.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
pub struct FleetDrift {
    /// One agent.
    pub agent_name: Option<String>,
    /// The agents of a project.
    pub project: Option<String>,
}

impl EquipAgents {
    /// Checks the arguments.
    pub(crate) fn order(self) -> Result<EquipOrder, FleetError> {
        let choice = match (self.agent_name, self.project, self.all.unwrap_or(false)) {
            (Some(name), None, false) => Choice::agent(&name),
            (None, Some(project), false) => Choice::Project(project),
            (None, None, true) => Choice::All,
            _ => {
                let message = "Name the agents with exactly one of `agent_name`, `project` and `all`";
                return Err(FleetError::invalid("agent_name", message));
            }
        };
        let count = |number: i64| {
            usize::try_from(number).ok().filter(|number| *number > 0).ok_or_else(|| {
                FleetError::invalid("canary", format!("`canary` is {number}; it counts from 1"))
            })
        };
        let canary = self.canary.map(count).transpose()?;
        Ok(EquipOrder { choice, profile: self.profile, canary, rollback: self.rollback.unwrap_or(false) })
    }
}

impl FleetDrift {
    /// Checks the arguments.
    pub(crate) fn choice(self) -> Result<Choice, FleetError> {
        match (self.agent_name, self.project) {
            (Some(_), Some(_)) => {
                let message = "Give at most one of `agent_name` and `project`";
                Err(FleetError::invalid("agent_name", message))
            }
            (Some(name), None) => Ok(Choice::agent(&name)),
            (None, Some(project)) => Ok(Choice::Project(project)),
            (None, None) => Ok(Choice::All),
        }
    }
}

impl Choice {
    fn agent(name: &str) -> Self {
        Self::Agent(name.trim().to_owned())
    }
}
