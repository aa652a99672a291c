//! Commands that run operations.

mod diff_text;
pub mod fleet;
mod fleet_text;
mod follow;
mod land_text;
pub mod row;
pub mod runs;
mod runs_text;
pub mod server;
pub mod service;
pub mod session;

use crewkit_core::Code;
use serde_json::Value;
use tokio::runtime::Runtime;

pub use session::{Owner, Session};

use crate::failure::Failure;
use crate::output;

/// The runtime of a command.
pub fn runtime() -> Result<Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.map_err(|error| Failure::new(Code::StateUnusable, error.to_string()))
}

/// Prints an answer: as it is for programs, else as `text` has it.
pub(crate) fn show(body: &Value, json: bool, text: impl FnOnce() -> String) {
    if json {
        output::data_line(&body.to_string());
    } else {
        output::coloured(&format!("{}\n", text().trim_end()));
    }
}
