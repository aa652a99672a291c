//! The kit of an agent on Coder: goes in through the web terminal, and is compared there.
//!
//! Scripts look, receive and move files; what is to be done is decided here (see `plan`). What a script is given is
//! checked in the workspace before anything there is changed, and a deployment that was begun is finished by the next
//! script that changes something, whoever sends it.

mod plan;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crewkit_core::AgentName;
use futures_util::FutureExt;
use tokio::sync::OnceCell;
use tokio::time::Instant;
use uuid::Uuid;

use self::plan::{Mark, Outcome, Plan, Sight, is_place, sha256};
use super::error::CoderError;
use super::intents::{Intent, Work};
use super::pty::{Shell, from_base64};
use super::wire::WorkspaceAgent;
use super::{CoderHandle, Inner};
use crate::backend::AgentRecord;
use crate::equip::{
    Choice, DriftReport, DriftRow, EquipOrder, EquipReport, EquipRow, NEVER_EQUIPPED, drift_all, equip_all,
    no_kit, no_project,
};
use crate::error::FleetError;
use crate::filter::{self, choose_project};
use crate::kit::{Equipped, Kit, KitFile};
use crate::model::AgentKit;

const COMMON: &str = include_str!("common.sh");
const LOOK: &str = include_str!("look.sh");
const RESUME: &str = include_str!("resume.sh");
const SEE: &str = include_str!("see.sh");
const DEPLOY: &str = include_str!("deploy.sh");
const ROLLBACK: &str = include_str!("rollback.sh");

/// Times a deployment is planned anew because somebody changed a file meanwhile.
const PLANS: usize = 3;

/// Looks at a workspace in which a deployment may still be going on, and the time between them.
const LOOKS: usize = 10;
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Which profile agents get whose workspace says nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Profiles {
    /// By role: its name, the project it is for (any when absent), and the profile.
    pub roles: Vec<(String, Option<String>, String)>,
    /// By project: any of its names, and the profile.
    pub projects: Vec<(String, String)>,
}

impl Profiles {
    fn of(&self, role: &str, projects: &[String]) -> Option<String> {
        let is_project = |word: &str| projects.iter().any(|name| name.eq_ignore_ascii_case(word.trim()));
        let role = self.roles.iter().find(|(name, project, _)| {
            name.eq_ignore_ascii_case(role) && project.as_deref().is_none_or(is_project)
        });
        let project = || self.projects.iter().find(|(project, _)| is_project(project));
        role.map(|(.., profile)| profile).or_else(|| project().map(|(_, profile)| profile)).cloned()
    }
}

/// One lock for each workspace; who deploys into it holds it.
#[derive(Default)]
pub(super) struct Locks(Mutex<HashMap<Uuid, Arc<tokio::sync::Mutex<()>>>>);

impl Locks {
    fn of(&self, workspace: Uuid) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        Arc::clone(locks.entry(workspace).or_default())
    }
}

/// A kit that was read once for many workspaces.
struct Contents {
    files: Vec<KitFile>,
    marks: BTreeMap<String, Mark>,
}

/// Kits by profile, each read when the first workspace needs it.
struct Stock {
    kit: Arc<dyn Kit>,
    profiles: Mutex<HashMap<String, Arc<OnceCell<Arc<Contents>>>>>,
    most: u64,
}

impl Stock {
    fn new(kit: Arc<dyn Kit>, most: u64) -> Self {
        Self { kit, profiles: Mutex::default(), most }
    }

    async fn get(&self, profile: &str) -> Result<Arc<Contents>, String> {
        let cell = {
            let mut profiles = self.profiles.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(profiles.entry(profile.to_owned()).or_default())
        };
        cell.get_or_try_init(|| self.read(profile)).await.cloned()
    }

    async fn read(&self, profile: &str) -> Result<Arc<Contents>, String> {
        let files = self.kit.contents(profile.to_owned()).await.map_err(|error| error.to_string())?;
        if let Some(file) = files.iter().find(|file| !is_place(&file.path)) {
            return Err(format!("the kit has a file no script can place: {}", file.path.escape_debug()));
        }
        let bytes: usize = files.iter().map(|file| file.content.len()).sum();
        if u64::try_from(bytes).unwrap_or(u64::MAX) > self.most {
            let most = self.most;
            return Err(format!(
                "the kit has {bytes} bytes; at most {most} are allowed (limits.fleet_kit_bytes)"
            ));
        }
        let marks = files.iter().map(|file| (file.path.clone(), Mark::of(file))).collect();
        Ok(Arc::new(Contents { files, marks }))
    }
}

/// Why a workspace has not got its kit, and whether that is certain.
struct Trouble {
    message: String,
    /// Whether the last script may have been carried out although its answer is missing.
    in_doubt: bool,
}

impl Trouble {
    fn certain(message: impl Into<String>) -> Self {
        Self { message: message.into(), in_doubt: false }
    }
}

/// What a caller is told when the terminal cannot be used.
fn no_terminal(error: &CoderError) -> Trouble {
    Trouble::certain(format!("its web terminal could not be used: {error}"))
}

impl Inner {
    fn kit(&self) -> Result<Arc<dyn Kit>, FleetError> {
        self.settings.kit.clone().ok_or_else(no_kit)
    }

    /// Deploys the kit into living workspaces.
    pub(super) async fn equip(&self, order: EquipOrder) -> Result<EquipReport, FleetError> {
        let stock = Stock::new(self.kit()?, self.settings.limits.fleet_kit_bytes);
        let agents = self.chosen(&order.choice).await?;
        let one = |agent| self.equip_one(&stock, agent, &order).boxed();
        let at_once = self.settings.limits.fleet_coder_equip_parallel;
        Ok(equip_all(&agents, &order, at_once, |agent| &agent.name, one).await)
    }

    /// Whether a new agent is to have a kit.
    pub(super) fn has_kit_for(&self, role: &str, projects: &[String]) -> bool {
        let kit = self.settings.kit.as_ref();
        kit.is_some_and(|kit| {
            self.settings.profiles.of(role, projects).is_some() || kit.default_profile().is_some()
        })
    }

    /// Deploys the kit into a new workspace that can be reached for the first time.
    pub(super) async fn first_kit(&self, agent: &AgentRecord<CoderHandle>) {
        let Some(kit) = self.settings.kit.clone() else { return };
        let stock = Stock::new(kit, self.settings.limits.fleet_kit_bytes);
        let choice = Choice::Agent(agent.name.clone());
        let order = EquipOrder { choice, profile: None, canary: None, rollback: false };
        let row = self.equip_one(&stock, agent, &order).await;
        match row.error {
            Some(error) => tracing::warn!(agent = agent.name, error, "it is without its kit"),
            None => tracing::info!(agent = agent.name, files = row.changed, "it has its kit"),
        }
    }

    /// Tells how workspaces differ from their kits; changes nothing.
    pub(super) async fn drift(&self, choice: &Choice) -> Result<DriftReport, FleetError> {
        self.kit()?;
        let agents = self.chosen(choice).await?;
        let one = |agent| self.drift_one(agent).boxed();
        Ok(drift_all(&agents, self.settings.limits.fleet_coder_equip_parallel, one).await)
    }

    /// The kit of one agent, for `show_agent`.
    pub(super) async fn shown_kit(&self, agent: &AgentRecord<CoderHandle>) -> Option<AgentKit> {
        self.settings.kit.as_ref()?;
        if let Some(Intent { work: Work::Create { kit: true, .. }, .. }) = self.intent(&agent.name) {
            let error = Some("its kit goes in when its start script is done".to_owned());
            return Some(AgentKit { error, ..AgentKit::default() });
        }
        let workspace = &agent.handle.workspace;
        let looked = self.looked(workspace);
        if !self.may_look(looked.kit_read) {
            return looked.kit;
        }
        let row = self.drift_one(agent).await;
        let kit = match row.error {
            Some(error) if error == NEVER_EQUIPPED => None,
            Some(error) => Some(AgentKit { error: Some(error), ..AgentKit::default() }),
            None => Some(AgentKit {
                profile: row.profile,
                snapshot_id: row.snapshot_id,
                drift_count: Some(row.drift_count),
                error: None,
            }),
        };
        if kit.as_ref().is_none_or(|kit| kit.error.is_none()) {
            self.note_look(workspace, |looked| {
                (looked.kit_read, looked.kit) = (Some(Instant::now()), kit.clone());
            });
        }
        kit
    }

    async fn chosen(&self, choice: &Choice) -> Result<Vec<AgentRecord<CoderHandle>>, FleetError> {
        match choice {
            Choice::All => self.agents(None).await,
            Choice::Agent(name) => {
                let name = AgentName::lookup(name)
                    .map_err(|error| FleetError::invalid("agent_name", error.to_string()))?;
                let mut found = [self.agent(&name).await?];
                self.add_roles(&mut found).await;
                Ok(found.into())
            }
            Choice::Project(word) => {
                let (agents, projects) = tokio::join!(self.agents(None), self.projects());
                let projects = projects?;
                let project = match choose_project(&projects, word) {
                    filter::Choice::One(project) => project,
                    filter::Choice::None => return Err(no_project(word)),
                    filter::Choice::Several(names) => {
                        let names = names.join(", ");
                        return Err(FleetError::invalid(
                            "project",
                            format!("'{word}' may be one of {names}"),
                        ));
                    }
                };
                let mut agents = agents?;
                agents.retain(|agent| agent.project_aliases.contains(&project.id));
                Ok(agents)
            }
        }
    }

    async fn equip_one(
        &self,
        stock: &Stock,
        agent: &AgentRecord<CoderHandle>,
        order: &EquipOrder,
    ) -> EquipRow {
        let Some(process) = connected(agent) else { return EquipRow::left_out(&agent.name, OFFLINE) };
        let lock = self.kit_locks.of(agent.handle.workspace.id);
        let _held = lock.lock().await;
        let until = Instant::now() + Duration::from_millis(self.settings.limits.fleet_kit_ms);
        let asked = order.profile.clone().filter(|_| !order.rollback);
        let profiles = &self.settings.profiles;
        let usual =
            || profiles.of(&agent.role, &agent.project_aliases).or_else(|| stock.kit.default_profile());
        // What was seen before does not count any more, also if this is given up.
        self.note_look(&agent.handle.workspace, |looked| looked.kit_read = None);
        let done = if order.rollback {
            self.take_back(process, until).await
        } else {
            self.put_in(stock, process, asked, &usual, until).await
        };
        match done {
            Ok(Some((profile, equipped))) => EquipRow::done(&agent.name, profile, equipped),
            Ok(None) if order.rollback => {
                EquipRow::left_out(&agent.name, "there is no deployment to take back")
            }
            Ok(None) => EquipRow::left_out(&agent.name, "neither its role nor its project names a profile"),
            Err(trouble) => EquipRow::failed(&agent.name, None, trouble.message),
        }
    }

    /// Makes one workspace as its profile says; none when there is no profile for it.
    async fn put_in(
        &self,
        stock: &Stock,
        process: &WorkspaceAgent,
        asked: Option<String>,
        usual: &(dyn Fn() -> Option<String> + Sync),
        until: Instant,
    ) -> Result<Option<(String, Equipped)>, Trouble> {
        let snapshot_id = Uuid::now_v7().to_string();
        for _ in 0..PLANS {
            let mut shell =
                Shell::open(&self.client, process, until).await.map_err(|error| no_terminal(&error))?;
            let mut sight = ask(&mut shell, &format!("{COMMON}{RESUME}"), b"").await?;
            let recorded = sight.record.as_ref().map(|record| record.profile.clone());
            let Some(profile) = asked.clone().or(recorded).or_else(usual) else { return Ok(None) };
            let contents = stock.get(&profile).await.map_err(Trouble::certain)?;
            let paths: String = contents.marks.keys().map(|path| format!("{path}\n")).collect();
            sight.seen.extend(ask(&mut shell, SEE, paths.as_bytes()).await?.seen);
            let plan = Plan::make(&profile, &snapshot_id, &contents.marks, &sight);
            let mut equipped = Equipped {
                snapshot_id: None,
                changed: plan.changes.len(),
                drifted: plan.drifted.clone(),
                left_alone: plan.left_alone.clone(),
            };
            if plan.is_done(&sight) {
                return Ok(Some((profile, equipped)));
            }
            equipped.snapshot_id = (equipped.changed > 0).then(|| snapshot_id.clone());
            let files = contents.files.iter().map(|file| (file.path.as_str(), file)).collect();
            let payload = plan.payload(&files);
            let script = format!(
                "payload={} plan={} manifest={}\n{DEPLOY}",
                sha256(&payload.bytes),
                payload.plan,
                payload.record
            );
            match ask(&mut shell, &script, &payload.bytes).await {
                Ok(Sight { outcome: Some(Outcome::Done), .. }) => return Ok(Some((profile, equipped))),
                Ok(_) => {}
                Err(trouble) if trouble.in_doubt => {
                    let message = trouble.message;
                    return match self.settled_look(process, until).await {
                        Some(now) if now.record.as_ref() == Some(&plan.record) && !now.pending => {
                            Ok(Some((profile, equipped)))
                        }
                        Some(now) if now.pending => Err(Trouble::certain(format!(
                            "{message}; it was begun, and equipping again finishes it"
                        ))),
                        Some(_) => Err(Trouble::certain(format!("{message}; nothing was changed"))),
                        None => Err(Trouble::certain(format!(
                            "{message}; whether it was done is not known, fleet_drift shows it later"
                        ))),
                    };
                }
                Err(trouble) => return Err(trouble),
            }
        }
        Err(Trouble::certain(
            "its files were changed again and again while it was to be equipped; nothing was changed",
        ))
    }

    /// Takes the newest deployment into one workspace back; none when there is none.
    async fn take_back(
        &self,
        process: &WorkspaceAgent,
        until: Instant,
    ) -> Result<Option<(String, Equipped)>, Trouble> {
        let mut shell =
            Shell::open(&self.client, process, until).await.map_err(|error| no_terminal(&error))?;
        let before = ask(&mut shell, &format!("{COMMON}{RESUME}"), b"").await?;
        if !before.undo {
            return Ok(None);
        }
        let after = ask(&mut shell, ROLLBACK, b"").await?;
        if after.outcome != Some(Outcome::Done) {
            return Ok(None);
        }
        let profile = |sight: &Sight| sight.record.as_ref().map(|record| record.profile.clone());
        let marks =
            |sight: &Sight| sight.record.as_ref().map(|record| record.files.clone()).unwrap_or_default();
        let (old, new) = (marks(&before), marks(&after));
        let differs = |path: &&String| old.get(*path) != new.get(*path);
        let paths: std::collections::BTreeSet<&String> = old.keys().chain(new.keys()).collect();
        let equipped = Equipped {
            snapshot_id: after.record.as_ref().map(|record| record.snapshot_id.clone()),
            changed: paths.into_iter().filter(differs).count(),
            drifted: after.kept.clone(),
            left_alone: Vec::new(),
        };
        Ok(Some((profile(&after).or_else(|| profile(&before)).unwrap_or_default(), equipped)))
    }

    async fn drift_one(&self, agent: &AgentRecord<CoderHandle>) -> DriftRow {
        let Some(process) = connected(agent) else {
            return DriftRow::of(&agent.name, None, None, Err(OFFLINE.to_owned()));
        };
        let until = Instant::now() + Duration::from_millis(self.settings.limits.fleet_coder_request_ms);
        let (record, found) = match self.look(process, until).await {
            Err(trouble) => (None, Err(trouble.message)),
            Ok(Sight { record: None, pending: false, .. }) => (None, Err(NEVER_EQUIPPED.to_owned())),
            Ok(sight) if sight.pending => (
                sight.record,
                Err("a deployment was interrupted; equipping it again finishes that".to_owned()),
            ),
            Ok(sight) => {
                let drift = sight.drift();
                (sight.record, Ok(drift))
            }
        };
        let (profile, snapshot) = record.map(|record| (record.profile, record.snapshot_id)).unzip();
        DriftRow::of(&agent.name, profile, snapshot, found)
    }

    /// What became of an order whose answer was lost: the workspace itself tells, once nothing is going on in it.
    async fn settled_look(&self, process: &WorkspaceAgent, until: Instant) -> Option<Sight> {
        for _ in 0..LOOKS {
            let sight = self.look(process, until).await.ok()?;
            if !sight.busy {
                return Some(sight);
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        None
    }

    /// Looks at the kit in a workspace; changes nothing.
    async fn look(&self, process: &WorkspaceAgent, until: Instant) -> Result<Sight, Trouble> {
        let mut shell =
            Shell::open(&self.client, process, until).await.map_err(|error| no_terminal(&error))?;
        ask(&mut shell, &format!("{COMMON}{LOOK}"), b"").await
    }
}

/// Why a workspace cannot be reached.
const OFFLINE: &str = "its workspace is not running, not connected to Coder, or its start script is not done";

/// The process of Coder's in the workspace, once its start script is done: what is put in earlier lands in another
/// directory, or in the way of `git clone`.
fn connected(agent: &AgentRecord<CoderHandle>) -> Option<&WorkspaceAgent> {
    let workspace = &agent.handle.workspace;
    let is_running = workspace.latest_build.status == "running";
    let is_done = |process: &&WorkspaceAgent| {
        let state = process.lifecycle_state.as_str();
        process.status == "connected" && matches!(state, "ready" | "start_timeout" | "start_error")
    };
    workspace.top_agents().find(is_done).filter(|_| is_running)
}

/// Whether a new workspace can get its kit.
pub(super) fn is_reachable(agent: &AgentRecord<CoderHandle>) -> bool {
    connected(agent).is_some()
}

async fn ask(shell: &mut Shell, script: &str, data: &[u8]) -> Result<Sight, Trouble> {
    let lines = shell.type_in(script, data).await.map_err(|lost| {
        let nothing = if lost.may_run { "" } else { "; nothing was changed" };
        let message = format!("the connection to its terminal was lost: {}{nothing}", lost.error);
        Trouble { message, in_doubt: lost.may_run }
    })?;
    Sight::parse(&lines).map_err(Trouble::certain)
}
