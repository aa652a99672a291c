//! Equipping workspaces on this machine, and telling how they differ from their kits.

use std::sync::Arc;

use futures_util::FutureExt;

use super::Local;
use super::owner::{Command, Owner};
use super::record::{AgentRow, Phase};
use super::settings::Asker;
use super::store::Change;
use crate::equip::{
    Choice, DriftReport, DriftRow, EquipOrder, EquipReport, EquipRow, NEVER_EQUIPPED, drift_all, equip_all,
    no_kit, no_project,
};
use crate::error::FleetError;
use crate::kit::{Equipped, Kit, KitError, KitState};

impl Local {
    /// Deploys the kit into living workspaces. One that fails is reported; the others are done.
    pub async fn equip(&self, order: EquipOrder) -> Result<EquipReport, FleetError> {
        self.kit()?;
        let agents = self.chosen(&order.choice).await?;
        let order = Arc::new(order);
        let one = |agent| self.equip_one(agent, &order).boxed();
        let at_once = self.shared.options.limits.fleet_equip_parallel;
        Ok(equip_all(&agents, &order, at_once, |agent| &agent.name, one).await)
    }

    async fn equip_one(&self, agent: &Arc<AgentRow>, order: &Arc<EquipOrder>) -> EquipRow {
        let equip =
            |reply| Command::Equip { order: Arc::clone(order), asker: Arc::clone(&self.asker), reply };
        let equipped = self.command(agent, equip).await;
        equipped.unwrap_or_else(|error| EquipRow::failed(&agent.name, None, error.to_string()))
    }

    /// The profile that is asked for, else the one the agent has, else that of its role, its project, or the pack.
    fn profile_for(&self, kit: &Arc<dyn Kit>, agent: &AgentRow, asked: Option<String>) -> Option<String> {
        let project = || self.project_of(agent).ok().and_then(|project| project.profile);
        let own = || agent.kit.as_ref().map(|kit| kit.profile.clone());
        asked
            .or_else(own)
            .or_else(|| self.role_of(agent).profile)
            .or_else(project)
            .or_else(|| kit.default_profile())
    }

    /// Tells how workspaces differ from their kits.
    pub async fn drift(&self, choice: &Choice) -> Result<DriftReport, FleetError> {
        let kit = self.kit()?;
        let agents = self.chosen(choice).await?;
        let one = |agent| self.drift_one(&kit, agent).boxed();
        Ok(drift_all(&agents, self.shared.options.limits.fleet_equip_parallel, one).await)
    }

    async fn drift_one(&self, kit: &Arc<dyn Kit>, agent: &Arc<AgentRow>) -> DriftRow {
        let found = match &agent.kit {
            None => Err(NEVER_EQUIPPED.to_owned()),
            Some(state) => {
                let drift = kit.drift(self.kit_place(agent, &state.profile)).await;
                drift.map_err(|error| error.to_string())
            }
        };
        let profile = agent.kit.as_ref().map(|kit| kit.profile.clone());
        let snapshot = agent.kit.as_ref().and_then(|kit| kit.snapshot_id.clone());
        DriftRow::of(&agent.name, profile, snapshot, found)
    }

    fn kit(&self) -> Result<Arc<dyn Kit>, FleetError> {
        self.asker.settings.kit.clone().ok_or_else(no_kit)
    }

    async fn chosen(&self, choice: &Choice) -> Result<Vec<Arc<AgentRow>>, FleetError> {
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
                let project = self.projects().await.into_iter().find(|project| project.answers_to(word));
                let project = project.ok_or_else(|| no_project(word))?;
                agents.retain(|agent| agent.project == project.id);
            }
        }
        agents.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(agents)
    }
}

impl Owner {
    pub(super) async fn equip(&self, order: &EquipOrder, asker: &Asker) -> EquipRow {
        let ready = self.agent().ok().filter(|agent| agent.phase == Phase::Ready);
        let (Some(agent), Some(kit)) = (ready, &asker.settings.kit) else {
            let name = self.agent().map(|agent| agent.name.clone()).unwrap_or_default();
            return EquipRow::left_out(&name, "its workspace is not there");
        };
        let wanted = order.profile.clone().filter(|_| !order.rollback);
        let Some(profile) = self.local.profile_for(kit, &agent, wanted) else {
            return EquipRow::left_out(&agent.name, "neither its role nor its project names a profile");
        };
        let place = self.local.kit_place(&agent, &profile);
        let equipped = match (order.rollback, agent.kit.as_ref().and_then(|kit| kit.snapshot_id.clone())) {
            (false, _) => kit.equip(place).await,
            (true, Some(snapshot)) => kit.rollback(place, snapshot).await,
            (true, None) => {
                return EquipRow::left_out(&agent.name, "there is no deployment to take back");
            }
        };
        let equipped = equipped.and_then(|equipped| {
            let failed = self.local.shared.options.faults.after("pack");
            let failed =
                failed.map_err(|error| KitError { code: "pack".to_owned(), message: error.to_string() });
            failed.map(|()| equipped)
        });
        match self.note_kit(&agent, &profile, equipped).await {
            Ok(equipped) => EquipRow::done(&agent.name, profile, equipped),
            Err(error) => EquipRow::failed(&agent.name, Some(profile), error.to_string()),
        }
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
        let noted = AgentRow { kit: Some(kit), updated_ms: self.local.now_ms(), ..agent.clone() };
        let written = self.write(vec![Change::PutAgent(noted)]).await;
        written.map_err(|error| KitError { code: "store".to_owned(), message: error.to_string() })?;
        Ok(equipped)
    }

    /// Ends a deployment that died with the server before: nobody shall work between two kits.
    pub(super) async fn finish_kit(&self, agent: &AgentRow, asker: &Asker) {
        let Some(kit) = &asker.settings.kit else { return };
        let Some(profile) = self.local.profile_for(kit, agent, None) else { return };
        let finished = match kit.finish(self.local.kit_place(agent, &profile)).await {
            Ok(None) => return,
            Ok(Some(snapshot_id)) => {
                let equipped = Equipped { snapshot_id: Some(snapshot_id), ..Equipped::default() };
                self.note_kit(agent, &profile, Ok(equipped)).await.map(drop)
            }
            Err(error) => Err(error),
        };
        if let Err(error) = finished {
            tracing::error!(agent = agent.name, %error, "a kit that was cut short could not be finished");
        }
    }
}
