//! Zed. Of nine names for a project's instructions the first that exists is read, and hides the others.

use super::{
    Client, ConfigDir, Dirs, Evidence, OnlyCalled, Place, SameName, Skills, Step, Write, no_settings,
};

pub(super) static CLIENT: Client = Client {
    name: "zed",
    title: "Zed",
    version: None,
    evidence: Evidence::Documented,
    config: ConfigDir { variable: None, below_home: ".config/zed" },
    instructions: &[
        Step::all(&[Place::config("AGENTS.md")]),
        Step::first(&[
            Place::project(".rules"),
            Place::project(".cursorrules"),
            Place::project(".windsurfrules"),
            Place::project(".clinerules"),
            Place::project(".github/copilot-instructions.md"),
            Place::project("AGENT.md"),
            Place::project("AGENTS.md"),
            Place::project("CLAUDE.md"),
            Place::project("GEMINI.md"),
        ]),
    ],
    skills: Skills {
        roots: &[Place::project(".agents/skills"), Place::home(".agents/skills")],
        same_name: SameName::FirstWins,
        only_called: OnlyCalled::Unknown,
        dirs: Dirs::Root,
    },
    commands: &[],
    shows_commands: false,
    writes: &[Write::instructions(Place::config("AGENTS.md"))],
    settings: no_settings,
};
