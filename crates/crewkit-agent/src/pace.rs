//! Long computations that leave room for everybody else.
//!
//! A thread that computes keeps its core until the scheduler looks who else wants it, on Linux every few milliseconds, even when
//! it runs at a low priority or offers to yield. One that sleeps for a moment is off the core at once. So what takes long is
//! done in pieces of about a millisecond, with a pause after each.

use std::time::Duration;

/// Memory given back between two pauses.
const PAGES: usize = 2 << 20;

/// Lets whoever waits for the core have it.
pub fn pause() {
    std::thread::sleep(Duration::from_micros(20));
}

/// Gives back the memory of large data in pieces: a system takes milliseconds to unmap all of it.
pub fn give_back(mut bytes: Vec<u8>) {
    while bytes.len() > PAGES {
        bytes.truncate(bytes.len() - PAGES);
        // In place: what large data is shrunk by is unmapped.
        bytes.shrink_to_fit();
        pause();
    }
}
