//! The fleet on this machine: from settings to its options.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crewkit_agent::{Engine, RunSettings};
use crewkit_core::Code;
use crewkit_core::run::StopReason;
use crewkit_fleet::backend::coder::Profiles;
use crewkit_fleet::backend::local::git::Git;
use crewkit_fleet::backend::local::role::RoleConfig;
use crewkit_fleet::backend::local::{FleetSettings, Local, LocalFleet, LocalOptions, ProjectConfig};
use crewkit_fleet::metadata::sandbox::Sandbox;
use crewkit_fleet::model::ByName;
use crewkit_fleet::{AnyFleet, ErrorKind, Fleet, FleetError};
use crewkit_pack::commands::Pack;
use crewkit_server::kit::PackKit;
use crewkit_server::services::Agents;
use futures_util::FutureExt as _;
use futures_util::future::join_all;
use toml::{Table, Value};

use crate::agent;
use crate::config::Config;
use crate::failure::Failure;
use crate::server::identity;

/// The fleet the settings describe; it is opened when it is first needed.
pub fn fleet(config: &Config, pack: &Arc<Pack>, agents: &Arc<Agents>) -> Result<Arc<LocalFleet>, Failure> {
    let options = options(config, pack)?;
    let service = crate::fleet::service_options(config)?;
    let agents = Arc::clone(agents);
    let open = move || {
        let (options, service, agents) = (options.clone(), service.clone(), Arc::clone(&agents));
        async move {
            let engine = agents.engine().await.map_err(|error| FleetError::unavailable(error.to_string()))?;
            let local = Local::open(options, engine.clone())
                .await
                .map_err(|error| FleetError::unavailable(error.to_string()))?;
            Ok(Fleet::new(local, service))
        }
        .boxed()
    };
    Ok(Arc::new(LocalFleet::lazy(open)))
}

fn options(config: &Config, pack: &Arc<Pack>) -> Result<LocalOptions, Failure> {
    let settings = agent::options(config, "", &[])?.settings;
    let limits = config.limits();
    let longest = Duration::from_secs(limits.fleet_git_seconds);
    let git = Git::new("git", settings.environment.iter().cloned(), longest);
    let mut options = LocalOptions::new(config.home.join("fleet"), git);
    options.limits = Arc::new(limits);
    options.settings = fleet_settings(config, pack, settings, None)?;
    // The program that runs, not its path: a replaced binary would be another build.
    let own = identity::executable().into_os_string();
    options.taskfile_sandbox = if crewkit_agent::confine::available() {
        Ok(Sandbox {
            helper: vec![own, agent::EXEC_CONFINED.into()],
            environment: options.settings.run.environment.clone(),
            scratch: options.home.join("scratch"),
        })
    } else {
        Err("this system cannot confine commands (on Linux 5.13 and later Landlock does)".to_owned())
    };
    options.task_program = installed("task");
    Ok(options)
}

/// What an asker with this configuration brings along.
fn fleet_settings(
    config: &Config,
    pack: &Arc<Pack>,
    run: Arc<RunSettings>,
    directory: Option<PathBuf>,
) -> Result<FleetSettings, Failure> {
    Ok(FleetSettings {
        projects: projects(config)?,
        roles: roles(config)?,
        driver: config.text("fleet.driver").filter(|name| !name.is_empty()).map(str::to_owned),
        kit: Some(Arc::new(PackKit::new(Arc::clone(pack)))),
        run,
        directory,
    })
}

/// The fleet on this machine, as an asker with this configuration and directory sees it.
pub fn for_asker(
    fleet: &Arc<LocalFleet>,
    config: &Config,
    pack: &Arc<Pack>,
    run: &Arc<RunSettings>,
    directory: PathBuf,
) -> Result<AnyFleet, Failure> {
    let settings = fleet_settings(config, pack, Arc::clone(run), Some(directory))?;
    let service = crate::fleet::service_options(config)?;
    Ok(AnyFleet::Local(Arc::new(fleet.for_asker(settings, service))))
}

fn wrong(key: &str, what: &str) -> Failure {
    Failure::new(Code::SettingInvalid, format!("`{key}` {what}"))
}

/// The tables below `key`, each with its name; keys that nobody reads are refused.
fn tables<'a>(config: &'a Config, key: &str, known: &[&str]) -> Result<Vec<(&'a str, &'a Table)>, Failure> {
    let mut found = Vec::new();
    for (name, value) in config.table(key).into_iter().flatten() {
        let place = format!("{key}.{name}");
        let table = value.as_table().ok_or_else(|| wrong(&place, "must be a table"))?;
        if let Some(unknown) = table.keys().find(|field| !known.contains(&field.as_str())) {
            let what = format!("is unknown; known are {}", known.join(", "));
            return Err(wrong(&format!("{place}.{unknown}"), &what));
        }
        found.push((name.as_str(), table));
    }
    Ok(found)
}

fn text(table: &Table, name: &str) -> Option<String> {
    table.get(name).and_then(Value::as_str).map(str::to_owned)
}

/// Which agents on Coder get which profile: what roles and projects say. A project there is a template, which has no path.
pub fn profiles(config: &Config) -> Result<Profiles, Failure> {
    let roles = roles(config)?.into_iter();
    let projects = tables(config, "fleet.projects", PROJECT_FIELDS)?.into_iter();
    Ok(Profiles {
        roles: roles.filter_map(|role| Some((role.name, role.project, role.profile?))).collect(),
        projects: projects
            .filter_map(|(name, table)| Some((name.to_owned(), text(table, "profile")?)))
            .collect(),
    })
}

const PROJECT_FIELDS: &[&str] = &["path", "description", "profile"];

/// `[fleet.projects.NAME]`.
fn projects(config: &Config) -> Result<Vec<ProjectConfig>, Failure> {
    let tables = tables(config, "fleet.projects", PROJECT_FIELDS)?;
    let project = |(name, table): (&str, &Table)| {
        let path = text(table, "path").ok_or_else(|| {
            wrong(&format!("fleet.projects.{name}.path"), "must be the path of a directory")
        })?;
        Ok(ProjectConfig {
            name: Some(name.to_owned()),
            path: PathBuf::from(path),
            description: text(table, "description").unwrap_or_default(),
            profile: text(table, "profile"),
        })
    };
    tables.into_iter().map(project).collect()
}

/// `[fleet.roles.NAME]`.
fn roles(config: &Config) -> Result<Vec<RoleConfig>, Failure> {
    let known = [
        "display_name",
        "description",
        "prompt",
        "project",
        "driver",
        "model",
        "profile",
        "max_turns",
        "max_tokens",
        "max_seconds",
    ];
    let role = |(name, table): (&str, &Table)| {
        let number = |field: &str| {
            table.get(field).and_then(Value::as_integer).and_then(|number| u64::try_from(number).ok())
        };
        RoleConfig {
            name: name.to_owned(),
            display_name: text(table, "display_name").unwrap_or_default(),
            description: text(table, "description").unwrap_or_default(),
            prompt: text(table, "prompt").unwrap_or_default(),
            project: text(table, "project"),
            driver: text(table, "driver"),
            model: text(table, "model"),
            profile: text(table, "profile"),
            max_turns: number("max_turns"),
            max_tokens: number("max_tokens"),
            max_seconds: number("max_seconds"),
        }
    };
    Ok(tables(config, "fleet.roles", &known)?.into_iter().map(role).collect())
}

/// Where a program is, when it is installed.
pub(crate) fn installed(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(|file| file.is_file())
}

/// Opens the fleet of a server at once, so that running agents are adopted before anybody asks. Registers the repository the
/// server was started in if `is_started_here`.
pub async fn open(fleet: &LocalFleet, is_started_here: bool) {
    let opened = match fleet.get().await {
        Ok(opened) => opened,
        Err(error) => {
            tracing::error!(%error, "the fleet on this machine could not be opened; its tools will say so");
            return;
        }
    };
    let Some(here) = std::env::current_dir().ok().filter(|_| is_started_here) else { return };
    match opened.backend().add_repository_of(&here).await {
        Ok(Some(project)) => tracing::info!(project = project.name, "agents can work on this repository"),
        Ok(None) => {}
        Err(error) => tracing::warn!(%error, "the repository here could not be registered as a project"),
    }
}

/// Closes the fleet. Its tasks work on as runs do.
pub async fn close(fleet: &LocalFleet) {
    if let Some(opened) = fleet.opened() {
        opened.backend().shutdown().await;
    }
}

/// Ends all work of a home: its runs, and the tasks of its agents that are no run yet. Returns when nothing of it is left, or
/// when runs have had `patience` to end.
pub async fn end_work(fleet: Option<&LocalFleet>, engine: Option<&Engine>, patience: Duration) {
    if let Some(engine) = engine {
        match tokio::time::timeout(patience, engine.stop_all(StopReason::ServerStopped)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(%error, "a run could not be stopped"),
            Err(_) => tracing::warn!(seconds = patience.as_secs(), "a run took longer than this to end"),
        }
    }
    let Some(opened) = fleet.and_then(LocalFleet::opened) else { return };
    let stop = async |agent_name: String| {
        let stopped = opened.stop_agent_task(ByName { agent_name: agent_name.clone() }).await;
        // One that has ended meanwhile is none to stop.
        if let Err(error) = stopped
            && error.kind() != ErrorKind::BadRequest
        {
            tracing::warn!(agent = agent_name, %error, "a task could not be stopped");
        }
    };
    join_all(opened.backend().agents_with_open_tasks().into_iter().map(stop)).await;
}
