//! Compressing and storing a payload without anybody noticing.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};

use super::Error;
use crate::pace;
use crate::store::{PayloadInfo, Store, StoreError};

/// Bytes per chunk: small enough that a commit with one of them is hardly longer than one without.
const CHUNK: usize = 256 * 1024;
/// Bytes compressed between two pauses, which takes about a millisecond.
const PIECE: usize = 32 * 1024;
/// Half the work of the default level for a tenth more bytes.
const LEVEL: u32 = 3;

/// Compresses `payload` on a thread of its own and writes it in chunks. It belongs to nobody until a change names it.
pub(super) async fn store(store: &Store, payload: String) -> Result<PayloadInfo, Error> {
    let size = payload.len() as u64;
    let compressed = tokio::task::spawn_blocking(move || {
        let compressed = compress(payload.as_bytes());
        pace::give_back(payload.into_bytes());
        compressed
    });
    let (gzip, etag) = compressed.await.map_err(|_| StoreError::Closed)?;
    let upload: Arc<str> = uuid::Uuid::now_v7().simple().to_string().into();
    for (n, start) in (0_u32..).zip((0..gzip.len().max(1)).step_by(CHUNK)) {
        let chunk = gzip.slice(start..gzip.len().min(start + CHUNK));
        store.upload(Arc::clone(&upload), n, chunk).await?;
    }
    store.reader().keep(&upload, &gzip);
    Ok(PayloadInfo { size, gzip_size: gzip.len() as u64, etag, upload })
}

fn compress(payload: &[u8]) -> (Bytes, Arc<str>) {
    let mut encoder = GzEncoder::new(Vec::with_capacity(payload.len() / 4 + 64), Compression::new(LEVEL));
    for piece in payload.chunks(PIECE) {
        // Writing to memory cannot fail.
        let _ = encoder.write_all(piece);
        pause_after(piece, PIECE);
    }
    let gzip = encoder.finish().unwrap_or_default();
    let mut hash = Sha256::new();
    for chunk in gzip.chunks(CHUNK) {
        hash.update(chunk);
        pause_after(chunk, CHUNK);
    }
    let mut etag = String::with_capacity(32);
    for byte in hash.finalize().iter().take(16) {
        let _ = write!(etag, "{byte:02x}");
    }
    (gzip.into(), etag.into())
}

/// Nobody notices the last piece, and small payloads have no other.
fn pause_after(piece: &[u8], whole: usize) {
    if piece.len() == whole {
        pace::pause();
    }
}
