//! Looking at many files quickly: whole trees, and lists of places below a root.
//!
//! Everything goes through open directories. Below the starting point no symbolic link is followed; what to do with
//! one is the visitor's decision.

use std::borrow::Cow;
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use crewkit_core::{Code, Limits};
use rustix::fs::{self as sys, AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::entry::{Entry, EntryKind, Observed};
use crate::error::{PackError, Result};
use crate::fs::{FileKind, Stat};
use crate::hash::Digest;
use crate::hash_cache::HashCache;
use crate::path::RelPath;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const READ: OFlags = OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

/// Something met on a walk.
pub(crate) struct Item<'a> {
    dir: BorrowedFd<'a>,
    name: &'a CStr,
    /// Where it is, relative to the start.
    pub(crate) path: Cow<'a, str>,
    /// Whether `path` is the name itself and not an approximation of a name that is not UTF-8.
    pub(crate) utf8: bool,
    /// What it is.
    pub(crate) kind: FileKind,
}

impl Item<'_> {
    /// What `stat` says about it.
    pub(crate) fn stat(&self) -> io::Result<Stat> {
        Ok(stat_from(&sys::statat(self.dir, self.name, AtFlags::SYMLINK_NOFOLLOW)?))
    }

    /// Opens it for reading.
    pub(crate) fn open(&self) -> io::Result<File> {
        open_regular(self.dir, self.name)
    }
}

/// What a visitor wants done with a directory it was shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Look inside.
    Descend,
    /// Leave it alone.
    Skip,
}

/// Shows everything below `start` to `visit`, directories before their content, in no particular order.
///
/// The start itself may be a link. Says whether there is a directory at all.
pub(crate) fn walk(
    start: &Path,
    limits: &Limits,
    visit: impl FnMut(&Item<'_>) -> Result<Next>,
) -> Result<bool> {
    match open_dir(start) {
        Ok(dir) => walk_open(dir, start, limits, visit).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(PackError::io("open directory", start, error)),
    }
}

/// [`walk`] from a directory that is open already; `start` is for messages.
pub(crate) fn walk_open(
    dir: OwnedFd,
    start: &Path,
    limits: &Limits,
    mut visit: impl FnMut(&Item<'_>) -> Result<Next>,
) -> Result<()> {
    let mut walk = Walk { start, depth: limits.pack_tree_depth, visit: &mut visit, path: String::new() };
    walk.directory(dir, 0)
}

/// Opens a file or directory for reading, following links.
pub(crate) fn open_any(path: &Path) -> io::Result<(OwnedFd, Stat)> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let fd = retry_on_intr(|| sys::open(path, flags, Mode::empty()))?;
    let stat = stat_of(&fd)?;
    Ok((fd, stat))
}

/// Opens a file or directory below `root`; links are followed as long as they stay below it.
///
/// What leads outside is [`io::ErrorKind::CrossesDevices`].
pub(crate) fn open_beneath(root: &Path, path: &str) -> io::Result<(OwnedFd, Stat)> {
    let path = if path.is_empty() { "." } else { path };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::ResolveFlags;
        let dir = open_dir(root)?;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        for _ in 0..64 {
            match retry_on_intr(|| sys::openat2(&dir, path, flags, Mode::empty(), resolve)) {
                // A rename elsewhere kept the kernel from being sure; it asks for another try.
                Err(Errno::AGAIN) => {}
                Err(Errno::NOSYS | Errno::PERM) => break,
                opened => {
                    let fd = opened?;
                    let stat = stat_of(&fd)?;
                    return Ok((fd, stat));
                }
            }
        }
    }
    let real = std::fs::canonicalize(root.join(path))?;
    if !real.starts_with(std::fs::canonicalize(root)?) {
        return Err(Errno::XDEV.into());
    }
    let fd = retry_on_intr(|| sys::open(&real, flags, Mode::empty()))?;
    let stat = stat_of(&fd)?;
    Ok((fd, stat))
}

struct Walk<'a, V> {
    start: &'a Path,
    depth: u64,
    visit: &'a mut V,
    path: String,
}

impl<V: FnMut(&Item<'_>) -> Result<Next>> Walk<'_, V> {
    fn fail(&self, error: impl Into<io::Error>) -> PackError {
        PackError::io("read directory", &self.start.join(&self.path), error.into())
    }

    fn directory(&mut self, fd: OwnedFd, level: u64) -> Result<()> {
        let mut dir = Dir::new(fd).map_err(|error| self.fail(error))?;
        let base = self.path.len();
        let mut below = Vec::new();
        while let Some(entry) = dir.read() {
            let entry = entry.map_err(|error| self.fail(error))?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let shown = name.to_string_lossy();
            self.path.truncate(base);
            if base > 0 {
                self.path.push('/');
            }
            self.path.push_str(&shown);
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
            let item = Item { dir: handle, name, path: Cow::Borrowed(&self.path), utf8, kind };
            let next = (self.visit)(&item)?;
            if kind == FileKind::Directory && next == Next::Descend {
                below.push((name.to_owned(), shown.into_owned()));
            }
        }
        for (name, shown) in below {
            self.path.truncate(base);
            if base > 0 {
                self.path.push('/');
            }
            self.path.push_str(&shown);
            if level >= self.depth {
                let place = self.start.join(&self.path);
                return Err(PackError::new(
                    Code::IoInvalidPath,
                    format!(
                        "{} is nested deeper than pack_tree_depth ({}) allows",
                        place.display(),
                        self.depth
                    ),
                )
                .detail("path", place.display().to_string()));
            }
            let handle = dir.fd().map_err(|error| self.fail(error))?;
            let fd = retry_on_intr(|| {
                sys::openat(handle, name.as_c_str(), DIRECTORY | OFlags::NOFOLLOW, Mode::empty())
            });
            match fd {
                Ok(fd) => self.directory(fd, level + 1)?,
                Err(Errno::NOENT) => {}
                Err(error) => return Err(self.fail(error)),
            }
        }
        self.path.truncate(base);
        Ok(())
    }
}

/// What is at each of `paths` below `root`; `paths` should be sorted, so that each directory is opened once.
pub(crate) fn observe<'a>(
    root: &Path,
    paths: impl IntoIterator<Item = &'a RelPath>,
    cache: &HashCache,
) -> Result<Vec<Observed>> {
    let mut prober = match open_dir(root) {
        Ok(fd) => Prober { root, dirs: vec![Level { end: 0, fd: Some(fd) }], at: String::new() },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(paths.into_iter().map(|_| Observed::Absent).collect());
        }
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return Err(not_a_directory(root));
        }
        Err(error) => return Err(PackError::io("open directory", root, error)),
    };
    paths.into_iter().map(|path| prober.observe(path, cache)).collect()
}

/// A stack of open directories that follows a sorted list of paths.
struct Prober<'a> {
    root: &'a Path,
    dirs: Vec<Level>,
    /// The directory the top of the stack stands for.
    at: String,
}

struct Level {
    /// Length of its path.
    end: usize,
    /// Nothing when the directory does not exist.
    fd: Option<OwnedFd>,
}

impl Prober<'_> {
    fn observe(&mut self, path: &RelPath, cache: &HashCache) -> Result<Observed> {
        let parent = path.as_str().rsplit_once('/').map_or("", |(parent, _)| parent);
        self.enter(parent)?;
        let Some(dir) = self.dirs.last().and_then(|level| level.fd.as_ref()) else {
            return Ok(Observed::Absent);
        };
        let fail = |error: io::Error| PackError::io("read", &self.root.join(path.as_path()), error);
        let stat = match sys::statat(dir, path.name(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat_from(&stat),
            Err(Errno::NOENT) => return Ok(Observed::Absent),
            Err(error) => return Err(fail(error.into())),
        };
        Ok(match stat.kind {
            FileKind::Directory => Observed::Directory,
            FileKind::Special => Observed::Special,
            FileKind::Symlink => {
                let text =
                    sys::readlinkat(dir, path.name(), Vec::new()).map_err(|error| fail(error.into()))?;
                let sha256 = Digest::of(text.to_bytes());
                Observed::Entry(Entry { sha256, kind: EntryKind::Symlink })
            }
            FileKind::File => {
                let known = cache
                    .hash(&stat, || {
                        let fd = retry_on_intr(|| sys::openat(dir, path.name(), READ, Mode::empty()))?;
                        Ok(File::from(fd))
                    })
                    .map_err(fail)?;
                Observed::Entry(Entry { sha256: known.sha256, kind: EntryKind::file(stat.executable) })
            }
        })
    }

    fn enter(&mut self, parent: &str) -> Result<()> {
        if self.at == parent {
            return Ok(());
        }
        // Keep what both have in common; the root itself always stays.
        while let Some(level) = self.dirs.last()
            && level.end > 0
            && !is_below(parent, self.at.get(..level.end).unwrap_or_default())
        {
            self.dirs.pop();
        }
        let mut end = self.dirs.last().map_or(0, |level| level.end);
        self.at.clear();
        self.at.push_str(parent);
        while end < parent.len() {
            let from = if end == 0 { 0 } else { end + 1 };
            let rest = parent.get(from..).unwrap_or_default();
            let name = rest.split('/').next().unwrap_or_default();
            end = from + name.len();
            let fd = match self.dirs.last().and_then(|level| level.fd.as_ref()) {
                Some(dir) => self.step(dir, name, parent.get(..end).unwrap_or_default())?,
                None => None,
            };
            self.dirs.push(Level { end, fd });
        }
        Ok(())
    }

    fn step(&self, dir: &OwnedFd, name: &str, path: &str) -> Result<Option<OwnedFd>> {
        let place = || self.root.join(path);
        match retry_on_intr(|| sys::openat(dir, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())) {
            Ok(fd) => Ok(Some(fd)),
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::NOTDIR | Errno::LOOP) => {
                let is_link = sys::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
                    .is_ok_and(|stat| kind_of(stat.st_mode) == FileKind::Symlink);
                Err(if is_link { escape(self.root, &place()) } else { not_a_directory(&place()) })
            }
            Err(error) => Err(PackError::io("open directory", &place(), error.into())),
        }
    }
}

fn is_below(path: &str, dir: &str) -> bool {
    path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn escape(root: &Path, place: &Path) -> PackError {
    PackError::new(
        Code::TargetEscape,
        format!("{} is a symbolic link below the target root {}", place.display(), root.display()),
    )
    .detail("path", place.display().to_string())
    .detail("root", root.display().to_string())
}

pub(crate) fn not_a_directory(place: &Path) -> PackError {
    PackError::new(
        Code::TargetNotAFile,
        format!("{} is a file, but a directory is needed there", place.display()),
    )
    .detail("path", place.display().to_string())
}

fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    Ok(retry_on_intr(|| sys::open(path, DIRECTORY, Mode::empty()))?)
}

/// Opens a file below `dir`, refusing what is not a regular file.
fn open_regular(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<File> {
    Ok(File::from(retry_on_intr(|| sys::openat(dir, name, READ, Mode::empty()))?))
}

/// What `stat` says about an open file.
pub(crate) fn stat_of(file: impl AsFd) -> io::Result<Stat> {
    Ok(stat_from(&sys::fstat(file)?))
}

fn kind_of(mode: u32) -> FileKind {
    kind_from(FileType::from_raw_mode(mode))
}

fn kind_from(kind: FileType) -> FileKind {
    match kind {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        _ => FileKind::Special,
    }
}

fn stat_from(stat: &sys::Stat) -> Stat {
    let nanoseconds = |seconds: i128, rest: i128| seconds * 1_000_000_000 + rest;
    Stat {
        kind: kind_of(stat.st_mode),
        executable: stat.st_mode & 0o100 != 0,
        device: stat.st_dev,
        inode: stat.st_ino,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        modified: nanoseconds(stat.st_mtime.into(), stat.st_mtime_nsec.into()),
        changed: nanoseconds(stat.st_ctime.into(), stat.st_ctime_nsec.into()),
    }
}

/// Whether times on the file system of `file` come from this machine's clock.
#[cfg(target_os = "linux")]
pub(crate) fn has_local_clock(file: &File) -> bool {
    // Magic numbers of statfs(2): ext2/3/4, XFS, Btrfs, tmpfs, overlayfs, F2FS, bcachefs, ZFS.
    const LOCAL: [i64; 8] =
        [0xEF53, 0x5846_5342, 0x9123_683E, 0x0102_1994, 0x794C_7630, 0xF2F5_2010, 0xCA45_1A4E, 0x2FC1_2FC1];
    #[expect(clippy::unnecessary_cast, reason = "the type of the field differs between platforms")]
    sys::fstatfs(file).is_ok_and(|found| LOCAL.contains(&(found.f_type as i64)))
}

/// Elsewhere nothing is known, so nothing is remembered.
#[cfg(not(target_os = "linux"))]
pub(crate) fn has_local_clock(_file: &File) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::sync::Arc;
    use std::time::SystemTime;

    fn observed(root: &Path, path: &str) -> Result<Observed> {
        let cache = HashCache::in_memory(Arc::new(SystemTime::now));
        Ok(observe(root, [&RelPath::new(path).unwrap()], &cache)?.remove(0))
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
        let all = observe(root, &paths, &cache).unwrap();
        for (path, found) in paths.iter().zip(all) {
            assert_eq!(found, observed(root, path.as_str()).unwrap(), "{path}");
            let want = std::fs::read(root.join(path.as_path())).ok().map(|bytes| Digest::of(&bytes));
            assert_eq!(found.entry().map(|entry| entry.sha256), want, "{path}");
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
        assert_eq!(observed(&real.join("f"), "f").unwrap_err().code(), Code::TargetNotAFile);
    }
}
