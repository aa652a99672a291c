//! Amp.

use super::{
    Client, ConfigDir, Dirs, Evidence, OnlyCalled, Place, SameName, Skills, Step, Write, no_settings,
};

pub(super) static CLIENT: Client = Client {
    name: "amp",
    title: "Amp",
    version: None,
    evidence: Evidence::Documented,
    config: ConfigDir { variable: None, below_home: ".config/amp" },
    instructions: &[
        Step::all(&[Place::config("AGENTS.md"), Place::home(".config/AGENTS.md")]).importing(),
        Step::first(&[Place::project("AGENTS.md"), Place::project("AGENT.md"), Place::project("CLAUDE.md")])
            .nested()
            .importing(),
    ],
    skills: Skills {
        roots: &[
            Place::project(".agents/skills"),
            Place::project(".claude/skills"),
            Place::home(".config/agents/skills"),
            Place::config("skills"),
        ],
        same_name: SameName::FirstWins,
        only_called: OnlyCalled::Unknown,
        dirs: Dirs::Root,
    },
    commands: &[],
    shows_commands: false,
    writes: &[Write::instructions(Place::config("AGENTS.md")), Write::skills(Place::config("skills"))],
    settings: no_settings,
};
