//! From paths to places below open directories.
//!
//! A root is resolved once: links in its path are followed to the real directory, which must lie below the boundary if
//! there is one, and from then on it is opened by its real path, on which no link is followed any more.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::entry::{Observed, observe};
use crate::fs::{FileKind, Fs, found};
use crate::path::RelPath;
use crate::transaction::TxnError;

/// A place below an anchor.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Place {
    /// Index into the anchors: of a journal, or of a transaction.
    pub anchor: usize,
    /// Where, below it.
    pub path: RelPath,
}

/// How many directories are kept open at once; the usual limit of a process is 1024 descriptors.
const OPEN_DIRS: usize = 96;

/// The existing directories that places are relative to.
#[derive(Debug, Clone)]
pub(crate) struct Anchors<F: Fs> {
    pub(crate) paths: Vec<PathBuf>,
    /// Absent when the directory has gone since; only recovery meets that.
    pub(crate) dirs: Vec<Option<F::Dir>>,
}

impl<F: Fs> Anchors<F> {
    pub(crate) fn new() -> Self {
        Self { paths: Vec::new(), dirs: Vec::new() }
    }

    /// Adds the directory at `path`, which has no links in it; says its index.
    pub(crate) fn add(&mut self, path: PathBuf, dir: F::Dir) -> usize {
        if let Some(index) = self.paths.iter().position(|known| *known == path) {
            return index;
        }
        self.paths.push(path);
        self.dirs.push(Some(dir));
        self.paths.len() - 1
    }

    /// Opens what a journal lists.
    pub(crate) fn reopen(fs: &F, paths: &[PathBuf]) -> Result<Self, TxnError> {
        let mut dirs = Vec::with_capacity(paths.len());
        for path in paths {
            dirs.push(match fs.open_root(path) {
                Ok(dir) => Some(dir),
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
                {
                    None
                }
                Err(error) => return Err(TxnError::io("open", path, error)),
            });
        }
        Ok(Self { paths: paths.to_vec(), dirs })
    }

    /// Orders places by their absolute path; two names of one place are equal.
    pub(crate) fn compare(&self, a: &Place, b: &Place) -> Ordering {
        if a.anchor == b.anchor {
            return a.path.cmp(&b.path);
        }
        // Anchors are different directories: unless one lies in the other, they decide.
        let (one, other) = (&self.paths[a.anchor], &self.paths[b.anchor]);
        if one.starts_with(other) || other.starts_with(one) {
            self.shown(a).cmp(&self.shown(b))
        } else {
            one.cmp(other)
        }
    }

    /// The absolute path of a place, for messages and for telling places apart.
    pub(crate) fn shown(&self, place: &Place) -> PathBuf {
        self.paths[place.anchor].join(place.path.as_path())
    }
}

/// Opens directories below anchors and keeps some of them open.
#[derive(Debug)]
pub(crate) struct Dirs<'a, F: Fs> {
    fs: &'a F,
    anchors: &'a Anchors<F>,
    open: HashMap<(usize, RelPath), F::Dir>,
}

impl<'a, F: Fs> Dirs<'a, F> {
    pub(crate) fn new(fs: &'a F, anchors: &'a Anchors<F>) -> Self {
        Self { fs, anchors, open: HashMap::new() }
    }

    /// The directory `path` below an anchor, or the anchor itself.
    pub(crate) fn dir(&mut self, anchor: usize, path: Option<RelPath>) -> io::Result<F::Dir> {
        let base = self.anchors.dirs[anchor].as_ref().ok_or(io::ErrorKind::NotFound)?;
        let Some(path) = path else { return Ok(base.clone()) };
        let key = (anchor, path);
        if let Some(dir) = self.open.get(&key) {
            return Ok(dir.clone());
        }
        let dir = self.fs.open_dir(base, &key.1)?;
        if self.open.len() >= OPEN_DIRS {
            self.open.clear();
        }
        self.open.insert(key, dir.clone());
        Ok(dir)
    }

    /// The directory a place lies in.
    pub(crate) fn parent(&mut self, place: &Place) -> io::Result<F::Dir> {
        self.dir(place.anchor, place.path.parent())
    }
}

/// Where a root is.
#[derive(Debug, Clone)]
pub(crate) struct RootAt {
    /// The nearest directory that exists: the root itself, if it does.
    pub(crate) anchor: usize,
    /// The root below it; nothing when it exists.
    pub(crate) missing: Option<RelPath>,
}

impl RootAt {
    /// The place of `path` below this root.
    pub(crate) fn place(&self, path: &RelPath) -> Result<Place, crate::path::RelPathError> {
        let path = match &self.missing {
            Some(prefix) => prefix.join(path)?,
            None => path.clone(),
        };
        Ok(Place { anchor: self.anchor, path })
    }
}

/// Finds the nearest existing directory of a root, whose path may contain links that stay below `boundary`.
pub(crate) fn locate<F: Fs>(
    fs: &F,
    root: &Path,
    boundary: Option<&Path>,
    anchors: &mut Anchors<F>,
) -> Result<RootAt, TxnError> {
    let unusable = |reason: &str| TxnError::BadPath { path: root.to_owned(), reason: reason.to_owned() };
    if !root.is_absolute() {
        return Err(unusable("a root must be absolute"));
    }
    if root.to_str().is_none() {
        return Err(unusable("it is not valid UTF-8"));
    }
    let mut missing: Vec<&str> = Vec::new();
    let mut current = root;
    let (path, dir) = loop {
        let blocked = || TxnError::Blocked { path: current.to_owned(), root: root.to_owned() };
        let Some((path, dir)) = open_below(fs, current, boundary).map_err(|error| match error {
            TxnError::Io { source, .. } if source.kind() == io::ErrorKind::NotADirectory => blocked(),
            other => other,
        })?
        else {
            let name = current.file_name().and_then(|name| name.to_str());
            missing.push(name.ok_or_else(|| unusable("it contains `..`"))?);
            current = current.parent().ok_or_else(|| unusable("no part of it exists"))?;
            continue;
        };
        let Some(name) = missing.last() else { break (path, dir) };
        match fs.stat(&dir, name).map_err(TxnError::at("look at", current))? {
            None => break (path, dir),
            // Something is there that could not be opened: a link that leads nowhere.
            Some(stat) if stat.kind == FileKind::Symlink => {
                return Err(TxnError::Blocked { path: current.join(name), root: root.to_owned() });
            }
            // Somebody else has made it since.
            Some(_) => (missing, current) = (Vec::new(), root),
        }
    };
    missing.reverse();
    let missing = if missing.is_empty() {
        None
    } else {
        Some(RelPath::new(missing.join("/")).map_err(|error| TxnError::bad_path(root, &error))?)
    };
    if path.to_str().is_none() {
        return Err(unusable("it is not valid UTF-8"));
    }
    Ok(RootAt { anchor: anchors.add(path, dir), missing })
}

/// Opens the directory at `path` by its real path, which must lie below `boundary`; nothing when there is none.
fn open_below<F: Fs>(
    fs: &F,
    path: &Path,
    boundary: Option<&Path>,
) -> Result<Option<(PathBuf, F::Dir)>, TxnError> {
    let Some(real) = found(fs.canonical(path)).map_err(TxnError::at("resolve", path))? else {
        return Ok(None);
    };
    if let Some(boundary) = boundary
        && !real.starts_with(boundary)
    {
        return Err(TxnError::Escape { path: path.to_owned(), real, boundary: boundary.to_owned() });
    }
    let dir = found(fs.open_root(&real)).map_err(TxnError::at("open", path))?;
    Ok(dir.map(|dir| (real, dir)))
}

/// A directory held open, below which files are looked at.
///
/// It only reads: everything that changes a tree goes through a transaction.
#[derive(Debug)]
pub struct RootDir<F: Fs> {
    dir: F::Dir,
    path: PathBuf,
}

impl<F: Fs> RootDir<F> {
    /// Opens the directory at `path`, which may be a symbolic link; returns `None` when there is none.
    ///
    /// What leads outside of `boundary`, a path without links, is refused.
    pub fn open(fs: &F, path: &Path, boundary: Option<&Path>) -> Result<Option<Self>, TxnError> {
        Ok(open_below(fs, path, boundary)?.map(|(_, dir)| Self { dir, path: path.to_owned() }))
    }

    /// The directory `dir`, shown as `path`.
    pub(crate) fn new(dir: F::Dir, path: PathBuf) -> Self {
        Self { dir, path }
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The handle, for the verbs of [`Fs`].
    pub fn handle(&self) -> &F::Dir {
        &self.dir
    }

    /// What is at `path`, with the hash of its content.
    ///
    /// A symbolic link or a file on the way is an error: what lies behind it is not below this root.
    pub fn observe(&self, fs: &F, path: &RelPath) -> io::Result<Observed> {
        let parent = match path.parent() {
            Some(parent) => found(fs.open_dir(&self.dir, &parent))?,
            None => Some(self.dir.clone()),
        };
        parent.map_or(Ok(Observed::Absent), |dir| observe(fs, &dir, path.name()))
    }
}
