//! Remembers the hash of a file under what `stat` says about it, so that unchanged files are not read again.
//!
//! A remembered hash must never be wrong after an edit. Every edit sets the file's change time, which no program can
//! set back, so it is enough to remember only files whose times lie further back than the file system's clock is
//! coarse: a later edit then always gets a different time. File systems whose clock is not this machine's are not
//! remembered at all. What is lost with the cache file is time, never correctness; it is written whole and renamed
//! into place, and ignored when its checksum is wrong.
//!
//! Beside the hash an entry carries marks: facts that follow from the content alone, such as "is a valid skill".

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::atomic;
use crate::fs::Stat;
use crate::hash::{Digest, Hasher};

/// Facts that follow from content alone; bits, so that one entry can carry several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Marks(u64);

impl Marks {
    /// Nothing is known.
    pub const NONE: Self = Self(0);
    /// The content is a `SKILL.md` with all a skill needs.
    pub const SKILL: Self = Self(1);
    /// The content is a command with all a command needs.
    pub const COMMAND: Self = Self(2);

    /// Whether all of `other` is known.
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Raised when the meaning of entries or marks changes; older files are then ignored.
const MAGIC: [u8; 8] = *b"crewhc01";
const HEADER: usize = 32;
const SLOT: usize = 80;

/// Coarsest clock of a file system that stores fractions of seconds; kernels tick every 10 ms at worst.
const FINE_TICK: Duration = Duration::from_millis(100);
/// Coarsest clock of one that does not.
const COARSE_TICK: Duration = Duration::from_secs(2);

/// Fewer new entries than this are not worth a write.
const WORTH_SAVING: usize = 32;

type Key = [u64; 5];

/// A remembered file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// Hash of its content.
    pub sha256: Digest,
    /// What else is known about its content.
    pub marks: Marks,
}

/// The hashes of files seen before.
pub struct HashCache {
    /// Where it is kept between processes, if at all.
    file: Option<PathBuf>,
    most: usize,
    clock: Arc<dyn Fn() -> SystemTime + Send + Sync>,
    table: Table,
    fresh: RwLock<HashMap<Key, Known>>,
    /// Whether a device's clock can be relied on.
    devices: RwLock<HashMap<u64, bool>>,
}

impl std::fmt::Debug for HashCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HashCache").field("file", &self.file).finish_non_exhaustive()
    }
}

impl HashCache {
    /// A cache that lives as long as the process.
    pub fn in_memory(clock: Arc<dyn Fn() -> SystemTime + Send + Sync>) -> Self {
        Self {
            file: None,
            most: usize::MAX,
            clock,
            table: Table::default(),
            fresh: RwLock::default(),
            devices: RwLock::default(),
        }
    }

    /// A cache kept in `file` with at most `most` entries. A file that cannot be used counts as empty.
    pub fn open(file: PathBuf, most: u64, clock: Arc<dyn Fn() -> SystemTime + Send + Sync>) -> Self {
        let table = std::fs::read(&file).ok().and_then(Table::from_bytes).unwrap_or_default();
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        Self { file: Some(file), most, table, ..Self::in_memory(clock) }
    }

    /// What is known about a file of these stat data.
    pub fn get(&self, stat: &Stat) -> Option<Known> {
        let key = key(stat)?;
        let fresh = self.fresh.read().unwrap_or_else(PoisonError::into_inner);
        fresh.get(&key).copied().or_else(|| self.table.get(&key))
    }

    /// The hash of the open `file`, whose stat data were taken before; read only if it is not known.
    pub fn hash(&self, stat: &Stat, open: impl FnOnce() -> io::Result<File>) -> io::Result<Known> {
        if let Some(known) = self.get(stat) {
            return Ok(known);
        }
        // Taken before reading: an edit while we read then counts as later than the remembered time.
        let now = (self.clock)();
        let file = open()?;
        let known = Known { sha256: hash_stream(&file, stat.size)?, marks: Marks::NONE };
        let same = crate::scan::stat_of(&file).is_ok_and(|after| after == *stat);
        if same && settled(stat, now) && self.reliable(stat.device, &file) {
            self.put(stat, known);
        }
        Ok(known)
    }

    /// Notes a fact about a file whose hash is remembered.
    pub fn mark(&self, stat: &Stat, marks: Marks) {
        if let Some(known) = self.get(stat) {
            self.put(stat, Known { marks: Marks(known.marks.0 | marks.0), ..known });
        }
    }

    fn put(&self, stat: &Stat, known: Known) {
        if let Some(key) = key(stat) {
            self.fresh.write().unwrap_or_else(PoisonError::into_inner).insert(key, known);
        }
    }

    fn reliable(&self, device: u64, file: &File) -> bool {
        let seen = self.devices.read().unwrap_or_else(PoisonError::into_inner).get(&device).copied();
        seen.unwrap_or_else(|| {
            let reliable = crate::scan::has_local_clock(file);
            self.devices.write().unwrap_or_else(PoisonError::into_inner).insert(device, reliable);
            reliable
        })
    }

    /// Keeps what is new for the next process. Failing is not an error: the cache only saves time.
    pub fn save(&self) {
        let Some(file) = &self.file else { return };
        let fresh = self.fresh.read().unwrap_or_else(PoisonError::into_inner);
        if fresh.len() < WORTH_SAVING {
            return;
        }
        let mut entries: HashMap<Key, Known> = HashMap::new();
        if self.table.count + fresh.len() <= self.most {
            entries.extend(self.table.entries());
        }
        entries.extend(fresh.iter().map(|(key, known)| (*key, *known)));
        let _ = atomic::write_cache(file, &Table::build(&entries).bytes);
    }
}

/// The path of the cache below a state directory.
pub fn file_in(state_dir: &Path) -> PathBuf {
    state_dir.join("crewkit/hash-cache")
}

fn key(stat: &Stat) -> Option<Key> {
    let nanos = |time: i128| i64::try_from(time).ok().map(i64::cast_unsigned);
    Some([stat.device, stat.inode, stat.size, nanos(stat.modified)?, nanos(stat.changed)?])
}

/// Whether both times lie so far back that a later edit must get different ones.
fn settled(stat: &Stat, now: SystemTime) -> bool {
    let Ok(now) = now.duration_since(UNIX_EPOCH) else { return false };
    let Ok(now) = i128::try_from(now.as_nanos()) else { return false };
    let whole_seconds = stat.changed % 1_000_000_000 == 0;
    let tick = if whole_seconds { COARSE_TICK } else { FINE_TICK };
    now - stat.changed.max(stat.modified) > i128::try_from(tick.as_nanos()).unwrap_or(i128::MAX)
}

const BUFFER: usize = 64 * 1024;

fn hash_stream(mut file: &File, size: u64) -> io::Result<Digest> {
    use io::Read as _;
    let mut hasher = Hasher::default();
    let capacity = usize::try_from(size).unwrap_or(BUFFER).saturating_add(1).min(BUFFER);
    let mut buffer = vec![0; capacity];
    let mut total = 0;
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(hasher.finish()),
            Ok(count) => {
                hasher.update(&buffer[..count]);
                total += count as u64;
                // A short read at the expected end spares the read that would only say so.
                if count < buffer.len() && total == size {
                    return Ok(hasher.finish());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// The entries as they lie in the file: a hash table with open addressing, used without unpacking.
#[derive(Default)]
struct Table {
    bytes: Vec<u8>,
    /// Number of slots, a power of two.
    slots: usize,
    count: usize,
}

impl Table {
    fn from_bytes(bytes: Vec<u8>) -> Option<Self> {
        let (header, body) = bytes.split_at_checked(HEADER)?;
        let number = |at: usize| word(header, at);
        let (slots, count) = (usize::try_from(number(8)?).ok()?, usize::try_from(number(16)?).ok()?);
        let sound = header.starts_with(&MAGIC)
            && slots.is_power_of_two()
            && Some(body.len()) == slots.checked_mul(SLOT)
            && count < slots
            && number(24)? == checksum(body);
        sound.then_some(Self { bytes, slots, count })
    }

    fn build(entries: &HashMap<Key, Known>) -> Self {
        let slots = (entries.len() * 2).next_power_of_two().max(2);
        let mut body = vec![0; slots * SLOT];
        for (key, known) in entries {
            let mut at = start(key, slots);
            while body[at * SLOT..][..SLOT].iter().any(|byte| *byte != 0) {
                at = (at + 1) & (slots - 1);
            }
            let slot = &mut body[at * SLOT..][..SLOT];
            for (part, value) in slot.chunks_exact_mut(8).zip(key) {
                part.copy_from_slice(&value.to_le_bytes());
            }
            slot[40..72].copy_from_slice(known.sha256.as_bytes());
            slot[72..].copy_from_slice(&known.marks.0.to_le_bytes());
        }
        let mut bytes = MAGIC.to_vec();
        for number in [slots as u64, entries.len() as u64, checksum(&body)] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.append(&mut body);
        Self { bytes, slots, count: entries.len() }
    }

    fn slot(&self, at: usize) -> Option<(Key, Known)> {
        let slot = self.bytes.get(HEADER + at * SLOT..)?.get(..SLOT)?;
        let mut key = [0; 5];
        for (index, value) in key.iter_mut().enumerate() {
            *value = word(slot, index * 8)?;
        }
        let sha256 = Digest::from_bytes(slot[40..72].try_into().ok()?);
        (key != [0; 5]).then_some((key, Known { sha256, marks: Marks(word(slot, 72)?) }))
    }

    fn get(&self, key: &Key) -> Option<Known> {
        if self.slots == 0 {
            return None;
        }
        let mut at = start(key, self.slots);
        for _ in 0..self.slots {
            let (found, known) = self.slot(at)?;
            if found == *key {
                return Some(known);
            }
            at = (at + 1) & (self.slots - 1);
        }
        None
    }

    fn entries(&self) -> impl Iterator<Item = (Key, Known)> + '_ {
        (0..self.slots).filter_map(|at| self.slot(at))
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..)?.get(..8)?.try_into().ok()?))
}

const MIX: u64 = 0x9E37_79B9_7F4A_7C15;

#[expect(clippy::cast_possible_truncation, reason = "only the low bits are used")]
fn start(key: &Key, slots: usize) -> usize {
    let mixed = key.iter().fold(0_u64, |sum, part| (sum ^ part).wrapping_mul(MIX).rotate_left(29));
    mixed as usize & (slots - 1)
}

/// Guards against torn or rotten files, not against an enemy, who could as well change the program.
fn checksum(body: &[u8]) -> u64 {
    body.chunks_exact(8)
        .map(|chunk| word(chunk, 0).unwrap_or_default())
        .fold(MIX, |sum, part| (sum.rotate_left(5) ^ part).wrapping_mul(MIX))
}

#[cfg(test)]
mod tests;
