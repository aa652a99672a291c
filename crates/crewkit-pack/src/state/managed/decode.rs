//! Reading a target manifest: one with ten thousand entries is read on every look, so texts are borrowed from the file,
//! and ids shared.

use std::borrow::Cow;
use std::path::Path;

use serde::Deserialize;

use super::{CreatedDirs, ManagedFile, SCHEMA_VERSION, TargetManifest};
use crate::config::ids::ModuleIds;
use crate::fs::hash::DigestError;
use crate::fs::path::RelPath;

/// The file as it is written.
#[derive(Deserialize)]
struct Document<'a> {
    schema_version: u32,
    tool: String,
    snapshot_id: Option<String>,
    #[serde(borrow)]
    managed_files: Vec<Item<'a>>,
    created_directories: Option<Vec<String>>,
    #[serde(default)]
    created_above: u32,
}

#[derive(Deserialize)]
struct Item<'a> {
    #[serde(borrow)]
    path: Cow<'a, str>,
    #[serde(borrow)]
    sha256: Cow<'a, str>,
    #[serde(default)]
    executable: bool,
    #[serde(default, borrow)]
    module_ids: Vec<Text<'a>>,
}

/// A text, borrowed from the file where it can be.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Parses the bytes of a manifest; skipped entries become warnings.
pub fn parse(bytes: &[u8], target: &str, shown: &Path) -> Result<(TargetManifest, Vec<String>), String> {
    let document: Document<'_> = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if document.schema_version != SCHEMA_VERSION {
        return Err(format!("schema version {} is not supported", document.schema_version));
    }
    if document.tool != target {
        return Err(format!("it belongs to `{}`, not `{target}`", document.tool));
    }
    let mut files = Vec::with_capacity(document.managed_files.len());
    let mut warnings = Vec::new();
    // Of the entry before, which mostly comes from the same modules.
    let mut ids = ModuleIds::default();
    for item in document.managed_files {
        let path = RelPath::new(&item.path).map_err(|error| error.to_string());
        let hash = || item.sha256.parse().map_err(|error: DigestError| format!("`{}`: {error}", item.path));
        let (path, sha256) = match path.and_then(|path| Ok((path, hash()?))) {
            Ok(parsed) => parsed,
            Err(reason) => {
                let shown = shown.display();
                warnings.push(format!("skipping an entry of the target manifest {shown}: {reason}"));
                continue;
            }
        };
        if !ids.iter().eq(item.module_ids.iter().map(|id| &*id.0)) {
            ids = item.module_ids.into_iter().map(|id| id.0).collect();
        }
        let module_ids = ids.clone();
        files.push(ManagedFile { path, sha256, executable: item.executable, module_ids });
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files.dedup_by(|a, b| a.path == b.path);
    let knows_directories = document.created_directories.is_some();
    let below = document.created_directories.unwrap_or_default().into_iter();
    let created = CreatedDirs {
        below: below.filter_map(|path| RelPath::new(path).ok()).collect(),
        above: document.created_above,
    };
    let (target, snapshot_id) = (target.to_owned(), document.snapshot_id);
    Ok((TargetManifest { target, snapshot_id, files, created, knows_directories }, warnings))
}
