//! Gemini CLI. It reads `GEMINI.md`, and `AGENTS.md` only where the user's settings name it.

use super::{
    Client, ConfigDir, Dirs, Evidence, OnlyCalled, Place, SameName, Skills, Step, Write, no_settings,
};

pub(super) static CLIENT: Client = Client {
    name: "gemini",
    title: "Gemini CLI",
    version: None,
    evidence: Evidence::Documented,
    config: ConfigDir { variable: None, below_home: ".gemini" },
    instructions: &[
        Step::all(&[Place::config("GEMINI.md")]),
        Step::all(&[Place::project("GEMINI.md")]).nested(),
    ],
    skills: Skills {
        roots: &[
            Place::project(".agents/skills"),
            Place::project(".gemini/skills"),
            Place::home(".agents/skills"),
            Place::config("skills"),
        ],
        same_name: SameName::FirstWins,
        only_called: OnlyCalled::Unknown,
        dirs: Dirs::Root,
    },
    commands: &[Place::project(".gemini/commands/**/*.toml"), Place::config("commands/**/*.toml")],
    shows_commands: false,
    writes: &[
        Write::instructions(Place::project("GEMINI.md")),
        Write::skills(Place::project(".gemini/skills")),
        Write::instructions(Place::config("GEMINI.md")),
        Write::skills(Place::config("skills")),
    ],
    settings: no_settings,
};
