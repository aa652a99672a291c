//! Where the server of a home listens: written down by the server, read by the commands of the same home.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::config::{Config, Origin};

/// The file is there for as long as this is.
#[derive(Debug)]
pub struct Announced(PathBuf);

/// Writes down that the server of `home` listens at `address`. A home that cannot be written to has commands that must be
/// told the address.
pub fn announce(home: &Path, address: SocketAddr) -> Announced {
    let reachable = if address.ip().is_loopback() || address.ip().is_unspecified() {
        format!("http://localhost:{}", address.port())
    } else {
        format!("http://{address}")
    };
    let path = file(home);
    let directory = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    if let Err(error) = directory.and_then(|()| std::fs::write(&path, format!("{reachable}\n"))) {
        tracing::warn!(path = %path.display(), %error, "the server's address could not be written down");
    }
    Announced(path)
}

impl Drop for Announced {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The server a command talks to: the one it is told, else the one of this home, else the usual address.
pub fn server(config: &Config) -> String {
    let told = config.values.get("client.server").is_some_and(|server| server.origin != Origin::Default);
    let own = if told { None } else { std::fs::read_to_string(file(&config.home)).ok() };
    let usual = || config.text("client.server").unwrap_or_default().to_owned();
    own.map_or_else(usual, |own| own.trim().to_owned()).trim_end_matches('/').to_owned()
}

fn file(home: &Path) -> PathBuf {
    home.join("state").join("server")
}
