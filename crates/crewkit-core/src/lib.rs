//! The words and decisions that the toolsets of crewkit share.
//!
//! Nothing here does I/O, waits, or reads a clock: what changes over time is passed in. That is what keeps this
//! crate from becoming the place where everything lands.

pub mod agent;
pub mod codes;
pub mod limits;
pub mod run;
pub mod secret;
pub mod suggest;
pub mod timestamp;
pub mod toolset;
mod words;

pub use agent::{AgentName, AgentStatus, Availability};
pub use codes::Code;
pub use limits::Limits;
pub use secret::Secret;
pub use timestamp::Timestamp;
pub use toolset::Toolset;
