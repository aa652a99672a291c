//! Where there are no process groups, no process can be held: the built-in loop has to do.

use std::io::{self, Write};
use std::path::Path;

/// Refuses every order.
pub fn run(_dir: &Path, _ready: &mut dyn Write, _now_ms: fn() -> u64) -> io::Result<()> {
    let message = "agents of a command line cannot be held on this system; use the driver `loop`";
    Err(io::Error::new(io::ErrorKind::Unsupported, message))
}
