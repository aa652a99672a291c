//! The file system as the standard library shows it everywhere: by paths.
//!
//! For systems without directory handles. It keeps the same promises except against somebody who swaps a directory for a
//! link between a look and the change that follows it.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use super::{DirId, EXCHANGE_SUFFIX, FileKind, Fs, Mode, Opened, Rename, ScanFs, Space, Stat};
use crate::fs::hash::Digest;
use crate::fs::path::RelPath;

/// The file system of the machine, by paths.
#[derive(Debug, Default)]
pub struct PathFs {
    /// Files made since everything was synced last: there is no call that syncs a whole file system.
    unsynced: Mutex<Vec<PathBuf>>,
}

impl PathFs {
    fn unsynced(&self) -> std::sync::MutexGuard<'_, Vec<PathBuf>> {
        self.unsynced.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the standard library knows of a file. Device and number are not known, so no hash is ever remembered by them.
fn stat_from(metadata: &Metadata) -> Stat {
    let kind = if metadata.is_file() {
        FileKind::File
    } else if metadata.is_dir() {
        FileKind::Directory
    } else if metadata.is_symlink() {
        FileKind::Symlink
    } else {
        FileKind::Special
    };
    let modified = metadata.modified().map_or(0, nanoseconds);
    let mode = mode_of(metadata);
    Stat { kind, mode, device: 0, inode: 0, size: metadata.len(), modified, changed: modified }
}

/// The path has no links in it, so it stands for the directory where nothing better does.
fn path_id(dir: &Path) -> DirId {
    let path = Digest::of(dir.as_os_str().as_encoded_bytes());
    let inode = path.as_bytes().iter().take(8).fold(0, |inode, byte| inode << 8 | u64::from(*byte));
    DirId { device: 0, inode }
}

fn nanoseconds(time: SystemTime) -> i128 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i128::try_from(after.as_nanos()).unwrap_or(i128::MAX),
        Err(before) => -i128::try_from(before.duration().as_nanos()).unwrap_or(i128::MAX),
    }
}

#[cfg(unix)]
fn mode_of(metadata: &Metadata) -> u16 {
    let mode = std::os::unix::fs::PermissionsExt::mode(&metadata.permissions());
    u16::try_from(mode & 0o777).unwrap_or_default()
}

#[cfg(not(unix))]
fn mode_of(_: &Metadata) -> u16 {
    Mode::Plain.bits()
}

/// Makes a file with its permissions, where there are such things.
#[cfg(unix)]
fn make_file(path: &Path, mode: Mode) -> io::Result<File> {
    use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
    let bits = mode.bits().into();
    let file = OpenOptions::new().write(true).create_new(true).mode(bits).open(path)?;
    if let Mode::Exact(_) = mode {
        file.set_permissions(fs::Permissions::from_mode(bits))?;
    }
    Ok(file)
}

#[cfg(not(unix))]
fn make_file(path: &Path, _: Mode) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

#[cfg(unix)]
fn make_dir(path: &Path, mode: Mode) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, if mode == Mode::Private { 0o700 } else { 0o777 });
    builder.create(path)
}

#[cfg(not(unix))]
fn make_dir(path: &Path, _: Mode) -> io::Result<()> {
    fs::create_dir(path)
}

#[cfg(unix)]
fn make_link(text: &[u8], path: &Path) -> io::Result<()> {
    use std::os::unix::ffi::OsStrExt as _;
    std::os::unix::fs::symlink(std::ffi::OsStr::from_bytes(text), path)
}

#[cfg(windows)]
fn make_link(text: &[u8], path: &Path) -> io::Result<()> {
    let text = std::str::from_utf8(text).map_err(io::Error::other)?;
    std::os::windows::fs::symlink_file(text, path)
}

#[cfg(not(any(unix, windows)))]
fn make_link(_: &[u8], _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Returns once the names in a directory would survive a power loss, where a directory can be opened at all.
#[cfg(unix)]
pub(crate) fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

#[cfg(not(unix))]
pub(crate) fn sync_dir(_: &Path) -> io::Result<()> {
    Ok(())
}

fn regular(path: &Path) -> io::Result<File> {
    if fs::symlink_metadata(path)?.is_file() {
        File::open(path)
    } else {
        Err(io::Error::other("not a regular file"))
    }
}

fn is_there(path: &Path) -> io::Result<bool> {
    Ok(super::found(fs::symlink_metadata(path))?.is_some())
}

impl Fs for PathFs {
    type Dir = Arc<Path>;
    type File = File;

    fn open_root(&self, path: &Path) -> io::Result<Self::Dir> {
        if self.canonical(path)? != path || !fs::metadata(path)?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        Ok(path.into())
    }

    fn canonical(&self, path: &Path) -> io::Result<PathBuf> {
        fs::canonicalize(path)
    }

    fn open_dir(&self, dir: &Self::Dir, path: &RelPath) -> io::Result<Self::Dir> {
        let mut current = dir.to_path_buf();
        for component in path.components() {
            current.push(component);
            // A link is no directory here.
            if !fs::symlink_metadata(&current)?.is_dir() {
                return Err(io::ErrorKind::NotADirectory.into());
            }
        }
        Ok(current.into())
    }

    fn identity(&self, dir: &Self::Dir) -> io::Result<DirId> {
        fs::metadata(dir).map(|_| path_id(dir))
    }

    fn stat(&self, dir: &Self::Dir, name: &str) -> io::Result<Option<Stat>> {
        let found = super::found(fs::symlink_metadata(dir.join(name)))?;
        Ok(found.map(|metadata| stat_from(&metadata)))
    }

    fn list(&self, dir: &Self::Dir) -> io::Result<Vec<String>> {
        let names = fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().into_string().ok()));
        names.filter_map(Result::transpose).collect()
    }

    fn read_link(&self, dir: &Self::Dir, name: &str) -> io::Result<Vec<u8>> {
        Ok(fs::read_link(dir.join(name))?.into_os_string().into_encoded_bytes())
    }

    fn open(&self, dir: &Self::Dir, name: &str) -> io::Result<File> {
        regular(&dir.join(name))
    }

    fn open_source(&self, path: &Path) -> io::Result<File> {
        regular(path)
    }

    fn read_at(&self, mut file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        file.seek(SeekFrom::Start(offset))?;
        file.read(buffer)
    }

    fn create(&self, dir: &Self::Dir, name: &str, mode: Mode) -> io::Result<File> {
        let path = dir.join(name);
        let file = make_file(&path, mode)?;
        self.unsynced().push(path);
        Ok(file)
    }

    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<usize> {
        file.write(bytes)
    }

    fn symlink(&self, dir: &Self::Dir, name: &str, text: &[u8]) -> io::Result<()> {
        make_link(text, &dir.join(name))
    }

    fn create_dir(&self, dir: &Self::Dir, name: &str, mode: Mode) -> io::Result<()> {
        make_dir(&dir.join(name), mode)
    }

    fn rename(
        &self,
        from_dir: &Self::Dir,
        from: &str,
        to_dir: &Self::Dir,
        to: &str,
        how: Rename,
    ) -> io::Result<()> {
        let (source, target) = (from_dir.join(from), to_dir.join(to));
        match how {
            Rename::NoReplace if is_there(&target)? => Err(io::ErrorKind::AlreadyExists.into()),
            Rename::Replace | Rename::NoReplace => fs::rename(source, target),
            Rename::Exchange => {
                // As where the kernel cannot exchange two names: the target is missing for a moment at most.
                let second = from_dir.join(format!("{from}{EXCHANGE_SUFFIX}"));
                if fs::hard_link(&target, &second).is_err() {
                    fs::rename(&target, &second)?;
                }
                fs::rename(&source, &target)?;
                fs::rename(&second, &source)
            }
        }
    }

    fn remove_file(&self, dir: &Self::Dir, name: &str) -> io::Result<()> {
        fs::remove_file(dir.join(name))
    }

    fn remove_dir(&self, dir: &Self::Dir, name: &str) -> io::Result<()> {
        fs::remove_dir(dir.join(name))
    }

    fn sync_file(&self, file: &File) -> io::Result<()> {
        file.sync_all()
    }

    fn sync_dir(&self, dir: &Self::Dir) -> io::Result<()> {
        sync_dir(dir)
    }

    fn sync_all(&self, _dir: &Self::Dir) -> io::Result<()> {
        let files = std::mem::take(&mut *self.unsynced());
        for path in files {
            // What was renamed or removed meanwhile was synced before, or is not wanted.
            if let Some(file) = super::found(OpenOptions::new().write(true).open(&path))? {
                file.sync_all()?;
            }
        }
        Ok(())
    }

    fn space(&self, _dir: &Self::Dir) -> io::Result<Space> {
        // Not known; a disk that is full says so when it is written to.
        Ok(Space { available: u64::MAX, block: 4096, read_only: false })
    }
}

impl ScanFs for PathFs {
    fn dir_stat(&self, dir: &Self::Dir) -> io::Result<Stat> {
        Ok(stat_from(&fs::metadata(dir)?))
    }

    fn directory_id(&self, dir: &Self::Dir, path: &str, _: &Stat) -> DirId {
        path_id(&dir.join(path))
    }

    /// Nothing is known about clocks, so nothing is remembered.
    fn has_local_clock(&self, _: &Self::Dir) -> bool {
        false
    }

    fn entries(&self, dir: &Self::Dir, path: &str) -> io::Result<(Self::Dir, super::DirEntries)> {
        let dir = match path {
            "" => dir.clone(),
            path => self.open_dir(dir, &RelPath::new(path).map_err(io::Error::other)?)?,
        };
        let entry = |entry: io::Result<fs::DirEntry>| {
            let entry = entry?;
            // It may vanish between the listing and the look.
            let metadata = super::found(fs::symlink_metadata(entry.path()))?;
            Ok(metadata.map(|metadata| (stat_from(&metadata).kind, entry.file_name())))
        };
        let entries = fs::read_dir(&dir)?.map(entry).filter_map(io::Result::transpose);
        let entries = entries.collect::<io::Result<_>>()?;
        Ok((dir, entries))
    }

    fn open_below(&self, dir: &Self::Dir, path: &str) -> io::Result<File> {
        let path = RelPath::new(path).map_err(io::Error::other)?;
        let parent = path.parent().map_or_else(|| Ok(dir.clone()), |parent| self.open_dir(dir, &parent))?;
        regular(&parent.join(path.name()))
    }

    fn open_any(&self, path: &Path) -> io::Result<(Opened<Self::Dir>, Stat)> {
        let stat = stat_from(&fs::metadata(path)?);
        let opened = match stat.kind {
            FileKind::Directory => Opened::Directory(path.into()),
            FileKind::File => Opened::File(File::open(path)?),
            FileKind::Symlink | FileKind::Special => Opened::Special,
        };
        Ok((opened, stat))
    }

    fn open_beneath(&self, base: &Path, _: &Self::Dir, path: &str) -> io::Result<(Opened<Self::Dir>, Stat)> {
        let real = fs::canonicalize(base.join(path))?;
        if real.starts_with(fs::canonicalize(base)?) {
            self.open_any(&real)
        } else {
            Err(io::ErrorKind::CrossesDevices.into())
        }
    }
}

/// What is known about an open file.
#[cfg(not(unix))]
pub(crate) fn stat_of(file: &File) -> io::Result<Stat> {
    Ok(stat_from(&file.metadata()?))
}

/// Nothing is known about clocks, so nothing is remembered.
#[cfg(not(unix))]
pub(crate) fn has_local_clock<T: ?Sized>(_: &T) -> bool {
    false
}
