//! Declarative deployment of agent assets: what a config repo says, compared with what is on disk, applied as a whole
//! or not at all.
//!
//! A command goes from the config repo ([`config`]) to the files of its modules ([`source`], [`overlay`]), the files that
//! should exist on each target (`desired`), what is there (`observe`), the difference ([`plan`]), and the transaction
//! that makes it so ([`state`]).
//!
//! Nothing here prints, reads the environment or ends the process: paths, environment values and the clock are passed
//! in, and answers are returned.

pub mod client;
pub mod commands;
pub mod config;
mod desired;
pub mod env;
pub mod envelope;
mod error;
pub mod fs;
mod observe;
pub mod overlay;
mod parallel;
pub mod plan;
pub mod source;
pub mod state;

pub use env::Env;
pub use error::PackError;
