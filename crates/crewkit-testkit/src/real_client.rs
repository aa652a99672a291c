//! Real command lines of others, where somebody has installed them.

use std::path::PathBuf;

/// The program `name` in the directory that `CREWKIT_REAL_CLIENTS` names. Without it a test is skipped, and says so.
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
pub fn real_client(name: &str) -> Option<PathBuf> {
    let found = std::env::var_os("CREWKIT_REAL_CLIENTS").map(|dir| PathBuf::from(dir).join(name));
    let found = found.filter(|path| path.exists());
    if found.is_none() {
        eprintln!("skipped: CREWKIT_REAL_CLIENTS names no directory with {name}");
    }
    found
}
