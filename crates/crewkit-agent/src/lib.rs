//! Agents with a text contract.
//!
//! A *run* is a contract and a driver. The built-in driver asks a model, runs the tools it wants and checks whether
//! the contract is fulfilled; the process driver supervises a coding agent's command line. Every change of a run is
//! on disk before anybody is told about it.
//!
//! This crate never prints, never reads the environment and never exits: paths, keys, the clock and the environment of
//! child processes are passed in through [`Options`].

pub mod contract;
pub mod driver;
pub mod engine;
pub mod event;
#[cfg(target_os = "linux")]
mod held;
#[cfg(not(target_os = "linux"))]
#[path = "held/none.rs"]
mod held;
mod http_client;
mod lines;
pub mod model;
mod settings;
mod store;
mod sync;
mod sys;
pub mod tools;

pub use engine::{Engine, Error, Options};
pub use event::{Event, EventBody, ToolCall, Usage};
pub use http_client::http_client;
pub use settings::{RecordedSettings, RunSettings, is_secret};
pub use store::{
    Clock, DocumentChange, Documents, EventPage, FileFault, LoggedEvent, NewEvent, PayloadInfo, Pool,
    RunRecord, RunSpec, StoreError, StoreLock,
};
pub use sys::{MARK_RUN, close_inherited, confine, kill_marked, supervisor};
