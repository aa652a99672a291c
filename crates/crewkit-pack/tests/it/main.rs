//! Tests of crewkit-pack through its public interface.

mod deploy;
mod legacy;
mod real;
mod rollback;
mod sim;
mod sweep;
mod walk;
mod world;
