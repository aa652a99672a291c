//! Caps that bound every conversation.

use std::time::Duration;

use crewkit_core::Limits;
use crewkit_core::run::StopReason;

use crate::event::{ToolCall, Usage};

/// What one conversation may use; 0 means no cap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caps {
    /// Replies of the model.
    pub turns: u64,
    /// Tokens in both directions.
    pub tokens: u64,
    /// Working time; time asleep or queued does not count.
    pub time: Duration,
    /// Identical calls in a row before the model is warned.
    pub identical_warn: u64,
    /// Identical calls in a row before the run stops.
    pub identical_stop: u64,
    /// Replies in a row without a call before the run stops.
    pub plain_replies: u64,
    /// Time a request in flight has to end after the run was stopped or completed.
    pub stop_grace: Duration,
}

impl Caps {
    /// Returns the configured caps of a run.
    pub fn of(limits: &Limits) -> Self {
        Self {
            turns: limits.agent_turns,
            tokens: limits.agent_tokens,
            time: Duration::from_secs(limits.agent_wall_seconds),
            identical_warn: limits.agent_identical_calls_warn,
            identical_stop: limits.agent_identical_calls_stop,
            plain_replies: limits.agent_plain_replies,
            stop_grace: Duration::from_secs(limits.llm_stop_grace_seconds),
        }
    }
}

/// The cap that ends a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CapReached {
    pub(super) reason: StopReason,
    pub(super) message: String,
}

/// What to do after a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    GoOn,
    Warn(String),
    End(CapReached),
}

/// Counts what a conversation uses.
#[derive(Debug)]
pub(super) struct Governor {
    caps: Caps,
    turns: u64,
    tokens: u64,
    plain: u64,
    last_call: Option<(String, String)>,
    identical: u64,
}

impl Governor {
    /// Continues the token count of earlier attempts; turns start at zero.
    pub(super) fn new(caps: Caps, used: Usage) -> Self {
        Self { caps, turns: 0, tokens: used.total(), plain: 0, last_call: None, identical: 0 }
    }

    /// Checks whether one more request of about `estimate` tokens is allowed.
    pub(super) fn before_request(&self, estimate: u64, elapsed: Duration) -> Result<(), CapReached> {
        let caps = &self.caps;
        let over = |reason, message| Err(CapReached { reason, message });
        if caps.turns > 0 && self.turns >= caps.turns {
            return over(StopReason::TurnLimit, format!("the cap of {} turns is reached", caps.turns));
        }
        if caps.tokens > 0 && self.tokens.saturating_add(estimate) > caps.tokens {
            let message = format!(
                "the cap of {} tokens would be passed: {} used, about {estimate} in the next request",
                caps.tokens, self.tokens
            );
            return over(StopReason::TokenLimit, message);
        }
        if !caps.time.is_zero() && elapsed >= caps.time {
            let message = format!("the cap of {} seconds is reached", caps.time.as_secs());
            return over(StopReason::TimeLimit, message);
        }
        Ok(())
    }

    /// Counts a reply; `spent` is the usage the server reported, or an estimate.
    pub(super) fn count_reply(&mut self, spent: u64) {
        self.turns += 1;
        self.tokens = self.tokens.saturating_add(spent);
    }

    /// Counts a reply that called no tool and did not end the contract.
    pub(super) fn plain_reply(&mut self) -> Verdict {
        self.plain += 1;
        if self.caps.plain_replies > 0 && self.plain >= self.caps.plain_replies {
            let message = format!("{} replies in a row used no tool and did not finish", self.plain);
            return Verdict::End(CapReached { reason: StopReason::PlainReplies, message });
        }
        Verdict::GoOn
    }

    /// Counts the calls of a reply.
    pub(super) fn calls(&mut self, calls: &[ToolCall]) -> Verdict {
        self.plain = 0;
        let mut warn = false;
        for call in calls {
            let same = self
                .last_call
                .as_ref()
                .is_some_and(|(name, args)| *name == call.name && *args == call.arguments);
            self.identical = if same { self.identical + 1 } else { 1 };
            if !same {
                self.last_call = Some((call.name.clone(), call.arguments.clone()));
            }
            if self.caps.identical_stop > 0 && self.identical >= self.caps.identical_stop {
                let message = format!(
                    "{} was called {} times in a row with the same arguments",
                    call.name, self.identical
                );
                return Verdict::End(CapReached { reason: StopReason::RepeatedCalls, message });
            }
            warn |= self.caps.identical_warn > 0 && self.identical == self.caps.identical_warn;
        }
        if warn {
            return Verdict::Warn(format!(
                "You have made the same call {} times in a row. Its result will not change: do something else, or call \
                 agent_complete and say what is in the way.",
                self.caps.identical_warn
            ));
        }
        Verdict::GoOn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn governor(change: impl FnOnce(&mut Caps)) -> Governor {
        let mut caps = Caps::of(&Limits::default());
        change(&mut caps);
        Governor::new(caps, Usage::default())
    }

    fn call(name: &str, arguments: &str) -> ToolCall {
        ToolCall { id: "x".into(), name: name.into(), arguments: arguments.into() }
    }

    #[test]
    fn identical_calls_warn_once_then_end() {
        let mut governor = governor(|_| {});
        let same = [call("look", "{}")];
        let verdicts: Vec<_> = (0..6)
            .map(|_| match governor.calls(&same) {
                Verdict::GoOn => "go",
                Verdict::Warn(_) => "warn",
                Verdict::End(cap) => cap.reason.as_str(),
            })
            .collect();
        assert_eq!(verdicts, ["go", "go", "warn", "go", "go", "repeated_calls"]);
    }

    #[test]
    fn another_call_in_between_resets_the_count() {
        let mut governor = governor(|_| {});
        for _ in 0..20 {
            assert_eq!(governor.calls(&[call("look", "{}"), call("look", r#"{"at":1}"#)]), Verdict::GoOn);
        }
    }

    #[test]
    fn plain_replies_end_unless_a_call_comes_between() {
        let mut governor = governor(|caps| caps.plain_replies = 2);
        assert_eq!(governor.plain_reply(), Verdict::GoOn);
        governor.calls(&[call("look", "{}")]);
        assert_eq!(governor.plain_reply(), Verdict::GoOn);
        assert!(
            matches!(governor.plain_reply(), Verdict::End(cap) if cap.reason == StopReason::PlainReplies)
        );
    }

    #[test]
    fn caps_on_turns_tokens_and_time_are_checked_before_the_request() {
        let reason = |governor: &Governor, estimate, elapsed| {
            governor.before_request(estimate, Duration::from_secs(elapsed)).map_err(|cap| cap.reason)
        };
        let mut tested = governor(|caps| {
            caps.turns = 2;
            caps.tokens = 100;
            caps.time = Duration::from_secs(10);
        });
        assert_eq!(reason(&tested, 100, 9), Ok(()));
        assert_eq!(reason(&tested, 101, 0), Err(StopReason::TokenLimit));
        assert_eq!(reason(&tested, 1, 10), Err(StopReason::TimeLimit));
        tested.count_reply(60);
        assert_eq!(reason(&tested, 41, 0), Err(StopReason::TokenLimit));
        tested.count_reply(0);
        assert_eq!(reason(&tested, 0, 0), Err(StopReason::TurnLimit));
    }

    #[test]
    fn zero_means_no_cap() {
        let mut tested = governor(|caps| caps.turns = 0);
        (0..1000).for_each(|_| tested.count_reply(1_000_000));
        assert_eq!(tested.before_request(1_000_000, Duration::from_secs(1 << 30)), Ok(()));
    }
}
