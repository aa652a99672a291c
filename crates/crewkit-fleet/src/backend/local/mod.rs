//! The fleet on this machine: an agent is a workspace, a driver and a kit.
//!
//! What is known is in the [`store`]; statuses are derived from it and from what can be seen (see `status`). Tasks are
//! carried out by runs of crewkit-agent or by command lines that are [`held`] apart from the server.

mod backend;
mod copy;
mod equip;
pub mod git;
pub mod git_output;
#[cfg(test)]
mod git_states_tests;
mod hazard;
pub mod held;
pub mod keep;
mod life;
mod metadata;
mod options;
mod output;
pub mod project;
mod prompt;
pub mod record;
mod recover;
pub mod role;
mod status;
pub mod store;
mod tools;
pub mod trash;
mod work;
pub mod worktree;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use crewkit_agent::{Engine, FileFault};
use futures_util::future::BoxFuture;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use backend::Handle;
pub use options::{LOOP, LocalOptions, ProjectConfig, REHEARSAL};
pub use tools::LocalFleet;

use held::Launcher;
use metadata::MetadataCache;
use project::{LocalProject, ProjectError};
use record::{AgentRow, ProjectRow};
use role::RoleConfig;
use store::{Change, Store, StoreError};
use trash::Trash;
use work::Work;

use crate::error::FleetError;

/// How often the trash is looked through.
const SWEEP: Duration = Duration::from_hours(1);

/// The fleet on this machine; a handle that can be cloned.
#[derive(Clone)]
pub struct Local {
    shared: Arc<Shared>,
}

struct Shared {
    options: LocalOptions,
    engine: Engine,
    store: Store,
    launcher: Launcher,
    trash: Trash,
    /// Places for tasks at work.
    places: Semaphore,
    works: Mutex<HashMap<String, Work>>,
    /// One lock for each agent; who changes its workspace holds it.
    locks: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    projects: RwLock<Vec<LocalProject>>,
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

impl OpenError {
    /// Whether another process has the record.
    pub const fn is_locked(&self) -> bool {
        matches!(self, Self::Store(StoreError::File(FileFault::Locked { .. })))
    }
}

impl Local {
    /// Opens the record, adopts what an earlier server left running, and goes on with what it left half done.
    ///
    /// Must be called within a tokio runtime.
    pub fn open(options: LocalOptions, engine: Engine) -> BoxFuture<'static, Result<Self, OpenError>> {
        Box::pin(async move {
            check_drivers(&options)?;
            let home = options.home.clone();
            let scratch = options.taskfile_sandbox.as_ref().ok().map(|sandbox| sandbox.scratch.clone());
            let opened = tokio::task::spawn_blocking(move || {
                for dir in [&home, &home.join("workspaces"), &home.join("tasks"), &home.join("trash")] {
                    crate::sys::create_private_dir(dir)
                        .map_err(|source| OpenError::Path { path: dir.clone(), source })?;
                }
                let store = Store::open(&home.join("fleet.db"))?;
                // Whoever has the record open is alone: what is here is left from a server that was killed.
                let _ = scratch.map(std::fs::remove_dir_all);
                Ok::<_, OpenError>(store)
            });
            let store = opened
                .await
                .map_err(|_| OpenError::Setting("the fleet's record broke while opening".to_owned()))??;
            let keep = Duration::from_secs(options.limits.fleet_trash_days.saturating_mul(86_400));
            let places = usize::try_from(options.limits.fleet_tasks_active).unwrap_or(usize::MAX);
            let local = Self {
                shared: Arc::new(Shared {
                    launcher: Launcher {
                        command: options.shim.clone(),
                        environment: options.environment.clone(),
                        fleet: store.fleet().to_owned(),
                        clock: options.clock.clone(),
                    },
                    trash: Trash::new(options.home.join("trash"), keep, options.clock.clone()),
                    places: Semaphore::new(places.clamp(1, Semaphore::MAX_PERMITS)),
                    works: Mutex::default(),
                    locks: Mutex::default(),
                    projects: RwLock::default(),
                    metadata: MetadataCache::default(),
                    tracker: TaskTracker::new(),
                    shutdown: CancellationToken::new(),
                    store,
                    engine,
                    options,
                }),
            };
            local.load_projects().await;
            local.recover().await;
            local.spawn_sweep();
            Ok(local)
        })
    }

    /// Lets go of everything. Held processes work on; the next server adopts them.
    pub fn shutdown(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.shared.shutdown.cancel();
            self.shared.tracker.close();
            self.shared.tracker.wait().await;
        })
    }

    async fn load_projects(&self) {
        let options = &self.shared.options;
        let mut projects: Vec<LocalProject> = Vec::new();
        for config in &options.projects {
            match project::look(&options.git, &config.path, config.name.as_deref()).await {
                Ok(found) => projects.push(LocalProject {
                    description: config.description.clone(),
                    profile: config.profile.clone(),
                    ..found
                }),
                Err(error) => tracing::warn!(%error, "a project of the configuration is left out"),
            }
        }
        for row in self.shared.store.projects() {
            if projects.iter().any(|known| known.id == row.id) {
                continue;
            }
            match project::look(&options.git, &row.path, Some(&row.name)).await {
                Ok(found) => projects.push(found),
                Err(error) => tracing::warn!(%error, project = row.name, "a project is left out"),
            }
        }
        *self.shared.projects.write().unwrap_or_else(PoisonError::into_inner) = projects;
    }

    /// Registers the repository at `path`, or the directory itself when it is in none. Registering it again changes nothing
    /// but its name.
    pub async fn add_project(
        &self,
        path: &std::path::Path,
        name: Option<&str>,
    ) -> Result<LocalProject, FleetError> {
        let looked = project::look(&self.shared.options.git, path, name).await;
        let mut found = looked.map_err(|error| match error {
            ProjectError::Git(error) => FleetError::unavailable(error.to_string()),
            other => FleetError::invalid("path", other.to_string()),
        })?;
        let known = self.projects_now();
        if let Some(same) = known.iter().find(|project| project.id == found.id)
            && name.is_none_or(|name| name.trim() == same.name)
        {
            return Ok(same.clone());
        }
        let taken = |name: &str| {
            known
                .iter()
                .any(|project| project.id != found.id && project.name.to_lowercase() == name.to_lowercase())
        };
        if taken(&found.name) {
            if name.is_some() {
                return Err(FleetError::invalid(
                    "name",
                    format!("project '{}' already exists; choose another name", found.name),
                ));
            }
            let free = (2..1000).map(|number| format!("{}-{number}", found.name)).find(|name| !taken(name));
            found.name = free.unwrap_or_else(|| found.id.clone());
        }
        let row = ProjectRow { id: found.id.clone(), name: found.name.clone(), path: found.path.clone() };
        self.shared
            .store
            .write(vec![Change::PutProject(row)])
            .await
            .map_err(|error| life::store_error(&error))?;
        let mut projects = self.shared.projects.write().unwrap_or_else(PoisonError::into_inner);
        projects.retain(|project| project.id != found.id);
        projects.push(found.clone());
        Ok(found)
    }

    /// Registers a project in the record itself, without opening a fleet; none when a server has the record open.
    pub fn register<'a>(
        options: &'a LocalOptions,
        path: &'a std::path::Path,
        name: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Option<LocalProject>, FleetError>> {
        Box::pin(async move {
            let found = project::look(&options.git, path, name).await;
            let found = found.map_err(|error| FleetError::invalid("path", error.to_string()))?;
            let home = options.home.clone();
            let opened = tokio::task::spawn_blocking(move || {
                crate::sys::create_private_dir(&home).map_err(|error| error.to_string())?;
                match Store::open(&home.join("fleet.db")) {
                    Err(StoreError::File(FileFault::Locked { .. })) => Ok(None),
                    Ok(store) => Ok(Some(store)),
                    Err(error) => Err(error.to_string()),
                }
            });
            let opened = opened.await.map_err(|error| FleetError::unavailable(error.to_string()))?;
            let Some(store) = opened.map_err(FleetError::unavailable)? else { return Ok(None) };
            let same_name =
                |row: &ProjectRow| row.id != found.id && row.name.to_lowercase() == found.name.to_lowercase();
            if store.projects().iter().any(same_name) {
                let message =
                    format!("project '{}' already exists; choose another name with --name", found.name);
                return Err(FleetError::invalid("name", message));
            }
            let row = ProjectRow { id: found.id.clone(), name: found.name.clone(), path: found.path.clone() };
            store.write(vec![Change::PutProject(row)]).await.map_err(|error| life::store_error(&error))?;
            Ok(Some(found))
        })
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
        let project =
            self.projects_now().into_iter().find(|project| project.answers_to(word)).ok_or_else(|| {
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
        self.shared.store.write(vec![change]).await.map_err(|error| life::store_error(&error))?;
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

    fn projects_now(&self) -> Vec<LocalProject> {
        self.shared.projects.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn project(&self, id: &str) -> Result<LocalProject, FleetError> {
        self.projects_now()
            .into_iter()
            .find(|project| project.id == id)
            .ok_or_else(|| FleetError::unavailable("the agent's project is not registered any more"))
    }

    fn project_name(&self, id: &str) -> String {
        self.project(id).map_or_else(|_| "unknown".to_owned(), |project| project.name)
    }

    fn role_of(&self, agent: &AgentRow) -> RoleConfig {
        let roles = role::of_project(&self.shared.options.roles, &self.project_name(&agent.project));
        roles.into_iter().find(|role| role.name.eq_ignore_ascii_case(&agent.role)).unwrap_or_default()
    }

    fn lock(&self, agent: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.shared.locks.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(locks.entry(agent.to_owned()).or_default())
    }

    /// Forgets what was kept about a deleted agent in memory.
    fn forget(&self, agent: &str) {
        self.shared.locks.lock().unwrap_or_else(PoisonError::into_inner).remove(agent);
        self.shared.metadata.forget(agent);
    }

    fn works(&self) -> MutexGuard<'_, HashMap<String, Work>> {
        self.shared.works.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> i64 {
        self.shared.options.clock.now().unix_ms()
    }
}

/// A role or default that names a driver nobody knows is found at the start, not at the first task.
fn check_drivers(options: &LocalOptions) -> Result<(), OpenError> {
    let known = |name: &str| {
        name == LOOP || name == REHEARSAL || options.drivers.iter().any(|driver| driver.name == name)
    };
    let named = options.driver.iter().chain(options.roles.iter().filter_map(|role| role.driver.as_ref()));
    for name in named {
        if !known(name) {
            let drivers: Vec<&str> = options.drivers.iter().map(|driver| driver.name.as_str()).collect();
            return Err(OpenError::Setting(format!(
                "there is no driver `{name}`; there are {LOOP}, {REHEARSAL}, {}",
                drivers.join(", ")
            )));
        }
    }
    Ok(())
}
