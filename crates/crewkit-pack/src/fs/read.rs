//! Reading small files whole, with a bound.

use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::path::Path;

/// Why a file could not be read as what was expected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    /// The system said no.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Longer than allowed.
    #[error("longer than {limit} bytes; a `pack_…_bytes` limit in crewkit.toml can be raised")]
    TooLarge {
        /// What is allowed.
        limit: u64,
    },
    /// Not text.
    #[error("not valid UTF-8: the first wrong byte is at offset {offset}")]
    NotUtf8 {
        /// Where the text ends.
        offset: usize,
    },
}

/// The bytes of a file of at most `limit` bytes.
pub(crate) fn bytes(path: &Path, limit: u64) -> Result<Vec<u8>, ReadError> {
    let mut options = OpenOptions::new();
    options.read(true);
    // A pipe in the place of a file must not keep anybody waiting.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(
        &mut options,
        rustix::fs::OFlags::NONBLOCK.bits().cast_signed(),
    );
    let file = options.open(path)?;
    if file.metadata()?.is_file() {
        capped(file, limit)
    } else {
        Err(io::Error::other("not a regular file").into())
    }
}

/// The bytes a reader yields, at most `limit`.
pub(crate) fn capped(file: impl io::Read, limit: u64) -> Result<Vec<u8>, ReadError> {
    let mut content = Vec::new();
    file.take(limit.saturating_add(1)).read_to_end(&mut content)?;
    if content.len() as u64 > limit { Err(ReadError::TooLarge { limit }) } else { Ok(content) }
}

/// The text of a file of at most `limit` bytes.
pub(crate) fn text(path: &Path, limit: u64) -> Result<String, ReadError> {
    utf8(bytes(path, limit)?)
}

/// Bytes as text.
pub(crate) fn utf8(bytes: Vec<u8>) -> Result<String, ReadError> {
    String::from_utf8(bytes).map_err(|error| ReadError::NotUtf8 { offset: error.utf8_error().valid_up_to() })
}
