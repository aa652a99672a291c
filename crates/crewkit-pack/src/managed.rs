//! The list of files crewkit manages below a root: `<root>/.agentpack.manifest.<target>.json`.
//!
//! Reading is forgiving, because the file lives among the user's own: what cannot be used counts as missing, with a
//! warning. Two members are ours and absent in older files: `executable` on an entry, and `created_directories`,
//! which says which directories vanish again when their last managed file does.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::entry::{Entry, EntryKind, read_all};
use crate::fs::{FileKind, Fs};
use crate::hash::Digest;
use crate::path::{RelPath, RootDir};

/// The only version there is.
const SCHEMA_VERSION: u32 = 1;
/// The name before targets had files of their own.
pub const LEGACY_NAME: &str = ".agentpack.manifest.json";

/// One managed file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManagedFile {
    /// Where it is, below the root.
    pub path: RelPath,
    /// Hash of the content as deployed.
    pub sha256: Digest,
    /// Whether it was deployed as an executable.
    pub executable: bool,
    /// The modules it came from.
    pub module_ids: Vec<String>,
}

impl ManagedFile {
    /// How it was deployed.
    pub fn entry(&self) -> Entry {
        Entry { sha256: self.sha256, kind: EntryKind::file(self.executable) }
    }
}

/// The directories of a root that a deploy made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CreatedDirs {
    /// Below the root.
    pub below: BTreeSet<RelPath>,
    /// The root itself and how many of its ancestors: 0 when the root was there before.
    pub above: u32,
}

/// The content of a target manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetManifest {
    /// The target it belongs to.
    pub target: String,
    /// The snapshot made by the same deploy.
    pub snapshot_id: Option<String>,
    /// What is managed, sorted by path.
    pub files: Vec<ManagedFile>,
    /// What was made for it.
    pub created: CreatedDirs,
    /// Whether the file says anything about directories; 0.9.1 did not.
    pub knows_directories: bool,
}

/// What reading a manifest gave.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ManifestRead {
    /// The manifest, unless it is missing or unusable.
    pub manifest: Option<TargetManifest>,
    /// The file it was found in.
    pub file_name: Option<String>,
    /// What was skipped or ignored, and why.
    pub warnings: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct Document {
    schema_version: u32,
    #[serde(default)]
    generated_at: String,
    tool: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    snapshot_id: Option<String>,
    managed_files: Vec<Item>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    created_directories: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "is_zero")]
    created_above: u32,
}

#[derive(Serialize, Deserialize)]
struct Item {
    path: String,
    sha256: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    executable: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    module_ids: Vec<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde asks for")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// The name of the manifest of `target`.
pub fn file_name(target: &str) -> String {
    format!(".agentpack.manifest.{target}.json")
}

/// Whether a file of this name is a manifest, so never something the user left lying around.
pub fn is_manifest_name(name: &str) -> bool {
    let middle = name.strip_prefix(".agentpack.manifest.").and_then(|rest| rest.strip_suffix(".json"));
    name == LEGACY_NAME || middle.is_some()
}

/// Reads the manifest of `target` in `root`; an absent root has none.
///
/// What is not a manifest counts as missing, with a warning. What cannot be read at all is an error: to take a
/// manifest for missing because the disk had a hiccup would leave its files behind for ever.
pub fn read<F: Fs>(fs: &F, root: Option<&RootDir<'_, F>>, target: &str) -> io::Result<ManifestRead> {
    let mut read = ManifestRead::default();
    let Some(root) = root else { return Ok(read) };
    let preferred = file_name(target);
    for name in [preferred.as_str(), LEGACY_NAME] {
        let shown = root.path().join(name);
        let parsed = match fs.stat(root.handle(), name)? {
            None => continue,
            Some(stat) if stat.kind != FileKind::File => Err("it is not a regular file".to_owned()),
            Some(_) => parse(&read_all(fs, root.handle(), name)?, target, &shown),
        };
        match parsed {
            Ok((manifest, mut warnings)) => {
                if name == LEGACY_NAME {
                    warnings.push(format!("using the legacy target manifest {}", shown.display()));
                }
                read.warnings.append(&mut warnings);
                read.manifest = Some(manifest);
                read.file_name = Some(name.to_owned());
            }
            Err(reason) => {
                read.warnings.push(format!("ignoring the target manifest {}: {reason}", shown.display()));
            }
        }
        // A preferred file that cannot be used still hides the legacy one, as it always did.
        return Ok(read);
    }
    Ok(read)
}

/// Parses the bytes of a manifest; skipped entries become warnings.
pub fn parse(bytes: &[u8], target: &str, shown: &Path) -> Result<(TargetManifest, Vec<String>), String> {
    let document: Document = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if document.schema_version != SCHEMA_VERSION {
        return Err(format!("schema version {} is not supported", document.schema_version));
    }
    if document.tool != target {
        return Err(format!("it belongs to `{}`, not `{target}`", document.tool));
    }
    let mut warnings = Vec::new();
    let mut files = Vec::with_capacity(document.managed_files.len());
    for item in document.managed_files {
        let skip = |reason: String| {
            format!("skipping an entry of the target manifest {}: {reason}", shown.display())
        };
        match (RelPath::new(item.path.as_str()), item.sha256.parse()) {
            (Ok(path), Ok(sha256)) => {
                let Item { executable, module_ids, .. } = item;
                files.push(ManagedFile { path, sha256, executable, module_ids });
            }
            (Err(error), _) => warnings.push(skip(error.to_string())),
            (_, Err(error)) => warnings.push(skip(format!("`{}`: {error}", item.path))),
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files.dedup_by(|a, b| a.path == b.path);
    let knows_directories = document.created_directories.is_some();
    let below = document.created_directories.unwrap_or_default().into_iter();
    let created = CreatedDirs {
        below: below.filter_map(|path| RelPath::new(path).ok()).collect(),
        above: document.created_above,
    };
    let manifest = TargetManifest {
        target: target.to_owned(),
        snapshot_id: document.snapshot_id,
        files,
        created,
        knows_directories,
    };
    Ok((manifest, warnings))
}

/// The bytes of a manifest.
pub fn render(manifest: &TargetManifest, generated_at: &str) -> Vec<u8> {
    let item = |file: &ManagedFile| Item {
        path: file.path.as_str().to_owned(),
        sha256: file.sha256.to_string(),
        executable: file.executable,
        module_ids: file.module_ids.clone(),
    };
    let document = Document {
        schema_version: SCHEMA_VERSION,
        generated_at: generated_at.to_owned(),
        tool: manifest.target.clone(),
        snapshot_id: manifest.snapshot_id.clone(),
        managed_files: manifest.files.iter().map(item).collect(),
        created_directories: Some(
            manifest.created.below.iter().map(|path| path.as_str().to_owned()).collect(),
        ),
        created_above: manifest.created.above,
    };
    let mut bytes = serde_json::to_vec_pretty(&document).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}
