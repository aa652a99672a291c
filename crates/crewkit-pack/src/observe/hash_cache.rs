//! Remembers the hash of a file under what `stat` says about it, so that unchanged files are not read again.
//!
//! A remembered hash must never be wrong after an edit. Every edit sets the file's change time, which no program can
//! set back, so it is enough to remember only files whose times lie further back than the file system's clock is
//! coarse: a later edit then always gets a different time. File systems whose clock is not this machine's are not
//! remembered at all. What is lost with the cache file is time, never correctness; it is written whole and renamed
//! into place, and ignored when its checksum is wrong.
//!
//! Beside the hash an entry carries marks: facts that follow from the content alone, such as "is a valid skill".
//!
//! The names in a directory are remembered the same way: whatever adds, removes or renames one sets the directory's
//! change time.

use std::collections::HashMap;
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crewkit_core::Limits;

use crate::fs::atomic;
use crate::fs::entry::hash_file;
use crate::fs::hash::Digest;
use crate::fs::{FileKind, RealFs, Stat};

mod table;

/// Facts that follow from content alone; bits, so that one entry can carry several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Marks(u16);

impl Marks {
    /// Nothing is known.
    pub const NONE: Self = Self(0);
    /// The content is a `SKILL.md` with all a skill needs.
    pub const SKILL: Self = Self(1);
    /// The content is a command with all a command needs.
    pub const COMMAND: Self = Self(2);
    /// The content is a `SKILL.md` that every client takes as it is.
    pub const SOUND_SKILL: Self = Self(4);

    /// Whether all of `other` is known.
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Coarsest clock of a file system that stores fractions of seconds; kernels tick every 10 ms at worst.
const FINE_TICK: Duration = Duration::from_millis(100);
/// Coarsest clock of one that does not.
const COARSE_TICK: Duration = Duration::from_secs(2);

/// Fewer new entries than this are not worth a write.
const WORTH_SAVING: usize = 32;

/// What `stat` says: device, number, size and times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Key([u64; 5]);

impl Hash for Key {
    /// One number instead of five, since a command looks up tens of thousands.
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.iter().fold(0, |sum, part| (sum ^ part).wrapping_mul(MIX).rotate_left(29)));
    }
}

/// An odd number with many bits, to mix others with.
const MIX: u64 = 0x9E37_79B9_7F4A_7C15;

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
    /// What is known; it is read from the file when it is needed.
    entries: LazyLock<RwLock<Entries>, Box<dyn FnOnce() -> RwLock<Entries> + Send>>,
    /// How many days an entry that nobody uses stays.
    days: u64,
    /// Whether a device's clock can be relied on.
    devices: RwLock<HashMap<u64, bool>>,
}

/// What is known of files and directories.
#[derive(Default)]
struct Entries {
    by_key: HashMap<Key, Entry>,
    /// How much was learned since they were saved.
    unsaved: usize,
}

struct Entry {
    held: Held,
    /// The day it was used last, as far as the file knows; nothing when the file does not have it.
    day: Option<u16>,
    /// Whether it was used since.
    used: AtomicBool,
}

#[derive(Debug, Clone)]
enum Held {
    File(Known),
    Names(Names),
}

/// The names in a directory: for each its kind, the name, and a zero byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Names(Arc<[u8]>);

impl Names {
    /// The names with their kinds.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (FileKind, &str)> {
        self.0.split(|byte| *byte == 0).filter_map(|entry| {
            let (kind, name) = entry.split_first()?;
            let kind = KINDS.iter().find(|(_, letter)| letter == kind)?.0;
            Some((kind, std::str::from_utf8(name).ok()?))
        })
    }
}

impl<'a> FromIterator<(FileKind, &'a str)> for Names {
    fn from_iter<I: IntoIterator<Item = (FileKind, &'a str)>>(names: I) -> Self {
        let mut bytes = Vec::new();
        for (kind, name) in names {
            bytes.extend(KINDS.iter().find(|(known, _)| *known == kind).map(|(_, letter)| letter));
            bytes.extend_from_slice(name.as_bytes());
            bytes.push(0);
        }
        Self(bytes.into())
    }
}

const KINDS: [(FileKind, u8); 4] = [
    (FileKind::File, b'f'),
    (FileKind::Directory, b'd'),
    (FileKind::Symlink, b'l'),
    (FileKind::Special, b's'),
];

impl std::fmt::Debug for HashCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HashCache").field("file", &self.file).finish_non_exhaustive()
    }
}

impl HashCache {
    /// A cache that lives as long as the process.
    pub fn in_memory(clock: Arc<dyn Fn() -> SystemTime + Send + Sync>) -> Self {
        let entries = LazyLock::new(Box::new(RwLock::default) as Box<dyn FnOnce() -> _ + Send>);
        Self { file: None, most: usize::MAX, clock, entries, days: u64::MAX, devices: RwLock::default() }
    }

    /// A cache kept in `file`, within `limits`. A file that cannot be used counts as empty.
    ///
    /// It is read aside, while whoever opened it reads its configuration.
    pub fn open(file: PathBuf, limits: &Limits, clock: Arc<dyn Fn() -> SystemTime + Send + Sync>) -> Self {
        let most = usize::try_from(limits.pack_hash_cache_entries).unwrap_or(usize::MAX);
        let from = file.clone();
        let read = move || std::fs::read(from).ok().and_then(|bytes| table::decode(&bytes));
        let reading = std::thread::Builder::new().spawn(read);
        let entries = LazyLock::new(Box::new(move || {
            let by_key = reading.ok().and_then(|thread| thread.join().ok()).flatten().unwrap_or_default();
            RwLock::new(Entries { by_key, unsaved: 0 })
        }) as Box<dyn FnOnce() -> _ + Send>);
        Self { file: Some(file), most, entries, days: limits.pack_cache_days, ..Self::in_memory(clock) }
    }

    fn held(&self, stat: &Stat) -> Option<Held> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let entry = entries.by_key.get(&key(stat)?)?;
        entry.used.store(true, Ordering::Relaxed);
        Some(entry.held.clone())
    }

    /// What is known about a file of these stat data.
    pub fn get(&self, stat: &Stat) -> Option<Known> {
        match self.held(stat)? {
            Held::File(known) => Some(known),
            Held::Names(_) => None,
        }
    }

    /// The names in a directory of these stat data, if they are known.
    pub(crate) fn names(&self, stat: &Stat) -> Option<Names> {
        match self.held(stat)? {
            Held::Names(names) => Some(names),
            Held::File(_) => None,
        }
    }

    /// Whether every edit from now on gives a file or directory of these stat data others.
    pub(crate) fn is_settled(&self, stat: &Stat) -> bool {
        settled(stat, (self.clock)())
    }

    /// Remembers the names in a directory; its stat data must be the same before and after they were read.
    pub(crate) fn keep_names(&self, stat: &Stat, names: Names) {
        self.put(stat, Held::Names(names));
    }

    /// The hash of the open `file`, whose stat data were taken before; read only if it is not known.
    pub fn hash(&self, stat: &Stat, open: impl FnOnce() -> io::Result<File>) -> io::Result<Known> {
        if let Some(known) = self.get(stat) {
            return Ok(known);
        }
        // Taken before reading: an edit while we read then counts as later than the remembered time.
        let now = (self.clock)();
        let file = open()?;
        let known = Known { sha256: hash_file(&RealFs::default(), &file, stat.size)?, marks: Marks::NONE };
        let same = crate::fs::stat_of(&file).is_ok_and(|after| after == *stat);
        if same && settled(stat, now) && self.reliable(stat.device, || crate::fs::has_local_clock(&file)) {
            self.put(stat, Held::File(known));
        }
        Ok(known)
    }

    /// Notes a fact about a file whose hash is remembered.
    pub fn mark(&self, stat: &Stat, marks: Marks) {
        if let Some(known) = self.get(stat).filter(|known| !known.marks.has(marks)) {
            self.put(stat, Held::File(Known { marks: Marks(known.marks.0 | marks.0), ..known }));
        }
    }

    fn put(&self, stat: &Stat, held: Held) {
        if let Some(key) = key(stat) {
            let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
            entries.by_key.insert(key, Entry { held, day: None, used: AtomicBool::new(true) });
            entries.unsaved += 1;
        }
    }

    /// Whether the clock of a device can be relied on.
    pub(crate) fn reliable(&self, device: u64, has_local_clock: impl FnOnce() -> bool) -> bool {
        let seen = self.devices.read().unwrap_or_else(PoisonError::into_inner).get(&device).copied();
        seen.unwrap_or_else(|| {
            let reliable = has_local_clock();
            self.devices.write().unwrap_or_else(PoisonError::into_inner).insert(device, reliable);
            reliable
        })
    }

    /// Keeps what is new for the next process. Failing is not an error: the cache only saves time.
    pub fn save(&self) {
        let Some(file) = &self.file else { return };
        let since = (self.clock)().duration_since(UNIX_EPOCH).unwrap_or_default();
        let today = u16::try_from(since.as_secs() / (24 * 60 * 60)).unwrap_or(u16::MAX);
        let oldest = today.saturating_sub(u16::try_from(self.days).unwrap_or(u16::MAX));
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        // What is used must not look unused, so now and then the day is noted although nothing was learned.
        let middle = oldest + (today - oldest) / 2;
        let is_due = |entry: &mut Entry| *entry.used.get_mut() && entry.day.is_some_and(|day| day < middle);
        if entries.unsaved < WORTH_SAVING && !entries.by_key.values_mut().any(is_due) {
            return;
        }
        entries.unsaved = 0;
        let all_fits = entries.by_key.len() <= self.most;
        let mut kept = Vec::new();
        for (key, entry) in &mut entries.by_key {
            let is_used = *entry.used.get_mut();
            entry.day = entry.day.map(|day| if is_used { today } else { day });
            if entry.day.is_none_or(|day| all_fits && day >= oldest) {
                kept.push((*key, &entry.held, entry.day.unwrap_or(today)));
            }
        }
        let _ = atomic::write_cache(file, &table::encode(&kept));
    }
}

/// The path of the cache below a state directory.
pub(crate) fn file_in(state_dir: &Path) -> PathBuf {
    state_dir.join("crewkit/hash-cache")
}

fn key(stat: &Stat) -> Option<Key> {
    let nanos = |time: i128| i64::try_from(time).ok().map(i64::cast_unsigned);
    Some(Key([stat.device, stat.inode, stat.size, nanos(stat.modified)?, nanos(stat.changed)?]))
}

/// Whether both times lie so far back that a later edit must get different ones.
fn settled(stat: &Stat, now: SystemTime) -> bool {
    let Ok(now) = now.duration_since(UNIX_EPOCH) else { return false };
    let Ok(now) = i128::try_from(now.as_nanos()) else { return false };
    let whole_seconds = stat.changed % 1_000_000_000 == 0;
    let tick = if whole_seconds { COARSE_TICK } else { FINE_TICK };
    now - stat.changed.max(stat.modified) > i128::try_from(tick.as_nanos()).unwrap_or(i128::MAX)
}

#[cfg(test)]
mod tests;
