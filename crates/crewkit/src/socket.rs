//! The socket of a home: where its server is reached by commands of the same user.
//!
//! It stands in a directory that only its owner can enter. The kernel tells the server who is at the other end, so no token
//! is sent. The server writes down where the socket is; commands read that and never guess.

use std::path::{Path, PathBuf};

use crewkit_core::Code;
use serde_json::{Value, json};

use crate::failure::Failure;

/// Longest path the system takes for a socket, less some room.
#[cfg(unix)]
const PATH_BYTES: usize = 100;

/// Where the server of `home` has its socket.
pub fn path(home: &Path) -> PathBuf {
    home.join("run").join("server.sock")
}

fn record(home: &Path) -> PathBuf {
    home.join("run").join("server.json")
}

/// A server that is announced in its home; the record and the socket go when this does.
#[derive(Debug)]
pub struct Announced {
    home: PathBuf,
}

/// Listens on the socket of `home` and writes down that it is there.
///
/// The caller has the run store of the home locked, so a socket that is there already was left by a server that died.
#[cfg(unix)]
pub fn listen(home: &Path) -> std::io::Result<(tokio::net::UnixListener, Announced)> {
    use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
    let (path, record) = (path(home), record(home));
    let directory = home.join("run");
    std::fs::create_dir_all(home)?;
    match std::fs::DirBuilder::new().mode(0o700).create(&directory) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
        _ => std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o700))?,
    }
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let reachable = Reachable::new(&path)?;
    let listener = tokio::net::UnixListener::bind(reachable.path())?;
    let announced = Announced { home: home.to_owned() };
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    let written = json!({"pid": std::process::id(), "version": env!("CARGO_PKG_VERSION"), "socket": path});
    std::fs::write(record, format!("{written:#}\n"))?;
    Ok((listener, announced))
}

impl Drop for Announced {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(record(&self.home));
        let _ = std::fs::remove_file(path(&self.home));
    }
}

/// The socket of the server that is announced in `home`.
pub fn of_running_server(home: &Path) -> Result<PathBuf, Failure> {
    let none = |why: String| Failure::new(Code::ServerUnreachable, why);
    let written = std::fs::read(record(home))
        .map_err(|_| none(format!("No server is running for the home {}", home.display())))?;
    let written: Value = serde_json::from_slice(&written)
        .map_err(|error| none(format!("{}: {error}", record(home).display())))?;
    let socket = written["socket"].as_str().map(PathBuf::from);
    socket.ok_or_else(|| none(format!("{} names no socket", record(home).display())))
}

/// A path to a socket that the system takes. One that is too long leads through a descriptor of its directory.
#[cfg(unix)]
#[derive(Debug)]
pub struct Reachable {
    path: PathBuf,
    _directory: Option<std::fs::File>,
}

#[cfg(unix)]
impl Reachable {
    /// A way to the socket at `path`, for as long as this is kept.
    pub fn new(path: &Path) -> std::io::Result<Self> {
        use std::os::fd::AsRawFd as _;
        use std::os::unix::ffi::OsStrExt as _;
        let is_short = path.as_os_str().as_bytes().len() <= PATH_BYTES;
        let (Some(parent), Some(name), false) = (path.parent(), path.file_name(), is_short) else {
            return Ok(Self { path: path.to_owned(), _directory: None });
        };
        if !cfg!(target_os = "linux") {
            let message = format!("{} is too long for a socket; use a shorter home", path.display());
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidFilename, message));
        }
        let directory = std::fs::File::open(parent)?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name);
        Ok(Self { path, _directory: Some(directory) })
    }

    /// The path to give to the system.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
