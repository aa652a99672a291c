//! Looking at files through open directories.

use std::borrow::Cow;
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use crewkit_core::Limits;
use rustix::fs::{self as sys, AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

use super::{Found, InTheWay, Next, escape, not_a_directory, too_deep};
use crate::entry::{Entry, EntryKind, Observed};
use crate::error::{PackError, Result};
use crate::fs::unix::{UnixFs, kind_from, kind_of, stat_from};
use crate::fs::{DirId, FileKind, Stat};
use crate::hash::Digest;
use crate::hash_cache::{HashCache, Names};
use crate::path::RelPath;
use crate::place::RootDir;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const READ: OFlags = OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

/// A file or directory that is open.
pub(crate) type Opened = OwnedFd;

/// The open file, to be read.
#[expect(clippy::unnecessary_wraps, reason = "elsewhere a file is opened only now")]
pub(crate) fn into_file(opened: Opened) -> io::Result<File> {
    Ok(File::from(opened))
}

/// Something met on a walk.
pub(crate) struct Item<'a> {
    /// An open directory it is below.
    dir: BorrowedFd<'a>,
    /// Where it is, relative to `dir`.
    below: Below<'a>,
    /// Where it is, relative to the start.
    pub(crate) path: &'a str,
    /// Whether `path` is the name itself and not an approximation of a name that is not UTF-8.
    pub(crate) utf8: bool,
    /// What it is.
    pub(crate) kind: FileKind,
}

/// A place below an open directory.
#[derive(Clone, Copy)]
enum Below<'a> {
    /// A name in it, whatever its bytes.
    Name(&'a CStr),
    /// A path of several names.
    Path(&'a str),
}

impl Item<'_> {
    /// What `stat` says about it.
    pub(crate) fn stat(&self) -> io::Result<Stat> {
        let stat = match self.below {
            Below::Name(name) => sys::statat(self.dir, name, AtFlags::SYMLINK_NOFOLLOW),
            Below::Path(path) => sys::statat(self.dir, path, AtFlags::SYMLINK_NOFOLLOW),
        };
        Ok(stat_from(&stat?))
    }

    /// Opens it for reading.
    pub(crate) fn open(&self) -> io::Result<File> {
        Ok(File::from(match self.below {
            Below::Name(name) => retry_on_intr(|| sys::openat(self.dir, name, READ, Mode::empty()))?,
            Below::Path(path) => open_without_links(self.dir, path, READ)?,
        }))
    }
}

/// Shows everything below `start` to `visit`, directories before their content, in no particular order.
///
pub(crate) fn walk(
    start: &RootDir<UnixFs>,
    limits: &Limits,
    visit: impl FnMut(&Item<'_>) -> Result<Next>,
) -> Result<()> {
    // A handle of its own, because the position in a directory belongs to the handle.
    let dir = retry_on_intr(|| sys::openat(start.handle(), ".", DIRECTORY, Mode::empty()));
    let dir = dir.map_err(|error| PackError::io("open directory", start.path(), error.into()))?;
    Walk::new(start.path(), limits, None, &mut { visit }).unknown(dir, None, 0)
}

/// [`walk`] from a directory that is open already; `start` is for messages. Names that `cache` knows are not read.
pub(crate) fn walk_open(
    dir: OwnedFd,
    found: &Stat,
    start: &Path,
    limits: &Limits,
    cache: &HashCache,
    mut visit: impl FnMut(&Item<'_>) -> Result<Next>,
) -> Result<()> {
    let mut walk = Walk::new(start, limits, Some(cache), &mut visit);
    match cache.names(found) {
        Some(names) => walk.known(Handle { dir: dir.as_fd(), length: 0 }, &names, 0),
        None => walk.unknown(dir, Some(found), 0),
    }
}

/// Opens a file or directory for reading, following links.
pub(crate) fn open_any(path: &Path) -> io::Result<(OwnedFd, Stat)> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let fd = retry_on_intr(|| sys::open(path, flags, Mode::empty()))?;
    let stat = stat_of(&fd)?;
    Ok((fd, stat))
}

/// A directory below which sources lie.
#[derive(Debug)]
pub struct Base<'a> {
    path: &'a Path,
    dir: OwnedFd,
}

impl<'a> Base<'a> {
    /// Opens the directory at `path`.
    pub(crate) fn open(path: &'a Path) -> io::Result<Self> {
        Ok(Self { path, dir: open_dir(path)? })
    }

    /// Opens the config repo.
    pub(crate) fn of_repo(path: &'a Path) -> Result<Self> {
        Self::open(path).map_err(|error| PackError::io("open directory", path, error))
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &'a Path {
        self.path
    }

    /// Opens a file or directory below it; links are followed as long as they stay below it.
    ///
    /// What leads outside is [`io::ErrorKind::CrossesDevices`].
    pub(crate) fn open_beneath(&self, path: &str) -> io::Result<(OwnedFd, Stat)> {
        let path = if path.is_empty() { "." } else { path };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = match open_by_kernel(self.dir.as_fd(), path, flags, Links::Beneath)? {
            Some(fd) => fd,
            None => {
                let real = std::fs::canonicalize(self.path.join(path))?;
                if !real.starts_with(std::fs::canonicalize(self.path)?) {
                    return Err(Errno::XDEV.into());
                }
                retry_on_intr(|| sys::open(&real, flags, Mode::empty()))?
            }
        };
        let stat = stat_of(&fd)?;
        Ok((fd, stat))
    }
}

/// Which links are followed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Links {
    /// Those that stay below the directory.
    Beneath,
    /// None.
    Never,
}

/// Opens what is at `path` below `dir`; nothing when this kernel cannot make sure that it is below.
#[cfg(target_os = "linux")]
fn open_by_kernel(
    dir: BorrowedFd<'_>,
    path: &str,
    flags: OFlags,
    links: Links,
) -> rustix::io::Result<Option<OwnedFd>> {
    use rustix::fs::ResolveFlags;
    let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    if links == Links::Never {
        resolve |= ResolveFlags::NO_SYMLINKS;
    }
    for _ in 0..64 {
        match retry_on_intr(|| sys::openat2(dir, path, flags, Mode::empty(), resolve)) {
            // A rename elsewhere kept the kernel from being sure; it asks for another try.
            Err(Errno::AGAIN) => {}
            Err(Errno::NOSYS | Errno::PERM) => break,
            opened => return opened.map(Some),
        }
    }
    Ok(None)
}

#[cfg(not(target_os = "linux"))]
fn open_by_kernel(_: BorrowedFd<'_>, _: &str, _: OFlags, _: Links) -> rustix::io::Result<Option<OwnedFd>> {
    Ok(None)
}

/// Opens what is at `path` below `dir`, following no link on the way.
fn open_without_links(dir: BorrowedFd<'_>, path: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    if !path.contains('/') {
        return retry_on_intr(|| sys::openat(dir, path, flags | OFlags::NOFOLLOW, Mode::empty()));
    }
    if let Some(fd) = open_by_kernel(dir, path, flags, Links::Never)? {
        return Ok(fd);
    }
    let step = |dir: BorrowedFd<'_>, name: &str, flags: OFlags| {
        retry_on_intr(|| sys::openat(dir, name, flags | OFlags::NOFOLLOW, Mode::empty()))
    };
    let mut names = path.split('/').peekable();
    let mut above: Option<OwnedFd> = None;
    loop {
        let name = names.next().unwrap_or_default();
        let from = above.as_ref().map_or(dir, AsFd::as_fd);
        if names.peek().is_none() {
            return step(from, name, flags);
        }
        above = Some(step(from, name, DIRECTORY)?);
    }
}

struct Walk<'a, V> {
    start: &'a Path,
    depth: u64,
    cache: Option<&'a HashCache>,
    visit: &'a mut V,
    /// Where the walk is, relative to the start.
    path: String,
}

/// An open directory that the walk is in or below.
#[derive(Clone, Copy)]
struct Handle<'a> {
    dir: BorrowedFd<'a>,
    /// Length of its path.
    length: usize,
}

impl Handle<'_> {
    /// What follows the path of the open directory.
    fn below<'p>(&self, path: &'p str) -> &'p str {
        let from = if self.length == 0 { 0 } else { self.length + 1 };
        path.get(from..).unwrap_or_default()
    }
}

impl<'a, V: FnMut(&Item<'_>) -> Result<Next>> Walk<'a, V> {
    fn new(start: &'a Path, limits: &Limits, cache: Option<&'a HashCache>, visit: &'a mut V) -> Self {
        Self { start, depth: limits.pack_tree_depth, cache, visit, path: String::new() }
    }

    fn fail(&self, error: impl Into<io::Error>) -> PackError {
        PackError::io("read directory", &self.start.join(&self.path), error.into())
    }

    /// Goes from the directory of length `base` to `name` in it.
    fn go(&mut self, base: usize, name: &str) {
        self.path.truncate(base);
        if base > 0 {
            self.path.push('/');
        }
        self.path.push_str(name);
    }

    /// A directory whose names are known: nothing is opened, `handle` is the nearest open one.
    fn known(&mut self, handle: Handle<'_>, names: &Names, level: u64) -> Result<()> {
        let base = self.path.len();
        let mut below = Vec::new();
        for (kind, name) in names.iter() {
            self.go(base, name);
            let at = Below::Path(handle.below(&self.path));
            let item = Item { dir: handle.dir, below: at, path: &self.path, utf8: true, kind };
            if (self.visit)(&item)? == Next::Descend && kind == FileKind::Directory {
                below.push(name);
            }
        }
        for name in below {
            self.go(base, name);
            self.descend(handle, level)?;
        }
        self.path.truncate(base);
        Ok(())
    }

    /// A directory whose names have to be read; with its stat data, if they may be remembered.
    fn unknown(&mut self, fd: OwnedFd, stat: Option<&Stat>, level: u64) -> Result<()> {
        let has_local_clock = || has_local_clock(&fd);
        let keep = self.cache.zip(stat).filter(|(cache, stat)| cache.may_keep(stat, has_local_clock));
        let mut dir = Dir::new(fd).map_err(|error| self.fail(error))?;
        let base = self.path.len();
        let mut below = Vec::new();
        let mut names = Vec::new();
        let mut all_utf8 = true;
        while let Some(entry) = dir.read() {
            let entry = entry.map_err(|error| self.fail(error))?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let shown = name.to_string_lossy();
            self.go(base, &shown);
            let handle = dir.fd().map_err(|error| self.fail(error))?;
            let kind = match entry.file_type() {
                FileType::Unknown => match sys::statat(handle, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) => kind_of(stat.st_mode),
                    // It vanished between the listing and the look.
                    Err(Errno::NOENT) => continue,
                    Err(error) => return Err(self.fail(error)),
                },
                known => kind_from(known),
            };
            let utf8 = matches!(shown, Cow::Borrowed(_));
            let item = Item { dir: handle, below: Below::Name(name), path: &self.path, utf8, kind };
            let next = (self.visit)(&item)?;
            if kind == FileKind::Directory && next == Next::Descend {
                below.push((name.to_owned(), shown.clone().into_owned()));
            }
            all_utf8 &= utf8;
            if keep.is_some() {
                names.push((kind, shown.into_owned()));
            }
        }
        let handle = dir.fd().map_err(|error| self.fail(error))?;
        if let Some((cache, stat)) = keep
            && all_utf8
            && stat_of(handle).is_ok_and(|after| after == *stat)
        {
            cache.keep_names(stat, names.iter().map(|(kind, name)| (*kind, name.as_str())).collect());
        }
        for (name, shown) in below {
            self.go(base, &shown);
            if all_utf8 {
                self.descend(Handle { dir: handle, length: base }, level)?;
                continue;
            }
            self.check_depth(level)?;
            let flags = DIRECTORY | OFlags::NOFOLLOW;
            let opened = retry_on_intr(|| sys::openat(handle, name.as_c_str(), flags, Mode::empty()));
            match opened {
                Ok(fd) => self.unknown(fd, None, level + 1)?,
                Err(Errno::NOENT) => {}
                Err(error) => return Err(self.fail(error)),
            }
        }
        self.path.truncate(base);
        Ok(())
    }

    /// Goes into the directory at the walk's path.
    fn descend(&mut self, handle: Handle<'_>, level: u64) -> Result<()> {
        self.check_depth(level)?;
        let below = handle.below(&self.path);
        if let Some(cache) = self.cache {
            let stat = match sys::statat(handle.dir, below, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat_from(&stat),
                Err(Errno::NOENT) => return Ok(()),
                Err(error) => return Err(self.fail(error)),
            };
            if stat.kind == FileKind::Directory
                && let Some(names) = cache.names(&stat)
            {
                return self.known(handle, &names, level + 1);
            }
        }
        let fd = match open_without_links(handle.dir, below, DIRECTORY) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(self.fail(error)),
        };
        // Only what may be remembered needs its stat data, and those of the very directory that is read.
        let stat = self.cache.map(|_| stat_of(&fd)).transpose().map_err(|error| self.fail(error))?;
        self.unknown(fd, stat.as_ref(), level + 1)
    }

    fn check_depth(&self, level: u64) -> Result<()> {
        if level < self.depth {
            return Ok(());
        }
        Err(too_deep(&self.start.join(&self.path), self.depth))
    }
}

/// What is at each of `paths` below `root`; `paths` should be sorted, so that each directory is looked at once.
pub(crate) fn observe<'a>(
    root: &RootDir<UnixFs>,
    paths: impl IntoIterator<Item = &'a RelPath>,
    in_the_way: InTheWay,
    cache: &HashCache,
) -> Result<Vec<Found>> {
    let dir = root.handle().as_fd();
    let id = stat_of(dir).map_err(|error| PackError::io("look at", root.path(), error))?.identity();
    let mut prober = Prober { root: root.path(), dir, id, in_the_way, levels: Vec::new(), at: String::new() };
    paths.into_iter().map(|path| prober.observe(path, cache)).collect()
}

/// Looks at sorted paths below a root. Directories are looked at, not opened: that a link took the place of one since
/// can make a look wrong, but nothing is read through it, and a transaction looks again through open directories.
struct Prober<'a> {
    root: &'a Path,
    dir: BorrowedFd<'a>,
    id: DirId,
    in_the_way: InTheWay,
    /// The directories on the way to `at`, from the top.
    levels: Vec<Level>,
    at: String,
}

struct Level {
    /// Length of its path.
    end: usize,
    /// Nothing when it does not exist.
    id: Option<DirId>,
}

impl Prober<'_> {
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
        let stat = match sys::statat(self.dir, path.as_str(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat_from(&stat),
            Err(Errno::NOENT) => return Ok(Observed::Absent),
            Err(error) => return Err(fail(error.into())),
        };
        Ok(match stat.kind {
            FileKind::Directory => Observed::Directory,
            FileKind::Special => Observed::Special,
            FileKind::Symlink => {
                let text = sys::readlinkat(self.dir, path.as_str(), Vec::new());
                let text = text.map_err(|error| fail(error.into()))?;
                Observed::Entry(Entry::new(Digest::of(text.to_bytes()), EntryKind::Symlink))
            }
            FileKind::File => {
                let open = || Ok(File::from(open_without_links(self.dir, path.as_str(), READ)?));
                let known = cache.hash(&stat, open).map_err(fail)?;
                Observed::Entry(Entry::found(known.sha256, &stat))
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
        let stat = match sys::statat(self.dir, path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat_from(&stat),
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(PackError::io("open directory", &place(), error.into())),
        };
        match (stat.kind, self.in_the_way) {
            (FileKind::Directory, _) => Ok(Some(stat.identity())),
            (_, InTheWay::IsAbsent) => Ok(None),
            (FileKind::Symlink, _) => Err(escape(self.root, &place())),
            (FileKind::File | FileKind::Special, _) => Err(not_a_directory(&place())),
        }
    }
}

fn is_below(path: &str, dir: &str) -> bool {
    path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    Ok(retry_on_intr(|| sys::open(path, DIRECTORY, Mode::empty()))?)
}

/// What `stat` says about an open file.
pub(crate) fn stat_of(file: impl AsFd) -> io::Result<Stat> {
    Ok(stat_from(&sys::fstat(file)?))
}

/// Whether times on the file system of `file` come from this machine's clock.
#[cfg(target_os = "linux")]
pub(crate) fn has_local_clock(file: impl AsFd) -> bool {
    // Magic numbers of statfs(2): ext2/3/4, XFS, Btrfs, tmpfs, overlayfs, F2FS, bcachefs, ZFS.
    const LOCAL: [i64; 8] =
        [0xEF53, 0x5846_5342, 0x9123_683E, 0x0102_1994, 0x794C_7630, 0xF2F5_2010, 0xCA45_1A4E, 0x2FC1_2FC1];
    #[expect(clippy::unnecessary_cast, reason = "the type of the field differs between platforms")]
    sys::fstatfs(file).is_ok_and(|found| LOCAL.contains(&(found.f_type as i64)))
}

/// Elsewhere nothing is known, so nothing is remembered.
#[cfg(not(target_os = "linux"))]
pub(crate) fn has_local_clock(_file: impl AsFd) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crewkit_core::Code;
    use std::os::unix::fs::symlink;
    use std::sync::Arc;
    use std::time::SystemTime;

    fn observed(root: &Path, path: &str) -> Result<Observed> {
        let cache = HashCache::in_memory(Arc::new(SystemTime::now));
        let Some(root) = RootDir::open(&UnixFs::default(), root, None)? else { return Ok(Observed::Absent) };
        Ok(observe(&root, [&RelPath::new(path).unwrap()], InTheWay::Refuse, &cache)?.remove(0).observed)
    }

    #[test]
    fn a_sorted_list_is_observed_like_single_places() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let paths = ["a", "a-b/c", "b/c/d", "b/c/e", "b/x", "b-/x", "m/n", "z"];
        for path in ["a", "a-b/c", "b/c/e", "b/x", "z"] {
            std::fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
            std::fs::write(root.join(path), path).unwrap();
        }
        let paths: Vec<_> = paths.iter().map(|path| RelPath::new(*path).unwrap()).collect();
        let cache = HashCache::in_memory(Arc::new(SystemTime::now));
        let opened = RootDir::open(&UnixFs::default(), root, None).unwrap().unwrap();
        let all = observe(&opened, &paths, InTheWay::Refuse, &cache).unwrap();
        for (path, found) in paths.iter().zip(all) {
            assert_eq!(found.observed, observed(root, path.as_str()).unwrap(), "{path}");
            let want = std::fs::read(root.join(path.as_path())).ok().map(|bytes| Digest::of(&bytes));
            assert_eq!(found.observed.entry().map(|entry| entry.sha256), want, "{path}");
        }
    }

    #[test]
    fn links_below_the_root_are_an_escape_but_the_root_may_be_one() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().join("real");
        std::fs::create_dir_all(real.join("sub")).unwrap();
        std::fs::write(real.join("f"), "x").unwrap();
        std::fs::write(real.join("sub/f"), "x").unwrap();
        symlink(&real, dir.path().join("root")).unwrap();
        symlink(real.join("sub"), real.join("link")).unwrap();
        symlink("f", real.join("file-link")).unwrap();
        let root = dir.path().join("root");
        assert!(observed(&root, "sub/f").unwrap().entry().is_some());
        assert_eq!(observed(&root, "link/f").unwrap_err().code(), Code::TargetEscape);
        assert_eq!(observed(&root, "f/below").unwrap_err().code(), Code::TargetNotAFile);
        assert_eq!(observed(&root, "sub").unwrap(), Observed::Directory);
        assert_eq!(observed(&root, "file-link").unwrap().entry().unwrap().kind, EntryKind::Symlink);
        assert_eq!(observed(&dir.path().join("none"), "f").unwrap(), Observed::Absent);
    }

    /// The files below `root` as a walk with `cache` shows them.
    fn walked(root: &Path, cache: &HashCache) -> Vec<String> {
        let (fd, stat) = open_any(root).unwrap();
        let mut seen = Vec::new();
        walk_open(fd, &stat, root, &Limits::default(), cache, |item| {
            if item.kind == FileKind::Directory {
                return Ok(Next::Descend);
            }
            let mut text = String::new();
            if item.kind == FileKind::File {
                assert_eq!(item.stat().unwrap().kind, FileKind::File);
                io::Read::read_to_string(&mut item.open().unwrap(), &mut text).unwrap();
            }
            seen.push(format!("{} {:?} {text}", item.path, item.kind));
            Ok(Next::Skip)
        })
        .unwrap();
        seen.sort();
        seen
    }

    #[test]
    fn remembered_names_are_used_and_never_outlive_a_change() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        for path in ["a", "b/c", "b/d/e", "x/y/z"] {
            std::fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
            std::fs::write(root.join(path), path).unwrap();
        }
        // A clock a minute ahead: everything counts as settled.
        let ahead = || SystemTime::now() + std::time::Duration::from_mins(1);
        let cache = HashCache::in_memory(Arc::new(ahead));
        let first = walked(root, &cache);
        assert_eq!(first, ["a File a", "b/c File b/c", "b/d/e File b/d/e", "x/y/z File x/y/z"]);
        let stat = |path: &str| open_any(&root.join(path)).unwrap().1;
        for path in ["", "b", "b/d", "x", "x/y"] {
            assert!(cache.names(&stat(path)).is_some(), "the names in `{path}` are remembered");
        }
        assert_eq!(walked(root, &cache), first);

        let changes: [(&str, &dyn Fn()); 6] = [
            ("added", &|| std::fs::write(root.join("b/d/new"), "n").unwrap()),
            ("removed", &|| std::fs::remove_file(root.join("b/c")).unwrap()),
            ("renamed", &|| std::fs::rename(root.join("x/y/z"), root.join("x/y/w")).unwrap()),
            ("another kind", &|| {
                std::fs::remove_file(root.join("a")).unwrap();
                std::fs::create_dir(root.join("a")).unwrap();
            }),
            ("a link for a directory", &|| {
                std::fs::rename(root.join("x"), root.join("moved")).unwrap();
                symlink("moved", root.join("x")).unwrap();
            }),
            ("content alone", &|| std::fs::write(root.join("b/d/e"), "other").unwrap()),
        ];
        for (what, change) in changes {
            change();
            let fresh = HashCache::in_memory(Arc::new(SystemTime::now));
            assert_eq!(walked(root, &cache), walked(root, &fresh), "{what}");
            assert_eq!(walked(root, &cache), walked(root, &fresh), "{what}, and again");
        }
    }

    #[test]
    fn a_directory_changed_within_the_clock_tick_is_not_remembered() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), "a").unwrap();
        let stat = open_any(dir.path()).unwrap().1;
        let changed =
            SystemTime::UNIX_EPOCH + std::time::Duration::from_nanos(u64::try_from(stat.changed).unwrap());
        let cache = HashCache::in_memory(Arc::new(move || changed + std::time::Duration::from_millis(50)));
        walked(dir.path(), &cache);
        assert_eq!(cache.names(&stat), None);
    }

    #[test]
    fn nothing_is_opened_through_a_link() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("real/sub")).unwrap();
        std::fs::write(dir.path().join("real/sub/f"), "x").unwrap();
        symlink("real", dir.path().join("link")).unwrap();
        let handle = open_dir(dir.path()).unwrap();
        assert!(open_without_links(handle.as_fd(), "real/sub/f", READ).is_ok());
        assert!(open_without_links(handle.as_fd(), "link/sub/f", READ).is_err());
    }
}
