//! The list of files crewkit manages below a root: `<root>/.agentpack.manifest.<target>.json`.
//!
//! Reading is forgiving, because the file lives among the user's own: what cannot be used counts as missing, with a
//! warning. Two members are ours and absent in older files: `executable` on an entry, and `created_directories`,
//! which says which directories vanish again when their last managed file does.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;

use crate::config::ids::ModuleIds;
use crate::fs::entry::{Entry, EntryKind, read_all};
use crate::fs::hash::Digest;
use crate::fs::path::RelPath;
use crate::fs::place::RootDir;
use crate::fs::{FileKind, Fs};

mod decode;

pub use decode::parse;

/// The only version there is.
const SCHEMA_VERSION: u32 = 1;
/// The name before targets had files of their own.
pub const LEGACY_NAME: &str = ".agentpack.manifest.json";

/// One managed file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ManagedFile {
    /// Where it is, below the root.
    pub path: RelPath,
    /// Hash of the content as deployed.
    pub sha256: Digest,
    /// Whether it was deployed as an executable.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub executable: bool,
    /// The modules it came from.
    #[serde(skip_serializing_if = "ModuleIds::is_empty")]
    pub module_ids: ModuleIds,
}

impl ManagedFile {
    /// How it was deployed.
    pub fn entry(&self) -> Entry {
        Entry::new(self.sha256, EntryKind::file(self.executable))
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

impl TargetManifest {
    /// What it says about `path`.
    pub fn file(&self, path: &RelPath) -> Option<&ManagedFile> {
        let at = self.files.binary_search_by(|file| file.path.cmp(path)).ok()?;
        self.files.get(at)
    }
}

/// What reading a manifest gave.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ManifestRead {
    /// The manifest, unless it is missing or unusable.
    pub manifest: Option<Arc<TargetManifest>>,
    /// What was skipped or ignored, and why.
    pub warnings: Vec<String>,
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
pub fn read<F: Fs>(fs: &F, root: Option<&RootDir<F>>, target: &str) -> io::Result<ManifestRead> {
    root.map_or(Ok(ManifestRead::default()), |root| read_in(fs, root.handle(), root.path(), target))
}

/// Reads the manifest of `target` in a directory that is shown as `path`.
///
/// What is not a manifest counts as missing, with a warning. What cannot be read at all is an error: to take a
/// manifest for missing because the disk had a hiccup would leave its files behind for ever.
pub(crate) fn read_in<F: Fs>(fs: &F, dir: &F::Dir, path: &Path, target: &str) -> io::Result<ManifestRead> {
    let mut read = ManifestRead::default();
    let preferred = file_name(target);
    for name in [preferred.as_str(), LEGACY_NAME] {
        let shown = path.join(name);
        let parsed = match fs.stat(dir, name)? {
            None => continue,
            Some(stat) if stat.kind != FileKind::File => Err("it is not a regular file".to_owned()),
            Some(_) => parse(&read_all(fs, dir, name)?, target, &shown),
        };
        match parsed {
            Ok((manifest, mut warnings)) => {
                if name == LEGACY_NAME {
                    warnings.push(format!("using the legacy target manifest {}", shown.display()));
                }
                read.warnings.append(&mut warnings);
                read.manifest = Some(Arc::new(manifest));
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

/// A manifest as it is written; nothing of it is copied.
#[derive(Serialize)]
struct Document<'a> {
    schema_version: u32,
    generated_at: &'a str,
    tool: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot_id: Option<&'a str>,
    managed_files: &'a [ManagedFile],
    created_directories: &'a BTreeSet<RelPath>,
    #[serde(skip_serializing_if = "is_zero")]
    created_above: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde asks for")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// Writes a manifest.
pub fn write(manifest: &TargetManifest, generated_at: &str, mut out: &mut dyn io::Write) -> io::Result<()> {
    let document = Document {
        schema_version: SCHEMA_VERSION,
        generated_at,
        tool: &manifest.target,
        snapshot_id: manifest.snapshot_id.as_deref(),
        managed_files: &manifest.files,
        created_directories: &manifest.created.below,
        created_above: manifest.created.above,
    };
    serde_json::to_writer_pretty(&mut out, &document)?;
    out.write_all(b"\n")
}
