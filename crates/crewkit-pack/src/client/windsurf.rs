//! Windsurf, now Devin Desktop.

use super::{
    Client, ConfigDir, Dirs, Evidence, OnlyCalled, Place, RuleStyle, SameName, Skills, Step, Write,
    no_settings,
};

pub(super) static CLIENT: Client = Client {
    name: "windsurf",
    title: "Windsurf",
    version: None,
    evidence: Evidence::Unverified,
    config: ConfigDir { variable: None, below_home: ".codeium/windsurf" },
    instructions: &[
        Step::all(&[Place::config("memories/global_rules.md")]),
        Step::all(&[Place::project(".windsurf/rules/*.md"), Place::project(".devin/rules/*.md")]),
        Step::all(&[Place::project("AGENTS.md")]).nested(),
    ],
    skills: Skills {
        roots: &[
            Place::project(".windsurf/skills"),
            Place::project(".agents/skills"),
            Place::config("skills"),
            Place::home(".agents/skills"),
        ],
        same_name: SameName::FirstWins,
        only_called: OnlyCalled::Unknown,
        dirs: Dirs::Root,
    },
    commands: &[Place::project(".windsurf/workflows/*.md"), Place::config("global_workflows/*.md")],
    shows_commands: false,
    writes: &[
        Write::rules(RuleStyle::Trigger, Place::project(".windsurf/rules")),
        Write::skills(Place::project(".windsurf/skills")),
        Write::instructions(Place::config("memories/global_rules.md")),
        Write::skills(Place::config("skills")),
    ],
    settings: no_settings,
};
