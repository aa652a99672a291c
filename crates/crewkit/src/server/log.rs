//! The log of a background server: a file in the home that does not grow for ever.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tracing_subscriber::fmt::MakeWriter;

/// A log of bounded size: two files, of which the older one is replaced when the newer one is full.
#[derive(Debug, Clone)]
pub struct CappedLog(Arc<Mutex<Files>>);

#[derive(Debug)]
struct Files {
    path: PathBuf,
    file: File,
    written: u64,
    most: u64,
}

/// Where the log of `home` is.
pub fn path(home: &Path) -> PathBuf {
    home.join("run").join("server.log")
}

fn older(path: &Path) -> PathBuf {
    path.with_extension("log.1")
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).append(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

impl CappedLog {
    /// Goes on with the log at `path`; both files together have at most `most` bytes, a last line apart.
    pub fn open(path: &Path, most: u64) -> io::Result<Self> {
        let file = open(path)?;
        let written = file.metadata()?.len();
        Ok(Self(Arc::new(Mutex::new(Files { path: path.to_owned(), file, written, most }))))
    }
}

impl Write for CappedLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if files.written.saturating_add(bytes.len() as u64) > files.most / 2 && files.written > 0 {
            std::fs::rename(&files.path, older(&files.path))?;
            files.file = open(&files.path)?;
            files.written = 0;
        }
        files.file.write_all(bytes)?;
        files.written += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for CappedLog {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

/// The last line of the log of `home`. Returns `None` if there is none.
pub fn last_line(home: &Path) -> Option<String> {
    let text = std::fs::read(path(home)).ok()?;
    let text = String::from_utf8_lossy(&text);
    text.lines().rev().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_lines_are_kept_and_the_size_is_bounded() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("run")).unwrap();
        let path = path(home.path());
        let mut log = CappedLog::open(&path, 1000).unwrap();
        for number in 0..500 {
            writeln!(log, "line {number}").unwrap();
        }
        let size = |path: &Path| std::fs::metadata(path).unwrap().len();
        assert!(size(&path) + size(&older(&path)) <= 1000);
        assert_eq!(last_line(home.path()).as_deref(), Some("line 499"));
        let mut again = CappedLog::open(&path, 1000).unwrap();
        writeln!(again, "{}", "x".repeat(480)).unwrap();
        assert!(size(&older(&path)) <= 500, "what an earlier server wrote counts");
    }
}
