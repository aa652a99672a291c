//! The MCP door: one handler over the operation table, one front per transport.
//!
//! rmcp speaks the protocol. The fronts stand before it and settle what it leaves open: unparsable input, batches,
//! malformed parameters, duplicate ids, messages before `initialize`, and the bounds on all of these.

pub mod audience;
pub mod handler;
pub mod http;
mod in_flight;
pub mod message;
mod resources;
pub mod sessions;
pub mod stdio;

pub use handler::{McpServer, Reader, Writer};
pub use rmcp::ServerHandler;
