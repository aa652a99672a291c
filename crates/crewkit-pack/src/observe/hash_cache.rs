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
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crewkit_core::Limits;

use crate::fs::atomic;
use crate::fs::entry::hash_file;
use crate::fs::hash::Digest;
use crate::fs::{FileKind, RealFs, Stat};

mod table;

use table::{Days, Held, Table};

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
    /// What the file holds, once it is needed.
    table: OnceLock<Table>,
    /// Reads the file meanwhile.
    reading: Mutex<Option<JoinHandle<Table>>>,
    fresh: RwLock<HashMap<Key, Fresh>>,
    /// Whether there is anything in `fresh`: mostly not, and then threads need not meet at its lock.
    has_fresh: AtomicBool,
    /// How much was learned since the cache was saved.
    unsaved: AtomicUsize,
    /// How many days an entry that nobody uses stays.
    days: u64,
    /// Whether a device's clock can be relied on.
    devices: RwLock<HashMap<u64, bool>>,
}

/// Something learned by this process.
#[derive(Debug, Clone)]
enum Fresh {
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
        Self {
            file: None,
            most: usize::MAX,
            clock,
            table: OnceLock::new(),
            reading: Mutex::default(),
            fresh: RwLock::default(),
            has_fresh: AtomicBool::new(false),
            unsaved: AtomicUsize::new(0),
            days: u64::MAX,
            devices: RwLock::default(),
        }
    }

    /// A cache kept in `file`, within `limits`. A file that cannot be used counts as empty.
    ///
    /// It is read aside, while whoever opened it reads its configuration.
    pub fn open(file: PathBuf, limits: &Limits, clock: Arc<dyn Fn() -> SystemTime + Send + Sync>) -> Self {
        let most = usize::try_from(limits.pack_hash_cache_entries).unwrap_or(usize::MAX);
        let from = file.clone();
        let reading = std::thread::Builder::new().spawn(move || Table::read(&from)).ok();
        let (reading, days) = (Mutex::new(reading), limits.pack_cache_days);
        Self { file: Some(file), most, reading, days, ..Self::in_memory(clock) }
    }

    fn table(&self) -> &Table {
        self.table.get_or_init(|| {
            let reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner).take();
            reading.and_then(|thread| thread.join().ok()).unwrap_or_default()
        })
    }

    fn fresh(&self, key: &Key) -> Option<Fresh> {
        if !self.has_fresh.load(Ordering::Acquire) {
            return None;
        }
        self.fresh.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    /// What is known about a file of these stat data.
    pub fn get(&self, stat: &Stat) -> Option<Known> {
        let key = key(stat)?;
        match self.fresh(&key) {
            Some(Fresh::File(known)) => Some(known),
            Some(Fresh::Names(_)) => None,
            None => self.table().file(&key),
        }
    }

    /// The names in a directory of these stat data, if they are known.
    pub(crate) fn names(&self, stat: &Stat) -> Option<Names> {
        let key = key(stat)?;
        match self.fresh(&key) {
            Some(Fresh::Names(names)) => Some(names),
            Some(Fresh::File(_)) => None,
            None => self.table().names(&key).map(|names| Names(names.into())),
        }
    }

    /// Whether the content of a file or directory of these stat data may be remembered, if it is read from now on.
    pub(crate) fn may_keep(&self, stat: &Stat, has_local_clock: impl FnOnce() -> bool) -> bool {
        settled(stat, (self.clock)()) && self.reliable(stat.device, has_local_clock)
    }

    /// Remembers the names in a directory; its stat data must be the same before and after they were read.
    pub(crate) fn keep_names(&self, stat: &Stat, names: Names) {
        self.put(stat, Fresh::Names(names));
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
            self.put(stat, Fresh::File(known));
        }
        Ok(known)
    }

    /// Notes a fact about a file whose hash is remembered.
    pub fn mark(&self, stat: &Stat, marks: Marks) {
        if let Some(known) = self.get(stat).filter(|known| !known.marks.has(marks)) {
            self.put(stat, Fresh::File(Known { marks: Marks(known.marks.0 | marks.0), ..known }));
        }
    }

    fn put(&self, stat: &Stat, learned: Fresh) {
        if let Some(key) = key(stat) {
            self.fresh.write().unwrap_or_else(PoisonError::into_inner).insert(key, learned);
            self.has_fresh.store(true, Ordering::Release);
            self.unsaved.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn reliable(&self, device: u64, has_local_clock: impl FnOnce() -> bool) -> bool {
        let seen = self.devices.read().unwrap_or_else(PoisonError::into_inner).get(&device).copied();
        seen.unwrap_or_else(|| {
            let reliable = has_local_clock();
            self.devices.write().unwrap_or_else(PoisonError::into_inner).insert(device, reliable);
            reliable
        })
    }

    fn days(&self) -> Days {
        let since = (self.clock)().duration_since(UNIX_EPOCH).unwrap_or_default();
        let today = u16::try_from(since.as_secs() / (24 * 60 * 60)).unwrap_or(u16::MAX);
        Days { today, oldest: today.saturating_sub(u16::try_from(self.days).unwrap_or(u16::MAX)) }
    }

    /// Keeps what is new for the next process. Failing is not an error: the cache only saves time.
    pub fn save(&self) {
        let Some(file) = &self.file else { return };
        let days = self.days();
        // What is used must not look unused, so now and then the day is noted although nothing was learned.
        let is_worth_it = self.unsaved.load(Ordering::Relaxed) >= WORTH_SAVING
            || self.table().used_again_after(days.oldest + (days.today - days.oldest) / 2);
        if !is_worth_it {
            return;
        }
        self.unsaved.store(0, Ordering::Relaxed);
        let fresh = self.fresh.read().unwrap_or_else(PoisonError::into_inner);
        let nothing = Table::default();
        let all_fits = self.table().len() + fresh.len() <= self.most;
        let old = if all_fits { self.table() } else { &nothing };
        let held = |learned| match learned {
            &Fresh::File(known) => Held::File(known),
            Fresh::Names(names) => Held::Names(&names.0),
        };
        let learned = fresh.iter().map(|(key, learned)| (*key, held(learned)));
        let table = Table::build(learned, fresh.len(), old, days);
        let _ = atomic::write_cache(file, table.as_bytes());
    }
}

/// The path of the cache below a state directory.
pub(crate) fn file_in(state_dir: &Path) -> PathBuf {
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

#[cfg(test)]
mod tests;
