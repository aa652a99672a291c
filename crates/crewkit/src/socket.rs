//! The socket of a home: where its server is reached by commands of the same user.
//!
//! It stands in a directory that only its owner can enter. The kernel tells the server who is at the other end, so no token
//! is sent. The server writes down where the socket is; commands read that and never guess.

use std::path::{Path, PathBuf};

use crewkit_core::Code;

use crate::failure::Failure;
use crate::server::ServerRecord;

/// Longest path the system takes for a socket, less some room.
#[cfg(unix)]
const PATH_BYTES: usize = 100;

/// Where the server of `home` has its socket.
pub fn path(home: &Path) -> PathBuf {
    home.join("run").join("server.sock")
}

/// Listens on the socket of `home`. The path is that of the socket, and of a directory made for it if the home's path is too
/// long for one; whoever owns the home removes both.
///
/// The caller owns the home, so a socket that is there already was left by a server that died.
#[cfg(unix)]
pub fn listen(home: &Path) -> std::io::Result<(tokio::net::UnixListener, PathBuf, Option<PathBuf>)> {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = if is_too_long(&path(home)) { Some(short_directory()?) } else { None };
    let path = directory.as_ref().map_or_else(|| path(home), |directory| directory.join("server.sock"));
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let reachable = Reachable::new(&path)?;
    let listener = tokio::net::UnixListener::bind(reachable.path())?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    Ok((listener, path, directory))
}

/// Whether a socket at `path` needs another place. On Linux a long path is reached through a descriptor of its directory.
#[cfg(unix)]
fn is_too_long(path: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt as _;
    !cfg!(target_os = "linux") && path.as_os_str().as_bytes().len() > PATH_BYTES
}

/// Makes a directory with a short path that only this user can enter.
#[cfg(unix)]
fn short_directory() -> std::io::Result<PathBuf> {
    use std::os::unix::fs::DirBuilderExt as _;
    let mut bytes = [0_u8; 8];
    getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
    let name: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let directory = Path::new("/tmp").join(format!("crewkit-{name}"));
    std::fs::DirBuilder::new().mode(0o700).create(&directory)?;
    Ok(directory)
}

/// The socket of the server that is announced in `home`.
pub fn of_running_server(home: &Path) -> Result<PathBuf, Failure> {
    let none = || {
        let message = format!("No server is running for the home {}", home.display());
        Failure::new(Code::ServerUnreachable, message)
    };
    ServerRecord::read(home).and_then(|server| server.socket).ok_or_else(none)
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
        let directory = std::fs::File::open(parent)?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name);
        Ok(Self { path, _directory: Some(directory) })
    }

    /// The path to give to the system.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
