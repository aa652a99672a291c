//! Cline. A skill of the user wins over one of the project.

use super::{
    Client, ConfigDir, Dirs, Evidence, OnlyCalled, Place, RuleStyle, SameName, Skills, Step, Write,
    no_settings,
};

pub(super) static CLIENT: Client = Client {
    name: "cline",
    title: "Cline",
    version: None,
    evidence: Evidence::Documented,
    config: ConfigDir { variable: None, below_home: ".cline" },
    instructions: &[
        Step::all(&[
            Place::home(".agents/AGENTS.md"),
            Place::config("rules/*.md"),
            Place::home("Documents/Cline/Rules/*.md"),
        ]),
        Step::all(&[
            Place::project(".clinerules/*.md"),
            Place::project(".cline/rules/*.md"),
            Place::project("AGENTS.md"),
        ]),
    ],
    skills: Skills {
        roots: &[
            Place::config("skills"),
            Place::home(".agents/skills"),
            Place::project(".cline/skills"),
            Place::project(".clinerules/skills"),
            Place::project(".claude/skills"),
            Place::project(".agents/skills"),
        ],
        same_name: SameName::FirstWins,
        only_called: OnlyCalled::Unknown,
        dirs: Dirs::Root,
    },
    commands: &[Place::project(".clinerules/workflows/*.md"), Place::home("Documents/Cline/Workflows/*.md")],
    shows_commands: false,
    writes: &[
        Write::rules(RuleStyle::Paths, Place::project(".clinerules")),
        Write::skills(Place::project(".cline/skills")),
        Write::rules(RuleStyle::Paths, Place::config("rules")),
        Write::skills(Place::config("skills")),
    ],
    settings: no_settings,
};
