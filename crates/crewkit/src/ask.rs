//! Questions to the person at the terminal.

use std::io::{BufRead as _, Write as _};

/// Whether the person says yes. No answer is no.
pub fn yes(question: &str) -> bool {
    let mut out = std::io::stderr();
    let _ = write!(out, "{question} [y/N] ").and_then(|()| out.flush());
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer).unwrap_or(0);
    if read == 0 {
        let _ = writeln!(out);
    }
    matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}
