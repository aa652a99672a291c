//! A terminal of this machine, for programs that behave otherwise when they have one.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::process::Stdio;

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

/// A terminal.
#[derive(Debug)]
pub struct Pty {
    /// What is printed can be read here, and what is written here is typed.
    pub screen: File,
    name: CString,
}

impl Pty {
    /// Opens one that nobody uses yet.
    pub fn open() -> io::Result<Self> {
        let screen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&screen)?;
        unlockpt(&screen)?;
        let name = ptsname(&screen, Vec::new())?;
        Ok(Self { screen: File::from(screen), name })
    }

    /// The side of a program.
    pub fn side(&self) -> io::Result<Stdio> {
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        Ok(Stdio::from(rustix::fs::open(self.name.as_c_str(), flags, Mode::empty())?))
    }
}
