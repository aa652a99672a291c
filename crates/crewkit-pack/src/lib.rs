//! Declarative deployment of agent assets: what a config repo says, compared with what is on disk, applied as a whole
//! or not at all.
//!
//! Nothing here prints, reads the environment or ends the process: paths, environment values and the clock are passed
//! in, and answers are returned.

pub mod blobs;
pub mod entry;
pub mod envelope;
pub mod error;
pub mod fs;
pub mod hash;
pub mod history;
pub mod home;
pub mod journal;
pub mod legacy;
pub mod managed;
pub mod path;
pub mod rollback;
pub mod snapshot;
pub mod state_lock;
pub mod transaction;

pub use error::PackError;
