//! Tests of crewkit-pack through its public interface.

mod deploy;
mod sim;
mod sweep;
mod world;
