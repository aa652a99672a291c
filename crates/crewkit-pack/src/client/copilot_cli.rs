//! Copilot CLI and the cloud agent.

use super::{
    Client, ConfigDir, Dirs, Evidence, OnlyCalled, Place, RuleStyle, SameName, Skills, Step, Write,
    no_settings,
};

pub(super) static CLIENT: Client = Client {
    name: "copilot_cli",
    title: "Copilot CLI",
    version: None,
    evidence: Evidence::Documented,
    config: ConfigDir { variable: Some("COPILOT_HOME"), below_home: ".copilot" },
    instructions: &[
        Step::all(&[
            Place::config("copilot-instructions.md"),
            Place::config("instructions/**/*.instructions.md"),
        ]),
        Step::all(&[
            Place::project(".github/copilot-instructions.md"),
            Place::project("AGENTS.md"),
            Place::project("CLAUDE.md"),
            Place::project(".claude/CLAUDE.md"),
        ])
        .importing(),
        Step::all(&[
            Place::project("GEMINI.md"),
            Place::project(".github/instructions/**/*.instructions.md"),
        ]),
    ],
    skills: Skills {
        roots: &[
            Place::project(".github/skills"),
            Place::project(".claude/skills"),
            Place::project(".agents/skills"),
            Place::config("skills"),
            Place::home(".claude/skills"),
            Place::home(".agents/skills"),
        ],
        same_name: SameName::FirstWins,
        only_called: OnlyCalled::Unknown,
        dirs: Dirs::Root,
    },
    commands: &[],
    shows_commands: false,
    writes: &[
        Write::rules(RuleStyle::ApplyTo, Place::project(".github/instructions")),
        Write::skills(Place::project(".github/skills")),
        Write::rules(RuleStyle::ApplyTo, Place::config("instructions")),
        Write::skills(Place::config("skills")),
    ],
    settings: no_settings,
};
