//! Looking at the places of a request: each directory once, each file against what the plan saw.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use super::TxnError;
use super::prepare::Work;
use crate::fs::entry::{Entry, Observed, observe};
use crate::fs::path::RelPath;
use crate::fs::place::{Anchors, Dirs, Place, PlaceId};
use crate::fs::{DirId, Fs};

/// Which directory is there, or which of its ancestors is the topmost missing one and in which directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Presence {
    Present(DirId),
    Missing { above: DirId, top: Place },
}

impl Presence {
    pub(super) fn is_missing(&self) -> bool {
        matches!(self, Self::Missing { .. })
    }
}

/// A file system and how much goes onto it.
#[derive(Debug)]
pub(super) struct Volume<F: Fs> {
    pub(super) device: u64,
    pub(super) dir: F::Dir,
    shown: PathBuf,
    pub(super) needed: u64,
    block: u64,
}

impl<F: Fs> Volume<F> {
    pub(super) fn shown(&self) -> &Path {
        &self.shown
    }
}

/// Looks at directories once, and notes which file systems are involved.
pub(super) struct Survey<'a, F: Fs> {
    pub(super) fs: &'a F,
    pub(super) anchors: &'a Anchors<F>,
    pub(super) dirs: Dirs<'a, F>,
    pub(super) known: HashMap<(usize, Option<RelPath>), Presence>,
    pub(super) volumes: Vec<Volume<F>>,
}

impl<'a, F: Fs> Survey<'a, F> {
    pub(super) fn new(fs: &'a F, anchors: &'a Anchors<F>) -> Self {
        Self { fs, anchors, dirs: Dirs::new(fs, anchors), known: HashMap::new(), volumes: Vec::new() }
    }

    /// Whether the directory `path` below `anchor` is there.
    pub(super) fn presence(&mut self, anchor: usize, path: Option<RelPath>) -> Result<Presence, TxnError> {
        let key = (anchor, path);
        if let Some(known) = self.known.get(&key) {
            return Ok(known.clone());
        }
        let presence = match &key.1 {
            None => self.look(anchor, None)?,
            Some(path) => match self.presence(anchor, path.parent())? {
                Presence::Present(above) => self.look(anchor, Some((above, path)))?,
                missing @ Presence::Missing { .. } => missing,
            },
        };
        self.known.insert(key, presence.clone());
        Ok(presence)
    }

    /// Looks at a directory that lies in the one called `above`, or at the anchor.
    fn look(&mut self, anchor: usize, path: Option<(DirId, &RelPath)>) -> Result<Presence, TxnError> {
        let shown = match path {
            Some((_, path)) => self.anchors.paths[anchor].join(path.as_path()),
            None => self.anchors.paths[anchor].clone(),
        };
        let dir = match self.dirs.dir(anchor, path.map(|(_, path)| path.clone())) {
            Ok(dir) => dir,
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                let root = self.anchors.paths[anchor].clone();
                return Err(TxnError::Blocked { path: shown, root });
            }
            Err(error) => match (error.kind(), path) {
                (io::ErrorKind::NotFound, Some((above, path))) => {
                    return Ok(Presence::Missing { above, top: Place { anchor, path: path.clone() } });
                }
                _ => return Err(TxnError::io("open", shown, error)),
            },
        };
        let id = self.fs.identity(&dir).map_err(TxnError::at("look at", &shown))?;
        if !self.volumes.iter().any(|volume| volume.device == id.device) {
            self.volumes.push(Volume { device: id.device, dir, shown, needed: 0, block: 1 });
        }
        Ok(Presence::Present(id))
    }

    /// Which place it is, whatever it is called.
    pub(super) fn id(&mut self, place: &Place) -> Result<PlaceId, TxnError> {
        Ok(match self.presence(place.anchor, place.path.parent())? {
            Presence::Present(dir) => PlaceId { dir, path: place.path.name().into() },
            Presence::Missing { above, top } => {
                let from = top.path.as_str().len() - top.path.name().len();
                let path = place.path.as_str().get(from..).unwrap_or_default().into();
                PlaceId { dir: above, path }
            }
        })
    }

    /// What is at a place.
    pub(super) fn observe(&mut self, place: &Place) -> Result<Observed, TxnError> {
        match self.presence(place.anchor, place.path.parent())? {
            Presence::Missing { .. } => Ok(Observed::Absent),
            Presence::Present(_) => {
                let failed = |doing| move |error| (doing, error);
                let dir = self.dirs.parent(place).map_err(failed("open"));
                let found =
                    dir.and_then(|dir| observe(self.fs, &dir, place.path.name()).map_err(failed("read")));
                found.map_err(|(doing, error)| TxnError::io(doing, self.anchors.shown(place), error))
            }
        }
    }
}

/// The file or link that was found at `path`, if anything; what is neither is an error.
pub(crate) fn file_at(found: Observed, path: impl Fn() -> PathBuf) -> Result<Option<Entry>, TxnError> {
    let found = match found {
        Observed::Absent => return Ok(None),
        Observed::Entry(entry) => return Ok(Some(entry)),
        Observed::Directory => "a directory",
        Observed::Special => "a device, socket or pipe",
    };
    Err(TxnError::NotAFile { path: path(), found })
}

/// Every place still holds what the plan saw.
pub(super) fn check<F: Fs>(survey: &mut Survey<'_, F>, works: &[Work]) -> Result<(), TxnError> {
    for work in works {
        let anchors = survey.anchors;
        let path = || anchors.shown(&work.place);
        match (file_at(survey.observe(&work.place)?, path)?, work.before) {
            (None, None) => {}
            (Some(found), Some(expected)) if found == expected => {}
            (found, expected) => {
                let found = match (found, expected) {
                    (None, _) => "it is gone",
                    (Some(_), None) => "something is there now",
                    (Some(_), Some(_)) => "it has other content",
                };
                return Err(TxnError::Changed { path: path(), found });
            }
        }
    }
    Ok(())
}

/// Every file system takes writes and has room for what goes onto it.
pub(super) fn room<F: Fs>(
    fs: &F,
    mut volumes: Vec<Volume<F>>,
    needed: &HashMap<u64, Vec<u64>>,
    stored: u64,
    base: &F::Dir,
) -> Result<Vec<Volume<F>>, TxnError> {
    let state = fs
        .identity(base)
        .map(|id| id.device)
        .map_err(TxnError::at("look at", Path::new("the state directory")))?;
    for volume in &mut volumes {
        let space = fs.space(&volume.dir).map_err(TxnError::at("ask for the room on", &volume.shown))?;
        volume.block = space.block;
        let whole_blocks = |size: &u64| size.div_ceil(volume.block).saturating_mul(volume.block);
        let sizes = needed.get(&volume.device).map(Vec::as_slice).unwrap_or_default();
        volume.needed = sizes.iter().map(whole_blocks).fold(0, u64::saturating_add);
        if volume.device == state {
            volume.needed = volume.needed.saturating_add(whole_blocks(&stored));
        }
        if space.read_only {
            return Err(TxnError::ReadOnly { path: volume.shown.clone(), needed: volume.needed });
        }
        if volume.needed > space.available {
            return Err(TxnError::NoSpace {
                path: volume.shown.clone(),
                needed: volume.needed,
                available: Some(space.available),
            });
        }
    }
    Ok(volumes)
}
