//! Looking at many files quickly: whole trees, and lists of places below a root.
//!
//! Below the starting point no symbolic link is followed; what to do with one is the visitor's decision.

use std::fs::File;
use std::io;
use std::path::Path;

use crewkit_core::{Code, Limits};

use super::{DirId, FileKind, Opened, RealFs, ScanFs, Stat, found};
use crate::error::{PackError, Result};
use crate::fs::entry::{Entry, EntryKind, Observed};
use crate::fs::hash::Digest;
use crate::fs::path::RelPath;
use crate::fs::place::RootDir;
use crate::observe::hash_cache::HashCache;

#[cfg(test)]
#[cfg(unix)]
mod tests;

/// What a visitor wants done with a directory it was shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Look inside.
    Descend,
    /// Leave it alone.
    Skip,
}

/// What to do about a link or a file in the place of a directory on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InTheWay {
    /// It is an error: something shall be written there.
    Refuse,
    /// What lies behind it is not ours, so nothing of ours is there.
    IsAbsent,
}

/// What is at a place, and which place that is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) observed: Observed,
    /// The nearest directory above it that exists.
    pub(crate) above: DirId,
    /// Where in its path the way from there begins.
    pub(crate) rest: usize,
}

/// The error for a file that is where a directory is needed.
pub(crate) fn not_a_directory(place: &Path) -> PackError {
    let message = format!("{} is a file, but a directory is needed there", place.display());
    PackError::new(Code::TargetNotAFile, message).path(place)
}

/// A directory below which sources lie.
#[derive(Debug)]
pub(crate) struct Base<'a, F: ScanFs = RealFs> {
    fs: F,
    path: &'a Path,
    dir: F::Dir,
}

impl<'a> Base<'a> {
    /// Opens the config repo.
    pub(crate) fn of_repo(path: &'a Path) -> Result<Self> {
        Self::open(RealFs::default(), path).map_err(|error| PackError::io("open directory", path, error))
    }
}

impl<'a, F: ScanFs> Base<'a, F> {
    /// Opens the directory at `path`.
    pub(crate) fn open(fs: F, path: &'a Path) -> io::Result<Self> {
        match fs.open_any(path)? {
            (Opened::Directory(dir), _) => Ok(Self { fs, path, dir }),
            _ => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &'a Path {
        self.path
    }

    /// Opens a file or directory below it; links are followed as long as they stay below it.
    ///
    /// What leads outside is [`io::ErrorKind::CrossesDevices`].
    pub(crate) fn open_beneath(&self, path: &str) -> io::Result<(Opened<F::Dir>, Stat)> {
        self.fs.open_beneath(self.path, &self.dir, path)
    }
}

/// Something met on a walk.
pub(crate) struct Item<'a, F: ScanFs = RealFs> {
    fs: &'a F,
    above: Above<'a, F>,
    /// Where it is, relative to the start.
    pub(crate) path: &'a str,
    /// Whether `path` is the name itself and not an approximation of a name that is not UTF-8.
    pub(crate) utf8: bool,
    pub(crate) kind: FileKind,
}

impl<F: ScanFs> Item<'_, F> {
    /// What `stat` says about it.
    pub(crate) fn stat(&self) -> io::Result<Stat> {
        let stat = self.fs.stat(self.above.dir, self.above.rest_of(self.path))?;
        stat.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Opens it for reading.
    pub(crate) fn open(&self) -> io::Result<File> {
        self.fs.open_below(self.above.dir, self.above.rest_of(self.path))
    }
}

/// An open directory that a walk is in or below.
struct Above<'a, F: ScanFs> {
    dir: &'a F::Dir,
    /// Length of its path.
    length: usize,
}

impl<F: ScanFs> Clone for Above<'_, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F: ScanFs> Copy for Above<'_, F> {}

impl<F: ScanFs> Above<'_, F> {
    /// What follows the path of the open directory.
    fn rest_of<'p>(&self, path: &'p str) -> &'p str {
        let from = if self.length == 0 { 0 } else { self.length + 1 };
        path.get(from..).unwrap_or_default()
    }
}

/// Shows everything below `start` to `visit`, directories before their content, in no particular order. `shown` is the
/// path of `start` for messages. Names that `cache` knows are not read; with it comes the stat data of `start`.
pub(crate) fn walk<F: ScanFs>(
    fs: &F,
    start: &F::Dir,
    shown: &Path,
    limits: &Limits,
    cache: Option<(&HashCache, &Stat)>,
    mut visit: impl FnMut(&Item<'_, F>) -> Result<Next>,
) -> Result<()> {
    let depth = limits.pack_tree_depth;
    let (cache, known) = cache.unzip();
    let mut walk = Walk { fs, start: shown, depth, cache, visit: &mut visit, path: String::new() };
    walk.directory(Above { dir: start, length: 0 }, known.copied(), 0)
}

struct Walk<'a, F, V> {
    fs: &'a F,
    start: &'a Path,
    depth: u64,
    cache: Option<&'a HashCache>,
    visit: &'a mut V,
    /// Where the walk is, relative to the start.
    path: String,
}

impl<F: ScanFs, V: FnMut(&Item<'_, F>) -> Result<Next>> Walk<'_, F, V> {
    /// Visits what is in the directory at the walk's path; one that has vanished is empty. `stat` is what is known of
    /// the start.
    fn directory(&mut self, above: Above<'_, F>, mut stat: Option<Stat>, level: u64) -> Result<()> {
        let place = || self.start.join(&self.path);
        let fail = |error: io::Error| PackError::io("read directory", &place(), error);
        if level > self.depth {
            let (place, most) = (place(), self.depth);
            let message =
                format!("{} is nested deeper than pack_tree_depth ({most}) allows", place.display());
            return Err(PackError::new(Code::IoInvalidPath, message).path(&place));
        }
        let rest = above.rest_of(&self.path);
        if let Some(cache) = self.cache {
            if stat.is_none() {
                stat = self.fs.stat(above.dir, rest).map_err(fail)?;
            }
            let Some(stat) = &stat else { return Ok(()) };
            let known = if stat.kind == FileKind::Directory { cache.names(stat) } else { None };
            if let Some(names) = known {
                // Nothing is opened: the nearest open directory serves.
                return self.names(above, names.iter().map(|(kind, name)| (kind, name, true)), level);
            }
        }
        // Only what was left alone for a while before it is read may be remembered.
        let keep = self.cache.zip(stat).filter(|(cache, stat)| cache.is_settled(stat));
        let Some((dir, entries)) = found(self.fs.entries(above.dir, rest)).map_err(fail)? else {
            return Ok(());
        };
        if let Some((cache, stat)) = keep
            && entries.iter().all(|(_, name)| name.to_str().is_some())
            && self.fs.dir_stat(&dir).is_ok_and(|after| after == stat)
            && cache.reliable(stat.device, || self.fs.has_local_clock(&dir))
        {
            let names = entries.iter().filter_map(|(kind, name)| Some((*kind, name.to_str()?)));
            cache.keep_names(&stat, names.collect());
        }
        let shown: Vec<_> = entries
            .iter()
            .map(|(kind, name)| (*kind, name.to_string_lossy(), name.to_str().is_some()))
            .collect();
        let names = shown.iter().map(|(kind, name, utf8)| (*kind, &**name, *utf8));
        self.names(Above { dir: &dir, length: self.path.len() }, names, level)
    }

    /// Visits these names in the directory at the walk's path, then what is in the directories among them.
    fn names<'n>(
        &mut self,
        above: Above<'_, F>,
        names: impl Iterator<Item = (FileKind, &'n str, bool)>,
        level: u64,
    ) -> Result<()> {
        let base = self.path.len();
        let mut below = Vec::new();
        for (kind, name, utf8) in names {
            self.enter(base, name);
            let item = Item { fs: self.fs, above, path: &self.path, utf8, kind };
            if (self.visit)(&item)? == Next::Descend && kind == FileKind::Directory {
                below.push(name);
            }
        }
        for name in below {
            self.enter(base, name);
            self.directory(above, None, level + 1)?;
        }
        self.path.truncate(base);
        Ok(())
    }

    /// Goes from the directory whose path has length `base` to `name` in it.
    fn enter(&mut self, base: usize, name: &str) {
        self.path.truncate(base);
        if base > 0 {
            self.path.push('/');
        }
        self.path.push_str(name);
    }
}

/// What is at each of `paths` below `root`; `paths` should be sorted, so that each directory is looked at once.
pub(crate) fn observe<'a, F: ScanFs>(
    fs: &F,
    root: &RootDir<F>,
    paths: impl IntoIterator<Item = &'a RelPath>,
    in_the_way: InTheWay,
    cache: &HashCache,
) -> Result<Vec<Found>> {
    let id = fs.identity(root.handle()).map_err(|error| PackError::io("look at", root.path(), error))?;
    let mut prober = Prober {
        fs,
        root: root.path(),
        dir: root.handle(),
        id,
        in_the_way,
        levels: Vec::new(),
        at: String::new(),
    };
    paths.into_iter().map(|path| prober.observe(path, cache)).collect()
}

/// Looks at sorted paths below a root. Directories are looked at, not opened: that a link took the place of one since
/// can make a look wrong, but nothing is read through it, and a transaction looks again through open directories.
struct Prober<'a, F: ScanFs> {
    fs: &'a F,
    root: &'a Path,
    dir: &'a F::Dir,
    id: DirId,
    in_the_way: InTheWay,
    /// The directories on the way to `at`, from the top.
    levels: Vec<Level>,
    at: String,
}

struct Level {
    /// Length of its path.
    end: usize,
    /// `None` if it does not exist.
    id: Option<DirId>,
}

impl<F: ScanFs> Prober<'_, F> {
    fn observe(&mut self, path: &RelPath, cache: &HashCache) -> Result<Found> {
        let parent = path.as_str().rsplit_once('/').map_or("", |(parent, _)| parent);
        self.enter(parent)?;
        let nearest = self.levels.iter().rev().find_map(|level| Some((level.id?, level.end + 1)));
        let (above, rest) = nearest.unwrap_or((self.id, 0));
        let is_there = self.levels.last().is_none_or(|level| level.id.is_some());
        let observed = if is_there { self.look(path, cache)? } else { Observed::Absent };
        Ok(Found { observed, above, rest })
    }

    /// What is at a place whose directory is there.
    fn look(&self, path: &RelPath, cache: &HashCache) -> Result<Observed> {
        let fail = |error: io::Error| PackError::io("read", &self.root.join(path.as_path()), error);
        let Some(stat) = self.fs.stat(self.dir, path.as_str()).map_err(fail)? else {
            return Ok(Observed::Absent);
        };
        Ok(match stat.kind {
            FileKind::Directory => Observed::Directory,
            FileKind::Special => Observed::Special,
            FileKind::Symlink => {
                let text = self.fs.read_link(self.dir, path.as_str()).map_err(fail)?;
                Observed::Entry(Entry::new(Digest::of(&text), EntryKind::Symlink))
            }
            FileKind::File => {
                let open = || self.fs.open_below(self.dir, path.as_str());
                Observed::Entry(Entry::found(cache.hash(&stat, open).map_err(fail)?.sha256, &stat))
            }
        })
    }

    /// Makes sure that `parent` and what is above it are directories, or that they are missing.
    fn enter(&mut self, parent: &str) -> Result<()> {
        if self.at == parent {
            return Ok(());
        }
        // Keep what both have in common.
        while let Some(level) = self.levels.last()
            && !is_below(parent, self.at.get(..level.end).unwrap_or_default())
        {
            self.levels.pop();
        }
        self.at.clear();
        self.at.push_str(parent);
        let mut end = self.levels.last().map_or(0, |level| level.end);
        while end < parent.len() {
            let from = if end == 0 { 0 } else { end + 1 };
            let rest = parent.get(from..).unwrap_or_default();
            end = from + rest.split('/').next().unwrap_or_default().len();
            let above = self.levels.last().is_none_or(|level| level.id.is_some());
            let id = if above { self.directory(parent.get(..end).unwrap_or_default())? } else { None };
            self.levels.push(Level { end, id });
        }
        Ok(())
    }

    fn directory(&self, path: &str) -> Result<Option<DirId>> {
        let place = || self.root.join(path);
        let stat = self.fs.stat(self.dir, path);
        let Some(stat) = stat.map_err(|error| PackError::io("open directory", &place(), error))? else {
            return Ok(None);
        };
        match (stat.kind, self.in_the_way) {
            (FileKind::Directory, _) => Ok(Some(self.fs.directory_id(self.dir, path, &stat))),
            (_, InTheWay::IsAbsent) => Ok(None),
            (FileKind::Symlink, _) => {
                let (place, root) = (place(), self.root.display().to_string());
                let message = format!("{} is a symbolic link below the target root {root}", place.display());
                Err(PackError::new(Code::TargetEscape, message).path(&place).detail("root", root))
            }
            (FileKind::File | FileKind::Special, _) => Err(not_a_directory(&place())),
        }
    }
}

fn is_below(path: &str, dir: &str) -> bool {
    path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
