//! `JetBrains` Junie. Of its instruction files the first that exists is read; `guidelines.md` is the last of them.

use super::{
    Client, ConfigDir, Dirs, Evidence, OnlyCalled, Place, SameName, Skills, Step, Write, no_settings,
};

pub(super) static CLIENT: Client = Client {
    name: "junie",
    title: "Junie",
    version: None,
    evidence: Evidence::Documented,
    config: ConfigDir { variable: None, below_home: ".junie" },
    instructions: &[
        Step::all(&[Place::config("AGENTS.md")]),
        Step::first(&[
            Place::project(".junie/AGENTS.md"),
            Place::project("AGENTS.md"),
            Place::project(".junie/guidelines.md"),
        ]),
    ],
    skills: Skills {
        roots: &[Place::project(".junie/skills"), Place::config("skills")],
        same_name: SameName::FirstWins,
        only_called: OnlyCalled::Unknown,
        dirs: Dirs::Root,
    },
    commands: &[Place::project(".junie/commands/*.md"), Place::config("commands/*.md")],
    shows_commands: false,
    writes: &[
        Write::skills(Place::project(".junie/skills")),
        Write::instructions(Place::config("AGENTS.md")),
        Write::skills(Place::config("skills")),
    ],
    settings: no_settings,
};
