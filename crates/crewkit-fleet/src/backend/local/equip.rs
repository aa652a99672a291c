//! Equipping living workspaces with a changed kit, and telling how they differ from it.

use std::sync::Arc;

use futures_util::{FutureExt, StreamExt};
use serde::Serialize;

use super::Local;
use super::kit::{Drift, Equipped, Kit, KitError, KitState};
use super::record::{AgentRow, Phase};
use super::store::Change;
use crate::error::FleetError;

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
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
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
    /// Files of the kit that somebody had changed; what they were can be had back with a rollback.
    pub drifted: Vec<String>,
    /// Places where the project has a file of its own; they are as they were.
    pub left_alone: Vec<String>,
    /// Why it failed or was left out.
    pub error: Option<String>,
}

/// What came of all of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EquipReport {
    /// One row for each agent, by name.
    pub agents: Vec<EquipRow>,
    /// Workspaces that were changed.
    pub equipped: usize,
    /// Workspaces that had everything already.
    pub unchanged: usize,
    /// Workspaces where it failed; nothing was changed in them.
    pub failed: usize,
    /// Workspaces that were not touched because an earlier one failed, or that cannot be equipped.
    pub left_out: usize,
    /// What happened, for people.
    pub message: String,
}

/// How one workspace differs from its kit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
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

/// How all of them differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DriftReport {
    /// One row for each agent, by name.
    pub agents: Vec<DriftRow>,
    /// Agents whose workspace differs from its kit.
    pub drifted: usize,
    /// Agents looked at.
    pub total_count: usize,
}

impl Local {
    /// Deploys the kit into living workspaces. One that fails is reported; the others are done.
    pub async fn equip(&self, order: EquipOrder) -> Result<EquipReport, FleetError> {
        let kit = self.kit()?;
        let agents = self.chosen(&order.choice)?;
        let first = order.canary.unwrap_or(agents.len()).min(agents.len());
        let (canaries, others) = agents.split_at(first);
        let mut rows = self.equip_all(&kit, canaries, &order).await;
        if rows.iter().any(|row| row.outcome == "failed") && order.canary.is_some() {
            rows.extend(others.iter().map(|agent| EquipRow {
                outcome: "left_out",
                error: Some("one of the first failed".to_owned()),
                ..row(agent, None)
            }));
        } else {
            rows.extend(self.equip_all(&kit, others, &order).await);
        }
        rows.sort_by(|a, b| a.agent_name.cmp(&b.agent_name));
        let count = |outcome: &str| rows.iter().filter(|row| row.outcome == outcome).count();
        let (equipped, unchanged, failed, left_out) =
            (count("equipped"), count("unchanged"), count("failed"), count("left_out"));
        let message =
            format!("{equipped} equipped, {unchanged} unchanged, {failed} failed, {left_out} left out");
        Ok(EquipReport { agents: rows, equipped, unchanged, failed, left_out, message })
    }

    async fn equip_all(
        &self,
        kit: &Arc<dyn Kit>,
        agents: &[Arc<AgentRow>],
        order: &EquipOrder,
    ) -> Vec<EquipRow> {
        let at_once = usize::try_from(self.shared.options.limits.fleet_equip_parallel).unwrap_or(1).max(1);
        let wishes: Vec<_> = agents.iter().map(|agent| self.equip_one(kit, agent, order).boxed()).collect();
        futures_util::stream::iter(wishes).buffer_unordered(at_once).collect().await
    }

    async fn equip_one(&self, kit: &Arc<dyn Kit>, agent: &AgentRow, order: &EquipOrder) -> EquipRow {
        let lock = self.lock(&agent.id);
        let _held = lock.lock().await;
        let left_out = |agent: &AgentRow, error: &str| EquipRow {
            outcome: "left_out",
            error: Some(error.to_owned()),
            ..row(agent, None)
        };
        let Some(agent) = self.shared.store.agent(&agent.id).filter(|agent| agent.phase == Phase::Ready)
        else {
            return left_out(agent, "its workspace is not there");
        };
        let Some(profile) = self.profile_for(kit, &agent, order) else {
            return left_out(&agent, "neither its role nor its project names a profile");
        };
        let place = self.kit_place(&agent, &profile);
        let equipped = match (order.rollback, agent.kit.as_ref().and_then(|kit| kit.snapshot_id.clone())) {
            (false, _) => kit.equip(place).await,
            (true, Some(snapshot)) => kit.rollback(place, snapshot).await,
            (true, None) => return left_out(&agent, "there is no deployment to take back"),
        };
        match self.note_kit(&agent, &profile, equipped).await {
            Ok(equipped) => EquipRow {
                outcome: if equipped.changed == 0 { "unchanged" } else { "equipped" },
                snapshot_id: equipped.snapshot_id,
                changed: equipped.changed,
                drifted: equipped.drifted,
                left_alone: equipped.left_alone,
                ..row(&agent, Some(profile))
            },
            Err(error) => {
                EquipRow { outcome: "failed", error: Some(error.to_string()), ..row(&agent, Some(profile)) }
            }
        }
    }

    /// The profile that is asked for, else the one the agent has, else that of its role, its project, or the pack.
    fn profile_for(&self, kit: &Arc<dyn Kit>, agent: &AgentRow, order: &EquipOrder) -> Option<String> {
        let project = || self.project(&agent.project).ok().and_then(|project| project.profile);
        let own = || agent.kit.as_ref().map(|kit| kit.profile.clone());
        let asked = order.profile.clone().filter(|_| !order.rollback);
        asked
            .or_else(own)
            .or_else(|| self.role_of(agent).profile)
            .or_else(project)
            .or_else(|| kit.default_profile())
    }

    async fn note_kit(
        &self,
        agent: &AgentRow,
        profile: &str,
        equipped: Result<Equipped, KitError>,
    ) -> Result<Equipped, KitError> {
        let equipped = equipped?;
        let before = agent.kit.clone().unwrap_or_default();
        let kit = KitState {
            profile: profile.to_owned(),
            snapshot_id: equipped.snapshot_id.clone().or(before.snapshot_id),
        };
        let noted = AgentRow { kit: Some(kit), updated_ms: self.now_ms(), ..agent.clone() };
        self.shared
            .store
            .write(vec![Change::PutAgent(noted)])
            .await
            .map_err(|error| KitError { code: "store".to_owned(), message: error.to_string() })?;
        Ok(equipped)
    }

    /// Tells how workspaces differ from their kits.
    pub async fn drift(&self, choice: &Choice) -> Result<DriftReport, FleetError> {
        let kit = self.kit()?;
        let agents = self.chosen(choice)?;
        let at_once = usize::try_from(self.shared.options.limits.fleet_equip_parallel).unwrap_or(1).max(1);
        let looks: Vec<_> = agents.iter().map(|agent| self.drift_one(&kit, agent).boxed()).collect();
        let mut rows: Vec<DriftRow> =
            futures_util::stream::iter(looks).buffer_unordered(at_once).collect().await;
        rows.sort_by(|a, b| a.agent_name.cmp(&b.agent_name));
        Ok(DriftReport {
            drifted: rows.iter().filter(|row| row.drift_count > 0).count(),
            total_count: rows.len(),
            agents: rows,
        })
    }

    async fn drift_one(&self, kit: &Arc<dyn Kit>, agent: &AgentRow) -> DriftRow {
        let (found, error) = match &agent.kit {
            None => (Drift::default(), Some("it was never equipped".to_owned())),
            Some(state) => match kit.drift(self.kit_place(agent, &state.profile)).await {
                Ok(drift) => (drift, None),
                Err(error) => (Drift::default(), Some(error.to_string())),
            },
        };
        DriftRow {
            agent_name: agent.name.clone(),
            profile: agent.kit.as_ref().map(|kit| kit.profile.clone()),
            snapshot_id: agent.kit.as_ref().and_then(|kit| kit.snapshot_id.clone()),
            drift_count: found.count(),
            modified: found.modified,
            missing: found.missing,
            error,
        }
    }

    fn kit(&self) -> Result<Arc<dyn Kit>, FleetError> {
        self.shared.options.kit.clone().ok_or_else(|| {
            FleetError::bad_request(
                "there is no pack to equip agents with; make one with `crewkit pack init`",
            )
            .with("reason", "no_kit")
        })
    }

    fn chosen(&self, choice: &Choice) -> Result<Vec<Arc<AgentRow>>, FleetError> {
        let mut agents = self.shared.store.agents();
        match choice {
            Choice::All => {}
            Choice::Agent(name) => {
                agents.retain(|agent| agent.name.eq_ignore_ascii_case(name));
                if agents.is_empty() {
                    return Err(FleetError::no_such_agent(name));
                }
            }
            Choice::Project(word) => {
                let project = self.projects_now().into_iter().find(|project| project.answers_to(word));
                let project = project.ok_or_else(|| {
                    FleetError::new(crate::ErrorKind::NotFound, format!("project '{word}' does not exist"))
                        .with("field", "project")
                })?;
                agents.retain(|agent| agent.project == project.id);
            }
        }
        agents.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(agents)
    }
}

fn row(agent: &AgentRow, profile: Option<String>) -> EquipRow {
    EquipRow {
        agent_name: agent.name.clone(),
        outcome: "left_out",
        profile,
        snapshot_id: None,
        changed: 0,
        drifted: Vec::new(),
        left_alone: Vec::new(),
        error: None,
    }
}
