//! Factory droid.

use super::{
    Client, ConfigDir, Dirs, Evidence, OnlyCalled, Place, SameName, Skills, Step, Write, no_settings,
};

pub(super) static CLIENT: Client = Client {
    name: "factory",
    title: "Factory droid",
    version: None,
    evidence: Evidence::Documented,
    config: ConfigDir { variable: None, below_home: ".factory" },
    instructions: &[Step::all(&[Place::config("AGENTS.md")]), Step::all(&[Place::project("AGENTS.md")])],
    skills: Skills {
        roots: &[
            Place::project(".factory/skills"),
            Place::project(".agents/skills"),
            Place::project(".agent/skills"),
            Place::config("skills"),
            Place::home(".agents/skills"),
            Place::home(".agent/skills"),
        ],
        same_name: SameName::FirstWins,
        only_called: OnlyCalled::Unknown,
        dirs: Dirs::Root,
    },
    commands: &[Place::project(".factory/commands/*.md"), Place::config("commands/*.md")],
    shows_commands: false,
    writes: &[
        Write::skills(Place::project(".factory/skills")),
        Write::instructions(Place::config("AGENTS.md")),
        Write::skills(Place::config("skills")),
    ],
    settings: no_settings,
};
