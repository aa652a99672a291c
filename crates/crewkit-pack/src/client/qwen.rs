//! Qwen Code.

use super::{
    Client, ConfigDir, Dirs, Evidence, OnlyCalled, Place, RuleStyle, SameName, Skills, Step, Write,
    no_settings,
};

pub(super) static CLIENT: Client = Client {
    name: "qwen",
    title: "Qwen Code",
    version: Some("0.24.4"),
    evidence: Evidence::Measured,
    config: ConfigDir { variable: None, below_home: ".qwen" },
    instructions: &[
        Step::all(&[Place::config("QWEN.md")]),
        Step::all(&[
            Place::project("QWEN.md"),
            Place::project("AGENTS.md"),
            Place::project(".qwen/QWEN.local.md"),
            Place::project(".qwen/rules/*.md"),
        ]),
    ],
    skills: Skills {
        roots: &[
            Place::project(".qwen/skills"),
            Place::project(".agents/skills"),
            Place::config("skills"),
            Place::home(".agents/skills"),
        ],
        same_name: SameName::FirstWins,
        only_called: OnlyCalled::Frontmatter,
        dirs: Dirs::Root,
    },
    commands: &[Place::project(".qwen/commands/**/*.md"), Place::config("commands/**/*.md")],
    shows_commands: false,
    writes: &[
        Write::instructions(Place::project("QWEN.md")),
        Write::rules(RuleStyle::Paths, Place::project(".qwen/rules")),
        Write::skills(Place::project(".qwen/skills")),
        Write::instructions(Place::config("QWEN.md")),
        Write::skills(Place::config("skills")),
    ],
    settings: no_settings,
};
