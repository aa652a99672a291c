//! What a transaction promises on a healthy disk, simulated and real.
