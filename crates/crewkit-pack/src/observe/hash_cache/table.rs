//! The entries as they lie in the file.
//!
//! ```text
//! magic · checksum of the rest | entries: key, day and marks and length, hash or names
//! ```
//!
//! with numbers as 64-bit little-endian.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;

use super::{Entry, Held, Key, Known, MIX, Marks, Names};
use crate::fs::hash::Digest;

/// Raised when the meaning of entries or marks changes; older files are then ignored.
const MAGIC: [u8; 8] = *b"crewhc04";

/// Where in a number the day is on which the entry was used last, above the marks and the length of what follows.
const DAY_SHIFT: u32 = 48;
const MARKS_SHIFT: u32 = 32;
/// The mark of a directory.
const NAMES: u16 = 1 << 15;

/// The entries in the bytes of a file; nothing when these cannot be used.
pub(super) fn decode(bytes: &[u8]) -> Option<HashMap<Key, Entry>> {
    let (mut sum, mut body) = bytes.strip_prefix(&MAGIC)?.split_at_checked(8)?;
    if word(&mut sum)? != checksum(body) {
        return None;
    }
    // Most are files.
    let mut entries = HashMap::with_capacity(body.len() / (6 * 8 + 32));
    while !body.is_empty() {
        let mut key = Key([0; 5]);
        for part in &mut key.0 {
            *part = word(&mut body)?;
        }
        let about = word(&mut body)?;
        let (value, rest) = body.split_at_checked(usize::try_from(about & u64::from(u32::MAX)).ok()?)?;
        body = rest;
        let marks = u16::try_from(about >> MARKS_SHIFT & u64::from(u16::MAX)).ok()?;
        let held = if marks == NAMES {
            Held::Names(Names(value.into()))
        } else {
            let sha256 = Digest::from_bytes(value.try_into().ok()?);
            Held::File(Known { sha256, marks: Marks(marks) })
        };
        let day = u16::try_from(about >> DAY_SHIFT).ok();
        entries.insert(key, Entry { held, day, used: AtomicBool::new(false) });
    }
    Some(entries)
}

/// The bytes of a file with these entries, each with the day it was used last.
pub(super) fn encode(entries: &[(Key, &Held, u16)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (key, held, day) in entries {
        let (marks, value) = match held {
            Held::File(known) => (known.marks.0, known.sha256.as_bytes().as_slice()),
            Held::Names(names) => (NAMES, &*names.0),
        };
        let about = u64::from(*day) << DAY_SHIFT | u64::from(marks) << MARKS_SHIFT | value.len() as u64;
        body.extend(key.0.iter().chain([&about]).flat_map(|number| number.to_le_bytes()));
        body.extend_from_slice(value);
    }
    [&MAGIC, checksum(&body).to_le_bytes().as_slice(), &body].concat()
}

/// Takes the first number off.
fn word(bytes: &mut &[u8]) -> Option<u64> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u64::from_le_bytes(*first))
}

/// Guards against torn or rotten files, not against an enemy, who could as well change the program.
fn checksum(body: &[u8]) -> u64 {
    body.chunks(8).fold(MIX, |sum, chunk| {
        let part = chunk.iter().rev().fold(0, |part, byte| part << 8 | u64::from(*byte));
        (sum.rotate_left(5) ^ part).wrapping_mul(MIX)
    })
}
