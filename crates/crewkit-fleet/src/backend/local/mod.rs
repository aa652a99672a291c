//! The fleet on this machine: an agent is a workspace, a driver and a kit.
//!
//! What is known is in the [`store`]; statuses are derived from it and from what can be seen (see `status`). Every task is a
//! run of crewkit-agent.

mod backend;
mod checkouts;
mod copy;
mod diff;
mod equip;
pub mod git;
pub mod git_output;
#[cfg(test)]
mod git_states_tests;
mod hazard;
pub mod keep;
mod land;
mod land_commits;
mod lazy;
mod life;
mod metadata;
mod options;
mod output;
mod owner;
pub mod patch;
pub mod project;
mod prompt;
pub(crate) use prompt::headline;
pub mod record;
pub mod role;
mod secrets;
mod settings;
mod snapshot;
mod status;
pub mod store;
pub mod trash;
mod work;
pub mod worktree;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use crewkit_agent::{Engine, RecordedSettings, RunSettings};
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use backend::Handle;
pub use lazy::LocalFleet;
pub use options::{Faults, LOOP, LocalOptions, ProjectConfig, REHEARSAL};
pub use settings::FleetSettings;
pub use work::MARK_TASK;

use metadata::MetadataCache;
use owner::Mailbox;
use project::{LocalProject, ProjectError};
use record::{AgentRow, ProjectRow};
use role::RoleConfig;
use settings::Asker;
use store::{Change, Store, StoreError};
use trash::Trash;

use crate::error::FleetError;

/// How often the trash is looked through.
const SWEEP: Duration = Duration::from_hours(1);

/// The fleet on this machine, as one asker sees it; a handle that can be cloned.
#[derive(Clone)]
pub struct Local {
    shared: Arc<Shared>,
    asker: Arc<Asker>,
}

struct Shared {
    options: LocalOptions,
    engine: Engine,
    store: Store,
    trash: Trash,
    /// The mailbox of each agent's owner.
    owners: Mutex<HashMap<String, Mailbox>>,
    /// Entries in the log of each task that is over.
    log_lengths: Mutex<HashMap<String, usize>>,
    /// The run settings of agents.
    run_settings: Mutex<HashMap<String, Arc<RecordedSettings>>>,
    /// Projects somebody registered.
    projects: RwLock<Vec<LocalProject>>,
    /// Held by whoever registers or forgets a project.
    registry: tokio::sync::Mutex<()>,
    metadata: MetadataCache,
    tracker: TaskTracker,
    shutdown: CancellationToken,
}

impl std::fmt::Debug for Local {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Local").field("home", &self.shared.options.home).finish_non_exhaustive()
    }
}

/// Why the fleet could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A directory could not be made.
    #[error("{}: {source}", path.display())]
    Path {
        /// Which.
        path: std::path::PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The record could not be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A setting cannot be used.
    #[error("{0}")]
    Setting(String),
}

impl Local {
    /// Opens the record and goes on with what an earlier server left half done.
    ///
    /// Must be called within a tokio runtime.
    pub fn open(options: LocalOptions, engine: Engine) -> BoxFuture<'static, Result<Self, OpenError>> {
        Box::pin(async move {
            check_drivers(&options)?;
            let home = options.home.clone();
            let scratch = options.taskfile_sandbox.as_ref().ok().map(|sandbox| sandbox.scratch.clone());
            let opened = tokio::task::spawn_blocking(move || {
                for dir in [&home, &home.join("workspaces"), &home.join("trash")] {
                    crate::sys::create_private_dir(dir)
                        .map_err(|source| OpenError::Path { path: dir.clone(), source })?;
                }
                // The home has one server: what is here is left from one that was killed.
                let _ = scratch.map(std::fs::remove_dir_all);
                let _ = std::fs::remove_dir_all(home.join(snapshot::DIRECTORY));
                Ok::<_, OpenError>(())
            });
            opened.await.map_err(|_| OpenError::Setting("the fleet could not be opened".to_owned()))??;
            let store = Store::open(engine.documents()).await?;
            let run_settings = Mutex::new(store.run_settings().await?);
            let keep = Duration::from_secs(options.limits.fleet_trash_days.saturating_mul(86_400));
            let local = Self {
                asker: Asker::new(options.settings.clone()),
                shared: Arc::new(Shared {
                    trash: Trash::new(options.home.join("trash"), keep, options.clock.clone()),
                    owners: Mutex::default(),
                    run_settings,
                    log_lengths: Mutex::default(),
                    projects: RwLock::default(),
                    registry: tokio::sync::Mutex::default(),
                    metadata: MetadataCache::default(),
                    tracker: TaskTracker::new(),
                    shutdown: CancellationToken::new(),
                    store,
                    engine,
                    options,
                }),
            };
            local.load_projects().await;
            local.asker.configured(&local.shared.options.git).await;
            local.recover().await;
            local.spawn_sweep();
            Ok(local)
        })
    }

    /// Lets go of everything. Tasks work on as runs do.
    pub fn shutdown(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.shared.shutdown.cancel();
            self.shared.tracker.close();
            self.shared.tracker.wait().await;
        })
    }

    /// The same fleet for an asker with settings of its own.
    #[must_use]
    pub fn for_asker(&self, settings: FleetSettings) -> Self {
        Self { shared: Arc::clone(&self.shared), asker: Asker::new(settings) }
    }

    /// The names of the agents whose newest task has not ended.
    pub fn agents_with_open_tasks(&self) -> Vec<String> {
        let agents = self.shared.store.agents().into_iter();
        agents.filter(|agent| self.open_task(&agent.id).is_some()).map(|agent| agent.name.clone()).collect()
    }

    async fn load_projects(&self) {
        let mut projects = Vec::new();
        for row in self.shared.store.projects() {
            match project::look(&self.shared.options.git, &row.path, Some(&row.name)).await {
                Ok(found) => projects.push(found),
                Err(error) => tracing::warn!(%error, project = row.name, "a project is left out"),
            }
        }
        *self.shared.projects.write().unwrap_or_else(PoisonError::into_inner) = projects;
    }

    /// Starts the owner of every agent. Returns when each has taken up its task.
    async fn recover(&self) {
        let agents = self.shared.store.agents();
        let settled: Vec<_> = agents.iter().map(|agent| self.spawn_owner(&agent.id)).collect();
        futures_util::future::join_all(settled).await;
        self.forget_lost_work().await;
    }

    /// Registers the repository at `path`, or the directory itself when it is in none. Registering it again changes nothing
    /// but its name. What was begun is finished even if the returned future is dropped.
    pub async fn add_project(
        &self,
        path: &std::path::Path,
        name: Option<&str>,
    ) -> Result<LocalProject, FleetError> {
        let (local, path, name) = (self.clone(), path.to_owned(), name.map(str::to_owned));
        let adding =
            self.shared.tracker.spawn(async move { local.register_project(&path, name.as_deref()).await });
        adding.await.unwrap_or_else(|_| Err(FleetError::unavailable("the project could not be registered")))
    }

    async fn register_project(
        &self,
        path: &std::path::Path,
        name: Option<&str>,
    ) -> Result<LocalProject, FleetError> {
        let looked = project::look(&self.shared.options.git, path, name).await;
        let mut found = looked.map_err(|error| match error {
            ProjectError::Git(error) => FleetError::unavailable(error.to_string()),
            other => FleetError::invalid("path", other.to_string()),
        })?;
        let _registry = self.shared.registry.lock().await;
        let configured = self.asker.configured(&self.shared.options.git).await;
        let known: Vec<LocalProject> = configured.iter().cloned().chain(self.registered()).collect();
        if let Some(same) = known.iter().find(|project| project.id == found.id)
            && name.is_none_or(|name| name.trim() == same.name)
        {
            return Ok(same.clone());
        }
        if let Some(free) = free_name(&found, &known) {
            if name.is_some() {
                return Err(FleetError::invalid(
                    "name",
                    format!("project '{}' already exists; choose another name", found.name),
                ));
            }
            found.name = free;
        }
        let row = ProjectRow { id: found.id.clone(), name: found.name.clone(), path: found.path.clone() };
        self.shared.store.write(vec![Change::PutProject(row)]).await.map_err(|error| store_error(&error))?;
        let mut projects = self.shared.projects.write().unwrap_or_else(PoisonError::into_inner);
        projects.retain(|project| project.id != found.id);
        projects.push(found.clone());
        Ok(found)
    }

    /// Registers the repository that `dir` is in; does nothing when it is in none.
    pub fn add_repository_of<'a>(
        &'a self,
        dir: &'a std::path::Path,
    ) -> BoxFuture<'a, Result<Option<LocalProject>, FleetError>> {
        Box::pin(async move {
            match project::look(&self.shared.options.git, dir, None).await {
                Ok(found) if matches!(found.kind, project::Kind::Repository { .. }) => {
                    self.add_project(&found.path, None).await.map(Some)
                }
                Ok(_) => Ok(None),
                Err(error) => Err(FleetError::unavailable(error.to_string())),
            }
        })
    }

    /// Forgets a project that has no agents; its files stay as they are.
    pub async fn remove_project(&self, word: &str) -> Result<LocalProject, FleetError> {
        let _registry = self.shared.registry.lock().await;
        let project =
            self.registered().into_iter().find(|project| project.answers_to(word)).ok_or_else(|| {
                FleetError::new(crate::ErrorKind::NotFound, format!("project '{word}' does not exist"))
            })?;
        let agents = self.shared.store.agents();
        if let Some(agent) = agents.iter().find(|agent| agent.project == project.id) {
            return Err(FleetError::conflict(format!(
                "project '{}' has agents, '{}' among them; delete them first",
                project.name, agent.name
            )));
        }
        let change = Change::DropProject(project.id.clone());
        self.shared.store.write(vec![change]).await.map_err(|error| store_error(&error))?;
        self.shared
            .projects
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|known| known.id != project.id);
        Ok(project)
    }

    fn spawn_sweep(&self) {
        let local = self.clone();
        self.shared.tracker.spawn(async move {
            loop {
                if let Err(error) = local.shared.trash.sweep().await {
                    tracing::warn!(%error, "the trash could not be swept");
                }
                tokio::select! {
                    () = tokio::time::sleep(SWEEP) => {}
                    () = local.shared.shutdown.cancelled() => return,
                }
            }
        });
    }

    fn registered(&self) -> Vec<LocalProject> {
        self.shared.projects.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Projects of the asker's configuration, registered ones, and the repository the asker works in.
    async fn projects(&self) -> Vec<LocalProject> {
        let git = &self.shared.options.git;
        let mut projects = self.asker.configured(git).await.to_vec();
        let others = self.registered().into_iter().chain(self.asker.repository(git).await.cloned());
        for mut project in others {
            if projects.iter().all(|known| known.id != project.id) {
                project.name = free_name(&project, &projects).unwrap_or(project.name);
                projects.push(project);
            }
        }
        projects
    }

    /// The project of an agent, as it was when the agent was created.
    fn project_of(&self, agent: &AgentRow) -> Result<LocalProject, FleetError> {
        let fixed = agent.settings.as_ref().map(|settings| settings.project.clone());
        let known = || {
            let configured = self.asker.configured_now().iter().cloned();
            configured.chain(self.registered()).find(|project| project.id == agent.project)
        };
        fixed
            .or_else(known)
            .ok_or_else(|| FleetError::unavailable("the agent's project is not registered any more"))
    }

    fn project_name(&self, agent: &AgentRow) -> String {
        self.project_of(agent).map_or_else(|_| "unknown".to_owned(), |project| project.name)
    }

    /// The role of an agent, as it was when the agent was created.
    fn role_of(&self, agent: &AgentRow) -> RoleConfig {
        if let Some(settings) = &agent.settings {
            return settings.role.clone();
        }
        let roles = role::of_project(&self.asker.settings.roles, &self.project_name(agent));
        roles.into_iter().find(|role| role.name.eq_ignore_ascii_case(&agent.role)).unwrap_or_default()
    }

    /// Makes `settings` those of agent `id`.
    fn fix_run_settings(&self, id: &str, settings: &Arc<RecordedSettings>) {
        let mut known = self.shared.run_settings.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(id.to_owned(), Arc::clone(settings));
    }

    /// What tasks of an agent are carried out with: the settings it was created with, else the server's own.
    fn recorded_settings(&self, agent: &str) -> Arc<RecordedSettings> {
        let known = self.shared.run_settings.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known.get(agent).cloned();
        drop(known);
        found.unwrap_or_else(|| self.shared.engine.record_settings(&self.shared.options.settings.run))
    }

    /// The same without secrets, for looking.
    fn run_settings(&self, agent: &str) -> Arc<RunSettings> {
        Arc::clone(self.recorded_settings(agent).redacted())
    }

    fn owners(&self) -> MutexGuard<'_, HashMap<String, Mailbox>> {
        self.shared.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> i64 {
        self.shared.options.clock.now().unix_ms()
    }
}

/// A name for `project` that none of `known` has; `None` if its own is free.
fn free_name(project: &LocalProject, known: &[LocalProject]) -> Option<String> {
    let taken = |name: &str| {
        known.iter().any(|other| other.id != project.id && other.name.to_lowercase() == name.to_lowercase())
    };
    if !taken(&project.name) {
        return None;
    }
    let free = (2..1000).map(|number| format!("{}-{number}", project.name)).find(|name| !taken(name));
    Some(free.unwrap_or_else(|| project.id.clone()))
}

fn store_error(error: &StoreError) -> FleetError {
    FleetError::unavailable(error.to_string()).with("reason", "store")
}

/// Returns an error if a setting names a driver that does not exist.
fn check_drivers(options: &LocalOptions) -> Result<(), OpenError> {
    let settings = &options.settings;
    let named = settings.driver.iter().chain(settings.roles.iter().filter_map(|role| role.driver.as_ref()));
    for name in named {
        settings::driver(&settings.run, name).map_err(OpenError::Setting)?;
    }
    Ok(())
}
