//! Kiro.

use super::{
    Client, ConfigDir, Dirs, Evidence, OnlyCalled, Place, RuleStyle, SameName, Skills, Step, Write,
    no_settings,
};

pub(super) static CLIENT: Client = Client {
    name: "kiro",
    title: "Kiro",
    version: None,
    evidence: Evidence::Documented,
    config: ConfigDir { variable: None, below_home: ".kiro" },
    instructions: &[
        Step::all(&[Place::config("steering/*.md")]),
        Step::all(&[Place::project(".kiro/steering/*.md"), Place::project("AGENTS.md")]),
    ],
    skills: Skills {
        roots: &[Place::project(".kiro/skills"), Place::config("skills")],
        same_name: SameName::FirstWins,
        only_called: OnlyCalled::Unknown,
        dirs: Dirs::Root,
    },
    commands: &[Place::project(".kiro/prompts/*.md"), Place::config("prompts/*.md")],
    shows_commands: false,
    writes: &[
        Write::rules(RuleStyle::Inclusion, Place::project(".kiro/steering")),
        Write::skills(Place::project(".kiro/skills")),
        Write::rules(RuleStyle::Inclusion, Place::config("steering")),
        Write::skills(Place::config("skills")),
    ],
    settings: no_settings,
};
