//! Pauses between attempts.

use std::time::{Duration, SystemTime};

use crewkit_core::Limits;

/// How long to wait between attempts.
#[derive(Debug, Clone)]
pub(super) struct Policy {
    tries: u64,
    first: Duration,
    max: Duration,
    retry_after_max: Duration,
}

impl Policy {
    pub(super) fn of(limits: &Limits) -> Self {
        Self {
            tries: limits.llm_tries,
            first: Duration::from_millis(limits.llm_retry_millis),
            max: Duration::from_secs(limits.llm_retry_max_seconds),
            retry_after_max: Duration::from_secs(limits.llm_retry_after_max_seconds),
        }
    }

    /// Returns the pause after the `failed`-th failure in a row, or `None` if that was the last attempt.
    ///
    /// `random` is between 0 and 1 and varies the pause by up to a fifth, so that runs that failed together do not retry
    /// together. A pause requested by the server is capped, but not shortened otherwise.
    pub(super) fn pause(&self, failed: u64, retry_after: Option<Duration>, random: f64) -> Option<Duration> {
        if failed >= self.tries {
            return None;
        }
        let doublings = u32::try_from(failed.saturating_sub(1)).unwrap_or(u32::MAX).min(20);
        let pause = self
            .first
            .saturating_mul(1 << doublings)
            .min(self.max)
            .mul_f64(0.8 + 0.4 * random.clamp(0.0, 1.0));
        Some(match retry_after {
            Some(asked) => pause.max(asked.min(self.retry_after_max)),
            None => pause,
        })
    }
}

/// Reads a `Retry-After` header: seconds or a date.
pub(super) fn parse_retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    if let Ok(seconds) = value.parse::<f64>() {
        return (seconds.is_finite() && seconds >= 0.0).then(|| Duration::from_secs_f64(seconds.min(1e9)));
    }
    let date = httpdate::parse_http_date(value).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> Policy {
        Policy::of(&Limits::default())
    }

    #[test]
    fn pauses_double_up_to_the_cap_and_end() {
        let pauses: Vec<_> = (1..=5).map(|failed| policy().pause(failed, None, 0.5)).collect();
        let seconds = |s| Some(Duration::from_secs(s));
        assert_eq!(pauses, [seconds(1), seconds(2), seconds(4), seconds(8), None]);
        let patient = Policy { tries: 100, ..policy() };
        assert_eq!(patient.pause(99, None, 0.5), seconds(30));
    }

    #[test]
    fn pauses_vary_by_a_fifth() {
        assert_eq!(policy().pause(1, None, 0.0), Some(Duration::from_millis(800)));
        assert_eq!(policy().pause(1, None, 1.0), Some(Duration::from_millis(1200)));
    }

    #[test]
    fn a_pause_requested_by_the_server_is_capped() {
        let asked = |seconds| policy().pause(1, Some(Duration::from_secs(seconds)), 0.5);
        assert_eq!(asked(0), Some(Duration::from_secs(1)));
        assert_eq!(asked(17), Some(Duration::from_secs(17)));
        assert_eq!(asked(86_400), Some(Duration::from_mins(2)));
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        assert_eq!(parse_retry_after("7", now), Some(Duration::from_secs(7)));
        assert_eq!(parse_retry_after(" 0.5 ", now), Some(Duration::from_millis(500)));
        assert_eq!(parse_retry_after("Sun, 06 Nov 1994 08:49:47 GMT", now), Some(Duration::from_secs(10)));
        assert_eq!(parse_retry_after("Sun, 06 Nov 1994 08:00:00 GMT", now), Some(Duration::ZERO));
        for odd in ["", "soon", "-3", "NaN", "inf"] {
            assert_eq!(parse_retry_after(odd, now), None, "{odd}");
        }
    }
}
