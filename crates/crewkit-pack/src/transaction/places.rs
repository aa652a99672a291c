//! From the paths of a request to places below open directories.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use super::TxnError;
use crate::fs::{FileKind, Fs};
use crate::journal::Place;
use crate::path::RelPath;

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

/// Finds the nearest existing directory of a root, whose path may contain links.
pub(crate) fn locate<F: Fs>(fs: &F, root: &Path, anchors: &mut Anchors<F>) -> Result<RootAt, TxnError> {
    let unusable = |reason: &str| TxnError::BadPath { path: root.to_owned(), reason: reason.to_owned() };
    if !root.is_absolute() {
        return Err(unusable("a root must be absolute"));
    }
    if root.to_str().is_none() {
        return Err(unusable("it is not valid UTF-8"));
    }
    let mut missing: Vec<&str> = Vec::new();
    let mut current = root;
    loop {
        let dir = match fs.open_root(current) {
            Ok(dir) => dir,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let name = current.file_name().and_then(|name| name.to_str());
                missing.push(name.ok_or_else(|| unusable("it contains `..`"))?);
                current = current.parent().ok_or_else(|| unusable("no part of it exists"))?;
                continue;
            }
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                return Err(TxnError::Blocked { path: current.to_owned(), root: root.to_owned() });
            }
            Err(error) => return Err(TxnError::io("open", current, error)),
        };
        let Some(name) = missing.last() else { break };
        match fs.stat(&dir, name).map_err(TxnError::at("look at", current))? {
            None => break,
            // Something is there that could not be opened: a link that leads nowhere.
            Some(stat) if stat.kind == FileKind::Symlink => {
                return Err(TxnError::Blocked { path: current.join(name), root: root.to_owned() });
            }
            // Somebody else has made it since.
            Some(_) => (missing, current) = (Vec::new(), root),
        }
    }
    missing.reverse();
    let missing = if missing.is_empty() {
        None
    } else {
        Some(RelPath::new(missing.join("/")).map_err(|error| TxnError::bad_path(root, &error))?)
    };
    let path = fs.canonical(current).map_err(TxnError::at("resolve", current))?;
    if path.to_str().is_none() {
        return Err(unusable("it is not valid UTF-8"));
    }
    // Opened once more by the path that goes into the journal, so that both surely mean the same directory.
    let dir = fs.open_root(&path).map_err(TxnError::at("open", &path))?;
    Ok(RootAt { anchor: anchors.add(path, dir), missing })
}
