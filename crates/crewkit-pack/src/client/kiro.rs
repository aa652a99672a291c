//! Kiro.

use super::{Client, ConfigDir, Dirs, Evidence, Place, SameName, Skills, Step, no_settings};

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
        dirs: Dirs::Root,
    },
    commands: &[Place::project(".kiro/prompts/*.md"), Place::config("prompts/*.md")],
    settings: no_settings,
};
