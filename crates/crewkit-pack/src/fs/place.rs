//! From paths to places below open directories.
//!
//! A root is resolved once: links in its path are followed to the real directory, which must lie below the boundary if
//! there is one, and from then on it is opened by its real path, on which no link is followed any more.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::fs::entry::{Observed, observe};
use crate::fs::path::RelPath;
use crate::fs::{DirId, FileKind, Fs, found};
use crate::state::transaction::TxnError;

/// A place below an anchor.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Place {
    /// Index into the anchors: of a journal, or of a transaction.
    pub anchor: usize,
    /// Where, below it.
    pub path: RelPath,
}

/// A place by what it is: the nearest directory above it that exists, and the way from there. However many names a place
/// has, through links, mounts or roots in each other, this is the same.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PlaceId {
    pub(crate) dir: DirId,
    pub(crate) path: Box<str>,
}

/// How many directories are kept open at once; the usual limit of a process is 1024 descriptors.
const OPEN_DIRS: usize = 96;

/// The existing directories that places are relative to, each once.
#[derive(Debug, Clone)]
pub(crate) struct Anchors<F: Fs> {
    pub(crate) paths: Vec<PathBuf>,
    pub(crate) ids: Vec<DirId>,
    /// Absent when the directory cannot be reached; only recovery meets that.
    pub(crate) dirs: Vec<Option<F::Dir>>,
}

impl<F: Fs> Anchors<F> {
    pub(crate) fn new() -> Self {
        Self { paths: Vec::new(), ids: Vec::new(), dirs: Vec::new() }
    }

    /// Resolves a root and adds the directory it is in.
    pub(crate) fn locate(
        &mut self,
        fs: &F,
        root: &Path,
        boundary: Option<&Path>,
    ) -> Result<RootAt, TxnError> {
        let Located { nearest, id, missing } = Located::find(fs, root, boundary)?;
        Ok(RootAt { anchor: self.insert(nearest.real, id, nearest.dir), missing })
    }

    /// Adds the directory at `path`, which has no links in it; returns its index.
    pub(crate) fn add(&mut self, fs: &F, path: PathBuf, dir: F::Dir) -> Result<usize, TxnError> {
        let id = fs.identity(&dir).map_err(TxnError::at("look at", &path))?;
        Ok(self.insert(path, id, dir))
    }

    fn insert(&mut self, path: PathBuf, id: DirId, dir: F::Dir) -> usize {
        if let Some(index) = self.ids.iter().position(|known| *known == id) {
            return index;
        }
        self.paths.push(path);
        self.ids.push(id);
        self.dirs.push(Some(dir));
        self.paths.len() - 1
    }

    /// Opens what a journal lists, where it was or where it is now: a directory that was moved is found again if it is
    /// one of `candidates`. One that is not there, or is another one by now, is absent.
    pub(crate) fn reopen(
        fs: &F,
        paths: &[PathBuf],
        ids: &[DirId],
        candidates: &[PathBuf],
    ) -> Result<Self, TxnError> {
        let mut anchors = Self { paths: paths.to_vec(), ids: ids.to_vec(), dirs: Vec::new() };
        for (index, path) in paths.iter().enumerate() {
            let is_it = |dir: &F::Dir| match ids.get(index) {
                // The number of a device can be another one each time it is mounted.
                Some(id) => fs.identity(dir).is_ok_and(|found| found.inode == id.inode),
                None => true,
            };
            let mut opened = reached(fs.open_root(path)).map_err(TxnError::at("open", path))?.filter(is_it);
            if opened.is_none() && !ids.is_empty() {
                let mut moved = candidates.iter().filter_map(|path| {
                    let real = fs.canonical(path).ok()?;
                    Some((fs.open_root(&real).ok()?, real))
                });
                if let Some((dir, real)) =
                    moved.find(|(dir, _)| fs.identity(dir).ok() == ids.get(index).copied())
                {
                    anchors.paths[index] = real;
                    opened = Some(dir);
                }
            }
            anchors.dirs.push(opened);
        }
        Ok(anchors)
    }

    /// The absolute path of a place, for messages.
    pub(crate) fn shown(&self, place: &Place) -> PathBuf {
        self.paths[place.anchor].join(place.path.as_path())
    }
}

/// Treats a directory that cannot be reached at present as an answer.
fn reached<T>(opened: io::Result<T>) -> io::Result<Option<T>> {
    use io::ErrorKind as Kind;
    match opened {
        Ok(dir) => Ok(Some(dir)),
        Err(error) => match error.kind() {
            Kind::NotFound | Kind::NotADirectory | Kind::StaleNetworkFileHandle | Kind::NotConnected => {
                Ok(None)
            }
            _ => Err(error),
        },
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

/// Where a root of a transaction is.
#[derive(Debug, Clone)]
pub(crate) struct RootAt {
    /// The nearest directory that exists: the root itself, if it does.
    pub(crate) anchor: usize,
    /// The root below it; nothing when it exists.
    pub(crate) missing: Option<RelPath>,
}

impl RootAt {
    /// The place of `path` below this root.
    pub(crate) fn place(&self, path: &RelPath) -> Result<Place, crate::fs::path::RelPathError> {
        let path = match &self.missing {
            Some(prefix) => prefix.join(path)?,
            None => path.clone(),
        };
        Ok(Place { anchor: self.anchor, path })
    }
}

/// A root, resolved: the nearest directory of its path that exists, and the rest.
#[derive(Debug)]
pub(crate) struct Located<F: Fs> {
    pub(crate) nearest: RootDir<F>,
    pub(crate) id: DirId,
    /// The root below it; nothing when it exists.
    pub(crate) missing: Option<RelPath>,
}

impl<F: Fs> Located<F> {
    /// Finds the nearest existing directory of a root, whose path may contain links that stay below `boundary`.
    pub(crate) fn find(fs: &F, root: &Path, boundary: Option<&Path>) -> Result<Self, TxnError> {
        let unusable = |reason: &str| TxnError::BadPath { path: root.to_owned(), reason: reason.to_owned() };
        if !root.is_absolute() {
            return Err(unusable("a root must be absolute"));
        }
        if root.to_str().is_none() {
            return Err(unusable("it is not valid UTF-8"));
        }
        let mut missing: Vec<&str> = Vec::new();
        let mut current = root;
        let nearest = loop {
            let blocked = || TxnError::Blocked { path: current.to_owned(), root: root.to_owned() };
            let Some(dir) = RootDir::open(fs, current, boundary).map_err(|error| match error {
                TxnError::Io { source, .. } if source.kind() == io::ErrorKind::NotADirectory => blocked(),
                other => other,
            })?
            else {
                let name = current.file_name().and_then(|name| name.to_str());
                missing.push(name.ok_or_else(|| unusable("it contains `..`"))?);
                current = current.parent().ok_or_else(|| unusable("no part of it exists"))?;
                continue;
            };
            let Some(name) = missing.last() else { break dir };
            match fs.stat(dir.handle(), name).map_err(TxnError::at("look at", current))? {
                None => break dir,
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
        if nearest.real.to_str().is_none() {
            return Err(unusable("it is not valid UTF-8"));
        }
        let id = fs.identity(nearest.handle()).map_err(TxnError::at("look at", root))?;
        Ok(Self { nearest, id, missing })
    }

    /// The root itself, if it exists.
    pub(crate) fn dir(&self) -> Option<&RootDir<F>> {
        self.missing.is_none().then_some(&self.nearest)
    }

    /// Which place `path` below the root is, if all that exists on the way is the directory called `above`, in which the
    /// path goes on at byte `rest`. Nothing of a missing root exists.
    pub(crate) fn place_id(&self, path: &RelPath, above: DirId, rest: usize) -> PlaceId {
        match &self.missing {
            None => PlaceId { dir: above, path: path.as_str().get(rest..).unwrap_or_default().into() },
            Some(missing) => PlaceId { dir: self.id, path: format!("{missing}/{path}").into() },
        }
    }
}

/// A directory held open, below which files are looked at.
///
/// It only reads: everything that changes a tree goes through a transaction.
#[derive(Debug)]
pub struct RootDir<F: Fs> {
    dir: F::Dir,
    path: PathBuf,
    real: PathBuf,
}

impl<F: Fs> RootDir<F> {
    /// Opens the directory at `path`, following links; returns `None` when there is none.
    ///
    /// What leads outside of `boundary`, a path without links, is refused.
    pub fn open(fs: &F, path: &Path, boundary: Option<&Path>) -> Result<Option<Self>, TxnError> {
        let Some(real) = found(fs.canonical(path)).map_err(TxnError::at("resolve", path))? else {
            return Ok(None);
        };
        if let Some(boundary) = boundary
            && !real.starts_with(boundary)
        {
            return Err(TxnError::Escape { path: path.to_owned(), real, boundary: boundary.to_owned() });
        }
        let dir = found(fs.open_root(&real)).map_err(TxnError::at("open", path))?;
        Ok(dir.map(|dir| Self { dir, path: path.to_owned(), real }))
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its path without links.
    pub fn real(&self) -> &Path {
        &self.real
    }

    /// The handle, for the verbs of [`Fs`].
    pub fn handle(&self) -> &F::Dir {
        &self.dir
    }

    /// Which place `path` is.
    pub(crate) fn place_id(&self, fs: &F, path: &RelPath) -> io::Result<PlaceId> {
        let mut parent = path.parent();
        loop {
            let dir = match &parent {
                Some(parent) => reached(fs.open_dir(&self.dir, parent))?,
                None => Some(self.dir.clone()),
            };
            if let Some(dir) = dir {
                let rest = parent.map_or(0, |parent| parent.as_str().len() + 1);
                let path = path.as_str().get(rest..).unwrap_or_default().into();
                return Ok(PlaceId { dir: fs.identity(&dir)?, path });
            }
            parent = parent.and_then(|parent| parent.parent());
        }
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
