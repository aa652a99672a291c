//! What each root holds after the last command that changed it, whatever has become of the root itself since.
//!
//! A head is a copy of the target manifest, written in the same transaction. Snapshots are differences; the head is what
//! they are differences from, so that a root that was removed, replaced or restored from somewhere can be brought back.

use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::fs::entry::{Entry, read_all};
use crate::fs::hash::Digest;
use crate::fs::{FileKind, Fs};
use crate::state::managed::{self, TargetManifest};

/// A head and its file.
#[derive(Debug, Default)]
pub(crate) struct Head {
    pub(crate) file: Option<Entry>,
    pub(crate) manifest: Option<Arc<TargetManifest>>,
}

/// The name of the head of a root.
pub(crate) fn name(target: &str, root: &Path) -> String {
    let key = [target.as_bytes(), b"\0", root.as_os_str().as_encoded_bytes()].concat();
    format!("{}.json", Digest::of(&key).short(32))
}

/// Reads the head of a root; `disk` is the manifest in the root and its file, which mostly says the same.
pub(crate) fn read<F: Fs>(
    fs: &F,
    heads: &F::Dir,
    target: &str,
    root: &Path,
    disk: Option<(Entry, &Arc<TargetManifest>)>,
) -> io::Result<Head> {
    let name = name(target, root);
    let Some(stat) = fs.stat(heads, &name)?.filter(|stat| stat.kind == FileKind::File) else {
        return Ok(Head::default());
    };
    let bytes = read_all(fs, heads, &name)?;
    let file = Entry::found(Digest::of(&bytes), &stat);
    let manifest = match disk {
        Some((same, manifest)) if same.sha256 == file.sha256 => Some(Arc::clone(manifest)),
        // What cannot be understood says nothing, and is written anew.
        _ => managed::parse(&bytes, target, root).ok().map(|(manifest, _)| Arc::new(manifest)),
    };
    Ok(Head { file: Some(file), manifest })
}

/// What is managed as far as anybody knows: what the head says, and what only the manifest in the root says.
pub(crate) fn merged(
    head: Option<&Arc<TargetManifest>>,
    disk: Option<&Arc<TargetManifest>>,
) -> Option<Arc<TargetManifest>> {
    let (Some(head), Some(disk)) = (head, disk) else { return head.or(disk).cloned() };
    if head.files == disk.files {
        return Some(Arc::clone(disk));
    }
    let mut merged = TargetManifest::clone(head);
    merged.files.extend(disk.files.iter().filter(|file| head.file(&file.path).is_none()).cloned());
    merged.files.sort_by(|a, b| a.path.cmp(&b.path));
    Some(Arc::new(merged))
}
