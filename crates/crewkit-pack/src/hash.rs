//! SHA-256 as a value: 32 bytes in memory, hex in files and answers.

use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::Digest as _;

/// A SHA-256 of some content.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sha256([u8; 32]);

impl Sha256 {
    /// The hash of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(sha2::Sha256::digest(bytes).into())
    }

    /// The hash of everything `reader` yields, and how many bytes that was; memory use does not depend on the length.
    pub fn of_reader(mut reader: impl Read, buffer: &mut [u8]) -> io::Result<(Self, u64)> {
        let mut hasher = sha2::Sha256::new();
        let mut total = 0;
        loop {
            match reader.read(buffer) {
                Ok(0) => return Ok((Self(hasher.finalize().into()), total)),
                Ok(count) => {
                    hasher.update(buffer.get(..count).unwrap_or_default());
                    total += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Wraps bytes that are a hash already.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes of the hash.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Lower-case hex, 64 characters.
    pub fn hex(&self) -> String {
        self.to_string()
    }

    /// The first `digits` characters of the hex form.
    pub fn short(&self, digits: usize) -> String {
        let mut hex = self.to_string();
        hex.truncate(digits);
        hex
    }
}

const DIGITS: &[u8; 16] = b"0123456789abcdef";

impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::with_capacity(64);
        for byte in self.0 {
            text.push(char::from(DIGITS[usize::from(byte >> 4)]));
            text.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
        f.write_str(&text)
    }
}

impl fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sha256({self})")
    }
}

/// Text that is not 64 hex digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a SHA-256 in hex")]
pub struct NotAHash(String);

impl FromStr for Sha256 {
    type Err = NotAHash;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || NotAHash(text.chars().take(80).collect());
        let mut bytes = [0; 32];
        if text.len() != 64 {
            return Err(wrong());
        }
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let digit = |at: usize| pair.get(at).and_then(|c| char::from(*c).to_digit(16)).ok_or_else(wrong);
            *byte = u8::try_from(digit(0)? * 16 + digit(1)?).map_err(|_| wrong())?;
        }
        Ok(Self(bytes))
    }
}

impl Serialize for Sha256 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Sha256 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_round_trips_and_refuses_what_is_not_hex() {
        let hash = Sha256::of(b"");
        assert_eq!(hash.hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_eq!(hash.hex().parse(), Ok(hash));
        assert_eq!(serde_json::from_str::<Sha256>(&format!("\"{hash}\"")).unwrap(), hash);
        for wrong in ["", "e3", &"g".repeat(64), &"é".repeat(32)] {
            assert!(wrong.parse::<Sha256>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_stream_hashes_like_its_bytes() {
        let bytes = vec![7_u8; 100_000];
        assert_eq!(Sha256::of_reader(&bytes[..], &mut [0; 4096]).unwrap(), (Sha256::of(&bytes), 100_000));
    }
}
