//! Who owns a place: the targets whose manifests list it.
//!
//! A manifest lies in the root of its target, so every manifest that can list a file is in a directory above that file,
//! whatever roots the command at hand knows of.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::desired::target::TargetKind;
use crate::fs::path::RelPath;
use crate::fs::{DirId, Fs, found};
use crate::state::managed::{self, TargetManifest};
use crate::state::transaction::TxnError;

/// A target and the directory its manifest is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Owner {
    pub(crate) target: &'static str,
    pub(crate) root: DirId,
}

/// The manifests above places, each read once.
pub(crate) struct Owners<'a, F: Fs> {
    fs: &'a F,
    read: HashMap<PathBuf, Vec<(Owner, Arc<TargetManifest>)>>,
}

impl<'a, F: Fs> Owners<'a, F> {
    pub(crate) fn new(fs: &'a F) -> Self {
        Self { fs, read: HashMap::new() }
    }

    /// Whether a manifest that `counts` lists the file at `path`, which has no links on the way.
    pub(crate) fn any(&mut self, path: &Path, counts: impl Fn(Owner) -> bool) -> Result<bool, TxnError> {
        for dir in path.ancestors().skip(1) {
            let Some(below) = path.strip_prefix(dir).ok().and_then(|below| RelPath::from_path(below).ok())
            else {
                continue;
            };
            let lists = |(owner, manifest): &(Owner, Arc<TargetManifest>)| {
                counts(*owner) && manifest.file(&below).is_some()
            };
            if self.manifests(dir)?.iter().any(lists) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn manifests(&mut self, dir: &Path) -> Result<&[(Owner, Arc<TargetManifest>)], TxnError> {
        if !self.read.contains_key(dir) {
            let manifests = self.read_manifests(dir)?;
            self.read.insert(dir.to_owned(), manifests);
        }
        Ok(self.read.get(dir).map(Vec::as_slice).unwrap_or_default())
    }

    fn read_manifests(&self, dir: &Path) -> Result<Vec<(Owner, Arc<TargetManifest>)>, TxnError> {
        let mut manifests = Vec::new();
        let Some(handle) = found(self.fs.open_root(dir)).map_err(TxnError::at("open", dir))? else {
            return Ok(manifests);
        };
        for target in TargetKind::ALL.map(TargetKind::name) {
            let read = managed::read_in(self.fs, &handle, dir, target);
            if let Some(manifest) = read.map_err(TxnError::at("read the manifests in", dir))?.manifest {
                let root = self.fs.identity(&handle).map_err(TxnError::at("look at", dir))?;
                manifests.push((Owner { target, root }, manifest));
            }
        }
        Ok(manifests)
    }
}
