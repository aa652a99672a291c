//! Declarative deployment of agent assets: what a config repo says, compared with what is on disk, applied as a whole
//! or not at all.
//!
//! Nothing here prints, reads the environment or ends the process: paths, environment values and the clock are passed
//! in, and answers are returned.

pub mod env;
pub mod envelope;
pub mod error;
pub mod hash;
pub mod ids;
pub mod manifest;
mod read;
pub mod target;
mod yaml;

pub use env::Env;
pub use error::PackError;
