//! The programs assets are deployed to: one file each, saying which roots it has and what goes where.
//!
//! A target only says where things go. It never reads, writes or compares; that is the same for all of them.

use std::path::{Path, PathBuf};

use crate::client::RuleStyle;
use crate::config::manifest::{ModuleScope, TargetConfig};
use crate::env::Env;
use crate::error::Result;

pub(super) mod by_client;
mod claude_code;
mod codex;
mod cursor;
mod export_dir;
mod jetbrains;
mod vscode;
mod zed;

/// A program assets are deployed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TargetKind {
    Codex,
    ClaudeCode,
    Cursor,
    /// VS Code with Copilot.
    Vscode,
    /// `JetBrains` with Junie.
    Jetbrains,
    Zed,
    /// A plain directory, for everything else.
    ExportDir,
    /// What clients share: `AGENTS.md` and `.agents/skills`.
    Agents,
    CopilotCli,
    Opencode,
    Gemini,
    Antigravity,
    Junie,
    Windsurf,
    Amp,
    Goose,
    Kiro,
    Cline,
    Qwen,
    Factory,
}

impl TargetKind {
    /// Every target, in the order help lists them.
    pub const ALL: [Self; 20] = [
        Self::Codex,
        Self::ClaudeCode,
        Self::Cursor,
        Self::Vscode,
        Self::Jetbrains,
        Self::Zed,
        Self::ExportDir,
        Self::Agents,
        Self::CopilotCli,
        Self::Opencode,
        Self::Gemini,
        Self::Antigravity,
        Self::Junie,
        Self::Windsurf,
        Self::Amp,
        Self::Goose,
        Self::Kiro,
        Self::Cline,
        Self::Qwen,
        Self::Factory,
    ];

    /// The targets of version 1 of the config file.
    pub const VERSION_1: [Self; 7] = [
        Self::Codex,
        Self::ClaudeCode,
        Self::Cursor,
        Self::Vscode,
        Self::Jetbrains,
        Self::Zed,
        Self::ExportDir,
    ];

    /// The targets of version 2, in the order in which they are asked whether they place a module: a client that reads
    /// what an earlier one writes gets nothing of its own. `jetbrains` is called `junie` there.
    pub const VERSION_2: [Self; 19] = [
        Self::Agents,
        Self::ClaudeCode,
        Self::Codex,
        Self::Cursor,
        Self::Vscode,
        Self::CopilotCli,
        Self::Opencode,
        Self::Gemini,
        Self::Antigravity,
        Self::Zed,
        Self::Junie,
        Self::Windsurf,
        Self::Amp,
        Self::Goose,
        Self::Kiro,
        Self::Cline,
        Self::Qwen,
        Self::Factory,
        Self::ExportDir,
    ];

    /// The name in files and flags.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Codex => "codex",
            Self::ClaudeCode => "claude_code",
            Self::Cursor => "cursor",
            Self::Vscode => "vscode",
            Self::Jetbrains => "jetbrains",
            Self::Zed => "zed",
            Self::ExportDir => "export_dir",
            Self::Agents => "agents",
            Self::CopilotCli => "copilot_cli",
            Self::Opencode => "opencode",
            Self::Gemini => "gemini",
            Self::Antigravity => "antigravity",
            Self::Junie => "junie",
            Self::Windsurf => "windsurf",
            Self::Amp => "amp",
            Self::Goose => "goose",
            Self::Kiro => "kiro",
            Self::Cline => "cline",
            Self::Qwen => "qwen",
            Self::Factory => "factory",
        }
    }

    /// The target of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|target| target.name() == name)
    }

    /// Whether it has directories outside a project; if not, `scope: user` is a mistake.
    pub const fn writes_user_scope(self) -> bool {
        matches!(self, Self::Codex | Self::ClaudeCode | Self::ExportDir)
    }

    /// The options it has from version 2 on.
    pub const fn options(self) -> &'static [&'static str] {
        match self {
            Self::ClaudeCode => &[by_client::CLAUDE_MD],
            Self::ExportDir => &["root", "scan_extras"],
            _ => &[],
        }
    }

    /// Its roots in version 1, and what goes where.
    pub fn roots(self, places: &Places<'_>) -> Result<Vec<RootSpec>> {
        Ok(match self {
            Self::Codex => codex::roots(places),
            Self::ClaudeCode => claude_code::roots(places),
            Self::Cursor => cursor::roots(places),
            Self::Vscode => vscode::roots(places),
            Self::Jetbrains => jetbrains::roots(places),
            Self::Zed => zed::roots(places),
            Self::ExportDir => export_dir::roots(places)?,
            // Unknown to version 1.
            _ => Vec::new(),
        })
    }
}

/// What the place of a root can depend on.
#[derive(Debug, Clone, Copy)]
pub struct Places<'a> {
    /// Home and environment.
    pub env: &'a Env,
    /// The project's root.
    pub project: &'a Path,
    /// The target's entry in `agentpack.yaml`.
    pub config: &'a TargetConfig,
}

/// A directory that gets a manifest of what is managed in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootSpec {
    /// Absolute path.
    pub path: PathBuf,
    /// Whether files nobody manages are reported; only where the directory is for our kind of file alone.
    pub scan_extras: bool,
    /// What goes in it, and for whom modules must be to go there; nothing means for whomever.
    pub puts: Vec<(Put, Option<ModuleScope>)>,
}

impl RootSpec {
    fn new(path: PathBuf, scan_extras: bool, puts: Vec<Put>) -> Self {
        Self { path, scan_extras, puts: puts.into_iter().map(|put| (put, None)).collect() }
    }
}

/// One kind of module placed in a root. `dir` is relative to the root, empty for the root itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Put {
    /// All instructions joined in one file.
    Instructions {
        /// The file's name.
        file: &'static str,
    },
    /// One Cursor rule per instructions module, as version 1 writes them.
    CursorRules,
    /// One file that imports `AGENTS.md` and holds the instructions that are not in it.
    Importing {
        /// The file's name.
        file: &'static str,
    },
    /// One rule per instructions module.
    Rules(RuleStyle),
    /// Each prompt and command as a skill that only the user calls.
    CalledSkills {
        /// Whether Codex reads the directory, which wants a file beside the skill to know.
        for_codex: bool,
    },
    /// Each prompt as a file.
    Prompts {
        /// The directory.
        dir: &'static str,
        /// How the file is called.
        naming: PromptNaming,
    },
    /// Each command as a file of its own name.
    Commands {
        /// The directory.
        dir: &'static str,
    },
    /// Each skill as a directory of its own name.
    Skills {
        /// The directory.
        dir: &'static str,
    },
}

/// How the file of a prompt is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptNaming {
    /// Like its source.
    Same,
    /// With the ending `.prompt.md`.
    PromptMd,
}

impl PromptNaming {
    /// The name of a prompt whose source is called `source`.
    pub fn apply(self, source: &str) -> String {
        match self {
            Self::Same => source.to_owned(),
            Self::PromptMd if source.ends_with(".prompt.md") => source.to_owned(),
            Self::PromptMd => format!("{}.prompt.md", source.strip_suffix(".md").unwrap_or(source)),
        }
    }
}

#[cfg(test)]
mod tests;
