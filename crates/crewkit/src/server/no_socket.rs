//! Without Unix sockets there is no server to connect to: every command works in its own process.

use std::path::Path;

use crewkit_core::Code;
use reqwest::{Method, RequestBuilder};

use super::record::ServerRecord;
use crate::config::Config;
use crate::failure::Failure;

/// A connection to the server of a home, of which there is none here.
#[derive(Debug)]
pub enum Connection {}

impl Connection {
    /// The server at the other end.
    pub const fn server(&self) -> &ServerRecord {
        match *self {}
    }

    /// A request to `path`.
    pub fn request(&self, _: Method, _: &str) -> RequestBuilder {
        match *self {}
    }
}

/// Returns `None`.
pub async fn connect(_: &Config) -> Result<Option<Connection>, Failure> {
    std::future::ready(Ok(None)).await
}

/// Fails.
pub async fn connect_or_start(_: &Config) -> Result<Connection, Failure> {
    let message = "This system has no Unix sockets";
    std::future::ready(Err(Failure::new(Code::ServerNotStarted, message))).await
}

/// The command that owns the home, if there is one.
pub async fn running(home: &Path) -> Result<Option<ServerRecord>, Failure> {
    std::future::ready(Ok(ServerRecord::read(home).filter(ServerRecord::is_alive))).await
}

/// Does nothing.
pub async fn stop(_: &Config) -> Result<(), Failure> {
    std::future::ready(Ok(())).await
}
