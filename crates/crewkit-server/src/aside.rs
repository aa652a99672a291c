//! Work that computes for long between two waits, kept out of everybody else's way.

use std::future::poll_fn;
use std::panic::resume_unwind;
use std::pin::pin;

use crewkit_agent::pace;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::{block_in_place, spawn_blocking};

/// Bodies beyond this take longer to read and check than another request should wait.
pub(crate) const LARGE: usize = 256 * 1024;

/// Does what a body of `bytes` bytes asks to be computed: at once, or for a large one on a thread of its own.
pub(crate) async fn compute<T: Send + 'static>(bytes: usize, work: impl FnOnce() -> T + Send + 'static) -> T {
    if bytes <= LARGE {
        return work();
    }
    match spawn_blocking(work).await {
        Ok(done) => done,
        Err(failed) => resume_unwind(failed.into_panic()),
    }
}

/// Gives back the memory of a body: many pages take their time.
pub(crate) fn discard(body: Vec<u8>) {
    if body.len() > LARGE {
        spawn_blocking(move || pace::give_back(body));
    }
}

/// Drives work that computes in places we cannot reach, set off by a body of `bytes` bytes. A large one gets a thread of its
/// own for as long as it computes; the worker's other tasks move on to the next thread.
pub(crate) async fn by_size<F: Future>(bytes: usize, work: F) -> F::Output {
    let apart = bytes > LARGE && Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread;
    let mut work = pin!(work);
    poll_fn(
        |context| {
            if apart { block_in_place(|| work.as_mut().poll(context)) } else { work.as_mut().poll(context) }
        },
    )
    .await
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
            tokio::spawn(by_size(LARGE + 1, async move { taken.recv_timeout(Duration::from_mins(1)) }));
        tokio::spawn(async move { turn.send(()) });
        large.await.unwrap().unwrap();
    }

    /// The same for work that does not wait at all.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn computing_does_not_hold_the_worker() {
        let (turn, taken) = std::sync::mpsc::channel();
        let large = tokio::spawn(compute(LARGE + 1, move || taken.recv_timeout(Duration::from_mins(1))));
        tokio::spawn(async move { turn.send(()) });
        large.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_runtime_of_one_thread_works_all_the_same() {
        assert_eq!(by_size(LARGE + 1, async { 7 }).await, 7);
        assert_eq!(compute(LARGE + 1, || 7).await, 7);
        assert_eq!(compute(LARGE, || 7).await, 7);
    }
}
