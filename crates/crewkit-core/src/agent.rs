//! The life of a fleet agent: its statuses, and what it may be called.
//!
//! Backends derive a status from evidence; this module only knows the words.

use std::fmt;
use std::str::FromStr;

use crate::words::words;

words! {
    /// Where an agent is in its life.
    AgentStatus {
        /// The workspace waits to be provisioned.
        Pending = "pending",
        /// The workspace, or the agent in it, is starting.
        Starting = "starting",
        /// The agent works on a task.
        Busy = "busy",
        /// The agent is ready for work.
        Idle = "idle",
        /// The workspace is shutting down.
        Stopping = "stopping",
        /// The workspace is stopped.
        Stopped = "stopped",
        /// Provisioning or the agent itself failed.
        Failed = "failed",
        /// An operation on the workspace is being canceled.
        Canceling = "canceling",
        /// An operation on the workspace was canceled.
        Canceled = "canceled",
        /// The workspace is being deleted.
        Deleting = "deleting",
        /// The workspace has been deleted.
        Deleted = "deleted",
    }
}

impl AgentStatus {
    /// The status in three words: busy, idle, or neither.
    pub const fn availability(self) -> Availability {
        match self {
            Self::Busy => Availability::Busy,
            Self::Idle => Availability::Idle,
            _ => Availability::Offline,
        }
    }
}

/// A word that is no agent status.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no agent status")]
pub struct UnknownStatus(pub String);

impl FromStr for AgentStatus {
    type Err = UnknownStatus;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|status| status.as_str().eq_ignore_ascii_case(text))
            .ok_or_else(|| UnknownStatus(text.to_owned()))
    }
}

words! {
    /// Whether an agent can be talked to, and whether it is free.
    Availability {
        /// Works on a task.
        Busy = "busy",
        /// Ready for a task.
        Idle = "idle",
        /// Its workspace is not running, or nobody answers in it.
        Offline = "offline",
    }
}

impl Availability {
    /// Whether the agent can be talked to.
    pub const fn is_online(self) -> bool {
        !matches!(self, Self::Offline)
    }
}

/// Longest name an agent can be looked up by; also the longest a workspace may have on Coder.
pub const LONGEST_NAME: usize = 32;

/// Longest name for a new agent unless configured otherwise.
pub const LONGEST_NEW_NAME: usize = 20;

/// Names that would be mistaken for pages of a dashboard.
const RESERVED_NAMES: [&str; 2] = ["new", "create"];

/// A valid agent name: letters and digits in groups joined by single hyphens.
///
/// Names are unique without regard to case; the case they were given is kept.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AgentName(String);

/// What is wrong with a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Nothing was given.
    #[error("the name is empty; use 1 to {max} letters, digits and hyphens")]
    Empty {
        /// Longest allowed name.
        max: usize,
    },
    /// Longer than allowed.
    #[error("the name has {length} characters; at most {max} are allowed")]
    TooLong {
        /// Length of the given name.
        length: usize,
        /// Longest allowed name.
        max: usize,
    },
    /// A character, or a hyphen in a place, that is not allowed.
    #[error(
        "the name `{0}` is not allowed; use letters, digits and single hyphens between them, such as `docs-writer-2`"
    )]
    Characters(String),
    /// A word with another meaning.
    #[error("the name `{0}` is reserved; choose another")]
    Reserved(String),
}

impl AgentName {
    /// Checks a name for a new agent, of at most `max` characters (itself capped at [`LONGEST_NAME`]).
    pub fn new(text: &str, max: usize) -> Result<Self, NameError> {
        let max = max.clamp(1, LONGEST_NAME);
        if text.is_empty() {
            return Err(NameError::Empty { max });
        }
        let length = text.chars().count();
        if length > max {
            return Err(NameError::TooLong { length, max });
        }
        let group_is_valid =
            |group: &str| !group.is_empty() && group.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !text.split('-').all(group_is_valid) {
            return Err(NameError::Characters(text.to_owned()));
        }
        if RESERVED_NAMES.contains(&text) {
            return Err(NameError::Reserved(text.to_owned()));
        }
        Ok(Self(text.to_owned()))
    }

    /// Checks the name of an agent that is said to exist.
    pub fn lookup(text: &str) -> Result<Self, NameError> {
        Self::new(text, LONGEST_NAME)
    }

    /// The name as given.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether `other` names the same agent.
    pub fn is(&self, other: &str) -> bool {
        self.0.eq_ignore_ascii_case(other)
    }
}

impl fmt::Display for AgentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_read_back_in_any_case() {
        for status in AgentStatus::ALL {
            assert_eq!(status.as_str().parse(), Ok(status));
            assert_eq!(status.as_str().to_uppercase().parse(), Ok(status));
        }
        assert_eq!("offline".parse::<AgentStatus>(), Err(UnknownStatus("offline".to_owned())));
    }

    #[test]
    fn only_busy_and_idle_are_online() {
        let online: Vec<_> = AgentStatus::ALL.into_iter().filter(|s| s.availability().is_online()).collect();
        assert_eq!(online, [AgentStatus::Busy, AgentStatus::Idle]);
    }

    #[test]
    fn names_are_checked_like_workspace_names() {
        let good = ["a", "Sony", "papi-2", "a-b-c", "x1234567890123456789"];
        for name in good {
            assert_eq!(AgentName::new(name, LONGEST_NEW_NAME).unwrap().as_str(), name);
        }
        let bad = ["-a", "a-", "a--b", "a_b", "a b", "é", "a.b", "a/b", "..", "a\n"];
        for name in bad {
            assert_eq!(AgentName::new(name, 20), Err(NameError::Characters(name.to_owned())), "{name}");
        }
        assert_eq!(AgentName::new("", 20), Err(NameError::Empty { max: 20 }));
        assert_eq!(AgentName::new("new", 20), Err(NameError::Reserved("new".to_owned())));
        assert!(AgentName::new("New", 20).is_ok());
        let thirty_two = "a".repeat(32);
        assert_eq!(AgentName::new(&thirty_two, 20), Err(NameError::TooLong { length: 32, max: 20 }));
        assert!(AgentName::lookup(&thirty_two).is_ok());
        assert_eq!(
            AgentName::new(&"a".repeat(33), 99),
            Err(NameError::TooLong { length: 33, max: LONGEST_NAME })
        );
    }

    #[test]
    fn names_are_equal_without_regard_to_case() {
        let name = AgentName::lookup("PaPi").unwrap();
        assert!(name.is("papi") && name.is("PAPI") && !name.is("papi2"));
    }
}
