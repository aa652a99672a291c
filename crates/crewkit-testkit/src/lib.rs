//! Fakes with fault switches: a simulated Coder, a scripted model, a fake agent command line, tool servers, and a checker of histories.
//!
//! They are strict where the real thing is strict, and count what they are asked. Ships in nothing.

pub mod bins;
pub mod coder;
pub mod history;
pub mod model;
pub mod pty;
mod real_client;
pub mod tool_server;

pub use real_client::real_client;
