//! The store of contents that snapshots share.
//!
//! Contents are kept by hash in packs, one per transaction: `packs/<id>.pack`. A transaction appends only what no
//! earlier pack has, so changing one file of fifty thousand costs one small pack. A pack is
//!
//! ```text
//! magic · contents one after another · index: (sha256, offset, length)* · index offset · count · index sha256 · magic
//! ```
//!
//! with numbers as 64-bit little-endian. Contents are copies, never links to deployed files: a file edited in place
//! must not edit history. They are verified by hash whenever they are used.

use std::collections::HashMap;
use std::io;

use crate::fs::entry::read_pieces;
use crate::fs::hash::{Digest, Hasher};
use crate::fs::{Fs, write_all};

const MAGIC: &[u8; 8] = b"ckpack1\n";
const INDEX_ENTRY_BYTES: usize = 48;
const FOOTER_BYTES: usize = 8 + 8 + 32 + 8;
/// A pack's index larger than this is not one of ours.
const MAX_INDEX_BYTES: u64 = 1 << 30;
const BUFFER_BYTES: usize = 256 * 1024;

/// The ending of a pack's name.
pub(crate) const PACK_ENDING: &str = ".pack";

/// Where a content is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Location {
    pack: usize,
    offset: u64,
    length: u64,
}

/// The contents of all packs.
#[derive(Debug)]
pub struct Blobs<F: Fs> {
    dir: Option<F::Dir>,
    packs: Vec<String>,
    index: HashMap<Digest, Location>,
    /// Packs that cannot be read, with the reason.
    pub damaged: Vec<(String, String)>,
}

impl<F: Fs> Blobs<F> {
    /// Reads the indexes of all packs in `dir`; no directory, no packs.
    pub fn open(fs: &F, dir: Option<F::Dir>) -> io::Result<Self> {
        let mut this = Self { dir, packs: Vec::new(), index: HashMap::new(), damaged: Vec::new() };
        let Some(dir) = this.dir.clone() else { return Ok(this) };
        let mut names = fs.list(&dir)?;
        names.retain(|name| name.ends_with(PACK_ENDING) && !name.starts_with('.'));
        names.sort();
        for name in names {
            match read_index(fs, &dir, &name) {
                Ok(entries) => {
                    let pack = this.packs.len();
                    for (digest, offset, length) in entries {
                        this.index.entry(digest).or_insert(Location { pack, offset, length });
                    }
                    this.packs.push(name);
                }
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    this.damaged.push((name, error.to_string()));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(this)
    }

    /// Whether the content is there.
    pub fn contains(&self, digest: &Digest) -> bool {
        self.index.contains_key(digest)
    }

    /// The length of a content.
    pub fn length(&self, digest: &Digest) -> Option<u64> {
        self.index.get(digest).map(|location| location.length)
    }

    /// The names of the packs, oldest first.
    pub fn packs(&self) -> &[String] {
        &self.packs
    }

    /// The contents whose copy in use is in `pack`.
    pub fn contents_of<'a>(&'a self, pack: &str) -> impl Iterator<Item = Digest> + use<'a, F> {
        let wanted = self.packs.iter().position(|name| name == pack);
        self.index.iter().filter(move |(_, at)| Some(at.pack) == wanted).map(|(digest, _)| *digest)
    }

    /// Passes a content on in pieces and verifies it; says whether it is there.
    ///
    /// A content that does not match its hash is [`io::ErrorKind::InvalidData`], after its pieces were passed on.
    pub fn read(
        &self,
        fs: &F,
        digest: &Digest,
        mut take: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<bool> {
        let (Some(at), Some(dir)) = (self.index.get(digest), &self.dir) else { return Ok(false) };
        let file = fs.open(dir, &self.packs[at.pack])?;
        let mut hasher = Hasher::default();
        let mut buffer = vec![0; usize::try_from(at.length).unwrap_or(BUFFER_BYTES).clamp(1, BUFFER_BYTES)];
        let mut done = 0;
        while done < at.length {
            let most = usize::try_from(at.length - done).unwrap_or(BUFFER_BYTES).min(buffer.len());
            let count = fs.read_at(&file, at.offset + done, &mut buffer[..most])?;
            if count == 0 {
                break;
            }
            hasher.update(&buffer[..count]);
            take(&buffer[..count])?;
            done += count as u64;
        }
        if hasher.finish() == *digest {
            Ok(true)
        } else {
            Err(invalid(format!("{}: content {digest} is damaged", self.packs[at.pack])))
        }
    }

    /// A whole content.
    pub fn read_to_vec(&self, fs: &F, digest: &Digest) -> io::Result<Option<Vec<u8>>> {
        let mut bytes = Vec::new();
        let there = self.read(fs, digest, |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(there.then_some(bytes))
    }
}

fn invalid(reason: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason.into())
}

fn read_index<F: Fs>(fs: &F, dir: &F::Dir, name: &str) -> io::Result<Vec<(Digest, u64, u64)>> {
    let size = fs.stat(dir, name)?.map_or(0, |stat| stat.size);
    let file = fs.open(dir, name)?;
    let footer_at = size.checked_sub(FOOTER_BYTES as u64).ok_or_else(|| invalid("too short"))?;
    let footer = read_exactly(fs, &file, footer_at, FOOTER_BYTES)?;
    let (index_at, count, index_sha256) = parse_footer(&footer).ok_or_else(|| invalid("not a pack"))?;
    let length = count.checked_mul(INDEX_ENTRY_BYTES as u64).filter(|length| *length <= MAX_INDEX_BYTES);
    let length = length.filter(|length| index_at.checked_add(*length) == Some(footer_at));
    let length =
        length.and_then(|length| usize::try_from(length).ok()).ok_or_else(|| invalid("cut short"))?;
    let index = read_exactly(fs, &file, index_at, length)?;
    if Digest::of(&index) != index_sha256 {
        return Err(invalid("its index is damaged"));
    }
    index
        .chunks_exact(INDEX_ENTRY_BYTES)
        .map(|entry| {
            let (digest, rest) = entry.split_at(32);
            let digest = Digest::from_bytes(digest.try_into().map_err(|_| invalid("index"))?);
            let offset = number(&rest[..8]);
            let length = number(&rest[8..]);
            match offset.checked_add(length) {
                Some(end) if end <= index_at => Ok((digest, offset, length)),
                _ => Err(invalid("its index points outside")),
            }
        })
        .collect()
}

fn parse_footer(footer: &[u8]) -> Option<(u64, u64, Digest)> {
    let (numbers, rest) = footer.split_at_checked(16)?;
    let (sha256, magic) = rest.split_at_checked(32)?;
    (magic == MAGIC).then_some(())?;
    Some((number(&numbers[..8]), number(&numbers[8..]), Digest::from_bytes(sha256.try_into().ok()?)))
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn read_exactly<F: Fs>(fs: &F, file: &F::File, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    let mut done = 0;
    while done < length {
        match fs.read_at(file, offset + done as u64, &mut bytes[done..])? {
            0 => return Err(invalid("cut short")),
            count => done += count,
        }
    }
    Ok(bytes)
}

/// Writes one pack.
#[derive(Debug)]
pub(crate) struct PackWriter<F: Fs> {
    file: F::File,
    buffer: Vec<u8>,
    written: u64,
    index: Vec<(Digest, u64, u64)>,
}

impl<F: Fs> PackWriter<F> {
    /// Starts a pack in an empty file.
    pub(crate) fn new(file: F::File) -> Self {
        Self { file, buffer: MAGIC.to_vec(), written: 0, index: Vec::new() }
    }

    /// Appends a content.
    pub(crate) fn add(&mut self, fs: &F, digest: Digest, bytes: &[u8]) -> io::Result<()> {
        let offset = self.begin();
        self.piece(fs, bytes)?;
        self.end(digest, offset);
        Ok(())
    }

    /// Appends all of `file`, whose length is about `size`; says what its hash is.
    pub(crate) fn add_file(&mut self, fs: &F, file: &F::File, size: u64) -> io::Result<Digest> {
        let offset = self.begin();
        let mut hasher = Hasher::default();
        read_pieces(fs, file, size, |piece| {
            hasher.update(piece);
            self.piece(fs, piece)
        })?;
        let digest = hasher.finish();
        self.end(digest, offset);
        Ok(digest)
    }

    /// Where the next content begins.
    pub(crate) fn begin(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    /// Appends a piece of a content.
    pub(crate) fn piece(&mut self, fs: &F, bytes: &[u8]) -> io::Result<()> {
        if self.buffer.len() + bytes.len() > BUFFER_BYTES {
            self.flush(fs)?;
        }
        if bytes.len() >= BUFFER_BYTES {
            write_all(fs, &mut self.file, bytes)?;
            self.written += bytes.len() as u64;
        } else {
            self.buffer.extend_from_slice(bytes);
        }
        Ok(())
    }

    /// Notes what the pieces since `offset` were.
    pub(crate) fn end(&mut self, digest: Digest, offset: u64) {
        let length = self.begin() - offset;
        self.index.push((digest, offset, length));
    }

    fn flush(&mut self, fs: &F) -> io::Result<()> {
        write_all(fs, &mut self.file, &self.buffer)?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Writes the index; the pack is complete, though not yet durable.
    pub(crate) fn finish(mut self, fs: &F) -> io::Result<F::File> {
        let index_at = self.begin();
        let mut index = Vec::with_capacity(self.index.len() * INDEX_ENTRY_BYTES + FOOTER_BYTES);
        for (digest, offset, length) in &self.index {
            index.extend_from_slice(digest.as_bytes());
            index.extend_from_slice(&offset.to_le_bytes());
            index.extend_from_slice(&length.to_le_bytes());
        }
        let sha256 = Digest::of(&index);
        index.extend_from_slice(&index_at.to_le_bytes());
        index.extend_from_slice(&(self.index.len() as u64).to_le_bytes());
        index.extend_from_slice(sha256.as_bytes());
        index.extend_from_slice(MAGIC);
        self.piece(fs, &index)?;
        self.flush(fs)?;
        Ok(self.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::{Mode, RealFs};

    fn pack(fs: &RealFs, dir: &<RealFs as Fs>::Dir, name: &str, contents: &[&[u8]]) {
        let mut writer = PackWriter::<RealFs>::new(fs.create(dir, name, Mode::Private).unwrap());
        for content in contents {
            writer.add(fs, Digest::of(content), content).unwrap();
        }
        writer.finish(fs).unwrap();
    }

    #[test]
    fn what_goes_in_comes_out_from_several_packs() {
        let temp = tempfile::tempdir().unwrap();
        let fs = RealFs::default();
        let dir = fs.open_root(temp.path()).unwrap();
        let large = vec![7; 3 * BUFFER_BYTES + 5];
        pack(&fs, &dir, "1.pack", &[b"one", b"", &large]);
        pack(&fs, &dir, "2.pack", &[b"two", b"one"]);
        let blobs = Blobs::open(&fs, Some(dir)).unwrap();
        for content in [b"one".as_slice(), b"", b"two", &large] {
            let digest = Digest::of(content);
            assert_eq!(blobs.length(&digest), Some(content.len() as u64));
            assert_eq!(blobs.read_to_vec(&fs, &digest).unwrap().unwrap(), content);
        }
        assert_eq!(blobs.read_to_vec(&fs, &Digest::of(b"three")).unwrap(), None);
        assert_eq!(blobs.contents_of("2.pack").collect::<Vec<_>>(), [Digest::of(b"two")]);
    }

    #[test]
    fn damage_is_noticed_and_stays_local() {
        let temp = tempfile::tempdir().unwrap();
        let fs = RealFs::default();
        let dir = fs.open_root(temp.path()).unwrap();
        pack(&fs, &dir, "1.pack", &[b"first content"]);
        pack(&fs, &dir, "2.pack", &[b"second content"]);
        let path = temp.path().join("1.pack");
        let whole = std::fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            std::fs::write(&path, &bytes).unwrap();
            let blobs = Blobs::open(&fs, Some(dir.clone())).unwrap();
            let read = blobs.read_to_vec(&fs, &Digest::of(b"first content"));
            assert!(at < 8 || !matches!(read, Ok(Some(_))), "byte {at} is not covered");
            assert!(blobs.read_to_vec(&fs, &Digest::of(b"second content")).unwrap().is_some());
        }
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            let blobs = Blobs::open(&fs, Some(dir.clone())).unwrap();
            assert_eq!(blobs.damaged.len(), 1, "cut at {length}");
        }
    }
}
