//! `crewkit fleet …` and `crewkit metadata serve`.

pub mod args;
pub mod metadata;
mod render;

use std::io::IsTerminal as _;
use std::path::Path;
use std::sync::Arc;

use crewkit_core::{Code, Secret};
use crewkit_fleet::backend::coder::{CoderBackend, CoderSettings};
use crewkit_fleet::time::Clock;
use crewkit_fleet::{AnyFleet, Fleet, FleetOptions};
use crewkit_pack::commands::Pack;
use crewkit_server::Services;
use crewkit_server::caller::Caller;
use crewkit_server::kit::PackKit;
use crewkit_server::ops::{self, Answer, Progress};
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::remote::Remote;
use crate::{local, mcp, output};
use args::FleetArgs;

/// The fleet the settings describe; none when they name no place for workspaces.
pub fn service(config: &Config, pack: &Arc<Pack>) -> Result<Option<AnyFleet>, Failure> {
    let Some(url) = config.text("fleet.coder.url") else { return Ok(None) };
    let wrong = |message: String| Failure::new(Code::SettingInvalid, message);
    let mut settings = CoderSettings::new(url, token(config)?);
    config.text("fleet.coder.owner").unwrap_or("me").clone_into(&mut settings.owner);
    settings.ca = config.text("fleet.coder.ca_file").map(read_ca).transpose()?;
    settings.organization = config.text("fleet.coder.organization").map(str::to_owned);
    settings.projects = config.list("fleet.coder.projects");
    settings.metadata_keys = config.list("fleet.coder.metadata_keys");
    settings.limits = config.limits();
    settings.kit = Some(Arc::new(PackKit::new(Arc::clone(pack))));
    settings.profiles = local::profiles(config)?;
    let backend = CoderBackend::new(settings, Clock::system())
        .map_err(|error| wrong(format!("`fleet.coder`: {error}")))?;
    Ok(Some(AnyFleet::Coder(Box::new(Fleet::new(backend, service_options(config)?)))))
}

/// How the fleet behaves, wherever its workspaces are.
pub fn service_options(config: &Config) -> Result<FleetOptions, Failure> {
    let wrong = |message: String| Failure::new(Code::SettingInvalid, message);
    let style = config.text("fleet.metadata_style").unwrap_or_default();
    let number =
        config.values.get("fleet.max_name_length").and_then(|effective| effective.value.as_integer());
    Ok(FleetOptions {
        max_name_length: number.and_then(|number| usize::try_from(number).ok()).unwrap_or_default(),
        metadata_style: style.parse().map_err(|error| wrong(format!("`fleet.metadata_style`: {error}")))?,
        limits: config.limits(),
    })
}

fn read_ca(path: &str) -> Result<Vec<u8>, Failure> {
    std::fs::read(Path::new(path)).map_err(|error| {
        Failure::new(Code::SettingInvalid, format!("`fleet.coder.ca_file`: {path}: {error}"))
    })
}

fn token(config: &Config) -> Result<Secret, Failure> {
    if let Some(token) = config.secret("fleet.coder.token") {
        return Ok(token);
    }
    let Some(path) = config.text("fleet.coder.token_file") else {
        let message =
            "`fleet.coder.url` is set and no token is; set CODER_SESSION_TOKEN or `fleet.coder.token_file`";
        return Err(Failure::new(Code::SettingInvalid, message));
    };
    std::fs::read_to_string(Path::new(path)).map(|text| Secret::new(text.trim())).map_err(|error| {
        Failure::new(Code::SettingInvalid, format!("`fleet.coder.token_file`: {path}: {error}"))
    })
}

/// Runs one command: here when the workspaces are on Coder, which keeps the state, else on the running server.
pub fn run(config: &Config, arguments: FleetArgs, json: bool) -> Result<Exit, Failure> {
    let (operation, arguments) = arguments.operation();
    let broken = |error: std::io::Error| Failure::new(Code::StateUnusable, error.to_string());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(broken)?;
    let on_coder = match config.text("fleet.coder.url") {
        Some(_) => service(config, &Arc::new(crate::pack::service(config.limits())?))?,
        None => None,
    };
    let answer = runtime.block_on(async {
        match on_coder.clone() {
            Some(fleet) => here(fleet, operation, arguments).await,
            None => match local::register(config, operation, &arguments).await? {
                Some(body) => Ok(Answer { status: 200, body }),
                None if operation == local::ADD_PROJECT => {
                    Remote::new(config)?.post_json("/api/fleet/projects", arguments).await
                }
                None => Remote::new(config)?.run(operation, arguments).await,
            },
        }
    })?;
    if json || !std::io::stdout().is_terminal() {
        output::data_line(&format!("{:#}", answer.body));
    } else if answer.failed() {
        let text = |key: &str| answer.body[key].as_str().unwrap_or_default().to_owned();
        output::talk(&format!("error[{}]: {}", text("error"), text("message")));
    } else {
        output::data(&render::text(operation, &answer.body));
    }
    // What a new agent still needs is brought by the process that made it.
    if let Some(AnyFleet::Coder(fleet)) = &on_coder
        && fleet.backend().is_settling()
    {
        output::talk(
            "waiting for the workspace, which still needs its spec or kit (Ctrl-C leaves it without)",
        );
        runtime.block_on(fleet.backend().settled());
    }
    // A script that waited in vain must not go on.
    let in_vain = answer.body["reached"] == false;
    Ok(if answer.failed() || in_vain { Exit::Failed } else { Exit::Ok })
}

async fn here(fleet: AnyFleet, operation: &str, arguments: Map<String, Value>) -> Result<Answer, Failure> {
    let catalog = mcp::catalog()?;
    let Some(entry) = catalog.get(operation) else {
        // What is no operation of the table is something the fleet itself knows, or refuses.
        return Ok(match fleet.call(operation, arguments).await {
            Ok(body) => Answer { status: 200, body },
            Err(error) => Answer {
                status: error.kind().status(),
                body: serde_json::to_value(error.body()).unwrap_or_default(),
            },
        });
    };
    let services = Arc::new(Services { fleet: Some(fleet), ..Services::default() });
    Ok(Box::pin(ops::run(
        Arc::clone(entry),
        services,
        Caller::Owner,
        arguments,
        Progress::default(),
        CancellationToken::new(),
    ))
    .await)
}
