//! `agentpack.yaml`: what it may say, and which modules a profile selects.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crewkit_core::{Code, Limits};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::config::yaml;
use crate::desired::target::TargetKind;
use crate::error::{PackError, Result};

mod last;

pub use last::{LastManifest, file_in as cache_file_in};

/// The file's name in a config repo.
pub const FILE_NAME: &str = "agentpack.yaml";

/// The one version of the file there is.
pub const VERSION: u32 = 1;

/// The profile that must exist.
pub const DEFAULT_PROFILE: &str = "default";

/// The parsed file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the format.
    pub version: u32,
    /// Named selections of modules.
    #[serde(default)]
    pub profiles: BTreeMap<String, Profile>,
    /// Where to deploy, by target name.
    #[serde(default)]
    pub targets: BTreeMap<String, TargetConfig>,
    /// What to deploy, in file order.
    #[serde(default)]
    pub modules: Vec<Module>,
}

/// A selection of modules.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Profile {
    /// Modules with any of these tags.
    #[serde(default)]
    pub include_tags: Vec<String>,
    /// Modules with these ids.
    #[serde(default)]
    pub include_modules: Vec<String>,
    /// Modules left out whatever includes them.
    #[serde(default)]
    pub exclude_modules: Vec<String>,
}

/// How a target is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetMode {
    Files,
}

/// For whom a target is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// The user's own directories.
    User,
    Project,
    Both,
}

impl Scope {
    /// Whether the user's directories are written.
    pub fn user(self) -> bool {
        matches!(self, Self::User | Self::Both)
    }

    /// Whether the project is written.
    pub fn project(self) -> bool {
        matches!(self, Self::Project | Self::Both)
    }
}

/// One entry of `targets`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TargetConfig {
    /// How to write; only files exist.
    pub mode: TargetMode,
    /// For whom to write.
    pub scope: Scope,
    /// Settings of the target.
    #[serde(default)]
    pub options: BTreeMap<String, Value>,
}

impl TargetConfig {
    /// A yes-or-no option; what is neither falls back to the default.
    pub fn flag(&self, name: &str, default: bool) -> bool {
        match self.options.get(name) {
            Some(Value::Bool(value)) => *value,
            Some(Value::String(text)) => match text.trim().to_ascii_lowercase().as_str() {
                "true" | "yes" | "1" => true,
                "false" | "no" | "0" => false,
                _ => default,
            },
            _ => default,
        }
    }

    /// A text option that is not empty.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.options.get(name).and_then(Value::as_str).map(str::trim).filter(|text| !text.is_empty())
    }
}

/// What a module is, which decides where targets put it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ModuleType {
    /// An `AGENTS.md`, joined with the others.
    Instructions,
    /// A directory with a `SKILL.md`.
    Skill,
    /// One Markdown file.
    Prompt,
    /// One Markdown file with frontmatter.
    Command,
}

impl ModuleType {
    /// Every type, as flags and messages name it.
    pub const NAMES: [&'static str; 4] = ["instructions", "skill", "prompt", "command"];

    /// The name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Instructions => "instructions",
            Self::Skill => "skill",
            Self::Prompt => "prompt",
            Self::Command => "command",
        }
    }

    /// The type of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Instructions, Self::Skill, Self::Prompt, Self::Command]
            .into_iter()
            .find(|kind| kind.name() == name)
    }
}

/// One entry of `modules`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Module {
    /// A unique name, usually `type:name`.
    pub id: String,
    #[serde(rename = "type")]
    pub kind: ModuleType,
    /// Whether it takes part at all.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// Labels profiles select by.
    #[serde(default)]
    pub tags: Vec<String>,
    /// The targets it is for; empty means all.
    #[serde(default)]
    pub targets: Vec<String>,
    /// Where its content comes from.
    pub source: Source,
}

fn yes() -> bool {
    true
}

impl Module {
    /// Whether it is meant for `target`.
    pub fn is_for(&self, target: TargetKind) -> bool {
        self.targets.is_empty() || self.targets.iter().any(|name| name == target.name())
    }
}

/// Where the content of a module comes from: exactly one member is set, which [`Manifest::parse`] checks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// A path in the config repo, or an absolute one.
    #[serde(default)]
    pub local_path: Option<LocalPath>,
    /// A git repository.
    #[serde(default)]
    pub git: Option<Git>,
}

/// A source on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalPath {
    /// Relative to the config repo, or absolute.
    pub path: String,
}

/// A source in a git repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Git {
    /// Address.
    pub url: String,
    /// Branch, tag or commit.
    #[serde(rename = "ref", default = "main_branch")]
    pub reference: String,
    /// Directory or file in the repository; empty for its root.
    #[serde(default)]
    pub subdir: String,
    /// Whether a clone without history is enough.
    #[serde(default = "yes")]
    pub shallow: bool,
}

fn main_branch() -> String {
    "main".to_owned()
}

/// A source of which exactly one kind is known to be set.
#[derive(Debug, Clone, Copy)]
pub enum SourceRef<'a> {
    /// On this machine.
    Local(&'a LocalPath),
    /// In a git repository.
    Git(&'a Git),
}

impl Source {
    /// The kind that is set; nothing unless it is exactly one.
    pub fn get(&self) -> Option<SourceRef<'_>> {
        match (&self.local_path, &self.git) {
            (Some(local), None) => Some(SourceRef::Local(local)),
            (None, Some(git)) => Some(SourceRef::Git(git)),
            _ => None,
        }
    }
}

impl Manifest {
    /// Where the file is in `repo`.
    pub fn path_in(repo: &Path) -> PathBuf {
        repo.join(FILE_NAME)
    }

    /// Reads and checks the file of `repo`.
    pub fn load(repo: &Path, limits: &Limits) -> Result<Self> {
        let path = Self::path_in(repo);
        Self::parse(&read_text(&path, limits)?, &path, limits)
    }

    /// Parses and checks `text`; `path` is for messages.
    pub fn parse(text: &str, path: &Path, limits: &Limits) -> Result<Self> {
        let manifest: Self = yaml::parse(text, limits).map_err(|error| {
            let shown = path.display().to_string();
            PackError::new(Code::ConfigInvalid, format!("invalid config {shown}: {error}"))
                .detail("path", shown)
                .detail("error", error)
        })?;
        manifest.check()?;
        Ok(manifest)
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.version != VERSION {
            return Err(PackError::new(
                Code::ConfigUnsupportedVersion,
                format!("unsupported manifest version: {}", self.version),
            )
            .detail("version", self.version)
            .detail("supported", json!([VERSION])));
        }
        for (name, config) in &self.targets {
            let target = TargetKind::from_name(name).ok_or_else(|| unknown_target(name, None))?;
            if config.scope == Scope::User && !target.writes_user_scope() {
                return Err(PackError::new(
                    Code::ConfigInvalid,
                    format!("target {name} does not support scope: user"),
                )
                .detail("target", name.as_str())
                .detail("allowed_scopes", json!(["project", "both"])));
            }
        }
        if !self.profiles.contains_key(DEFAULT_PROFILE) {
            return Err(PackError::new(Code::ConfigInvalid, "missing required profile: default")
                .detail("profile", DEFAULT_PROFILE));
        }
        let mut seen = BTreeSet::new();
        for module in &self.modules {
            let wrong = |message: String| {
                PackError::new(Code::ConfigInvalid, message).detail("module_id", module.id.as_str())
            };
            if !seen.insert(module.id.as_str()) {
                return Err(wrong(format!("duplicate module id: {}", module.id)));
            }
            if let Some(name) = module.targets.iter().find(|name| TargetKind::from_name(name).is_none()) {
                return Err(unknown_target(name, Some(&module.id)));
            }
            if module.source.get().is_none() {
                return Err(wrong(format!(
                    "module {} must have exactly one source: local_path or git",
                    module.id
                )));
            }
        }
        Ok(())
    }

    /// The modules a profile selects, ordered by id.
    pub fn select(&self, profile: &str) -> Result<Vec<&Module>> {
        let chosen = self.profiles.get(profile).ok_or_else(|| {
            let known: Vec<_> = self.profiles.keys().cloned().collect();
            PackError::new(
                Code::ProfileNotFound,
                format!("profile not found: {profile}; there are {}", known.join(", ")),
            )
            .detail("profile", profile)
            .detail("allowed", known)
        })?;
        let mut modules: Vec<_> = self
            .modules
            .iter()
            .filter(|module| module.enabled && !chosen.exclude_modules.contains(&module.id))
            .filter(|module| {
                module.tags.iter().any(|tag| chosen.include_tags.contains(tag))
                    || chosen.include_modules.contains(&module.id)
            })
            .collect();
        modules.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(modules)
    }

    /// The module of that id.
    pub fn module(&self, id: &str) -> Result<&Module> {
        self.modules.iter().find(|module| module.id == id).ok_or_else(|| {
            PackError::new(Code::ModuleNotFound, format!("module not found: {id}")).detail("module_id", id)
        })
    }

    /// Leaves only what is written into a project.
    pub fn keep_project_scope(&mut self) {
        self.targets.retain(|_, config| config.scope.project());
        self.targets.values_mut().for_each(|config| config.scope = Scope::Project);
    }

    /// The configured targets a filter selects, in alphabetical order.
    pub fn select_targets(&self, filter: &str) -> Result<Vec<(TargetKind, &TargetConfig)>> {
        let configured =
            self.targets.iter().filter_map(|(name, config)| Some((TargetKind::from_name(name)?, config)));
        if filter == ALL_TARGETS {
            return Ok(configured.collect());
        }
        let wanted = TargetKind::from_name(filter).ok_or_else(|| {
            let mut allowed = vec![ALL_TARGETS];
            allowed.extend(TargetKind::ALL.map(TargetKind::name));
            PackError::new(
                Code::TargetUnsupported,
                format!("unsupported --target: {filter}; there are {}", allowed.join(", ")),
            )
            .detail("target", filter)
            .detail("allowed", allowed)
        })?;
        let selected: Vec<_> = configured.filter(|(target, _)| *target == wanted).collect();
        if selected.is_empty() {
            return Err(PackError::new(Code::ConfigInvalid, format!("target not configured: {filter}"))
                .detail("target", filter)
                .hint(format!("add `{filter}` under `targets:` in {FILE_NAME}")));
        }
        Ok(selected)
    }
}

/// The filter that selects every configured target.
pub const ALL_TARGETS: &str = "all";

fn unknown_target(name: &str, module_id: Option<&str>) -> PackError {
    let allowed = TargetKind::ALL.map(TargetKind::name);
    let message = match module_id {
        Some(id) => format!("module {id} has unsupported target: {name}; there are {}", allowed.join(", ")),
        None => format!("unsupported target: {name}; there are {}", allowed.join(", ")),
    };
    let error = PackError::new(Code::TargetUnsupported, message)
        .reason("target_not_compiled")
        .next(&["inspect_help_json", "edit_manifest_targets", "rebuild_with_target_feature", "retry_command"])
        .detail("target", name)
        .detail("allowed", allowed.to_vec());
    match module_id {
        Some(id) => error.detail("module_id", id),
        None => error,
    }
}

/// Reads the manifest's text; says what to do when there is none.
pub fn read_text(path: &Path, limits: &Limits) -> Result<String> {
    let missing = |error: &std::io::Error| {
        matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory)
    };
    let shown = path.display().to_string();
    match crate::fs::read::text(path, limits.pack_yaml_bytes) {
        Ok(text) => Ok(text),
        Err(crate::fs::read::ReadError::Io(error)) if missing(&error) => {
            Err(PackError::new(Code::ConfigMissing, format!("missing config manifest: {shown}"))
                .detail("path", shown)
                .hint("run `agentpack init` to create it, or name another config repo with --repo"))
        }
        Err(crate::fs::read::ReadError::Io(error)) => Err(PackError::io("read", path, error)),
        Err(error) => Err(PackError::new(Code::ConfigInvalid, format!("invalid config {shown}: {error}"))
            .detail("path", shown)
            .detail("error", error.to_string())),
    }
}
