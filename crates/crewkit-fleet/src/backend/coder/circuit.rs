//! Leaves Coder alone for a while after it stopped answering, so that waiting for it does not become everybody's wait.
//! Pure: the time is passed in.

use std::time::Duration;

use tokio::time::Instant;

/// Silences in a row after which Coder is left alone.
const PATIENCE: u32 = 3;

/// Whether Coder may be asked right now.
#[derive(Debug, Default)]
pub(super) struct Circuit {
    silences: u32,
    /// When the latest of them was noticed.
    noticed: Option<Instant>,
    closed_until: Option<Instant>,
    reason: String,
}

impl Circuit {
    /// Allows a request, or says how long none is allowed and why. The first one after a pause is the only one until
    /// it has been answered or the pause has passed again.
    pub(super) fn admit(&mut self, now: Instant, pause: Duration) -> Result<(), (Duration, String)> {
        match self.closed_until {
            Some(until) if now < until => Err((until - now, self.reason.clone())),
            Some(_) => {
                self.closed_until = Some(now + pause);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Notes that Coder answered, whatever it said.
    pub(super) fn answered(&mut self) {
        self.silences = 0;
        self.closed_until = None;
    }

    /// Notes that a request that was begun at `begun` got no answer. Those that were under way together count as one:
    /// a single moment of silence hits them all.
    pub(super) fn silent(&mut self, begun: Instant, now: Instant, pause: Duration, reason: &str) {
        if self.noticed.is_some_and(|noticed| begun < noticed) {
            return;
        }
        self.noticed = Some(now);
        self.silences = self.silences.saturating_add(1);
        if self.silences >= PATIENCE {
            self.closed_until = Some(now + pause);
            reason.clone_into(&mut self.reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_secs(10);

    #[test]
    fn three_silences_close_it_and_one_probe_per_pause_opens_it() {
        let start = Instant::now();
        let mut circuit = Circuit::default();
        for _ in 0..2 {
            circuit.silent(start, start, PAUSE, "refused");
            assert!(circuit.admit(start, PAUSE).is_ok());
        }
        circuit.silent(start, start, PAUSE, "refused");
        let (left, reason) = circuit.admit(start + Duration::from_secs(4), PAUSE).unwrap_err();
        assert_eq!((left, reason.as_str()), (Duration::from_secs(6), "refused"));

        let later = start + PAUSE;
        assert!(circuit.admit(later, PAUSE).is_ok(), "the probe");
        assert!(circuit.admit(later, PAUSE).is_err(), "nobody else while the probe is out");
        circuit.answered();
        assert!(circuit.admit(later, PAUSE).is_ok());
    }

    #[test]
    fn an_answer_in_between_starts_the_count_again() {
        let now = Instant::now();
        let mut circuit = Circuit::default();
        for _ in 0..10 {
            circuit.silent(now, now, PAUSE, "x");
            circuit.silent(now, now, PAUSE, "x");
            circuit.answered();
        }
        assert!(circuit.admit(now, PAUSE).is_ok());
    }

    #[test]
    fn requests_that_were_under_way_together_are_one_silence() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut circuit = Circuit::default();
        for attempt in 0..3 {
            assert!(circuit.admit(at(attempt), PAUSE).is_ok(), "attempt {attempt}");
            for _ in 0..5 {
                circuit.silent(at(attempt), at(attempt + 1), PAUSE, "x");
            }
        }
        assert!(circuit.admit(at(3), PAUSE).is_err());
    }
}
