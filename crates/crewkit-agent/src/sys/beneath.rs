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

    use crate::sys::confine::KnownDirectory;
    use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};

    /// An open directory.
    #[derive(Debug)]
    pub(crate) struct Root {
        handle: OwnedFd,
        path: PathBuf,
    }

    /// How often a look-up is repeated that others disturb.
    #[cfg(target_os = "linux")]
    const LOOKUP_TRIES: u32 = 100;
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

        /// The directory with the numbers by which it is known again.
        pub(crate) fn known(&self) -> io::Result<KnownDirectory> {
            let stat = rustix::fs::fstat(&self.handle)?;
            Ok(KnownDirectory { path: self.path.clone(), device: stat.st_dev, inode: stat.st_ino })
        }

        /// Reads a regular file of at most `limit` bytes.
        pub(crate) fn read(&self, name: &Path, limit: u64) -> io::Result<Vec<u8>> {
            // Without NONBLOCK a named pipe would hold us for ever.
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
            let file = File::from(open_beneath(&self.handle, name, flags, Mode::empty())?);
            let too_large =
                || io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {limit} bytes"));
            if regular(&file)?.len() > limit {
                return Err(too_large());
            }
            let mut bytes = Vec::new();
            // It may grow while it is read, and some files do not say how long they are.
            file.take(limit + 1).read_to_end(&mut bytes)?;
            if bytes.len() as u64 > limit { Err(too_large()) } else { Ok(bytes) }
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
                Some(_) => return Err(not_regular()),
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
            // Not truncated before it is known what was opened.
            let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
            let mut file = File::from(open_beneath(&self.handle, name, flags, Mode::empty())?);
            if std::os::unix::fs::MetadataExt::nlink(&regular(&file)?) > 1 {
                // It is changed in place, and its other names may be somebody else's.
                let what = "the link leads to a file that has other names";
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
            }
            file.set_len(0)?;
            file.write_all(bytes)
        }

        /// Opens the directory called `name`; what is missing on the way is created.
        fn create_dirs(&self, name: &Path) -> io::Result<OwnedFd> {
            let mut current = open_beneath(&self.handle, Path::new("."), DIRECTORY, Mode::empty())?;
            let mut so_far = PathBuf::new();
            for part in name.components() {
                let part = Path::new(part.as_os_str());
                so_far.push(part);
                match rustix::fs::mkdirat(&current, part, Mode::from_raw_mode(0o755)) {
                    Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
                let next = rustix::fs::openat(&current, part, DIRECTORY | OFlags::NOFOLLOW, Mode::empty());
                current = match next {
                    Ok(next) => next,
                    // A link to a directory: allowed when it stays beneath the root.
                    Err(rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR) => {
                        open_beneath(&self.handle, &so_far, DIRECTORY, Mode::empty())?
                    }
                    Err(error) => return Err(error.into()),
                };
            }
            Ok(current)
        }

        /// The entries of a directory, sorted by name; links are reported, not followed. Of more than `most` some are left out.
        pub(crate) fn list(&self, name: &Path, most: usize) -> io::Result<Vec<(String, Kind)>> {
            let name = if name.as_os_str().is_empty() { Path::new(".") } else { name };
            let handle = open_beneath(&self.handle, name, DIRECTORY, Mode::empty())?;
            let mut entries = Vec::new();
            for entry in Dir::read_from(&handle)? {
                let entry = entry?;
                let Ok(text) = entry.file_name().to_str() else { continue };
                if matches!(text, "." | "..") {
                    continue;
                }
                if entries.len() == most {
                    break;
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

    fn not_regular() -> io::Error {
        io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")
    }

    /// What is known of an open file, if it is one that ends and does not make its reader wait.
    fn regular(file: &File) -> io::Result<std::fs::Metadata> {
        let metadata = file.metadata()?;
        if metadata.is_file() { Ok(metadata) } else { Err(not_regular()) }
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
        let mut tries = 0;
        loop {
            tries += 1;
            match rustix::fs::openat2(root, name, flags, mode, resolve) {
                // The kernel saw a rename in the middle of the look-up; or somebody has a lease on the file and does not give it up.
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) if tries < LOOKUP_TRIES => {}
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

        pub(crate) fn known(&self) -> io::Result<crate::sys::confine::KnownDirectory> {
            match *self {}
        }

        pub(crate) fn read(&self, _: &Path, _: u64) -> io::Result<Vec<u8>> {
            match *self {}
        }

        pub(crate) fn write(&self, _: &Path, _: &[u8]) -> io::Result<()> {
            match *self {}
        }

        pub(crate) fn list(&self, _: &Path, _: usize) -> io::Result<Vec<(String, Kind)>> {
            match *self {}
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    use proptest::prelude::*;

    use super::*;

    /// One thing in a tree; names are few, so that they come twice.
    #[derive(Debug, Clone)]
    enum Thing {
        File(PathBuf),
        Link(PathBuf, PathBuf),
    }

    fn path(parts: std::ops::Range<usize>) -> impl Strategy<Value = PathBuf> {
        prop::collection::vec(prop::sample::select(vec!["a", "b", "d"]), parts)
            .prop_map(|parts| parts.iter().collect())
    }

    fn thing() -> impl Strategy<Value = Thing> {
        let up = (0_usize..3, path(0..3));
        let target = up.prop_map(|(up, rest)| std::iter::repeat_n("..", up).collect::<PathBuf>().join(rest));
        prop_oneof![
            path(1..4).prop_map(Thing::File),
            (path(1..4), target).prop_map(|(at, to)| Thing::Link(at, to)),
        ]
    }

    /// Makes what can be made: a name may be taken already.
    fn build(root: &Path, things: &[Thing]) {
        for thing in things {
            let (Thing::File(at) | Thing::Link(at, _)) = thing;
            let at = root.join(at);
            let Some(parent) = at.parent() else { continue };
            let made = std::fs::create_dir_all(parent).and_then(|()| parent.canonicalize());
            if !made.is_ok_and(|parent| parent.starts_with(root)) {
                continue;
            }
            let _ = match thing {
                Thing::File(_) if at.symlink_metadata().is_err() => {
                    std::fs::write(&at, at.display().to_string())
                }
                Thing::Link(_, to) if !to.as_os_str().is_empty() => std::os::unix::fs::symlink(to, &at),
                _ => Ok(()),
            };
        }
    }

    fn files(directory: &Path, found: &mut BTreeMap<PathBuf, String>) {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => files(&entry.path(), found),
                Ok(kind) if kind.is_file() => {
                    found.insert(entry.path(), std::fs::read_to_string(entry.path()).unwrap_or_default());
                }
                _ => {}
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// A write changes the file that the name leads to, and no other; one that fails changes none.
        #[test]
        fn a_write_reaches_the_file_that_was_named(things in prop::collection::vec(thing(), 0..12), name in path(1..5)) {
            let outer = tempfile::tempdir().unwrap();
            let outer = outer.path().canonicalize().unwrap();
            let tree = outer.join("tree");
            std::fs::create_dir(&tree).unwrap();
            build(&tree, &things);
            let mut expected = BTreeMap::new();
            files(&outer, &mut expected);
            let written = Root::open(&tree).unwrap().write(&name, b"new");
            if written.is_ok() {
                let target = tree.join(&name).canonicalize().unwrap();
                prop_assert!(target.starts_with(&tree), "it left the tree: {target:?}");
                expected.insert(target, "new".to_owned());
            }
            let mut found = BTreeMap::new();
            files(&outer, &mut found);
            prop_assert_eq!(found, expected, "{:?}", written);
        }
    }
}
