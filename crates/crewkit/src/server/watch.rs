//! When a server ends by itself.

use std::time::Duration;

use tokio::time::Instant;

/// How often it is looked whether the server should end.
const INTERVAL: Duration = Duration::from_secs(1);

/// Replaces the length of a minute, in milliseconds, in debug builds: for tests of a server without work.
#[cfg(debug_assertions)]
pub const TEST_MINUTE: &str = "CREWKIT_TEST_MINUTE_MS";

/// Why a server ends by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Nobody has used it for the time that was set.
    Idle,
    /// Its home was moved or deleted, or belongs to somebody else.
    HomeGone,
}

/// The time a server without clients and work stays: `minutes`, where 0 means for ever.
pub fn idle_time(minutes: u64) -> Option<Duration> {
    #[cfg(debug_assertions)]
    if let Some(length) = std::env::var(TEST_MINUTE).ok().and_then(|text| text.parse().ok()) {
        return (minutes > 0).then(|| Duration::from_millis(minutes.saturating_mul(length)));
    }
    (minutes > 0).then(|| Duration::from_secs(minutes.saturating_mul(60)))
}

/// Completes when the server should end: it was idle for `idle_time`, or it no longer owns its home.
pub async fn until_end(
    idle_time: Option<Duration>,
    owns_home: impl Fn() -> bool,
    is_idle: impl Fn() -> bool,
) -> Reason {
    let mut used = Instant::now();
    let interval = idle_time.map_or(INTERVAL, |time| time.min(INTERVAL));
    loop {
        tokio::time::sleep(interval).await;
        if !owns_home() {
            return Reason::HomeGone;
        }
        if !is_idle() {
            used = Instant::now();
        }
        if idle_time.is_some_and(|time| used.elapsed() >= time) {
            return Reason::Idle;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const MINUTE: Duration = Duration::from_mins(1);

    #[tokio::test(start_paused = true)]
    async fn idle_time_counts_from_the_last_use() {
        let began = Instant::now();
        let is_idle = || began.elapsed() > MINUTE;
        assert_eq!(until_end(Some(2 * MINUTE), || true, is_idle).await, Reason::Idle);
        let lasted = began.elapsed();
        assert!(lasted >= 3 * MINUTE && lasted < 4 * MINUTE, "{lasted:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_without_a_time_stays_until_its_home_is_gone() {
        let began = Instant::now();
        let gone = AtomicBool::new(false);
        let owns_home = || {
            gone.store(began.elapsed() > 10_000 * MINUTE, Ordering::Relaxed);
            !gone.load(Ordering::Relaxed)
        };
        assert_eq!(until_end(None, owns_home, || true).await, Reason::HomeGone);
        assert_eq!(idle_time(0), None);
    }
}
