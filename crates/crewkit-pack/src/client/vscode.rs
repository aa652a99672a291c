//! VS Code with Copilot. It joins every instruction file it knows.

use super::{
    Client, ConfigDir, Dirs, Evidence, OnlyCalled, Place, RuleStyle, SameName, Skills, Step, Write,
    no_settings,
};

pub(super) static CLIENT: Client = Client {
    name: "vscode",
    title: "VS Code with Copilot",
    version: None,
    evidence: Evidence::Documented,
    config: ConfigDir { variable: None, below_home: ".copilot" },
    instructions: &[
        Step::all(&[Place::home(".claude/CLAUDE.md"), Place::config("instructions/**/*.instructions.md")]),
        Step::all(&[
            Place::project(".github/copilot-instructions.md"),
            Place::project("AGENTS.md"),
            Place::project("CLAUDE.md"),
            Place::project(".claude/CLAUDE.md"),
            Place::project("CLAUDE.local.md"),
            Place::project(".github/instructions/**/*.instructions.md"),
            Place::project(".claude/rules/**/*.md"),
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
    // The editor's own chat reads these; its Agent Host and Copilot CLI do not.
    commands: &[Place::project(".github/prompts/*.prompt.md")],
    shows_commands: false,
    writes: &[
        Write::rules(RuleStyle::ApplyTo, Place::project(".github/instructions")),
        Write::skills(Place::project(".github/skills")),
        Write::rules(RuleStyle::ApplyTo, Place::config("instructions")),
        Write::skills(Place::config("skills")),
    ],
    settings: no_settings,
};
