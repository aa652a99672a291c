//! Claude Code. It reads `AGENTS.md` only in a directory without any `CLAUDE*.md`, and never `.agents/skills`.

use super::{
    Client, ConfigDir, Dirs, Evidence, OnlyCalled, Place, RuleStyle, SameName, Skills, Step, Write,
    no_settings,
};

/// Any of these switches the reading of `AGENTS.md` off.
const OWN_FILES: [&str; 3] = ["CLAUDE.md", ".claude/CLAUDE.md", "CLAUDE.local.md"];

pub(super) static CLIENT: Client = Client {
    name: "claude_code",
    title: "Claude Code",
    version: Some("2.1.325"),
    evidence: Evidence::Measured,
    config: ConfigDir { variable: Some("CLAUDE_CONFIG_DIR"), below_home: ".claude" },
    instructions: &[
        Step::all(&[Place::config("CLAUDE.md"), Place::config("rules/**/*.md")]).importing(),
        Step::all(&[
            Place::project("CLAUDE.md"),
            Place::project(".claude/CLAUDE.md"),
            Place::project(".claude/rules/**/*.md"),
            Place::project("CLAUDE.local.md"),
        ])
        .nested()
        .importing(),
        Step::all(&[Place::project("AGENTS.md")]).nested().importing().unless(&OWN_FILES),
    ],
    skills: Skills {
        roots: &[Place::config("skills"), Place::project(".claude/skills")],
        same_name: SameName::FirstWins,
        only_called: OnlyCalled::Frontmatter,
        dirs: Dirs::RootToWorkingDirectory,
    },
    commands: &[Place::config("commands/**/*.md"), Place::project(".claude/commands/**/*.md")],
    shows_commands: true,
    writes: &[
        Write::importing(Place::project("CLAUDE.md")),
        Write::rules(RuleStyle::Paths, Place::project(".claude/rules")),
        Write::skills(Place::project(".claude/skills")),
        Write::instructions(Place::config("CLAUDE.md")),
        Write::rules(RuleStyle::Paths, Place::config("rules")),
        Write::skills(Place::config("skills")),
    ],
    settings: no_settings,
};
