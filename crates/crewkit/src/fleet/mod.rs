//! The fleet that the settings describe, and `crewkit metadata serve`.

pub mod metadata;

use std::path::Path;
use std::sync::Arc;

use crewkit_core::{Code, Secret};
use crewkit_fleet::backend::coder::{CoderBackend, CoderSettings, Intents};
use crewkit_fleet::time::Clock;
use crewkit_fleet::{AnyFleet, Fleet, FleetOptions};
use crewkit_pack::commands::Pack;
use crewkit_server::kit::PackKit;

use crate::config::Config;
use crate::failure::Failure;
use crate::local;

/// The fleet the settings describe; none when they name no place for workspaces.
pub fn service(
    config: &Config,
    pack: &Arc<Pack>,
    intents: &Arc<Intents>,
) -> Result<Option<AnyFleet>, Failure> {
    let Some(url) = config.text("fleet.coder.url") else { return Ok(None) };
    let wrong = |message: String| Failure::new(Code::SettingInvalid, message);
    let mut settings = CoderSettings::new(url, token(config)?);
    config.text("fleet.coder.owner").unwrap_or("me").clone_into(&mut settings.owner);
    settings.ca = config.text("fleet.coder.ca_file").map(read_ca).transpose()?;
    settings.organization = config.text("fleet.coder.organization").map(str::to_owned);
    settings.projects = config.list("fleet.coder.projects");
    settings.metadata_keys = config.list("fleet.coder.metadata_keys");
    settings.metadata_seconds = config.number("fleet.coder.metadata_seconds");
    settings.list_metadata = match config.text("fleet.coder.list_metadata").unwrap_or("last") {
        "last" => false,
        "full" => true,
        other => {
            return Err(wrong(format!("`fleet.coder.list_metadata`: `{other}` is neither last nor full")));
        }
    };
    settings.limits = config.limits();
    settings.kit = Some(Arc::new(PackKit::new(Arc::clone(pack))));
    settings.profiles = local::profiles(config)?;
    settings.intents = Arc::clone(intents);
    let backend = CoderBackend::new(settings, Clock::system())
        .map_err(|error| wrong(format!("`fleet.coder`: {error}")))?;
    Ok(Some(AnyFleet::Coder(Box::new(Fleet::new(backend, service_options(config)?)))))
}

/// Goes on with what an earlier server left on the Coder of this fleet, if it is on one.
pub fn take_up(fleet: &AnyFleet) {
    if let AnyFleet::Coder(fleet) = fleet {
        let backend = fleet.backend().clone();
        tokio::spawn(async move {
            if let Err(error) = backend.take_up().await {
                tracing::warn!(%error, "what an earlier server left on Coder is not known");
            }
        });
    }
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
