//! The files that should exist, root by root: what the selected modules become on the selected targets.
//!
//! Contents stay where they are; only what no file contains (joined instructions, rules) is made here.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crewkit_core::{Code, Limits};
use serde_json::{Value, json};

use crate::config::ids::{self, ModuleIds};
use crate::config::manifest::{Manifest, Module, ModuleScope, ModuleType, TargetConfig};
use crate::desired::target::by_client::Routes;
use crate::desired::target::{Places, PromptNaming, Put, RootSpec, TargetKind};
use crate::env::Env;
use crate::error::{PackError, Result};
use crate::fs::entry::{Entry, EntryKind};
use crate::fs::hash::Digest;
use crate::fs::path::RelPath;
use crate::parallel;
use crate::source::materialize::Material;
use crate::source::module;
use crate::source::tree::{Place, TreeFile};
use crate::state::managed::{self, ManagedFile};
use crate::state::transaction;

mod rule;
pub(crate) mod target;

/// Everything that should exist.
#[derive(Debug)]
pub struct Desired {
    /// The roots of the selected targets, by target name and path.
    pub roots: Vec<DesiredRoot>,
    /// The modules the files come from.
    pub modules: Vec<Material>,
}

/// What should exist below one root.
#[derive(Debug)]
pub struct DesiredRoot {
    /// The target it belongs to.
    pub target: TargetKind,
    /// Where it is.
    pub path: PathBuf,
    /// Whether files nobody manages are reported.
    pub scan_extras: bool,
    /// The files, sorted by path.
    pub files: Vec<DesiredFile>,
}

impl DesiredRoot {
    /// The file at `path`.
    pub(crate) fn file(&self, path: &RelPath) -> Option<&DesiredFile> {
        self.files.get(self.files.binary_search_by(|file| file.path.cmp(path)).ok()?)
    }
}

/// A file that should exist.
#[derive(Debug)]
pub struct DesiredFile {
    /// Where, below the root.
    pub path: RelPath,
    /// Hash of its content.
    pub sha256: Digest,
    /// Length of its content.
    pub bytes: u64,
    /// Whether it should be executable.
    pub executable: bool,
    pub content: Content,
    /// The modules it comes from, as indices into [`Desired::modules`], sorted.
    pub modules: Arc<[usize]>,
}

/// The content of a file.
#[derive(Debug, Clone)]
pub enum Content {
    /// A file of a module as it is.
    Source(Arc<TreeFile>),
    /// Made of several, or wrapped.
    Made(Arc<[u8]>),
}

impl DesiredFile {
    /// Hash and kind, as they are compared with what exists.
    pub fn entry(&self) -> Entry {
        Entry::new(self.sha256, EntryKind::file(self.executable))
    }

    /// The bytes, at most `limit`.
    pub fn read(&self, limit: u64) -> Result<Vec<u8>> {
        match &self.content {
            Content::Made(bytes) => Ok(bytes.to_vec()),
            Content::Source(file) => file.read(limit),
        }
    }

    /// The content as a transaction takes it.
    pub fn new_file(&self) -> transaction::NewFile {
        let content = match &self.content {
            Content::Made(bytes) => transaction::Content::Bytes(bytes.clone()),
            Content::Source(file) => match &file.place {
                Place::Disk(path) => transaction::Content::File(path.clone()),
                Place::Memory(bytes) => transaction::Content::Bytes(bytes.clone()),
            },
        };
        transaction::NewFile { entry: self.entry(), size: self.bytes, content }
    }
}

impl Desired {
    /// The ids of the modules a file comes from.
    pub fn module_ids(&self, file: &DesiredFile) -> ModuleIds {
        match &*file.modules {
            [index] => self.modules.get(*index).map(|material| material.ids.clone()).unwrap_or_default(),
            several => several.iter().filter_map(|index| Some(&*self.modules.get(*index)?.id)).collect(),
        }
    }

    /// What the manifest of a root shall list.
    pub fn managed_files(&self, root: &DesiredRoot) -> Vec<ManagedFile> {
        let managed = |file: &DesiredFile| ManagedFile {
            path: file.path.clone(),
            sha256: file.sha256,
            executable: file.executable,
            module_ids: self.module_ids(file),
        };
        root.files.iter().map(managed).collect()
    }
}

/// The selected targets with their roots.
#[derive(Debug)]
pub(crate) struct Layout<'a> {
    roots: Vec<(TargetKind, RootSpec)>,
    /// Which target writes a module, from version 2 on.
    routes: Option<Routes<'a>>,
}

impl<'a> Layout<'a> {
    /// The roots of `targets`, one entry per directory.
    pub(crate) fn new(
        env: &'a Env,
        project: &'a Path,
        manifest: &'a Manifest,
        targets: &[(TargetKind, &TargetConfig)],
    ) -> Result<Self> {
        let routes = manifest.is_version_2().then(|| Routes::new(env, project, manifest));
        let mut roots: Vec<(TargetKind, RootSpec)> = Vec::new();
        for (target, config) in targets {
            let specs = match &routes {
                Some(routes) => routes.roots(*target, config)?,
                None => {
                    let specs = target.roots(&Places { env, project, config })?;
                    specs.into_iter().map(|spec| (*target, spec)).collect()
                }
            };
            for (target, mut spec) in specs {
                spec.path = without_dots(&spec.path);
                match roots.iter_mut().find(|(kind, root)| *kind == target && root.path == spec.path) {
                    Some((_, root)) => {
                        root.scan_extras |= spec.scan_extras;
                        root.puts.append(&mut spec.puts);
                    }
                    None => roots.push((target, spec)),
                }
            }
        }
        roots.sort_by(|a, b| (a.0.name(), &a.1.path).cmp(&(b.0.name(), &b.1.path)));
        Ok(Self { roots, routes })
    }

    /// What clients of the config file have no place for, in words.
    pub(crate) fn homeless(&self, modules: &[&Module]) -> Vec<String> {
        self.routes.as_ref().map(|routes| routes.homeless(modules)).unwrap_or_default()
    }

    /// Whether a put of a root of `target` takes `module`.
    fn accepts(&self, target: TargetKind, put: &(Put, Option<ModuleScope>), module: &Module) -> bool {
        let (put, scope) = put;
        takes(put, module.kind)
            && match &self.routes {
                Some(routes) => routes.takes(target, put, *scope, module),
                None => module.is_for(target),
            }
    }

    /// The directories of the roots.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        self.roots.iter().map(|(_, spec)| spec.path.clone()).collect()
    }

    /// Leaves out the roots that are not below `dir`.
    pub(crate) fn keep_below(&mut self, dir: &Path) {
        self.roots.retain(|(_, spec)| spec.path.starts_with(dir));
    }

    /// The roots: target, directory, and whether files nobody manages are reported.
    pub(crate) fn roots(&self) -> impl Iterator<Item = (TargetKind, &Path, bool)> {
        self.roots.iter().map(|(target, spec)| (*target, spec.path.as_path(), spec.scan_extras))
    }

    /// Whether any root takes `module`. Modules nobody takes are not even read.
    pub(crate) fn takes(&self, module: &Module) -> bool {
        self.roots.iter().any(|(target, spec)| spec.puts.iter().any(|put| self.accepts(*target, put, module)))
    }

    /// Places the modules.
    pub(crate) fn place(&self, modules: Vec<Material>, limits: &Limits) -> Result<Desired> {
        let placed = parallel::map(&self.roots, |(target, spec)| {
            let mut root = DesiredRoot {
                target: *target,
                path: spec.path.clone(),
                scan_extras: spec.scan_extras,
                files: Vec::new(),
            };
            for put in &spec.puts {
                let taken: Vec<(usize, &Material)> = modules
                    .iter()
                    .enumerate()
                    .filter(|(_, material)| self.accepts(*target, put, &material.module))
                    .collect();
                self.put(&mut root, &put.0, &taken, limits)?;
            }
            Ok(root)
        });
        let roots = placed.into_iter().collect::<Result<_>>()?;
        let mut desired = Desired { roots, modules };
        move_to_deepest_root(&mut desired.roots);
        for at in 0..desired.roots.len() {
            settle(&mut desired, at)?;
        }
        Ok(desired)
    }
}

fn takes(put: &Put, kind: ModuleType) -> bool {
    match put {
        Put::Instructions { .. } | Put::CursorRules | Put::Importing { .. } | Put::Rules(_) => {
            kind == ModuleType::Instructions
        }
        Put::CalledSkills { .. } => matches!(kind, ModuleType::Prompt | ModuleType::Command),
        Put::Prompts { .. } => kind == ModuleType::Prompt,
        Put::Commands { .. } => kind == ModuleType::Command,
        Put::Skills { .. } => kind == ModuleType::Skill,
    }
}

/// The path with `.` and `..` taken out, so that equal places have equal names.
pub(crate) fn without_dots(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            std::path::Component::ParentDir => {
                clean.pop();
            }
            std::path::Component::CurDir => {}
            other => clean.push(other),
        }
    }
    clean
}

impl Layout<'_> {
    /// Places `modules` as `put` says.
    fn put(
        &self,
        root: &mut DesiredRoot,
        put: &Put,
        modules: &[(usize, &Material)],
        limits: &Limits,
    ) -> Result<()> {
        let Put::Importing { file } = put else { return place(root, put, modules, limits) };
        let is_shared = |material: &Material| {
            self.routes.as_ref().is_some_and(|routes| routes.is_shared(&material.module))
        };
        let (shared, own): (Vec<_>, Vec<_>) =
            modules.iter().copied().partition(|(_, material)| is_shared(material));
        let path = RelPath::new(*file).map_err(|error| PackError::bug(error.to_string()))?;
        if shared.is_empty() {
            return place(root, &Put::Instructions { file }, &own, limits);
        }
        let mut text = format!("@{}\n", module::INSTRUCTIONS_FILE);
        if !own.is_empty() {
            text += "\n";
            text += &joined_text(&own, limits.pack_text_bytes)?;
        }
        let indices: Vec<usize> = modules.iter().map(|(index, _)| *index).collect();
        root.files.push(made(path, text, &indices));
        Ok(())
    }
}

fn place(root: &mut DesiredRoot, put: &Put, modules: &[(usize, &Material)], limits: &Limits) -> Result<()> {
    let text_limit = limits.pack_text_bytes;
    match put {
        Put::Instructions { file } => {
            if !modules.is_empty() {
                let path = RelPath::new(*file).map_err(|error| PackError::bug(error.to_string()))?;
                root.files.push(joined(path, modules, text_limit)?);
            }
        }
        Put::CursorRules => {
            for (index, material) in modules {
                let name = format!("{}.mdc", ids::fs_key(&material.id));
                let body = instructions_text(material, text_limit)?;
                let path = path_for(&name, material)?;
                root.files.push(made(path, cursor_rule(&material.id, &body), &[*index]));
            }
        }
        // Its file depends on what others write.
        Put::Importing { .. } => {}
        Put::Rules(style) => {
            for (index, material) in modules {
                let name = style.file_name(&ids::sanitized(&ids::module_name(&material.id)));
                let text = rule::text(*style, &material.module, &instructions_text(material, text_limit)?);
                root.files.push(made(path_for(&name, material)?, text, &[*index]));
            }
        }
        Put::CalledSkills { for_codex } => {
            for (index, material) in modules {
                for (path, text) in rule::called_skill(material, *for_codex, limits)? {
                    root.files.push(made(path_for(&path, material)?, text, &[*index]));
                }
            }
        }
        Put::Prompts { dir, naming } => place_single_files(root, dir, *naming, modules)?,
        Put::Commands { dir } => place_single_files(root, dir, PromptNaming::Same, modules)?,
        Put::Skills { dir } => {
            root.files.reserve(modules.iter().map(|(_, material)| material.files.len()).sum());
            for (index, material) in modules {
                let name = ids::module_name(&material.id);
                let prefix = if dir.is_empty() { name } else { format!("{dir}/{name}") };
                // Checked alone: a name of `..` must not hide behind the file names that follow it.
                path_for(&prefix, material)?;
                let own: Arc<[usize]> = [*index].into();
                let mut path = prefix + "/";
                let below = path.len();
                for file in &material.files {
                    path.truncate(below);
                    path.push_str(file.path.as_str());
                    root.files.push(source(path_for(&path, material)?, file, &own));
                }
            }
        }
    }
    Ok(())
}

fn place_single_files(
    root: &mut DesiredRoot,
    dir: &str,
    naming: PromptNaming,
    modules: &[(usize, &Material)],
) -> Result<()> {
    for (index, material) in modules {
        let Some(file) = material.files.iter().find(|file| module::is_markdown(file)) else {
            continue;
        };
        let name = naming.apply(file.path.name());
        let path = if dir.is_empty() { name } else { format!("{dir}/{name}") };
        root.files.push(source(path_for(&path, material)?, file, &[*index].into()));
    }
    Ok(())
}

fn path_for(path: &str, material: &Material) -> Result<RelPath> {
    let refuse = |why: String| {
        PackError::new(Code::ModuleInvalid, format!("module {} cannot become a path: {why}", material.id))
            .detail("module_id", material.id.as_str())
            .detail("path", path)
    };
    if !path.contains('/') && managed::is_manifest_name(path) {
        return Err(refuse(format!("`{path}` is the name of a target manifest")));
    }
    RelPath::new(path).map_err(|error| refuse(error.to_string()))
}

fn source(path: RelPath, file: &Arc<TreeFile>, modules: &Arc<[usize]>) -> DesiredFile {
    DesiredFile {
        path,
        sha256: file.sha256,
        bytes: file.bytes,
        executable: file.executable,
        content: Content::Source(file.clone()),
        modules: modules.clone(),
    }
}

fn made(path: RelPath, text: String, modules: &[usize]) -> DesiredFile {
    let bytes: Arc<[u8]> = text.into_bytes().into();
    DesiredFile {
        path,
        sha256: Digest::of(&bytes),
        bytes: bytes.len() as u64,
        executable: false,
        content: Content::Made(bytes),
        modules: modules.into(),
    }
}

fn instructions_file(material: &Material) -> Result<&Arc<TreeFile>> {
    material
        .files
        .iter()
        .find(|file| file.path.as_str() == module::INSTRUCTIONS_FILE)
        .ok_or_else(|| PackError::bug(format!("module {} lost its instructions", material.id)))
}

fn instructions_text(material: &Material, limit: u64) -> Result<String> {
    instructions_file(material)?
        .read_text(limit)
        .map_err(|error| error.detail("module_id", material.id.as_str()))
}

/// One module stands as it is; several are marked, so that each can be found again.
fn joined(path: RelPath, modules: &[(usize, &Material)], limit: u64) -> Result<DesiredFile> {
    if let [(index, material)] = modules {
        let file = instructions_file(material)?;
        let text = instructions_text(material, limit)?;
        let mut desired = made(path, text, &[*index]);
        if desired.sha256 == file.sha256 {
            desired.content = Content::Source(file.clone());
        }
        return Ok(desired);
    }
    let indices: Vec<usize> = modules.iter().map(|(index, _)| *index).collect();
    Ok(made(path, joined_text(modules, limit)?, &indices))
}

/// The instructions of several modules, each marked.
fn joined_text(modules: &[(usize, &Material)], limit: u64) -> Result<String> {
    let mut sections = Vec::with_capacity(modules.len());
    for (_, material) in modules {
        let mut text = instructions_text(material, limit)?;
        if !text.ends_with('\n') {
            text.push('\n');
        }
        sections.push(format!("<!-- agentpack:module={} -->\n{text}<!-- /agentpack -->", material.id));
    }
    Ok(sections.join("\n\n---\n\n"))
}

fn cursor_rule(module_id: &str, body: &str) -> String {
    let description = Value::String(format!("agentpack: {module_id}"));
    let end = if body.ends_with('\n') { "" } else { "\n" };
    format!("---\ndescription: {description}\nglobs: []\nalwaysApply: true\n---\n\n{body}{end}")
}

/// A file belongs to the deepest root of its target that contains it; roots nest when directories are configured so.
fn move_to_deepest_root(roots: &mut [DesiredRoot]) {
    for outer in 0..roots.len() {
        for inner in 0..roots.len() {
            let (Some(a), Some(b)) = (roots.get(outer), roots.get(inner)) else { continue };
            if outer == inner || a.target != b.target {
                continue;
            }
            let Ok(below) = b.path.strip_prefix(&a.path) else { continue };
            let Some(prefix) = below.to_str().map(|below| format!("{below}/")) else { continue };
            let mut moved = Vec::new();
            let mut kept = Vec::new();
            for mut file in std::mem::take(&mut roots[outer].files) {
                match file.path.as_str().strip_prefix(&prefix).and_then(|rest| RelPath::new(rest).ok()) {
                    Some(path) => {
                        file.path = path;
                        moved.push(file);
                    }
                    None => kept.push(file),
                }
            }
            roots[outer].files = kept;
            roots[inner].files.append(&mut moved);
        }
    }
}

/// Sorts a root's files and merges those that several modules want alike.
fn settle(desired: &mut Desired, at: usize) -> Result<()> {
    let mut files = std::mem::take(&mut desired.roots[at].files);
    // Mostly sorted already, by module and then by path; a stable sort makes use of that.
    files.sort_by(|a, b| a.path.cmp(&b.path));
    let mut differs = None;
    files.dedup_by(|file, last| {
        if last.path != file.path {
            return false;
        }
        if last.entry() != file.entry() {
            let root = &desired.roots[at];
            let place = root.path.join(last.path.as_path());
            differs.get_or_insert_with(|| conflict(desired, root.target, &place, last, file));
        }
        let mut modules = [&*last.modules, &*file.modules].concat();
        modules.sort_unstable();
        modules.dedup();
        last.modules = modules.into();
        true
    });
    differs.map_or(Ok(()), Err)?;
    files_inside_files(desired, at, &files)?;
    desired.roots[at].files = files;
    Ok(())
}

/// A path cannot be a file and a directory at once.
fn files_inside_files(desired: &Desired, at: usize, files: &[DesiredFile]) -> Result<()> {
    let mut last_parent = "";
    for file in files {
        let Some((parent, _)) = file.path.as_str().rsplit_once('/') else { continue };
        if parent == last_parent {
            continue;
        }
        last_parent = parent;
        let mut above = Some(parent);
        while let Some(dir) = above {
            if let Ok(found) = files.binary_search_by(|other| other.path.as_str().cmp(dir)) {
                let root = &desired.roots[at];
                let place = root.path.join(dir);
                return Err(conflict(desired, root.target, &place, &files[found], file));
            }
            above = dir.rsplit_once('/').map(|(dir, _)| dir);
        }
    }
    Ok(())
}

/// Two modules or targets want a place to be different files.
pub(crate) fn conflict(
    desired: &Desired,
    target: TargetKind,
    place: &Path,
    a: &DesiredFile,
    b: &DesiredFile,
) -> PackError {
    let side = |file: &DesiredFile| json!({"sha256": file.sha256, "module_ids": desired.module_ids(file)});
    let (shown, target) = (place.display(), target.name());
    let names = |file: &DesiredFile| desired.module_ids(file).iter().collect::<Vec<_>>().join(", ");
    PackError::new(
        Code::DesiredStateConflict,
        format!("conflicting content for {target} {shown}: modules {} and {}", names(a), names(b)),
    )
    .detail("target", target)
    .paths(place)
    .detail("existing", side(a))
    .detail("new", side(b))
}
