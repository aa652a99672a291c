//! The entries as they lie in the file: a hash table with open addressing, used without unpacking.
//!
//! ```text
//! magic · slots · entries · length of names · checksum of the rest | slots: key, hash, marks | names of directories
//! ```
//!
//! with numbers as 64-bit little-endian. The slot of a directory holds in place of a hash where its names are.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Key, Known, Marks};
use crate::fs::hash::Digest;

/// Raised when the meaning of entries or marks changes; older files are then ignored.
const MAGIC: [u8; 8] = *b"crewhc03";
const HEADER: usize = 40;
const SLOT: usize = 80;

/// The mark of a slot that is about a directory.
const NAMES: u64 = 1 << 63;
/// Where in the marks of a slot the day is on which the entry was used last.
const DAY_SHIFT: u32 = 32;

/// What a slot holds.
pub(super) enum Held<'a> {
    File(Known),
    Names(&'a [u8]),
}

#[derive(Default)]
pub(super) struct Table {
    bytes: Vec<u8>,
    slots: usize,
    count: usize,
    /// A bit for each slot that was used since the table was read.
    used: Vec<AtomicU64>,
}

/// Days since 1970, and the oldest day an entry may have been used last.
#[derive(Clone, Copy)]
pub(super) struct Days {
    pub(super) today: u16,
    pub(super) oldest: u16,
}

impl Table {
    /// What is in `file`; nothing when that cannot be used.
    pub(super) fn read(file: &Path) -> Self {
        std::fs::read(file).ok().and_then(Self::from_bytes).unwrap_or_default()
    }

    fn from_bytes(bytes: Vec<u8>) -> Option<Self> {
        let (header, body) = bytes.split_at_checked(HEADER)?;
        let number = |at: usize| word(header, at);
        let length = |at: usize| usize::try_from(number(at)?).ok();
        let (slots, count, names) = (length(8)?, length(16)?, length(24)?);
        let sound = header.starts_with(&MAGIC)
            && Some(body.len()) == slots.checked_mul(SLOT)?.checked_add(names)
            && count < slots
            && number(32)? == checksum(body);
        let used = std::iter::repeat_with(AtomicU64::default).take(slots.div_ceil(64)).collect();
        sound.then_some(Self { bytes, slots, count, used })
    }

    /// A table of `count` new entries and the `old` ones they do not replace and that were used not too long ago.
    pub(super) fn build<'a>(
        new: impl Iterator<Item = (Key, Held<'a>)>,
        count: usize,
        old: &'a Self,
        days: Days,
    ) -> Self {
        let most = old.count + count;
        let slots = most + most / 3 + 1;
        let mut table = Self { bytes: vec![0; HEADER + slots * SLOT], slots, ..Self::default() };
        let old = old.entries(days.today).filter(|(.., day)| *day >= days.oldest);
        for (key, held, day) in new.map(|(key, held)| (key, held, days.today)).chain(old) {
            table.insert(&key, &held, day);
        }
        // The checksum takes eight bytes at a time.
        table.bytes.resize(table.bytes.len().next_multiple_of(8), 0);
        let names = table.bytes.len() - HEADER - slots * SLOT;
        let numbers = [slots as u64, table.count as u64, names as u64, checksum(&table.bytes[HEADER..])];
        table.bytes[..8].copy_from_slice(&MAGIC);
        for (part, number) in table.bytes[8..HEADER].chunks_exact_mut(8).zip(numbers) {
            part.copy_from_slice(&number.to_le_bytes());
        }
        table
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Adds an entry unless there is one.
    fn insert(&mut self, key: &Key, held: &Held<'_>, day: u16) {
        let mut at = start(key, self.slots);
        while let Some(found) = self.key_at(at) {
            if found == *key {
                return;
            }
            at = (at + 1) % self.slots;
        }
        let (marks, value) = match held {
            Held::File(known) => (known.marks.0, *known.sha256.as_bytes()),
            Held::Names(names) => {
                let mut value = [0; 32];
                value[..8].copy_from_slice(&(self.bytes.len() as u64).to_le_bytes());
                value[8..16].copy_from_slice(&(names.len() as u64).to_le_bytes());
                self.bytes.extend_from_slice(names);
                (NAMES, value)
            }
        };
        let slot = &mut self.bytes[HEADER + at * SLOT..][..SLOT];
        for (part, value) in slot.chunks_exact_mut(8).zip(key) {
            part.copy_from_slice(&value.to_le_bytes());
        }
        slot[40..72].copy_from_slice(&value);
        slot[72..].copy_from_slice(&(marks | u64::from(day) << DAY_SHIFT).to_le_bytes());
        self.count += 1;
    }

    fn slot(&self, at: usize) -> Option<&[u8]> {
        self.bytes.get(HEADER + at * SLOT..)?.get(..SLOT)
    }

    /// The key in a slot; nothing when it is empty.
    fn key_at(&self, at: usize) -> Option<Key> {
        let slot = self.slot(at)?;
        let mut key = [0; 5];
        for (index, value) in key.iter_mut().enumerate() {
            *value = word(slot, index * 8)?;
        }
        (key != [0; 5]).then_some(key)
    }

    fn held_at(&self, at: usize) -> Option<Held<'_>> {
        let slot = self.slot(at)?;
        let marks = word(slot, 72)?;
        if marks & NAMES == 0 {
            let sha256 = Digest::from_bytes(slot[40..72].try_into().ok()?);
            return Some(Held::File(Known { sha256, marks: Marks(marks & u64::from(u32::MAX)) }));
        }
        let number = |at: usize| usize::try_from(word(slot, at)?).ok();
        Some(Held::Names(self.bytes.get(number(40)?..)?.get(..number(48)?)?))
    }

    fn get(&self, key: &Key) -> Option<Held<'_>> {
        if self.slots == 0 {
            return None;
        }
        let mut at = start(key, self.slots);
        for _ in 0..self.slots {
            if self.key_at(at)? == *key {
                if let Some(used) = self.used.get(at / 64) {
                    used.fetch_or(1 << (at % 64), Ordering::Relaxed);
                }
                return self.held_at(at);
            }
            at = (at + 1) % self.slots;
        }
        None
    }

    /// What is known about a file.
    pub(super) fn file(&self, key: &Key) -> Option<Known> {
        match self.get(key)? {
            Held::File(known) => Some(known),
            Held::Names(_) => None,
        }
    }

    /// The names in a directory.
    pub(super) fn names(&self, key: &Key) -> Option<&[u8]> {
        match self.get(key)? {
            Held::Names(names) => Some(names),
            Held::File(_) => None,
        }
    }

    /// The entries, and when each was used last.
    fn entries(&self, today: u16) -> impl Iterator<Item = (Key, Held<'_>, u16)> {
        (0..self.slots)
            .filter_map(move |at| Some((self.key_at(at)?, self.held_at(at)?, self.day_at(at, today)?)))
    }

    fn day_at(&self, at: usize, today: u16) -> Option<u16> {
        let used =
            self.used.get(at / 64).is_some_and(|used| used.load(Ordering::Relaxed) >> (at % 64) & 1 == 1);
        let stored = word(self.slot(at)?, 72)? >> DAY_SHIFT & u64::from(u16::MAX);
        if used { Some(today) } else { u16::try_from(stored).ok() }
    }

    /// Whether an entry that was used now was last used before `day`, as far as the file knows.
    pub(super) fn used_again_after(&self, day: u16) -> bool {
        (0..self.slots).any(|at| {
            let stored =
                self.slot(at).and_then(|slot| word(slot, 72)).map(|marks| marks >> DAY_SHIFT & 0xffff);
            let is_used = |used: &AtomicU64| used.load(Ordering::Relaxed) >> (at % 64) & 1 == 1;
            self.used.get(at / 64).is_some_and(is_used)
                && stored.is_some_and(|stored| stored < u64::from(day))
        })
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..)?.get(..8)?.try_into().ok()?))
}

const MIX: u64 = 0x9E37_79B9_7F4A_7C15;

/// Where the search for a key starts: its mixed bits as a fraction of the table.
#[expect(clippy::cast_possible_truncation, reason = "the product of a fraction and a usize is a usize")]
fn start(key: &Key, slots: usize) -> usize {
    let mixed = key.iter().fold(0_u64, |sum, part| (sum ^ part).wrapping_mul(MIX).rotate_left(29));
    ((u128::from(mixed.wrapping_mul(MIX)) * slots as u128) >> 64) as usize
}

/// Guards against torn or rotten files, not against an enemy, who could as well change the program.
fn checksum(body: &[u8]) -> u64 {
    body.chunks_exact(8)
        .map(|chunk| word(chunk, 0).unwrap_or_default())
        .fold(MIX, |sum, part| (sum.rotate_left(5) ^ part).wrapping_mul(MIX))
}
