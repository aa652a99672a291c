//! Google Antigravity. Sources disagree about its directories of the user.

use super::{
    Client, ConfigDir, Dirs, Evidence, OnlyCalled, Place, RuleStyle, SameName, Skills, Step, Write,
    no_settings,
};

pub(super) static CLIENT: Client = Client {
    name: "antigravity",
    title: "Antigravity",
    version: None,
    evidence: Evidence::Unverified,
    config: ConfigDir { variable: None, below_home: ".gemini" },
    instructions: &[
        Step::all(&[Place::config("GEMINI.md")]),
        Step::all(&[Place::project("AGENTS.md"), Place::project(".agents/rules/*.md")]),
    ],
    skills: Skills {
        roots: &[Place::project(".agents/skills"), Place::config("config/skills")],
        same_name: SameName::FirstWins,
        only_called: OnlyCalled::Unknown,
        dirs: Dirs::Root,
    },
    commands: &[Place::project(".agents/workflows/*.md")],
    shows_commands: false,
    writes: &[
        Write::rules(RuleStyle::Trigger, Place::project(".agents/rules")),
        Write::instructions(Place::config("GEMINI.md")),
    ],
    settings: no_settings,
};
