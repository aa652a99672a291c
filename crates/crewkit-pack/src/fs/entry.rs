//! What is at a place in a tree: nothing, a file or link with its content's hash, or something else.

use std::io;

use serde::{Deserialize, Serialize};

use crate::fs::hash::{Digest, Hasher};
use crate::fs::{FileKind, Fs, Stat};

/// How content appears in a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    /// An ordinary file.
    Plain,
    /// A file its owner may execute.
    Executable,
    /// A symbolic link; its content is the text of the link.
    Symlink,
}

impl EntryKind {
    /// The kind of a regular file.
    pub const fn file(executable: bool) -> Self {
        if executable { Self::Executable } else { Self::Plain }
    }
}

/// A file or link: the hash of its content, how it appears, and its permissions where they are known.
///
/// Entries are equal when content and kind are: permissions are carried along, not compared.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Entry {
    /// How it appears.
    pub kind: EntryKind,
    /// The permission bits of a file that was looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<u16>,
    /// Hash of the file's bytes or of the link's text.
    pub sha256: Digest,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        (self.sha256, self.kind) == (other.sha256, other.kind)
    }
}

impl Eq for Entry {}

impl Entry {
    /// A content whose permissions are not known.
    pub const fn new(sha256: Digest, kind: EntryKind) -> Self {
        Self { sha256, kind, mode: None }
    }

    /// The regular file of content `sha256` that `stat` is about.
    pub fn found(sha256: Digest, stat: &Stat) -> Self {
        Self { sha256, kind: EntryKind::file(stat.is_executable()), mode: Some(stat.mode) }
    }

    /// The permissions of this file when it takes the place of `old`: its own, else those of the old one with its own
    /// say about being executable. `None` leaves them to the umask.
    pub(crate) fn mode_after(self, old: Option<Self>) -> Option<u16> {
        let kept = |mode: u16| match self.kind {
            EntryKind::Executable => mode | (mode & 0o444) >> 2 | 0o100,
            EntryKind::Plain | EntryKind::Symlink => mode & !0o111,
        };
        self.mode.or_else(|| old?.mode.map(kept))
    }
}

/// What was found at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Observed {
    /// Nothing.
    Absent,
    /// A file or link.
    Entry(Entry),
    Directory,
    /// A socket, device or pipe.
    Special,
}

impl Observed {
    /// The file or link, if it is one.
    pub fn entry(self) -> Option<Entry> {
        match self {
            Self::Entry(entry) => Some(entry),
            Self::Absent | Self::Directory | Self::Special => None,
        }
    }

    /// Whether exactly `expected` is there.
    pub fn is(self, expected: Option<Entry>) -> bool {
        match expected {
            Some(entry) => self == Self::Entry(entry),
            None => self == Self::Absent,
        }
    }
}

const BUFFER_BYTES: usize = 128 * 1024;
/// No more than this is allocated before it is read.
const MOST_AHEAD: u64 = 16 << 20;

/// Looks at `name` in `dir` without following a link.
pub fn observe<F: Fs>(fs: &F, dir: &F::Dir, name: &str) -> io::Result<Observed> {
    let Some(stat) = fs.stat(dir, name)? else { return Ok(Observed::Absent) };
    match stat.kind {
        FileKind::Directory => Ok(Observed::Directory),
        FileKind::Special => Ok(Observed::Special),
        FileKind::Symlink => {
            let sha256 = Digest::of(&fs.read_link(dir, name)?);
            Ok(Observed::Entry(Entry::new(sha256, EntryKind::Symlink)))
        }
        FileKind::File => {
            let file = match fs.open(dir, name) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Observed::Absent),
                Err(error) => return Err(error),
            };
            let sha256 = hash_file(fs, &file, stat.size)?;
            Ok(Observed::Entry(Entry::found(sha256, &stat)))
        }
    }
}

/// Hashes all of `file`, whose length is about `size`.
pub fn hash_file<F: Fs>(fs: &F, file: &F::File, size: u64) -> io::Result<Digest> {
    let mut hasher = Hasher::default();
    read_pieces(fs, file, size, |piece| {
        hasher.update(piece);
        Ok(())
    })?;
    Ok(hasher.finish())
}

/// Passes all of `file`, whose length is about `size`, on in pieces.
pub(crate) fn read_pieces<F: Fs>(
    fs: &F,
    file: &F::File,
    size: u64,
    mut take: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    // One byte more than the size, so that the end of an unchanged small file is seen with the first read.
    let capacity = usize::try_from(size).unwrap_or(BUFFER_BYTES).saturating_add(1).min(BUFFER_BYTES);
    let mut buffer = vec![0; capacity];
    let mut offset = 0;
    loop {
        let count = fs.read_at(file, offset, &mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        take(&buffer[..count])?;
        offset += count as u64;
        if count < buffer.len() && offset == size {
            return Ok(());
        }
    }
}

/// All bytes of `name` in `dir`.
pub(crate) fn read_all<F: Fs>(fs: &F, dir: &F::Dir, name: &str) -> io::Result<Vec<u8>> {
    let file = fs.open(dir, name)?;
    let size = fs.stat(dir, name)?.map_or(0, |stat| stat.size);
    // What the file says about its length is only a hint; one byte more shows its end with the first read.
    let mut bytes = vec![0; usize::try_from(size.min(MOST_AHEAD)).unwrap_or(0) + 1];
    let mut length = 0;
    loop {
        length += match fs.read_at(&file, length as u64, &mut bytes[length..])? {
            0 => break,
            count => count,
        };
        if length < bytes.len() && length as u64 == size {
            break;
        }
        if length == bytes.len() {
            bytes.resize(2 * length, 0);
        }
    }
    bytes.truncate(length);
    Ok(bytes)
}
