//! Declarative deployment of agent assets.

pub mod entry;
pub mod fs;
pub mod hash;
pub mod managed;
pub mod path;
pub mod transaction;
