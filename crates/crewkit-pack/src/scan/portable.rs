//! Looking at files by paths, for systems without directory handles. Nothing is remembered between two looks.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crewkit_core::Limits;

use super::{Found, InTheWay, Next, escape, not_a_directory, too_deep};
use crate::entry::{Entry, EntryKind, Observed};
use crate::error::{PackError, Result};
use crate::fs::paths::stat_from;
use crate::fs::{FileKind, Fs as _, PathFs, Stat, found};
use crate::hash::Digest;
use crate::hash_cache::HashCache;
use crate::path::RelPath;
use crate::place::RootDir;

/// A file or directory that was there.
#[derive(Debug)]
pub(crate) struct Opened(PathBuf);

/// Opens the file, to be read.
pub(crate) fn into_file(opened: Opened) -> io::Result<File> {
    File::open(opened.0)
}

/// Something met on a walk.
pub(crate) struct Item<'a> {
    place: &'a Path,
    /// Where it is, relative to the start.
    pub(crate) path: &'a str,
    /// Whether `path` is the name itself and not an approximation of a name that is not Unicode.
    pub(crate) utf8: bool,
    /// What it is.
    pub(crate) kind: FileKind,
}

impl Item<'_> {
    /// What `stat` says about it.
    pub(crate) fn stat(&self) -> io::Result<Stat> {
        Ok(stat_from(&fs::symlink_metadata(self.place)?))
    }

    /// Opens it for reading.
    pub(crate) fn open(&self) -> io::Result<File> {
        PathFs::default().open_source(self.place)
    }
}

/// Shows everything below `start` to `visit`, directories before their content, in no particular order.
///
pub(crate) fn walk(
    start: &RootDir<PathFs>,
    limits: &Limits,
    mut visit: impl FnMut(&Item<'_>) -> Result<Next>,
) -> Result<()> {
    let depth = limits.pack_tree_depth;
    walk_dir(start.handle(), start.path(), "", depth, depth, &mut visit)
}

/// [`walk`] from a directory that is known to be there; `start` is for messages.
pub(crate) fn walk_open(
    dir: Opened,
    _found: &Stat,
    start: &Path,
    limits: &Limits,
    _cache: &HashCache,
    mut visit: impl FnMut(&Item<'_>) -> Result<Next>,
) -> Result<()> {
    let Opened(dir) = dir;
    walk_dir(&dir, start, "", limits.pack_tree_depth, limits.pack_tree_depth, &mut visit)
}

fn walk_dir(
    dir: &Path,
    start: &Path,
    prefix: &str,
    left: u64,
    most: u64,
    visit: &mut impl FnMut(&Item<'_>) -> Result<Next>,
) -> Result<()> {
    let fail = |error: io::Error| PackError::io("read directory", &start.join(prefix), error);
    let mut below = Vec::new();
    for entry in fs::read_dir(dir).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let place = entry.path();
        // It may vanish between the listing and the look.
        let Some(metadata) = found(fs::symlink_metadata(&place)).map_err(fail)? else { continue };
        let name = entry.file_name();
        let shown = name.to_string_lossy();
        let path = if prefix.is_empty() { shown.to_string() } else { format!("{prefix}/{shown}") };
        let kind = stat_from(&metadata).kind;
        let item = Item { place: &place, path: &path, utf8: name.to_str().is_some(), kind };
        if visit(&item)? == Next::Descend && kind == FileKind::Directory {
            below.push((place, path));
        }
    }
    for (place, path) in below {
        let left = left.checked_sub(1).ok_or_else(|| too_deep(&start.join(&path), most))?;
        walk_dir(&place, start, &path, left, most, visit)?;
    }
    Ok(())
}

/// Looks for a file or directory, following links.
pub(crate) fn open_any(path: &Path) -> io::Result<(Opened, Stat)> {
    let stat = stat_from(&fs::metadata(path)?);
    Ok((Opened(path.to_owned()), stat))
}

/// A directory below which sources lie.
#[derive(Debug)]
pub(crate) struct Base<'a> {
    path: &'a Path,
}

impl<'a> Base<'a> {
    /// Looks at the directory at `path`.
    pub(crate) fn open(path: &'a Path) -> io::Result<Self> {
        if fs::metadata(path)?.is_dir() {
            Ok(Self { path })
        } else {
            Err(io::ErrorKind::NotADirectory.into())
        }
    }

    /// Looks at the config repo.
    pub(crate) fn of_repo(path: &'a Path) -> Result<Self> {
        Self::open(path).map_err(|error| PackError::io("open directory", path, error))
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &'a Path {
        self.path
    }

    /// Looks for a file or directory below it; links are followed as long as they stay below it.
    ///
    /// What leads outside is [`io::ErrorKind::CrossesDevices`].
    pub(crate) fn open_beneath(&self, path: &str) -> io::Result<(Opened, Stat)> {
        let real = fs::canonicalize(self.path.join(path))?;
        if real.starts_with(fs::canonicalize(self.path)?) {
            open_any(&real)
        } else {
            Err(io::ErrorKind::CrossesDevices.into())
        }
    }
}

/// What is at each of `paths` below `root`.
pub(crate) fn observe<'a>(
    root: &RootDir<PathFs>,
    paths: impl IntoIterator<Item = &'a RelPath>,
    in_the_way: InTheWay,
    _cache: &HashCache,
) -> Result<Vec<Found>> {
    paths.into_iter().map(|path| observe_one(root.handle(), path, in_the_way)).collect()
}

fn observe_one(root: &Path, path: &RelPath, in_the_way: InTheWay) -> Result<Found> {
    let look = |place: &Path| {
        let metadata = found(fs::symlink_metadata(place));
        let metadata = metadata.map_err(|error| PackError::io("read", place, error))?;
        Ok::<_, PackError>(metadata.map(|metadata| stat_from(&metadata)))
    };
    let disk = PathFs::default();
    let answer = |above: &Path, rest: usize, observed: Observed| {
        let id = disk.identity(&above.into()).map_err(|error| PackError::io("look at", above, error))?;
        Ok(Found { observed, above: id, rest })
    };
    let (mut above, mut rest) = (root.to_owned(), 0);
    if let Some(parent) = path.parent() {
        for component in parent.components() {
            let next = above.join(component);
            match (look(&next)?.map(|stat| stat.kind), in_the_way) {
                (Some(FileKind::Directory), _) => above = next,
                (None, _) | (_, InTheWay::IsAbsent) => return answer(&above, rest, Observed::Absent),
                (Some(FileKind::Symlink), _) => return Err(escape(root, &next)),
                (Some(FileKind::File | FileKind::Special), _) => return Err(not_a_directory(&next)),
            }
            rest += component.len() + 1;
        }
    }
    let place = root.join(path.as_path());
    let fail = |error: io::Error| PackError::io("read", &place, error);
    let Some(stat) = look(&place)? else { return answer(&above, rest, Observed::Absent) };
    let observed = match stat.kind {
        FileKind::Directory => Observed::Directory,
        FileKind::Special => Observed::Special,
        FileKind::Symlink => {
            let text = disk.read_link(&above.as_path().into(), path.name()).map_err(fail)?;
            Observed::Entry(Entry::new(Digest::of(&text), EntryKind::Symlink))
        }
        FileKind::File => {
            let sha256 = File::open(&place).and_then(|file| crate::hash_cache::hash_stream(&file, stat.size));
            Observed::Entry(Entry::found(sha256.map_err(fail)?, &stat))
        }
    };
    answer(&above, rest, observed)
}

/// What is known about an open file.
pub(crate) fn stat_of(file: &File) -> io::Result<Stat> {
    Ok(stat_from(&file.metadata()?))
}

/// Nothing is known about clocks, so nothing is remembered.
pub(crate) fn has_local_clock<T: ?Sized>(_file: &T) -> bool {
    false
}

/// Where both can be tried, they must see the same.
#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::unix::fs::symlink;
    use std::sync::Arc;

    use super::*;
    use crate::fs::unix::UnixFs;
    use crate::scan::unix;

    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for path in ["a", "b/c/d", "b/e", "deep/1/2/3/4/f"] {
            let place = dir.path().join(path);
            fs::create_dir_all(place.parent().unwrap()).unwrap();
            fs::write(&place, path).unwrap();
        }
        fs::create_dir(dir.path().join("empty")).unwrap();
        symlink("b/e", dir.path().join("link")).unwrap();
        symlink("b", dir.path().join("dir-link")).unwrap();
        symlink("/", dir.path().join("out")).unwrap();
        dir
    }

    fn roots(path: &Path) -> (RootDir<PathFs>, RootDir<UnixFs>) {
        let portable = RootDir::open(&PathFs::default(), path, None).unwrap().unwrap();
        (portable, RootDir::open(&UnixFs::default(), path, None).unwrap().unwrap())
    }

    #[test]
    fn a_walk_shows_the_same() {
        let dir = tree();
        let limits = Limits::default();
        let (mut here, mut there) = (BTreeSet::new(), BTreeSet::new());
        let (portable, real) = roots(dir.path());
        walk(&portable, &limits, |item| {
            here.insert((item.path.to_owned(), format!("{:?}", item.kind), item.stat().unwrap().size));
            Ok(if item.path == "b/c" { Next::Skip } else { Next::Descend })
        })
        .unwrap();
        unix::walk(&real, &limits, |item| {
            there.insert((item.path.to_owned(), format!("{:?}", item.kind), item.stat().unwrap().size));
            Ok(if item.path == "b/c" { Next::Skip } else { Next::Descend })
        })
        .unwrap();
        assert_eq!(here, there);
        assert!(here.iter().any(|(path, ..)| path == "deep/1/2/3/4/f"));
        let shallow = Limits { pack_tree_depth: 3, ..limits };
        let all = |_: &Item<'_>| Ok(Next::Descend);
        let all_there = |_: &unix::Item<'_>| Ok(Next::Descend);
        let (here, there) = (walk(&portable, &shallow, all), unix::walk(&real, &shallow, all_there));
        assert_eq!(here.unwrap_err().to_string(), there.unwrap_err().to_string());
    }

    #[test]
    fn places_look_the_same() {
        let dir = tree();
        let cache = HashCache::in_memory(Arc::new(std::time::SystemTime::now));
        let (portable, real) = roots(dir.path());
        let paths = ["a", "b/c/d", "b/c", "empty", "empty/x", "link", "nothing/x", "a/x", "dir-link/e"];
        for (path, how) in
            paths.iter().flat_map(|path| [(path, InTheWay::Refuse), (path, InTheWay::IsAbsent)])
        {
            let path = RelPath::new(path).unwrap();
            // The number of a directory differs: one is the system's, the other stands for its path.
            let told = |found: Result<Vec<Found>>| {
                let found = found.map_err(|error| error.to_string())?;
                Ok::<_, String>((found[0].observed, found[0].rest))
            };
            let (here, there) =
                (observe(&portable, [&path], how, &cache), unix::observe(&real, [&path], how, &cache));
            assert_eq!(told(here), told(there), "{path}");
        }
    }

    #[test]
    fn a_source_stays_below_its_base() {
        let dir = tree();
        let (here, there) = (Base::open(dir.path()).unwrap(), unix::Base::open(dir.path()).unwrap());
        for path in ["a", "", "b/c", "link", "dir-link/c/d", "out", "out/etc", "nothing", "a/x"] {
            let kind = |opened: io::Result<Stat>| opened.map(|stat| stat.kind).map_err(|error| error.kind());
            let (here, there) = (here.open_beneath(path), there.open_beneath(path));
            assert_eq!(kind(here.map(|found| found.1)), kind(there.map(|found| found.1)), "{path}");
        }
    }
}
