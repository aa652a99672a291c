//! Overlays: local changes laid over the source of a module, per user, per machine and per project.
//!
//! An overlay is a directory in the config repo. A *dir* overlay replaces or adds whole files; a *patch* overlay changes
//! lines of files. Its own bookkeeping lives in `.agentpack/` inside and is never deployed.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};

use crewkit_core::{Code, Limits};
use serde::{Deserialize, Serialize};

use crate::config::ids;
use crate::config::manifest::Module;
use crate::error::{PackError, Result};
use crate::fs::path::RelPath;
use crate::fs::read::{self, ReadError};
use crate::fs::{Fs as _, RealFs, ScanFs as _, open_path};
use crate::observe::hash_cache::HashCache;
use crate::source::tree::{self, Links, METADATA_DIR, TreeFile};

pub(crate) mod baseline;
pub(crate) mod edit;
pub mod merge3;
pub mod patch;
pub mod rebase;

/// Which machine and project overlays are looked up for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverlayOwner {
    pub machine_id: String,
    pub project_id: String,
}

/// For whom an overlay is, as flags name it; later ones win.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OverlayScope {
    /// Every machine and project.
    #[default]
    Global,
    Machine,
    Project,
}

impl OverlayScope {
    /// The name in flags and answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Global => "global",
            Self::Machine => "machine",
            Self::Project => "project",
        }
    }

    /// The scope of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Global, Self::Machine, Self::Project].into_iter().find(|scope| scope.name() == name)
    }
}

/// How an overlay changes its module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Whole files.
    Dir,
    /// Lines of files.
    Patch,
}

impl Kind {
    /// The name in files and flags.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dir => "dir",
            Self::Patch => "patch",
        }
    }
}

/// The directory in which all overlays of a scope lie.
fn base_dir(repo: &Path, scope: OverlayScope, owner: &OverlayOwner) -> PathBuf {
    match scope {
        OverlayScope::Global => repo.join("overlays"),
        OverlayScope::Machine => repo.join("overlays/machines").join(&owner.machine_id),
        OverlayScope::Project => repo.join("projects").join(&owner.project_id).join("overlays"),
    }
}

/// The names under which the overlay of a module may be filed, best first.
fn names(module_id: &str) -> Vec<String> {
    let mut names = vec![ids::fs_key(module_id), ids::long_fs_key(module_id)];
    let raw_is_a_name = !module_id.is_empty() && !module_id.contains(['/', '\\', '\0']);
    if raw_is_a_name && !matches!(module_id, "." | "..") {
        names.push(module_id.to_owned());
    }
    names
}

/// Where the overlay of a module is or would be created.
pub fn dir_of(repo: &Path, scope: OverlayScope, owner: &OverlayOwner, module_id: &str) -> PathBuf {
    let base = base_dir(repo, scope, owner);
    let existing = names(module_id).into_iter().map(|name| base.join(name)).find(|path| path.is_dir());
    existing.unwrap_or_else(|| base.join(ids::fs_key(module_id)))
}

/// One overlay of a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overlay {
    pub scope: OverlayScope,
    /// Its directory.
    pub dir: PathBuf,
}

/// All overlays of a repo that count here. Each base directory is listed once, not once per module.
#[derive(Debug, Default)]
pub struct Overlays {
    bases: Vec<(OverlayScope, PathBuf, HashSet<String>)>,
}

impl Overlays {
    /// Lists the overlays in `repo`; `project_id` is computed only when the repo has project overlays at all.
    pub fn list(repo: &Path, machine_id: &str, project_id: impl FnOnce() -> String) -> Result<Self> {
        let mut owner = OverlayOwner { machine_id: machine_id.to_owned(), project_id: String::new() };
        let mut scopes = vec![OverlayScope::Global, OverlayScope::Machine];
        if repo.join("projects").is_dir() {
            owner.project_id = project_id();
            scopes.push(OverlayScope::Project);
        }
        let mut bases = Vec::new();
        for scope in scopes {
            let base = base_dir(repo, scope, &owner);
            let disk = RealFs::default();
            let names = match open_path(&disk, &base).and_then(|dir| disk.list(&dir)) {
                Ok(names) => names.into_iter().collect(),
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(PackError::io("list overlays in", &base, error)),
            };
            bases.push((scope, base, names));
        }
        Ok(Self { bases })
    }

    /// The overlays of a module, weakest first.
    pub fn of(&self, module_id: &str) -> Vec<Overlay> {
        if self.bases.is_empty() {
            return Vec::new();
        }
        let names = names(module_id);
        self.bases
            .iter()
            .filter_map(|(scope, base, listed)| {
                let name = names.iter().find(|name| listed.contains(*name))?;
                let dir = base.join(name);
                dir.is_dir().then_some(Overlay { scope: *scope, dir })
            })
            .collect()
    }
}

/// What an overlay contains.
#[derive(Debug)]
pub struct Contents {
    /// How it changes its module.
    pub kind: Kind,
    /// Whole files, for a dir overlay.
    pub files: Vec<TreeFile>,
    /// Patches by the file they change, for a patch overlay.
    pub patches: BTreeMap<RelPath, PathBuf>,
}

/// Where patches of an overlay lie.
pub fn patches_dir(overlay: &Path) -> PathBuf {
    overlay.join(METADATA_DIR).join("patches")
}

/// Reads what an overlay contains and checks that its parts fit each other.
pub fn read_contents(
    overlay: &Overlay,
    module_id: &str,
    limits: &Limits,
    cache: &HashCache,
) -> Result<Contents> {
    let opened = RealFs::default().open_any(&overlay.dir);
    let opened = opened.map_err(|error| PackError::io("open overlay", &overlay.dir, error))?;
    let listed = tree::list(opened, &overlay.dir, Some(overlay.scope), Links::Follow, limits, cache)?;
    let kind = read_kind(&overlay.dir, limits)?;
    let prefix = format!("{METADATA_DIR}/patches/");
    let mut patches = BTreeMap::new();
    let mut files = Vec::new();
    for file in listed {
        if !tree::is_metadata(&file.path) {
            files.push(file);
        } else if let Some(target) =
            file.path.as_str().strip_prefix(&prefix).and_then(|p| p.strip_suffix(".patch"))
        {
            let target = RelPath::new(target).map_err(|error| {
                wrong(overlay, module_id, &format!("the patch {} has an unusable name: {error}", file.path))
            })?;
            patches.insert(target, file.shown());
        }
    }
    match kind {
        Kind::Dir if !patches.is_empty() => Err(wrong(
            overlay,
            module_id,
            "it contains patches, but overlay_kind is dir; an overlay is one or the other",
        )),
        Kind::Patch if !files.is_empty() => Err(wrong(
            overlay,
            module_id,
            &format!("it contains whole files such as {}, but overlay_kind is patch", files[0].path),
        )),
        _ => Ok(Contents { kind, files, patches }),
    }
}

#[derive(Serialize, Deserialize)]
struct KindFile {
    overlay_kind: Kind,
}

fn kind_path(overlay: &Path) -> PathBuf {
    overlay.join(METADATA_DIR).join("overlay.json")
}

/// The kind of an overlay; whole files when it does not say.
pub fn read_kind(overlay: &Path, limits: &Limits) -> Result<Kind> {
    let path = kind_path(overlay);
    let invalid = |error: String| {
        PackError::new(Code::ConfigInvalid, format!("invalid overlay metadata {}: {error}", path.display()))
            .detail("path", path.display().to_string())
            .detail("error", error)
    };
    match read::bytes(&path, limits.pack_yaml_bytes) {
        Ok(bytes) => {
            let file: KindFile =
                serde_json::from_slice(&bytes).map_err(|error| invalid(error.to_string()))?;
            Ok(file.overlay_kind)
        }
        Err(ReadError::Io(error)) if error.kind() == io::ErrorKind::NotFound => Ok(Kind::Dir),
        Err(ReadError::Io(error)) => Err(PackError::io("read", &path, error)),
        Err(error) => Err(invalid(error.to_string())),
    }
}

fn wrong(overlay: &Overlay, module_id: &str, what: &str) -> PackError {
    PackError::new(
        Code::ConfigInvalid,
        format!("overlay {} of module {module_id}: {what}", overlay.dir.display()),
    )
    .detail("module_id", module_id)
    .detail("scope", overlay.scope.name())
    .detail("overlay_dir", overlay.dir.display().to_string())
}

/// Lays an overlay over the files of a module; returns which files it touches.
pub fn apply(
    files: &mut BTreeMap<RelPath, TreeFile>,
    overlay: &Overlay,
    module: &Module,
    limits: &Limits,
    cache: &HashCache,
) -> Result<Vec<RelPath>> {
    let contents = read_contents(overlay, &module.id, limits, cache)?;
    let mut touched = Vec::new();
    for file in contents.files {
        touched.push(file.path.clone());
        files.insert(file.path.clone(), file);
    }
    for (target, patch_file) in contents.patches {
        let patched = apply_patch(files.get(&target), &target, &patch_file, overlay, &module.id, limits)?;
        touched.push(target.clone());
        files.insert(target, patched);
    }
    Ok(touched)
}

fn apply_patch(
    file: Option<&TreeFile>,
    target: &RelPath,
    patch_file: &Path,
    overlay: &Overlay,
    module_id: &str,
    limits: &Limits,
) -> Result<TreeFile> {
    let wrong = |what: String| wrong(overlay, module_id, &format!("the patch of {target}: {what}"));
    let file = file.ok_or_else(|| wrong("there is no such file to change".to_owned()))?;
    let text = read::text(patch_file, limits.pack_text_bytes).map_err(|error| match error {
        ReadError::Io(error) => PackError::io("read", patch_file, error),
        other => wrong(other.to_string()),
    })?;
    let patch = patch::Patch::parse(&text, target.as_str()).map_err(|error| wrong(error.to_string()))?;
    let before = file.read_text(limits.pack_text_bytes).map_err(|error| {
        if error.code() == Code::ModuleInvalid {
            wrong("the file to change is not UTF-8 text".to_owned())
        } else {
            error
        }
    })?;
    let after = patch.apply(&before).map_err(|error| {
        PackError::new(
            Code::OverlayPatchApplyFailed,
            format!(
                "overlay {} of module {module_id}: the patch of {target} does not apply: {error}",
                overlay.dir.display()
            ),
        )
        .detail("module_id", module_id)
        .detail("scope", overlay.scope.name())
        .detail("overlay_dir", overlay.dir.display().to_string())
        .detail("patch_file", patch_file.display().to_string())
        .detail("relpath", target.as_str())
        .detail("stderr", error.to_string())
        .hint(format!(
            "run `agentpack overlay rebase {module_id} --scope {}`, or correct the patch",
            overlay.scope.name()
        ))
    })?;
    Ok(TreeFile::in_memory(target.clone(), after.into_bytes(), file.executable, overlay.scope))
}
