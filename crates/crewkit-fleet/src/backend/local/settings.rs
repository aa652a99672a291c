//! What an asker brings along: its configuration, its kit and its directory.

use std::path::PathBuf;
use std::sync::Arc;

use crewkit_agent::RunSettings;
use crewkit_agent::driver::ProcessDriver;
use tokio::sync::OnceCell;

use super::git::Git;
use super::options::{LOOP, ProjectConfig, REHEARSAL};
use super::project::{self, Kind, LocalProject};
use super::role::RoleConfig;
use crate::kit::Kit;

/// The settings of whoever asks. Those of an agent are fixed when it is created.
#[derive(Debug, Clone, Default)]
pub struct FleetSettings {
    /// Projects of the configuration.
    pub projects: Vec<ProjectConfig>,
    /// Roles of the configuration.
    pub roles: Vec<RoleConfig>,
    /// What carries out tasks unless a role says otherwise; the built-in loop when absent.
    pub driver: Option<String>,
    /// What equips workspaces, if anything does.
    pub kit: Option<Arc<dyn Kit>>,
    /// What runs are carried out with: models, drivers, tool servers, environment.
    pub run: Arc<RunSettings>,
    /// The directory the asker works in. The repository it is in is offered as a project.
    pub directory: Option<PathBuf>,
}

/// The driver called `name`; `None` for the built-in loop.
pub(super) fn driver<'a>(run: &'a RunSettings, name: &str) -> Result<Option<&'a ProcessDriver>, String> {
    if name == LOOP || name == REHEARSAL {
        return Ok(None);
    }
    run.drivers.iter().find(|driver| driver.name == name).map(Some).ok_or_else(|| {
        let known = run.drivers.iter().map(|driver| driver.name.as_str());
        let known: Vec<&str> = [LOOP, REHEARSAL].into_iter().chain(known).collect();
        format!("Unknown driver `{name}`. Known drivers: {}", known.join(", "))
    })
}

/// An asker and the projects it brings, which are looked at when they are first needed.
#[derive(Debug, Default)]
pub(super) struct Asker {
    pub(super) settings: FleetSettings,
    configured: OnceCell<Vec<LocalProject>>,
    repository: OnceCell<Option<LocalProject>>,
}

impl Asker {
    pub(super) fn new(settings: FleetSettings) -> Arc<Self> {
        Arc::new(Self { settings, ..Self::default() })
    }

    /// Projects of the configuration.
    pub(super) async fn configured(&self, git: &Git) -> &[LocalProject] {
        let look = async || {
            let mut projects = Vec::new();
            for config in &self.settings.projects {
                match project::look(git, &config.path, config.name.as_deref()).await {
                    Ok(found) => projects.push(LocalProject {
                        description: config.description.clone(),
                        profile: config.profile.clone(),
                        ..found
                    }),
                    Err(error) => tracing::warn!(%error, "a project of the configuration is left out"),
                }
            }
            projects
        };
        self.configured.get_or_init(look).await
    }

    /// The same, as far as they were looked at.
    pub(super) fn configured_now(&self) -> &[LocalProject] {
        self.configured.get().map_or(&[], Vec::as_slice)
    }

    /// The repository that the asker works in, if it does.
    pub(super) async fn repository(&self, git: &Git) -> Option<&LocalProject> {
        let look = async || {
            let found = project::look(git, self.settings.directory.as_deref()?, None).await.ok()?;
            matches!(found.kind, Kind::Repository { .. }).then_some(found)
        };
        self.repository.get_or_init(look).await.as_ref()
    }
}
