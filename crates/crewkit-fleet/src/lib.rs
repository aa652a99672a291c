//! Named agents with a role, working in workspaces of a project: one service over several backends.
//!
//! The service validates, filters, pages and words the answers; a [`backend::Backend`] reports facts and carries out
//! orders. Nothing here prints, reads the environment, or ends the process: settings and the clock are passed in.

pub mod any;
pub mod backend;
pub mod changes;
pub mod conversation;
pub mod equip;
pub mod error;
pub mod filter;
pub mod history;
pub mod kit;
pub mod landing;
pub mod metadata;
pub mod model;
pub mod service;
mod sys;
pub mod time;

pub use any::{AnyFleet, LOCAL};
pub use error::{ErrorKind, FleetError};
pub use service::{Fleet, FleetOptions, MetadataStyle};
