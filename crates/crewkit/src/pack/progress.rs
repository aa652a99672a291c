//! A progress bar on standard error, for work that takes long enough to wonder about.

use std::io::{IsTerminal as _, Write as _};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crewkit_pack::env::Progress;

/// Work shorter than this shows nothing.
const PATIENCE: Duration = Duration::from_millis(500);
/// Redrawing more often than this only flickers.
const PAUSE: Duration = Duration::from_millis(80);
const WIDTH: usize = 30;

/// Draws the bar, if there is a terminal to draw it on.
#[derive(Debug)]
pub(super) struct Bar {
    began: Instant,
    terminal: bool,
    drawn: Mutex<Option<Instant>>,
}

impl Bar {
    pub(super) fn new() -> Self {
        Self { began: Instant::now(), terminal: std::io::stderr().is_terminal(), drawn: Mutex::new(None) }
    }

    /// Removes the bar, so that what follows starts on a clean line.
    pub(super) fn clear(&self) {
        if self.drawn.lock().is_ok_and(|mut drawn| drawn.take().is_some()) {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

impl Progress for Bar {
    fn at(&self, what: &str, done: usize, total: usize) {
        if !self.terminal || total == 0 || self.began.elapsed() < PATIENCE {
            return;
        }
        // Whoever finds the bar busy has nothing urgent to add.
        let Ok(mut drawn) = self.drawn.try_lock() else { return };
        if drawn.is_some_and(|at| at.elapsed() < PAUSE) {
            return;
        }
        *drawn = Some(Instant::now());
        let _ = write!(std::io::stderr(), "\r\x1b[K{}", line(what, done, total));
    }
}

fn line(what: &str, done: usize, total: usize) -> String {
    let filled = (WIDTH * done.min(total)).checked_div(total).unwrap_or(0);
    format!("{what} [{}{}] {done}/{total}", "=".repeat(filled), " ".repeat(WIDTH - filled))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_bar_fills() {
        assert_eq!(super::line("fetch", 0, 4), format!("fetch [{}] 0/4", " ".repeat(30)));
        assert_eq!(super::line("fetch", 2, 4), format!("fetch [{}{}] 2/4", "=".repeat(15), " ".repeat(15)));
        assert_eq!(super::line("fetch", 9, 4), format!("fetch [{}] 9/4", "=".repeat(30)));
    }
}
