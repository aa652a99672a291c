//! Threads that ask many apps at once.
//!
//! On HTTP/1 a list of a thousand agents with their metadata opens a thousand connections, and the last is asked when
//! one thread has opened them all. So each of a few threads opens a part of them, with a runtime and a pool of its own:
//! handing connections from thread to thread would cost more than it saves.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

/// Requests under way before lanes are used.
const FEW: usize = 32;
/// Lanes at most; the machine has other things to do.
const MOST: usize = 4;
/// What their threads are called.
const LANE: &str = "coder-lane";

/// The lanes of one client; none before there is much to ask.
#[derive(Default)]
pub(super) struct Lanes {
    under_way: AtomicUsize,
    next: AtomicUsize,
    open: OnceLock<Vec<Lane>>,
}

/// A thread that runs what is given to it. It ends when it is dropped.
struct Lane {
    runtime: Handle,
    http: reqwest::Client,
    _alive: oneshot::Sender<()>,
}

impl Lanes {
    /// Runs a request with `here`, or on a lane when many are under way.
    pub(super) async fn run<T, F>(
        &self,
        here: &reqwest::Client,
        make: impl Fn() -> Option<reqwest::Client>,
        request: impl FnOnce(reqwest::Client) -> F,
    ) -> T
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let _counted = Counted::new(&self.under_way);
        let lanes = match self.under_way.load(Ordering::Relaxed) {
            0..=FEW => &[],
            _ => self.open.get_or_init(|| Lane::start_all(make)).as_slice(),
        };
        let Some(lane) = lanes.get(self.next.fetch_add(1, Ordering::Relaxed) % lanes.len().max(1)) else {
            return request(here.clone()).await;
        };
        let task = lane.runtime.spawn(request(lane.http.clone()));
        match AbortOnDropHandle::new(task).await.map_err(tokio::task::JoinError::try_into_panic) {
            Ok(answer) => answer,
            Err(Ok(panic)) => std::panic::resume_unwind(panic),
            // Its thread is gone, which nothing here brings about; whoever waits has a deadline.
            Err(Err(_)) => std::future::pending().await,
        }
    }
}

impl Lane {
    fn start_all(make: impl Fn() -> Option<reqwest::Client>) -> Vec<Self> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        if cores < 2 {
            return Vec::new();
        }
        (0..cores.min(MOST)).map_while(|_| Self::start(make()?)).collect()
    }

    fn start(http: reqwest::Client) -> Option<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
        let handle = runtime.handle().clone();
        let (alive, closed) = oneshot::channel();
        let thread = std::thread::Builder::new().name(LANE.to_owned());
        thread.spawn(move || drop(runtime.block_on(closed))).ok()?;
        Some(Self { runtime: handle, http, _alive: alive })
    }
}

/// One request more while it lives.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;
    use futures_util::future::join_all;

    /// The name of the thread it ran on, when all of `count` requests have begun.
    async fn threads(lanes: &Lanes, count: usize) -> Vec<String> {
        let http = crewkit_agent::http_client().build().unwrap();
        let all_here = std::sync::Arc::new(tokio::sync::Barrier::new(count));
        join_all((0..count).map(|_| {
            let all_here = std::sync::Arc::clone(&all_here);
            lanes.run(
                &http,
                || Some(http.clone()),
                move |_| async move {
                    all_here.wait().await;
                    std::thread::current().name().unwrap_or_default().to_owned()
                },
            )
        }))
        .await
    }

    #[tokio::test]
    async fn few_requests_stay_and_many_are_shared_out() {
        let lanes = Lanes::default();
        let on_lanes = |names: &[String]| names.iter().filter(|name| *name == LANE).count();
        assert_eq!(on_lanes(&threads(&lanes, FEW).await), 0);
        assert!(lanes.open.get().is_none(), "threads were started for nothing");
        let many = threads(&lanes, 3 * FEW).await;
        let expected = if lanes.open.get().is_some_and(Vec::is_empty) { 0 } else { 2 * FEW };
        assert_eq!(on_lanes(&many), expected);
        assert_eq!(lanes.under_way.load(Ordering::Relaxed), 0);
        assert_eq!(on_lanes(&threads(&lanes, FEW).await), 0);
    }

    #[tokio::test]
    async fn a_request_nobody_waits_for_ends() {
        let lanes = Lanes { under_way: AtomicUsize::new(FEW), ..Lanes::default() };
        let http = crewkit_agent::http_client().build().unwrap();
        let (alive, mut ended) = oneshot::channel::<()>();
        let mut waiting = Box::pin(lanes.run(
            &http,
            || Some(http.clone()),
            |_| async move {
                std::future::pending::<()>().await;
                drop(alive);
            },
        ));
        assert!(waiting.as_mut().now_or_never().is_none());
        assert!(ended.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Empty));
        drop(waiting);
        assert!(ended.await.is_err(), "it is cancelled, not answered");
    }
}
