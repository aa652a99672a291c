//! The server of a home: one process that owns the home, and the way to it.
//!
//! A home has at most one server. It holds `run/server.lock` for its life and says in `run/server.json` who it is and where it
//! is reached. Commands are its clients; [`connect_or_start`] starts it in the background when nobody answers.

pub mod askers;
#[cfg(unix)]
mod checks;
#[cfg(unix)]
mod connect;
pub mod identity;
#[cfg(unix)]
pub mod launch;
pub mod lock;
pub mod log;
#[cfg(not(unix))]
mod no_socket;
pub mod own;
pub mod record;
pub mod watch;

#[cfg(unix)]
pub use connect::{Connection, connect, connect_or_start, running, stop};
pub use identity::Build;
#[cfg(not(unix))]
pub use no_socket::{Connection, connect, connect_or_start, running, stop};
pub use record::{ServerKind, ServerRecord};
