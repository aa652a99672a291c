//! Contents that follow from what is in memory: written when they are needed instead of being held as bytes.

use std::io;

use crate::fs::entry::{Entry, EntryKind};
use crate::fs::hash::HashingWriter;

/// A content that is written each time the same.
pub(super) struct Written<'a> {
    pub(super) entry: Entry,
    pub(super) size: u64,
    write: Box<Write<'a>>,
}

type Write<'a> = dyn Fn(&mut dyn io::Write) -> io::Result<()> + Send + Sync + 'a;

impl<'a> Written<'a> {
    /// What `write` writes; it is run once to learn hash and length.
    pub(super) fn new(
        write: impl Fn(&mut dyn io::Write) -> io::Result<()> + Send + Sync + 'a,
    ) -> io::Result<Self> {
        let mut measured = io::BufWriter::new(HashingWriter::new(io::sink()));
        write(&mut measured)?;
        let HashingWriter { hasher, bytes: size, .. } =
            measured.into_inner().map_err(io::IntoInnerError::into_error)?;
        let entry = Entry::new(hasher.finish(), EntryKind::Plain);
        Ok(Self { entry, size, write: Box::new(write) })
    }

    /// Writes it.
    pub(super) fn write(&self, out: &mut dyn io::Write) -> io::Result<()> {
        (self.write)(out)
    }
}

impl std::fmt::Debug for Written<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.entry)
    }
}
