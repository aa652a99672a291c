//! Declarative deployment of agent assets: what a config repo says, compared with what is on disk, applied as a whole
//! or not at all.
//!
//! Nothing here prints, reads the environment or ends the process: paths, environment values and the clock are passed
//! in, and answers are returned.

pub mod entry;
pub mod env;
pub mod envelope;
pub mod error;
pub mod fs;
pub mod hash;
pub mod ids;
pub mod managed;
pub mod manifest;
pub mod path;
mod read;
pub mod target;
pub mod transaction;
mod yaml;

pub use env::Env;
pub use error::PackError;
