//! Windsurf, now Devin Desktop.

use super::{Client, ConfigDir, Dirs, Evidence, Place, SameName, Skills, Step, no_settings};

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
        dirs: Dirs::Root,
    },
    commands: &[Place::project(".windsurf/workflows/*.md"), Place::config("global_workflows/*.md")],
    settings: no_settings,
};
