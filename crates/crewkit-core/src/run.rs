//! The life of a run: ready → running → completed or stopped; while it is running: queued → working ⇄ waiting.
//!
//! A run is one contract carried out by one driver. The first terminal move wins and nothing that arrives later
//! changes it; the loser is told the state that holds. Only an explicit wish of a person, [`Move::Resume`] or
//! [`Move::Restart`], begins a new attempt.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::words::words;

/// Identifies a run; the prefix `agent-` is part of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema)]
#[schemars(with = "String")]
pub struct RunId(Arc<str>);

impl Serialize for RunId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl RunId {
    /// What every id begins with.
    pub const PREFIX: &'static str = "agent-";
    const MAX_BYTES: usize = 64;

    /// The text of the id.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A text that cannot be a run id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an agent id; ids look like agent-0190b6a2…")]
pub struct NotARunId(pub String);

impl FromStr for RunId {
    type Err = NotARunId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let tail = text.strip_prefix(Self::PREFIX).unwrap_or_default();
        let plain = tail.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
        if tail.is_empty() || !plain || text.len() > Self::MAX_BYTES {
            return Err(NotARunId(text.chars().take(80).collect()));
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

words! {
    /// Where a run stands.
    RunStatus {
        /// Created, not yet begun.
        Ready = "ready",
        /// Begun and not ended; [`Phase`] says whether it is queued, works or waits.
        Running = "running",
        /// Ended without fulfilling the contract.
        Stopped = "stopped",
        /// Ended with the contract fulfilled.
        Completed = "completed",
    }
}

impl RunStatus {
    /// Whether nothing will happen any more by itself.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Stopped | Self::Completed)
    }
}

words! {
    /// Why a run stopped.
    StopReason {
        /// Somebody asked for it.
        Requested = "requested",
        /// The server ended while the run was at work, more often than runs are taken up again.
        ServerRestarted = "server_restarted",
        /// The server was stopped with everything that ran.
        ServerStopped = "server_stopped",
        /// The agent said the contract cannot be fulfilled.
        ContractFailed = "contract_failed",
        /// The cap on turns was reached.
        TurnLimit = "turn_limit",
        /// The cap on tokens was reached.
        TokenLimit = "token_limit",
        /// The cap on wall time was reached.
        TimeLimit = "time_limit",
        /// The same tool call was repeated without end.
        RepeatedCalls = "repeated_calls",
        /// The model kept talking without using a tool or finishing.
        PlainReplies = "plain_replies",
        /// The conversation no longer fits the model, even after compaction.
        ContextOverflow = "context_overflow",
        /// The model could not be reached or refused.
        ModelFailed = "model_failed",
        /// The driver's process failed.
        DriverFailed = "driver_failed",
        /// The state of the run could not be written.
        StoreFailed = "store_failed",
        /// The run broke by a fault of crewkit.
        Internal = "internal",
    }
}

/// What a running run does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// It waits for a free slot.
    Queued,
    /// A driver carries it out.
    Working,
    /// It holds no slot until something happens.
    Waiting(WaitsFor),
}

impl Phase {
    /// The word in answers.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Working => "working",
            Self::Waiting(_) => "waiting",
        }
    }
}

/// What a run waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WaitsFor {
    /// Other runs, some of which are named.
    Agents(Vec<String>),
    /// Secrets that the server does not have since it was started.
    Secret(Vec<MissingSecret>),
}

/// A secret that somebody has to bring.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MissingSecret {
    /// The setting, variable, header or argument it is the value of.
    pub name: String,
    /// What it is for: an address without its secrets, a driver or a tool server.
    pub of: String,
}

impl MissingSecret {
    /// Which secrets are missing and how to bring them, for people.
    pub fn explain(missing: &[Self]) -> String {
        let named = missing.iter().map(|secret| format!("`{}` of {}", secret.name, secret.of));
        let commands = missing.iter().map(|secret| format!("`crewkit config secret set '{}'`", secret.name));
        format!(
            "It waits for the secret {}, which this server does not have. Start a client that has it, or run {}",
            named.collect::<Vec<_>>().join(" and "),
            commands.collect::<Vec<_>>().join(" and "),
        )
    }
}

/// A run's state with the times of its moves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunState {
    /// Created, not yet begun.
    Ready,
    /// Begun at `started_at`.
    Running {
        /// When this attempt was asked for.
        started_at: Timestamp,
        /// What it does.
        phase: Phase,
    },
    /// Ended unfulfilled.
    Stopped {
        /// When the attempt began; absent when it was stopped before it did.
        started_at: Option<Timestamp>,
        /// When it stopped.
        stopped_at: Timestamp,
        /// Why.
        reason: StopReason,
    },
    /// Ended fulfilled.
    Completed {
        /// When the attempt began; absent when somebody completed it before it did.
        started_at: Option<Timestamp>,
        /// When it completed.
        completed_at: Timestamp,
    },
}

/// What can happen to a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Move {
    /// Somebody wants it carried out; it is queued.
    Start,
    /// It has a slot, and a driver works or goes on.
    Claim,
    /// It gives its slot back until something happens.
    Wait(WaitsFor),
    /// It is queued again, after a restart of the server or when what it waited for is there.
    Requeue,
    /// The contract is fulfilled.
    Complete,
    /// The run ends unfulfilled.
    Stop(StopReason),
    /// A person lets a stopped run go on where it was.
    Resume,
    /// A person wants the run to begin from nothing.
    Restart,
}

impl Move {
    const fn verb(&self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Claim => "claim",
            Self::Wait(_) => "suspend",
            Self::Requeue => "queue",
            Self::Complete => "complete",
            Self::Stop(_) => "stop",
            Self::Resume => "resume",
            Self::Restart => "restart",
        }
    }
}

/// What a legal move did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moved {
    /// The state changed.
    Changed,
    /// The run had already ended; its first end stands.
    AlreadyEnded,
}

/// A move the present state does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cannot {verb} an agent that is {status}")]
pub struct IllegalMove {
    /// What was wanted.
    pub verb: &'static str,
    /// Where the run stands.
    pub status: RunStatus,
}

impl RunState {
    /// The state's name.
    pub const fn status(&self) -> RunStatus {
        match self {
            Self::Ready => RunStatus::Ready,
            Self::Running { .. } => RunStatus::Running,
            Self::Stopped { .. } => RunStatus::Stopped,
            Self::Completed { .. } => RunStatus::Completed,
        }
    }

    /// When the attempt began.
    pub const fn started_at(&self) -> Option<Timestamp> {
        match self {
            Self::Ready => None,
            Self::Running { started_at, .. } => Some(*started_at),
            Self::Stopped { started_at, .. } | Self::Completed { started_at, .. } => *started_at,
        }
    }

    /// When it ended, either way.
    pub const fn ended_at(&self) -> Option<Timestamp> {
        match self {
            Self::Ready | Self::Running { .. } => None,
            Self::Stopped { stopped_at, .. } => Some(*stopped_at),
            Self::Completed { completed_at, .. } => Some(*completed_at),
        }
    }

    /// Why it stopped, if it did.
    pub const fn stop_reason(&self) -> Option<StopReason> {
        match self {
            Self::Stopped { reason, .. } => Some(*reason),
            _ => None,
        }
    }

    /// What it does, if it is running.
    pub const fn phase(&self) -> Option<&Phase> {
        match self {
            Self::Running { phase, .. } => Some(phase),
            _ => None,
        }
    }

    /// Applies a move that happens at `now`.
    pub fn apply(&mut self, wanted: &Move, now: Timestamp) -> Result<Moved, IllegalMove> {
        let started_at = self.started_at();
        *self = match (&*self, wanted) {
            (Self::Ready, Move::Start) | (Self::Stopped { .. }, Move::Resume) => {
                Self::Running { started_at: now, phase: Phase::Queued }
            }
            (Self::Running { started_at, phase: Phase::Queued | Phase::Waiting(_) }, Move::Claim) => {
                Self::Running { started_at: *started_at, phase: Phase::Working }
            }
            (Self::Running { started_at, .. }, Move::Wait(reason)) => {
                Self::Running { started_at: *started_at, phase: Phase::Waiting(reason.clone()) }
            }
            (Self::Running { started_at, phase: Phase::Working | Phase::Waiting(_) }, Move::Requeue) => {
                Self::Running { started_at: *started_at, phase: Phase::Queued }
            }
            (Self::Ready | Self::Running { .. }, Move::Complete) => {
                Self::Completed { started_at, completed_at: now }
            }
            (Self::Ready | Self::Running { .. }, Move::Stop(reason)) => {
                Self::Stopped { started_at, stopped_at: now, reason: *reason }
            }
            (Self::Stopped { .. } | Self::Completed { .. }, Move::Complete | Move::Stop(_)) => {
                return Ok(Moved::AlreadyEnded);
            }
            (Self::Ready | Self::Stopped { .. } | Self::Completed { .. }, Move::Restart) => Self::Ready,
            (from, wanted) => {
                return Err(IllegalMove { verb: wanted.verb(), status: from.status() });
            }
        };
        Ok(Moved::Changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOVES: [Move; 5] =
        [Move::Start, Move::Complete, Move::Stop(StopReason::Requested), Move::Resume, Move::Restart];

    fn running(phase: Phase) -> RunState {
        RunState::Running { started_at: at(1), phase }
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn states() -> [RunState; 4] {
        [
            RunState::Ready,
            running(Phase::Working),
            RunState::Stopped { started_at: Some(at(1)), stopped_at: at(2), reason: StopReason::TurnLimit },
            RunState::Completed { started_at: Some(at(1)), completed_at: at(2) },
        ]
    }

    #[test]
    fn the_table_of_moves() {
        let mut table = String::new();
        for from in states() {
            for wanted in MOVES {
                let mut state = from.clone();
                let to = match state.apply(&wanted, at(9)) {
                    Ok(Moved::Changed) => state.status().as_str(),
                    Ok(Moved::AlreadyEnded) => "=",
                    Err(_) => "-",
                };
                table.push_str(to);
                table.push(' ');
            }
            table.push('\n');
        }
        // Columns: start, complete, stop, resume, restart.
        assert_eq!(
            table,
            "running completed stopped - ready \n\
             - completed stopped - - \n\
             - = = running ready \n\
             - = = - ready \n"
        );
    }

    #[test]
    fn a_running_run_is_queued_works_and_waits() {
        let waits = || WaitsFor::Agents(vec!["agent-1".to_owned()]);
        let phases = [Phase::Queued, Phase::Working, Phase::Waiting(waits())];
        let moves = [Move::Claim, Move::Wait(waits()), Move::Requeue];
        let mut table = String::new();
        for from in &phases {
            for wanted in &moves {
                let mut state = running(from.clone());
                let to = match state.apply(wanted, at(9)) {
                    Ok(_) => state.phase().map_or("?", Phase::as_str),
                    Err(_) => "-",
                };
                assert_eq!(state.started_at(), Some(at(1)));
                table.push_str(to);
                table.push(' ');
            }
            table.push('\n');
        }
        // Columns: claim, wait, requeue.
        assert_eq!(table, "working waiting - \n- waiting queued \nworking waiting queued \n");
        assert!(RunState::Ready.apply(&Move::Claim, at(9)).is_err());
    }

    #[test]
    fn the_first_end_stands_with_its_time_and_reason() {
        for first in [Move::Complete, Move::Stop(StopReason::TurnLimit)] {
            for later in [Move::Complete, Move::Stop(StopReason::Requested)] {
                let mut state = running(Phase::Working);
                assert_eq!(state.apply(&first, at(2)), Ok(Moved::Changed));
                let ended = state.clone();
                assert_eq!(state.apply(&later, at(3)), Ok(Moved::AlreadyEnded));
                assert_eq!(state, ended);
            }
        }
    }

    #[test]
    fn an_illegal_move_names_what_and_where_and_changes_nothing() {
        let mut state = running(Phase::Working);
        let refused = state.apply(&Move::Start, at(5)).unwrap_err();
        assert_eq!(refused.to_string(), "cannot start an agent that is running");
        assert_eq!(state, running(Phase::Working));
    }

    #[test]
    fn ids_are_plain_words_with_the_prefix() {
        assert!("agent-0190b6a2".parse::<RunId>().is_ok());
        for bad in ["", "agent-", "bot-1", "agent-../x", "agent-a b", &format!("agent-{}", "x".repeat(80))] {
            assert!(bad.parse::<RunId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn words_read_back() {
        for reason in StopReason::ALL {
            assert_eq!(StopReason::from_word(reason.as_str()), Some(reason));
        }
        for status in RunStatus::ALL {
            assert_eq!(RunStatus::from_word(status.as_str()), Some(status));
        }
    }
}
