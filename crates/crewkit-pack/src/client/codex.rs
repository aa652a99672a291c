//! Codex. Its instructions of a project are cut at 32 KiB, and dropped in a project that is not trusted; settings in
//! `config.toml` change both.

use std::path::Path;

use super::{
    Client, ClientSettings, ConfigDir, Dirs, Evidence, OnlyCalled, Place, SameName, SettingsPlace, Skills,
    Step, Write,
};
use crate::fs::read;

/// Bytes of a project's instructions that are read.
const PROJECT_BYTES: u64 = 32 * 1024;

pub(super) static CLIENT: Client = Client {
    name: "codex",
    title: "Codex",
    version: Some("0.166.0"),
    evidence: Evidence::Measured,
    config: ConfigDir { variable: Some("CODEX_HOME"), below_home: ".codex" },
    instructions: &[
        Step::first(&[Place::config("AGENTS.override.md"), Place::config("AGENTS.md")]),
        Step {
            limit: Some(PROJECT_BYTES),
            needs_trust: true,
            ..Step::first(&[Place::project("AGENTS.override.md"), Place::project("AGENTS.md")]).nested()
        },
    ],
    skills: Skills {
        roots: &[
            Place::project(".agents/skills"),
            Place::project(".codex/skills"),
            Place::home(".agents/skills"),
            Place::config("skills"),
        ],
        same_name: SameName::ListedTwice,
        only_called: OnlyCalled::Policy,
        dirs: Dirs::RootToWorkingDirectory,
    },
    commands: &[],
    shows_commands: false,
    writes: &[
        Write::skills(Place::project(".codex/skills")),
        Write::instructions(Place::config("AGENTS.md")),
        Write::skills(Place::config("skills")),
    ],
    settings,
};

fn settings(place: &SettingsPlace<'_>) -> ClientSettings {
    let file = place.config.join("config.toml");
    let Ok(text) = read::text(&file, place.limits.pack_text_bytes) else {
        return ClientSettings::default();
    };
    // A file that Codex itself refuses says nothing.
    let Ok(table) = text.parse::<toml::Table>() else { return ClientSettings::default() };
    let limit = table.get("project_doc_max_bytes").and_then(toml::Value::as_integer);
    let names = table.get("project_doc_fallback_filenames").and_then(toml::Value::as_array);
    let untrusted = table
        .get("projects")
        .and_then(|projects| projects.get(place.project.to_string_lossy().as_ref()))
        .and_then(|project| project.get("trust_level"))
        .is_some_and(|level| level.as_str() == Some("untrusted"));
    ClientSettings {
        limit: limit.and_then(|limit| u64::try_from(limit).ok()),
        fallback_names: names
            .into_iter()
            .flatten()
            .filter_map(toml::Value::as_str)
            .filter(|name| Path::new(name).components().count() == 1)
            .map(ToOwned::to_owned)
            .collect(),
        untrusted: untrusted.then_some(file),
    }
}
