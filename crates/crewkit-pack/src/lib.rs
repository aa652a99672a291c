//! Declarative deployment of agent assets: what a config repo says, compared with what is on disk, applied as a whole
//! or not at all.
//!
//! Nothing here prints, reads the environment or ends the process: paths, environment values and the clock are passed
//! in, and answers are returned.

mod atomic;
pub mod blobs;
pub mod commands;
pub mod desired;
pub mod diff;
pub mod doctor;
pub mod entry;
pub mod env;
pub mod envelope;
pub mod error;
pub mod fs;
pub mod hash;
pub mod hash_cache;
mod heads;
pub mod history;
pub mod home;
pub mod ids;
pub mod journal;
pub mod legacy;
pub mod lockfile;
pub mod managed;
pub mod manifest;
pub mod manifest_edit;
pub mod materialize;
pub mod module;
pub mod overlay;
mod owners;
mod parallel;
pub mod path;
pub mod place;
pub mod plan;
pub mod project;
mod read;
pub mod rollback;
mod scan;
pub mod session;
pub mod snapshot;
pub mod source;
pub mod state_lock;
pub mod status;
pub mod target;
mod text;
mod text_diff;
pub mod transaction;
pub mod tree;
mod view;
mod yaml;

pub use env::Env;
pub use error::PackError;
