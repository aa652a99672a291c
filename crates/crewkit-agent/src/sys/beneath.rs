//! A directory as an open handle; names are looked up beneath it and never lead out.
//!
//! On Linux the kernel itself refuses to leave the directory, whatever symbolic links are put in the way while we look. On
//! other Unix systems every component is opened without following links. Elsewhere there are no workspace tools.

use std::io;
use std::path::Path;

/// What a directory entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    File,
    Directory,
    Other,
}

#[cfg(unix)]
pub(crate) use unix::Root;

#[cfg(unix)]
mod unix {
    use super::{Kind, Path, io};
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::OwnedFd;
    use std::path::PathBuf;

    use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};

    /// An open directory.
    #[derive(Debug)]
    pub(crate) struct Root {
        handle: OwnedFd,
        path: PathBuf,
    }

    const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

    impl Root {
        pub(crate) fn open(path: &Path) -> io::Result<Self> {
            let path = path.canonicalize()?;
            let handle = rustix::fs::open(&path, DIRECTORY, Mode::empty())?;
            Ok(Self { handle, path })
        }

        /// Where it was when it was opened.
        pub(crate) fn path(&self) -> &Path {
            &self.path
        }

        /// Reads a regular file of at most `limit` bytes.
        pub(crate) fn read(&self, name: &Path, limit: u64) -> io::Result<Vec<u8>> {
            // Without NONBLOCK a named pipe would hold us for ever.
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
            let file = File::from(open_beneath(&self.handle, name, flags, Mode::empty())?);
            let metadata = file.metadata()?;
            if !metadata.is_file() {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
            }
            let mut bytes = Vec::new();
            file.take(limit + 1).read_to_end(&mut bytes)?;
            if bytes.len() as u64 > limit {
                return Err(io::Error::new(
                    io::ErrorKind::FileTooLarge,
                    format!("larger than {limit} bytes"),
                ));
            }
            Ok(bytes)
        }

        /// Replaces or creates a file as a whole; missing directories are created.
        pub(crate) fn write(&self, name: &Path, bytes: &[u8]) -> io::Result<()> {
            let Some(file_name) = name.file_name() else {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "no file name"));
            };
            let parent = self.create_dirs(name.parent().unwrap_or_else(|| Path::new("")))?;
            let before = rustix::fs::statat(&parent, file_name, AtFlags::SYMLINK_NOFOLLOW).ok();
            let kind = before.as_ref().map(|stat| FileType::from_raw_mode(stat.st_mode));
            match kind {
                None | Some(FileType::RegularFile) => {}
                Some(FileType::Symlink) => return self.write_through(name, bytes),
                Some(_) => return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
            }
            let mode =
                before.map_or(Mode::from_raw_mode(0o644), |stat| Mode::from_raw_mode(stat.st_mode & 0o777));
            let staged = format!(".crewkit-{}", uuid::Uuid::now_v7().simple());
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mut file = File::from(rustix::fs::openat(&parent, staged.as_str(), flags, mode)?);
            let written = file.write_all(bytes).and_then(|()| {
                rustix::fs::renameat(&parent, staged.as_str(), &parent, file_name).map_err(Into::into)
            });
            if written.is_err() {
                let _ = rustix::fs::unlinkat(&parent, staged.as_str(), AtFlags::empty());
            }
            written
        }

        /// Writes to where a link beneath the root leads, if that is beneath the root too.
        fn write_through(&self, name: &Path, bytes: &[u8]) -> io::Result<()> {
            let flags = OFlags::WRONLY | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NONBLOCK;
            File::from(open_beneath(&self.handle, name, flags, Mode::empty())?).write_all(bytes)
        }

        fn create_dirs(&self, name: &Path) -> io::Result<OwnedFd> {
            let mut current = open_beneath(&self.handle, Path::new("."), DIRECTORY, Mode::empty())?;
            for part in name.components() {
                let part = Path::new(part.as_os_str());
                match rustix::fs::mkdirat(&current, part, Mode::from_raw_mode(0o755)) {
                    Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
                let next = rustix::fs::openat(&current, part, DIRECTORY | OFlags::NOFOLLOW, Mode::empty());
                current = match next {
                    Ok(next) => next,
                    // A link to a directory: allowed when it stays beneath the root.
                    Err(rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR) => {
                        let so_far: PathBuf =
                            name.components().take_while(|c| c.as_os_str() != part).collect();
                        open_beneath(&self.handle, &so_far.join(part), DIRECTORY, Mode::empty())?
                    }
                    Err(error) => return Err(error.into()),
                };
            }
            Ok(current)
        }

        /// The entries of a directory, sorted by name; links are reported, not followed.
        pub(crate) fn list(&self, name: &Path) -> io::Result<Vec<(String, Kind)>> {
            let name = if name.as_os_str().is_empty() { Path::new(".") } else { name };
            let handle = open_beneath(&self.handle, name, DIRECTORY, Mode::empty())?;
            let mut entries = Vec::new();
            for entry in Dir::read_from(&handle)? {
                let entry = entry?;
                let Ok(text) = entry.file_name().to_str() else { continue };
                if matches!(text, "." | "..") {
                    continue;
                }
                let kind = match entry.file_type() {
                    FileType::RegularFile => Kind::File,
                    FileType::Directory => Kind::Directory,
                    FileType::Unknown => kind_of(&handle, text),
                    _ => Kind::Other,
                };
                entries.push((text.to_owned(), kind));
            }
            entries.sort_unstable();
            Ok(entries)
        }
    }

    fn kind_of(directory: &OwnedFd, name: &str) -> Kind {
        match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => Kind::File,
                FileType::Directory => Kind::Directory,
                _ => Kind::Other,
            },
            Err(_) => Kind::Other,
        }
    }

    #[cfg(target_os = "linux")]
    fn open_beneath(root: &OwnedFd, name: &Path, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        use rustix::fs::ResolveFlags;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let name = if name.as_os_str().is_empty() { Path::new(".") } else { name };
        loop {
            match rustix::fs::openat2(root, name, flags, mode, resolve) {
                // The kernel saw a rename in the middle of the look-up.
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::XDEV) => {
                    return Err(io::Error::new(
                        io::ErrorKind::PermissionDenied,
                        "leads out of the working directory",
                    ));
                }
                other => return Ok(other?),
            }
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn open_beneath(root: &OwnedFd, name: &Path, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        let mut current = root.try_clone()?;
        let parts: Vec<_> = name.components().filter(|part| part.as_os_str() != ".").collect();
        let Some((last, parents)) = parts.split_last() else {
            return Ok(rustix::fs::openat(&current, ".", flags | OFlags::NOFOLLOW, mode)?);
        };
        for part in parents {
            current =
                rustix::fs::openat(&current, Path::new(part), DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
        }
        Ok(rustix::fs::openat(&current, Path::new(last), flags | OFlags::NOFOLLOW, mode)?)
    }
}

#[cfg(not(unix))]
pub(crate) use elsewhere::Root;

#[cfg(not(unix))]
mod elsewhere {
    use super::{Kind, Path, io};

    /// Never opened: confinement by directory handle is not available here.
    #[derive(Debug)]
    pub(crate) enum Root {}

    impl Root {
        pub(crate) fn open(_: &Path) -> io::Result<Self> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub(crate) fn path(&self) -> &Path {
            match *self {}
        }

        pub(crate) fn read(&self, _: &Path, _: u64) -> io::Result<Vec<u8>> {
            match *self {}
        }

        pub(crate) fn write(&self, _: &Path, _: &[u8]) -> io::Result<()> {
            match *self {}
        }

        pub(crate) fn list(&self, _: &Path) -> io::Result<Vec<(String, Kind)>> {
            match *self {}
        }
    }
}
