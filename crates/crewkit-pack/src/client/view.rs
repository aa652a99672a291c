//! What a client sees in a directory, part by part, in its own order.
//!
//! The files are those on disk as they will be after a deploy: what the modules want lies over them, and what the plan
//! deletes is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crewkit_core::Limits;
use serde_json::Value;

use super::{Base, Client, ClientSettings, Dirs, OnlyCalled, Place, SameName, SettingsPlace, Step, Take};
use crate::config::yaml;
use crate::desired::{Desired, DesiredFile, DesiredRoot};
use crate::env::Env;
use crate::fs::read;
use crate::source::module;

/// Directories below a place that are looked through; deeper ones are not.
const DEEPEST: usize = 8;
/// Files that import files are followed this far.
const IMPORTS_DEEP: usize = 4;

/// What a part is for the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PartKind {
    Instructions,
    Skill,
    Command,
}

impl PartKind {
    /// The word in answers.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Instructions => "instructions",
            Self::Skill => "skill",
            Self::Command => "command",
        }
    }
}

/// What becomes of a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PartState {
    Read,
    /// Only the first bytes are read.
    Cut {
        read: u64,
        limit: u64,
    },
    /// Another file is read instead.
    HiddenBy(PathBuf),
    /// The project is not trusted, by the settings in this file.
    NeedsTrust(PathBuf),
}

/// One thing a client finds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) kind: PartKind,
    /// The name of a skill or command; the name of an instruction file.
    pub(crate) name: String,
    /// The file; of a skill, its `SKILL.md`.
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    /// Whether it is the user's and not the project's.
    pub(crate) of_user: bool,
    /// The modules it comes from; empty for a file that crewkit did not make.
    pub(crate) modules: Vec<String>,
    /// The file that imports it.
    pub(crate) imported_by: Option<PathBuf>,
    /// Whether the model never sees it unless the user calls it.
    pub(crate) called: bool,
    pub(crate) state: PartState,
}

impl Part {
    /// Whether anything of it reaches the model or the user.
    pub(crate) fn is_seen(&self) -> bool {
        matches!(self.state, PartState::Read | PartState::Cut { .. })
    }
}

/// The files as they will be.
#[derive(Debug, Default)]
pub(crate) struct Files<'a> {
    pub(crate) desired: Option<&'a Desired>,
    /// What the plan deletes.
    pub(crate) gone: BTreeSet<PathBuf>,
}

impl<'a> Files<'a> {
    fn wanted(&self, path: &Path) -> Option<&'a DesiredFile> {
        let roots = self.desired.into_iter().flat_map(|desired| &desired.roots);
        roots.filter_map(|root| below(root, path)).find_map(|(root, rel)| {
            let at = root.files.binary_search_by(|file| file.path.as_str().cmp(rel)).ok()?;
            root.files.get(at)
        })
    }

    /// The length of the file at `path`, and the modules it comes from; `None` if there is none.
    fn file(&self, path: &Path) -> Option<(u64, Vec<String>)> {
        if let (Some(file), Some(desired)) = (self.wanted(path), self.desired) {
            return Some((file.bytes, desired.module_ids(file).iter().map(ToOwned::to_owned).collect()));
        }
        if self.gone.contains(path) {
            return None;
        }
        let metadata = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
        Some((metadata.len(), Vec::new()))
    }

    fn text(&self, path: &Path, limit: u64) -> Option<String> {
        match self.wanted(path) {
            Some(file) => String::from_utf8(file.read(limit).ok()?).ok(),
            None => read::text(path, limit).ok(),
        }
    }

    /// The names directly below `dir`.
    fn names(&self, dir: &Path) -> BTreeSet<String> {
        let mut names: BTreeSet<String> = BTreeSet::new();
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            names.extend(entry.file_name().into_string());
        }
        for root in self.desired.into_iter().flat_map(|desired| &desired.roots) {
            let prefix = match below(root, dir) {
                Some((_, rel)) => format!("{rel}/"),
                None if root.path == dir => String::new(),
                None => continue,
            };
            let from = root.files.partition_point(|file| file.path.as_str() < prefix.as_str());
            let mut last = "";
            for file in &root.files[from..] {
                let Some(rest) = file.path.as_str().strip_prefix(&prefix) else { break };
                let name = rest.split('/').next().unwrap_or(rest);
                if name != last {
                    names.insert(name.to_owned());
                    last = name;
                }
            }
        }
        names
    }

    /// The files below `dir` whose names end with `suffix`, sorted.
    fn below(&self, dir: &Path, suffix: &str, deep: bool) -> Vec<PathBuf> {
        let mut found = Vec::new();
        self.collect(dir, suffix, if deep { DEEPEST } else { 0 }, &mut found);
        found
    }

    fn collect(&self, dir: &Path, suffix: &str, deeper: usize, found: &mut Vec<PathBuf>) {
        for name in self.names(dir) {
            let path = dir.join(&name);
            if self.file(&path).is_some() {
                if name.ends_with(suffix) {
                    found.push(path);
                }
            } else if deeper > 0 {
                self.collect(&path, suffix, deeper - 1, found);
            }
        }
    }
}

/// The root and where `path` is below it, if it is.
fn below<'a, 'p>(root: &'a DesiredRoot, path: &'p Path) -> Option<(&'a DesiredRoot, &'p str)> {
    let rel = path.strip_prefix(&root.path).ok()?.to_str()?;
    (!rel.is_empty()).then_some((root, rel))
}

/// What looking through a client's eyes takes.
#[derive(Debug)]
pub(crate) struct Viewer<'a> {
    pub(crate) env: &'a Env,
    pub(crate) limits: &'a Limits,
    /// The root of the project.
    pub(crate) project: &'a Path,
    /// The directory the client is started in; the root of the project, or below it.
    pub(crate) dir: &'a Path,
    pub(crate) files: Files<'a>,
    /// Whether the names in skills are read; if not, a skill has the name of its directory.
    pub(crate) read_names: bool,
}

fn part(kind: PartKind, place: &Place, path: PathBuf, (bytes, modules): (u64, Vec<String>)) -> Part {
    let file_name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Part {
        kind,
        name: file_name,
        path,
        bytes,
        of_user: place.base != Base::Project,
        modules,
        imported_by: None,
        called: false,
        state: PartState::Read,
    }
}

/// What [`Viewer::look`] knows of the client.
struct Eyes {
    config: PathBuf,
    settings: ClientSettings,
}

impl Viewer<'_> {
    /// What `client` finds, in its order.
    pub(crate) fn look(&self, client: &Client) -> Vec<Part> {
        let config = client.config_dir(self.env);
        let place = SettingsPlace { config: &config, project: self.project, limits: self.limits };
        let eyes = Eyes { settings: (client.settings)(&place), config };
        let mut parts = Vec::new();
        for step in client.instructions {
            self.instructions(&eyes, step, &mut parts);
        }
        // What is read as an import is not hidden, whatever hides it as a file of its own.
        let imported: BTreeSet<PathBuf> = parts
            .iter()
            .filter(|part| part.imported_by.is_some() && part.is_seen())
            .map(|part| part.path.clone())
            .collect();
        parts.retain(|part| part.is_seen() || !imported.contains(&part.path));
        self.skills(client, &eyes, &mut parts);
        self.commands(client, &eyes, &mut parts);
        parts
    }

    /// The directories of a place, outermost first.
    fn dirs(&self, base: Base, dirs: Dirs, eyes: &Eyes) -> Vec<PathBuf> {
        match (base, dirs) {
            (Base::Home, _) => vec![self.env.home.clone()],
            (Base::Config, _) => vec![eyes.config.clone()],
            (Base::Project, Dirs::Root) => vec![self.project.to_owned()],
            (Base::Project, Dirs::RootToWorkingDirectory) => {
                let mut all = vec![self.project.to_owned()];
                let mut at = self.project.to_owned();
                for name in self.dir.strip_prefix(self.project).into_iter().flat_map(Path::components) {
                    at.push(name);
                    all.push(at.clone());
                }
                all
            }
        }
    }

    /// The files that a pattern in `dir` means.
    fn matching(&self, dir: &Path, pattern: &str) -> Vec<PathBuf> {
        if let Some((below, suffix)) = pattern.split_once("/**/*") {
            return self.files.below(&dir.join(below), suffix, true);
        }
        match pattern.split_once("/*") {
            Some((below, suffix)) => self.files.below(&dir.join(below), suffix, false),
            None => {
                Some(dir.join(pattern)).filter(|path| self.files.file(path).is_some()).into_iter().collect()
            }
        }
    }

    fn part(&self, kind: PartKind, place: &Place, path: PathBuf) -> Part {
        let found = self.files.file(&path).unwrap_or_default();
        part(kind, place, path, found)
    }

    fn instructions(&self, eyes: &Eyes, step: &Step, parts: &mut Vec<Part>) {
        let Some(base) = step.places.first().map(|place| place.base) else { return };
        let mut left = step.limit.map(|limit| eyes.settings.limit.unwrap_or(limit));
        let limit = left.unwrap_or_default();
        for dir in self.dirs(base, step.dirs, eyes) {
            let switched_off =
                step.unless.iter().map(|name| dir.join(name)).find(|path| self.files.file(path).is_some());
            let mut found = Vec::new();
            for place in step.places {
                // Places of one step can be relative to different directories of the user.
                let dir = if place.base == base {
                    dir.clone()
                } else {
                    self.dirs(place.base, step.dirs, eyes).remove(0)
                };
                let paths = self.matching(&dir, place.path);
                found.extend(paths.into_iter().map(|path| self.part(PartKind::Instructions, place, path)));
            }
            if step.limit.is_some()
                && let Some(last) = step.places.last()
            {
                for name in &eyes.settings.fallback_names {
                    let path = dir.join(name);
                    if self.files.file(&path).is_some() {
                        found.push(self.part(PartKind::Instructions, last, path));
                    }
                }
            }
            let first = found.first().map(|part| part.path.clone());
            for (index, mut part) in found.into_iter().enumerate() {
                if let Some(by) = &switched_off {
                    part.state = PartState::HiddenBy(by.clone());
                } else if let (Take::First, 1.., Some(first)) = (step.take, index, &first) {
                    part.state = PartState::HiddenBy(first.clone());
                } else if let (true, Some(file)) = (step.needs_trust, &eyes.settings.untrusted) {
                    part.state = PartState::NeedsTrust(file.clone());
                } else if let Some(left) = &mut left {
                    if part.bytes > *left {
                        part.state = PartState::Cut { read: *left, limit };
                    }
                    *left = left.saturating_sub(part.bytes);
                }
                let imports = step.imports && part.is_seen();
                let path = part.path.clone();
                parts.push(part);
                if imports {
                    self.imports(&path, IMPORTS_DEEP, parts);
                }
            }
        }
    }

    /// The files that the file at `path` imports with `@path`.
    fn imports(&self, path: &Path, deeper: usize, parts: &mut Vec<Part>) {
        let (Some(text), Some(dir)) = (self.files.text(path, self.limits.pack_text_bytes), path.parent())
        else {
            return;
        };
        let at = parts.len().saturating_sub(1);
        let Some(importer) = parts.last().cloned() else { return };
        for target in imported_paths(&text) {
            let target = crate::desired::without_dots(&dir.join(self.env.expand_tilde(target)));
            let Some((bytes, modules)) = self.files.file(&target) else { continue };
            let name = target.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let imported_by = Some(path.to_owned());
            // A file that imports a module's text does not hold it as well.
            if let Some(importer) = parts.get_mut(at) {
                importer.modules.retain(|module| !modules.contains(module));
            }
            parts.push(Part { name, path: target.clone(), bytes, modules, imported_by, ..importer.clone() });
            if deeper > 1 {
                self.imports(&target, deeper - 1, parts);
            }
        }
    }

    fn skills(&self, client: &Client, eyes: &Eyes, parts: &mut Vec<Part>) {
        let mut named: BTreeMap<String, PathBuf> = BTreeMap::new();
        for place in client.skills.roots {
            for dir in self.dirs(place.base, client.skills.dirs, eyes) {
                let root = dir.join(place.path);
                for name in self.files.names(&root) {
                    let path = root.join(&name).join(module::SKILL_FILE);
                    let Some(found) = self.files.file(&path) else { continue };
                    let mut part = part(PartKind::Skill, place, path, found);
                    let frontmatter = self.frontmatter(&part.path);
                    let field = |name: &str| frontmatter.as_ref()?.get(name);
                    part.name = field("name").and_then(Value::as_str).map_or(name, ToOwned::to_owned);
                    part.called = match client.skills.only_called {
                        OnlyCalled::Unknown => false,
                        OnlyCalled::Frontmatter => {
                            field("disable-model-invocation") == Some(&Value::Bool(true))
                        }
                        OnlyCalled::Policy => self.is_called_by_policy(&part.path),
                    };
                    if client.skills.same_name == SameName::FirstWins {
                        match named.get(&part.name) {
                            Some(first) => part.state = PartState::HiddenBy(first.clone()),
                            None => drop(named.insert(part.name.clone(), part.path.clone())),
                        }
                    }
                    parts.push(part);
                }
            }
        }
    }

    /// Whether the file beside a skill keeps the model from choosing it.
    fn is_called_by_policy(&self, skill: &Path) -> bool {
        if !self.read_names {
            return false;
        }
        let policy = || {
            let file = skill.parent()?.join("agents/openai.yaml");
            let text = self.files.text(&file, self.limits.pack_text_bytes)?;
            let policy: Value = yaml::parse(&text, self.limits).ok()?;
            policy.pointer("/policy/allow_implicit_invocation")?.as_bool()
        };
        policy() == Some(false)
    }

    /// What a skill says about itself.
    fn frontmatter(&self, path: &Path) -> Option<Value> {
        if !self.read_names {
            return None;
        }
        let text = self.files.text(path, self.limits.pack_text_bytes)?;
        module::frontmatter(&text, self.limits).ok()?
    }

    fn commands(&self, client: &Client, eyes: &Eyes, parts: &mut Vec<Part>) {
        let skills: BTreeMap<String, PathBuf> = parts
            .iter()
            .filter(|part| part.kind == PartKind::Skill && part.is_seen())
            .map(|part| (part.name.clone(), part.path.clone()))
            .collect();
        for place in client.commands {
            for dir in self.dirs(place.base, Dirs::Root, eyes) {
                for path in self.matching(&dir, place.path) {
                    let mut part = self.part(PartKind::Command, place, path);
                    part.called = !client.shows_commands;
                    part.name.truncate(part.name.find('.').unwrap_or(part.name.len()));
                    if let Some(skill) = skills.get(&part.name) {
                        part.state = PartState::HiddenBy(skill.clone());
                    }
                    parts.push(part);
                }
            }
        }
    }
}

/// The paths after `@` at the start of a word, outside code blocks.
fn imported_paths(text: &str) -> impl Iterator<Item = &str> {
    let mut in_code = false;
    text.lines()
        .filter(move |line| {
            let fence = line.trim_start().starts_with("```");
            in_code ^= fence;
            !in_code && !fence
        })
        .flat_map(str::split_whitespace)
        .filter_map(|word| word.strip_prefix('@'))
        .map(|path| path.trim_end_matches(['.', ',', ';', ')']))
        .filter(|path| !path.is_empty())
}
