//! The few things a transaction asks of a file system.
//!
//! Everything that changes a user's tree or the state directory goes through [`Fs`], relative to open directories.
//! [`RealFs`] is the real one; the tests put a simulated disk in its place that fails, dies, or forgets what was not
//! synced, at every single call.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::fs::path::RelPath;

pub(crate) mod atomic;
pub mod entry;
pub mod hash;
pub mod path;
pub(crate) mod paths;
pub mod place;
pub(crate) mod read;
pub(crate) mod scan;
#[cfg(unix)]
pub(crate) mod unix;

pub use paths::PathFs;
#[cfg(not(unix))]
pub use paths::PathFs as RealFs;
#[cfg(not(unix))]
pub(crate) use paths::{has_local_clock, stat_of};
#[cfg(unix)]
pub use unix::UnixFs as RealFs;
#[cfg(unix)]
pub(crate) use unix::{has_local_clock, stat_of};

/// What kind of thing a name refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    Directory,
    /// A symbolic link.
    Symlink,
    /// A socket, device or pipe.
    Special,
}

/// What is known about a name without reading its content.
///
/// `device` to `changed` together are the key under which a content hash may be remembered: no edit leaves all of
/// them as they were, except one made within the file system's clock tick of the last look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    pub kind: FileKind,
    /// Its permission bits: those of owner, group and others.
    pub mode: u16,
    /// The file system it is on.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
    /// Its length in bytes.
    pub size: u64,
    /// When its content changed last, in nanoseconds since 1970.
    pub modified: i128,
    /// When its content or attributes changed last, in nanoseconds since 1970.
    pub changed: i128,
}

/// Which directory it is, whatever path led to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DirId {
    /// The file system it is on.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
}

impl Stat {
    /// Which directory it is about.
    pub fn identity(&self) -> DirId {
        DirId { device: self.device, inode: self.inode }
    }

    /// Whether its owner may execute it.
    pub fn is_executable(&self) -> bool {
        self.mode & 0o100 != 0
    }
}

/// The permissions of a new file; the process's umask applies to the first two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Readable and writable.
    Plain,
    /// Also executable.
    Executable,
    /// For its owner alone, whatever the umask.
    Private,
    /// These bits, whatever the umask.
    Exact(u16),
}

impl Mode {
    /// The bits a file is made with.
    pub fn bits(self) -> u16 {
        match self {
            Self::Plain => 0o666,
            Self::Executable => 0o777,
            Self::Private => 0o600,
            Self::Exact(bits) => bits,
        }
    }
}

/// What happens when the new name is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rename {
    /// What was there is gone.
    Replace,
    /// The call fails with `AlreadyExists`.
    NoReplace,
    /// Both change places; both must exist.
    Exchange,
}

/// Appended to a name while [`Rename::Exchange`] is done in steps, where the kernel cannot do it in one.
pub const EXCHANGE_SUFFIX: &str = ".old";

/// The room on a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Bytes an ordinary user can still write.
    pub available: u64,
    /// Size of the smallest piece a file takes.
    pub block: u64,
    /// Whether nothing can be written at all.
    pub read_only: bool,
}

/// A file system seen through open directories.
///
/// Names are single components; only [`open_root`](Fs::open_root) and [`open_source`](Fs::open_source) take paths.
/// No verb follows a symbolic link. Interrupted calls are repeated by the implementation.
pub trait Fs: Send + Sync {
    /// An open directory; cloning it is cheap.
    type Dir: Clone + Send + Sync + std::fmt::Debug;
    /// An open file.
    type File: Send;

    /// Opens the directory at `path`, which is [`canonical`](Fs::canonical); a link on the way is
    /// [`io::ErrorKind::NotADirectory`].
    fn open_root(&self, path: &Path) -> io::Result<Self::Dir>;
    /// The path without links and dots; what it names must exist.
    fn canonical(&self, path: &Path) -> io::Result<PathBuf>;
    /// Opens the directory `path` below `dir`; a link on the way is [`io::ErrorKind::NotADirectory`].
    fn open_dir(&self, dir: &Self::Dir, path: &RelPath) -> io::Result<Self::Dir>;
    /// Which directory `dir` is.
    fn identity(&self, dir: &Self::Dir) -> io::Result<DirId>;
    /// What `name` is; nothing when it is absent.
    fn stat(&self, dir: &Self::Dir, name: &str) -> io::Result<Option<Stat>>;
    /// The names in `dir`, except those that are not UTF-8.
    fn list(&self, dir: &Self::Dir) -> io::Result<Vec<String>>;
    /// The text of the link `name`.
    fn read_link(&self, dir: &Self::Dir, name: &str) -> io::Result<Vec<u8>>;
    /// Opens the regular file `name` for reading.
    fn open(&self, dir: &Self::Dir, name: &str) -> io::Result<Self::File>;
    /// Opens the regular file at `path` for reading; the last component must not be a link.
    fn open_source(&self, path: &Path) -> io::Result<Self::File>;
    /// Reads at an offset; 0 at the end.
    fn read_at(&self, file: &Self::File, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// Makes the file `name`, which must not exist.
    fn create(&self, dir: &Self::Dir, name: &str, mode: Mode) -> io::Result<Self::File>;
    /// Appends some of `bytes`; says how many.
    fn write(&self, file: &mut Self::File, bytes: &[u8]) -> io::Result<usize>;
    /// Makes the link `name`, which must not exist.
    fn symlink(&self, dir: &Self::Dir, name: &str, text: &[u8]) -> io::Result<()>;
    /// Makes the directory `name`, which must not exist.
    fn create_dir(&self, dir: &Self::Dir, name: &str, mode: Mode) -> io::Result<()>;
    /// Gives `from` in `from_dir` the name `to` in `to_dir`.
    fn rename(
        &self,
        from_dir: &Self::Dir,
        from: &str,
        to_dir: &Self::Dir,
        to: &str,
        how: Rename,
    ) -> io::Result<()>;
    /// Removes the file or link `name`.
    fn remove_file(&self, dir: &Self::Dir, name: &str) -> io::Result<()>;
    /// Removes the empty directory `name`.
    fn remove_dir(&self, dir: &Self::Dir, name: &str) -> io::Result<()>;

    /// Returns once the file's content would survive a power loss.
    fn sync_file(&self, file: &Self::File) -> io::Result<()>;
    /// Returns once the names in `dir` would survive a power loss.
    fn sync_dir(&self, dir: &Self::Dir) -> io::Result<()>;
    /// Returns once everything on the file system of `dir` would survive a power loss.
    fn sync_all(&self, dir: &Self::Dir) -> io::Result<()>;
    /// How much room there is.
    fn space(&self, dir: &Self::Dir) -> io::Result<Space>;
}

/// The names in a directory, with what they are.
pub(crate) type DirEntries = Vec<(FileKind, OsString)>;

/// A file system that is looked at in bulk: trees of sources, and the places of a plan.
///
/// Here [`stat`](Fs::stat) and [`read_link`](Fs::read_link) also take paths of several names.
pub trait ScanFs: Fs + Default {
    /// What `stat` says about an open directory.
    fn dir_stat(&self, dir: &Self::Dir) -> io::Result<Stat>;
    /// Which directory `path` below `dir` is, whose stat data are `stat`.
    fn directory_id(&self, dir: &Self::Dir, path: &str, stat: &Stat) -> DirId;
    /// Whether times on the file system of `dir` come from this machine's clock.
    fn has_local_clock(&self, dir: &Self::Dir) -> bool;
    /// Opens the directory `path` below `dir`, or `dir` itself when it is empty, following no link; with the names in
    /// it, and what they are.
    fn entries(&self, dir: &Self::Dir, path: &str) -> io::Result<(Self::Dir, DirEntries)>;
    /// Opens the file at `path` below `dir` for reading, following no link.
    fn open_below(&self, dir: &Self::Dir, path: &str) -> io::Result<File>;
    /// Opens a file or directory for reading, following links.
    fn open_any(&self, path: &Path) -> io::Result<(Opened<Self::Dir>, Stat)>;
    /// Opens what is at `path` below `dir`, whose own path is `base`; links are followed as long as they stay below it.
    ///
    /// What leads outside is [`io::ErrorKind::CrossesDevices`].
    fn open_beneath(&self, base: &Path, dir: &Self::Dir, path: &str)
    -> io::Result<(Opened<Self::Dir>, Stat)>;
}

/// What was opened to be read.
#[derive(Debug)]
pub enum Opened<D> {
    Directory(D),
    /// A regular file.
    File(File),
    /// A socket, device or pipe.
    Special,
}

/// Writes all of `bytes`.
pub(crate) fn write_all<F: Fs>(fs: &F, file: &mut F::File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match fs.write(file, bytes)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            count => bytes = &bytes[count..],
        }
    }
    Ok(())
}

/// Makes the directory `name` unless it is there, durably, and opens it.
pub(crate) fn ensure_dir<F: Fs>(fs: &F, dir: &F::Dir, name: &RelPath, mode: Mode) -> io::Result<F::Dir> {
    match fs.open_dir(dir, name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        opened => return opened,
    }
    let parent = match name.parent() {
        Some(parent) => ensure_dir(fs, dir, &parent, mode)?,
        None => dir.clone(),
    };
    match fs.create_dir(&parent, name.name(), mode) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    fs.sync_dir(&parent)?;
    fs.open_dir(dir, name)
}

/// Opens the directory at `path`, following links.
pub(crate) fn open_path<F: Fs>(fs: &F, path: &Path) -> io::Result<F::Dir> {
    fs.open_root(&fs.canonical(path)?)
}

/// What is at `path`, with the directory it is in; links on the way are followed. Returns `None` if there is nothing.
pub(crate) fn stat_path<F: Fs>(fs: &F, path: &Path) -> io::Result<Option<(F::Dir, Stat)>> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Ok(None);
    };
    let Some(dir) = found(open_path(fs, parent))? else { return Ok(None) };
    Ok(fs.stat(&dir, name)?.map(|stat| (dir, stat)))
}

/// Treats "not there" as an answer.
pub(crate) fn found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
