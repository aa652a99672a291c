//! Content hashes: SHA-256, written in hexadecimal everywhere a person or a file format sees them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::Digest as _;

/// The SHA-256 of some content.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Hashes `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(sha2::Sha256::digest(bytes).into())
    }

    /// Takes a hash as it is stored in binary formats.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The hash for binary formats.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The first `count` hexadecimal digits, as used in derived names.
    pub fn short(&self, count: usize) -> String {
        let mut text = self.to_string();
        text.truncate(count);
        text
    }
}

/// The digits of a hash, without a place on the heap.
struct Digits([u8; 64]);

impl Digits {
    fn of(digest: &Digest) -> Self {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0_u8; 64];
        for (pair, byte) in text.chunks_exact_mut(2).zip(digest.0) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 15)];
        }
        Self(text)
    }

    fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Digits::of(self).as_str())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.short(12))
    }
}

/// The text is not 64 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a sha256: expected 64 hexadecimal digits")]
pub struct DigestError;

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            b'A'..=b'F' => Some(byte - b'A' + 10),
            _ => None,
        };
        let text = text.as_bytes();
        if text.len() != 64 {
            return Err(DigestError);
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
            *byte = digit(pair[0]).ok_or(DigestError)? << 4 | digit(pair[1]).ok_or(DigestError)?;
        }
        Ok(Self(bytes))
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(Digits::of(self).as_str())
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Hashes content that arrives in pieces.
#[derive(Debug, Default, Clone)]
pub struct Hasher(sha2::Sha256);

impl Hasher {
    /// Adds a piece.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The hash of all pieces.
    pub fn finish(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn text_and_bytes_are_the_same_hash() {
        let digest = Digest::of(b"abc");
        assert_eq!(digest.to_string(), ABC);
        assert_eq!(ABC.parse(), Ok(digest));
        assert_eq!(serde_json::from_str::<Digest>(&format!("\"{ABC}\"")).unwrap(), digest);
        assert_eq!(digest.short(16), ABC[..16]);
        for wrong in ["", "ba78", &ABC.replace('b', "g"), &format!("{ABC}0")] {
            assert_eq!(wrong.parse::<Digest>(), Err(DigestError), "{wrong}");
        }
    }

    #[test]
    fn pieces_hash_like_the_whole() {
        let mut hasher = Hasher::default();
        hasher.update(b"a");
        hasher.update(b"bc");
        assert_eq!(hasher.finish(), Digest::of(b"abc"));
    }
}
