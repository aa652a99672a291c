//! Why an engine did not do something, with the code a user meets.

use std::path::PathBuf;

use crewkit_core::Code;
use crewkit_core::run::{IllegalMove, RunId};

use crate::store::{FileFault, StoreError};

/// Why a wish was not fulfilled. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The contract says nothing.
    #[error("the contract is blank")]
    ContractBlank,
    /// The contract is too long.
    #[error("the contract has {bytes} bytes, at most {limit} are allowed")]
    ContractTooLong {
        /// Its length.
        bytes: usize,
        /// The limit.
        limit: u64,
    },
    /// Too many ids in one call.
    #[error("{count} ids in one call, at most {limit} are allowed")]
    TooManyIds {
        /// How many there were.
        count: usize,
        /// The limit.
        limit: u64,
    },
    /// An argument cannot be used.
    #[error("{name}: {what}")]
    Argument {
        /// Which.
        name: &'static str,
        /// What is wrong with it.
        what: String,
    },
    /// No run has the id.
    #[error("no agent has the id {0}")]
    NotFound(String),
    /// The state does not allow it.
    #[error(transparent)]
    State(IllegalMove),
    /// As many runs are queued as may be.
    #[error("{0} agents are queued, which is the limit")]
    QueueFull(u64),
    /// The payload is too large.
    #[error("the payload has {bytes} bytes, at most {limit} are allowed")]
    PayloadTooLarge {
        /// Its length.
        bytes: usize,
        /// The limit.
        limit: u64,
    },
    /// The run has no payload.
    #[error("agent {0} has no payload")]
    PayloadMissing(RunId),
    /// No driver has the name.
    #[error("no driver is called `{name}`; there are {known}")]
    UnknownDriver {
        /// The name.
        name: String,
        /// Those there are.
        known: String,
    },
    /// No model has the name.
    #[error("no model is called `{name}`; there are {known}")]
    UnknownModel {
        /// The name.
        name: String,
        /// Those there are.
        known: String,
    },
    /// The working directory cannot be used.
    #[error("working directory {}: {source}", path.display())]
    Workdir {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A setting cannot be used.
    #[error("{0}")]
    Setting(String),
    /// A secret of the run is missing, and the asker has none for the same address.
    #[error("{0}")]
    SecretMissing(String),
    /// Nothing reads what would be added to the input of the run.
    #[error("agent {0} has no process whose input is open")]
    Input(String),
    /// Events after the cursor are no longer kept.
    #[error("events after {0} are no longer kept")]
    CursorExpired(u64),
    /// The store failed.
    #[error(transparent)]
    Store(StoreError),
}

impl Error {
    /// The code in answers.
    pub fn code(&self) -> Code {
        match self {
            Self::ContractBlank | Self::ContractTooLong { .. } => Code::ContractInvalid,
            Self::TooManyIds { .. } | Self::Argument { .. } => Code::ArgumentInvalid,
            Self::NotFound(_) => Code::AgentNotFound,
            Self::State(_) | Self::Input(_) => Code::AgentStateInvalid,
            Self::QueueFull(_) => Code::AgentsBusy,
            Self::PayloadTooLarge { .. } => Code::PayloadTooLarge,
            Self::PayloadMissing(_) => Code::PayloadNotFound,
            Self::UnknownDriver { .. } | Self::UnknownModel { .. } => Code::DriverUnknown,
            Self::Workdir { .. } => Code::WorkdirInvalid,
            Self::Setting(_) => Code::SettingInvalid,
            Self::SecretMissing(_) => Code::SecretMissing,
            Self::CursorExpired(_) => Code::CursorExpired,
            Self::Store(error) => store_code(error),
        }
    }
}

fn store_code(error: &StoreError) -> Code {
    match error {
        StoreError::File(FileFault::Full { .. }) => Code::StoreFull,
        StoreError::File(FileFault::Locked { .. }) => Code::StoreLocked,
        StoreError::File(FileFault::TooNew { .. }) => Code::StoreTooNew,
        StoreError::File(FileFault::Unusable { .. }) => Code::StateUnusable,
        StoreError::File(FileFault::Sqlite { .. } | FileFault::Damaged { .. }) | StoreError::Closed => {
            Code::StoreFailed
        }
        StoreError::Unknown(_) => Code::AgentNotFound,
        StoreError::QueueFull(_) => Code::AgentsBusy,
        StoreError::Illegal(_) | StoreError::Stale => Code::AgentStateInvalid,
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unknown(id) => Self::NotFound(id.to_string()),
            StoreError::Illegal(illegal) => Self::State(illegal),
            StoreError::QueueFull(limit) => Self::QueueFull(limit),
            other => Self::Store(other),
        }
    }
}
