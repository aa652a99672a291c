//! Standard input and output for the protocol alone.
//!
//! Whatever else runs in this process, or is started by it, must neither read a client's messages nor write between
//! ours. So the real streams are moved away to private descriptors, standard input becomes empty, and standard output
//! becomes standard error.

use std::io;

use crewkit_server::mcp::{Reader, Writer};
use tokio::io::BufReader;

/// Bytes read ahead from the client.
const BUFFER: usize = 64 * 1024;

/// Takes the standard streams for the protocol. Call once, inside the runtime, before anything is started.
pub fn take() -> io::Result<(Reader, Writer)> {
    let (reader, writer) = sys::take()?;
    Ok((BufReader::with_capacity(BUFFER, reader), writer))
}

#[cfg(unix)]
mod sys {
    use std::fs::File;
    use std::io;
    use std::os::fd::{AsRawFd as _, OwnedFd};

    use tokio::io::{AsyncRead, AsyncWrite};
    use tokio::net::unix::pipe;

    pub(super) fn take() -> io::Result<(Box<dyn AsyncRead + Send + Unpin>, Box<dyn AsyncWrite + Send + Unpin>)>
    {
        let input = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
        let output = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
        let nothing = File::open("/dev/null")?;
        rustix::stdio::dup2_stdin(&nothing)?;
        rustix::stdio::dup2_stdout(rustix::stdio::stderr())?;
        Ok((reader(input), writer(output)))
    }

    /// A pipe is read by the event loop, through a description of its own so that the client's end keeps its flags;
    /// anything else by a thread.
    fn reader(fd: OwnedFd) -> Box<dyn AsyncRead + Send + Unpin> {
        match pipe::OpenOptions::new().open_receiver(own_path(&fd)) {
            Ok(pipe) => Box::new(pipe),
            Err(_) => Box::new(tokio::fs::File::from_std(File::from(fd))),
        }
    }

    fn writer(fd: OwnedFd) -> Box<dyn AsyncWrite + Send + Unpin> {
        match pipe::OpenOptions::new().open_sender(own_path(&fd)) {
            Ok(pipe) => Box::new(pipe),
            Err(_) => Box::new(tokio::fs::File::from_std(File::from(fd))),
        }
    }

    fn own_path(fd: &OwnedFd) -> String {
        format!("/proc/self/fd/{}", fd.as_raw_fd())
    }
}

#[cfg(not(unix))]
mod sys {
    use std::io;

    use tokio::io::{AsyncRead, AsyncWrite};

    /// Without descriptors to move, the streams are used as they are.
    pub(super) fn take() -> io::Result<(Box<dyn AsyncRead + Send + Unpin>, Box<dyn AsyncWrite + Send + Unpin>)>
    {
        Ok((Box::new(tokio::io::stdin()), Box::new(tokio::io::stdout())))
    }
}
