//! Goose.

use super::{
    Client, ConfigDir, Dirs, Evidence, OnlyCalled, Place, SameName, Skills, Step, Write, no_settings,
};

pub(super) static CLIENT: Client = Client {
    name: "goose",
    title: "Goose",
    version: None,
    evidence: Evidence::Documented,
    config: ConfigDir { variable: None, below_home: ".config/goose" },
    instructions: &[
        Step::all(&[Place::config(".goosehints")]),
        Step::all(&[Place::project("AGENTS.md"), Place::project(".goosehints")]).nested(),
    ],
    skills: Skills {
        roots: &[
            Place::project(".agents/skills"),
            Place::project(".goose/skills"),
            Place::project(".claude/skills"),
            Place::home(".agents/skills"),
            Place::home(".goose/skills"),
            Place::home(".claude/skills"),
        ],
        same_name: SameName::FirstWins,
        only_called: OnlyCalled::Unknown,
        dirs: Dirs::Root,
    },
    commands: &[],
    shows_commands: false,
    writes: &[
        Write::instructions(Place::project(".goosehints")),
        Write::skills(Place::project(".goose/skills")),
        Write::instructions(Place::config(".goosehints")),
        Write::skills(Place::home(".goose/skills")),
    ],
    settings: no_settings,
};
