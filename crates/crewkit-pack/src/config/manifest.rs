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

/// The versions of the file there are. Version 1 keeps the places that 0.9.1 wrote; version 2 writes what clients read.
pub const VERSIONS: [u32; 2] = [1, 2];

/// The profile that must exist.
pub const DEFAULT_PROFILE: &str = "default";

/// The parsed file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the format.
    pub version: u32,
    /// For whom modules are that do not say so, from version 2 on: `project`, or `user`.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub(crate) scope: Value,
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

/// For whom a module is, from version 2 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ModuleScope {
    /// The user, in every project.
    User,
    /// The project at hand.
    Project,
}

impl ModuleScope {
    /// The name in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Project => "project",
        }
    }

    /// The scope of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::User, Self::Project].into_iter().find(|scope| scope.name() == name)
    }

    /// What a value in the file says.
    fn from_value(value: &Value) -> Option<Self> {
        value.as_str().and_then(Self::from_name)
    }

    /// Whether a value in the file says nothing or one of the two.
    fn is_valid(value: &Value) -> bool {
        value.is_null() || Self::from_value(value).is_some()
    }
}

/// One entry of `targets`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct TargetConfig {
    /// How to write; only files exist. Version 1 must say so.
    #[serde(default)]
    pub(crate) mode: Option<TargetMode>,
    /// For whom to write. Version 1 must say so; else both.
    #[serde(default)]
    pub(crate) scope: Option<Scope>,
    /// Settings of the target.
    #[serde(default)]
    pub options: BTreeMap<String, Value>,
}

impl TargetConfig {
    /// Every place that version 1 has, whatever its defaults.
    pub(crate) fn everything() -> Self {
        let skills =
            ["write_user_skills", "write_repo_skills"].map(|name| (name.to_owned(), Value::Bool(true)));
        Self { options: skills.into(), ..Self::default() }
    }

    /// The same for another scope.
    pub(crate) fn in_scope(&self, scope: Scope) -> Self {
        Self { scope: Some(scope), ..self.clone() }
    }

    /// For whom to write.
    pub fn scope(&self) -> Scope {
        self.scope.unwrap_or(Scope::Both)
    }

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
    /// For whom it is, from version 2 on: `project`, or `user`.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub scope: Value,
    /// The files that instructions are about, as patterns, from version 2 on; nothing means all.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub globs: Value,
    /// What instructions are about, from version 2 on; clients choose rules by it.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub description: Value,
    /// Where its content comes from.
    pub source: Source,
}

fn yes() -> bool {
    true
}

impl Module {
    /// A module that is taken part of, with nothing said that has a default.
    pub fn new(id: String, kind: ModuleType, source: Source) -> Self {
        Self {
            id,
            kind,
            enabled: true,
            tags: Vec::new(),
            targets: Vec::new(),
            scope: Value::Null,
            globs: Value::Null,
            description: Value::Null,
            source,
        }
    }

    /// For whom it is, if it says so.
    pub fn scope(&self) -> Option<ModuleScope> {
        ModuleScope::from_value(&self.scope)
    }

    /// The files its instructions are about; empty means all.
    pub fn globs(&self) -> Vec<&str> {
        self.globs.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
    }

    /// What its instructions are about.
    pub fn description(&self) -> Option<&str> {
        self.description.as_str().map(str::trim).filter(|text| !text.is_empty())
    }

    /// What version 2 says about a module beyond version 1.
    fn check_version_2(&self) -> Result<()> {
        let wrong = |key: &str, what: &str| {
            Err(PackError::new(Code::ConfigInvalid, format!("module {}: {key} must be {what}", self.id))
                .detail("module_id", self.id.as_str())
                .detail("key", key))
        };
        if !ModuleScope::is_valid(&self.scope) {
            return wrong("scope", "user or project");
        }
        let patterns = self.globs.as_array().is_some_and(|globs| {
            !globs.is_empty()
                && globs.iter().all(|glob| glob.as_str().is_some_and(|glob| !glob.trim().is_empty()))
        });
        if !self.globs.is_null() && !patterns {
            return wrong("globs", "a list of patterns such as [\"src/**/*.rs\"]");
        }
        if !self.globs.is_null() && self.kind != ModuleType::Instructions {
            return wrong("globs", "left out: only instructions are about some files");
        }
        if !(self.description.is_null() || self.description.is_string()) {
            return wrong("description", "a text");
        }
        Ok(())
    }

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
        if !VERSIONS.contains(&self.version) {
            return Err(PackError::new(
                Code::ConfigUnsupportedVersion,
                format!("unsupported manifest version: {}", self.version),
            )
            .detail("version", self.version)
            .detail("supported", json!(VERSIONS)));
        }
        for (name, config) in &self.targets {
            let target = self.target(name).ok_or_else(|| self.unknown_target(name, None))?;
            if self.is_version_2() {
                check_options(target, config)?;
                continue;
            }
            for (key, missing) in [("mode", config.mode.is_none()), ("scope", config.scope.is_none())] {
                if missing {
                    return Err(PackError::new(
                        Code::ConfigInvalid,
                        format!("target {name}: missing field `{key}`"),
                    )
                    .detail("target", name.as_str())
                    .detail("missing", json!([key])));
                }
            }
            if config.scope == Some(Scope::User) && !target.writes_user_scope() {
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
        if self.is_version_2() && !ModuleScope::is_valid(&self.scope) {
            return Err(
                PackError::new(Code::ConfigInvalid, "scope must be user or project").detail("key", "scope")
            );
        }
        let mut seen = BTreeSet::new();
        for module in &self.modules {
            let wrong = |message: String| {
                PackError::new(Code::ConfigInvalid, message).detail("module_id", module.id.as_str())
            };
            if !seen.insert(module.id.as_str()) {
                return Err(wrong(format!("duplicate module id: {}", module.id)));
            }
            if let Some(name) = module.targets.iter().find(|name| self.target(name).is_none()) {
                return Err(self.unknown_target(name, Some(&module.id)));
            }
            if self.is_version_2() {
                module.check_version_2()?;
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

    /// Leaves only what is written into a project. Modules that are for the user go there, too: a workspace has no user.
    pub fn keep_project_scope(&mut self) {
        self.targets.retain(|_, config| config.scope().project());
        self.targets.values_mut().for_each(|config| config.scope = Some(Scope::Project));
        self.modules.iter_mut().for_each(|module| module.scope = Value::Null);
        self.scope = Value::Null;
    }

    /// Whether the places of version 2 are written.
    pub fn is_version_2(&self) -> bool {
        self.version == 2
    }

    /// For whom a module is, from version 2 on.
    pub fn scope_of(&self, module: &Module) -> ModuleScope {
        let own = module.scope();
        own.or_else(|| ModuleScope::from_value(&self.scope)).unwrap_or(ModuleScope::Project)
    }

    /// The targets that this version of the file knows.
    fn known_targets(&self) -> &'static [TargetKind] {
        if self.is_version_2() { &TargetKind::VERSION_2 } else { &TargetKind::VERSION_1 }
    }

    fn target(&self, name: &str) -> Option<TargetKind> {
        self.known_targets().iter().copied().find(|target| target.name() == name)
    }

    /// The configured targets a filter selects, in alphabetical order.
    pub fn select_targets(&self, filter: &str) -> Result<Vec<(TargetKind, &TargetConfig)>> {
        let configured = self.targets.iter().filter_map(|(name, config)| Some((self.target(name)?, config)));
        if filter == ALL_TARGETS {
            return Ok(configured.collect());
        }
        let wanted = self.target(filter).ok_or_else(|| {
            let mut allowed = vec![ALL_TARGETS];
            allowed.extend(self.known_targets().iter().map(|target| target.name()));
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

    fn unknown_target(&self, name: &str, module_id: Option<&str>) -> PackError {
        let allowed: Vec<&str> = self.known_targets().iter().map(|target| target.name()).collect();
        let message = match module_id {
            Some(id) => {
                format!("module {id} has unsupported target: {name}; there are {}", allowed.join(", "))
            }
            None => format!("unsupported target: {name}; there are {}", allowed.join(", ")),
        };
        let error = PackError::new(Code::TargetUnsupported, message)
            .reason("target_not_compiled")
            .next(&[
                "inspect_help_json",
                "edit_manifest_targets",
                "rebuild_with_target_feature",
                "retry_command",
            ])
            .detail("target", name)
            .detail("allowed", allowed);
        match module_id {
            Some(id) => error.detail("module_id", id),
            None => error,
        }
    }
}

/// The filter that selects every configured target.
pub const ALL_TARGETS: &str = "all";

/// Refuses options that a target does not have: a misspelt one would otherwise do nothing, without a word.
fn check_options(target: TargetKind, config: &TargetConfig) -> Result<()> {
    let allowed = target.options();
    let Some(name) = config.options.keys().find(|name| !allowed.contains(&name.as_str())) else {
        return Ok(());
    };
    let known =
        if allowed.is_empty() { "it has none".to_owned() } else { format!("it has {}", allowed.join(", ")) };
    Err(PackError::new(
        Code::ConfigInvalid,
        format!("target {}: unknown option {name}; {known}", target.name()),
    )
    .detail("target", target.name())
    .detail("option", name.as_str())
    .detail("allowed", json!(allowed)))
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
