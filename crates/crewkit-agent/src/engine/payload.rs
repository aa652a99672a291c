//! Compressing and storing a payload without anybody noticing.

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
/// Payloads beyond this keep a core busy for long enough to be noticed.
const LARGE: usize = 1 << 20;
/// Half the work of the default level for a tenth more bytes.
const LEVEL: u32 = 3;

/// Compresses `payload` on a thread of its own, behind everybody else's work, and writes it in chunks. It belongs to nobody until a change names it.
pub(super) async fn store(store: &Store, payload: String) -> Result<PayloadInfo, Error> {
    let size = payload.len() as u64;
    let compressed = tokio::task::spawn_blocking(move || {
        if payload.len() > LARGE { compress_behind(payload.as_bytes()) } else { compress(payload.as_bytes()) }
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

/// Compresses on a thread that lets everybody else go first. It is a thread of its own, since one that has given way cannot
/// take its place back.
fn compress_behind(payload: &[u8]) -> (Bytes, Arc<str>) {
    std::thread::scope(|scope| {
        let thread =
            std::thread::Builder::new().name("crewkit-payload".to_owned()).spawn_scoped(scope, || {
                crate::sys::give_way();
                compress(payload)
            });
        match thread.map(std::thread::ScopedJoinHandle::join) {
            Ok(Ok(compressed)) => compressed,
            _ => compress(payload),
        }
    })
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
