//! The target manifests read last: a server that is asked about the same roots again does not parse them again.
//!
//! A manifest is known by all that `stat` says of its file, under the rule of the hash cache: only when its times lie so
//! far back that a later edit must get different ones.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::ManifestRead;
use crate::fs::Stat;

/// Target manifests by their files.
#[derive(Debug, Default)]
pub struct KnownManifests(Mutex<HashMap<PathBuf, Known>>);

/// A manifest as it was read, and the file's stat data before that, if they tell it from every later one.
#[derive(Debug, Clone)]
pub struct Known {
    /// The stat data.
    pub stat: Stat,
    /// What reading gave.
    pub read: ManifestRead,
}

impl KnownManifests {
    /// What the file at `path` holds, if it still is as it was.
    pub(crate) fn get(&self, path: &Path, stat: &Stat) -> Option<ManifestRead> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(path).filter(|known| known.stat == *stat).map(|known| known.read.clone())
    }

    /// Knows these from now on, and no others: memory holds one look, however many repositories a server sees.
    pub(crate) fn replace(&self, known: HashMap<PathBuf, Known>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = known;
    }
}
