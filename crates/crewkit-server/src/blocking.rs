//! Work that computes for long between two waits, kept off the threads that answer requests.

use std::panic::resume_unwind;

use tokio::task::spawn_blocking;

/// Bodies beyond this take longer to read and check than another request should wait.
const LARGE_BYTES: usize = 256 * 1024;

/// Computes what a body of `bytes` bytes asks for: at once, or for a large one on a thread for blocking work.
pub(crate) async fn by_size<T: Send + 'static>(bytes: usize, work: impl FnOnce() -> T + Send + 'static) -> T {
    if bytes <= LARGE_BYTES {
        return work();
    }
    match spawn_blocking(work).await {
        Ok(done) => done,
        Err(failed) => resume_unwind(failed.into_panic()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// On one worker, a second task gets its turn although the first one computes until it has had it.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_large_body_does_not_hold_the_worker() {
        let (turn, taken) = std::sync::mpsc::channel();
        let large =
            tokio::spawn(by_size(LARGE_BYTES + 1, move || taken.recv_timeout(Duration::from_mins(1))));
        tokio::spawn(async move { turn.send(()) });
        large.await.unwrap().unwrap();
        assert_eq!(by_size(LARGE_BYTES, || 7).await, 7);
    }
}
