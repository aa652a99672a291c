//! The real file system of Unix, through directory handles.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{self as sys, AtFlags, FileType, OFlags};
use rustix::io::{Errno, retry_on_intr};

use super::{DirId, FileKind, Fs, Mode, Rename, Space, Stat};
use crate::path::RelPath;

/// The file system of the machine.
///
/// Paths below a directory are resolved by the kernel without following links (`openat2`), or component by component
/// where the kernel does not have that call.
#[derive(Debug, Default)]
pub struct UnixFs {
    without_openat2: AtomicBool,
    without_rename_flags: AtomicBool,
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const READ: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY);
const CREATE: OFlags =
    OFlags::WRONLY.union(OFlags::CREATE).union(OFlags::EXCL).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl UnixFs {
    /// One that behaves as on a kernel without `openat2` and the flags of `renameat2`.
    pub fn portable() -> Self {
        Self { without_openat2: AtomicBool::new(true), without_rename_flags: AtomicBool::new(true) }
    }

    /// Opens a directory following no link: the one at `path` below `dir`, or at an absolute path.
    fn open_dir_by_kernel(dir: Option<&OwnedFd>, path: &Path) -> rustix::io::Result<Option<OwnedFd>> {
        #[cfg(target_os = "linux")]
        {
            use rustix::fs::ResolveFlags;
            let mut resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
            if dir.is_some() {
                resolve |= ResolveFlags::BENEATH;
            }
            let dir = dir.map_or(sys::CWD, AsFd::as_fd);
            // EAGAIN: a rename elsewhere kept the kernel from being sure; it asks for another try.
            for _ in 0..64 {
                match retry_on_intr(|| sys::openat2(dir, path, DIRECTORY, sys::Mode::empty(), resolve)) {
                    Err(Errno::AGAIN) => {}
                    Err(Errno::NOSYS | Errno::PERM) => return Ok(None),
                    opened => return opened.map(Some),
                }
            }
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (dir, path);
        Ok(None)
    }

    fn open_dir_by_steps(dir: &OwnedFd, path: &RelPath) -> rustix::io::Result<OwnedFd> {
        let step = |dir: &OwnedFd, name: &str| {
            retry_on_intr(|| sys::openat(dir, name, DIRECTORY | OFlags::NOFOLLOW, sys::Mode::empty()))
        };
        let mut components = path.components();
        let mut current = step(dir, components.next().unwrap_or("."))?;
        for component in components {
            current = step(&current, component)?;
        }
        Ok(current)
    }

    /// Renames as well as can be done without the flags: look first, then rename.
    fn rename_by_steps(
        from_dir: &OwnedFd,
        from: &str,
        to_dir: &OwnedFd,
        to: &str,
        how: Rename,
    ) -> rustix::io::Result<()> {
        let rename = |a: &OwnedFd, x: &str, b: &OwnedFd, y: &str| retry_on_intr(|| sys::renameat(a, x, b, y));
        match how {
            Rename::Replace => rename(from_dir, from, to_dir, to),
            Rename::NoReplace => match sys::statat(to_dir, to, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(_) => Err(Errno::EXIST),
                Err(Errno::NOENT) => rename(from_dir, from, to_dir, to),
                Err(error) => Err(error),
            },
            Rename::Exchange => {
                // The target is never missing: its old content gets a second name, the new one takes its place, the
                // second name becomes the vacated one. Recovery knows what to do with a second name left behind.
                let second = format!("{from}{}", super::EXCHANGE_SUFFIX);
                match sys::linkat(to_dir, to, from_dir, second.as_str(), AtFlags::empty()) {
                    // No hard links here: for one moment the target is missing.
                    Err(Errno::PERM | Errno::NOTSUP | Errno::XDEV) => rename(to_dir, to, from_dir, &second)?,
                    linked => linked?,
                }
                rename(from_dir, from, to_dir, to)?;
                rename(from_dir, &second, from_dir, from)
            }
        }
    }
}

/// A link where a directory should be reads the same whichever way it was noticed.
fn not_a_directory(error: Errno) -> io::Error {
    if matches!(error, Errno::LOOP | Errno::XDEV) { Errno::NOTDIR.into() } else { error.into() }
}

fn regular(fd: OwnedFd) -> io::Result<UnixFile> {
    let stat = sys::fstat(&fd)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("not a regular file"));
    }
    Ok(UnixFile(fd))
}

/// An open file.
#[derive(Debug)]
pub struct UnixFile(OwnedFd);

impl Fs for UnixFs {
    type Dir = Arc<OwnedFd>;
    type File = UnixFile;

    fn open_root(&self, path: &Path) -> io::Result<Self::Dir> {
        if !self.without_openat2.load(Ordering::Relaxed)
            && let Some(dir) = Self::open_dir_by_kernel(None, path).map_err(not_a_directory)?
        {
            return Ok(Arc::new(dir));
        }
        let dir = retry_on_intr(|| sys::open(path, DIRECTORY, sys::Mode::empty()))?;
        if std::fs::canonicalize(path)? == path { Ok(Arc::new(dir)) } else { Err(Errno::NOTDIR.into()) }
    }

    fn canonical(&self, path: &Path) -> io::Result<PathBuf> {
        std::fs::canonicalize(path)
    }

    fn open_dir(&self, dir: &Self::Dir, path: &RelPath) -> io::Result<Self::Dir> {
        if !self.without_openat2.load(Ordering::Relaxed) {
            match Self::open_dir_by_kernel(Some(dir), path.as_path()).map_err(not_a_directory)? {
                Some(opened) => return Ok(Arc::new(opened)),
                None => self.without_openat2.store(true, Ordering::Relaxed),
            }
        }
        Ok(Arc::new(Self::open_dir_by_steps(dir, path).map_err(not_a_directory)?))
    }

    fn identity(&self, dir: &Self::Dir) -> io::Result<DirId> {
        Ok(stat_from(&sys::fstat(dir)?).identity())
    }

    fn stat(&self, dir: &Self::Dir, name: &str) -> io::Result<Option<Stat>> {
        let stat = match sys::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(None),
            answer => answer?,
        };
        Ok(Some(stat_from(&stat)))
    }

    fn list(&self, dir: &Self::Dir) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        // A handle of its own, because the position in a directory belongs to the handle.
        let own = retry_on_intr(|| sys::openat(dir, ".", DIRECTORY, sys::Mode::empty()))?;
        for entry in sys::Dir::new(own)? {
            if let Ok(name) = entry?.file_name().to_str()
                && !matches!(name, "." | "..")
            {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    fn read_link(&self, dir: &Self::Dir, name: &str) -> io::Result<Vec<u8>> {
        Ok(sys::readlinkat(dir, name, Vec::new())?.into_bytes())
    }

    fn open(&self, dir: &Self::Dir, name: &str) -> io::Result<UnixFile> {
        regular(retry_on_intr(|| sys::openat(dir, name, READ, sys::Mode::empty()))?)
    }

    fn open_source(&self, path: &Path) -> io::Result<UnixFile> {
        regular(retry_on_intr(|| sys::open(path, READ, sys::Mode::empty()))?)
    }

    fn read_at(&self, file: &UnixFile, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(retry_on_intr(|| rustix::io::pread(&file.0, &mut *buffer, offset))?)
    }

    fn create(&self, dir: &Self::Dir, name: &str, mode: Mode) -> io::Result<UnixFile> {
        let bits = sys::Mode::from_raw_mode(mode.bits().into());
        let file = retry_on_intr(|| sys::openat(dir, name, CREATE, bits))?;
        if let Mode::Exact(_) = mode {
            match retry_on_intr(|| sys::fchmod(&file, bits)) {
                // A file system without permissions.
                Err(Errno::PERM | Errno::NOTSUP) => {}
                done => done?,
            }
        }
        Ok(UnixFile(file))
    }

    fn write(&self, file: &mut UnixFile, bytes: &[u8]) -> io::Result<usize> {
        Ok(retry_on_intr(|| rustix::io::write(&file.0, bytes))?)
    }

    fn symlink(&self, dir: &Self::Dir, name: &str, text: &[u8]) -> io::Result<()> {
        Ok(retry_on_intr(|| sys::symlinkat(std::ffi::OsStr::from_bytes(text), dir, name))?)
    }

    fn create_dir(&self, dir: &Self::Dir, name: &str, mode: Mode) -> io::Result<()> {
        let mode = sys::Mode::from_raw_mode(if mode == Mode::Private { 0o700 } else { 0o777 });
        Ok(retry_on_intr(|| sys::mkdirat(dir, name, mode))?)
    }

    fn rename(
        &self,
        from_dir: &Self::Dir,
        from: &str,
        to_dir: &Self::Dir,
        to: &str,
        how: Rename,
    ) -> io::Result<()> {
        if how == Rename::Replace || self.without_rename_flags.load(Ordering::Relaxed) {
            return Ok(Self::rename_by_steps(from_dir, from, to_dir, to, how)?);
        }
        #[cfg(any(target_os = "linux", target_vendor = "apple"))]
        {
            let flags = match how {
                Rename::Exchange => sys::RenameFlags::EXCHANGE,
                Rename::NoReplace | Rename::Replace => sys::RenameFlags::NOREPLACE,
            };
            match retry_on_intr(|| sys::renameat_with(from_dir, from, to_dir, to, flags)) {
                // The kernel or this file system does not know the flags.
                Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {}
                done => return Ok(done?),
            }
        }
        Ok(Self::rename_by_steps(from_dir, from, to_dir, to, how)?)
    }

    fn remove_file(&self, dir: &Self::Dir, name: &str) -> io::Result<()> {
        Ok(retry_on_intr(|| sys::unlinkat(dir, name, AtFlags::empty()))?)
    }

    fn remove_dir(&self, dir: &Self::Dir, name: &str) -> io::Result<()> {
        Ok(retry_on_intr(|| sys::unlinkat(dir, name, AtFlags::REMOVEDIR))?)
    }

    fn sync_file(&self, file: &UnixFile) -> io::Result<()> {
        Ok(retry_on_intr(|| sys::fsync(&file.0))?)
    }

    fn sync_dir(&self, dir: &Self::Dir) -> io::Result<()> {
        Ok(retry_on_intr(|| sys::fsync(dir))?)
    }

    fn sync_all(&self, dir: &Self::Dir) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        return Ok(retry_on_intr(|| sys::syncfs(dir))?);
        #[cfg(not(target_os = "linux"))]
        {
            let _ = dir;
            sys::sync();
            Ok(())
        }
    }

    fn space(&self, dir: &Self::Dir) -> io::Result<Space> {
        let space = sys::fstatvfs(dir)?;
        Ok(Space {
            available: space.f_bavail.saturating_mul(space.f_frsize),
            block: space.f_frsize.max(1),
            read_only: space.f_flag.contains(sys::StatVfsMountFlags::RDONLY),
        })
    }
}

/// What a mode says a thing is.
pub(crate) fn kind_of(mode: sys::RawMode) -> FileKind {
    kind_from(FileType::from_raw_mode(mode))
}

/// What a listing says a thing is.
pub(crate) fn kind_from(kind: FileType) -> FileKind {
    match kind {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        _ => FileKind::Special,
    }
}

/// What the system says of a file, in our terms.
#[expect(clippy::unnecessary_cast, reason = "the types of the fields differ between platforms")]
pub(crate) fn stat_from(stat: &sys::Stat) -> Stat {
    let nanoseconds = |seconds: i128, rest: i128| seconds * 1_000_000_000 + rest;
    Stat {
        kind: kind_of(stat.st_mode),
        mode: (stat.st_mode & 0o777) as u16,
        device: stat.st_dev as u64,
        inode: stat.st_ino,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        modified: nanoseconds(stat.st_mtime.into(), stat.st_mtime_nsec.into()),
        changed: nanoseconds(stat.st_ctime.into(), stat.st_ctime_nsec.into()),
    }
}
