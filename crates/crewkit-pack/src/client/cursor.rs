//! Cursor. It lists a skill once for each root it finds it in.

use super::{
    Client, ConfigDir, Dirs, Evidence, OnlyCalled, Place, RuleStyle, SameName, Skills, Step, Write,
    no_settings,
};

pub(super) static CLIENT: Client = Client {
    name: "cursor",
    title: "Cursor",
    version: None,
    evidence: Evidence::Documented,
    config: ConfigDir { variable: None, below_home: ".cursor" },
    instructions: &[
        Step::all(&[Place::project(".cursor/rules/**/*.mdc")]),
        Step::all(&[Place::project("AGENTS.md")]).nested(),
    ],
    skills: Skills {
        roots: &[
            Place::project(".agents/skills"),
            Place::project(".cursor/skills"),
            Place::project(".claude/skills"),
            Place::project(".codex/skills"),
            Place::home(".agents/skills"),
            Place::config("skills"),
            Place::home(".claude/skills"),
            Place::home(".codex/skills"),
        ],
        same_name: SameName::ListedTwice,
        only_called: OnlyCalled::Frontmatter,
        dirs: Dirs::Root,
    },
    commands: &[Place::project(".cursor/commands/*.md"), Place::config("commands/*.md")],
    shows_commands: false,
    writes: &[
        Write::rules(RuleStyle::Cursor, Place::project(".cursor/rules")),
        Write::skills(Place::project(".cursor/skills")),
        Write::skills(Place::config("skills")),
    ],
    settings: no_settings,
};
