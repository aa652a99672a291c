//! Fakes with fault switches for the tests of crewkit.

pub mod coder;
