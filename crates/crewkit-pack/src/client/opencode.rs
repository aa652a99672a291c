//! opencode. Of its instruction files the first that exists is read; a skill is listed once per name.

use super::{
    Client, ConfigDir, Dirs, Evidence, OnlyCalled, Place, SameName, Skills, Step, Write, no_settings,
};

pub(super) static CLIENT: Client = Client {
    name: "opencode",
    title: "opencode",
    version: Some("1.18.33"),
    evidence: Evidence::Measured,
    config: ConfigDir { variable: None, below_home: ".config/opencode" },
    instructions: &[
        Step::first(&[Place::config("AGENTS.md"), Place::home(".claude/CLAUDE.md")]),
        Step::first(&[
            Place::project("AGENTS.md"),
            Place::project("CLAUDE.md"),
            Place::project("CONTEXT.md"),
        ]),
    ],
    skills: Skills {
        roots: &[
            Place::project(".opencode/skill"),
            Place::project(".opencode/skills"),
            Place::project(".claude/skills"),
            Place::project(".agents/skills"),
            Place::config("skill"),
            Place::config("skills"),
            Place::home(".claude/skills"),
            Place::home(".agents/skills"),
        ],
        same_name: SameName::FirstWins,
        only_called: OnlyCalled::Unknown,
        dirs: Dirs::Root,
    },
    commands: &[Place::project(".opencode/commands/*.md"), Place::config("commands/*.md")],
    shows_commands: false,
    writes: &[
        Write::skills(Place::project(".opencode/skills")),
        Write::instructions(Place::config("AGENTS.md")),
        Write::skills(Place::config("skills")),
    ],
    settings: no_settings,
};
