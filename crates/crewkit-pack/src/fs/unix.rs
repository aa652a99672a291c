//! The real file system of Unix, through directory handles.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{self as sys, AtFlags, FileType, OFlags};
use rustix::io::{Errno, retry_on_intr};

use super::{DirId, FileKind, Fs, Mode, Opened, Rename, ScanFs, Space, Stat};
use crate::fs::path::RelPath;

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
/// A pipe in the place of a file must not keep anybody waiting.
const READ_ANY: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);
const READ: OFlags = READ_ANY.union(OFlags::NOFOLLOW);
const CREATE: OFlags =
    OFlags::WRONLY.union(OFlags::CREATE).union(OFlags::EXCL).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Which links are followed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Links {
    /// Those that stay below the directory.
    Beneath,
    /// None.
    Never,
}

impl UnixFs {
    /// One that behaves as on a kernel without `openat2` and the flags of `renameat2`.
    pub fn portable() -> Self {
        Self { without_openat2: AtomicBool::new(true), without_rename_flags: AtomicBool::new(true) }
    }

    /// Opens what is at `path`, below `dir` if there is one. Returns `None` if this kernel cannot make sure that it is
    /// below, or that no link leads there.
    fn open_by_kernel(
        &self,
        dir: Option<&OwnedFd>,
        path: &Path,
        flags: OFlags,
        links: Links,
    ) -> rustix::io::Result<Option<OwnedFd>> {
        #[cfg(target_os = "linux")]
        if !self.without_openat2.load(Ordering::Relaxed) {
            use rustix::fs::ResolveFlags;
            let mut resolve = ResolveFlags::NO_MAGICLINKS;
            resolve.set(ResolveFlags::BENEATH, dir.is_some());
            resolve.set(ResolveFlags::NO_SYMLINKS, links == Links::Never);
            let dir = dir.map_or(sys::CWD, AsFd::as_fd);
            for _ in 0..64 {
                match retry_on_intr(|| sys::openat2(dir, path, flags, sys::Mode::empty(), resolve)) {
                    // A rename elsewhere kept the kernel from being sure; it asks for another try.
                    Err(Errno::AGAIN) => {}
                    Err(Errno::NOSYS | Errno::PERM) => {
                        self.without_openat2.store(true, Ordering::Relaxed);
                        break;
                    }
                    opened => return opened.map(Some),
                }
            }
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (dir, path, flags, links);
        Ok(None)
    }

    /// Opens what is at `path` below `dir`, following no link.
    fn open_without_links(&self, dir: &OwnedFd, path: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let step = |dir: BorrowedFd<'_>, name: &str, flags: OFlags| {
            retry_on_intr(|| sys::openat(dir, name, flags | OFlags::NOFOLLOW, sys::Mode::empty()))
        };
        let Some((parent, name)) = path.rsplit_once('/') else { return step(dir.as_fd(), path, flags) };
        if let Some(fd) = self.open_by_kernel(Some(dir), Path::new(path), flags, Links::Never)? {
            return Ok(fd);
        }
        let mut above: Option<OwnedFd> = None;
        for part in parent.split('/') {
            above = Some(step(above.as_ref().map_or(dir.as_fd(), AsFd::as_fd), part, DIRECTORY)?);
        }
        step(above.as_ref().map_or(dir.as_fd(), AsFd::as_fd), name, flags)
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

fn regular(fd: OwnedFd) -> io::Result<File> {
    let stat = sys::fstat(&fd)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("not a regular file"));
    }
    Ok(fd.into())
}

impl Fs for UnixFs {
    type Dir = Arc<OwnedFd>;
    type File = File;

    fn open_root(&self, path: &Path) -> io::Result<Self::Dir> {
        let opened = self.open_by_kernel(None, path, DIRECTORY, Links::Never).map_err(not_a_directory)?;
        if let Some(dir) = opened {
            return Ok(Arc::new(dir));
        }
        let dir = retry_on_intr(|| sys::open(path, DIRECTORY, sys::Mode::empty()))?;
        if std::fs::canonicalize(path)? == path { Ok(Arc::new(dir)) } else { Err(Errno::NOTDIR.into()) }
    }

    fn canonical(&self, path: &Path) -> io::Result<PathBuf> {
        std::fs::canonicalize(path)
    }

    fn open_dir(&self, dir: &Self::Dir, path: &RelPath) -> io::Result<Self::Dir> {
        let opened = self.open_without_links(dir, path.as_str(), DIRECTORY);
        opened.map(Arc::new).map_err(not_a_directory)
    }

    fn identity(&self, dir: &Self::Dir) -> io::Result<DirId> {
        Ok(self.dir_stat(dir)?.identity())
    }

    fn stat(&self, dir: &Self::Dir, name: &str) -> io::Result<Option<Stat>> {
        let stat = match sys::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(None),
            answer => answer?,
        };
        Ok(Some(stat_from(&stat)))
    }

    fn list(&self, dir: &Self::Dir) -> io::Result<Vec<String>> {
        Ok(self.entries(dir, "")?.1.into_iter().filter_map(|(_, name)| name.into_string().ok()).collect())
    }

    fn read_link(&self, dir: &Self::Dir, name: &str) -> io::Result<Vec<u8>> {
        Ok(sys::readlinkat(dir, name, Vec::new())?.into_bytes())
    }

    fn open(&self, dir: &Self::Dir, name: &str) -> io::Result<File> {
        regular(retry_on_intr(|| sys::openat(dir, name, READ, sys::Mode::empty()))?)
    }

    fn open_source(&self, path: &Path) -> io::Result<File> {
        regular(retry_on_intr(|| sys::open(path, READ, sys::Mode::empty()))?)
    }

    fn read_at(&self, file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(retry_on_intr(|| rustix::io::pread(file, &mut *buffer, offset))?)
    }

    fn create(&self, dir: &Self::Dir, name: &str, mode: Mode) -> io::Result<File> {
        let bits = sys::Mode::from_raw_mode(mode.bits().into());
        let file = retry_on_intr(|| sys::openat(dir, name, CREATE, bits))?;
        if let Mode::Exact(_) = mode {
            match retry_on_intr(|| sys::fchmod(&file, bits)) {
                // A file system without permissions.
                Err(Errno::PERM | Errno::NOTSUP) => {}
                done => done?,
            }
        }
        Ok(file.into())
    }

    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<usize> {
        Ok(retry_on_intr(|| rustix::io::write(&*file, bytes))?)
    }

    fn symlink(&self, dir: &Self::Dir, name: &str, text: &[u8]) -> io::Result<()> {
        Ok(retry_on_intr(|| sys::symlinkat(OsStr::from_bytes(text), dir, name))?)
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

    fn sync_file(&self, file: &File) -> io::Result<()> {
        Ok(retry_on_intr(|| sys::fsync(file))?)
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

impl ScanFs for UnixFs {
    fn dir_stat(&self, dir: &Self::Dir) -> io::Result<Stat> {
        stat_of(dir)
    }

    fn directory_id(&self, _: &Self::Dir, _: &str, stat: &Stat) -> DirId {
        stat.identity()
    }

    fn has_local_clock(&self, dir: &Self::Dir) -> bool {
        has_local_clock(dir)
    }

    fn entries(&self, dir: &Self::Dir, path: &str) -> io::Result<(Self::Dir, super::DirEntries)> {
        // A handle of its own, because the position in a directory belongs to the handle.
        let path = if path.is_empty() { "." } else { path };
        let dir = self.open_without_links(dir, path, DIRECTORY).map_err(not_a_directory)?;
        let mut listing = sys::Dir::new(dir.try_clone()?)?;
        let mut entries = Vec::new();
        while let Some(entry) = listing.read() {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => match sys::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) => kind_from(FileType::from_raw_mode(stat.st_mode)),
                    // It vanished between the listing and the look.
                    Err(Errno::NOENT) => continue,
                    Err(error) => return Err(error.into()),
                },
                known => kind_from(known),
            };
            entries.push((kind, OsStr::from_bytes(name.to_bytes()).to_owned()));
        }
        Ok((Arc::new(dir), entries))
    }

    fn open_below(&self, dir: &Self::Dir, path: &str) -> io::Result<File> {
        Ok(self.open_without_links(dir, path, READ)?.into())
    }

    fn open_any(&self, path: &Path) -> io::Result<(Opened<Self::Dir>, Stat)> {
        opened(retry_on_intr(|| sys::open(path, READ_ANY, sys::Mode::empty()))?)
    }

    fn open_beneath(
        &self,
        base: &Path,
        dir: &Self::Dir,
        path: &str,
    ) -> io::Result<(Opened<Self::Dir>, Stat)> {
        let path = Path::new(if path.is_empty() { "." } else { path });
        if let Some(fd) = self.open_by_kernel(Some(dir), path, READ_ANY, Links::Beneath)? {
            return opened(fd);
        }
        let real = std::fs::canonicalize(base.join(path))?;
        if real.starts_with(std::fs::canonicalize(base)?) {
            self.open_any(&real)
        } else {
            Err(Errno::XDEV.into())
        }
    }
}

fn opened(fd: OwnedFd) -> io::Result<(Opened<Arc<OwnedFd>>, Stat)> {
    let stat = stat_of(&fd)?;
    let opened = match stat.kind {
        FileKind::Directory => Opened::Directory(Arc::new(fd)),
        FileKind::File => Opened::File(fd.into()),
        FileKind::Symlink | FileKind::Special => Opened::Special,
    };
    Ok((opened, stat))
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

fn kind_from(kind: FileType) -> FileKind {
    match kind {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        _ => FileKind::Special,
    }
}

/// What the system says of a file, in our terms.
#[expect(clippy::unnecessary_cast, reason = "the types of the fields differ between platforms")]
fn stat_from(stat: &sys::Stat) -> Stat {
    let nanoseconds = |seconds: i128, rest: i128| seconds * 1_000_000_000 + rest;
    Stat {
        kind: kind_from(FileType::from_raw_mode(stat.st_mode)),
        mode: (stat.st_mode & 0o777) as u16,
        device: stat.st_dev as u64,
        inode: stat.st_ino,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        modified: nanoseconds(stat.st_mtime.into(), stat.st_mtime_nsec.into()),
        changed: nanoseconds(stat.st_ctime.into(), stat.st_ctime_nsec.into()),
    }
}
