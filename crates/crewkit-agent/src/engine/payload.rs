//! Compresses and stores a payload.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};

use super::Error;
use crate::store::{PayloadInfo, Store, StoreError};

/// Bytes per chunk: small enough that a commit with one of them is hardly longer than one without.
const CHUNK: usize = 256 * 1024;
/// Half the work of the default level for a tenth more bytes.
const LEVEL: u32 = 3;

/// A payload that is on disk. Its chunks are removed when this is dropped, unless a run has taken it.
pub(super) struct Upload {
    info: PayloadInfo,
    store: Store,
    is_taken: bool,
}

impl Upload {
    /// What a change names it by.
    pub(super) fn info(&self) -> PayloadInfo {
        self.info.clone()
    }

    /// Keeps the payload: a run names it.
    pub(super) fn taken(mut self) {
        self.is_taken = true;
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if !self.is_taken {
            self.store.drop_upload(Arc::clone(&self.info.upload));
        }
    }
}

/// Compresses `payload` on a thread of its own and writes it in chunks. It belongs to nobody until a change names it.
pub(super) async fn store(store: &Store, payload: String) -> Result<Upload, Error> {
    let size = payload.len() as u64;
    let compressed = tokio::task::spawn_blocking(move || compress(payload.as_bytes()));
    let (gzip, etag) = compressed.await.map_err(|_| StoreError::Closed)?;
    let upload: Arc<str> = uuid::Uuid::now_v7().simple().to_string().into();
    let info = PayloadInfo { size, gzip_size: gzip.len() as u64, etag, upload: Arc::clone(&upload) };
    // From here on: also when a chunk is refused or the caller goes away.
    let stored = Upload { info, store: store.clone(), is_taken: false };
    for (n, start) in (0_u32..).zip((0..gzip.len().max(1)).step_by(CHUNK)) {
        let chunk = gzip.slice(start..gzip.len().min(start + CHUNK));
        store.upload(Arc::clone(&upload), n, chunk).await?;
    }
    store.reader().keep(&upload, &gzip);
    Ok(stored)
}

fn compress(payload: &[u8]) -> (Bytes, Arc<str>) {
    let mut encoder = GzEncoder::new(Vec::with_capacity(payload.len() / 4 + 64), Compression::new(LEVEL));
    // Writing to memory cannot fail.
    let _ = encoder.write_all(payload);
    let gzip = encoder.finish().unwrap_or_default();
    let mut etag = String::with_capacity(32);
    for byte in Sha256::digest(&gzip).iter().take(16) {
        let _ = write!(etag, "{byte:02x}");
    }
    (gzip.into(), etag.into())
}
