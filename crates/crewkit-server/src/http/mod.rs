//! The HTTP door: guards, routes and the connections themselves.

pub mod agents;
pub mod connections;
mod context;
pub mod guard;
mod hello;
#[cfg(target_os = "linux")]
mod lineage;
pub mod openapi;
pub mod peer;
pub mod problem;
pub mod rest;
pub mod router;
#[cfg(target_os = "linux")]
mod socket_owner;

pub use connections::{Connection, Listeners, serve, serve_stream};
pub use guard::Guard;
pub use peer::{Peer, PeerPolicy};
pub use problem::{HttpProblem, read_body};
pub use router::{App, router};
