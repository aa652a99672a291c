//! Reading files that an agent may have made: below its directory, regular, and of bounded size.

use std::io;
use std::path::Path;

/// Reads the regular file `name` below `root`, of at most `most` bytes.
///
/// Links are followed as long as they stay below `root`. Pipes, sockets and devices are refused without waiting for them.
pub(crate) fn read(root: &Path, name: &Path, most: u64) -> io::Result<Vec<u8>> {
    use std::io::Read as _;
    let file = open(root, name)?;
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it is larger than {most} bytes")));
    }
    Ok(bytes)
}

/// The kernel itself refuses to leave `root`, whatever is put in the way while it looks.
#[cfg(target_os = "linux")]
fn open(root: &Path, name: &Path) -> io::Result<std::fs::File> {
    use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
    let directory = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(root, directory, Mode::empty())?;
    // Without NONBLOCK a named pipe would hold us for ever.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(root, name, flags, Mode::empty(), within)?.into())
}

#[cfg(not(target_os = "linux"))]
fn open(root: &Path, name: &Path) -> io::Result<std::fs::File> {
    let (root, path) = (root.canonicalize()?, root.join(name).canonicalize()?);
    if !path.starts_with(&root) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not in the workspace"));
    }
    if !path.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    std::fs::File::open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn only_bounded_regular_files_below_the_directory_are_read() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        std::fs::create_dir_all(root.join("sub")).unwrap();
        std::fs::write(dir.path().join("secret"), "s").unwrap();
        std::fs::write(root.join("file"), "12345").unwrap();
        symlink("../file", root.join("sub/inner")).unwrap();
        symlink("../secret", root.join("outer")).unwrap();
        symlink(dir.path().join("secret"), root.join("absolute")).unwrap();
        symlink("/dev/zero", root.join("endless")).unwrap();
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mkfifoat(rustix::fs::CWD, root.join("pipe"), mode).unwrap();
        std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap();
        for name in ["file", "sub/inner", "sub/../file"] {
            assert_eq!(read(&root, Path::new(name), 5).unwrap(), b"12345", "{name}");
        }
        assert_eq!(read(&root, Path::new("file"), 4).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(read(&root, Path::new("sub"), 4).unwrap_err().kind(), io::ErrorKind::IsADirectory);
        for name in ["outer", "absolute", "endless", "pipe", "socket", "../secret", "/etc/passwd", "none"] {
            assert!(read(&root, Path::new(name), 1000).is_err(), "{name}");
        }
    }
}
